"""Due tasks that have not started: the most important one first, or the one that is due first.

:class:`ReadyQueues` keeps the default order with a queue for each pair of priority and class: O(1) a task however many
wait. Others of the same shape (``contracts.py``) are in ``_core/order``: ``ready_heap.py`` for any other order by a key
function, ``ready_fair.py`` for shares by key, ``ready_keyed.py`` for limits of keys.

Importance decides where more tasks are due than may start. Where all fit, the plan of an interval goes by due time, and
by arrival where due times are equal. This form and the heap answer that from the same tasks. The index for it is built
on demand, and dropped when it is no longer used: an overload does not pay for it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.choice import two_bodies, used_there
from ratelimited_executor._kernel.fields import ReadyFields
from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor._kernel.runs import RecordRun, Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratelimited_executor._kernel.contracts import Rank, Source
    from ratelimited_executor._kernel.records import Record

__all__ = ["ReadyQueues"]

_SPARE_COUNT: Final = 64  # stale entries of an index that are tolerated
_NO_RANK: Final = (0, TaskClass.OTHER)
_RETURNED: Final = -1  # in place of the class of a task whose start has lapsed: before all others of its priority


@used_there
class ReadyQueues(ReadyFields):
    """The default order: a queue of runs for each pair of priority and class.

    Args:
        calendar: the calendar of the records' places.
    """

    __slots__ = ("_calendar",)

    _by_due: list[tuple[float, int, Rank]] | None

    def __init__(self, calendar: Any) -> None:
        self._calendar = calendar
        self._queues: dict[Rank, deque[Run | RecordRun]] = {}
        self.active: list[Rank] = []  # a heap of the keys of _queues
        self._count = 0  # tasks added so far: the number of the next
        # A heap of (due time of the first task, its number, rank), or lower bounds: one or more for each non-empty
        # queue.
        self._by_due = None
        self._earliest: Rank = _NO_RANK  # the rank of the queue that earliest() found

    def push_record(self, record: Record, kind: int | None = None) -> None:
        """Add a record whose due time has come, optionally under another class: O(1)."""
        queue = self._queue((-record.priority, record._class if kind is None else kind))
        last = queue[-1] if queue else None
        if not isinstance(last, RecordRun) or not last.push(record, self._count):
            last = RecordRun(self._calendar)
            last.push(record, self._count)
            queue.append(last)
        self._count += 1

    def return_record(self, record: Record) -> None:
        """Add a record that was taken and has not begun, before all others of its priority: O(1)."""
        self.push_record(record, _RETURNED)

    def push_records(self, records: list[Record], rank: Rank) -> None:
        """Add records of one rank, in due order."""
        self._queue(rank).append(RecordRun(self._calendar, records, self._count))
        self._count += len(records)

    @two_bodies
    def push_run(self, source: Source, positions: Sequence[int], rank: Rank) -> None:
        """Add tasks of one source and rank, in due order: O(1)."""
        self._queue(rank).append(Run(source, positions, self._count))
        self._count += len(positions)

    def push_position(self, source: Source, position: int, rank: Rank) -> None:
        """Add one task of a source: O(1), without a new object where it extends the last run."""
        queue = self._queues.get(rank)
        self._count += 1
        if queue:
            last = queue[-1]
            if type(last) is Run and last.extend(source, position):
                return
        self._queue(rank).append(Run(source, [position], self._count - 1))

    @two_bodies
    def head(self) -> tuple[Rank, float] | None:
        """Return rank and due time of the first task that waits; None if none does."""
        while self.active:
            rank = self.active[0]
            queue = self._queues[rank]
            while queue:
                due = queue[0].head_due()
                if due is not None:
                    return rank, due
                queue.popleft()
            del self._queues[rank]
            heapq.heappop(self.active)
        return None

    def head_rank(self) -> Rank:
        """Return the rank of the first task; only right after :meth:`head` found one."""
        return self.active[0]

    def peek(self) -> tuple[Source | None, Any]:
        """Return the first task, as (source, position) or (None, record); only right after :meth:`head` found one."""
        return self._queues[self.active[0]][0].peek()

    def pop(self) -> Run | RecordRun:
        """Return a run from which to take the first task; only right after :meth:`head` found one."""
        return self._queues[self.active[0]][0]

    @two_bodies
    def earliest(self) -> float | None:
        """Return the due time of the task due first (of equal ones, the first to arrive): O(log ranks)."""
        if len(self.active) <= 1:  # nearly always
            head = self.head()
            if head is None:
                return None
            self._earliest, due = head
            return due
        if self._by_due is None:
            self._by_due = [(-math.inf, 0, rank) for rank in self.active]  # in heap order, as active is
        by_due = self._by_due
        while by_due:
            rank = by_due[0][2]
            queue = self._queues.get(rank)
            first = None if queue is None else _first_of(queue)
            if first is None:
                heapq.heappop(by_due)
                continue
            run, due = first
            entry = due, run.head_number, rank
            if entry == by_due[0]:
                self._earliest = rank
                return due
            heapq.heapreplace(by_due, entry)
        return None

    def peek_earliest(self) -> tuple[Source | None, Any]:
        """Return the task due first, as :meth:`peek` does; only right after :meth:`earliest` found one."""
        return self._queues[self._earliest][0].peek()

    def pop_earliest(self) -> Run | RecordRun:
        """Return a run from which to take the task due first; only right after :meth:`earliest` found one."""
        return self._queues[self._earliest][0]

    @property
    def is_in_due_order(self) -> bool:
        """True if all waiting tasks have one rank, as far as is known."""
        return len(self.active) == 1

    def release(self) -> None:
        """Do nothing: nothing is held back."""

    def note_replaced(self) -> None:
        """Do nothing: no user code runs here."""

    def walk(self) -> Iterator[tuple[Source | None, Any]]:
        """Walk the waiting tasks, the most important first."""
        for run in [run for rank in sorted(self.active) for run in self._queues[rank]]:
            yield from run.walk()

    def leading(self, count: int) -> list[tuple[Source | None, Any]]:
        """Return the first ``count`` tasks, in their order."""
        return list(islice(self.walk(), count))

    def records(self) -> Iterator[tuple[None, Record]]:
        """Walk the waiting records as :meth:`walk` does, without visiting each task of the sources between them."""
        for run in [run for rank in sorted(self.active) for run in self._queues[rank]]:
            if isinstance(run, RecordRun):
                yield from run.walk()

    def drain(self, count: int) -> list[Record] | None:
        """Forget up to ``count`` runs, and return at most as many waiting records of them; None if none was left."""
        for _ in range(count):
            if not self.active:
                return None
            queue = self._queues[self.active[0]]
            if not queue:
                del self._queues[heapq.heappop(self.active)]
            elif isinstance(queue[0], RecordRun) and queue[0].head_due() is not None:
                return queue[0].drain(count)
            else:
                queue.popleft()
        return []

    def clear(self) -> None:
        """Forget everything."""
        self._queues.clear()
        self.active.clear()
        self._by_due = None

    def keyed(self) -> Iterator[tuple[Any, Source | None, Any]]:
        """Walk the waiting tasks as (rank, source, position) or (rank, None, record)."""
        for rank in self.active:
            waiting = chain.from_iterable(run.walk() for run in self._queues[rank])
            for index, (source, item) in enumerate(waiting):
                due = item._due if source is None else source.due_of(item)
                yield (rank, due, index), source, item

    def _queue(self, rank: Rank) -> deque[Run | RecordRun]:
        queue = self._queues.get(rank)
        if queue is None:
            queue = self._queues[rank] = deque()
            heapq.heappush(self.active, rank)
        if not queue and self._by_due is not None:
            heapq.heappush(self._by_due, (-math.inf, 0, rank))
            if len(self._by_due) > 2 * len(self.active) + _SPARE_COUNT:  # it is no longer used
                self._by_due = None
        return queue


def _first_of(queue: deque[Run | RecordRun]) -> tuple[Run | RecordRun, float] | None:
    """Return the first run of a queue with a waiting task, and the due time of that; None if no task waits."""
    while queue:
        due = queue[0].head_due()
        if due is not None:
            return queue[0], due
        queue.popleft()
    return None
