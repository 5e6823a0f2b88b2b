"""Ready tasks in a custom order: each key is computed once, whatever it raises or returns."""

import pytest

from ratelimited_executor._core.order.ordering import TaskClass, default_order, latest_due_first
from ratelimited_executor._kernel.ready import ReadyQueues

from ..ready_tasks import heap, pop


@pytest.mark.parametrize("order", [default_order, latest_due_first])
def test_index_by_due_time_is_dropped_when_nobody_asks(order, record_class, calendar_class):
    """The index by due time is dropped once it is not used, as in an overload by importance."""
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
    """Records started by due time leave few places in an order that would have them last."""
    queue = heap(calendar_class(), latest_due_first)
    for number in range(2000):
        queue.push_record(record_class(due=float(number)))
        if number >= 10:
            assert number - 10 == queue.earliest()
            queue.pop_earliest().take()
    assert len(queue._heap) < 200


@pytest.mark.parametrize("error", [ValueError("no"), ZeroDivisionError()])
def test_key_that_raises_puts_its_task_last_and_is_reported(error, record_class, calendar_class):
    """A task whose key raises is last, behind all keys, and the error is reported."""
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
    """Incomparable keys are reported, and no task is lost."""
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
    """The key of a task is computed once, however often it is compared."""
    asked = []
    queue = heap(calendar_class(), lambda task: asked.append(task.name) or task.name)
    for index in (3, 1, 2):
        queue.push_record(record_class(str(index), due=1.0))
    assert ["1", "2", "3"] == [str(pop(queue)[1]) for _ in range(3)]
    assert ["3", "1", "2"] == asked


@pytest.mark.parametrize("is_reversed", [False, True])
def test_one_cancel_of_many_compares_few_keys(record_class, calendar_class, is_reversed):
    """Cancelling one of many tasks compares few keys, and does not reorder all of them."""
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
