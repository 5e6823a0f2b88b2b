"""The machine of one executor: it asks its queue what starts, starts it, and keeps account.

Every accepted task ends in exactly one state, and the counts close at every instant: accepted = waiting + running + done
+ failed + cancelled + expired + dropped. A task's failure stays its own: it goes to its handle, or to the loop's
exception handler, and nothing that a task does stops the machine.

Starting a task is one decision of the queue and one call. Work goes in slices, so that the loop's I/O is never held for
more than a few milliseconds by ours, whatever is due.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.buckets import Bucket, name_of
from ratelimited_executor._core.limits.window import note_effect
from ratelimited_executor._core.queue import TaskQueue
from ratelimited_executor._core.rates import Rate
from ratelimited_executor._core.records import Record
from ratelimited_executor._core.states import TaskState
from ratelimited_executor._core.timeline import NS
from ratelimited_executor._runtime.batches import INERT_TYPES, call_with_item
from ratelimited_executor._runtime.burst import HOLD, LONG_HOLD_SECONDS, Burst, is_awaitable, note_hold
from ratelimited_executor._runtime.contexts import SharedContexts
from ratelimited_executor._runtime.coroutines import Coroutines
from ratelimited_executor._runtime.expiring import end_expired_item, expire_overdue, is_expired
from ratelimited_executor._runtime.launch import (
    ThreadCall,
    await_it,
    context_of_thread,
    run_timeout_error,
    with_deadline,
    with_timeout,
)
from ratelimited_executor._runtime.lone import start_lone
from ratelimited_executor._runtime.orders import isolated, report_order_error
from ratelimited_executor._runtime.overload import Overload
from ratelimited_executor._runtime.policy import slack_of
from ratelimited_executor.abc import Fleet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ratelimited_executor._core.adaptive import Adaptive
    from ratelimited_executor._core.batches import BatchSource
    from ratelimited_executor._core.calendar import Calendar
    from ratelimited_executor._core.fair import Fair
    from ratelimited_executor._core.ordering import Order
    from ratelimited_executor._core.queue import Pacing
    from ratelimited_executor._core.timeline import Timeline
    from ratelimited_executor._runtime.batches import BatchHandle
    from ratelimited_executor._runtime.handles import TaskHandle
    from ratelimited_executor._runtime.launch import Threads
    from ratelimited_executor._runtime.overload import KeyLimits
    from ratelimited_executor._runtime.policy import PolicyPlan
    from ratelimited_executor._runtime.runner import Runner
    from ratelimited_executor.abc import Peers

__all__ = ["HOLD", "Engine"]

_START_COUNT_MAX: Final = 1024  # tasks started between two turns of the loop
_CROWD_COUNT: Final = 64  # started in one run, from which on the next wake-up may come later


class Engine:
    """One executor's queue, running tasks and counts.

    Args:
        name: of the executor, for logs and errors.
        runner: the manager's interval runner, which owns loop, clock and timeline.
        plan: policy, rates and resources.
        pacing: whether tasks are spread over their interval.
        order: the key function of importance, or what shares by key.
        early: whether a task may start anywhere in the interval of its due time.
        peers: with whom the rate is shared.
        max_concurrency: how many tasks may run at once; None for no limit.
        threads: where calls in threads run.
        key_limits: of the keys of tasks.
        retry: the policy by which tasks are tried again; None if they never are.
        adaptive: how the rate adapts; None if it does not.
    """

    def __init__(
        self,
        name: str,
        *,
        runner: Runner,
        plan: PolicyPlan,
        pacing: Pacing,
        order: Order | Fair,
        early: bool,
        peers: Peers | Fleet,
        max_concurrency: int | None,
        threads: Threads,
        key_limits: KeyLimits,
        retry: Any,
        adaptive: Adaptive | None,
    ) -> None:
        self.name = name
        self.runner = runner
        self.loop = runner.loop
        self.timeline: Timeline = runner.timeline
        self.monotonic = runner.clock.monotonic
        self.rate = plan.rate
        self.is_paused = False
        self.is_adaptive = adaptive is not None
        self.armed = math.inf  # loop time of the next run, as the runner knows it
        runner.engines.add(self)
        self.member = peers.join(self) if isinstance(peers, Fleet) else None
        count, rank = (peers.count, peers.rank) if self.member is None else (1, 0)  # type: ignore[union-attr]  # as asked
        self.max_concurrency = max_concurrency
        self.threads = threads
        self.overload = Overload(self, plan=plan, key_limits=key_limits, retry=retry, adaptive=adaptive, peers=count)
        self.is_gated = False  # whether keys have limits, so that the end of a task may let another start
        self.is_full = False  # whether the last run ended for lack of a place: the end of a task may let another start
        self.is_watching = self.is_adaptive  # whether somebody looks whenever all has started that may
        self.queue = TaskQueue(
            self.timeline,
            now=self.monotonic(),
            rate=plan.rate,
            slack=slack_of(plan.policy),
            pacing=pacing,
            order=isolated(order),
            early=early,
            peers=count,
            rank=rank,
            report_order_error=partial(report_order_error, self),
            permits=self._permits_of(plan),
            bucket_ns_max=NS if early else runner.bucket_ns_max,  # what may start early does so within its bucket
        )
        self.queue.set_crowded(is_crowded=max_concurrency is not None)
        self.queue.chores.on_added = self.wake
        self.on_time = self.queue.on_time  # the asyncio face adds to it
        self.on_time.owner = self
        self.coroutines: Coroutines = getattr(self.loop, "make_coroutines", Coroutines)(self)
        self.running = self.coroutines.running
        self.holding: dict[TaskHandle[Any], asyncio.Task[Any] | None] = {}  # permits that somebody holds, and who
        self.feeders: set[asyncio.Task[Any]] = set()  # tasks that draw the items of lazy batches
        self.accepted_count = 0
        self.started_count = 0
        self.ended_counts = dict.fromkeys(
            (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED, TaskState.DROPPED), 0
        )
        self.on_progress: Callable[[], None] | None = None  # told whenever a task has ended, while somebody drains
        self.burst = Burst(self)
        contexts = SharedContexts()
        self.capture, self.share = contexts.capture, contexts.share
        self.scratch = contextvars.Context()
        if key_limits.is_gated:
            self.overload.set_key_limits(key_limits)

    def _permits_of(self, plan: PolicyPlan) -> Any:
        granted: Any = None if self.member is None else self.member.permits
        if plan.is_plain:
            return granted or plan.grid(self.time_ns())
        return plan.permits(granted, now_ns=self.time_ns(), time_ns=self.time_ns, wall_ns=self.wall_ns)

    # Adding.

    def add(self, record: TaskHandle[Any]) -> None:
        """Accept a record due at a time of its own."""
        self.accepted_count += 1
        self.queue.add_record(record)
        if record._due < self.armed:
            self.wake_for(record._due)

    def add_immediate(self, record: TaskHandle[Any]) -> None:
        """Accept a record due now."""
        self.accepted_count += 1
        self.burst.is_changed = True
        self.queue.add_immediate(record)
        if record._due < self.armed:
            self.wake_for(record._due)

    def add_wall(self, record: TaskHandle[Any], wall_due: float) -> None:
        """Accept a record due by the wall clock in a later interval."""
        self.accepted_count += 1
        if self.queue.drops is not None:
            self.queue.drops.add(record)
        self.queue.wall.add_record(record, wall_due)
        self.wake_for(self.queue.interval_end)

    def add_again(self, record: TaskHandle[Any]) -> None:
        """Take back a record that had started, at its new due time."""
        self.burst.is_changed = True
        self.queue.add_record(record)
        self.wake_for(record._due)
        self.progress()

    def add_item_again(self, source: BatchSource, items: Any) -> None:
        """Take back a task of a batch that had started, as a source of its own."""
        self.burst.is_changed = True
        source.owner._take_back(source, items)
        self.queue.add_batch(source, joined=source.first < self.queue.interval_end)
        self.wake_for(source.first)
        self.progress()

    def time_ns(self) -> int:
        """Return the time on the timeline in nanoseconds."""
        return self.timeline.to_ns(self.monotonic())

    def wall_ns(self) -> int:
        """Return the time by the wall clock in nanoseconds."""
        return round(self.runner.clock.wall() * NS)

    def now(self) -> float:
        """Return the loop time, and begin the interval that it lies in."""
        now = self.monotonic()
        if now >= self.queue.end:
            self.burst.settle()
            self.queue.enter(now, self.runner.clock.wall())
        return now

    def wake_for(self, due: float) -> None:
        """Ask the runner to look at the queue no later than the interval of ``due`` demands."""
        if due >= self.queue.end:
            due = min(self.queue.on_time.opening_time(), self.queue.spread.next_start(), due)
        if due < self.armed:
            self.runner.arm(self, due)

    def wake(self) -> None:
        """Ask the runner to look at the queue in this turn of the loop, because a setting has changed."""
        self.burst.is_changed = True
        self.runner.arm(self, -math.inf)

    def feeder_done(self, feeder: asyncio.Task[Any]) -> None:
        """Note that all items of a lazy batch have been drawn."""
        self.feeders.discard(feeder)
        self.progress()

    # Cancelling.

    def cancel_waiting(self, record: TaskHandle[Any], message: object) -> None:
        """End a record that waits as cancelled."""
        self.remove(record)
        self.end(record, TaskState.CANCELLED, message)

    def remove(self, record: TaskHandle[Any]) -> None:
        """Take a record that waits out of the queue."""
        self.queue.cancel(record)
        options = record._options
        if options is not None and (options.key is not None or options.charge is not None):
            self.overload.left(options.key, is_costly=options.charge is not None)

    def revoke(self, source: BatchSource) -> int:
        """Cancel what waits of a batch, and return how many tasks that were."""
        self.burst.detach()
        count = self.queue.revoke(source)
        self.ended_counts[TaskState.CANCELLED] += count
        self.overload.left(source.key, is_costly=source.needs is not None)
        self.progress()
        return count

    # Running.

    def run(self, stop: float) -> float:
        """Start what is due, until loop time ``stop`` at most; return the loop time at which to be run again."""
        queue = self.queue
        if queue.is_halted:
            return math.inf
        self.is_full = False
        now = begin = self.now()
        start_count = 0
        if (self.max_concurrency is None or self.may_start()) and (lone := queue.take_lone(now)) is not None:
            self.burst.is_changed = False
            now = start_lone(self, *lone, now)
            if now >= stop:
                return now
            if not self.burst.is_changed:
                self.is_full = self.max_concurrency is not None and not self.may_start()
                return self._rest(now, begin, 1)
            start_count = 1
        while True:
            self.burst.is_changed = False
            is_done = self.overload.decide(queue.pull, now)
            expire_overdue(self, now)
            while (calendar := self._choose(now)) is not None:
                run = queue.pop(calendar)
                count_max = queue.burst_count(calendar) if self.max_concurrency is None else 1
                if count_max > 1:
                    started_before = self.started_count
                    now = self._start_burst(calendar, run, now, stop, count_max)
                    start_count += self.started_count - started_before
                else:
                    now = self._start(calendar, run.source, run.take(), now)
                    start_count += 1
                if now >= stop or start_count >= _START_COUNT_MAX:
                    return now
                if self.burst.is_changed:  # what was added may go before what is ready
                    is_done = False
                    break
            if is_done:
                return self._rest(now, begin, start_count)
            start_count += 1
            now = self.now()
            if now >= stop or start_count >= _START_COUNT_MAX:
                return now

    def _choose(self, now: float) -> Calendar | None:
        """Return the calendar whose first task starts now; None if none does, or no place is free."""
        while True:
            if self.max_concurrency is not None and not self.may_start():
                self.is_full = True
                return None
            calendar = self.overload.decide(self.queue.choose, now)
            if calendar is not None or self.queue.beyond is None:
                return calendar
            self.overload.drop_beyond()

    def _rest(self, now: float, begin: float, start_count: int) -> float:
        """Return when to be run again: all that may start has started."""
        queue = self.queue
        queue.rest()
        if self.is_watching:
            self.overload.decide(self.overload.rest, now)
        if self.member is not None:
            self.member.look(now)
        wake = self.overload.decide(self._next_wake, now)
        # What became due while others started waits for the next wake-up: to look for each would cost more than to start it.
        runner = self.runner
        earliest = runner.earliest
        if queue.is_unlimited:
            crowded = begin + (runner.precision_unlimited if start_count < _CROWD_COUNT else runner.precision_crowded)
            if crowded > earliest:  # noqa: PLR1730  # this is the path of every wake-up
                earliest = crowded
        if wake == math.inf or queue.is_forgetting:
            self.progress()  # who waits for the end may see that nothing goes on
        return wake if wake > earliest else earliest  # noqa: FURB136  # as above

    def _next_wake(self, now: float) -> float:
        return self.queue.next_wake(now, may_start=not self.is_full)

    def may_start(self) -> bool:
        """Whether a place is free."""
        return self.max_concurrency is None or len(self.running) + len(self.holding) < self.max_concurrency

    def _start_burst(self, calendar: Calendar, run: Any, now: float, stop: float, count_max: int) -> float:
        """Start tasks of one run, one after the other; return the time afterwards."""
        stop = min(stop, self.queue.usable_until)
        if run.source is None:
            now = self.burst.run_records(calendar, run, now, stop, count_max)
        elif isinstance(run.source, Bucket):
            now = self.burst.run_calls(calendar, run, now, stop, count_max)
        elif run.source.owner._is_plain(run.source):
            now = self.burst.run_items(calendar, run, now, stop, count_max)
        else:
            return self._start(calendar, run.source, run.take(), now)
        if self.queue.counts_effects:
            self.queue.take_effect(now)
        self.progress()
        return now if now < self.queue.end else self.now()

    def _start(self, calendar: Calendar, source: Any, item: Any, now: float) -> float:
        """Start a task that was taken from its place, and return the time afterwards."""
        calendar.opened_count -= 1
        if source is None:
            name_source: Any = item._call
            if not self.start_record(calendar, item, now):
                return now
            del item  # as in _launch
        elif isinstance(source, Bucket):
            self.queue.spend(calendar, source.dues[item], now)
            name_source = source.calls[item]
            self._start_call(source, item)
        else:
            batch: BatchSource = source  # there are no other sources
            if not self._start_item(calendar, batch, item, now):
                return now
            name_source = batch.owner.call
        after = self.monotonic()
        if self.queue.counts_effects:
            self.queue.take_effect(after)
        if after - now > LONG_HOLD_SECONDS:
            note_hold(self, name_source, after - now)
        return after if after < self.queue.end else self.now()

    def start_record(self, calendar: Calendar, record: TaskHandle[Any], now: float) -> bool:
        """Start a record that was taken from its run; False if its deadline has passed."""
        options = record._options
        if options is not None:
            if self.queue.drops is not None:
                self.queue.drops.discard(record)
            if is_expired(self, record, now):
                return False
        self.queue.spend(calendar, record._due, now)
        tickets: Iterable[Any] = ()
        if options is not None and (options.charge is not None or options.key is not None):
            tickets = self.overload.started(record, options)
        call, args, context = record._call, record._outcome, record._context
        origin = context
        record._state = TaskState.RUNNING
        record._context = now
        self.started_count += 1
        if call is HOLD:
            granted, self.holding[record], effects = args
            self.queue.defer(effects)
            if not granted.done():
                granted.set_result(self.overload.tickets(tickets))
            return True
        own = options is not None and options.own_context
        if options is not None and options.in_thread:
            thread = ThreadCall(call, args, context_of_thread(context, is_own=own), self.threads)
            self.end_returned(record, call, thread, contextvars.Context(), options.run_timeout, origin)
        else:
            self._launch(
                record, call, args, context, own=own, run_timeout=None if options is None else options.run_timeout
            )
        del record  # as in _launch
        return True

    def _start_call(self, bucket: Bucket, position: int) -> None:
        call, args = bucket.calls[position], bucket.args[position]
        context: Any = None if bucket.contexts is None else bucket.contexts[position]
        bucket.clear(position)
        self.started_count += 1
        if type(context) is tuple:
            self._launch(None, call, args, context[0], own=True)
        else:
            self._launch(None, call, args, context)

    def _start_item(self, calendar: Calendar, batch: BatchSource, position: int, now: float) -> bool:
        handle: BatchHandle[Any] = batch.owner
        due = batch.due_of(position)
        batch.start(position)
        items = handle._parts[batch]
        index = batch.indexes[position]
        key = None if self.queue.gate is None else batch.key  # whose end the gate is told, if it was told of the start
        owner = (handle, index, key, batch, items)
        if batch.started_count == batch.count:  # it was the last
            handle._forget(batch)
            calendar.finish(batch)
        if now > due + batch.deadline_after:
            end_expired_item(self, batch, position)
            return False
        self.queue.spend(calendar, due, now)
        if batch.key is not None or batch.needs is not None:
            self.overload.item_started(batch.key, batch.needs, batch.cost_of(position))
        self.started_count += 1
        context, own = handle.context, handle.own_context
        if type(items) in INERT_TYPES:
            self._launch(owner, handle.call, (items[index],), context, own=own)
        else:
            self._launch(owner, call_with_item, (handle.call, items, index), context, own=own)
        return True

    def _launch(
        self,
        owner: Any,
        call: Any,
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        *,
        own: bool = False,
        run_timeout: float | None = None,
    ) -> None:
        """Call a function inline; if it returns a coroutine, run that as a task."""
        origin = context
        if context is None:
            context = self.scratch
        elif not own:
            context = context.copy()
        self.burst.is_inside = True
        try:
            result = context.run(call, *args)
        except BaseException as error:  # noqa: BLE001  # a task's failure is its own, whatever it raises
            self.burst.is_inside = False
            self.end_raised(owner, error, origin)
        else:
            self.burst.is_inside = False
            self.end_returned(owner, call, result, context, run_timeout, origin)
        del owner  # else a traceback keeps this frame, which keeps the handle, which keeps the error, unreported

    def end_raised(self, owner: Any, error: BaseException, context: contextvars.Context | None) -> None:
        """End a call that raised, unless it is to be tried again; what ends the program is recorded, and goes on its way.

        Args:
            owner: its record, its batch and index, or None.
            error: what it raised.
            context: the variables that the task was scheduled with, should it be tried again.
        """
        if len(self.scratch):
            self.scratch = contextvars.Context()
        if isinstance(error, asyncio.CancelledError):
            self.end(owner, TaskState.CANCELLED, error)
            return
        if owner is not None and self.overload.retries(owner, error, context):
            return
        self.end(owner, TaskState.FAILED, error)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error

    def end_returned(
        self,
        owner: Any,
        call: Any,
        result: Any,
        context: contextvars.Context,
        run_timeout: float | None,
        origin: contextvars.Context | None = None,
    ) -> None:
        """End a call that returned; if it returned a coroutine, run that as a task."""
        if type(result) in self.coroutines.kinds or (result is not None and is_awaitable(result)):
            is_coroutine = type(result) in self.coroutines.kinds or asyncio.iscoroutine(result)
            if type(result) is ThreadCall:
                self._defer_to(result)
            coroutine = result if is_coroutine else await_it(result)
            attempts = (
                None if owner is None or type(owner) is tuple or owner._options is None else owner._options.attempts
            )
            if attempts is not None and attempts.within is not None:
                coroutine = with_deadline(coroutine, owner, run_timeout, now=self.monotonic())
            elif run_timeout is not None:
                name = owner.name if isinstance(owner, Record) else name_of(call)
                coroutine = with_timeout(coroutine, run_timeout, name)
            self.coroutines.start(owner, coroutine, context, origin)
            owner = None  # as in _launch
        elif run_timeout is not None:
            self.end(owner, TaskState.FAILED, run_timeout_error(call))
        else:
            self.end_done(owner, result)
        if len(self.scratch):
            self.scratch = contextvars.Context()  # the next call must not see what this one has set

    def _defer_to(self, call: ThreadCall) -> None:
        """Let what was started last take effect when a worker thread begins with it."""
        effects: list[list[int]] = []
        self.queue.defer(effects)
        call.on_begin = lambda: note_effect(effects, self.time_ns())

    def release(self, record: TaskHandle[Any], state: TaskState, outcome: Any) -> None:
        """End a permit that somebody held."""
        self.holding.pop(record, None)
        self.end(record, state, outcome)
        if self.is_full:
            self.wake()

    def end_done(self, owner: Any, result: Any) -> None:
        """Count a task that has returned, and tell whom it concerns: :meth:`end` for nearly every task."""
        if self.is_gated:
            self.overload.ended(owner)
        self.ended_counts[TaskState.DONE] += 1
        if owner is not None:
            if type(owner) is tuple:
                owner[0]._item_ended(owner[1], TaskState.DONE, result)
            else:
                owner._end_done(result)
        if self.on_progress is not None:
            self.on_progress()

    def end(self, owner: Any, state: TaskState, outcome: Any) -> None:
        """Count a task's end, and tell whom it concerns."""
        if self.is_gated:
            self.overload.ended(owner)
        self.ended_counts[state] += 1
        if owner is None:
            if state is TaskState.FAILED:
                message = f"exception in a call of the executor {self.name}"
                self.loop.call_exception_handler({"message": message, "exception": outcome})
        elif type(owner) is tuple:
            owner[0]._item_ended(owner[1], state, outcome)
        else:
            owner._end(state, outcome)
        self.progress()

    # Settings.

    def set_order(self, order: Order | Fair) -> None:
        """Put an order in force."""
        self.burst.detach()
        self.queue.set_order(isolated(order))
        self.wake()

    def set_plan(self, plan: PolicyPlan) -> None:
        """Put rates in force, at once unless paused or shared."""
        self.rate = plan.rate
        self.overload.set_plan(plan)
        if self.member is not None:
            self.member.set_rate(plan.rate)
        self._apply_rate()

    def set_max_concurrency(self, count: int | None) -> None:
        """Put a limit in force for what starts from now on."""
        if self.queue.is_halted:
            return
        self.max_concurrency = count
        self.queue.set_crowded(is_crowded=count is not None)
        self.wake()
        self.progress()

    def halt(self) -> None:
        """Start nothing more, for good; also if a task asks for it in the middle of others."""
        self.burst.detach()
        self.max_concurrency = 0
        self.queue.is_halted = True

    def set_paused(self, *, is_paused: bool) -> None:
        """Stop starting, or go on."""
        self.is_paused = is_paused
        self._apply_rate()

    def add_call_ready(self, now: float, call: Any, args: Any, context: Any) -> tuple[Bucket, int]:
        """Accept a task without a record that is due now, and return where it lies."""
        self.accepted_count += 1
        self.burst.is_changed = True
        place = self.on_time.add_call_ready(now, call, args, context)
        if now < self.armed:
            self.wake_for(now)
        return place

    def _apply_rate(self) -> None:
        self.burst.detach()
        rate = self.rate
        if self.is_paused:
            rate = _PAUSE
        elif self.member is not None and rate.is_zero:
            rate = _SHARED
        self.queue.set_rate(rate, self.overload.decided_at())
        self.wake()
        self.progress()

    # Counting.

    def waiting_count(self) -> int:
        """Count the tasks that wait: O(1)."""
        self.burst.settle()
        cancelled_calls = self.queue.on_time.cancelled_count + self.queue.spread.cancelled_count
        return self.accepted_count - sum(self.ended_counts.values()) - cancelled_calls - self.running_count()

    def running_count(self) -> int:
        """Count the tasks that run."""
        return len(self.running) + len(self.holding) + self.burst.is_inside

    def count(self, state: TaskState) -> int:
        """Count the tasks that ended in a state."""
        self.burst.settle()
        count = self.ended_counts[state]
        if state is TaskState.CANCELLED:
            count += self.queue.on_time.cancelled_count + self.queue.spread.cancelled_count
        return count

    def walk(self) -> Iterator[tuple[Any, Any]]:
        """Walk every task that waits: (source, position) or (None, record)."""
        self.burst.settle()
        return self.queue.walk()

    # Helpers.

    def progress(self) -> None:
        """Tell who waits for the end, or for room, that something has changed."""
        if self.on_progress is not None:
            self.on_progress()
        if self.is_watching and self.overload.room is not None:
            self.overload.room.wake()


_PAUSE: Final = Rate(0)
_SHARED: Final = Rate(1)  # stands for a shared rate of 0, which the authority keeps, until a peer sets another
