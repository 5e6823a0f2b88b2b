"""Many tasks of one function as one source, with rising due times, mostly computed rather than stored.

A batch due at one instant, or evenly over a span, needs two numbers for its due times, whatever its length. A batch with
a delay for each item is put in due order once, by its creator: one array holds the due times, another the owner's item
of each position.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.choice import two_bodies, used_there
from ratelimited_executor._kernel.fields import BatchFields, RisingFields
from ratelimited_executor._kernel.records import PERMITS, TaskClass

if TYPE_CHECKING:
    from array import array
    from collections.abc import Hashable, Iterator, Mapping, Sequence

__all__ = ["BatchSource", "RisingOrder"]


class BatchSource(BatchFields):
    """The tasks of one batch, or of a part of it; a task is a position below ``count``.

    Args:
        count: the number of tasks, >= 0.
        first: loop time at which the first is due.
        gap: seconds from one due time to the next, >= 0.
        dues: the due time of each position, rising, instead of ``first`` and ``gap``.
        indexes: the owner's index of each position; the position itself by default.
        rank: priority and class of every task, as the ready queues compare them.
        name: the name of its tasks, without their index.
        owner: the receiver of outcomes; the kernel only carries it.
        deadline_after: seconds after its due time at which a task expires.
        key: the key of the tasks, as it is stored; None if they have none.
        needs: the amount of each resource that a start uses; None for one permit.
    """

    __slots__ = (
        "_swept_count", "calendar", "deadline_after", "key", "name", "needs",
    )  # fmt: skip

    has_records: Final = False

    def __init__(
        self,
        count: int,
        *,
        first: float = 0.0,
        gap: float = 0.0,
        dues: array[float] | None = None,
        indexes: Sequence[int] | None = None,
        rank: tuple[float, TaskClass],
        name: str,
        owner: Any,
        deadline_after: float = math.inf,
        key: Hashable = None,
        needs: Mapping[str, int] | None = None,
    ) -> None:
        self.count = count
        self.first = first if not dues else dues[0]
        self._gap = gap
        self.dues = dues
        self.indexes = range(count) if indexes is None else indexes
        self.rank = rank
        self.name = name
        self.owner = owner
        self.deadline_after = deadline_after
        self.key = key
        self.needs = needs
        self.is_plain = key is None and needs is None and deadline_after == math.inf
        self.is_watched = False  # True if a listener is notified of each of its tasks, which then start one by one
        self.calendar: Any = None  # set when it is placed
        self.parcel = None  # the number of the interval that opens its next tasks
        self.opened_count = 0  # tasks whose interval has begun, started ones included
        self.started_count = 0  # tasks that have started or expired
        self.revoked = False
        self._swept_count = 0  # all positions below it have started or expired
        self._started: bytearray | None = None  # by position; None while exactly those below started_count have started

    @property
    def live(self) -> int:
        """The number of waiting tasks."""
        return 0 if self.revoked else self.count - self.started_count

    @property
    def opened_live(self) -> int:
        """The number of waiting tasks whose interval has begun."""
        return 0 if self.revoked else self.opened_count - self.started_count

    def has_started(self, position: int) -> bool:
        """True if a task has started or expired."""
        return position < self.started_count if self._started is None else bool(self._started[position])

    def is_waiting(self, position: int) -> bool:
        """True if a task still waits."""
        if self.revoked:
            return False
        return position >= self.started_count if self._started is None else not self._started[position]

    def start(self, position: int) -> None:
        """Record that a task starts or expires."""
        if self._started is None and position != self.started_count:  # out of order: a custom order is in force
            self._make_flags()
        if self._started is not None:
            self._started[position] = True
        self.started_count += 1

    def started_flags(self, position: int) -> bytearray | None:
        """Return the started flags from ``position`` on; None while starts are in order and need no flags."""
        if self._started is None and position != self.started_count:
            self._make_flags()
        return self._started

    def note_started(self, count: int) -> None:
        """Record that ``count`` tasks have started, in order, or with their flags set."""
        self.started_count += count

    def waiting_positions(self) -> Iterator[int]:
        """Walk the positions of the waiting tasks."""
        if self._started is None:
            yield from range(self.started_count, self.count)
            return
        position = self._started.find(0)
        while position >= 0:
            yield position
            position = self._started.find(0, position + 1)

    def next_deadline(self) -> float:
        """Return the loop time of the next deadline; infinity if none is left."""
        if self._started is None:
            self._swept_count = max(self._swept_count, self.started_count)
        else:
            while self._swept_count < self.count and self._started[self._swept_count]:
                self._swept_count += 1
        return self.due_of(self._swept_count) + self.deadline_after if self._swept_count < self.count else math.inf

    def overdue(self, now: float) -> Iterator[int]:
        """Walk the positions of waiting tasks whose deadline has passed; :meth:`start` each before the next."""
        while not self.revoked and self.next_deadline() < now:
            self._swept_count += 1
            if not self.has_started(self._swept_count - 1):
                yield self._swept_count - 1

    def due_of(self, position: int) -> float:
        """Return the loop time at which a task is due."""
        return self.first + position * self._gap if self.dues is None else self.dues[position]

    def name_of(self, position: int) -> str:
        """Return the name of a task."""
        return f"{self.name}[{self.indexes[position]}]"

    def cost_of(self, position: int) -> int:  # noqa: ARG002  # the signature of Source
        """Return how many permits the start of a task takes."""
        return 1 if self.needs is None else self.needs.get(PERMITS, 1)

    def count_before(self, end: float) -> int:
        """Count the tasks due before ``end``."""
        if self.dues is not None:
            return bisect_left(self.dues, end)
        return bisect_left(range(self.count), end, key=self.due_of)

    @two_bodies
    def count_until(self, now: float, start: int, stop: int) -> int:
        """Return how many tasks are due at or before ``now``, known to be from ``start`` to ``stop``."""
        if self.dues is not None:
            return bisect_right(self.dues, now, start, stop)
        return bisect_right(range(stop), now, lo=start, key=self.due_of)

    def again(self, index: int, due: float) -> BatchSource:
        """Return a source for one task of the batch, by the owner's index, at another due time."""
        rank = (self.rank[0], TaskClass.OTHER)
        return BatchSource(
            1, first=due, indexes=(index,), rank=rank, name=self.name, owner=self.owner,
            deadline_after=self.deadline_after, key=self.key, needs=self.needs,
        )  # fmt: skip

    def _fn_of(self, position: int) -> Any:  # noqa: ARG002  # the signature of Source
        """Return the function that a task calls."""
        return self.owner._call

    def _args_of(self, position: int) -> tuple[Any, ...]:
        """Return the item of a task, as arguments; nothing once all have started."""
        items = self.owner._parts.get(self)
        return () if items is None else (items[self.indexes[position]],)

    def _make_flags(self) -> None:
        self._started = bytearray(self.count)
        self._started[: self.started_count] = b"\1" * self.started_count


