"""The asyncio face: the signatures of ``loop.call_soon``, ``call_later`` and ``call_at``, as a drop-in.

Always on time, never spread, never early; the rate of the executor still holds. Nothing is kept for a call but its place
in a bucket's columns: the handle that is returned names that place, and may be dropped.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, TypeVarTuple

from ratelimited_executor._runtime.arguments import callable_of, number_of
from ratelimited_executor._runtime.faces.base import ExecutorBase
from ratelimited_executor._runtime.faces.tasks import check_context
from ratelimited_executor._runtime.handles import CallHandle

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable

    from ratelimited_executor._runtime.engine import Engine

__all__ = ["LoopFace"]

Ts = TypeVarTuple("Ts")
_running_loop = asyncio._get_running_loop


class LoopFace(ExecutorBase):
    """``call_soon``, ``call_later``, ``call_at`` and ``call_soon_threadsafe``."""

    __slots__ = ()

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> CallHandle:
        """Call ``callback(*args)`` after ``delay`` seconds, as ``loop.call_later`` does; a negative delay is due now.

        Raises:
            TypeError: if ``delay`` is no number or ``callback`` is not callable.
            ValueError: if ``delay`` is NaN or infinite.
            BacklogFullError: if ``max_pending`` tasks wait.
            RateLimitedExecutorError: if the executor is not open, or not on this loop.
        """
        engine = self._engine
        if engine is None or _running_loop() is not self._open_loop:
            engine = self._admit()
        try:
            when = engine.monotonic() + delay
            is_finite = -math.inf < when < math.inf
        except (TypeError, OverflowError):
            is_finite = False
        if not is_finite:
            when = engine.monotonic() + number_of("delay", delay)
        return _place(engine, when, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> CallHandle:
        """Call ``callback(*args)`` at the loop time ``when``, as ``loop.call_at`` does; the past is due now."""
        return _place(self._admit(), number_of("when", when), callback, args, context)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> CallHandle:
        """Call ``callback(*args)`` as soon as a permit is there, in the order of the calls, as ``loop.call_soon`` does."""
        engine = self._admit()
        callable_of("callback", callback)
        kept: Any = engine.capture() if context is None else (check_context(context),)
        now = engine.now()
        engine.accepted_count += 1
        bucket, place = engine.queue.on_time.add_call_ready(now, callback, args, kept)
        engine.wake_for(now)
        return CallHandle(bucket, place, now)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Do what :meth:`call_soon` does, from any thread; the handle cancels as long as the loop has not taken it up.

        Raises:
            ExecutorNotStartedError: before the start.
            RuntimeError: if the event loop is closed.
        """
        engine = self._started()
        callable_of("callback", callback)

        def place() -> None:
            self.call_soon(callback, *args, context=context)  # if it is closed by then, the loop's handler is told

        return engine.loop.call_soon_threadsafe(place)


def _place(
    engine: Engine, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Any
) -> CallHandle:
    if not callable(callback):
        callable_of("callback", callback)  # type: ignore[unreachable]  # not every caller is type-checked
    kept: Any = engine.capture() if context is None else (check_context(context),)
    calendar = engine.queue.on_time
    if kept is None and when >= calendar.end:
        # Most calls end here: a bucket that is there, in which no task has context variables. What follows is
        # Bucket.add, without the call.
        bucket = calendar.bucket_at(when)
        if bucket is not None and bucket.contexts is None:
            bucket.dues.append(when)
            bucket.calls.append(callback)
            bucket.args.append(args)
            engine.accepted_count += 1
            return CallHandle(bucket, bucket.shift + len(bucket.calls) - 1, when)
    bucket, place = engine.queue.on_time.add_call(when, callback, args, kept)
    engine.accepted_count += 1
    if when < engine.armed:
        engine.wake_for(when)
    return CallHandle(bucket, place, when)
