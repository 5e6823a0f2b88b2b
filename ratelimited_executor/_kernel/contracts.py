"""What the kernel asks of what stands beside it, one narrow contract each.

Where the tasks of a run lie, in which order what is due starts, and what admits starts: each has one plain form in the
kernel, or is handed to it, and forms for what few tasks need outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from ratelimited_executor._kernel.records import TaskClass

__all__ = [
    "Deadlines",
    "DueReady",
    "DueRun",
    "GatedReady",
    "Index",
    "Permits",
    "Place",
    "Rank",
    "Ready",
    "Source",
    "WallTasks",
    "is_empty",
]

Rank: TypeAlias = "tuple[float, TaskClass]"  # smaller is more important


class Source(Protocol):
    """Where the tasks of a run lie."""

    @property
    def live(self) -> int:
        """How many of its tasks wait."""
        ...

    def is_waiting(self, position: int) -> bool:
        """True if the task has neither started nor gone."""
        ...

    def due_of(self, position: int) -> float:
        """Return the loop time at which the task is due."""
        ...

    def name_of(self, position: int) -> str:
        """Return what the task is called."""
        ...

    def note_started(self, count: int) -> None:
        """Record that so many tasks have started whose places are empty already."""
        ...

    @property
    def key(self) -> Hashable:
        """The key of the tasks; None if they have none."""
        ...

    @property
    def needs(self) -> Mapping[str, int] | None:
        """How much of each resource the start of a task takes; None for one permit."""
        ...

    def cost_of(self, position: int) -> int:
        """Return how many permits the start of the task takes."""
        ...


class Place(Protocol):
    """Where a record waits: a bucket, or once it is due a run or a heap."""

    opened: bool
    calendar: Any

    def cancel_record(self) -> None:
        """Record that a record does not wait here any more."""
        ...


class DueRun(Protocol):
    """Tasks of one source, or records, of which the first is to be taken."""

    @property
    def source(self) -> Source | None:
        """Where they lie; None if they are records."""
        ...

    def take(self) -> Any:
        """Take the first of them: a position, or a record."""
        ...


class Ready(Protocol):
    """What both forms can do."""

    @property
    def active(self) -> object:
        """Falsy if nothing is ready, and nothing is to be let go of: then nobody needs to ask."""
        ...

    def push_record(self, record: Any) -> None:
        """Add a record whose due time has come."""
        ...

    def push_records(self, records: list[Any], rank: Rank) -> None:
        """Add records of one rank, in due order; the list is not the caller's any more."""
        ...

    def push_run(self, source: Source, positions: Sequence[int], rank: Rank) -> None:
        """Add tasks of one source and rank, in due order."""
        ...

    def push_position(self, source: Source, position: int, rank: Rank) -> None:
        """Add one task of a source."""
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

    def pop(self) -> DueRun:
        """Return a run from which to take the first task; only right after :meth:`head` found one."""
        ...

    def served(self) -> None:
        """Record that the task that was taken starts."""
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

    def pop_earliest(self) -> DueRun:
        """Return a run from which to take that task; only right after :meth:`earliest` found one."""
        ...

    @property
    def is_in_due_order(self) -> bool:
        """True if what comes next in the run of :meth:`pop_earliest` is due before all else that waits."""
        ...


class GatedReady(Ready, Protocol):
    """What those can do beside that hold back keys whose limits admit nothing now."""

    def head_at(self, now_ns: int) -> Any:
        """Return what :meth:`head` does of the first task that may start at a time; None if none may.

        A key that may not start its first task leaves the order until it may. Keys that are met here for the first time
        are asked for by functions of the user.
        """
        ...


class Index(Protocol):
    """What is told of each record that waits and has something out of the ordinary."""

    def add(self, record: Any) -> None:
        """Add a record that has come to wait."""
        ...

    def discard(self, record: Any) -> None:
        """Forget a record that does not wait any more."""
        ...


class Deadlines(Index, Protocol):
    """What knows which tasks have deadlines."""

    is_used: bool  # whether there was ever a deadline

    def add_batch(self, source: Any) -> None:
        """Add a batch whose tasks have deadlines."""
        ...

    def next_sweep(self) -> int | None:
        """Return the number of the interval at whose start deadlines have passed; None if there are none."""
        ...


class WallTasks(Protocol):
    """What waits by the wall clock until its interval begins."""

    @property
    def is_pending(self) -> bool:
        """True if anything waits there."""
        ...

    @property
    def is_reading(self) -> bool:
        """True if something is being handed over."""
        ...


def is_empty(ready: Ready) -> bool:
    """True if nothing waits."""
    return next(ready.walk(), None) is None


class Permits(Protocol):
    """What admits starts; times are nanoseconds on the timeline."""

    rate: Any  # permits over time; ``rate.is_zero`` pauses
    usable_until_ns: int

    @property
    def peers(self) -> int:
        """How many peers share the rate."""
        ...

    @property
    def is_unlimited(self) -> bool:
        """True if everything may start at once."""
        ...

    @property
    def is_bursty(self) -> bool:
        """True if many starts may be admitted at once, for as long as it takes to find out which."""
        ...

    @property
    def is_by_wall_clock(self) -> bool:
        """True if a step of the wall clock may let something start."""
        ...

    @property
    def is_stopped(self) -> bool:
        """True if nothing will ever start as things are."""
        ...

    @property
    def is_by_tickets(self) -> bool:
        """True if others admit each start, shortly before."""
        ...

    def set_rate(self, rate: Any, now_ns: int) -> None:
        """Put a rate in force; 0 pauses."""
        ...

    def usable(self, now_ns: int) -> int:
        """Count the starts that are admitted now, and until ``usable_until_ns``."""
        ...

    def take(self, count: int = 1, now_ns: int = 0) -> None:
        """Take the permits of some of them; ``now_ns`` is wanted where :attr:`counts_effects`."""
        ...

    @property
    def counts_effects(self) -> bool:
        """True if a start counts from when it takes effect: then ``take_effect`` or ``defer`` are told of each."""
        ...

    def next_time(self, now_ns: int) -> int | None:
        """Return when a start of cost 1 is admitted, >= ``now_ns``; None if never."""
        ...

    def next_fresh_time(self, now_ns: int) -> int | None:
        """Return the next permit's time; call only where :meth:`usable` returned 0."""
        ...

    def next_number_time(self) -> int:
        """Return a lower bound on the next permit's time."""
        ...

    def pace(self) -> tuple[float, float]:
        """Return how many permits come up a second, evenly, and how many may be usable at once; (0, infinity) if unknown."""
        ...

    @property
    def decides_each(self) -> bool:
        """True if each start is looked at by itself, since it may leave less than one permit less for the next."""
        ...

    @property
    def tickets(self) -> Sequence[tuple[str, Any, Any]]:
        """The tickets of the permits that were taken last, as (resource, limit, ticket); empty if none are needed."""
        ...

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Count the starts of cost 1 that are admitted in [``now_ns``, ``end_ns``)."""
        ...

    def startable_until(self, now_ns: int, end_ns: int) -> int:
        """Count the same by all limits but the rate that paces."""
        ...

    def time_after(self, now_ns: int, count: int) -> int | None:
        """Estimate when the ``count``-th start of cost 1 from now is admitted; None if never."""
        ...
