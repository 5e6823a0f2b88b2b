"""The machine of one executor: it asks its queue what starts, has that started, and says when to ask again.

A task comes in by :meth:`Engine.add` or one of its kin, waits in the queue (``_core/queue.py``), is started by
``starting.py`` and ended by ``accounts.py``::

    add() -> queue.add...() -> [pull() -> take()] -> Starter.start_one() -> Coroutines.start() -> Accounts.done()
                 ^                 run()                                                         |
                 +---------------------------------- Retries.again() ----------------------------+

What few executors need stands beside that way, each in a part of its own: limits, keys, retries, backlog, adapting. Settings
are changed by ``controls.py``, what waits is taken out by ``pending.py``, and all is put together by ``assembly.py``.

Faces and handles see of the engine what ``intake.Intake`` declares, and its runner what ``runner.Runnable`` does.

Work goes in slices, so that the loop's I/O is never held for more than a few milliseconds by ours, whatever is due.
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
    """One executor at work: it takes tasks in, and runs them as its queue decides.

    Args:
        name: of the executor, for reports of failures.
        queue: where its tasks wait.
        settings: how it begins: its plan, threads and concurrency.
        combined: what the queue asks, if the plan is more than one grid of permits.
        member: its part in a group that shares the rate; None without.
        runner: the manager's interval runner.
        moments: the time.
        warn: logs a warning, as ``RateLimitedWarnings.warn`` does.

    Attributes:
        adapting: is told whenever all has started that may; None if the rate does not adapt.
        starter: calls the functions of tasks.
        coroutines: run what these leave to be awaited.
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
        self._is_full = False  # whether the last run ended for lack of a place: the end of a task may let another start
        accounts.on_free = self._freed
        queue.chores.on_added = self.wake
        queue.on_time.owner = self
        runner.engines.add(self)

    # Time.

    def now(self) -> float:
        """Return the loop time, and begin the interval that it lies in."""
        now = self.monotonic()
        if now >= self.queue.end:
            self.accounts.settle()
            self.queue.enter(now, self._wall())
        return now

    def wake_for(self, due: float) -> None:
        """Ask the runner to look at the queue no later than the interval of ``due`` demands."""
        if due >= self.queue.end:
            due = min(self.queue.on_time.opening_time(), self.queue.spread.next_start(), due)
        if due < self.armed:
            self._runner.arm(self, due)

    def wake(self) -> None:
        """Ask the runner to look at the queue in this turn of the loop, because a setting has changed."""
        self.accounts.is_changed = True
        self._runner.arm(self, -math.inf)

    def _freed(self) -> None:
        """Continue, if nothing could start for lack of a place: one is free."""
        if self._is_full:
            self.wake()

    # Adding.

    def add(self, record: TaskHandle[Any]) -> None:
        """Accept a record due at a time of its own."""
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
        """Accept a task without a record that is due now, and return where it lies."""
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
        """Start what is due, until loop time ``stop`` at most; return the loop time at which to be run again."""
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
        if most is None or len(accounts.running) + len(accounts.holding) < most:  # has_place() without a call
            taken = queue.take_lone(now)
        start_count = 0
        if taken is not None:
            source, item = taken
            now = self.starter.start_one(source, item, now)
            taken = source = item = None  # else a traceback keeps this frame, and so the handle, and so the error
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
        """Continue the long way: start all that may start, in the order that the queue decides."""
        queue, accounts = self.queue, self.accounts
        while True:
            accounts.is_changed = False
            is_done = queue.pull(now)
            queue.expire(now)
            while (taken := self._take(now)) is not None:
                started_before = accounts.started_count
                now = self._start(taken, now, stop)
                taken = None  # as in run()
                start_count += accounts.started_count - started_before
                if now >= stop or start_count >= START_COUNT_MAX:
                    return now
                if accounts.is_changed:  # what was added may go before what is ready
                    is_done = False
                    break
            if is_done:
                return self._rest(now, begin, start_count)
            start_count += 1
            now = self.now()
            if now >= stop or start_count >= START_COUNT_MAX:
                return now

    def _take(self, now: float) -> Any:
        """Take what starts now; None if nothing does, or no place is free."""
        accounts = self.accounts
        if accounts.max_concurrency is None:
            return self.queue.take(now, UNLIMITED)
        if accounts.has_place():
            return self.queue.take(now, 1)
        self._is_full = True
        return None

    def _start(self, taken: Any, now: float, stop: float) -> float:
        """Start what was taken, and return the time afterwards."""
        queue = self.queue
        if taken is queue.stretch:
            now = self.starter.start_many(taken, now, stop)
        else:
            source, item = taken
            now = self.starter.start_one(source, item, now)
            del source, item  # as in run()
        del taken
        return now if now < queue.end else self.now()

    @two_bodies
    def _rest(self, now: float, begin: float, start_count: int) -> float:
        """Return when to be run again: all that may start has started."""
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
        # What became due while others started waits for the next wake-up: to look for each would cost more than to start it.
        runner = self._runner
        earliest = runner.earliest
        if queue.is_unlimited:
            crowded = begin + (runner.precision_unlimited if start_count < CROWD_COUNT else runner.precision_crowded)
            if crowded > earliest:  # noqa: PLR1730  # this is the path of every wake-up
                earliest = crowded
        if wake == math.inf or queue.is_forgetting:
            self.accounts.progress()  # who waits for the end may see that nothing continues
        return wake if wake > earliest else earliest  # noqa: FURB136  # as above
