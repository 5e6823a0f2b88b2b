"""Starts many plain calls in one tight loop, where nothing is to be decided between them.

That is where the rate is unlimited, or several permits are there and nobody else waits for them.

Theory. Of a trivial call's cost most is bookkeeping: an attribute that is counted up costs as much as the call itself. So
nothing is counted while a burst runs. How far it has come is known to the iterator over its positions alone
(``__length_hint__`` of a list's or range's iterator), and :meth:`Burst.settle` brings the counts up to date whenever
somebody looks: at the burst's end, in ``statistics()``, or when a call that the burst has started asks for anything that
depends on them. The counts are exact at every instant at which user code can see them.

Whatever changes what was decided (a rate, an order, a cancellation of everything) ends the burst after the call that
runs: :meth:`Burst.detach` settles and lets go of the positions, which others may take from then on.
"""

from __future__ import annotations

from itertools import islice
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.batches import BatchSource
from ratelimited_executor._core.buckets import name_of
from ratelimited_executor._core.records import StandIn
from ratelimited_executor._core.states import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratelimited_executor._core.buckets import Bucket
    from ratelimited_executor._core.calendar import Calendar
    from ratelimited_executor._core.ready import RecordRun, Run
    from ratelimited_executor._runtime.batches import BatchHandle
    from ratelimited_executor._runtime.engine import Engine

__all__ = ["HOLD", "LONG_HOLD_SECONDS", "Burst", "is_awaitable", "note_hold"]

HOLD: Final[Any] = StandIn(None)  # in place of a callable: the permit is handed to a waiter, who says when he is done

LONG_HOLD_SECONDS: Final = 0.1  # a task that holds the loop for longer is named in a warning
_COUNT_MAX: Final = 1024  # calls of one burst: also where time stands still, the event loop has its turn


