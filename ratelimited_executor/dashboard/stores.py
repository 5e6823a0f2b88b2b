"""Stores of durable tasks on the pages: what is wrong in each of them, its tasks as rows, and the changes of them.

A store that hangs or fails delays a page by two seconds, and its error stands in place of what it would have told.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ratelimited_executor._core.durable.repetitions import notes_on
from ratelimited_executor._core.durable.tasks import DurableState
from ratelimited_executor._runtime.durable.reading import latencies_of, task_rows
from ratelimited_executor._runtime.durable.tasks import DurableTasks
from ratelimited_executor.dashboard.error_counts import ErrorCounts
from ratelimited_executor.dashboard.errors import PageError, unusable
from ratelimited_executor.dashboard.requeueing import Requeueing
from ratelimited_executor.dashboard.texts import NOTHING, ago_text, count_text, name_text, time_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ratelimited_executor._core.durable.tasks import EndedRow, LaneRow, RepetitionRow, TaskRow
    from ratelimited_executor.abc import TaskStore

__all__ = ["DeadErrors", "ShownMoment", "StorePage", "StoreRow", "Stores"]

_ANSWER_SECONDS: Final = 2.0  # for an answer of a store: a page that hangs shows nothing
_REQUEUE_SECONDS: Final = 1.0  # for requeueing many tasks, before the page shows how far it is
_DEAD_MAX: Final = 50  # dead letters on a page, those that were put last
_BODY_MAX: Final = 4_001  # bytes that are read of arguments and states, of which a page shows 1,000 characters
_LANES_MAX: Final = 50
_ENDED_MAX: Final = 50
_NAMED_MAX: Final = 3  # blocked lanes by their names
_ERRORS_MAX: Final = 5  # classes of errors with a button of their own ...
_COUNTED_MAX: Final = 50  # ... and once all errors are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRow:
    """A store in the list.

    Attributes:
        name: its name.
        counts: its tasks in each state.
        problem: why it cannot be read; empty if it can.
        blocked: of lanes in which tasks wait behind a dead letter: how many, and their names; empty if there are none.
        latencies: for how many seconds the oldest due task has waited to be claimed, by queue.
    """

    name: str
    counts: Mapping[DurableState, int]
    problem: str = ""
    blocked: str = ""
    latencies: Mapping[str, float] = field(default_factory=dict)

    @property
    def latency(self) -> float:
        """The longest of the latencies; 0 if no due task waits."""
        return max(self.latencies.values(), default=0.0)

    def count_of(self, state: str) -> int:
        """Return how many of its tasks are in a state, by the name of the state."""
        return self.counts.get(DurableState[state], 0)

    @property
    def is_bad(self) -> bool:
        """True if somebody has to look after it."""
        return bool(self.problem or self.count_of("DEAD") or self.count_of("UNKNOWN"))


class ShownMoment(NamedTuple):
    """A time as it reads on a page: how long ago, and when."""

    ago: str
    when: str


@dataclass(frozen=True, slots=True)
class DeadErrors:
    """The class of an error, and the number of dead letters with it; None if not all of them have been read.

    A number that was counted earlier holds for that time.
    """

    kind: str
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePage:
    """What the page of a store shows.

    Attributes:
        row: the store in the list.
        dead: some dead letters, the one that was due last first, with the due time of its last attempt and the time of its put.
        is_all_dead: True if these are all of them.
        older: the number behind which those begin that were put before; None if there are none.
        errors: the classes of errors that several of these have, the most frequent first; or that any dead letter had when all of
            them were counted.
        counts: the last count of all errors; None if there was none.
        counted_ago: how long ago that ended; empty if it has not.
        lanes: the lanes with the most waiting tasks.
        repetitions: the repetitions, with the time of the next occurrence and what should be known about each.
        requeueing: what is being requeued; None if nothing is.
        ended: the tasks that ended last, with the time of the end and their duration in seconds.
    """

    row: StoreRow
    dead: Sequence[tuple[TaskRow, ShownMoment, ShownMoment]] = ()
    is_all_dead: bool = True
    older: int | None = None
    errors: Sequence[DeadErrors] = ()
    counts: ErrorCounts | None = None
    counted_ago: str = ""
    requeueing: Requeueing | None = None
    lanes: Sequence[LaneRow] = ()
    repetitions: Sequence[tuple[RepetitionRow, str, str]] = ()
    ended: Sequence[tuple[EndedRow, ShownMoment, float]] = ()


class Stores:
    """The stores that a page shows.

    Args:
        stores: open stores by their names.
        epoch: returns epoch seconds.

    All methods with a name raise :class:`PageError` if there is no such store; those that change something, also if the store
    cannot be used.
    """

    def __init__(self, stores: Mapping[str, TaskStore], epoch: Callable[[], float]) -> None:
        self._stores = dict(stores)
        self._epoch = epoch
        self._requeueing: dict[str, Requeueing] = {}  # the last one of each store
        self._counts: dict[str, ErrorCounts] = {}  # the last ones of each store

    async def rows(self) -> list[StoreRow]:
        """Return how each store stands; all are asked at once."""
        return await asyncio.gather(*map(self._row_of, self._stores))

    async def page(self, name: str, *, after: int = 0, count: int = 0) -> StorePage:
        """Return what the page of a store shows.

        Args:
            name: the store.
            after: the number behind which its dead letters begin, the one that was put last first; 0 for the first ones.
            count: the number of the count of all errors that is asked for, which begins unless it has; 0 for none.
        """
        store = self._store_of(name)
        row = await self._row_of(name)
        if row.problem:
            return StorePage(row=row)
        dead: list[TaskRow] = await _answer_of(
            task_rows(store, DurableState.DEAD, after=after, limit=_DEAD_MAX + 1, newest_first=True, body_max=_BODY_MAX)
        )
        is_more = len(dead) > _DEAD_MAX
        del dead[_DEAD_MAX:]
        older = dead[-1].number if is_more else None
        is_all = not (after or is_more)
        dead.sort(key=lambda each: -each.due_us)
        counts = self._counts_of(name, count)
        ended_at = None if counts is None else counts.ended_at
        is_counted = counts is not None and ended_at is not None and not is_all
        return StorePage(
            row=row,
            dead=[(each, self._moment_of(each.due_us), self._moment_of(each.put_us)) for each in dead],
            is_all_dead=is_all,
            older=older,
            errors=_counted(counts) if counts is not None and is_counted else _errors_of(dead, is_all=is_all),
            counts=counts,
            counted_ago="" if ended_at is None else ago_text(self._epoch() - ended_at),
            requeueing=running if (running := self._requeueing.get(name)) and running.is_running else None,
            lanes=await _answer_of(store.lanes(limit=_LANES_MAX)),
            repetitions=[
                (each, _time_text(each.next_us), notes_on(each, _time_text(each.until_us)))
                for each in await _answer_of(store.repetitions())
            ],
            ended=[
                (each, self._moment_of(each.ended_us), each.run_us / 1e6)
                for each in await _answer_of(store.history(limit=_ENDED_MAX))
            ],
        )

    async def requeue(self, name: str, task_id: str) -> DurableState | None:
        """Put a dead letter back; return the state that it had, None if it does not exist."""
        states: list[DurableState | None] = await _answer_of(self._store_of(name).requeue([task_id]))
        return states[0]

    async def requeue_all(self, name: str, kind: str) -> Requeueing:
        """Put all dead letters back whose last error is of a class; return once that has ended, or takes longer than a moment."""
        store = self._store_of(name)
        running = self._requeueing.get(name)
        if running is not None and running.is_running:
            raise PageError(
                409, f"Tasks with {name_text(running.kind)} are being requeued: wait for the end, or stop it."
            )
        self._requeueing[name] = Requeueing(store, kind)
        return await self._requeueing[name].ended(_REQUEUE_SECONDS)

    def stop_requeueing(self, name: str) -> Requeueing:
        """Stop what :meth:`requeue_all` has begun in a store, after its running step."""
        running = self._requeueing.get(name)
        if running is None or not running.is_running or running.is_stopping:
            raise PageError(409, "Nothing is being requeued any more.")
        running.stop()
        return running

    async def discard(self, name: str, task_id: str) -> DurableState | None:
        """Remove a dead letter, and nothing else; return the state that it had, None if it does not exist."""
        store = self._store_of(name)
        [row] = await _answer_of(store.find([task_id]))
        if row is None or row.state is not DurableState.DEAD:
            return None if row is None else row.state
        await _answer_of(store.cancel([task_id]))
        return DurableState.DEAD

    async def change_repetition(self, action: str, name: str, repetition: str) -> bool:
        """Make a change of a repetition, by the name of the change; return False if there was nothing to change."""
        tasks = DurableTasks(self._store_of(name))
        if repetition not in {row.name for row in await _answer_of(tasks.repetitions())}:
            return False
        changes: dict[str, Callable[[str], Awaitable[Any]]] = {
            "pause-repetition": tasks.pause_repetition,
            "resume-repetition": tasks.resume_repetition,
            "skip-repetition": tasks.skip_repetition,
            "run-repetition": tasks.run_repetition,
            "remove-repetition": tasks.remove_repetition,
        }
        answer = await _answer_of(changes[action](repetition))
        return action == "pause-repetition" or bool(answer)

    def _counts_of(self, name: str, number: int) -> ErrorCounts | None:
        """Return the last count of all errors of a store; begin the one with a number if it is the next."""
        last = self._counts.get(name)
        if number and (last is None or (last.ended_at is not None and number == last.number + 1)):
            last = self._counts[name] = ErrorCounts(self._store_of(name), 1 if last is None else number, self._epoch)
        return last

    def _store_of(self, name: str) -> TaskStore:
        store = self._stores.get(name)
        if store is None:
            raise PageError(404, "There is no such store.")
        return store

    async def _row_of(self, name: str) -> StoreRow:
        """Return how a store stands; if it cannot be read, why."""
        store = self._stores[name]
        try:
            counts: Mapping[DurableState, int] = await _answer_of(store.counts())
            latencies: Mapping[str, float] = await _answer_of(latencies_of(store, self._epoch()))
            is_asked = counts.get(DurableState.DEAD) and counts.get(DurableState.BEHIND)
            lanes: Sequence[LaneRow] = await _answer_of(store.lanes(limit=_LANES_MAX)) if is_asked else ()
        except PageError as error:
            return StoreRow(name=name, counts={}, problem=error.message)
        return StoreRow(name=name, counts=counts, blocked=_blocked_text(lanes), latencies=latencies)

    def _moment_of(self, time_us: int) -> ShownMoment:
        at = time_us / 1e6
        return ShownMoment(ago_text(self._epoch() - at), time_text(at))


def _blocked_text(lanes: Sequence[LaneRow]) -> str:
    """Name the lanes in which tasks wait behind a dead letter."""
    blocked = [each.lane for each in lanes if each.head_state is DurableState.DEAD]
    if not blocked:
        return ""
    least = "at least " * (len(lanes) == _LANES_MAX)
    more = [f"{len(blocked) - _NAMED_MAX} more"] * (len(blocked) > _NAMED_MAX)
    return f"{least}{len(blocked)} blocked lane{'s' * (len(blocked) > 1)}: {', '.join([*blocked[:_NAMED_MAX], *more])}"


def _errors_of(dead: Sequence[TaskRow], *, is_all: bool) -> list[DeadErrors]:
    """Return the classes of errors that several dead letters have, the most frequent first."""
    counts = Counter(each.error_class for each in dead if each.error_class)
    return [DeadErrors(kind, count if is_all else None) for kind, count in counts.most_common(_ERRORS_MAX) if count > 1]


def _counted(counts: ErrorCounts) -> list[DeadErrors]:
    """Return the most frequent classes of errors of all dead letters."""
    return [DeadErrors(kind, count) for kind, count in counts.kinds.most_common(_COUNTED_MAX)]


def _time_text(time_us: int | None) -> str:
    return NOTHING if time_us is None else time_text(time_us / 1e6)


async def _answer_of(asked: Awaitable[Any]) -> Any:
    """Wait for a store, but not for long."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await asked
    except TimeoutError as error:
        raise PageError(503, f"The store did not answer within {count_text(_ANSWER_SECONDS)} s.") from error
    except Exception as error:  # of a store of the user's, perhaps; the rest of the page stays
        raise PageError(503, unusable(error)) from error
