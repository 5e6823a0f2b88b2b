"""Due tasks: the most important first, in the default order and in any other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core import lazy_heap
from ratelimited_executor._core.order import ready_heap
from ratelimited_executor._kernel import ready, runs
from ratelimited_executor._core.order.ordering import TaskClass, default_order, latest_due_first
from ratelimited_executor._kernel.ready import ReadyQueues

from ..helpers import examples
from ..core.ready_tasks import Column, due_of, heap, pop

OPS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(-2, 2), st.sampled_from(list(TaskClass))),
        st.tuples(st.just("run"), st.integers(1, 4), st.sampled_from(list(TaskClass))),
        st.tuples(st.just("position"), st.integers(-1, 1), st.sampled_from(list(TaskClass))),
        st.tuples(st.just("later"), st.integers(0, 2), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 1000), st.none()),
        st.tuples(st.just("pop"), st.none(), st.none()),
        st.tuples(st.just("pop earliest"), st.none(), st.none()),
    ),
    max_size=80,
)


@given(OPS)
@examples(160)
@pytest.mark.parametrize("form", ["queues", "heap", "latest"])
def test_the_most_important_comes_first_whatever_is_cancelled(form, record_class, calendar_class, ops):
    """Both forms start tasks in the order of a plain sort, and walk exactly the waiting ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_SPARE_COUNT", 1)
        patch.setattr(ready, "_SPARE_COUNT", 1)
        patch.setattr(ready_heap, "_SPARE_COUNT", 1)
        patch.setattr(lazy_heap.GuardedHeap, "sweep_count_max", 1)
        patch.setattr(lazy_heap, "_SPARE_COUNT", 1)
        patch.setattr(runs, "RECORD_COUNT_MAX", 3)
        patch.setattr(lazy_heap, "_STEP_COUNT", 1)
        calendar = calendar_class()
        queue = (
            ReadyQueues(calendar)
            if form == "queues"
            else heap(calendar, default_order if form == "heap" else latest_due_first)
        )
        columns = [Column(), Column()]
        waiting: dict[tuple, tuple] = {}
        came: dict[tuple, int] = {}  # the number of each task, which is also the order of their due times
        now, arrival = 10.0, 0

        def key_of(rank, due, arrival):
            return (-due, arrival) if form == "latest" else (rank, due, arrival)

        for step, (action, value, kind) in enumerate(ops):
            if action == "later":
                now += value
            elif action == "record":
                record = record_class(f"r{step}", due=now, priority=value, rank=kind)
                queue.push_record(record)
                waiting[None, record] = key_of((-value, kind), now, arrival)
                came[None, record] = arrival
                arrival += 1
            elif action == "run":
                column = columns[value % 2]
                positions = [column.add(now) for _ in range(value)]
                queue.push_run(column, positions, (0, kind))
                for position in positions:
                    waiting[column, position] = key_of((0, kind), now, arrival)
                    came[column, position] = arrival
                    arrival += 1
            elif action == "position":
                column = columns[value % 2]
                position = column.add(now)
                queue.push_position(column, position, (-value, kind))
                waiting[column, position] = key_of((-value, kind), now, arrival)
                came[column, position] = arrival
                arrival += 1
            elif action == "cancel" and waiting:
                source, item = list(waiting)[value % len(waiting)]
                del waiting[source, item]
                if source is None:
                    place, item._place = item._place, None
                    place.cancel_record()
                else:
                    source.gone.add(item)
            elif action in ("pop", "pop earliest"):
                is_earliest = action == "pop earliest"
                first = min(waiting, key=came.get if is_earliest else waiting.get, default=None)
                found = pop(queue, earliest=is_earliest)
                if is_earliest and form == "queues" and found is not None:  # single positions do not keep their arrival
                    assert due_of(first) == due_of(found), step
                    first = found if any(action == "position" for action, *_ in ops) else first
                assert first == found, step
                if first is not None:
                    del waiting[first]
                    if first[0] is not None:
                        first[0].gone.add(first[1])
            assert len(waiting) == len(list(queue.walk())), step
            assert set(waiting) == set(queue.walk()), step
            assert [item for _, item in sorted(waiting, key=waiting.get)] == [
                item for _, _, item in sorted(queue.keyed(), key=lambda entry: entry[0])
            ] or form == "queues", step
        while waiting:
            first = min(waiting, key=waiting.get)
            assert first == pop(queue)
            del waiting[first]
        assert None is queue.head()


def test_default_order_is_class_within_priority(record_class, calendar_class):
    """The default order is priority; then repeating, immediate, others; then arrival."""
    queue = ReadyQueues(calendar_class())
    column = Column()
    names = {}
    for name, priority, rank in [
        ("other", 0, TaskClass.OTHER),
        ("immediate", 0, TaskClass.IMMEDIATE),
        ("low", -1, TaskClass.REPEATING),
        ("repeating", 0, TaskClass.REPEATING),
        ("high", 1, TaskClass.OTHER),
    ]:
        record = record_class(name, due=1.0, priority=priority, rank=rank)
        names[name] = record
        queue.push_record(record)
    queue.push_position(column, column.add(1.0), (0, TaskClass.OTHER))
    order = []
    while (first := pop(queue)) is not None:
        order.append(str(first[1]))
    assert ["high", "repeating", "immediate", "other", "0", "low"] == order


@pytest.mark.parametrize("way", ["walk", "drain"])
def test_walk_meets_all_that_wait_while_they_are_cancelled(record_class, calendar_class, way):
    """A walk in steps meets every waiting task while they are cancelled, as closing does."""
    queue = heap(calendar_class(), latest_due_first)
    records = [record_class(str(number), due=number) for number in range(1000)]
    queue.push_records(records[:], (0, TaskClass.OTHER))
    for record in records[:600]:  # until it is in the middle of being freed of them
        record._place = None
        queue.cancel_record()
    met = []
    steps = iter(lambda: queue.drain(7), None) if way == "drain" else ([record] for _, record in queue.walk())
    for step in steps:
        for record in step:
            met.append(record)
            record._place = None
            queue.cancel_record()
    assert set(records[600:]) == set(met)
    assert [] == list(queue.walk())