class Burst:
    """The burst that runs, if one does.

    Args:
        engine: whose calls are started, and whose counts are kept.

    Attributes:
        is_inside: whether a plain function, or the first step of a coroutine, runs at this moment, in a burst or not.
        is_changed: whether something has changed, so that what was decided before no longer holds.
    """

    __slots__ = (
        "_calendar", "_coroutine_count", "_engine", "_is_ahead", "_is_paid", "_positions", "_run", "_skipped_count",
        "is_changed", "is_inside",
    )  # fmt: skip

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._calendar: Any = None
        self._run: Any = None
        self._positions: Any = None  # an iterator; None if no burst runs, or it has let go of its run
        self._skipped_count = 0  # positions read since the last settling whose tasks had gone before
        self._is_paid = False  # whether each start takes a permit, or is planned
        self._is_ahead = False  # whether the call that runs was counted as started when the burst was last settled
        self._coroutine_count = 0  # calls since then that returned a coroutine, whose end is noted elsewhere
        self.is_inside = False
        self.is_changed = False

    def run_calls(self, calendar: Calendar, run: Run, now: float, stop: float, count_max: int) -> float:
        """Start calls of a bucket, ``count_max`` and until loop time ``stop`` at most; return the time afterwards."""
        engine = self._engine
        bucket: Bucket = run.source  # type: ignore[assignment]  # the caller has looked
        calls, args, contexts = bucket.calls, bucket.args, bucket.contexts
        monotonic = engine.monotonic
        scratch = engine.scratch
        context: Any = scratch
        call_in_context = scratch.run
        try:
            for position in self._begin(calendar, run, count_max):
                call = calls[position]
                if call is None:  # cancelled
                    self._skipped_count += 1
                    continue
                arguments = args[position]
                calls[position] = args[position] = None
                if contexts is not None:
                    context = contexts[position]
                    contexts[position] = None
                    context = scratch if context is None else context[0] if type(context) is tuple else context.copy()
                    call_in_context = context.run
                try:
                    result = call_in_context(call, *arguments)
                except BaseException as error:  # noqa: BLE001  # a task's failure is its own; exits go on their way
                    self._raised(None, error)
                else:
                    if result is not None or scratch:
                        self._returned(None, call, result, context)
                if engine.scratch is not scratch:  # it had been written to
                    context = scratch = engine.scratch
                    call_in_context = scratch.run
                after = monotonic()
                if after - now > LONG_HOLD_SECONDS:
                    note_hold(engine, call, after - now)
                now = after
                if now >= stop or self.is_changed:
                    break
        finally:
            self._end()
        return now

    def run_items(self, calendar: Calendar, run: Run, now: float, stop: float, count_max: int) -> float:
        """Start tasks of a batch, ``count_max`` and until loop time ``stop`` at most; return the time afterwards."""
        engine = self._engine
        batch: BatchSource = run.source  # type: ignore[assignment]  # the caller has looked
        handle: BatchHandle[Any] = batch.owner
        (call, items), indexes = handle._call_and_items(batch), batch.indexes
        kept = handle._parts[batch]
        started = batch.started_flags(run.first)
        monotonic = engine.monotonic
        scratch = engine.scratch
        context = scratch if handle.context is None else handle.context
        call_in_context = context.run
        is_shared = handle.context is not None and not handle.own_context
        position: Any = None
        result = None
        try:
            for position in self._begin(calendar, run, count_max):
                if started is not None:
                    if started[position]:
                        self._skipped_count += 1
                        continue
                    started[position] = 1
                if is_shared:
                    context = handle.context.copy()  # type: ignore[union-attr]  # it is not None, or not shared
                    call_in_context = context.run
                try:
                    result = call_in_context(call, items[indexes[position]])
                except BaseException as error:  # noqa: BLE001  # as above; the items are user code, too
                    self._raised((handle, indexes[position], None, batch, kept), error)
                else:
                    if result is not None or scratch:
                        self._returned((handle, indexes[position], None, batch, kept), call, result, context)
                if engine.scratch is not scratch:
                    scratch = engine.scratch
                    context = scratch if handle.context is None else context
                    call_in_context = context.run
                after = monotonic()
                if after - now > LONG_HOLD_SECONDS:
                    note_hold(engine, handle.call, after - now)
                now = after
                if now >= stop or self.is_changed:
                    break
        finally:
            if self._end():
                handle._item_ended(indexes[position], TaskState.DONE, result)
            self._leave_batch(calendar, batch)
        return now

    def run_records(self, calendar: Calendar, run: RecordRun, now: float, stop: float, count_max: int) -> float:
        """Start records, ``count_max`` and until loop time ``stop`` at most; return the time afterwards.

        They have a state each, so that each is counted as it starts.
        """
        engine = self._engine
        queue = engine.queue
        is_paid = self._takes_permits(calendar)
        self.is_changed = False
        for _ in range(min(count_max, _COUNT_MAX)):
            due = run.head_due()
            if due is None:
                break
            record: Any = run.take()
            call, args, context = record._call, record._outcome, record._context
            calendar.opened_count -= 1
            if record._options is not None or call is HOLD:
                engine.start_record(calendar, record, now)
            else:
                if is_paid:
                    queue.spend(calendar, due, now)
                engine.started_count += 1
                record._state = TaskState.RUNNING
                record._context = now
                self._call_record(record, call, args, context)
            del record  # else a traceback keeps this frame, which keeps the handle, which keeps the error, unreported
            after = engine.monotonic()
            if queue.counts_effects:
                queue.take_effect(after)
            if after - now > LONG_HOLD_SECONDS:
                note_hold(engine, call, after - now)
            now = after
            if now >= stop or self.is_changed:
                break
        return now

    def _call_record(self, record: Any, call: Any, args: Any, context: Any) -> None:
        engine = self._engine
        scratch = engine.scratch
        origin = context
        context = scratch if context is None else context.copy()
        self.is_inside = True
        try:
            result = context.run(call, *args)
        except BaseException as error:  # noqa: BLE001  # as above
            self.is_inside = False
            engine.end_raised(record, error, origin)
        else:
            self.is_inside = False
            if type(result) is CoroutineType and not scratch:
                engine.coroutines.start(record, result, context, origin)
            elif scratch or (result is not None and is_awaitable(result)):
                engine.end_returned(record, call, result, context, None, origin)
            else:
                engine.ended_counts[TaskState.DONE] += 1  # Engine.end_done(), without its questions
                record._end_done(result)
        del record  # as in run_records

    def settle(self) -> None:
        """Bring all counts up to date, in the middle of a burst."""
        if self._positions is None:
            return
        started = self._run.advance(self._positions) - self._skipped_count
        self._skipped_count = 0
        self._calendar.opened_count -= started
        self._engine.started_count += started
        self._run.source.note_started(started)
        if self._is_paid and started:
            self._engine.queue.spend(self._calendar, self._run.last_due(), self._engine.monotonic(), started)
        ended = started + self._is_ahead - self.is_inside - self._coroutine_count
        self._coroutine_count = 0
        self._is_ahead = self.is_inside
        self._note_done(ended)

    def detach(self) -> None:
        """End the burst after the call that runs: others may take its positions from now on."""
        self.settle()
        self._positions = None
        self.is_changed = True

    # Helpers.

    def _begin(self, calendar: Calendar, run: Run, count_max: int) -> Iterator[int]:
        self._calendar = calendar
        self._run = run
        self._is_paid = self._takes_permits(calendar)
        self._positions = run.positions()
        self.is_changed = False
        self.is_inside = True
        return islice(self._positions, min(count_max, _COUNT_MAX))

    def _takes_permits(self, calendar: Calendar) -> bool:
        """Whether each start from a calendar takes a permit, or is planned."""
        return not self._engine.queue.is_unlimited or calendar is not self._engine.on_time

    def _end(self) -> bool:
        """End the burst; return whether it had let go of its run during a call that has returned by now."""
        self.is_inside = False
        self.settle()
        self._positions = self._run = self._calendar = None
        is_ahead, self._is_ahead = self._is_ahead, False
        self._engine.ended_counts[TaskState.DONE] += is_ahead
        return is_ahead

    def _raised(self, owner: Any, error: BaseException) -> None:
        """End a call that raised: it has no record, and the variables of a batch are its handle's."""
        self._leave_call()
        self._engine.end_raised(owner, error, None)
        self.is_inside = True

    def _returned(self, owner: Any, call: Any, result: Any, context: Any) -> None:
        """End a call that returned something, or has set context variables of its own."""
        engine = self._engine
        scratch = engine.scratch
        if type(result) is CoroutineType and not scratch and engine.queue.effects is None:
            if self._is_ahead:
                self._is_ahead = False
            else:
                self._coroutine_count += 1
            self.is_inside = False
            engine.coroutines.start(owner, result, context)
        elif scratch or is_awaitable(result):
            self._leave_call()
            engine.end_returned(owner, call, result, context, None)
        self.is_inside = True

    def _leave_batch(self, calendar: Calendar, batch: BatchSource) -> None:
        """Free a batch all of whose tasks have started, and wake who waits for it."""
        if not batch.live and not batch.revoked:
            calendar.finish(batch)
            batch.owner._forget(batch)
        batch.owner._wake()

    def _leave_call(self) -> None:
        """Note that the call has ended, in a way that the engine will count."""
        self.settle()
        self._is_ahead = False
        self.is_inside = False

    def _note_done(self, count: int) -> None:
        self._engine.ended_counts[TaskState.DONE] += count
        if isinstance(self._run.source, BatchSource):
            self._run.source.owner._note_done(count)


def note_hold(engine: Engine, call: Any, seconds: float) -> None:
    """Warn of a task that held the event loop."""
    message = "%s: %s held the event loop for %.0f ms (or the process did not get the CPU)"
    engine.runner.warnings.warn("hold", message, engine.name, name_of(call), seconds * 1e3)


def is_awaitable(result: Any) -> bool:
    """Whether a call has returned something to wait for; never fails, whatever the metaclass."""
    try:
        return hasattr(type(result), "__await__")
    except Exception:  # noqa: BLE001  # a type that cannot be asked is none
        return False
