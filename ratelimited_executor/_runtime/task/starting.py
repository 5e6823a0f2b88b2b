"""Starts the tasks that the queue has taken: the only place that calls their functions.

A task starts by one call, inline. If that returns a coroutine or another awaitable, it is run as an asyncio task
(``coroutines.py``), else the task has ended (``accounts.py``). There are two loops around the call: :meth:`Starter.start_one`
starts one task of any kind, and :meth:`Starter.start_many` starts a stretch of plain calls, or of items of a batch, without
bookkeeping for each.

While such a stretch is being started its counts lag behind. :meth:`Starter.catch_up` brings them up to date, so that they
are exact at every instant at which user code can see them. Any change of what was decided (a rate, an order, a
cancellation of everything) ends the stretch after the running call: :meth:`Starter.detach`.
"""

from __future__ import annotations

import asyncio
import contextvars
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.queue.records import KeyOptions, StandIn
from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.buckets import name_of
from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import StarterFields
from ratelimited_executor._kernel.sizes import LONG_HOLD_SECONDS
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.limits.slots import holding, slot_for
from ratelimited_executor._runtime.task.accounts import CallOwner
from ratelimited_executor._runtime.task.batch_items import INERT_TYPES, BatchItem, call_with_item
from ratelimited_executor._runtime.task.deferred import DeferredStart
from ratelimited_executor._runtime.task.launch import (
    ThreadCall,
    Threads,
    await_it,
    context_of_thread,
    is_awaitable,
    limited,
    run_timeout_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._kernel.stretch import Stretch
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.batches import BatchHandle
    from ratelimited_executor._runtime.task.contexts import SharedContexts
    from ratelimited_executor._runtime.task.coroutines import Coroutines
    from ratelimited_executor._runtime.time.clock import Moments

__all__ = ["HOLD", "Starter"]

HOLD: Final[Any] = StandIn(None)  # in place of a callable: the permit is handed to a waiter, which releases it
_DONE: Final = TaskState.DONE  # members of an enum are slow to look up


class Starter(StarterFields):
    """Starts the tasks of one executor.

    Args:
        queue: the queue of the tasks.
        accounts: count starts and ends.
        coroutines: runs the awaitables that calls return.
        contexts: the contexts of calls that bring no variables.
        moments: the source of time.
        threads: the thread pool for calls in threads.
        warn: logs a warning, as ``RateLimitedWarnings.warn`` does.
        collected: returns how much of the last so many seconds was spent in garbage collections.
    """

    __slots__ = ("_collected", "_moments", "_threads", "_warn")

    _accounts: Accounts
    _batch: BatchHandle[Any] | None
    _contexts: SharedContexts
    _queue: TaskQueue
    _stretch: Stretch | None

    def __init__(
        self,
        queue: TaskQueue,
        *,
        accounts: Accounts,
        coroutines: Coroutines,
        contexts: SharedContexts,
        moments: Moments,
        threads: Threads,
        warn: Callable[..., None],
        collected: Callable[[float], float],
    ) -> None:
        self._queue = queue
        self._accounts = accounts
        self._coroutines = coroutines
        self._kinds = coroutines.kinds
        self._contexts = contexts
        self._moments = moments
        self._monotonic = moments.monotonic
        self._threads = threads
        self._warn = warn
        self._collected = collected
        self._stretch = None  # the stretch being started; None if there is none, or it was detached
        self._batch = None  # the batch of its items
        self._is_ahead = False  # True if the running call was counted as started when the stretch last caught up
        self._coroutine_count = 0  # calls since then that returned a coroutine, whose end is recorded elsewhere
        accounts.catch_up, accounts.detach = self.catch_up, self.detach

    # One task.

    @two_bodies
    def start_one(self, source: Any, item: Any, now: float) -> float:
        """Start a task that the queue has taken, and return the time afterwards.

        Args:
            source: its source: a bucket, a batch, or None for a record.
            item: its position in the source, or the record.
            now: loop time.
        """
        accounts = self._accounts
        accounts.started_count += 1
        if source is None:
            call = item._call
            if item._options is None or type(item._options) is KeyOptions:
                args, origin = item._start(now)
                self._call(item, call, args, origin)
            else:
                self._start_special(item, call, now)
            del item  # else a traceback keeps this frame, and so the handle and its error
        elif type(source) is BatchSource:
            call = self._start_item(source, item, now)
        else:
            call = self._start_call(source, item)
        if accounts.on_end is not None:
            accounts.on_end()
        after = self._monotonic()
        if self._queue.counts_effects:
            self._queue.take_effect(after)
        if after - now > LONG_HOLD_SECONDS:
            self._note_hold(call, after - now)
        return after

    def _start_item(self, source: BatchSource, position: int, now: float) -> Any:
        """Start an item of a batch; return the callable."""
        handle: BatchHandle[Any] = source.owner
        call, origin = handle._call, handle._context
        items, index = handle._take_items(source), source.indexes[position]
        key = None if self._queue.gate is None else source.key
        owner = BatchItem(source, index, items, key, self._accounts.recorded_start(now))
        if items is None:
            self._accounts.end(owner, TaskState.CANCELLED, None)
        elif type(items) in INERT_TYPES and index < len(
            items
        ):  # else the sequence was shortened: the task fails, as in a stretch
            self._call(owner, call, (items[index],), origin, is_own=handle._own_context)
        else:
            self._call(owner, call_with_item, (call, items, index), origin, is_own=handle._own_context)
        del owner, items  # else a traceback keeps this frame, and so the handle and its error
        return call

    def _start_call(self, source: Any, position: int) -> Any:
        """Start a call of a bucket; return the callable."""
        if not source.is_waiting(position):  # an observer that was notified of the start has cancelled or moved it
            source.calendar.opened_count += 1  # it was counted as gone twice
            return None
        call, args, origin = source.take_call(position)
        if type(origin) is tuple:
            self._call(self._accounts.calls, call, args, origin[0], is_own=True)
        else:
            self._call(self._accounts.calls, call, args, origin)
        return call

    def _start_special(self, record: Any, call: Any, now: float) -> None:
        """Start a record with rarely used options."""
        options = record._options
        args, origin = record._start(now)
        if options.resumed is not None:
            self._resume(record, origin)
        elif call is HOLD:
            granted, self._accounts.holding[record], effects = args
            self._queue.defer(effects)
            if not granted.done():
                granted.set_result(self._queue.receipts(options))
        elif options.line is not None:
            self._start_with_slots(record, call, args, origin)
        elif options.in_thread:
            thread = ThreadCall(call, args, context_of_thread(origin, is_own=options.own_context), self._threads)
            context = contextvars.Context() if origin is None else origin.copy()
            self._run(record, thread, context, origin, options)
        else:
            self._call(record, call, args, origin, is_own=options.own_context, options=options)
        del record  # else a traceback keeps this frame, and so the handle and its error

    def _resume(self, record: Any, origin: contextvars.Context | None) -> None:
        """Start a record whose call was made before, but whose start lapsed."""
        options = record._options
        (awaitable, context), options.resumed = options.resumed, None
        if type(awaitable) is not ThreadCall:
            self._coroutines.start(record, awaitable, context, origin)
            return
        thread, hold = awaitable.again(), None
        if options.line is not None:
            request = self._queue.slots_of[record]
            hold = slot_for(options.line.slots.pools, request, thread.context), request
        self._run(record, thread, context, origin, options, hold=hold)
        del record  # else a traceback keeps this frame, and so the handle and its error

    def _start_with_slots(
        self, record: Any, call: Any, args: tuple[Any, ...], origin: contextvars.Context | None
    ) -> None:
        """Start a record that holds slots while it runs, in a context with the current slot."""
        options = record._options
        request = self._queue.slots_of[record]
        context = contextvars.Context() if origin is None else origin if options.own_context else origin.copy()
        slot = slot_for(options.line.slots.pools, request, context)
        if options.in_thread:
            awaitable: Any = ThreadCall(call, args, context.copy(), self._threads)
            self._run(record, awaitable, context.copy(), origin, options, hold=(slot, request))
        else:
            self._call(record, call, args, context, is_own=True, options=options, hold=(slot, request), retried=origin)
        del record  # else a traceback keeps this frame, and so the handle and its error

    def _call(
        self,
        owner: Any,
        call: Any,
        args: tuple[Any, ...],
        origin: contextvars.Context | None,
        *,
        is_own: bool = False,
        options: Any = None,
        hold: Any = None,
        retried: contextvars.Context | None = None,
    ) -> None:
        """Call a function inline; if it returns a coroutine, run that as a task.

        Args:
            owner: the owner of the task.
            call: the function.
            args: its arguments.
            origin: the context variables that it was scheduled with; None if there were none.
            is_own: True if it runs in that context itself, and not in a copy.
            options: the options of its record, if it has any.
            hold: the slot that it holds, and the request for it; None if it needs none.
            retried: the context variables that it was scheduled with, if it holds a slot.
        """
        accounts, contexts = self._accounts, self._contexts
        context = contexts.scratch if origin is None else origin if is_own else origin.copy()
        if hold is not None:
            origin = retried
        accounts.is_inside = True
        try:
            result = context.run(call, *args)
        except BaseException as error:  # noqa: BLE001  # a task's failure is its own, whatever it raises
            accounts.is_inside = False
            if contexts.scratch:
                contexts.clean()
            failed = owner.of(call, args) if isinstance(owner, CallOwner) else owner
            context.copy().run(accounts.raised, failed, error, origin)
            del failed  # else a traceback keeps this frame, and so the error
        else:
            accounts.is_inside = False
            if type(result) in self._kinds and options is None:
                self._coroutines.start(owner, result, context, origin)
            elif result is not None and is_awaitable(result):
                self._run(owner, result, context, origin, options, hold=hold)
            elif options is not None and options.run_timeout is not None:
                accounts.end(owner, TaskState.FAILED, run_timeout_error(call))
            else:  # done(), inlined; our caller notifies the waiters for the end
                accounts.counts[_DONE] += 1
                if accounts.on_task_end is not None:
                    accounts.on_task_end(owner, _DONE)
                owner._end_done(result)
            if contexts.scratch:
                contexts.clean()
        del owner  # else a traceback keeps this frame, which keeps the handle, which keeps the error, unreported

    def _run(
        self,
        owner: Any,
        awaitable: Any,
        context: contextvars.Context,
        origin: contextvars.Context | None,
        options: Any = None,
        *,
        hold: Any = None,
    ) -> None:
        """Run the awaitable that a call has returned as a task; arguments as of :meth:`_call`."""
        if type(awaitable) is ThreadCall:  # its start takes effect when a thread begins it
            effects: list[Any] = []
            self._queue.defer(effects)
            if effects:
                awaitable.start = DeferredStart(
                    effects, self._queue.receipts(options), self._moments.ns, (awaitable, context)
                )
        is_coroutine = type(awaitable) in self._kinds or asyncio.iscoroutine(awaitable)
        coroutine = awaitable if is_coroutine else await_it(awaitable)
        if options is not None:
            coroutine = limited(coroutine, owner, options, now=self._monotonic())
        if hold is not None:
            coroutine = holding(coroutine, *hold)
        self._coroutines.start(owner, coroutine, context, origin)
        del owner  # else a traceback keeps this frame, and so the handle and its error

    def _note_hold(self, call: Any, seconds: float) -> None:
        """Warn of a task that blocked the event loop, or of the garbage collections during it."""
        collected = self._collected(seconds)
        if seconds - collected > LONG_HOLD_SECONDS:
            message = "%s held the event loop for %.0f ms (or the process did not get the CPU)"
            name = "handing over a permit" if call is HOLD else name_of(call)
            self._warn("hold", message, name, (seconds - collected) * 1e3)
        else:
            message = "garbage collections held the event loop for %.0f ms: see gc.freeze()"
            self._warn("collections", message, collected * 1e3)

    # Many tasks.

    @two_bodies
    def start_many(self, stretch: Stretch, now: float, stop: float) -> float:
        """Start a stretch, until loop time ``stop`` at most, and return the time afterwards."""
        queue, before = self._queue, self._accounts.started_count
        stop = min(stop, queue.admission.usable_until)
        if stretch.source is None:
            now = self._start_records(stretch, now, stop)
        else:
            now = self._start_plain(stretch, now, stop)
            if queue.counts_effects:
                queue.take_effect(now)
        if queue.on_start is not None and not stretch.is_paid:
            queue.note_untold(self._accounts.started_count - before)
        self._accounts.notify_waiters()
        return now

    @two_bodies
    def _start_records(self, stretch: Stretch, now: float, stop: float) -> float:
        """Start records: each has a state of its own, and is counted as it starts."""
        accounts, queue, monotonic = self._accounts, self._queue, self._monotonic
        while (record := stretch.take_record(now)) is not None:  # at least one, whatever the time, to make progress
            call = record._call
            accounts.started_count += 1
            if record._options is None or type(record._options) is KeyOptions:
                args, origin = record._start(now)
                self._call(record, call, args, origin)
            else:
                self._start_special(record, call, now)
            del record  # else a traceback keeps this frame, and so the handle and its error
            after = monotonic()
            if queue.counts_effects:
                queue.take_effect(after)
            if after - now > LONG_HOLD_SECONDS:
                self._note_hold(call, after - now)
            now = after
            call = args = origin = None  # else a traceback keeps this frame, and so the call and its error
            if now >= stop or queue.is_changed:
                break
        return now

    @two_bodies
    def _start_plain(self, stretch: Stretch, now: float, stop: float) -> float:  # noqa: PLR0912, PLR0915  # a helper would cost as much as the call
        """Start calls of a bucket, or items of a batch: nothing is counted in between."""
        accounts, contexts, queue, monotonic = self._accounts, self._contexts, self._queue, self._monotonic
        source, begun = stretch.source, self.item_of
        scratch: Any = contexts.scratch
        context, call_in_context = scratch, scratch.run
        is_batch = type(source) is BatchSource
        index: Any = None
        result = None
        if is_batch:
            batch = self._batch = source.owner
            (call, items), kept, indexes = batch._call_and_items(source), batch._parts[source], source.indexes
            started = source.started_flags(stretch.first)
            if (origin := batch._context) is not None:
                context, call_in_context = origin, origin.run
        else:
            calls, args, origins = source.calls, source.args, source.contexts
        self._stretch = stretch
        accounts.is_inside = True
        try:
            for position in stretch.positions():
                if is_batch:
                    if started is not None:
                        if started[position]:
                            stretch.skipped_count += 1
                            continue
                        started[position] = 1
                    index = indexes[position]
                    if origin is not None and not batch._own_context:
                        context = origin.copy()
                        call_in_context = context.run
                else:
                    call = calls[position]
                    if call is None:  # cancelled
                        stretch.skipped_count += 1
                        continue
                    arguments = args[position]
                    if type(arguments) is not tuple:  # unfolded(), inlined
                        arguments = (arguments,)
                    calls[position] = args[position] = None
                    if origins is not None:
                        context = origins[position]
                        origins[position] = None
                        context = (
                            scratch if context is None else context[0] if type(context) is tuple else context.copy()
                        )
                        call_in_context = context.run
                try:
                    result = call_in_context(call, items[index]) if is_batch else call_in_context(call, *arguments)
                except BaseException as error:  # noqa: BLE001  # a task's failure is its own; exits go on their way
                    failed = begun(source, index, kept, now) if is_batch else accounts.calls.of(call, arguments)
                    self._raised(failed, error, context)
                else:
                    if result is not None or scratch:
                        self._returned(begun(source, index, kept, now) if is_batch else accounts.calls, result, context)
                if contexts.scratch is not scratch:  # it had been written to, or was given away
                    if context is scratch:
                        context, call_in_context = contexts.scratch, contexts.scratch.run
                    scratch = contexts.scratch
                after = monotonic()
                if after - now > LONG_HOLD_SECONDS:
                    self._note_hold(batch._call if is_batch else call, after - now)
                now = after
                if not is_batch:  # finalizers run by this may change anything: not while the next is being taken
                    call = arguments = None
                if now >= stop or queue.is_changed:
                    break
        finally:
            self._end(stretch, index, result)
        return now

    def item_of(self, source: BatchSource, index: int, kept: Any, now: float) -> BatchItem:
        """Return the owner of an item of a stretch that starts now."""
        return BatchItem(source, index, kept, None, self._accounts.recorded_start(now))

    def _raised(self, owner: Any, error: BaseException, context: contextvars.Context) -> None:
        """End a call of a stretch that raised, in a context."""
        self._leave_call()
        self._contexts.clean()
        context.copy().run(self._accounts.raised, owner, error, None)
        self._accounts.is_inside = True

    def _returned(self, owner: Any, result: Any, context: contextvars.Context) -> None:
        """Continue with a call of a stretch that returned a value, or set context variables."""
        if type(result) is CoroutineType and not self._contexts.scratch and self._queue.admission.effects is None:
            if self._is_ahead:
                self._is_ahead = False
            else:
                self._coroutine_count += 1
            self._accounts.is_inside = False
            self._coroutines.start(owner, result, context)
        elif is_awaitable(result):
            self._leave_call()
            self._run(owner, result, context, None)
            self._contexts.clean()
        else:
            self._contexts.clean()
        self._accounts.is_inside = True

    def catch_up(self) -> None:
        """Bring all counts up to date, in the middle of a stretch."""
        stretch = self._stretch
        if stretch is None:
            return
        started = stretch.catch_up(self._monotonic())
        self._accounts.started_count += started
        ended = started + self._is_ahead - self._accounts.is_inside - self._coroutine_count
        self._coroutine_count = 0
        self._is_ahead = self._accounts.is_inside
        self._note_done(ended)

    def detach(self) -> None:
        """End the stretch after the running call: others may take its tasks from now on."""
        self._queue.is_changed = True
        if self._stretch is not None:
            self.catch_up()
            self._stretch.detach()
            self._stretch = None

    def _leave_call(self) -> None:
        """Record that the call of a stretch has ended, in a way that is counted elsewhere."""
        self.catch_up()
        self._is_ahead = False
        self._accounts.is_inside = False

    def _end(self, stretch: Stretch, index: Any, result: Any) -> None:
        """End a stretch, which may have been detached during a call that has returned by now.

        Args:
            stretch: the stretch.
            index: the index of its last item, of a batch.
            result: the result of the last call.
        """
        source, batch = stretch.source, self._batch
        self._accounts.is_inside = False
        self.catch_up()
        stretch.end()
        self._stretch = self._batch = None
        is_ahead, self._is_ahead = self._is_ahead, False
        self._accounts.counts[_DONE] += is_ahead
        if batch is not None:
            if is_ahead:
                batch._item_ended(index, _DONE, result)
            batch._stretch_ended(source)

    def _note_done(self, count: int) -> None:
        self._accounts.counts[TaskState.DONE] += count
        if self._batch is not None:
            self._batch._note_done(count)
