"""What the calendars and the queue ask of the tasks that are due, in whatever order they start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratelimited_executor._core.records import Record
    from ratelimited_executor._core.runs import RecordRun, Run
    from ratelimited_executor._core.sources import Rank, Source

__all__ = ["DueReady", "Ready", "is_empty"]


class Ready(Protocol):
    """What both forms can do."""

    @property
    def active(self) -> object:
        """Falsy if nothing is ready, and nothing is to be let go of: then nobody needs to ask."""
        ...

    def push_record(self, record: Record) -> None:
        """Take in a record whose due time has come."""
        ...

    def push_records(self, records: list[Record], rank: Rank) -> None:
        """Take in records of one rank, in due order; the list is not the caller's any more."""
        ...

    def push_run(self, source: Source, positions: Sequence[int], rank: Rank) -> None:
        """Take in tasks of one source and rank, in due order."""
        ...

    def push_position(self, source: Source, position: int, rank: Rank) -> None:
        """Take in one task of a source."""
        ...

    def head(self) -> Any:
        """Return what compares as the importance of the first task, smaller first; None if none waits."""
        ...

    def head_rank(self) -> Rank:
        """Return the rank of the first task; only right after :meth:`head` found one."""
        ...

    def peek(self) -> tuple[Source | None, Any]:
        """Return the first task, as (source, position) or (None, record); only right after :meth:`head` found one."""
        ...

    def pop(self) -> Run | RecordRun:
        """Return a run from which to take the first task; only right after :meth:`head` found one."""
        ...

    def served(self) -> None:
        """Note that the task that was taken starts."""
        ...

    def release(self) -> None:
        """Hold back nothing more: everything is to be moved to another order."""
        ...

    def succeed(self, successor: Ready) -> None:
        """Hand on to another what code of the user has kept from being taken in so far."""
        ...

    def walk(self) -> Iterator[tuple[Source | None, Any]]:
        """Walk what waits, the most important first where that is cheap: (source, position) or (None, record)."""
        ...

    def drain(self) -> Iterator[tuple[Source | None, Any]]:
        """Walk what waits, and forget it on the way where there may be much: nothing else is done with it any more."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...

    def keyed(self) -> Iterator[tuple[Any, Source | None, Any]]:
        """Walk what waits as (rank, source, position) or (rank, None, record); smaller ranks start first."""
        ...


class DueReady(Ready, Protocol):
    """What those can do beside that tell what is due first."""

    def earliest(self) -> float | None:
        """Return the due time of the task that is due first, of equal ones the first to come; None if none waits."""
        ...

    def peek_earliest(self) -> tuple[Source | None, Any]:
        """Return that task as :meth:`peek` does; only right after :meth:`earliest` found one."""
        ...

    def pop_earliest(self) -> Run | RecordRun:
        """Return a run from which to take that task; only right after :meth:`earliest` found one."""
        ...

    @property
    def is_in_due_order(self) -> bool:
        """Whether what comes next in the run of :meth:`pop_earliest` is due before all else that waits."""
        ...


def is_empty(ready: Ready) -> bool:
    """Whether nothing waits."""
    return next(ready.walk(), None) is None
