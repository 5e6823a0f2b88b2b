"""The machine of one executor: it asks its queue what starts, has that started, and says when to ask again.

A task comes in by :meth:`Engine.add` or one of its kin, waits in the queue (``_core/queue.py``), is started by
``starting.py`` and ended by ``accounts.py``::

    add() -> queue.add...() -> [pull() -> take()] -> Starter.start() -> Coroutines.start() -> Accounts.done()
                 ^                 run()                                                         |
                 +---------------------------------- Retries.again() ----------------------------+

What few executors need stands beside that way, each in a part of its own: limits, keys, retries, backlog, adapting.

Work goes in slices, so that the loop's I/O is never held for more than a few milliseconds by ours, whatever is due.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.queue import TaskQueue
from ratelimited_executor._core.rates import Rate
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._kernel.timeline import NS
from ratelimited_executor._runtime.accounts import Accounts
from ratelimited_executor._runtime.adapting import Adapting
from ratelimited_executor._runtime.backlog import Backlog
from ratelimited_executor._runtime.batches import BatchItem
from ratelimited_executor._runtime.clock import Moments
from ratelimited_executor._runtime.contexts import SharedContexts
from ratelimited_executor._runtime.keys import Keys
from ratelimited_executor._runtime.limits import Limits
from ratelimited_executor._runtime.observing import Observed
from ratelimited_executor._runtime.orders import isolated, order_reporter
from ratelimited_executor._runtime.retrying import Retries
from ratelimited_executor._runtime.starting import Starter
from ratelimited_executor.abc import Fleet
from ratelimited_executor.exceptions import TaskDroppedError, TaskExpiredError
from ratelimited_executor.peers.static import StaticPeers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Mapping

    from ratelimited_executor._core.adaptive import Adaptive
    from ratelimited_executor._core.fair import Fair
    from ratelimited_executor._core.fleet.demand import Worker
    from ratelimited_executor._core.limits.combined import CombinedPermits
    from ratelimited_executor._core.ordering import Order
    from ratelimited_executor._core.records import Charge
    from ratelimited_executor._kernel.batches import BatchSource
    from ratelimited_executor._kernel.buckets import Bucket
    from ratelimited_executor._kernel.pacing import Pacing
    from ratelimited_executor._kernel.timeline import Timeline
    from ratelimited_executor._runtime.handles import TaskHandle
    from ratelimited_executor._runtime.keys import KeyLimits
    from ratelimited_executor._runtime.observing import Observer
    from ratelimited_executor._runtime.plan import PolicyPlan
    from ratelimited_executor._runtime.runner import Runner
    from ratelimited_executor._runtime.settings import Settings
    from ratelimited_executor.abc import Peers

__all__ = ["Engine"]

_START_COUNT_MAX: Final = 1024  # tasks started between two turns of the loop
_CROWD_COUNT: Final = 64  # started in one run, from which on the next wake-up may come later
_PAUSE: Final = Rate(0)
_SHARED: Final = Rate(1)  # stands for a shared rate of 0, which the authority keeps, until a peer sets another


class Engine:
    """One executor at work: its queue, and the parts that start, count and limit its tasks.

    Args:
        name: of the executor, for logs and errors.
        settings: how it begins.
        runner: the manager's interval runner, which owns loop, clock and timeline.
        peers: with whom the rate is shared.
    """

    def __init__(self, name: str, settings: Settings, *, runner: Runner, peers: Peers | Fleet) -> None:
        self.name = name
        self.runner = runner
        self.loop = runner.loop
        self.timeline: Timeline = runner.timeline
        self.monotonic = runner.clock.monotonic
        self.moments = moments = Moments(runner.clock, runner.timeline)
        self.rate = settings.plan.rate
        self.is_paused = False
        self.is_adaptive = settings.adaptive is not None
        self.armed = math.inf  # loop time of the next run, as the runner knows it
        self.max_concurrency = settings.max_concurrency
        self.threads = settings.threads
        self._is_full = False  # whether the last run ended for lack of a place: the end of a task may let another start
        runner.engines.add(self)
        self.queue: TaskQueue
        self.accounts: Accounts
        worker: Worker = self  # as the fleet knows it
        self.member = peers.join(worker) if isinstance(peers, Fleet) else None
        self._report = order_reporter(lambda: self.queue.order, self.loop, self.warn)
        fixed = StaticPeers(1, 0) if isinstance(peers, Fleet) else peers
        combined = self._make_combined(settings.plan)
        self.queue = queue = self._make_queue(settings, fixed, combined)
        self.accounts = accounts = Accounts(name, self.loop, queue)
        self.running, self.holding = accounts.running, accounts.holding
        self.contexts = contexts = SharedContexts()
        self.coroutines = runner.hooks.coroutines_type(
            self.loop, accounts=accounts, queue=queue, contexts=contexts, moments=moments, on_free=self._freed
        )
        self.starter = Starter(
            queue,
            accounts=accounts,
            coroutines=self.coroutines,
            contexts=contexts,
            moments=moments,
            threads=settings.threads,
            warn=self.warn,
        )
        self.settle, self.detach = self.starter.settle, self.starter.detach
        self.limits = Limits(settings.plan, combined, queue=queue, moments=moments, detach=self.detach)
        self.keys = Keys(
            settings.key_limits,
            queue=queue,
            moments=moments,
            plan=self._plan,
            warn=self.warn,
            on_open=self._open_gate,
            wake=self.wake,
        )
        self.backlog = Backlog(
            name,
            max_pending=settings.max_pending,
            key_limits=settings.key_limits,
            when_full=settings.when_full,
            queue=queue,
            accounts=accounts,
            drop=self._drop,
        )
        self.retries = self._make_retries(settings)
        accounts.try_again = self.retries.again
        self._adapting = None if settings.adaptive is None else self._make_adapting(settings.adaptive, fixed)
        if settings.key_limits.is_gated:
            self.set_key_limits(settings.key_limits)

    def _make_combined(self, plan: PolicyPlan) -> CombinedPermits | None:
        """Make what admits starts where that is more than one grid of permits, which a fleet cannot share."""
        if plan.is_plain:
            return None
        moments = self.moments
        return plan.permits(None, (), now_ns=moments.ns(), time_ns=moments.ns, wall_ns=moments.wall_ns)

    def _make_queue(self, settings: Settings, peers: Peers, combined: CombinedPermits | None) -> TaskQueue:
        plan = settings.plan
        granted: Any = None if self.member is None else self.member.permits
        queue = TaskQueue(
            self.timeline,
            now=self.monotonic(),
            rate=plan.rate,
            slack=plan.rule.usable_seconds,
            pacing=settings.pacing,
            order=isolated(settings.order),
            early=settings.early,
            peers=peers.count,
            rank=peers.rank,
            report_order_error=self._report,
            permits=combined or granted or plan.grid(self.moments.ns()),
            bucket_ns_max=NS if settings.early else self.runner.hooks.bucket_ns_max,  # early ones: within their bucket
        )
        queue.set_crowded(is_crowded=settings.max_concurrency is not None)
        queue.chores.on_added = self.wake
        queue.on_gone = self._end_gone
        queue.on_time.owner = self
        return queue

    def _make_retries(self, settings: Settings) -> Retries:
        return Retries(
            settings.retry,
            queue=self.queue,
            moments=self.moments,
            numbers=self.runner.hooks.random,
            penalty_max=settings.penalty_max,
            overloaded=self._overloaded,
            on_key_end=self.keys.ended,
            add=self._add_again,
            add_item=self._add_item_again,
            report=self._report,
        )

    def _make_adapting(self, adaptive: Adaptive, peers: Peers) -> Adapting:
        return Adapting(
            adaptive,
            self.monotonic(),
            accounts=self.accounts,
            plan=self._plan,
            member=self.member,
            peers=peers.count,
            set_plan=self.set_plan,
        )

    def _plan(self) -> PolicyPlan:
        """Return policy, rates and resources in force."""
        return self.limits.plan

    # Time.

    def now(self) -> float:
        """Return the loop time, and begin the interval that it lies in."""
        now = self.monotonic()
        if now >= self.queue.end:
            self.settle()
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
        self.starter.is_changed = True
        self.runner.arm(self, -math.inf)

    def _freed(self) -> None:
        """Go on, if nothing could start for lack of a place: one is free."""
        if self._is_full:
            self.wake()

    def warn(self, kind: str, message: str, *args: Any) -> None:
        """Log a warning about this executor, unless one of its kind was logged a moment ago."""
        self.runner.warnings.warn(kind, f"%s: {message}", self.name, *args)

    # Adding.

    def add(self, record: TaskHandle[Any]) -> None:
        """Accept a record due at a time of its own."""
        self.accounts.accepted_count += 1
        self.queue.add_record(record)
        if record._due < self.armed:
            self.wake_for(record._due)

    def add_immediate(self, record: TaskHandle[Any]) -> None:
        """Accept a record due now."""
        self.accounts.accepted_count += 1
        self.starter.is_changed = True
        self.queue.add_immediate(record)
        if record._due < self.armed:
            self.wake_for(record._due)

    def add_wall(self, record: TaskHandle[Any], wall_due: float) -> None:
        """Accept a record due by the wall clock in a later interval."""
        self.accounts.accepted_count += 1
        if self.queue.drops is not None:
            self.queue.drops.add(record)
        self.queue.wall.add_record(record, wall_due)
        self.wake_for(self.queue.interval_end)

    def add_call_ready(self, now: float, call: Any, args: Any, context: Any) -> tuple[Bucket, int]:
        """Accept a task without a record that is due now, and return where it lies."""
        self.accounts.accepted_count += 1
        self.starter.is_changed = True
        place = self.queue.on_time.add_call_ready(now, call, args, context)
        if now < self.armed:
            self.wake_for(now)
        return place

    def _add_again(self, record: TaskHandle[Any]) -> None:
        """Take back a record that had started, at its new due time."""
        self.now()
        self.starter.is_changed = True
        self.queue.add_record(record)
        self.wake_for(record._due)
        self.accounts.progress()

    def _add_item_again(self, source: BatchSource, items: Any) -> None:
        """Take back a task of a batch that had started, as a source of its own."""
        self.now()
        self.starter.is_changed = True
        source.owner._take_back(source, items)
        self.queue.add_batch(source, joined=source.first < self.queue.interval_end)
        self.wake_for(source.first)
        self.accounts.progress()

    # Ending before a start, and what is held.

    def cancel_waiting(self, record: TaskHandle[Any], message: object) -> None:
        """End a record that waits as cancelled."""
        self._remove(record)
        self.accounts.end(record, TaskState.CANCELLED, message)

    def revoke(self, source: BatchSource) -> int:
        """Cancel what waits of a batch, and return how many tasks that were."""
        self.detach()
        count, is_freed = self.queue.revoke(source)
        if is_freed:
            self.wake()
        self.accounts.note_cancelled(count)
        return count

    def holder_of(self, record: TaskHandle[Any]) -> asyncio.Task[Any] | None:
        """Return the asyncio task that holds a permit; None if none does."""
        return self.holding.get(record)

    def release(self, record: TaskHandle[Any], state: TaskState, outcome: Any) -> None:
        """End a permit that somebody held."""
        self.holding.pop(record, None)
        self.accounts.end(record, state, outcome)
        self._freed()

    def settle_cost(self, record: TaskHandle[Any], charge: Charge, actual: Mapping[str, int]) -> None:
        """Correct what the start of a record has cost, or will."""
        self.limits.settle(record, charge, actual)
        self.wake()

    def _remove(self, record: TaskHandle[Any]) -> None:
        """Take a record that waits out of the queue."""
        if self.queue.cancel(record):
            self.wake()

    def _drop(self, record: Any, reason: str) -> None:
        """End a record that waits as dropped."""
        if record._state is not TaskState.WAITING:  # what died with the one before has ended it
            return
        self._remove(record)
        self.accounts.end(record, TaskState.DROPPED, TaskDroppedError(record.name, reason=reason))

    def _end_gone(self, source: Any, item: Any, state: TaskState) -> None:
        """End what the queue has taken out without a start."""
        if source is None:
            owner, name, needs, expires = item, item.name, item.needs, item._options.expires
        else:
            owner = BatchItem(source, source.indexes[item])
            owner.batch._forget(source)
            name, needs, expires = source.name_of(item), source.needs, source.deadline_after
        error: Exception
        if state is TaskState.EXPIRED:
            error = TaskExpiredError(name, expires=expires)
        else:
            costs = ", ".join(f"{amount} {resource}" for resource, amount in (needs or {}).items())
            error = TaskDroppedError(name, reason=f"its cost, {costs}, is more than the limits in force ever admit")
        self.accounts.end(owner, state, error)

    # Running.

    def run(self, stop: float) -> float:
        """Start what is due, until loop time ``stop`` at most; return the loop time at which to be run again."""
        queue, starter = self.queue, self.starter
        if queue.is_halted:
            return math.inf
        self._is_full = False
        now = begin = self.now()
        starter.is_changed = False
        taken: Any = None
        if self.max_concurrency is None or self.has_place():
            taken = queue.take_lone(now)
        start_count = 0
        if taken is not None:
            source, item = taken
            now = starter.start(source, item, now)
            taken = source = item = (
                None  # else a traceback keeps this frame, which keeps the handle, which keeps the error
            )
            if now >= queue.end:
                now = self.now()
            if now >= stop:
                return now
            if not starter.is_changed:
                self._is_full = self.max_concurrency is not None and not self.has_place()
                return self._rest(now, begin, 1)
            start_count = 1
        while True:
            starter.is_changed = False
            is_done = queue.pull(now)
            queue.expire(now)
            while (taken := self._take(now)) is not None:
                started_before = self.accounts.started_count
                now = self._start(taken, now, stop)
                taken = None  # as above
                start_count += self.accounts.started_count - started_before
                if now >= stop or start_count >= _START_COUNT_MAX:
                    return now
                if starter.is_changed:  # what was added may go before what is ready
                    is_done = False
                    break
            if is_done:
                return self._rest(now, begin, start_count)
            start_count += 1
            now = self.now()
            if now >= stop or start_count >= _START_COUNT_MAX:
                return now

    @property
    def is_stopped(self) -> bool:
        """True while nothing starts, whatever falls due."""
        return self.is_paused or self.max_concurrency == 0 or self.queue.permits.is_stopped

    def observe(self, observer: Observer) -> None:
        """Tell an observer of all tasks from now on."""
        observer.opened(Observed(self))
        self.queue.on_start = observer.started

        def freed() -> None:
            observer.ended()
            self._freed()

        self.coroutines.on_free = freed

    def has_place(self) -> bool:
        """Whether a place to run in is free."""
        return self.max_concurrency is None or len(self.running) + len(self.holding) < self.max_concurrency

    def _take(self, now: float) -> Any:
        """Take what starts now; None if nothing does, or no place is free."""
        queue = self.queue
        if self.max_concurrency is not None and not self.has_place():
            self._is_full = True
            return None
        return queue.take(now, UNLIMITED if self.max_concurrency is None else 1)

    def _start(self, taken: Any, now: float, stop: float) -> float:
        """Start what was taken, and return the time afterwards."""
        queue = self.queue
        if taken is queue.stretch:
            now = self.starter.start_many(taken, now, stop)
        else:
            source, item = taken
            now = self.starter.start(source, item, now)
            del source, item  # as in run()
        del taken
        return now if now < queue.end else self.now()

    def _rest(self, now: float, begin: float, start_count: int) -> float:
        """Return when to be run again: all that may start has started."""
        queue = self.queue
        queue.rest()
        if self._adapting is not None:
            self._adapting.rest(now)
        if self.accounts.on_room is not None:
            self.accounts.on_room()
        if self.member is not None:
            self.member.look(now)
        wake = queue.next_wake(now, may_start=not self._is_full)
        # What became due while others started waits for the next wake-up: to look for each would cost more than to start it.
        runner = self.runner
        earliest = runner.earliest
        if queue.is_unlimited:
            crowded = begin + (runner.precision_unlimited if start_count < _CROWD_COUNT else runner.precision_crowded)
            if crowded > earliest:  # noqa: PLR1730  # this is the path of every wake-up
                earliest = crowded
        if wake == math.inf or queue.is_forgetting:
            self.accounts.progress()  # who waits for the end may see that nothing goes on
        return wake if wake > earliest else earliest  # noqa: FURB136  # as above

    # Settings.

    def decided_at(self) -> float:
        """Return the loop time at which a change of settings takes effect: that of the decision in the middle of which it comes."""
        deciding_at = self.queue.deciding_at
        return self.monotonic() if deciding_at is None else deciding_at

    def set_order(self, order: Order | Fair) -> None:
        """Put an order in force."""
        self.detach()
        self.queue.set_order(isolated(order))
        self.wake()

    def set_pacing(self, pacing: Pacing) -> None:
        """Put a pacing in force."""
        self.queue.pacing = pacing
        self.wake()

    def set_plan(self, plan: PolicyPlan, now: float | None = None) -> None:
        """Put rates in force, at once unless paused or shared; at loop time ``now`` if it is given."""
        if now is None:
            now = self.decided_at()
        self.rate = plan.rate
        self.limits.put(plan, now)
        if self.queue.gate is not None:
            self.keys.refresh(self.keys.limits, now)  # which knows how far apart the permits are
        if self.member is not None:
            self.member.set_rate(plan.rate)
        self._apply_rate(now)

    def set_key_limits(self, limits: KeyLimits) -> None:
        """Put limits of keys in force, or ask for the same ones anew."""
        self.detach()
        self.keys.refresh(limits, self.decided_at())
        self.wake()

    def set_max_concurrency(self, count: int | None) -> None:
        """Put a limit in force for what starts from now on."""
        if self.queue.is_halted:
            return
        self.max_concurrency = count
        self.queue.set_crowded(is_crowded=count is not None)
        self.wake()
        self.accounts.progress()

    def set_paused(self, *, is_paused: bool) -> None:
        """Stop starting, or go on."""
        self.is_paused = is_paused
        self._apply_rate(self.decided_at())

    def penalize(self, seconds: float, key: Any) -> None:
        """Start nothing for so long; nothing of one key, if it is not None."""
        self.detach()
        until_ns = self.moments.ns() + round(min(seconds, self.retries.penalty_max) * NS)
        if key is None:
            self.limits.penalize(until_ns)
        else:
            self.keys.penalize(key, until_ns)
        self._overloaded()
        self.wake()

    def halt(self) -> None:
        """Start nothing more, for good; also if a task asks for it in the middle of others."""
        self.detach()
        self.max_concurrency = 0
        self.queue.is_halted = True

    def _open_gate(self) -> None:
        self.detach()
        self.accounts.on_key_end = self.keys.ended

    def _overloaded(self) -> None:
        if self._adapting is not None:
            self._adapting.overloaded(self.decided_at())

    def _apply_rate(self, now: float) -> None:
        self.detach()
        rate = self.rate
        if self.is_paused:
            rate = _PAUSE
        elif self.member is not None and rate.is_zero:
            rate = _SHARED
        self.queue.set_rate(rate, now)
        self.wake()
        self.accounts.progress()

    def walk(self) -> Iterator[tuple[Any, Any]]:
        """Walk every task that waits: (source, position) or (None, record)."""
        self.settle()
        return self.queue.walk()
