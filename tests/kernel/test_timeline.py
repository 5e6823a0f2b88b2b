"""The three representations of an instant, and their rounding."""

import math

from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._kernel.timeline import NS, Timeline

from ..helpers import examples

WALLS = st.floats(min_value=0, max_value=4e9)
MONOTONIC = st.floats(min_value=0, max_value=1e8)
WIDTHS = st.sampled_from([10_000_000, 100_000_000, NS, 7 * NS // 3, 3600 * NS])


@given(MONOTONIC, WALLS, WIDTHS, st.integers(-10 * NS, 10**17))
@examples(120)
def test_loop_time_of_a_nanosecond_is_the_first_that_reaches_it(monotonic, wall, width, offset):
    """A timer set for an instant finds it reached, and no loop time before that does."""
    timeline = Timeline(monotonic=monotonic, wall=wall, interval_ns=width)
    instant = timeline.offset_ns + math.floor(monotonic * NS) + offset
    loop_time = timeline.to_loop(instant)
    assert timeline.to_ns(loop_time) >= instant
    assert timeline.to_ns(math.nextafter(loop_time, -math.inf)) <= instant


@given(MONOTONIC, WALLS, WIDTHS, st.floats(min_value=0, max_value=1e7))
@examples(120)
def test_every_instant_lies_in_the_interval_of_its_number(monotonic, wall, width, after):
    """Interval k begins at its start and ends where k + 1 begins."""
    timeline = Timeline(monotonic=monotonic, wall=wall, interval_ns=width)
    number = timeline.number_at(monotonic + after)
    # The start is that of the first whole nanosecond, so it may lie a unit in the last place behind it.
    assert math.nextafter(timeline.start_of(number), -math.inf) <= monotonic + after < timeline.start_of(number + 1)
    assert number == timeline.number_at(timeline.start_of(number))


def test_timeline_starts_at_epoch_time():
    """Loop time at the start converts to the wall time at the start."""
    timeline = Timeline(monotonic=100.0, wall=1_000_000.25, interval_ns=NS)
    assert 1_000_000.25 == timeline.to_epoch(100.0)
    assert 1_000_000_250_000_000 == timeline.to_ns(100.0)
    assert 1_000_000 == timeline.number_at(100.0)


def test_another_width_is_on_the_same_timeline():
    """Another interval width changes only the numbers."""
    timeline = Timeline(monotonic=3.0, wall=100.0, interval_ns=NS)
    halves = timeline.cut(NS // 2)
    assert timeline.to_ns(7.25) == halves.to_ns(7.25)
    assert timeline.to_epoch(7.25) == halves.to_epoch(7.25)
    assert (104, 208) == (timeline.number_at(7.25), halves.number_at(7.25))
    assert (1.0, 0.5) == (timeline.interval_seconds, halves.interval_seconds)
