"""The index of deadlines: what has passed is swept out, once, and nothing else."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core.expiry import ExpiryIndex
from ratelimited_executor._kernel.timeline import NS, Timeline


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
@settings(max_examples=300, deadline=None)
def test_sweep_returns_what_has_passed_and_nothing_else(record_class, steps):
    """Records with a deadline in an earlier interval, each once, those that were discarded left out."""
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
