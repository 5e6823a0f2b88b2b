"""Work through a whole population once in each cycle, slot by slot, so that the queue never holds all of it.

A runner takes the turns of slots one after the other: it claims each, loads its keys, schedules each key at its own
instant in the slot, and records which keys are finished. At most three turns are in progress, so that a slow loader, slow
calls or a long outage delay the work but never pile it up. Missed turns are made up for, after the current one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor.spread.keys import hash_of, key_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.batches import BatchHandle
    from ratelimited_executor._runtime.time.runner import Runner
    from ratelimited_executor.abc import Progress
    from ratelimited_executor.spread.keys import Key
    from ratelimited_executor.spread.slots import CycleSlots

__all__ = ["CycleHandle", "CyclePlan", "CycleStatistics"]

_TURN_COUNT_MAX: Final = 3  # in progress at once: the current one, the next, and a late one
_CHUNK_COUNT: Final = 1000  # keys placed between two turns of the loop
_LEAD_SECONDS_MAX: Final = 30.0  # from the loading of a turn to the start of its slot
_BACKOFF_SECONDS_MAX: Final = 60.0  # between two attempts of a failing loader
_DONE: Final = TaskState.DONE  # enum members are slow to look up
_FAILED: Final = TaskState.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleStatistics:
    """What a cycle has done so far in this process, and its current turns.

    Attributes:
        name: the name of the cycle.
        turn: the current turn, a number that grows by one with every slot.
        slot: the slot of that turn.
        running: the turns in progress in this process.
        behind: turns that should be finished and are not, including those in progress elsewhere.
        waiting: keys that are scheduled and not finished.
        loaded: keys that were loaded and scheduled.
        skipped: keys that were loaded and not scheduled, because they were already finished, or loaded twice.
        done: keys whose call returned.
        failed: keys whose call raised, in its last attempt.
        completed: finished turns.
        loader_errors: failures of the loader.
        lost: turns that another node took over, because this one had not renewed its lease in time.
        skipped_turns: turns that were unfinished when the next one of their slot was due.
    """

    name: str
    turn: int
    slot: int
    running: tuple[int, ...]
    behind: int
    waiting: int
    loaded: int
    skipped: int
    done: int
    failed: int
    completed: int
    loader_errors: int
    lost: int
    skipped_turns: int


class CycleParts(Protocol):
    """The parts of a started executor that a cycle uses; its keys are scheduled by ``CyclePlan.place``."""

    @property
    def accounts(self) -> Accounts:
        """The accounts; closing waits for their feeders."""
        ...

    @property
    def runner(self) -> Runner:
        """The loop, the clock, and a log."""
        ...


class CycleHandle:
    """A population that is visited in each cycle: inspect it, cancel it.

    ``await handle`` ends when the cycle ends, which happens only by an error or by cancellation: it raises the error of a
    failed store, and ``CancelledError`` if the cycle was cancelled or its executor closed.
    """

    def __init__(self, parts: CycleParts, plan: CyclePlan, on_end: Callable[[CycleHandle], None]) -> None:
        self._runner = parts.runner
        self._accounts = parts.accounts
        self._plan = plan
        self._on_end = on_end
        self._owner = f"{socket.gethostname()}/{os.getpid()}/{id(self):x}"
        self._todo: dict[int, float] = {}  # unfinished turns, with the epoch seconds of the next attempt
        self._failures: Counter[int] = Counter()  # failed attempts, by turn
        self._running: dict[int, _Turn] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._error: Exception | None = None
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._end: asyncio.Future[None] = self._runner.loop.create_future()
        self._end.add_done_callback(
            lambda end: end.cancelled() or end.exception()
        )  # so that asyncio does not report an unretrieved exception
        task = self._runner.loop.create_task(self._run(), name=f"cycle {self.name}")
        self._accounts.feeders.add(task)  # closing waits until finished keys are recorded
        task.add_done_callback(self._ended)

    # Looking.

    @property
    def name(self) -> str:
        """The name of the cycle."""
        return self._plan.name

    @property
    def slots(self) -> CycleSlots:
        """The slots of the cycle."""
        return self._plan.slots

    def statistics(self) -> CycleStatistics:
        """Return the counts at this instant."""
        turn = self.slots.turn_at(self._wall())
        return CycleStatistics(
            name=self.name,
            turn=turn,
            slot=turn % self.slots.count,
            running=tuple(sorted(self._running)),
            behind=sum(each < turn for each in self._todo),
            waiting=sum(each.open_count for each in self._running.values()),
            **self._counts,
        )

    def done(self) -> bool:
        """True if the cycle has ended."""
        return self._end.done()

    def cancelled(self) -> bool:
        """True if the cycle was cancelled."""
        return self._end.cancelled()

    def cancel(self) -> bool:
        """End the cycle: no more keys are loaded, waiting keys are cancelled, running ones continue and are recorded.

        The next process continues with the unfinished keys.

        Returns:
            False if it had already ended.
        """
        if not self._end.cancel():  # an exception counts as retrieved then
            return False
        self._stop()
        self._on_end(self)
        return True

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.shield(self._end).__await__()

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "ended" if self._end.done() else "active"
        return f"<CycleHandle {self.name} {state} {self.slots.count} slots of {self.slots.slot_seconds} s>"

    # Taking turns.

    async def _run(self) -> None:
        try:
            await self._take_all_turns()
        finally:
            if self._plan.owns_progress:
                await self._plan.progress.aclose()

    async def _take_all_turns(self) -> None:
        """Take the turns of slots until stopped, and wait for those in progress."""
        slots, progress = self.slots, self._plan.progress
        present = slots.turn_at(self._wall())
        shape = f"{slots.seconds} s in {slots.count} slots of {slots.buckets} buckets, phase {slots.phase}"
        since = await progress.begin(self.name, shape, present)
        if not self._plan.is_catching_up:
            since = max(since, present)
        oldest = max(since, present - slots.count + 1)
        self._todo = dict.fromkeys(await progress.open_turns(self.name, oldest, present), 0.0)
        latest = present
        try:
            while not self._is_stopping:
                self._changed.clear()
                now = self._wall()
                last = slots.turn_at(now + self._lead)
                for turn in range(max(latest, last - slots.count) + 1, last + 1):
                    self._todo[turn] = 0.0
                latest = max(latest, last)
                await self._skip(last - slots.count)
                wake = min(float(slots.begin_of(last + 1)) - self._lead, await self._take_turns(now, last))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, wake - self._wall())):
                        await self._changed.wait()
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for task in self._tasks:  # the drain took too long: record the finished keys, and wait for no others
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _lead(self) -> float:
        """Seconds from the loading of a turn to the start of its slot."""
        return min(self.slots.slot_seconds / 4, _LEAD_SECONDS_MAX)

    async def _take_turns(self, now: float, last: int) -> float:
        """Begin the turns that may begin, the current ones first; return when to check again, in epoch seconds."""
        wake = math.inf
        present = self.slots.turn_at(now)
        for turn in sorted(self._todo, key=lambda turn: (turn < present, turn)):
            slot = turn % self.slots.count
            if (
                turn not in self._todo
                or turn > last
                or any(other % self.slots.count == slot for other in self._running)
            ):
                continue
            if len(self._running) >= _TURN_COUNT_MAX - (turn < present):
                break
            if self._todo[turn] > now:
                wake = min(wake, self._todo[turn])
            elif await self._claim(turn):
                if self._is_stopping:
                    await self._give_up(turn)
                    break
                begun = self._running[turn] = _Turn(
                    self._plan, turn, counts=self._counts, claim=self._claim, wall=self._wall, warn=self._warn
                )
                task = asyncio.create_task(self._finish(begun), name=f"cycle {self.name}, turn {turn}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif await self._plan.progress.open_turns(self.name, turn, turn):
                self._todo[turn] = now + self._plan.lease / 3  # its owner may be lost by then
                wake = min(wake, self._todo[turn])
            else:
                self._todo.pop(turn, None)
        return wake

    async def _skip(self, last: int) -> None:
        """Give up turns that are unfinished when the next one of their slot begins: those up to ``last``."""
        late = [turn for turn in self._todo if turn <= last and turn not in self._running]
        if not late:
            return
        is_open = set(await self._plan.progress.open_turns(self.name, min(late), max(late)))
        for turn in late:
            del self._todo[turn]
            self._failures.pop(turn, None)
            if turn not in is_open:
                continue  # another node has finished it
            self._counts["skipped_turns"] += 1
            self._warn(
                "turn %d of slot %d was not finished within a cycle, and is skipped", turn, turn % self.slots.count
            )

    async def _finish(self, turn: _Turn) -> None:
        """Work through a turn, and record its completion in the store."""
        number = turn.number
        try:
            is_whole = await turn.run()
            if is_whole:
                await self._plan.progress.complete(self.name, number, keep_from=number - 2 * self.slots.count)
                self._counts["completed"] += 1
                self._todo.pop(number, None)
                self._failures.pop(number, None)
            elif self._is_stopping:
                await self._give_up(number)
            else:
                pause = min(2.0 ** self._failures[number], _BACKOFF_SECONDS_MAX)
                self._failures[number] += 1
                self._todo[number] = self._wall() + pause
        except asyncio.CancelledError:
            if not turn.open_count:  # else keys still run, and no other node may start them before the lease ends
                with contextlib.suppress(Exception):
                    await self._give_up(number)
            raise
        except Exception as error:  # noqa: BLE001  # an error of the store, which the cycle needs
            self._error = error
            self._stop()
        finally:
            del self._running[number]
            self._changed.set()

    def _stop(self) -> None:
        self._is_stopping = True
        self._changed.set()
        for turn in list(self._running.values()):
            turn.stop()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = self._error
        if error is None and not task.cancelled():
            error = task.exception()  # type: ignore[assignment]  # the task raises only exceptions of this type
        if not self._end.done():
            if error is None:
                self._end.cancel()
            else:
                self._end.set_exception(error)
                message = f"the cycle {self.name} cannot go on"
                self._runner.loop.call_exception_handler({"message": message, "exception": error})
        self._accounts.feeder_done(task)
        self._on_end(self)

    # For its turns.

    async def _claim(self, turn: int) -> bool:
        """Claim a turn or renew its lease."""
        now = self._wall()
        until = now + self._plan.lease
        return await self._plan.progress.claim(self.name, turn, owner=self._owner, now=now, until=until)

    async def _give_up(self, turn: int) -> None:
        """Release the claim on a turn, so that the next process need not wait until the lease has ended."""
        now = self._wall()
        await self._plan.progress.claim(self.name, turn, owner=self._owner, now=now, until=now)

    def _wall(self) -> float:
        """Return epoch seconds."""
        return self._runner.clock.wall()

    def _warn(self, message: str, *values: object) -> None:
        """Log a warning, unless one of this kind was logged just before."""
        self._runner.warnings.warn(f"cycle {message}", f"cycle %s: {message}", self.name, *values)


_COUNTS: Final = ("loaded", "skipped", "done", "failed", "completed", "loader_errors", "lost", "skipped_turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclePlan:
    """The definition of a cycle.

    Attributes:
        name: the name of the cycle, in logs and in the store.
        slots: its slots.
        load: returns the keys of a slot.
        place: schedules keys, each at a delay in seconds.
        slot_of: returns the slot of a key; None if its hash decides.
        progress: the store of the cycle's progress.
        owns_progress: True if the cycle closes the store at its end.
        is_catching_up: True if turns missed before this process started are made up for.
        look_ahead: the maximum number of scheduled, unfinished keys.
        lease: seconds for which a node holds a claimed turn.
    """

    name: str
    slots: CycleSlots
    load: Callable[[int], Any]
    place: Callable[[list[Any], list[float]], BatchHandle[Any]]
    slot_of: Callable[[Any], int] | None
    progress: Progress
    owns_progress: bool
    is_catching_up: bool
    look_ahead: int
    lease: float


class _Turn:
    """One turn of a slot in progress.

    Args:
        plan: the plan of the cycle.
        number: the number of the turn.
        counts: the counts of the cycle.
        claim: claims a turn or renews its lease.
        wall: returns epoch seconds.
        warn: logs a warning of the cycle.
    """

    def __init__(
        self,
        plan: CyclePlan,
        number: int,
        *,
        counts: dict[str, int],
        claim: Callable[[int], Awaitable[bool]],
        wall: Callable[[], float],
        warn: Callable[..., None],
    ) -> None:
        self.number = number
        self.slot = number % plan.slots.count
        self._plan = plan
        self._counts = counts
        self._claim = claim
        self._wall = wall
        self._warn = warn
        self.open_count = 0  # scheduled, unfinished keys
        self._batches: list[BatchHandle[Any]] = []
        noting = getattr(plan.progress, "noting", None)  # of a store that records without waiting
        self._note_now = None if noting is None else noting(plan.name, number)
        self._through: list[bytes] = []  # finished keys that are not recorded yet
        self._is_through = asyncio.Event()  # set while there are such keys
        self._is_over = asyncio.Event()  # set once no more keys will finish
        self._has_changed = asyncio.Event()  # set when a key has ended
        self._is_whole = True
        self._loading: asyncio.Task[None] | None = None

    async def run(self) -> bool:
        """Load and place the keys, and record finished ones; return True if all have finished in the end."""
        keeper = asyncio.create_task(self._guarded(self._keep()))
        noter = asyncio.create_task(self._guarded(self._note()))
        try:
            self._loading = asyncio.create_task(self._load_and_place())
            await asyncio.gather(self._loading, return_exceptions=True)
            while self.open_count:
                self._has_changed.clear()
                await self._has_changed.wait()
        finally:
            self.stop()
            self._is_over.set()  # instead of a cancellation, which could lose a store client's message in transit
            self._is_through.set()
            for error in await asyncio.gather(keeper, noter, return_exceptions=True):  # both, also if one has failed
                if error is not None:
                    raise error
        return self._is_whole

    def stop(self) -> None:
        """Load no more keys, and cancel waiting ones."""
        if self._loading is not None and not self._loading.done():
            self._is_whole = False
            self._loading.cancel()
        for batch in self._batches:
            batch.cancel()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what the keys need beside them; after an error begin no more of them, since nothing may keep other nodes away."""
        try:
            await work
        except Exception:
            self.stop()
            raise

    async def _keep(self) -> None:
        """Renew the lease; if another node has claimed the turn, leave the rest to it."""
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._plan.lease / 3):
                    await self._is_over.wait()
                return
            if not await self._claim(self.number):
                self._counts["lost"] += 1
                self._warn(
                    "the claim on turn %d was lost: its keys are left to the node that holds it now", self.number
                )
                self._is_whole = False
                self.stop()
                return

    async def _note(self) -> None:
        """Record finished keys: each time all that have gathered meanwhile."""
        while self._through or not self._is_over.is_set():
            await self._is_through.wait()
            keys = self._through[:]
            if keys:
                await self._plan.progress.note(self._plan.name, self.number, keys)  # repeated if this is cancelled
                del self._through[: len(keys)]
            if not self._through and not self._is_over.is_set():
                self._is_through.clear()

    async def _load_and_place(self) -> None:
        plan = self._plan
        begin = float(plan.slots.begin_of(self.number))
        if self._wall() > begin + plan.slots.slot_seconds:
            begin = self._wall()  # missed: its keys keep their offsets, counted from now
        try:
            seen = await plan.progress.done_keys(plan.name, self.number)
            async for keys in self._load():
                fresh = {written: (key, place) for written, key, place in keys if written not in seen}
                seen.update(fresh)
                self._counts["skipped"] += len(keys) - len(fresh)
                if fresh:
                    self._place(fresh, begin)
                while self.open_count >= plan.look_ahead:
                    self._has_changed.clear()
                    await self._has_changed.wait()
        except Exception as error:  # noqa: BLE001  # the loader is user code: it is retried later
            self._is_whole = False
            self._counts["loader_errors"] += 1
            self._warn("keys(%d) raised %r; retrying", self.slot, error)

    async def _load(self) -> AsyncIterator[list[tuple[bytes, Key, int]]]:
        """Load the keys of the slot, as they are stored and with their hashes, in lists of a bounded length."""
        found = self._plan.load(self.slot)
        if isinstance(found, Awaitable):
            found = await found
        if isinstance(found, AsyncIterable):
            chunk: list[Key] = []
            async for key in found:
                chunk.append(key)
                if len(chunk) >= _CHUNK_COUNT:
                    yield self._checked(chunk)
                    chunk = []
            yield self._checked(chunk)
            return
        if not isinstance(found, Iterable) or isinstance(found, (str, bytes)):
            raise TypeError(f"keys must be a function of the slot that returns keys, it returned {found!r}")
        source = iter(found)
        while chunk := list(islice(source, _CHUNK_COUNT)):
            yield self._checked(chunk)
            await asyncio.sleep(0)

    def _checked(self, keys: list[Key]) -> list[tuple[bytes, Key, int]]:
        """Return keys of the slot: as they are stored, the key, and its hash.

        A letter for its type stands before its bytes: the number 1 and the text "1" are two keys.

        Raises:
            ValueError: if one belongs to another slot: it would run once for each slot that loads it.
        """
        slot, slot_of, count = self.slot, self._plan.slot_of, self._plan.slots.count
        found = []
        for key in keys:
            kind: Any = type(key)
            data = key_bytes(key)
            place = hash_of(data)
            own = place * count >> 64 if slot_of is None else slot_of(key)
            if own != slot:
                raise ValueError(
                    f"keys({slot}) returned {key!r}, which belongs to slot {own}: load only the keys of the slot, see "
                    "slot_predicate, or pass slot_of="
                )
            found.append((_letter_of(kind) + data, key, place))
        return found

    def _place(self, fresh: dict[bytes, tuple[Key, int]], begin: float) -> None:
        """Schedule keys at their instants in the slot; late keys are due now."""
        slots, ahead = self._plan.slots, begin - self._wall()
        width = slots.slot_seconds / 2**64
        keys, written = [key for key, _ in fresh.values()], list(fresh)
        delays = [max(0.0, ahead + place * slots.count % 2**64 * width) for _, place in fresh.values()]
        batch = self._plan.place(keys, delays)
        self._counts["loaded"] += len(keys)
        self.open_count += len(keys)

        counts, note_now, is_through = self._counts, self._note_now, self._is_through
        through, has_changed, few = self._through, self._has_changed, self._plan.look_ahead - 1

        def ended(index: int, state: TaskState, outcome: Any) -> None:
            self.open_count = count = self.open_count - 1
            if not count or count == few:
                has_changed.set()
            if state is _DONE:
                counts["done"] += 1
            elif state is _FAILED:
                counts["failed"] += 1
                self._warn("key %r failed: %r", keys[index], outcome)
            else:
                self._is_whole = False
                return
            if note_now is not None:
                note_now(written[index])
            else:
                through.append(written[index])
                is_through.set()

        batch._watch(ended)
        self._batches.append(batch)


@lru_cache(maxsize=64)  # it is asked for each key
def _letter_of(kind: type) -> bytes:
    """Return the letter of a type of keys."""
    return kind.__name__[0].encode()
