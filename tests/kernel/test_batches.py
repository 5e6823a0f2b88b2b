"""Batches with computed due times."""

import math
from array import array

from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._kernel.batches import BatchSource, RisingOrder
from ratelimited_executor._kernel.calendar import PLAIN_RANK


def make(count, **times) -> BatchSource:
    return BatchSource(count, rank=PLAIN_RANK, name="b", owner=None, **times)


@given(st.integers(0, 50), st.floats(0, 100), st.sampled_from([0.0, 0.1, 1 / 3, 2.0]), st.floats(0, 200))
def test_count_before_is_what_a_look_at_each_finds(count, first, gap, end):
    """Bisection counts the same tasks due before an instant as looking at each task."""
    source = make(count, first=first, gap=gap)
    assert sum(source.due_of(position) < end for position in range(count)) == source.count_before(end)


@given(st.integers(1, 40), st.sampled_from([0.0, 0.25]), st.lists(st.floats(0, 12), max_size=10))
def test_rising_order_reads_each_position_once_and_none_early(count, gap, nows):
    """Each reading returns the positions that are due, in order, each once."""
    source = make(count, first=1.0, gap=gap)
    order = RisingOrder(source, 0, count)
    read = []
    for now in sorted(nows):
        taken = list(order.take(now, 4096))
        assert all(source.due_of(position) <= now for position in taken)
        read += taken
        assert order.head() > now
    assert [*range(len(read))] == read
    assert (source.due_of(len(read)) if len(read) < count else math.inf) == order.head()


@given(st.integers(1, 30), st.lists(st.integers(0, 29), unique=True, max_size=30), st.booleans())
def test_waiting_positions_are_those_that_have_not_started(count, started, is_scattered):
    """The waiting positions are those not started, in any order of starts, for stored and computed due times."""
    dues = {"dues": array("d", range(count)), "indexes": range(count - 1, -1, -1)}
    source = make(count, **(dues if is_scattered else {}))
    started = [position for position in started if position < count]
    for position in started:
        source.start(position)
    assert set(range(count)) - set(started) == set(source.waiting_positions())
    assert count - len(started) == source.live
    source.revoked = True
    assert 0 == source.live
    assert math.inf == RisingOrder(source, 0, count).head()


def test_task_of_a_batch_is_named_by_its_position():
    """The name of a task contains the index of its item."""
    assert "b[7]" == make(10).name_of(7)
