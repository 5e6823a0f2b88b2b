"""The index of tasks to be dropped when there is no room, compared with a sorted list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core import lazy_heap
from ratelimited_executor._core.queue.dropping import DropIndex
from ratelimited_executor._core.queue.records import KeyOptions, Options

from ...helpers import examples


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(-2, 2), st.integers(0, 5), st.sampled_from(["a", "b", None])),
            st.tuples(st.just("add"), st.integers(-2, 2), st.integers(0, 5), st.sampled_from(["a", "b", None])),
            st.tuples(st.just("discard"), st.integers(0, 1000), st.none(), st.none()),
        ),
        max_size=60,
    ),
    st.booleans(),
    st.booleans(),
    st.integers(0, 4),
)
@examples(120)
def test_what_is_dropped_is_what_a_sorted_list_begins_with(record_class, steps, is_lowest_first, is_by_key, wanted):
    """Dropped are the least important tasks, of those the last due, or else the first due, in total and by key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_heap, "_SPARE_COUNT", 1)
        index = DropIndex(is_lowest_first=is_lowest_first, is_by_key=is_by_key)
        waiting: dict = {}

        def ranked(key) -> list:
            return [
                record
                for record in sorted(waiting, key=waiting.get)
                if key is None or not is_by_key or record.key == key
            ]

        for number, (action, value, due, key) in enumerate(steps):
            if action == "add":
                record = record_class(f"r{number}", due=float(due))
                record._options = Options(priority=value, key=key)
                index.add(record)
                index.add(record)
                waiting[record] = (value, -due, -number) if is_lowest_first else (due, number)
            elif waiting:
                record = list(waiting)[value % len(waiting)]
                index.discard(record)
                index.discard(record)
                del waiting[record]
            assert len(waiting) == index._all.live_count
            for key in (None, "a", "b"):
                assert ranked(key)[:wanted] == index.first_n(wanted, key)
                assert next(iter(ranked(key)), None) is index.first(key)
                count = sum(record.key == key for record in waiting) if is_by_key and key is not None else 0
                assert count == index.key_count(key)
            for record in waiting:
                assert [is_lowest_first and record.priority > priority for priority in (-1, 0)] == [
                    index.protects(record, priority) for priority in (-1, 0)
                ]


def test_an_index_is_as_large_as_what_waits(record_class):
    """Entries of ended tasks are removed once they are the larger part."""
    index = DropIndex(is_lowest_first=True, is_by_key=True)
    records = [record_class(due=float(number)) for number in range(1000)]
    for record in records:
        record._options = Options(key="a")
        index.add(record)
    for record in records[:990]:
        index.discard(record)
    assert len(index._all) <= 2 * 10 + 64
    assert records[:-11:-1] == index.first_n(100)
    for record in records[990:]:
        index.discard(record)
    assert {} == index._by_key


def test_a_task_that_was_never_there_is_not_missed(record_class):
    """A task that was never in the index may be removed."""
    index = DropIndex(is_lowest_first=True, is_by_key=True)
    plain, keyed = record_class(), record_class()
    keyed._options = KeyOptions("a")
    index.discard(plain)
    index.discard(keyed)
    assert (0, None, []) == (index._all.live_count, index.first("a"), index.first_n(2, "a"))
