"""What is due: the most important first, in the default order and in any other."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core import ready, ready_heap, runs
from ratelimited_executor._core.ordering import TaskClass, default_order, latest_due_first
from ratelimited_executor._core.ready import ReadyQueues
from ratelimited_executor._core.ready_heap import ReadyHeap
from ratelimited_executor._core.runs import RecordRun


class Column:
    """A source: positions with due times, some of which have gone."""

    key = needs = None

    def __init__(self) -> None:
        self.dues: list[float] = []
        self.gone: set[int] = set()

    def add(self, due: float) -> int:
        self.dues.append(due)
        return len(self.dues) - 1

    @property
    def live(self) -> int:
        return len(self.dues) - len(self.gone)

    def is_waiting(self, position: int) -> bool:
        return position not in self.gone

    def due_of(self, position: int) -> float:
        return self.dues[position]

    def name_of(self, position: int) -> str:
        return f"position {position}"

    def cost_of(self, position: int) -> int:
        return 1


def heap(calendar, order, report=None) -> ReadyHeap:
    """Make a heap on a scale where loop time is epoch time."""
    return ReadyHeap(calendar, order, to_epoch=float, report=report or (lambda error: None))


def pop(queue, *, earliest=False) -> tuple | None:
    """Take the first task as the engine does, or the one that is due first."""
    if (queue.earliest() if earliest else queue.head()) is None:
        return None
    run = queue.pop_earliest() if earliest else queue.pop()
    item = run.take()
    return (run.source, item)


def due_of(task) -> float:
    """Return the due time of a task as :func:`pop` gives it."""
    source, item = task
    return item._due if source is None else source.due_of(item)


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
@settings(max_examples=400, deadline=None)
@pytest.mark.parametrize("form", ["queues", "heap", "latest"])
def test_the_most_important_comes_first_whatever_is_cancelled(form, record_class, calendar_class, ops):
    """Both forms start tasks in the order of a plain sort by key or due time and arrival, and walk exactly what waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_SPARE_COUNT", 1)
        patch.setattr(ready, "_SPARE_COUNT", 1)
        patch.setattr(ready_heap, "_SPARE_COUNT", 1)
        patch.setattr(runs, "_RUN_COUNT_MAX", 3)
        patch.setattr(ready_heap, "_MOVE_COUNT", 1)
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


@pytest.mark.parametrize("order", [default_order, latest_due_first])
def test_index_by_due_time_is_dropped_when_nobody_asks(order, record_class, calendar_class):
    """An overload that goes by importance alone does not keep what was asked for once."""
    queue = heap(calendar_class(), order) if order is latest_due_first else ReadyQueues(calendar_class())
    for number in range(3):
        queue.push_record(record_class(due=0.0, priority=number))
    assert 0.0 == queue.earliest()
    for number in range(1000):
        queue.push_record(record_class(due=float(number), priority=5))
        queue.head()
        queue.pop().take()
        queue.head()
    assert queue._by_due is None or len(queue._by_due) < 300


def test_records_taken_by_due_time_are_freed(record_class, calendar_class):
    """What starts by due time leaves no more than some places in an order that would have it last."""
    queue = heap(calendar_class(), latest_due_first)
    for number in range(2000):
        queue.push_record(record_class(due=float(number)))
        if number >= 10:
            assert number - 10 == queue.earliest()
            queue.pop_earliest().take()
    assert len(queue._heap) < 200


def test_default_order_is_class_within_priority(record_class, calendar_class):
    """Priority first, then repeating, immediate, others, then arrival."""
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


@pytest.mark.parametrize("error", [ValueError("no"), ZeroDivisionError()])
def test_key_that_raises_puts_its_task_last_and_is_reported(error, record_class, calendar_class):
    """Nothing is lost by an order that raises: the task goes last, behind larger keys."""
    reported = []

    def order(task):
        if task.name == "bad":
            raise error
        return task.due

    queue = heap(calendar_class(), order, reported.append)
    records = [record_class(name, due=due) for name, due in [("bad", 0.0), ("b", 2.0), ("a", 1.0), ("bad", 0.5)]]
    for record in records:
        queue.push_record(record)
    assert [records[2], records[1], records[0], records[3]] == [pop(queue)[1] for _ in records]
    assert [error, error] == reported


