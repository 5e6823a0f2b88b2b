"""The engine of one executor: takes due tasks from the queue, starts them, and schedules its next run.

A task is accepted by :meth:`Engine.add` or a similar method, waits in the queue (``_core/queue/queue.py``), is started
by ``_runtime/task/starting.py`` and ended by ``_runtime/task/accounts.py``::

    add() -> queue.add...() -> run(): queue.poll() -> Starter.start_one() -> Coroutines.start() -> Accounts.done()
                 ^                                                                                 |
                 +---------------------------------- Retries.again() ------------------------------+

Features that few executors need are separate parts: limits, keys, retries, backlog, adapting. ``controls.py`` changes
settings, ``_runtime/task/pending.py`` removes waiting tasks, and ``assembly.py`` assembles the parts.

Faces and handles use the engine by the protocol ``intake.Intake``, its runner by ``runner.Runnable``.

Work is done in slices, so that it never blocks the loop's I/O for more than a few milliseconds, however much is due.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import EngineFields
from ratelimited_executor._kernel.sizes import CROWD_COUNT, START_COUNT_MAX
from ratelimited_executor._runtime.limits.limits import Limits
from ratelimited_executor._runtime.task.accounts import Accounts
from ratelimited_executor._runtime.task.callbacks import DoneCallbacks
from ratelimited_executor._runtime.task.contexts import SharedContexts
from ratelimited_executor._runtime.task.pending import Pending
from ratelimited_executor._runtime.task.starting import Starter

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.limits.combined import CombinedPermits
    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._kernel.buckets import Bucket
    from ratelimited_executor._runtime.life.settings import Settings
    from ratelimited_executor._runtime.limits.adapting import Adapting
    from ratelimited_executor._runtime.task.handles import TaskHandle
    from ratelimited_executor._runtime.time.clock import Moments
    from ratelimited_executor._runtime.time.runner import Runner

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
    starter: Starter
    _runner: Runner

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
            self.accounts.catch_up()
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
        self.queue.is_changed = True
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
        self.accounts.accept()
        self.queue.is_changed = True
        self.queue.add_immediate(record)
        if record._due < self.armed:
            self.wake_for(record._due)

    def add_call_ready(self, now: float, call: Any, args: Any, context: Any) -> tuple[Bucket, int]:
        """Accept a task without a record that is due now; return its bucket and its place there."""
        self.accounts.accept()
        self.queue.is_changed = True
        place = self.queue.on_time.add_call_ready(now, call, args, context)
        if now < self.armed:
            self.wake_for(now)
        return place

    # Running.

    @two_bodies
    def run(self, now: float, stop: float) -> float:
        """Start due tasks from loop time ``now`` until ``stop`` at most; return the loop time of the next run."""
        queue, accounts = self.queue, self.accounts
        if queue.is_halted:
            return math.inf
        if now >= queue.end:
            now = self.now()
        begin = now
        self._is_full = False
        queue.is_changed = True
        start_count = 0
        while True:
            started_before = accounts.started_count
            room = accounts.room()
            taken = queue.poll(now, room)
            if taken is not None:
                now = self._start(taken, now, stop)
                del taken  # else a traceback keeps this frame, and so the handle and its error
                start_count += accounts.started_count - started_before
            elif queue.wake_at > -math.inf:
                self._is_full = not room
                return self._rest(now, begin, start_count)
            else:  # the step counts as a start
                now = self.now()
                start_count += 1
            if now >= stop or start_count >= START_COUNT_MAX:
                return now

    def _start(self, taken: Any, now: float, stop: float) -> float:
        """Start the taken tasks, and return the time afterwards."""
        if taken is self.queue.stretch:
            now = self.starter.start_many(taken, now, stop)
        else:
            now = self.starter.start_one(taken[0], taken[1], now)
        del taken  # as in run()
        return now if now < self.queue.end else self.now()

    def _rest(self, now: float, begin: float, start_count: int) -> float:
        """Finish a run in which every task that may start has started; return the loop time of the next run."""
        queue, runner = self.queue, self._runner
        queue.rest()
        if self.adapting is not None:
            self.adapting.rest(now)
        if self.accounts.on_room is not None:
            self.accounts.on_room()
        if self._member is not None:
            self._member.look(now)
        wake = -math.inf if queue.is_changed else queue.wake_at
        earliest: float = runner.earliest
        if queue.is_unlimited:  # tasks that became due meanwhile wait: looking for each costs more than its start
            precision = runner.precision_unlimited if start_count < CROWD_COUNT else runner.precision_crowded
            earliest = max(earliest, begin + precision)
        if wake == math.inf or queue.is_forgetting:
            self.accounts.notify_waiters()  # a waiter for the end may find that nothing can continue
        return max(wake, earliest)
