"""Views of waiting tasks: a list of some of them, or all that a closed executor has not started."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ratelimited_executor._core.keys.keys import given_key
from ratelimited_executor._core.order.ordering import TaskView
from ratelimited_executor._kernel.buckets import RECORD, Bucket, name_of, unfolded
from ratelimited_executor._kernel.ready import ReadyQueues
from ratelimited_executor._kernel.records import TaskClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._kernel.batches import BatchSource
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.batches import BatchHandle
    from ratelimited_executor._runtime.task.handles import TaskHandle

__all__ = ["Unstarted", "waiting_batches", "waiting_handles", "waiting_tasks"]

_READY_COUNT: Final = 1000  # ready tasks searched for those with handles before all others: 0.3 ms


def waiting_tasks(queue: TaskQueue, accounts: Accounts, limit: int | None) -> list[TaskView]:
    """Return views of at most ``limit`` waiting tasks, in no particular order: O(limit)."""
    return [view for view, _ in waiting_handles(queue, accounts, limit)]


def waiting_handles(
    queue: TaskQueue, accounts: Accounts, limit: int | None
) -> list[tuple[TaskView, TaskHandle[Any] | None]]:
    """Return views of at most ``limit`` waiting tasks, each with its handle if it has one: O(limit)."""
    accounts.catch_up()
    return list(islice(_walk(queue), limit))


def waiting_batches(queue: TaskQueue) -> list[BatchHandle[Any]]:
    """Return the batches with waiting tasks, the oldest first."""
    return list(dict.fromkeys(source.owner for source in queue.batches()))


class Unstarted(Collection[TaskView]):
    """The tasks that an executor has cancelled because it closed, in no particular order.

    The data of each task is kept, and its view is created on iteration. A batch is kept as one object. All other tasks
    are kept in columns: an object for each would trigger the garbage collector in the middle of closing, and with
    600,000 tasks one of its passes blocked the loop for half a second.
    """

    def __init__(self, to_epoch: Callable[[float], float]) -> None:
        self._to_epoch = to_epoch
        self._records: list[TaskHandle[Any]] = []
        self._record_fns: list[Any] = []
        self._record_args: list[tuple[Any, ...]] = []
        self._dues = array("d")  # of tasks without a record
        self._fns: list[Any] = []
        self._args: list[tuple[Any, ...]] = []
        self._batches: list[tuple[BatchSource, _KeptItems]] = []
        self._item_count = 0

    def __len__(self) -> int:
        return len(self._records) + len(self._dues) + self._item_count

    def __iter__(self) -> Iterator[TaskView]:
        for record, fn, args in zip(self._records, self._record_fns, self._record_args, strict=True):
            yield _view_of_record(record, _KeptCall(fn, args))
        for due, fn, args in zip(self._dues, self._fns, self._args, strict=True):
            yield _view_of_call(self._to_epoch(due), _KeptCall(fn, args))
        for source, items in self._batches:
            for position in source.waiting_positions():
                yield _view_of_item(source, position, self._to_epoch, items)

    def __contains__(self, task: object) -> bool:
        return any(view == task for view in self)

    def __repr__(self) -> str:
        return f"<Unstarted {len(self)} task(s)>"

    def add_record(self, record: TaskHandle[Any]) -> None:
        """Add a task that has a handle, before it is cancelled."""
        self._records.append(record)
        self._record_fns.append(record._fn_of(0))
        self._record_args.append(record._args_of(0))

    def add_call(self, bucket: Bucket, position: int) -> None:
        """Add a task that has no handle, before its place is emptied."""
        self._dues.append(bucket.dues[position])
        self._fns.append(bucket.calls[position])
        self._args.append(unfolded(bucket.args[position]))

    def add_batch(self, batch: BatchHandle[Any]) -> None:
        """Add the waiting tasks of a batch, before it is cancelled."""
        for source, items in batch._parts.items():
            self._item_count += source.live
            self._batches.append((source, _KeptItems(batch._call, items)))


def _view_of_record(record: TaskHandle[Any], call: _KeptCall) -> TaskView:
    """Return the view of a task that has a handle."""
    return TaskView(
        name=record.name,
        priority=record.priority,
        due=record.due,
        is_repeating=record._class is TaskClass.REPEATING,
        is_immediate=record._class is TaskClass.IMMEDIATE,
        arrival=0,
        key=record.key,
        cost=record.cost,
        place=(call, 0),
    )


def _view_of_call(due: float, call: _KeptCall) -> TaskView:
    """Return the view of a task without a handle, such as one of the asyncio face; ``due`` is in epoch seconds."""
    name = name_of(call.fn)
    return TaskView(name, 0, due, is_repeating=False, is_immediate=False, arrival=0, place=(call, 0))


def _view_of_item(
    source: BatchSource, position: int, to_epoch: Callable[[float], float], items: _KeptItems
) -> TaskView:
    """Return the view of a task of a batch.

    Args:
        source: the source of the task.
        position: its position in the source.
        to_epoch: converts loop time.
        items: the items of its batch.
    """
    minus_priority, kind = source.rank
    return TaskView(
        name=source.name_of(position),
        priority=-minus_priority,
        due=to_epoch(source.due_of(position)),
        is_repeating=False,
        is_immediate=kind is TaskClass.IMMEDIATE,
        arrival=0,
        key=given_key(source.key),
        cost=source.cost_of(position),
        place=(items, source.indexes[position]),
    )


class _KeptCall(NamedTuple):
    """The callable and the arguments of one task, as they were when the view was requested."""

    fn: Any
    args: tuple[Any, ...]

    def _fn_of(self, position: int) -> Any:  # noqa: ARG002  # the signature of Source
        return self.fn

    def _args_of(self, position: int) -> tuple[Any, ...]:  # noqa: ARG002  # the signature of Source
        return self.args


def _call_of(record: TaskHandle[Any]) -> _KeptCall:
    return _KeptCall(record._fn_of(0), record._args_of(0))


class _KeptItems:
    """The callable and the items of one batch, looked up only on request: they may be user code."""

    __slots__ = ("_fn", "_items")

    def __init__(self, fn: Any, items: Any) -> None:
        self._fn = fn
        self._items = items

    def _fn_of(self, index: int) -> Any:  # noqa: ARG002  # the signature of Source
        return self._fn

    def _args_of(self, index: int) -> tuple[Any, ...]:
        return (self._items[index],)


def _walk(queue: TaskQueue) -> Iterator[tuple[TaskView, TaskHandle[Any] | None]]:
    """Walk the waiting tasks, those with handles first where that is cheap.

    The ready tasks of a custom order include tasks of buckets and batches, which are skipped here: some at first, and
    the rest once they have been walked themselves, so that never more are skipped than walked.
    """
    to_epoch = queue.timeline.to_epoch
    calendars = (queue.on_time, queue.spread)
    readies = (*(calendar.ready for calendar in calendars), *(old for _, old in queue.rekeying))
    entries = chain.from_iterable(ready.walk() for ready in readies if not isinstance(ready, ReadyQueues))
    yield from _records_of(chain.from_iterable(ready.records() for ready in readies if isinstance(ready, ReadyQueues)))
    yield from _records_of(islice(entries, _READY_COUNT))
    for holder in (*calendars, queue.wall):
        for bucket in holder.buckets():
            yield from _walk_bucket(bucket, to_epoch)
    for batch in queue.batches():
        items = _KeptItems(batch.owner._call, batch.owner._parts[batch])
        for position in batch.waiting_positions():
            yield _view_of_item(batch, position, to_epoch, items), None
    yield from _records_of(entries)


def _records_of(entries: Iterator[tuple[Any, Any]]) -> Iterator[tuple[TaskView, TaskHandle[Any]]]:
    for source, record in entries:
        if source is None:
            yield _view_of_record(record, _call_of(record)), record


def _walk_bucket(
    bucket: Bucket, to_epoch: Callable[[float], float]
) -> Iterator[tuple[TaskView, TaskHandle[Any] | None]]:
    for position in bucket.positions():
        if bucket.args[position] is RECORD:
            record = bucket.calls[position]
            yield _view_of_record(record, _call_of(record)), record
        else:
            call = _KeptCall(bucket.calls[position], unfolded(bucket.args[position]))
            yield _view_of_call(to_epoch(bucket.dues[position]), call), None
