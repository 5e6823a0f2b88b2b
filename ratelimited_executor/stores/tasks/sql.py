"""The common part of the SQL stores: each call runs its moves in one transaction.

A store runs the calls of users apart from those of runners: however many users' calls wait, and for whatever, a process
renews its lease, claims tasks and ends claims.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ratelimited_executor._core.durable.tasks import DurableState
from ratelimited_executor.abc import TaskStore
from ratelimited_executor.stores.tasks import moves, repetitions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

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
    from ratelimited_executor.stores.tasks.statements import Moves

    T = TypeVar("T")
    Program: TypeAlias = Callable[[int], Moves[T]]  # of the clock, in microseconds

__all__ = ["Caller", "SQLStore"]


class Caller(Enum):
    """Who waits for a call; those of one do not hold up those of another."""

    USER = "user"
    """A user, who changes the store: there may be many at once."""
    READER = "reader"
    """A user, who only reads: that may take long."""
    RUNNER = "runner"
    """A runner: its lease ends if it waits for long."""


class SQLStore(TaskStore):
    """A store that runs moves; subclasses run transactions and notify other processes."""

    def __init__(self) -> None:
        self._user_count = 0
        self._changed = asyncio.Event()
        self._change_count = 0
        self._cancel_count = 0  # of notices that a claimed task was cancelled

    @abstractmethod
    async def _run(self, program: Program[T], *, caller: Caller = Caller.USER, is_durable: bool = True) -> T:
        """Run moves as one transaction; wait until it is durable, unless ``is_durable`` is False."""
        ...

    @abstractmethod
    async def _put_with(self, connection: Any, tasks: Sequence[NewTask]) -> list[bool | Duplicate]:
        """Put tasks in the user's open transaction."""
        ...

    def _tell(self, *, is_cancel: bool = False) -> None:
        """Notify other processes of a change, if they do not poll; ``is_cancel`` if a claimed task was cancelled."""

    async def put(self, tasks: Sequence[NewTask], *, connection: Any = None) -> list[bool | Duplicate]:
        if connection is not None:
            return await self._put_with(connection, tasks)
        return await self._change(lambda now_us: moves.put(now_us, tasks))

    async def join(self, owner: str, lease_us: int, *, former: str = "", held: Collection[Ref] = ()) -> bool:
        return await self._change(
            lambda now_us: moves.join(now_us, owner, lease_us, former, held),
            caller=Caller.RUNNER,
            is_told=bool(former),
        )

    async def beat(self, owner: str) -> Beat | None:
        return await self._change(lambda now_us: moves.beat(now_us, owner), caller=Caller.RUNNER, is_told=False)

    async def leave(self, owner: str) -> None:
        await self._change(lambda now_us: moves.leave(now_us, owner), caller=Caller.RUNNER)

    async def claim(self, claim: Claim) -> Claims | None:
        # Need not be durable: if a loss of power undoes a claim, the claiming process is gone as well.
        return await self._run(lambda now_us: moves.claim(now_us, claim), caller=Caller.RUNNER, is_durable=False)

    async def start(self, refs: Sequence[Ref]) -> list[bool]:
        return await self._run(lambda _: moves.start(refs), caller=Caller.RUNNER)

    async def save(self, states: Sequence[tuple[Ref, bytes]]) -> None:
        await self._run(
            lambda _: moves.save(states), caller=Caller.RUNNER, is_durable=False
        )  # of use after a kill, or nothing

    async def finish(self, outcomes: Sequence[TaskOutcome]) -> list[bool]:
        is_told = any(each.kept is not None for each in outcomes)  # for those who wait for an end
        return await self._change(lambda now_us: moves.finish(now_us, outcomes), caller=Caller.RUNNER, is_told=is_told)

    async def cancel(self, ids: Sequence[str]) -> list[DurableState | None]:
        if not ids:
            return []
        states = await self._change(lambda now_us: moves.cancel(now_us, ids), is_told=False)
        is_cancel = DurableState.CLAIMED in states
        self._cancel_count += is_cancel
        self._tell(is_cancel=is_cancel)
        return states

    async def cancelled(self, owner: str) -> tuple[Ref, ...]:
        return await self._run(lambda _: moves.cancelled(owner), caller=Caller.RUNNER, is_durable=False)

    async def requeue(self, ids: Sequence[str]) -> list[DurableState | None]:
        return await self._change(lambda now_us: moves.requeue(now_us, ids)) if ids else []

    async def revive(self, queue: str, functions: Sequence[tuple[str, int]]) -> int:
        revived = await self._run(lambda _: moves.revive(queue, functions), caller=Caller.RUNNER)
        if revived:  # processes call this all the time
            self._wake()
            self._tell()
        return revived

    async def pause(self, pause: Pause, until_us: int | None) -> None:
        await self._change_told(lambda now_us: moves.pause(now_us, pause, until_us))

    async def resume(self, pause: Pause) -> bool:
        return await self._change(lambda now_us: moves.resume(now_us, pause))

    async def pauses(self) -> list[PauseRow]:
        return await self._run(moves.pauses, caller=Caller.RUNNER, is_durable=False)

    async def place(self, owner: str, occurrences: Sequence[Occurrence]) -> list[Placed]:
        return await self._change(lambda now_us: repetitions.place(now_us, owner, occurrences)) if occurrences else []

    async def repetitions(self) -> list[RepetitionRow]:
        return await self._run(repetitions.repetitions, caller=Caller.READER)

    async def changed_repetitions(self, queue: str) -> list[ChangedRepetition]:
        program = repetitions.changed_repetitions
        return await self._run(lambda _: program(queue), caller=Caller.RUNNER, is_durable=False)

    async def save_repetition(
        self, name: str, *, definition: str, queue: str, function: str, schedule: str
    ) -> bool | None:
        facts = {"definition": definition, "queue": queue, "function": function, "schedule": schedule}
        return await self._change_told(lambda now_us: repetitions.save_repetition(now_us, name, **facts))

    async def pause_repetition(self, name: str, until_us: int | None) -> bool | None:
        return await self._change_told(lambda now_us: repetitions.pause_repetition(now_us, name, until_us))

    async def skip_repetition(self, name: str) -> int | None:
        return await self._change_told(lambda now_us: repetitions.skip_repetition(now_us, name))

    async def forget(self, names: Sequence[str]) -> int:
        return await self._change(lambda now_us: repetitions.forget(now_us, names)) if names else 0

    async def find(self, ids: Sequence[str]) -> list[TaskRow | None]:
        return await self._run(lambda _: moves.find(ids), caller=Caller.READER)

    async def rows(
        self,
        state: DurableState | None = None,
        *,
        after: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        body_max: int | None = None,
    ) -> list[TaskRow]:
        options: Any = {"newest_first": newest_first, "body_max": body_max}
        return await self._run(lambda _: moves.rows(state, after, limit, **options), caller=Caller.READER)

    async def ended(self, ids: Sequence[str]) -> list[EndedRow | DurableState | None]:
        return await self._run(lambda _: moves.ended(ids), caller=Caller.READER)

    async def history(self, *, before: int | None = None, limit: int = 100) -> list[EndedRow]:
        return await self._run(lambda _: moves.history(before, limit), caller=Caller.READER)

    async def counts(self) -> dict[DurableState, int]:
        return await self._run(lambda _: moves.counts(), caller=Caller.READER)

    async def backlog(self) -> list[BacklogRow]:
        return await self._run(lambda _: moves.backlog(), caller=Caller.READER)

    async def latencies(self) -> dict[str, int]:
        """Return for how long the oldest due task of each queue has waited, in microseconds."""
        return await self._run(moves.latencies, caller=Caller.READER)

    async def lanes(self, *, limit: int = 100) -> list[LaneRow]:
        return await self._run(lambda _: moves.lanes(limit), caller=Caller.READER)

    async def _change(self, program: Program[T], *, caller: Caller = Caller.USER, is_told: bool = True) -> T:
        """Run moves after which tasks may be claimable; notify other processes if ``is_told``."""
        try:
            result = await self._run(program, caller=caller)
        finally:
            self._wake()
        if is_told:
            self._tell()
        return result

    async def _change_told(self, program: Program[T]) -> T:
        """Run moves of which runners learn at once, as of a cancellation."""
        result = await self._change(program, is_told=False)
        self._cancel_count += 1
        self._tell(is_cancel=True)
        return result

    def _wake(self) -> None:
        self._change_count += 1
        self._changed.set()
