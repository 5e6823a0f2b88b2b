"""The interfaces that the kernel requires of its collaborators, each a narrow protocol.

The source of a run's tasks, the order of due tasks and the permits: each has one plain form, in the kernel or passed to
it, and others outside for rarely used features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence


__all__ = [
    "Deadlines",
    "DueReady",
    "DueRun",
    "Index",
    "Permits",
    "Place",
    "Rank",
    "Ready",
    "Source",
    "WallTasks",
    "is_empty",
]

Rank: TypeAlias = "tuple[float, int]"  # smaller is more important


class Source(Protocol):
    """The source of the tasks of a run: a bucket or a batch."""

    @property
    def live(self) -> int:
        """The number of waiting tasks."""
        ...

    def is_waiting(self, position: int) -> bool:
        """True if the task has neither started nor gone."""
        ...

    def due_of(self, position: int) -> float:
        """Return the loop time at which the task is due."""
        ...

    def name_of(self, position: int) -> str:
        """Return the name of the task."""
        ...

    def note_started(self, count: int) -> None:
        """Record that ``count`` tasks have started whose places are already empty."""
        ...

    @property
    def key(self) -> Hashable:
        """The key of the tasks; None if they have none."""
        ...

    @property
    def needs(self) -> Mapping[str, int] | None:
        """The amount of each resource that the start of a task uses; None for one permit."""
        ...

    def cost_of(self, position: int) -> int:
        """Return how many permits the start of the task takes."""
        ...


class Place(Protocol):
    """Where a record waits: a bucket, or, once it is due, a run or a heap."""

    opened: bool
    calendar: Any

    def cancel_record(self) -> None:
        """Note that a record no longer waits here."""
        ...


class DueRun(Protocol):
    """Tasks of one source, or records; the first is to be taken."""

    @property
    def source(self) -> Source | None:
        """The source of the tasks; None for records."""
        ...

    def take(self) -> Any:
        """Take the first: a position, or a record."""
        ...


class Ready(Protocol):
    """The ready tasks by importance: the interface of all forms."""

    @property
    def active(self) -> object:
        """Falsy if nothing is ready and nothing is to be released, so that no other call is needed."""
        ...

    def push_record(self, record: Any) -> None:
        """Add a record whose due time has come."""
        ...

    def return_record(self, record: Any) -> None:
        """Add a record that was taken and has not begun; at its place, as far as the order remembers it."""
        ...

    def push_records(self, records: list[Any], rank: Rank) -> None:
        """Add records of one rank, in due order; takes ownership of the list."""
        ...

    def push_run(self, source: Source, positions: Sequence[int], rank: Rank) -> None:
        """Add tasks of one source and rank, in due order."""
        ...

    def push_position(self, source: Source, position: int, rank: Rank) -> None:
        """Add one task of a source."""
        ...

    def head(self) -> Any:
        """Return a value that compares as the importance of the first task, smaller first; None if none waits."""
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

    def release(self) -> None:
        """Release all held-back tasks, before all tasks are moved to another order."""
        ...

    def note_replaced(self) -> None:
        """Pass on to the queue in its place, ``calendar.ready``, the tasks that are added while user code still runs here."""
        ...

    def walk(self) -> Iterator[tuple[Source | None, Any]]:
        """Walk the waiting tasks as (source, position) or (None, record), most important first where that is cheap."""
        ...

    def drain(self, count: int) -> list[Any] | None:
        """Forget about ``count`` tasks, in no order; None if none was left.

        Returns:
            The records among them, ``count`` at most, for the caller to end before the next call.
        """
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...

    def keyed(self) -> Iterator[tuple[Any, Source | None, Any]]:
        """Walk the waiting tasks as (rank, source, position) or (rank, None, record); smaller ranks start first."""
        ...


class DueReady(Ready, Protocol):
    """The interface of forms that also know which task is due first."""

    def earliest(self) -> float | None:
        """Return the due time of the task due first (of equal ones, the first to arrive); None if none waits."""
        ...

    def peek_earliest(self) -> tuple[Source | None, Any]:
        """Return the task due first, as :meth:`peek` does; only right after :meth:`earliest` found one."""
        ...

    def pop_earliest(self) -> DueRun:
        """Return a run from which to take the task due first; only right after :meth:`earliest` found one."""
        ...

    @property
    def is_in_due_order(self) -> bool:
        """True if the next task in the run of :meth:`pop_earliest` is due before all others that wait."""
        ...

    def leading(self, count: int) -> list[tuple[Source | None, Any]]:
        """Return about ``count`` of the first tasks, as (source, position) or (None, record), in their order."""
        ...


class Index(Protocol):
    """An index of waiting records with rarely used options."""

    def add(self, record: Any) -> None:
        """Add a record that now waits."""
        ...

    def discard(self, record: Any) -> None:
        """Remove a record that no longer waits."""
        ...


class Deadlines(Index, Protocol):
    """The index of tasks with deadlines."""

    is_used: bool  # True once any task has had a deadline

    def add_batch(self, source: Any) -> None:
        """Add a batch whose tasks have deadlines."""
        ...

    def next_sweep(self) -> int | None:
        """Return the number of the interval at whose start deadlines have passed; None if there are none."""
        ...


class WallTasks(Protocol):
    """The tasks due by the wall clock, until their interval begins."""

    @property
    def is_pending(self) -> bool:
        """True if any task waits here."""
        ...

    @property
    def is_reading(self) -> bool:
        """True while tasks are being handed over."""
        ...


def is_empty(ready: Ready) -> bool:
    """True if no task waits."""
    return next(ready.walk(), None) is None


class Permits(Protocol):
    """The permits that admit starts; times are nanoseconds on the timeline."""

    rate: Any  # permits over time; ``rate.is_zero`` pauses
    usable_until_ns: int

    @property
    def peers(self) -> int:
        """The number of peers that share the rate."""
        ...

    @property
    def is_unlimited(self) -> bool:
        """True if everything may start at once."""
        ...

    @property
    def is_bursty(self) -> bool:
        """True if many starts may be admitted at once, by permits that do not lapse while due tasks are ordered."""
        ...

    @property
    def is_by_wall_clock(self) -> bool:
        """True if a step of the wall clock may let something start."""
        ...

    @property
    def is_stopped(self) -> bool:
        """True if nothing will ever start under the current settings."""
        ...

    @property
    def is_by_tickets(self) -> bool:
        """True if an authority admits each start, shortly before it."""
        ...

    def set_rate(self, rate: Any, now_ns: int) -> None:
        """Put a rate in force; 0 pauses."""
        ...

    def usable(self, now_ns: int) -> int:
        """Count the starts that are admitted now, and until ``usable_until_ns``."""
        ...

    def take(self, count: int = 1, now_ns: int = 0) -> None:
        """Take the permits of ``count`` starts; ``now_ns`` is needed where :attr:`counts_effects`."""
        ...

    @property
    def counts_effects(self) -> bool:
        """True if a start counts from when it takes effect: then ``take_effect`` or ``defer`` is called for each."""
        ...

    def begin_at(self, time_ns: int) -> None:
        """Begin the pace anew at a time, from the newest permit, if permits may be moved and this one was not taken."""
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
        """True if each start needs a check of its own, since its cost may leave less for the next."""
        ...

    @property
    def receipts(self) -> Sequence[tuple[str, Any, Any]]:
        """The receipts of the permits taken last, as (resource, limit, receipt); empty if none are needed."""
        ...

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Count the starts of cost 1 that are admitted in [``now_ns``, ``end_ns``)."""
        ...

    def startable_until(self, now_ns: int, end_ns: int) -> int:
        """Count like :meth:`count_until`, by all limits except the rate that paces."""
        ...

    def time_after(self, now_ns: int, count: int) -> int | None:
        """Estimate when the ``count``-th start of cost 1 from now is admitted; None if never."""
        ...
