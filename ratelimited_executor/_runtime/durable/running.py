"""Running durable tasks: claim what the permits will start soon, run it on an executor, and end the claims.

Five loops, of which each waits for the store by itself: the *pump* claims, the *beat* renews the lease, the *finisher* writes
how claims have ended, as many as have come at once, the *watch* wakes the pump when the store has changed, and *repeat* puts
what comes again. ``outcome_of`` decides what becomes of a claim.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from ratelimited_executor._core.durable.tasks import Claim, End, Outcome
from ratelimited_executor._core.rates import Rate
from ratelimited_executor._runtime.durable.outcomes import LeaseOverError, failure_of, outcome_of
from ratelimited_executor._runtime.durable.repeating import keep_placing
from ratelimited_executor._runtime.log import LOGGER, RateLimitedWarnings
from ratelimited_executor.exceptions import BacklogFullError, ExecutorStoppedError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from ratelimited_executor._core.durable.tasks import Claimed, Ref
    from ratelimited_executor._runtime.durable.codec import Codec
    from ratelimited_executor._runtime.durable.functions import DurableFunction
    from ratelimited_executor._runtime.durable.repeating import Repetition
    from ratelimited_executor._runtime.executor import RateLimitedExecutor
    from ratelimited_executor._runtime.handles import TaskHandle
    from ratelimited_executor._runtime.hooks import RandomNumbers
    from ratelimited_executor.abc import Clock, TaskStore

__all__ = ["DurableRunner", "DurableStatistics"]

_US: Final = 1_000_000
_WAITING_MAX: Final = 10_000  # claimed and not started, however fast tasks start: what is lost with the process
_WAITING_MIN: Final = 8  # claimed and not started, before it is known how fast tasks start
_KEY_WAITING_MAX: Final = 4  # of one key, where keys have limits: more of it are not claimed, and count for nothing
_MEASURE_SECONDS: Final = 0.25  # over which starts are counted
_LOOK_SECONDS: Final = 0.05  # between two looks for what is more important than what waits already
_SWEEP_SECONDS: Final = 5.0  # between two looks into a store that tells of nothing
_BACKOFF_SECONDS: Final = 0.1  # after the first attempt on a store that is away; then twice as long each time ...
_BACKOFF_PARTS: Final = 6  # ... up to a sixth of a lease: it is renewed as soon as the store is back
_OUTCOMES_MAX: Final = 1000  # of one transaction
_LOST_MAX: Final = 5
"""Claims of one task that may end with their process: with the next it becomes a dead letter, as it may be what kills them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableStatistics:
    """What one process has done with durable tasks since it began to run them.

    Attributes:
        waiting: claimed, and not started.
        running: started, and not ended.
        done: ended well.
        retried: attempts that failed, and are followed by another.
        dead: tasks that failed for the last time.
        released: given back unstarted, or not ended.
        expired: not started in time, and deleted; those included that no process had claimed.
        unknown: put aside, as their function is not registered here.
        lost: claims that were no longer in force when they ended: the task runs, or has run, once more.
    """

    waiting: int
    running: int
    done: int
    retried: int
    dead: int
    released: int
    expired: int
    unknown: int
    lost: int


class _Run:
    """One claim, from the claim to its end."""

    __slots__ = (
        "args",
        "claimed",
        "function",
        "handle",
        "is_given_up",
        "is_started",
        "is_unwanted",
        "is_void",
        "kwargs",
    )

    def __init__(self, claimed: Claimed, function: DurableFunction[Any, Any], args: Any, kwargs: Any) -> None:
        self.claimed = claimed
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.handle: TaskHandle[Any] | None = None
        self.is_started = False
        self.is_unwanted = False  # somebody has cancelled it
        self.is_given_up = False  # it was cancelled here, to be given back
        self.is_void = False  # the claim is no longer in force


