"""The tasks that wait, as views: a list of some of them, or what a closed executor has not started."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.buckets import RECORD, Bucket
from ratelimited_executor._core.keys import given_key
from ratelimited_executor._core.ordering import TaskClass, TaskView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratelimited_executor._core.batches import BatchSource
    from ratelimited_executor._runtime.engine import Engine
    from ratelimited_executor._runtime.handles import TaskHandle

__all__ = ["KeptItems", "view_of_call", "view_of_item", "view_of_record", "waiting_tasks"]


def waiting_tasks(engine: Engine, limit: int | None) -> list[TaskView]:
    """Return views of tasks that wait, ``limit`` at most, in no particular order: O(limit)."""
    engine.burst.settle()
    return list(islice(_walk(engine), limit))


def view_of_record(record: TaskHandle[Any]) -> TaskView:
    """Return the view of a task that waits and has a handle."""
    return TaskView(
        name=record.name,
        priority=record.priority,
        due=record.due,
        is_repeating=record._class is TaskClass.REPEATING,
        is_immediate=record._class is TaskClass.IMMEDIATE,
        arrival=0,
        key=record.key,
        cost=record.cost,
        place=(KeptCall(record._fn_of(0), record._args_of(0)), 0),
    )


def view_of_call(bucket: Bucket, position: int, to_epoch: Callable[[float], float]) -> TaskView:
    """Return the view of a task that waits and has no handle, as those of the asyncio face.

    Args:
        bucket: where it lies.
        position: its place there.
        to_epoch: converts loop time.
    """
    return TaskView(
        name=bucket.name_of(position),
        priority=0,
        due=to_epoch(bucket.dues[position]),
        is_repeating=False,
        is_immediate=False,
        arrival=0,
        place=(KeptCall(bucket.calls[position], bucket.args[position]), 0),
    )


def view_of_item(source: BatchSource, position: int, to_epoch: Callable[[float], float], items: KeptItems) -> TaskView:
    """Return the view of a task of a batch.

    Args:
        source: whose task it is.
        position: where it is in that.
        to_epoch: converts loop time.
        items: of its batch.
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


class KeptCall:
    """The callable and the arguments of one task, as they were when somebody asked."""

    __slots__ = ("_args", "_fn")

    def __init__(self, fn: Any, args: tuple[Any, ...]) -> None:
        self._fn = fn
        self._args = args

    def _fn_of(self, position: int) -> Any:  # noqa: ARG002  # the shape of a source
        return self._fn

    def _args_of(self, position: int) -> tuple[Any, ...]:  # noqa: ARG002  # as above
        return self._args


class KeptItems:
    """The callable and the items of one batch, which are looked up when somebody asks: they may be code of the user."""

    __slots__ = ("_fn", "_items")

    def __init__(self, fn: Any, items: Any) -> None:
        self._fn = fn
        self._items = items

    def _fn_of(self, index: int) -> Any:  # noqa: ARG002  # as above
        return self._fn

    def _args_of(self, index: int) -> tuple[Any, ...]:
        return (self._items[index],)


def _walk(engine: Engine) -> Iterator[TaskView]:
    queue, to_epoch = engine.queue, engine.timeline.to_epoch
    calendars = (queue.on_time, queue.spread)
    for ready in chain((calendar.ready for calendar in calendars), (old for _, old in queue._rekeying)):
        for source, record in ready.walk():
            if source is None:
                yield view_of_record(record)
    for holder in (*calendars, queue.wall):
        for bucket in holder.buckets():
            yield from _walk_bucket(bucket, to_epoch)
    for batch in queue.batches():
        items = KeptItems(batch.owner.call, batch.owner._parts[batch])
        for position in batch.waiting_positions():
            yield view_of_item(batch, position, to_epoch, items)


def _walk_bucket(bucket: Bucket, to_epoch: Callable[[float], float]) -> Iterator[TaskView]:
    for position in bucket.positions():
        if bucket.args[position] is RECORD:
            yield view_of_record(bucket.calls[position])
        else:
            yield view_of_call(bucket, position, to_epoch)
