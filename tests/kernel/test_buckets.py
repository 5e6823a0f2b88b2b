"""Columns of tasks: handles stay valid through every compaction, and cancelling frees references at once."""

from collections import deque
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from ratelimited_executor._kernel import buckets
from ratelimited_executor._kernel.buckets import RECORD, Bucket, folded, name_of, unfolded

from ..helpers import examples, small_counts

OPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.booleans()),
        st.tuples(st.just("record"), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 10_000)),
        st.tuples(st.just("cancel again"), st.integers(0, 10_000)),
        st.tuples(st.just("clear"), st.integers(0, 10_000)),
        st.tuples(st.just("chore"), st.just(0)),
    ),
    max_size=120,
)


@given(ops=OPS, open_at=st.integers(0, 200))
@examples(160, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("step", [3, 1000])
def test_handles_find_their_task_through_every_compaction(step, ops, open_at, record_class, calendar_class):
    """Each handle finds its own task after any additions, cancellations and compactions, at once or in steps."""
    with small_counts(spare=1) as patch:
        patch.setattr(buckets, "STEP", step)
        calendar = calendar_class()
        bucket = Bucket(calendar)
        waiting: dict[int, tuple] = {}  # place -> what lies there, in order of arrival
        records: dict[int, object] = {}
        gone: list[int] = []
        for index, (action, value) in enumerate(ops):
            if index == open_at:
                bucket.opened = True
            if action == "add":
                place = bucket.add(float(index), f"call {index}", (index,), f"context {index}" if value else None)
                waiting[place] = (float(index), f"call {index}", (index,), f"context {index}" if value else None)
            elif action == "record":
                record = record_class(due=float(index))
                bucket.add_record(record)
                place = bucket.shift + len(bucket.calls) - 1
                records[place] = record
                waiting[place] = (float(index), record, RECORD, None)
            elif action == "cancel" and waiting:
                place = list(waiting)[value % len(waiting)]
                del waiting[place]
                gone.append(place)
                if place in records:
                    records[place]._place = None
                    bucket.cancel_record()
                else:
                    assert bucket.cancel(place), index
            elif action == "cancel again" and gone:
                place = gone[value % len(gone)]
                assert place in records or not bucket.cancel(place), index
            elif action == "clear" and bucket.opened and waiting:
                at = value % len(waiting)
                place = list(waiting)[at]
                if place not in records:
                    bucket.clear(list(bucket.positions())[at])
                    del waiting[place]
                    gone.append(place)
            elif action == "chore":
                calendar.step()
            held = [
                (
                    bucket.due_of(at),
                    bucket.calls[at],
                    RECORD if bucket.args[at] is RECORD else unfolded(bucket.args[at]),
                    None if bucket.contexts is None else bucket.contexts[at],
                )
                for at in bucket.positions()
            ]
            assert list(waiting.values()) == held, index
            assert len(waiting) == bucket.live, index
            assert len(bucket.calls) == len(bucket.args) == len(bucket.dues), index


def test_cancelling_frees_what_the_task_held_at_once(calendar_class):
    """A cancellation frees callable, arguments and context at once, before any compaction."""
    bucket = Bucket(calendar_class())
    place = bucket.add(1.0, print, ("argument",), "context")
    assert bucket.cancel(place)
    assert ([None], [None], [None]) == (bucket.calls, bucket.args, bucket.contexts)
    assert not bucket.cancel(place)


def test_columns_shrink_when_most_of_a_small_bucket_is_cancelled(calendar_class):
    """After 900 of 1,000 cancellations the columns shrink at once to about twice the survivors at most."""
    bucket = Bucket(calendar_class())
    places = [bucket.add(float(index), index, ()) for index in range(1000)]
    for place in places[100:]:
        bucket.cancel(place)
    assert len(bucket.calls) <= 2 * 100 + 65
    assert [*range(100)] == [bucket.calls[at] for at in bucket.positions()]


def test_one_compaction_at_a_time_is_put_off(calendar_class):
    """One chore is enough, however many tasks are cancelled before it runs."""
    calendar = calendar_class()
    bucket = Bucket(calendar)
    count = 3 * buckets.STEP
    places = [bucket.add(float(index), index, ()) for index in range(count)]
    for place in places[100:]:
        bucket.cancel(place)
    assert 1 == len(calendar.chores)
    while calendar.chores:
        calendar.step()
    assert 100 == len(bucket.calls) == bucket.live
    assert bucket.cancel(places[50])
    assert not bucket.cancel(places[150])
    assert 99 == bucket.live


def test_a_discarded_bucket_answers_all_handles(calendar_class):
    """After the columns are freed, old handles cancel nothing, and no position waits."""
    bucket = Bucket(calendar_class())
    place = bucket.add(1.0, print, ())
    bucket.clear(0)
    bucket.discard()
    assert not bucket.cancel(place)
    assert not bucket.is_waiting(0)
    assert [] == list(bucket.positions())


@pytest.mark.parametrize(("count", "step_count"), [(3, 0), (4, 8), (9, 20)])
def test_a_large_bucket_gives_its_memory_back_in_steps(monkeypatch, count, step_count, calendar_class):
    """A large bucket answers handles at once and shrinks its columns in steps; a small one is freed at once."""
    monkeypatch.setattr(buckets, "STEP", 3)
    monkeypatch.setattr(buckets, "_FREE_COUNT", 2)
    bucket, chores = Bucket(calendar_class()), deque()
    places = [bucket.add(1.0, print, (), "context") for _ in range(count)]
    for position in range(count):
        bucket.clear(position)
    columns = bucket.dues, bucket.calls, bucket.args, bucket.contexts
    bucket.discard_with(chores)
    assert not any(map(bucket.cancel, places))
    assert not bucket.is_waiting(0)
    lengths = [sum(map(len, columns)) for chore in chores for _ in chore]
    assert len(lengths) == step_count
    assert all(before - after in {1, 2} for before, after in pairwise(lengths))
    assert not chores or not any(columns)


def test_opened_bucket_is_not_compacted(calendar_class):
    """Positions of an opened bucket do not move."""
    calendar = calendar_class()
    bucket = Bucket(calendar)
    bucket.opened = True
    places = [bucket.add(float(index), index, ()) for index in range(1000)]
    for place in places[1:]:
        bucket.cancel(place)
    assert 1000 == len(bucket.calls)


def test_names_are_those_of_the_function():
    """A callable is named by its qualified name, a partial by its function, an object by its type."""

    class Caller:
        def __call__(self) -> None: ...

    assert "test_names_are_those_of_the_function" == name_of(test_names_are_those_of_the_function)
    assert "sorted" == name_of(partial(sorted, []))
    assert name_of(Caller()).endswith("Caller")


@pytest.mark.parametrize(
    "args", [(), (None,), (1,), ((),), ((1, 2),), ([1],), (1, 2), (None, None), (((1,),),)], ids=repr
)
def test_arguments_come_back_as_they_were_given(args):
    """Arguments come back unchanged; a single one is stored without its tuple, unless it is a tuple itself."""
    assert args == unfolded(folded(args))
    assert (len(args) == 1 and type(args[0]) is not tuple) == (folded(args) is not args)