class DurableRunner:
    """Runs the tasks of one queue on one executor; made by :meth:`DurableTasks.running`."""

    def __init__(
        self,
        store: TaskStore,
        executor: RateLimitedExecutor,
        *,
        queue: str,
        functions: Mapping[tuple[str, int], DurableFunction[Any, Any]],
        codec: Codec,
        lease: float,
        ahead: float,
        clock: Clock,
        numbers: RandomNumbers,
        owner: str,
        repetitions: Sequence[Repetition] = (),
    ) -> None:
        self._store = store
        self._executor = executor
        self._queue = queue
        self._functions = functions
        self._codec = codec
        self._lease = lease
        self._ahead = ahead
        self._clock = clock
        self._now = clock.monotonic
        self._repetitions = repetitions
        self._numbers = numbers
        self._owner = self._name = owner
        self._lives = 0  # leases so far
        self._renewed = self._now()
        self._held: dict[Ref, _Run] = {}
        self._keys: dict[str, int] = {}  # key -> claims of it that have not started
        self._waiting = 0
        self._spread_waiting = 0  # of each key as many as _KEY_WAITING_MAX at most
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._outcomes: list[Outcome] = []
        self._has_outcomes = asyncio.Event()
        self._unknown: set[tuple[str, int]] = set()
        self._is_closing = False
        self._is_leaving = False
        self._loops: list[asyncio.Task[None]] = []
        self._pump_task: asyncio.Task[None] | None = None
        self._low_mark = 0
        self._looked = self._now()  # for what is more important than what waits
        self._starts = 0
        self._starts_per_second = 0.0
        self._measured = self._now()
        self._counts = dict.fromkeys(("done", "retried", "dead", "released", "expired", "unknown", "lost"), 0)
        self._warnings = RateLimitedWarnings(self._now)

    def statistics(self) -> DurableStatistics:
        """Return what has been done so far."""
        return DurableStatistics(waiting=self._waiting, running=len(self._held) - self._waiting, **self._counts)

    async def _open(self) -> None:
        """Join the store, and begin to claim."""
        await self._join()
        await self._store.revive(self._queue, list(self._functions))
        loop = asyncio.get_running_loop()
        for work in (self._pump, self._finish, self._beat, self._watch, self._repeat):
            task = loop.create_task(self._guarded(work), name=f"durable tasks: {work.__name__[1:]}")
            task.add_done_callback(_report)
            self._loops.append(task)
        self._pump_task = self._loops.pop(0)

    async def _close(self, timeout: float | None) -> None:
        """Give back what has not started, wait for what runs, and leave the store.

        Args:
            timeout: seconds for which running tasks may go on; None for as long as they take.
        """
        self._is_closing = True
        self._wake.set()
        try:
            assert self._pump_task is not None
            await self._pump_task  # it ends by itself: a claim under way would be lost with it
            self._cancel(is_started=False)
            with anyio.move_on_after(timeout):
                await self._until_idle()
            self._cancel()
            await self._until_idle()
        finally:
            with anyio.CancelScope(shield=True):
                self._cancel()
                await self._leave()

    # What the loops do

    async def _pump(self) -> None:
        """Claim, until this process closes."""
        while not self._is_closing:
            self._wake.clear()
            room, above, timeout = self._room()
            if room > 0 and not self._executor.is_paused:
                try:
                    timeout = await self._claim(room, above)
                except (BacklogFullError, ExecutorStoppedError) as error:
                    self._warnings.warn("full", "durable tasks: %s takes no more: %s", self._executor.name, error)
                    timeout = _SWEEP_SECONDS
            if timeout == 0:
                await asyncio.sleep(0)
                continue
            with anyio.move_on_after(timeout):
                await self._wake.wait()

    async def _claim(self, room: int, above: float) -> float:
        """Claim tasks above a priority; return the seconds until it is worth to claim again."""
        full = frozenset(key for key, count in self._keys.items() if count >= _KEY_WAITING_MAX)
        claims = await self._store.claim(
            Claim(
                owner=self._owner,
                queue=self._queue,
                count=room,
                ahead_us=round(self._ahead * _US),
                unknown=frozenset(self._unknown),
                full_keys=full if self._has_key_limits() else frozenset(),
                above=above,
            )
        )
        if claims is None:
            await self._start_anew()
            return 0.0
        self._counts["expired"] += claims.expired_count
        for index, claimed in enumerate(claims.tasks):
            try:
                self._admit(claimed)
            except (BacklogFullError, ExecutorStoppedError):
                for left in claims.tasks[index:]:
                    self._end(Outcome(left.ref, End.RELEASED))
                raise
        if claims.next_in_us is None or above > -math.inf:
            return _SWEEP_SECONDS
        return min(_SWEEP_SECONDS, claims.next_in_us / _US) if claims.tasks or claims.next_in_us else 0.001

    def _admit(self, claimed: Claimed) -> None:
        """Hand a claimed task to the executor."""
        function = self._functions.get((claimed.name, claimed.version))
        if function is None:
            self._unknown.add((claimed.name, claimed.version))
            self._warnings.warn(
                f"unknown {claimed.name}", "durable tasks: %r, version %d, is not registered here: its tasks are put aside",
                claimed.name, claimed.version,
            )  # fmt: skip
            self._end(Outcome(claimed.ref, End.UNKNOWN))
            return
        if claimed.lost_count >= _LOST_MAX:
            text = f"{claimed.lost_count} processes were lost while they had it claimed"
            self._end(Outcome(claimed.ref, End.DEAD, error=text))
            return
        try:
            args, kwargs = self._codec.loads(claimed.body)
        except Exception as error:  # noqa: BLE001  # the codec is user code, and the body may be another codec's
            self._end(Outcome(claimed.ref, End.DEAD, error=f"its arguments cannot be read: {failure_of(error)}"))
            return
        run = _Run(claimed, function, args, kwargs)
        delay = claimed.in_us / _US
        if not 0 < delay <= self._ahead:  # beyond it the store's clock was set back after the task had become ready
            delay = 0.0
        expires = None if claimed.expires_in_us is None else claimed.expires_in_us / _US - delay
        if expires is not None and expires <= 0:
            self._end(Outcome(claimed.ref, End.GONE))
            return
        run.handle = self._executor.schedule(
            functools.partial(self._begin_in_thread if function.in_thread else self._begin, run),
            delay=delay,
            priority=claimed.priority,
            expires=expires,
            run_timeout=function.run_timeout,
            in_thread=function.in_thread,
            name=claimed.name,
            key=None if claimed.key is None else json.loads(claimed.key),
            cost=1 if claimed.cost is None else json.loads(claimed.cost),
            retry=None,
        )
        self._held[claimed.ref] = run
        self._note_waiting(run, 1)
        run.handle.add_done_callback(functools.partial(self._ended, run))

    def _begin(self, run: _Run) -> Any:
        """Start a task, on the loop."""
        self._started(run)
        self._check_lease()
        return run.function(*run.args, **run.kwargs)

    def _begin_in_thread(self, run: _Run) -> Any:
        assert run.handle is not None
        run.handle.get_loop().call_soon_threadsafe(self._started, run)
        self._check_lease()
        return run.function(*run.args, **run.kwargs)

    def _check_lease(self) -> None:
        """Begin nothing that another process may have been given: after a pause of this one, before its next beat."""
        if self._now() - self._renewed > self._lease:
            raise LeaseOverError

    def _started(self, run: _Run) -> None:
        if not run.is_started:
            run.is_started = True
            self._starts += 1
            self._note_waiting(run, -1)

    def _ended(self, run: _Run, handle: TaskHandle[Any]) -> None:
        """Decide what becomes of a task whose attempt has ended."""
        if not run.is_started:
            run.is_started = True
            self._note_waiting(run, -1)
        outcome = outcome_of(
            run.claimed,
            handle,
            retry=run.function.retry,
            is_unwanted=run.is_unwanted,
            is_given_up=run.is_given_up or self._executor.is_shutdown,
            now=self._now(),
            numbers=self._numbers,
        )
        if self._held.pop(run.claimed.ref, None) is not None and not run.is_void:
            self._end(outcome)
        if not self._held:
            self._idle.set()

    def _end(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._has_outcomes.set()

    async def _finish(self) -> None:
        """Write outcomes, until this process leaves: then what is left, if the store takes it."""
        while not self._is_leaving or self._outcomes:
            await self._has_outcomes.wait()
            if self._outcomes:
                await self._write_outcomes()

    async def _write_outcomes(self) -> None:
        batch = self._outcomes[:_OUTCOMES_MAX]
        ends = await self._store.finish(batch)
        del self._outcomes[: len(batch)]
        if not self._outcomes:
            self._has_outcomes.clear()
        for outcome, is_in_force in zip(batch, ends, strict=True):
            if is_in_force:
                self._counts[_COUNTED[outcome.end]] += 1
            else:
                self._counts["lost"] += 1
                self._warnings.warn(
                    "lost", "durable tasks: a claim was no longer in force when it ended: its task may run once more"
                )

    async def _beat(self) -> None:
        """Renew the lease, for ever."""
        while True:
            before = self._now()
            try:
                cancelled = await self._store.beat(self._owner)
            except StoreUnavailableError:
                if self._now() - self._renewed > self._lease:
                    self._cancel(is_started=False)  # others may have been given them
                raise
            self._renewed = before
            if cancelled is None:
                await self._start_anew()
            for ref in cancelled or ():
                run = self._held.get(ref)
                if run is not None:
                    run.is_unwanted = True
                    assert run.handle is not None
                    run.handle.cancel()
            await asyncio.sleep(self._lease / 3)

    async def _watch(self) -> None:
        """Wake the pump whenever the store has changed, for ever."""
        while True:
            await self._store.wait(_SWEEP_SECONDS)
            self._wake.set()

    async def _repeat(self) -> None:
        """Put occurrences of repetitions, for ever."""
        await keep_placing(self._store, self._repetitions, self._clock)

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do work to its end, again after exceptions of the store, as long as this process does not leave."""
        backoff = _BACKOFF_SECONDS
        while True:
            began = self._now()
            try:
                await work()
            except StoreUnavailableError as error:
                self._warnings.warn("store", "durable tasks: %s; trying again", error)
            else:
                return
            if self._is_leaving:
                return
            if self._now() - began > self._lease:
                backoff = _BACKOFF_SECONDS
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, self._lease / _BACKOFF_PARTS)

    # Parts of them

    async def _join(self) -> None:
        self._lives += 1
        self._owner = f"{self._name}-{self._lives}"
        await self._store.join(self._owner, round(self._lease * _US))
        self._renewed = self._now()

    async def _start_anew(self) -> None:
        """Join again after the lease has ended: whatever is held was given to others, or will be."""
        LOGGER.warning(
            "durable tasks: the lease of this process has ended, as it stood still or the store was away for %g s; what it "
            "ran is cancelled, and runs again", self._lease,
        )  # fmt: skip
        for run in self._held.values():
            run.is_void = True
        self._cancel()
        await self._join()

    async def _leave(self) -> None:
        """Write what is left to write, and give back what is still claimed."""
        with anyio.move_on_after(self._lease):
            await self._until_idle()
        self._is_leaving = True
        self._has_outcomes.set()
        for loop in self._loops[1:]:  # the finisher ends by itself: what it is writing would be written twice
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)  # they have reported their own errors
        try:
            await self._store.leave(self._owner)
        except StoreUnavailableError as error:
            LOGGER.warning(
                "durable tasks: cannot leave: %s; what is claimed is given to others within %g s", error, self._lease
            )

    async def _until_idle(self) -> None:
        while self._held:
            self._idle.clear()
            await self._idle.wait()

    def _cancel(self, *, is_started: bool = True) -> None:
        """Cancel what is held; only what has not started, if that is so."""
        for run in list(self._held.values()):
            if run.handle is not None and (is_started or not run.is_started):
                run.is_given_up = True
                run.handle.cancel()

    def _note_waiting(self, run: _Run, change: int) -> None:
        self._waiting += change
        key = run.claimed.key
        count = 0
        if key is not None:
            count = self._keys.get(key, 0) + change
            if count:
                self._keys[key] = count
            else:
                del self._keys[key]
        if max(count, count - change) <= _KEY_WAITING_MAX:
            self._spread_waiting += change
        if change < 0 and (self._waiting <= self._low_mark or count == _KEY_WAITING_MAX - 1):
            self._wake.set()

    def _room(self) -> tuple[int, float, float]:
        """Return how many tasks to claim, above which priority, and if none, after how many seconds to ask again.

        As many as will start soon, by the pace of late; while more than half of them wait, only what is more important than
        the least important of these, and not too often.
        """
        now = self._now()
        if now - self._measured >= _MEASURE_SECONDS:
            self._starts_per_second += ((self._starts / (now - self._measured)) - self._starts_per_second) / 2
            self._starts, self._measured = 0, now
        concurrency = self._executor.max_concurrency
        least = _WAITING_MIN if concurrency is None else min(_WAITING_MIN, concurrency) + 1
        most = min(float(_WAITING_MAX), *(self._permits_ahead(rate) for rate in self._executor.rates))
        target = math.ceil(min(most, max(least, 2 * self._ahead * self._starts_per_second)))
        self._low_mark = target // 2
        waiting = self._spread_waiting if self._has_key_limits() else self._waiting
        if waiting <= self._low_mark:
            return target - waiting, -math.inf, _SWEEP_SECONDS
        if self._waiting >= 2 * target:
            return 0, 0.0, _SWEEP_SECONDS
        if now < self._looked + _LOOK_SECONDS:
            return 0, 0.0, _LOOK_SECONDS
        self._looked = now
        least_important = min(run.claimed.priority for run in self._held.values() if not run.is_started)
        return self._low_mark + 1, least_important, _SWEEP_SECONDS

    def _permits_ahead(self, rate: Any) -> float:
        per_second = rate.per_second if isinstance(rate, Rate) else None
        return math.inf if per_second is None else math.ceil(self._ahead * per_second) + 1

    def _has_key_limits(self) -> bool:
        return self._executor.key_rate is not None or self._executor.key_concurrency is not None


def _report(loop: asyncio.Task[None]) -> None:
    """Tell of an internal error, which ends a loop: nothing would be claimed, or finished, any more."""
    if not loop.cancelled() and (error := loop.exception()) is not None:
        context = {"message": f"internal error in {loop.get_name()}", "exception": error, "task": loop}
        loop.get_loop().call_exception_handler(context)


_COUNTED: Final = {
    End.DONE: "done",
    End.RETRY: "retried",
    End.DEAD: "dead",
    End.RELEASED: "released",
    End.UNKNOWN: "unknown",
    End.GONE: "expired",
}
