"""The runner of durable tasks: claims those that can start soon, runs them on an executor, and ends the claims.

Five loops use the store independently: the *pump* claims tasks, the *beat* renews the lease, the *finisher* writes the
ends of claims in batches, the *watch* wakes the pump when the store has changed, and asks for cancelled claims when some
task that was claimed has been cancelled, and *repeat* puts the occurrences of repetitions. ``outcome_of`` decides how a
claim ends.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from ratelimited_executor._core.durable.pauses import pause_of
from ratelimited_executor._core.durable.tasks import SIZE_MAX, Claim, Claims, End, TaskOutcome, key_from
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._runtime.durable.counting import EndCounts
from ratelimited_executor._runtime.durable.fairness import Fairness
from ratelimited_executor._runtime.durable.lease import Lease
from ratelimited_executor._runtime.durable.outcomes import LeaseOverError, failure_of, kept_of, outcome_of
from ratelimited_executor._runtime.durable.repeating import Placing
from ratelimited_executor._runtime.durable.run import DurableRun
from ratelimited_executor._runtime.durable.saving import Saving
from ratelimited_executor._runtime.durable.starting import Starting
from ratelimited_executor._runtime.log import LOGGER, RateLimitedWarnings
from ratelimited_executor.exceptions import BacklogFullError, ExecutorStoppedError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping

    from ratelimited_executor._core.durable.pauses import Pause
    from ratelimited_executor._core.durable.tasks import Claimed, Ref
    from ratelimited_executor._runtime.durable.around import Around
    from ratelimited_executor._runtime.durable.counting import DurableStatistics
    from ratelimited_executor._runtime.durable.functions import DurableFunction
    from ratelimited_executor._runtime.durable.repeating import Repetitions
    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor
    from ratelimited_executor._runtime.time.hooks import RandomNumbers
    from ratelimited_executor.abc import Clock, TaskStore

__all__ = ["AHEAD_MAX", "DurableRunner"]

_Bound: TypeAlias = tuple[float, int | None]  # ``above`` and ``before_us`` of a claim
_ALL: Final[_Bound] = (-math.inf, None)

AHEAD_MAX: Final = 60.0
"""Seconds; a task that is due later was READY before the store's clock was set back, and starts at once."""
_US: Final = 1_000_000
_END_DONE: Final = End.DONE  # enum members are slow to look up
_WAITING_MAX: Final = 10_000  # claimed, unstarted tasks at most, however fast tasks start: lost with the process
_WAITING_SIZE_MAX: Final = (
    64 * 1024 * 1024
)  # bytes of their arguments; no more are claimed until half of it has started
_WAITING_MIN: Final = 8  # claimed, unstarted tasks before the pace of starts is known
_KEY_WAITING_MAX: Final = 4  # unstarted claims of a key, if keys have limits: no more are claimed, or count as waiting
_KEYS_SECONDS: Final = 0.25  # between two checks of the limits of keys
_MEASURE_SECONDS: Final = 0.25  # over which starts are counted
_LOOK_SECONDS: Final = 0.005  # between two claims of tasks that precede the last waiting one ...
_LOOK_SECONDS_EACH: Final = 5e-6  # ... and in addition for each waiting task, which must be searched for the last one
_SWEEP_SECONDS: Final = 5.0  # between two claims from a store that reports no change
_FULL_SECONDS: Final = 0.5  # until an executor that is paused or full is tried again
_BACKOFF_SECONDS: Final = 0.1  # after the first failure of the store, doubled after each further one ...
_BACKOFF_PARTS: Final = 6  # ... up to a sixth of the lease, so that it is renewed as soon as the store is back
_CLAIM_MAX: Final = 500  # in one transaction: the event loop admits this many without a pause
_OUTCOMES_MAX: Final = 1000  # in one transaction
_BLAMED_MAX: Final = 5
"""Processes that one task may lose after starts that were recorded: then it is a dead letter, as it may kill processes.

The first loss of a task does not count: it may not have started.
"""


