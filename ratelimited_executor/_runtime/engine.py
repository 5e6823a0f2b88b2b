"""The engine of one executor: takes due tasks from the queue, starts them, and schedules its next run.

A task is accepted by :meth:`Engine.add` or a similar method, waits in the queue (``_core/queue.py``), is started by
``starting.py`` and ended by ``accounts.py``::

    add() -> queue.add...() -> [pull() -> take()] -> Starter.start_one() -> Coroutines.start() -> Accounts.done()
                 ^                 run()                                                         |
                 +---------------------------------- Retries.again() ----------------------------+

Features that few executors need are separate parts: limits, keys, retries, backlog, adapting. ``controls.py`` changes
settings, ``pending.py`` removes waiting tasks, and ``assembly.py`` assembles the parts.

Faces and handles use the engine by the protocol ``intake.Intake``, its runner by ``runner.Runnable``.

Work is done in slices, so that it never blocks the loop's I/O for more than a few milliseconds, however much is due.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import EngineFields
from ratelimited_executor._kernel.sizes import CROWD_COUNT, START_COUNT_MAX
from ratelimited_executor._runtime.accounts import Accounts
from ratelimited_executor._runtime.callbacks import DoneCallbacks
from ratelimited_executor._runtime.contexts import SharedContexts
from ratelimited_executor._runtime.limits import Limits
from ratelimited_executor._runtime.pending import Pending
from ratelimited_executor._runtime.starting import Starter

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.limits.combined import CombinedPermits
    from ratelimited_executor._core.queue import TaskQueue
    from ratelimited_executor._kernel.buckets import Bucket
    from ratelimited_executor._runtime.adapting import Adapting
    from ratelimited_executor._runtime.clock import Moments
    from ratelimited_executor._runtime.handles import TaskHandle
    from ratelimited_executor._runtime.runner import Runner
    from ratelimited_executor._runtime.settings import Settings

__all__ = ["Engine"]


class Engine(EngineFields):
    """Accepts the tasks of one executor, and runs them as its queue decides.

    Args:
        name: the name of the executor, for reports of failures.
        queue: the queue of its tasks.
        settings: the initial settings: plan, threads and concurrency.
        combined: the limits that the queue asks; None if the plan is a single grid of permits.
        member: the executor's membership in a group that shares the rate; None without one.
        runner: the manager's interval runner.
        moments: the clock and the timeline.
        warn: logs a warning, as ``RateLimitedWarnings.warn`` does.

    Attributes:
        adapting: adapts the rate, whenever every task that may start has started; None for a fixed rate.
        starter: calls the functions of tasks.
        coroutines: run the coroutines that these functions return.
    """

    accounts: Accounts
    adapting: Adapting | None
    contexts: SharedContexts
    queue: TaskQueue

    def __init__(
        self,
        name: str,
        queue: TaskQueue,
        *,
        settings: Settings,
        combined: CombinedPermits | None,
        member: Any,
        runner: Runner,
        moments: Moments,
        warn: Callable[..., None],
    ) -> None:
        self.loop = runner.loop
        self.monotonic = moments.monotonic
        self.queue = queue
        self.is_coarse = queue.timeline.loop_time is not None
        self.armed = math.inf  # loop time of the next run, as the runner knows it
        self.accounts = accounts = Accounts(name, self.loop, queue, max_concurrency=settings.max_concurrency)
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
            warn=warn,
            collected=runner.collected_seconds,
        )
        self.limits = Limits(
            settings.plan,
            combined,
            queue=queue,
            moments=moments,
            accounts=accounts,
            wake=self.wake,
            budget=None if member is None else member.budget,
        )
        self.pending = Pending(queue, accounts, wake=self.wake)
        self.callbacks = DoneCallbacks(self.loop)
        self.adapting = None
        self._member = member
        self._runner = runner
        self._wall = moments.wall
        self._is_full = False  # True if max_concurrency ended the last run: the end of a task lets another start
        accounts.on_free = self._freed
        queue.chores.on_added = self.wake
        queue.on_time.owner = self
        runner.engines.add(self)

    # Time.

    def now(self) -> float:
        """Return the loop time, and open its interval."""
        now = self.monotonic()
        if now >= self.queue.end:
            self.accounts.settle()
            self.queue.enter(now, self._wall())
        return now

    def wake_for(self, due: float) -> None:
        """Schedule a run no later than a task due at loop time ``due`` requires."""
        if due >= self.queue.end:
            due = min(self.queue.on_time.opening_time(), self.queue.spread.next_start(), due)
        if due < self.armed:
            self._runner.arm(self, due)

    def wake(self) -> None:
        """Schedule a run in this loop iteration, because a setting has changed."""
        self.accounts.is_changed = True
        self._runner.arm(self, -math.inf)

    @two_bodies
    def _freed(self) -> None:
        """Schedule a run if ``max_concurrency`` held back starts: a place is free."""
        if self._is_full:
            self.wake()

    # Adding.

    def add(self, record: TaskHandle[Any]) -> None:
        """Accept a record, due at its own time."""
        self.accounts.accept()
        self.queue.add_record(record)
        if record._due < self.armed:
            self.wake_for(record._due)

    def add_immediate(self, record: TaskHandle[Any]) -> None:
        """Accept a record due now."""
        accounts = self.accounts
        accounts.accept()
        accounts.is_changed = True
        self.queue.add_immediate(record)
        if record._due < self.armed:
            self.wake_for(record._due)

    def add_call_ready(self, now: float, call: Any, args: Any, context: Any) -> tuple[Bucket, int]:
        """Accept a task without a record that is due now; return its bucket and its place there."""
        accounts = self.accounts
        accounts.accept()
        accounts.is_changed = True
        place = self.queue.on_time.add_call_ready(now, call, args, context)
        if now < self.armed:
            self.wake_for(now)
        return place

    # Running.

    @two_bodies
    def run(self, stop: float) -> float:
        """Start due tasks, until loop time ``stop`` at most; return the loop time of the next run."""
        queue, accounts = self.queue, self.accounts
        if queue.is_halted:
            return math.inf
        self._is_full = False
        now = self.monotonic()
        if now >= queue.end:
            now = self.now()
        begin = now
        accounts.is_changed = False
        taken: Any = None
        most = accounts.max_concurrency
        if most is None or len(accounts.running) + len(accounts.holding) < most:  # has_place() inlined
            taken = queue.take_lone(now)
        start_count = 0
        if taken is not None:
            source, item = taken
            now = self.starter.start_one(source, item, now)
            taken = source = item = None  # else a traceback keeps this frame, and so the handle and its error
            if now >= queue.end:
                now = self.now()
            if now >= stop:
                return now
            if not accounts.is_changed:
                self._is_full = most is not None and len(accounts.running) + len(accounts.holding) >= most
                return self._rest(now, begin, 1)
            start_count = 1
        return self._run_on(now, begin, stop, start_count)

    @two_bodies
    def _run_on(self, now: float, begin: float, stop: float, start_count: int) -> float:
        """Continue on the slow path: start every task that may start, in the order that the queue decides."""
        queue, accounts = self.queue, self.accounts
        while True:
            accounts.is_changed = False
            is_done = queue.pull(now)
            queue.expire(now)
            while (taken := self._take(now)) is not None:
                started_before = accounts.started_count
                now = self._start(taken, now, stop)
                taken = None  # else a traceback keeps this frame, and so the handle and its error
                start_count += accounts.started_count - started_before
                if now >= stop or start_count >= START_COUNT_MAX:
                    return now
                if accounts.is_changed:  # a new task may precede those that are ready
                    is_done = False
                    break
            if is_done:
                return self._rest(now, begin, start_count)
            start_count += 1
            now = self.now()
            if now >= stop or start_count >= START_COUNT_MAX:
                return now

    def _take(self, now: float) -> Any:
        """Take the tasks that start now; None if there are none, or no place is free."""
        accounts = self.accounts
        if accounts.max_concurrency is None:
            return self.queue.take(now, UNLIMITED)
        if accounts.has_place():
            return self.queue.take(now, 1)
        self._is_full = True
        return None

    def _start(self, taken: Any, now: float, stop: float) -> float:
        """Start the taken tasks, and return the time afterwards."""
        queue = self.queue
        if taken is queue.stretch:
            now = self.starter.start_many(taken, now, stop)
        else:
            source, item = taken
            now = self.starter.start_one(source, item, now)
            del source, item  # else a traceback keeps this frame, and so the handle and its error
        del taken
        return now if now < queue.end else self.now()

    @two_bodies
    def _rest(self, now: float, begin: float, start_count: int) -> float:
        """Finish a run in which every task that may start has started; return the loop time of the next run."""
        queue = self.queue
        queue.rest()
        if self.adapting is not None:
            self.adapting.rest(now)
        if self.accounts.on_room is not None:
            self.accounts.on_room()
        if self._member is not None:
            self._member.look(now)
        wake = -math.inf if self._is_full else queue.next_lone_wake(now)
        if wake == -math.inf:
            wake = queue.next_wake(now, may_start=not self._is_full)
        # Tasks that became due during this run wait for the next wake-up: looking for each costs more than its start.
        runner = self._runner
        earliest = runner.earliest
        if queue.is_unlimited:
            crowded = begin + (runner.precision_unlimited if start_count < CROWD_COUNT else runner.precision_crowded)
            if crowded > earliest:  # noqa: PLR1730  # every wake-up passes here
                earliest = crowded
        if wake == math.inf or queue.is_forgetting:
            self.accounts.notify_waiters()  # a waiter for the end may find that nothing can continue
        return wake if wake > earliest else earliest  # noqa: FURB136  # every wake-up passes here
