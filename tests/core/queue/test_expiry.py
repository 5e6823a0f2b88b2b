"""The index of deadlines: a sweep returns what has passed, once, and nothing else."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.calendar import PLAIN_RANK
from ratelimited_executor._core.queue.expiry import ExpiryIndex
from ratelimited_executor._kernel.timeline import NS, Timeline

from ...helpers import examples


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.floats(0, 10)),
            st.tuples(st.just("discard"), st.integers(0, 1000)),
            st.tuples(st.just("sweep"), st.integers(0, 3)),
            st.tuples(st.just("sweep some"), st.integers(0, 3)),
        ),
        max_size=60,
    )
)
@examples(120)
def test_sweep_returns_what_has_passed_and_nothing_else(record_class, steps):
    """A sweep returns each record with a deadline in an earlier interval once, except for discarded ones."""
    timeline = Timeline(monotonic=0.0, wall=1000.0, interval_ns=NS)
    index = ExpiryIndex(timeline)
    inside: dict[object, int] = {}
    number = timeline.number_at(0.0)
    for step, (action, value) in enumerate(steps):
        if action == "add":
            record = record_class(f"r{step}", due=0.0, expires=value)
            index.add(record)
            inside[record] = timeline.number_at(record._options.deadline)
        elif action == "discard" and inside:
            record = list(inside)[value % len(inside)]
            index.discard(record)
            index.discard(record)
            del inside[record]
        elif action == "sweep":
            number += value
            passed = {record for record, at in inside.items() if at < number}
            assert passed == set(index.sweep(number)), step
            for record in passed:
                del inside[record]
        elif action == "sweep some":
            number += value
            for record in itertools.islice(index.sweep(number), value):
                assert inside.pop(record) < number, step
        assert (min(inside.values()) + 1 if inside else None) == index.next_sweep(), step


def test_an_interval_without_deadlines_leaves_nothing(record_class):
    """Intervals without deadlines leave nothing behind, and the first remaining deadline is found."""
    index = ExpiryIndex(Timeline(monotonic=0.0, wall=1000.0, interval_ns=NS))
    last = record_class("last", due=0.0, expires=1e6)
    index.add(last)
    for number in range(1000):
        records = [record_class(due=0.0, expires=100.0 + at) for at in (0, number)]
        for record in records:
            index.add(record)
        for record in records:
            index.discard(record)
    assert 1 == len(index._intervals)
    assert len(index._numbers) < 100
    assert 1_001_001 == index.next_sweep()
    index.discard(last)
    assert None is index.next_sweep()


def test_deadlines_of_a_batch_are_kept_while_its_sweep_is_interrupted():
    """After an interrupted sweep of a batch, the next one returns the rest, and that of batches added since."""
    index = ExpiryIndex(Timeline(monotonic=0.0, wall=1000.0, interval_ns=NS))
    first, second = (
        BatchSource(3, first=due, rank=PLAIN_RANK, name="b", owner=None, deadline_after=1.0) for due in (1.0, 0.0)
    )
    index.add_batch(first)
    swept = []
    for source, position in index.sweep_batches(5.0):
        source.start(position)
        swept.append((source, position))
        if len(swept) == 2:
            index.add_batch(second)
        if len(swept) in (2, 4):
            break
    for source, position in index.sweep_batches(5.0):
        source.start(position)
        swept.append((source, position))
    assert [(first, 0), (first, 1)] == swept[:2]
    assert {(source, position) for source in (first, second) for position in range(3)} == set(swept)
    assert None is index.next_sweep()
