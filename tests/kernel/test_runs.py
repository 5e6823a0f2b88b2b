"""Runs: tasks that became ready together, and whose records are freed as they start."""

from array import array

from ratelimited_executor._core.order.ordering import TaskClass
from ratelimited_executor._kernel.ready import ReadyQueues
from ratelimited_executor._kernel.runs import RecordRun

from ..core.ready_tasks import Column, pop


def test_a_million_ready_positions_are_one_run(calendar_class):
    """A run costs nothing per task."""
    queue = ReadyQueues(calendar_class())
    column = Column()
    column.dues = array("d", [1.0]) * 1_000_000
    queue.push_run(column, range(1_000_000), (0, TaskClass.OTHER))
    assert (column, 0) == pop(queue)
    assert (column, 1) == pop(queue)


def test_a_started_record_is_freed_by_its_run(record_class, calendar_class):
    """A run keeps no reference to a record that has started."""
    run = RecordRun(calendar_class())
    record = record_class()
    run.push(record)
    assert 0.0 == run.head_due()
    assert record is run.take()
    assert None is record._place
    assert [None] == run.records