@used_there
class RisingOrder(RisingFields):
    """The positions of a batch, in due order already: the counterpart of :class:`~.due_order.DueOrder` for a bucket."""

    __slots__ = ()

    _dues: array[float] | None
    _source: BatchSource

    def __init__(self, source: BatchSource, start: int, stop: int) -> None:
        self._source = source
        self._dues = source.dues
        self._next = start
        self._stop = stop

    def prepare(self) -> bool:
        """Do nothing: there is nothing to order."""
        return True

    def head(self) -> float:
        """Return the earliest due time left; infinity if none is."""
        if self._next >= self._stop or self._source.revoked:
            return math.inf
        return self._source.due_of(self._next) if self._dues is None else self._dues[self._next]

    @property
    def left_count(self) -> int:
        """The number of tasks not taken yet."""
        return 0 if self._source.revoked else self._stop - self._next

    def count_until(self, when: float) -> int:
        """Count the tasks left that are due at or before a time."""
        return 0 if self._source.revoked else self._source.count_until(when, self._next, self._stop) - self._next

    def take_lone(self, now: float) -> int | None:
        """Remove and return the first index, if it is due at ``now`` and the next one is not."""
        first = self._next
        if first + 1 < self._stop and self._source.due_of(first + 1) <= now:
            return None
        self._next = first + 1
        return first

    def take_first(self, now: float) -> int | None:
        """Remove and return the first index, if it is due at ``now``."""
        if self.head() > now:
            return None
        self._next += 1
        return self._next - 1

    def take(self, now: float, limit: int) -> Sequence[int]:
        """Remove and return at most ``limit`` indexes due at or before ``now``."""
        start = self._next
        stop = min(start + limit, self._stop)
        self._next = self._source.count_until(now, start, stop)
        return range(start, self._next)
