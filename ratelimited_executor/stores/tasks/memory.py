"""Durable tasks in memory, for tests: nothing survives the process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durable.table import TaskTable
from ratelimited_executor._core.durable.tasks import NOT_OPEN, Durability, DurableState
from ratelimited_executor.abc import TaskStore
from ratelimited_executor.exceptions import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ratelimited_executor._core.durable.pauses import Pause, PauseRow
    from ratelimited_executor._core.durable.tasks import (
        BacklogRow,
        Beat,
        ChangedRepetition,
        Claim,
        Claims,
        Duplicate,
        EndedRow,
        LaneRow,
        NewTask,
        Occurrence,
        Placed,
        Ref,
        RepetitionRow,
        TaskOutcome,
        TaskRow,
    )
    from ratelimited_executor.abc import Clock

__all__ = ["MemoryStore"]

_US: Final = 1_000_000


class MemoryStore(TaskStore):
    """A store in memory, for one event loop: for tests, and to try a service without a file.

    Its tasks stay while the object exists, even if it is closed and opened again.
    """

    durability = Durability.MEMORY

    def __init__(self) -> None:
        self._table = TaskTable()
        self._clock: Clock | None = None
        self._user_count = 0
        self._changed = asyncio.Event()
        self._cancel_count = 0  # calls that have cancelled a claimed task, begun a pause, or changed a repetition

    async def open(self, clock: Clock) -> None:
        if not self._user_count:
            self._changed = asyncio.Event()  # of this event loop, which may be a new one
        self._clock = clock
        self._user_count += 1

    async def put(self, tasks: Sequence[NewTask], *, connection: Any = None) -> list[bool | Duplicate]:
        if connection is not None:
            raise TypeError("connection: MemoryStore has no transactions")
        self._changed.set()
        return self._table.put(self._now_us(), tasks)

    async def join(self, owner: str, lease_us: int, *, former: str = "", held: Collection[Ref] = ()) -> bool:
        self._changed.set()
        return self._table.join(self._now_us(), owner, lease_us, former=former, held=held)

    async def beat(self, owner: str) -> Beat | None:
        self._changed.set()
        return self._table.beat(self._now_us(), owner)

    async def leave(self, owner: str) -> None:
        self._changed.set()
        self._table.leave(self._now_us(), owner)

    async def claim(self, claim: Claim) -> Claims | None:
        return self._table.claim(self._now_us(), claim)

    async def start(self, refs: Sequence[Ref]) -> list[bool]:
        return self._table.start(refs)

    async def save(self, states: Sequence[tuple[Ref, bytes]]) -> None:
        self._table.save(states)

    async def finish(self, outcomes: Sequence[TaskOutcome]) -> list[bool]:
        self._changed.set()
        return self._table.finish(self._now_us(), outcomes)

    async def cancel(self, ids: Sequence[str]) -> list[DurableState | None]:
        self._changed.set()
        states = self._table.cancel(self._now_us(), ids)
        self._cancel_count += DurableState.CLAIMED in states
        return states

    async def cancelled(self, owner: str) -> tuple[Ref, ...]:
        return self._table.cancelled(owner)

    async def requeue(self, ids: Sequence[str]) -> list[DurableState | None]:
        self._changed.set()
        return self._table.requeue(self._now_us(), ids)

    async def revive(self, queue: str, functions: Sequence[tuple[str, int]]) -> int:
        self._changed.set()
        return self._table.revive(queue, functions)

    async def pause(self, pause: Pause, until_us: int | None) -> None:
        self._tell_change()
        self._table.pause(self._now_us(), pause, until_us)

    async def resume(self, pause: Pause) -> bool:
        self._changed.set()
        return self._table.resume(self._now_us(), pause)

    async def pauses(self) -> list[PauseRow]:
        return self._table.pauses(self._now_us())

    async def place(self, owner: str, occurrences: Sequence[Occurrence]) -> list[Placed]:
        self._changed.set()
        return self._table.place(self._now_us(), owner, occurrences)

    async def repetitions(self) -> list[RepetitionRow]:
        return self._table.repetitions(self._now_us())

    async def changed_repetitions(self, queue: str) -> list[ChangedRepetition]:
        return self._table.changed_repetitions(queue)

    async def save_repetition(
        self, name: str, *, definition: str, queue: str, function: str, schedule: str
    ) -> bool | None:
        self._tell_change()
        return self._table.save_repetition(
            self._now_us(), name, definition=definition, queue=queue, function=function, schedule=schedule
        )

    async def pause_repetition(self, name: str, until_us: int | None) -> bool | None:
        self._tell_change()
        return self._table.pause_repetition(self._now_us(), name, until_us)

    async def skip_repetition(self, name: str) -> int | None:
        self._tell_change()
        return self._table.skip_repetition(self._now_us(), name)

    async def forget(self, names: Sequence[str]) -> int:
        self._changed.set()
        return self._table.forget(self._now_us(), names)

    async def find(self, ids: Sequence[str]) -> list[TaskRow | None]:
        return self._table.find(ids)

    async def rows(
        self,
        state: DurableState | None = None,
        *,
        after: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        body_max: int | None = None,
    ) -> list[TaskRow]:
        return self._table.rows(state, after=after, limit=limit, newest_first=newest_first, body_max=body_max)

    async def ended(self, ids: Sequence[str]) -> list[EndedRow | DurableState | None]:
        return self._table.ended(ids)

    async def history(self, *, before: int | None = None, limit: int = 100) -> list[EndedRow]:
        return self._table.history(before=before, limit=limit)

    async def counts(self) -> dict[DurableState, int]:
        return self._table.counts()

    async def backlog(self) -> list[BacklogRow]:
        return self._table.backlog()

    async def latencies(self) -> dict[str, int]:
        """Return for how long the oldest due task of each queue has waited, in microseconds."""
        return self._table.latencies(self._now_us())

    async def lanes(self, *, limit: int = 100) -> list[LaneRow]:
        return self._table.lanes(limit=limit)

    async def wait(self, timeout: float) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
            self._changed.clear()
        return self._cancel_count

    async def aclose(self) -> None:
        self._user_count -= 1
        if not self._user_count:
            self._clock = None

    def _tell_change(self) -> None:
        self._changed.set()
        self._cancel_count += 1

    def _now_us(self) -> int:
        if self._clock is None:
            raise StoreUnavailableError(repr(self), NOT_OPEN)
        return round(self._clock.wall() * _US)
