"""Starts a task that is alone: what ``Engine`` does in six steps, for nearly all tasks of batches in one.

It is the path of every start where few tasks are due at a time, as in a batch that is spread over an hour. A test runs the same
programs by this way and by the long one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.batches import BatchSource
from ratelimited_executor._runtime.batches import INERT_TYPES, call_with_item
from ratelimited_executor._runtime.burst import LONG_HOLD_SECONDS, note_hold

if TYPE_CHECKING:
    from contextvars import Context

    from ratelimited_executor._runtime.batches import BatchHandle
    from ratelimited_executor._runtime.engine import Engine

__all__ = ["start_lone"]


def start_lone(engine: Engine, source: Any, item: Any, now: float) -> float:
    """Start a task that is alone, and return the time afterwards.

    Args:
        engine: whose task it is; its queue has just taken it.
        source: whence it is: a bucket, a batch, or None for a record.
        item: its position in that, or the record.
        now: loop time.
    """
    queue = engine.queue
    calendar = queue.on_time
    if type(source) is not BatchSource or not source.is_plain:
        return engine._start(calendar, source, item, now)
    batch, position = source, item
    calendar.opened_count -= 1
    handle: BatchHandle[Any] = batch.owner
    batch.start(position)
    items = handle._parts[batch]
    index = batch.indexes[position]
    if batch.started_count == batch.count:  # it was the last
        handle._forget(batch)
        calendar.finish(batch)
    queue.spend(calendar, batch.due_of(position), now)
    engine.started_count += 1
    call, origin = handle.call, handle.context
    context: Context = engine.scratch if origin is None else origin if handle.own_context else origin.copy()
    burst = engine.burst
    burst.is_inside = True
    try:
        if type(items) in INERT_TYPES:
            result = context.run(call, items[index])
        else:
            result = context.run(call_with_item, call, items, index)
    except BaseException as error:  # noqa: BLE001  # a task's failure is its own, whatever it raises
        burst.is_inside = False
        engine.end_raised((handle, index, None, batch, items), error, origin)
    else:
        burst.is_inside = False
        owner = (handle, index, None, batch, items)
        if type(result) in engine.coroutines.kinds and not engine.scratch:
            engine.coroutines.start(owner, result, context, origin)
        else:
            engine.end_returned(owner, call, result, context, None, origin)
        del owner
    del handle, items  # else a traceback keeps this frame, which keeps the handle, which keeps the error
    after = engine.monotonic()
    if queue.counts_effects:
        queue.take_effect(after)
    if after - now > LONG_HOLD_SECONDS:
        note_hold(engine, call, after - now)
    return after if after < queue.end else engine.now()
