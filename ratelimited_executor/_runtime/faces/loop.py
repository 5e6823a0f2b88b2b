"""The asyncio face: the signatures of ``loop.call_soon``, ``call_later`` and ``call_at``, as a drop-in.

Always on time: never spread, never early, and never expired, whatever the executor's ``expires``; its rate still holds. A
call takes only a place in a bucket's columns: the returned handle names that place, and may be dropped.
"""

from __future__ import annotations

from contextvars import copy_context
from threading import get_ident as _thread_id
from typing import TYPE_CHECKING, Any, TypeVarTuple

from ratelimited_executor._kernel.calendar import LARGE_COUNT
from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.timeline import FAR_SECONDS
from ratelimited_executor._runtime.arguments import callable_of, number_of
from ratelimited_executor._runtime.faces.base import ExecutorBase
from ratelimited_executor._runtime.faces.tasks import check_context
from ratelimited_executor._runtime.task.call_site import with_call_site
from ratelimited_executor._runtime.task.handles import CallHandle
from ratelimited_executor._runtime.time.clock import next_tick

if TYPE_CHECKING:
    import asyncio
    import contextvars
    from collections.abc import Callable

    from ratelimited_executor._runtime.task.intake import Intake

__all__ = ["LoopFace"]

Ts = TypeVarTuple("Ts")


class LoopFace(ExecutorBase):
    """``call_soon``, ``call_later``, ``call_at`` and ``call_soon_threadsafe``."""

    __slots__ = ()

    @two_bodies
    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> CallHandle:
        """Call ``callback(*args)`` after ``delay`` seconds, as ``loop.call_later`` does; a negative delay is due now.

        Raises:
            TypeError: if ``delay`` is not a number or ``callback`` is not callable.
            ValueError: if ``delay`` is NaN or infinite.
            BacklogFullError: if ``max_pending`` tasks wait.
            RateLimitedExecutorError: if the executor is not open, or not on this loop.
        """
        engine: Intake = self._engine  # type: ignore[assignment]  # its home thread is this one: it is open
        if self._home._thread_id != _thread_id():
            engine = self._admit()
            callback = with_call_site(engine.loop, callback)
        queue = engine.queue
        calendar = queue.on_time
        try:
            when = engine.monotonic() + delay
            if queue.timeline.loop_time is not None:
                when = next_tick(when)
            is_future = calendar.end <= when < FAR_SECONDS
        except (TypeError, OverflowError):  # number_of() raises the right one
            is_future = False
        if is_future and context is None and callable(callback):
            # Nearly every call ends here: Calendar.add_call() for an existing bucket, inlined.
            kept = copy_context()
            bucket = calendar.future.get(int((when + calendar.epoch_offset) * calendar.per_second))
            if bucket is not None and (bucket.contexts is not None if kept else bucket.contexts is None):
                calls = bucket.calls
                count = len(calls)
                try:
                    if kept:
                        bucket.contexts.append(engine.contexts.share(kept))  # type: ignore[union-attr]  # there are some
                    bucket.dues.append(when)
                    calls.append(callback)
                    given: tuple[Any, ...] = args
                    is_single = given and not given[1:] and type(given[0]) is not tuple  # folded(), inlined
                    bucket.args.append(given[0] if is_single else given)
                except BaseException:
                    bucket.trim(count)
                    raise
                accounts = engine.accounts
                accounts.accepted_count += 1
                if accounts.on_accepted is not None:  # accept(), inlined
                    accounts.on_accepted(1)
                count += 1
                if when < engine.armed:  # all other tasks are due later
                    engine.wake_for(when)
                elif count == LARGE_COUNT:  # it should be prepared
                    engine.wake()
                return CallHandle(bucket, bucket.shift + count - 1, when)
        return _place(engine, engine.monotonic() + number_of("delay", delay), callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> CallHandle:
        """Call ``callback(*args)`` at the loop time ``when``, as ``loop.call_at`` does; the past is due now."""
        engine = self._admit()
        return _place(engine, number_of("when", when), with_call_site(engine.loop, callback), args, context)

    @two_bodies
    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> CallHandle:
        """Call ``callback(*args)`` as soon as a permit is available, in call order, like ``loop.call_soon``."""
        engine: Intake = self._engine  # type: ignore[assignment]  # its home thread is this one: it is open
        if self._home._thread_id != _thread_id():
            engine = self._admit()
            callback = with_call_site(engine.loop, callback)
        if not callable(callback):
            callable_of("callback", callback)  # type: ignore[unreachable]  # not every caller is type-checked
        kept = engine.contexts.capture() if context is None else (check_context(context),)
        now = engine.now()
        bucket, place = engine.add_call_ready(now, callback, args, kept)
        return CallHandle(bucket, place, now)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Like :meth:`call_soon`, from any thread; the handle cancels until the loop has accepted the call.

        Raises:
            ExecutorNotStartedError: before the start.
            RuntimeError: if the event loop is closed.
        """
        engine = self._started().engine
        callable_of("callback", callback)
        call = with_call_site(engine.loop, callback)

        def place() -> None:
            self.call_soon(
                call, *args, context=context
            )  # if the executor is closed by then, the loop's handler gets the error

        return engine.loop.call_soon_threadsafe(place)


def _place(
    engine: Intake, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Any
) -> CallHandle:
    if not callable(callback):
        callable_of("callback", callback)  # type: ignore[unreachable]  # not every caller is type-checked
    kept: Any = engine.contexts.capture() if context is None else (check_context(context),)
    due = when if engine.queue.timeline.loop_time is None else next_tick(when)
    bucket, place = engine.queue.on_time.add_call(due, callback, args, kept)
    engine.accounts.accept()
    if due < engine.armed:
        engine.wake_for(due)
    return CallHandle(bucket, place, when)
