"""Many tasks of one function as one source, whose due times are computed rather than stored.

A batch due at one instant, or evenly over a span, needs two numbers for its due times, whatever its length. A batch with
a delay for each item keeps them in an array, and its indexes dealt out to the intervals.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.due_order import DueOrder

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Sequence

    from ratelimited_executor._core.ordering import TaskClass

__all__ = ["BatchSource", "RisingOrder"]


class BatchSource:
    """The tasks of one batch, or of a part of it; a task is a position below ``count``, or one of its parcels.

    Args:
        count: how many tasks, >= 0.
        first: loop time at which the first is due.
        gap: seconds from one due time to the next, >= 0.
        dues: the due time of each position, in any order, in place of ``first`` and ``gap``.
        parcels: which positions are due in which interval, by its number; only together with ``dues``.
        rank: priority and class of every task, as the ready queues compare them.
        name: what a task of it is called.
        owner: whom the shell tells of outcomes; the core only carries it.
        deadline_after: seconds after its due time at which a task expires.
    """

    __slots__ = (
        "_gap", "_started", "_swept_count", "_unswept", "base", "calendar", "count", "deadline_after", "dues", "first",
        "name", "opened_count", "owner", "parcels", "rank", "revoked", "started_count",
    )  # fmt: skip

    has_records: Final = False

    def __init__(
        self,
        count: int,
        *,
        first: float = 0.0,
        gap: float = 0.0,
        dues: array[float] | None = None,
        parcels: dict[int, Sequence[int]] | None = None,
        rank: tuple[float, TaskClass],
        name: str,
        owner: Any,
        deadline_after: float = math.inf,
    ) -> None:
        self.count = count
        self.first = first
        self._gap = gap
        self.dues = dues
        self.rank = rank
        self.name = name
        self.owner = owner
        self.deadline_after = deadline_after
        self.calendar: Any = None  # set when it is placed
        self.opened_count = 0  # tasks whose interval has begun, started ones included
        self.started_count = 0  # tasks that have started or expired
        self.revoked = False
        self.base = 0  # what the owner adds to a position to get its own index
        self.parcels = parcels
        self._swept_count = 0  # rising ones: tasks below it have started or expired
        self._unswept: list[tuple[float, int]] | None = None  # parcels by their latest due time, the first of them last
        self._started: bytearray | None = None  # by position; None while exactly those below started_count have

    @property
    def live(self) -> int:
        """How many tasks wait."""
        return 0 if self.revoked else self.count - self.started_count

    def has_started(self, position: int) -> bool:
        """Whether a task has started or expired."""
        return position < self.started_count if self._started is None else bool(self._started[position])

    def is_waiting(self, position: int) -> bool:
        """Whether a task still waits."""
        return not self.revoked and not self.has_started(position)

    def start(self, position: int) -> None:
        """Note that a task starts or expires."""
        if self._started is None and position != self.started_count:  # out of order: there is an order of one's own
            self._make_flags()
        if self._started is not None:
            self._started[position] = True
        self.started_count += 1

    def started_flags(self, position: int) -> bytearray | None:
        """Return where to note, by position, what starts from ``position`` on; None if that is in order, and needs no note."""
        if self._started is None and (self.dues is not None or position != self.started_count):
            self._make_flags()
        return self._started

    def note_started(self, count: int) -> None:
        """Note that so many tasks have started, in order, or with their flags set."""
        self.started_count += count

    def waiting_positions(self) -> Iterator[int]:
        """Walk the positions of the tasks that wait."""
        for positions in (range(self.count),) if self.parcels is None else self.parcels.values():
            for position in positions:
                if not self.has_started(position):
                    yield position

    def next_deadline(self) -> float:
        """Return the loop time by which more deadlines have passed: one, or those of a parcel; infinity if none is left."""
        if self.parcels is None:
            if self._started is None:
                self._swept_count = max(self._swept_count, self.started_count)
            return self.due_of(self._swept_count) + self.deadline_after if self._swept_count < self.count else math.inf
        assert self.dues is not None
        if self._unswept is None:
            latest = ((max(map(self.dues.__getitem__, parcel)), number) for number, parcel in self.parcels.items())
            self._unswept = sorted(latest, reverse=True)
        return self._unswept[-1][0] + self.deadline_after if self._unswept else math.inf

    def overdue(self, now: float) -> Iterator[int]:
        """Walk the positions of waiting tasks whose deadline has passed; each is to be started before the next."""
        while self.next_deadline() < now:
            if self.parcels is None:
                self._swept_count += 1
                if not self.has_started(self._swept_count - 1):
                    yield self._swept_count - 1
            else:
                assert self._unswept is not None
                yield from (p for p in self.parcels[self._unswept[-1][1]] if not self.has_started(p))
                self._unswept.pop()

    def due_of(self, position: int) -> float:
        """Return the loop time at which a task is due."""
        return self.first + position * self._gap if self.dues is None else self.dues[position]

    def name_of(self, position: int) -> str:
        """Return what a task is called."""
        return f"{self.name}[{position}]"

    def order(self, positions: Sequence[int], start: float, end: float) -> DueOrder:
        """Put some of the tasks of an interval in due order; only for due times in an array."""
        assert self.dues is not None
        return DueOrder(self.dues, start, end, positions)

    def _make_flags(self) -> None:
        self._started = bytearray(self.count if self.dues is None else len(self.dues))
        self._started[: self.started_count] = b"\1" * self.started_count

    def count_before(self, end: float) -> int:
        """Count the tasks due before ``end``; only for rising due times."""
        return bisect_left(range(self.count), end, key=self.due_of)


class RisingOrder:
    """Indexes of a batch whose due times rise: what :class:`~.due_order.DueOrder` is for a bucket, without any work."""

    __slots__ = ("_next", "_source", "_stop")

    def __init__(self, source: BatchSource, start: int, stop: int) -> None:
        self._source = source
        self._next = start
        self._stop = stop

    def prepare(self) -> bool:
        """Do nothing: there is nothing to order."""
        return True

    def head(self) -> float:
        """Return the earliest due time that is left; infinity if none is."""
        return math.inf if self._next >= self._stop or self._source.revoked else self._source.due_of(self._next)

    def take(self, now: float, limit: int) -> Sequence[int]:
        """Remove and return the indexes due at or before ``now``, ``limit`` of them at most."""
        start = self._next
        stop = min(start + limit, self._stop)
        self._next = bisect_right(range(stop), now, lo=start, key=self._source.due_of)
        return range(start, self._next)