def test_keys_that_cannot_be_compared_fall_back_to_arrival(record_class, calendar_class):
    """Keys of different types lose nothing, and are reported."""
    reported = []
    keys = iter([1, "one", None, 2, [3]])
    queue = heap(calendar_class(), lambda task: next(keys), reported.append)
    records = [record_class(str(index), due=1.0) for index in range(5)]
    for record in records:
        queue.push_record(record)
    assert set(records) == {pop(queue)[1] for _ in records}
    assert reported
    assert all(isinstance(error, TypeError) for error in reported)


def test_a_key_is_evaluated_once(record_class, calendar_class):
    """However often tasks are compared, the order is asked once for each."""
    asked = []
    queue = heap(calendar_class(), lambda task: asked.append(task.name) or task.name)
    for index in (3, 1, 2):
        queue.push_record(record_class(str(index), due=1.0))
    assert ["1", "2", "3"] == [str(pop(queue)[1]) for _ in range(3)]
    assert ["3", "1", "2"] == asked


@pytest.mark.parametrize("is_reversed", [False, True])
def test_one_cancel_of_many_compares_few_keys(record_class, calendar_class, is_reversed):
    """However many wait: to order all of them anew would hold the loop for longer than anybody may."""
    compared = [0]

    class Key(int):
        def __lt__(self, other):
            compared[0] += 1
            return int(self) < int(other)

    queue = heap(calendar_class(), lambda task: Key(int(task.name) * 7919 % 10_007))
    records = [record_class(str(number)) for number in range(10_000)]
    queue.push_records(records[:], (0, TaskClass.OTHER))
    most = total = 0
    for number, record in enumerate(reversed(records) if is_reversed else records):
        compared[0], record._place = 0, None
        queue.cancel_record()
        most, total = max(most, compared[0]), total + compared[0]
        if number % 500 == 0:
            walked = {item for _, item in queue.walk()}
            assert walked == {each for each in records if each._place is queue}
            assert min(walked, key=lambda each: int(each.name) * 7919 % 10_007) is queue.head().position
    assert most < 300
    assert total < 100_000
    assert None is queue.head()


@pytest.mark.parametrize("way", ["walk", "drain"])
def test_walk_meets_all_that_wait_while_they_are_cancelled(record_class, calendar_class, way):
    """As closing does, in steps: nothing moves meanwhile."""
    queue = heap(calendar_class(), latest_due_first)
    records = [record_class(str(number), due=number) for number in range(1000)]
    queue.push_records(records[:], (0, TaskClass.OTHER))
    for record in records[:600]:  # until it is in the middle of being freed of them
        record._place = None
        queue.cancel_record()
    met = []
    for _, record in getattr(queue, way)():
        met.append(record)
        record._place = None
        queue.cancel_record()
    assert set(records[600:]) == set(met)
    assert [] == list(queue.walk())


def test_a_million_ready_positions_are_one_run(calendar_class):
    """A run costs nothing per task."""
    queue = ReadyQueues(calendar_class())
    column = Column()
    column.dues = array("d", [1.0]) * 1_000_000
    queue.push_run(column, range(1_000_000), (0, TaskClass.OTHER))
    assert (column, 0) == pop(queue)
    assert (column, 1) == pop(queue)


def test_a_started_record_is_freed_by_its_run(record_class, calendar_class):
    """A run does not keep what it has given away."""
    run = RecordRun(calendar_class())
    record = record_class()
    run.push(record)
    assert 0.0 == run.head_due()
    assert record is run.take()
    assert None is record._place
    assert [None] == run.records