class DurableRunner:
    """Runs the tasks of one queue on one executor; created by :meth:`DurableTasks.running`."""

    def __init__(
        self,
        store: TaskStore,
        executor: RateLimitedExecutor,
        *,
        queue: str,
        functions: Mapping[tuple[str, int], DurableFunction[Any, Any]],
        lease: float,
        ahead: float,
        clock: Clock,
        numbers: RandomNumbers,
        owner: str,
        repetitions: Repetitions,
        around: Around | None,
    ) -> None:
        self._store = store
        self._executor = executor
        self.around = around
        self._queue = queue
        self._functions = functions
        self._ahead = ahead
        self._now = clock.monotonic
        self._wall = clock.wall
        self._numbers = numbers
        self._lease = Lease(store, owner, lease, clock.monotonic)
        self._saving = Saving(store)
        self._starting = Starting(store)
        self._placing = Placing(store, repetitions, clock, lambda: self._lease.owner, lease)
        self._has_ended = False  # True if an occurrence of a repetition has ended, and its end is not written
        self._held: dict[Ref, DurableRun] = {}
        self._fairness = Fairness(executor, self._held.values(), clock.monotonic)
        self._unwanted: dict[str, int] = {}  # id that was cancelled here -> the number of claims sent before
        self._cancel_count = 0  # the store's number of cancellations when it was last asked for them
        self._keys: dict[str, int] = {}  # key -> its unstarted claims
        self._waiting = 0
        self._waiting_size = 0  # bytes of the arguments of unstarted tasks
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._outcomes: list[tuple[TaskOutcome, str]] = []  # each with the name of the function
        self._has_outcomes = asyncio.Event()
        self._unknown: set[tuple[str, int]] = set()
        self._is_closing = False
        self._is_leaving = False
        self._loops: list[asyncio.Task[None]] = []
        self._pump_task: asyncio.Task[None] | None = None
        self._low_mark = 0
        self._looked = self._now()  # loop time of the last claim of tasks that precede waiting ones
        self._start_count = 0
        self._claim_start_count = 0  # at the last claim
        self._starts_per_second = 0.0
        self._measured = self._now(), 0  # loop time, and the starts until then
        self._ends = EndCounts()
        self._warnings = RateLimitedWarnings(self._now)
        self._error_count = 0  # of the store, in all loops, since it answered last
        self._error_count_before = 0  # at the last beat

    def statistics(self) -> DurableStatistics:
        """Return the counts so far."""
        return self._ends.statistics(waiting=self._waiting, running=len(self._held) - self._waiting)

    async def _open(self) -> None:
        """Join the store, and begin to claim."""
        await self._lease.begin()
        await self._revive()
        await self._placing.look()  # before the first claim: it may replace what waits
        self._pump_task = self._begin(self._pump)  # first, as others look at it, perhaps at once
        self._loops += map(self._begin, (self._finish, self._beat, self._watch, self._repeat))

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guarded(work), name=f"durable tasks: {work.__name__[1:]}")
        task.add_done_callback(_report)
        return task

    async def _close(self, timeout: float | None) -> None:
        """Release unstarted tasks, wait for running ones, and leave the store.

        Args:
            timeout: seconds for which running tasks may continue; None for as long as they take.
        """
        self._is_closing = True
        self._wake.set()
        self._placing.stop()  # a process that leaves declares no repetitions
        try:
            assert self._pump_task is not None
            await self._pump_task  # not cancelled: an in-flight claim would be lost
            self._cancel(DurableRun.stop)
            with anyio.move_on_after(timeout):
                await self._until_idle()
            self._cancel()
            await self._until_idle()
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    self._cancel()
                    await self._leave()
            finally:
                for loop in self._loops:  # even if cancelled again: a lease renewed forever would never end
                    loop.cancel()

    # The loops

    async def _pump(self) -> None:
        """Claim, until this process closes."""
        while not self._is_closing:
            if not await self._lease.settle(self._claims):
                await self._start_anew()
            self._wake.clear()
            room, bound, timeout = self._room()
            if not self._is_taking():
                timeout = min(timeout, _FULL_SECONDS)
            elif room > 0 and self._waiting_size <= _WAITING_SIZE_MAX // 2:
                try:
                    timeout = min(timeout, await self._claim(room, bound))
                except (BacklogFullError, ExecutorStoppedError) as error:
                    self._warnings.warn(
                        "full", "durable tasks: %s accepts no more tasks: %s", self._executor.name, error
                    )
                    timeout = _FULL_SECONDS
                    await asyncio.sleep(timeout)  # not _wake: the released tasks would set it at once
            if timeout == 0:
                await asyncio.sleep(0)
                continue
            with anyio.move_on_after(timeout):
                await self._wake.wait()

    async def _claim(self, room: int, bound: _Bound) -> float:
        """Claim tasks, and hand them to the executor; return the seconds until the next claim is worthwhile.

        While the store works on the next claim, this process admits the tasks of the last. Only a claim in turn waits for that,
        as it depends on them.
        """
        space = _WAITING_SIZE_MAX - self._waiting_size
        share = 0.0
        asked = self._asked(room, bound, space)
        self._unwanted.clear()  # no claim is under way
        claims = await self._lease.claim(asked)
        while True:
            number = self._lease.claim_count
            if not self._lease.is_of(asked.owner):
                return 0.0  # the lease has ended meanwhile, which released the claims
            if claims is None:
                await self._start_anew()
                return 0.0
            room -= len(claims.tasks)
            space -= sum(task.size for task in claims.tasks)
            following: Awaitable[Claims | None] | None = None
            is_in_turn = asked.turns is not None
            is_more = claims.next_in_us == 0 and room > 0 and space > 0 and bound == _ALL
            if is_more and self._is_taking() and not is_in_turn and not self._has_key_limits():
                asked = self._asked(room, bound, space)
                following = asyncio.get_running_loop().create_task(self._lease.claim(asked))
                await asyncio.sleep(0)  # for its first step
            try:
                if self._lease.is_of(asked.owner):
                    self._admit_all(claims, number)
            except (BacklogFullError, ExecutorStoppedError):
                if following is not None:
                    self._release((await following) or Claims())
                raise
            if is_in_turn:
                self._fairness.note(claims.tasks)
                share = self._fairness.next_share(share, room) if is_more and self._is_taking() else math.inf
                if share < math.inf:
                    asked = self._asked(room, bound, space, share)
                    following = self._lease.claim(asked)
            if following is None:
                break
            claims = await following
        if claims.next_in_us is None:
            return _SWEEP_SECONDS
        if claims.tasks or claims.next_in_us:
            return min(_SWEEP_SECONDS, claims.next_in_us / _US)
        return _SWEEP_SECONDS if is_in_turn and bound != _ALL else 0.001  # what is ready may follow what waits here

    def _is_taking(self) -> bool:
        return not (self._is_closing or self._executor.is_paused or self._executor.is_shutdown)

    def _asked(self, room: int, bound: _Bound, space: int, share: float = 0.0) -> Claim:
        above, before_us = bound
        count = min(room, _CLAIM_MAX)
        full = frozenset(key for key, count in self._keys.items() if count >= _KEY_WAITING_MAX)
        return Claim(
            owner=self._lease.owner, queue=self._queue, count=count, ahead_us=round(self._ahead * _US),
            unknown=frozenset(self._unknown), full_keys=full if self._has_key_limits() else frozenset(), above=above,
            before_us=before_us, size=min(space, SIZE_MAX),
            turns=self._fairness.turns(share=share, above=above, count=count),
        )  # fmt: skip

    def _admit_all(self, claims: Claims, number: int) -> None:
        """Hand the tasks of a claim to the executor; release those that it does not accept.

        Args:
            claims: the answer to the claim.
            number: how many claims were sent up to this one.
        """
        self._ends.unclaimed += claims.expired_count
        now = self._now()
        for index, claimed in enumerate(claims.tasks):
            if self._unwanted.get(claimed.id, 0) >= number:  # cancelled since the claim was sent
                self._end(claimed, End.CANCELLED)
                continue
            try:
                self._admit(claimed, now)
            except (BacklogFullError, ExecutorStoppedError):
                self._release(claims, index)
                raise

    def _release(self, claims: Claims, first: int = 0) -> None:
        for claimed in claims.tasks[first:]:
            self._end(claimed, End.RELEASED)

    def _admit(self, claimed: Claimed, now: float) -> None:
        """Hand a claimed task to the executor, at loop time ``now``."""
        function = self._functions.get((claimed.name, claimed.version))
        if function is None:
            self._unknown.add((claimed.name, claimed.version))
            self._warnings.warn(
                f"unknown {claimed.name}", "durable tasks: %r, version %d, is not registered here: its tasks are set aside",
                claimed.name, claimed.version,
            )  # fmt: skip
            self._end(claimed, End.UNKNOWN)
            return
        if claimed.lost_count > _BLAMED_MAX:
            self._end(claimed, End.DEAD, f"{claimed.lost_count} processes were lost while they ran it")
            return
        try:
            arguments = function.load(claimed.body)
        except Exception as error:  # noqa: BLE001  # the codec is user code, and the body may come from another codec
            self._end(claimed, End.DEAD, f"its arguments cannot be read: {failure_of(error)}")
            return
        run = DurableRun(self, claimed, function, *arguments)
        delay = claimed.in_us / _US
        if delay > AHEAD_MAX:
            delay = 0.0
        run.due = now + delay
        delay = max(delay, 0.0)
        expires = None if claimed.expires_in_us is None else claimed.expires_in_us / _US - delay
        if expires is not None and expires <= 0:
            self._end(claimed, End.EXPIRED)
            return
        try:
            handle = self._executor.schedule(run, delay=delay, **self._options_of(claimed, function, expires))
        except (TypeError, ValueError) as error:  # such as a cost in a resource that this executor lacks
            self._end(claimed, End.DEAD, f"{self._executor.name} does not take it: {failure_of(error)}")
            return
        run.handle = handle
        self._held[claimed.ref] = run
        self._note_waiting(claimed, 1)
        handle._on_end(run.ended)

    def _options_of(
        self, claimed: Claimed, function: DurableFunction[Any, Any], expires: float | None
    ) -> dict[str, Any]:
        """Return the options of a task that differ from the defaults: each costs time."""
        options: dict[str, Any] = {}
        if claimed.priority:
            options["priority"] = claimed.priority
        if expires is not None or self._executor._expires is not None:
            options["expires"] = expires
        if function.run_timeout is not None:
            options["run_timeout"] = function.run_timeout
        if function.in_thread:
            options["in_thread"] = True
        if claimed.key is not None:
            options["key"] = key_from(claimed.key)
        if claimed.cost is not None:
            options["cost"] = json.loads(claimed.cost)
        return options

    def _check_lease(self) -> None:
        """Raise if another process may have claimed the task: after a pause of this one, before its next beat."""
        if self._lease.is_over():
            raise LeaseOverError

    def _started(self, run: DurableRun) -> None:
        if not run.is_started:
            run.is_started = True
            self._start_count += 1
            self._note_waiting(run.claimed, -1)

    def _ended(self, run: DurableRun) -> None:
        """Decide the outcome of a claim whose attempt has ended."""
        assert run.handle is not None
        if not run.is_started:
            run.is_started = True
            self._note_waiting(run.claimed, -1)
        is_given_up, now = run.is_given_up or self._executor.is_shutdown, self._now()
        outcome = outcome_of(
            run.claimed, run.handle, retry=run.func.retry, is_unwanted=run.is_unwanted, is_given_up=is_given_up, now=now,
            wall=self._wall(), numbers=self._numbers,
        )  # fmt: skip
        kept = kept_of(outcome, run.claimed, run.handle, run.func, queue=self._queue, now=now)
        self._let_go(run, outcome if kept is None else outcome._replace(kept=kept))

    def _done(self, run: DurableRun) -> None:
        """End the claim of a task that returned: a fast path of :meth:`_ended`."""
        self._let_go(run, TaskOutcome(run.claimed.ref, _END_DONE))

    def _let_go(self, run: DurableRun, outcome: TaskOutcome) -> None:
        if self._held.pop(run.claimed.ref, None) is not None and not run.is_void:
            self._has_ended = self._has_ended or run.claimed.id in self._placing.waiting
            if run.saved is not None and outcome.end is _END_DONE:
                self._saving.discard(run)
            self._record(outcome, run.claimed.name)
        if not self._held:
            self._idle.set()

    def _end(self, claimed: Claimed, end: End, error: str = "") -> None:
        """End the claim of a task that was not started."""
        self._record(TaskOutcome(claimed.ref, end, error=error), claimed.name)

    def _record(self, outcome: TaskOutcome, name: str) -> None:
        self._outcomes.append((outcome, name))
        self._has_outcomes.set()

    async def _finish(self) -> None:
        """Write outcomes until this process leaves; then write the rest, if the store is available."""
        while not self._is_leaving or self._outcomes:
            await self._has_outcomes.wait()
            if self._outcomes:
                await self._write_outcomes()

    async def _write_outcomes(self) -> None:
        reported = self._outcomes[:_OUTCOMES_MAX]
        batch = [outcome for outcome, _ in reported]
        await self._saving.write(batch)
        ends = await self._store.finish(batch)
        del self._outcomes[: len(batch)]
        if self._has_ended:
            self._placing.changed.set()
        if not self._outcomes:
            self._has_outcomes.clear()
            self._has_ended = False
        for (outcome, name), is_in_force in zip(reported, ends, strict=True):
            self._ends.note(name, outcome.end, is_in_force=is_in_force)
            if not is_in_force:
                self._warnings.warn(
                    "lost", "durable tasks: a claim had been lost when its task ended: the task may run again"
                )

    async def _beat(self) -> None:
        """Renew the lease, forever."""
        while True:
            try:
                cancelled = await self._lease.renew(self._claims)
            except StoreUnavailableError:
                if self._lease.is_over():
                    self._cancel(DurableRun.stop)  # other processes may have claimed them
                raise
            if cancelled is None:
                await self._start_anew()
            else:
                self._cancel_unwanted(cancelled)
            await self._saving.write()
            assert self._pump_task is not None
            if self._pump_task.done() and not await self._lease.settle(self._claims):  # a running pump settles itself
                await self._start_anew()
            await self._revive()
            await self._release_paused()
            self._note_answers()
            await asyncio.sleep(self._lease.seconds / 3)

    def _note_answers(self) -> None:
        """Log that the store answers again, once no loop has met an error between two beats."""
        if self._error_count and self._error_count == self._error_count_before:
            LOGGER.warning("durable tasks: the store answers again")
            self._error_count = 0
        self._error_count_before = self._error_count

    async def _watch(self) -> None:
        """Wake the pump whenever the store has changed, and follow what users have cancelled, paused or changed, forever."""
        while True:
            count = await self._store.wait(_SWEEP_SECONDS)
            self._wake.set()
            if count != self._cancel_count:
                self._cancel_unwanted(await self._store.cancelled(self._lease.owner))
                await self._release_paused()
                await self._placing.notice()
                self._cancel_count = count
                self._wake.set()  # for what has come meanwhile: somebody else who waits may have heard of it

    async def _repeat(self) -> None:
        """Put occurrences of repetitions, until this process closes."""
        await self._placing.run()

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a loop to its end, restarting it after errors of the store, until this process leaves."""
        backoff = _BACKOFF_SECONDS
        while True:
            began = self._now()
            try:
                await work()
            except StoreUnavailableError as error:
                self._error_count += 1
                self._warnings.warn("store", "durable tasks: %s; retrying", error)
            else:
                return
            if self._is_leaving:
                return
            if self._now() - began > self._lease.seconds:
                backoff = _BACKOFF_SECONDS
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, self._lease.seconds / _BACKOFF_PARTS)

    # Parts of the loops

    async def _revive(self) -> None:
        """Make tasks claimable that other processes set aside, if their function is registered here."""
        await self._store.revive(self._queue, list(self._functions))

    async def _release_paused(self) -> None:
        """Release held tasks that are paused and have not started; those that have go on."""
        pauses = [pause_of(row) for row in await self._store.pauses()]
        self._cancel(lambda run: any(_covers(each, self._queue, run.claimed) for each in pauses) and run.stop())

    async def _start_anew(self) -> None:
        """Continue after the lease has ended."""
        self._lose_all()
        await self._lease.begin()

    def _lose_all(self) -> None:
        """Cancel held tasks and ignore their outcomes: other processes have claimed them, or will."""
        LOGGER.warning(
            "durable tasks: the lease of this process has ended, because it was blocked or the store was away for %g s; its "
            "running tasks are cancelled, and will run again", self._lease.seconds,
        )  # fmt: skip
        for run in list(self._held.values()):
            run.is_void = run.is_given_up = True
            run.stop()
            if run.handle is not None:
                run.handle.cancel()

    def _claims(self) -> set[Ref]:
        """Return the claims of this process whose end it has not reported."""
        return {
            *(ref for ref, run in self._held.items() if not run.is_void),
            *(outcome.ref for outcome, _ in self._outcomes),
        }

    async def _leave(self) -> None:
        """Write the remaining outcomes, and release the remaining claims."""
        with anyio.move_on_after(self._lease.seconds):
            await self._until_idle()
        self._is_leaving = True
        self._has_outcomes.set()
        for loop in self._loops[1:]:  # not the finisher: its in-flight outcomes would be written twice
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)  # _report() has reported their errors
        try:
            while self._outcomes:  # if the finisher was cancelled, as asyncio.run() does after a SystemExit
                await self._write_outcomes()
            await self._lease.leave()
        except StoreUnavailableError as error:
            LOGGER.warning(
                "durable tasks: cannot leave the store: %s; claimed tasks go to other processes within %g s",
                error,
                self._lease.seconds,
            )

    async def _until_idle(self) -> None:
        while self._held:
            self._idle.clear()
            await self._idle.wait()

    def _cancel_ids(self, ids: Collection[str]) -> None:
        """Cancel held tasks by their ids, and those that a claim under way may bring."""
        self._unwanted.update(dict.fromkeys(ids, self._lease.claim_count))
        self._cancel_unwanted([ref for ref, run in self._held.items() if run.claimed.id in ids])

    def _cancel_unwanted(self, refs: Iterable[Ref]) -> None:
        """Cancel held tasks that were cancelled in the store."""
        for ref in refs:
            run = self._held.get(ref)
            if run is not None and not run.is_unwanted:  # once: it may ignore a cancellation
                run.is_unwanted = True
                assert run.handle is not None
                run.handle.cancel()

    def _cancel(self, is_meant: Callable[[DurableRun], bool] = lambda _: True) -> None:
        """Cancel and release held tasks."""
        for run in list(self._held.values()):
            if run.handle is not None and is_meant(run):
                run.is_given_up = True
                run.handle.cancel()

    def _note_waiting(self, claimed: Claimed, change: int) -> None:
        self._waiting += change
        self._waiting_size += change * claimed.size
        key, count = claimed.key, 0
        if key is not None:
            count = self._keys.get(key, 0) + change
            if count:
                self._keys[key] = count
            else:
                del self._keys[key]
        if change < 0 and (self._waiting <= self._low_mark or count == _KEY_WAITING_MAX - 1):
            self._wake.set()

    def _room(self) -> tuple[int, _Bound, float]:
        """Return the number of tasks to claim, their bound, and the seconds until the next look.

        The target is the number of tasks that will start soon, by the recent pace, or twice the number started since
        the last claim. While more than half of it waits, only tasks that precede the last waiting one are claimed, and
        not too often: a task that is due now must not wait for tasks claimed ahead.
        """
        now = self._now()
        since, count = self._measured
        if now - since >= _MEASURE_SECONDS:
            self._starts_per_second += ((self._start_count - count) / (now - since) - self._starts_per_second) / 2
            self._measured = now, self._start_count
        started = self._start_count - self._claim_start_count
        concurrency = self._executor.max_concurrency
        least = _WAITING_MIN if concurrency is None else min(_WAITING_MIN, concurrency) + 1
        most = min(float(_WAITING_MAX), *(self._permits_ahead(rate) for rate in self._executor.rates))
        target = math.ceil(min(most, max(least, 2 * self._ahead * self._starts_per_second, 2 * started)))
        self._low_mark = target // 2
        waiting = self._waiting_for_permits()
        pause = _KEYS_SECONDS if self._has_key_limits() and self._waiting else _SWEEP_SECONDS
        if waiting <= self._low_mark:
            self._claim_start_count = self._start_count
            return min(target - waiting, _WAITING_MAX - self._waiting), _ALL, pause
        if waiting >= 2 * target:
            return 0, _ALL, pause
        until = self._looked + _LOOK_SECONDS + _LOOK_SECONDS_EACH * self._waiting
        if now < until:
            return 0, _ALL, max(until - now, 0.001)  # a timer may be early by the resolution of the clock
        self._looked = now
        negative, last = max((-run.claimed.priority, run.due) for run in self._held.values() if not run.is_started)
        before_us = self._fairness.before(-negative, round((last - now) * _US))
        return self._low_mark + 1, (-negative, before_us), pause

    def _waiting_for_permits(self) -> int:
        """Count unstarted tasks, except those held back by the limits of their keys, which need no permit meanwhile."""
        if not self._has_key_limits():
            return self._waiting
        is_held_back = self._executor._is_held_back
        counted = sum(
            min(count, _KEY_WAITING_MAX) for key, count in self._keys.items() if not is_held_back(key_from(key))
        )
        return self._waiting - sum(self._keys.values()) + counted

    def _permits_ahead(self, rate: Any) -> float:
        per_second = rate.per_second if isinstance(rate, Rate) else None
        return math.inf if per_second is None else math.ceil(self._ahead * per_second) + 1

    def _has_key_limits(self) -> bool:
        return self._executor.key_rate is not None or self._executor.key_concurrency is not None


def _covers(pause: Pause, queue: str, claimed: Claimed) -> bool:
    return pause.covers(claimed.name, queue, claimed.lane, claimed.key)


def _report(loop: asyncio.Task[None]) -> None:
    """Report an internal error that ended a loop: no more tasks are claimed or finished."""
    if not loop.cancelled() and (error := loop.exception()) is not None:
        context = {"message": f"internal error in {loop.get_name()}", "exception": error, "task": loop}
        loop.get_loop().call_exception_handler(context)
