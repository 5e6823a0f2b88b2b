"""Ends tasks whose deadline has passed: when their turn comes, or an interval later while nothing starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.states import TaskState
from ratelimited_executor.exceptions import TaskExpiredError

if TYPE_CHECKING:
    from ratelimited_executor._core.batches import BatchSource
    from ratelimited_executor._runtime.engine import Engine
    from ratelimited_executor._runtime.handles import TaskHandle

__all__ = ["end_expired_item", "expire_overdue", "is_expired"]

_EXPIRE_COUNT_MAX: Final = 1000  # tasks expired at a stretch: about two milliseconds


def is_expired(engine: Engine, record: Any, now: float) -> bool:
    """End a record as expired if its deadline has passed."""
    options = record._options
    if options is None or options.deadline is None:
        return False
    engine.queue.expiry.discard(record)
    if now <= options.deadline:
        return False
    _end_expired(engine, record)
    return True


def expire_overdue(engine: Engine, now: float) -> None:
    """End records whose deadline passed in an earlier interval."""
    if not engine.queue.expiry.is_used:
        return
    number = engine.queue.sweep_number(now)
    if number is None:
        return
    record: TaskHandle[Any]
    for count, record in enumerate(engine.queue.expiry.sweep(number), start=1):  # type: ignore[assignment]  # all records are
        engine.remove(record)
        _end_expired(engine, record)
        if count == _EXPIRE_COUNT_MAX:
            return
    for count, (batch, position) in enumerate(engine.queue.expiry.sweep_batches(now), start=1):
        batch.start(position)
        engine.overload.left(batch.key, is_costly=batch.needs is not None)
        batch.calendar.opened_count -= 1
        if not batch.live:
            batch.calendar.finish(batch)
            batch.owner._forget(batch)
        end_expired_item(engine, batch, position)
        if count == _EXPIRE_COUNT_MAX:
            return


def end_expired_item(engine: Engine, batch: BatchSource, position: int) -> None:
    """End a task of a batch as expired."""
    index = batch.indexes[position]
    error = TaskExpiredError(f"{batch.name}[{index}]", expires=batch.deadline_after)
    engine.end((batch.owner, index), TaskState.EXPIRED, error)


def _end_expired(engine: Engine, record: Any) -> None:
    options = record._options
    assert options is not None
    assert options.expires is not None
    engine.end(record, TaskState.EXPIRED, TaskExpiredError(record.name, expires=options.expires))
