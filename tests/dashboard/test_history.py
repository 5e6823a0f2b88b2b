"""The ring of points keeps the newest ones in their order, whatever is added."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor.dashboard.history import History, Point


def point(at, **values):
    return Point(**{**dict.fromkeys(Point._fields, 0.0), "at": at, **values})


@given(st.integers(1, 7), st.integers(0, 30))
def test_ring_keeps_the_newest_points_in_their_order(count_max, count):
    """The ring has what a list would have whose oldest items are cut off."""
    history = History(Point, count_max)
    for number in range(count):
        history.add(point(1e9 + number, waiting=number))
    kept = list(range(count))[-count_max:]
    assert len(history) == len(kept)
    assert history.column("at") == [1e9 + number for number in kept]
    assert history.column("waiting") == kept
    for tail_count in (1, 3, 9):
        assert history.tail("waiting", tail_count) == kept[-tail_count:]
    assert (None if not kept else kept[-1]) == (None if history.last() is None else history.last().waiting)


def test_last_point_of_a_full_ring_is_the_newest():
    """The last point is the newest one, also right after the first one was overwritten."""
    history = History(Point, 3)
    for number in range(3):
        history.add(point(number, running=number))
    assert history.last().running == 2
    history.add(point(3, running=3))
    assert history.last().running == history.last_of("running") == 3
    assert math.isnan(History(Point).last_of("running"))


def test_what_was_not_measured_stays_so():
    """A value that was not measured stays NaN."""
    history = History(Point)
    history.add(point(1, lateness=math.nan))
    assert math.isnan(history.column("lateness")[0])


def test_a_name_that_is_no_field_is_an_error():
    """A misspelt field raises a KeyError; it must not draw an empty plot."""
    with pytest.raises(KeyError, match="late"):
        History(Point).column("late")
