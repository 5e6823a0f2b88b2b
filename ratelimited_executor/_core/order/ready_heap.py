"""Due tasks in any order: a heap by a sort key, O(log n) a task."""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ratelimited_executor._core.lazy_heap import GuardedHeap, WholeHeap
from ratelimited_executor._core.order.ordering import view_of
from ratelimited_executor._kernel.runs import RecordRun, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ratelimited_executor._core.order.ordering import Order
    from ratelimited_executor._core.queue.records import TaskRecord
    from ratelimited_executor._kernel.contracts import Rank, Source

__all__ = ["ReadyHeap"]

_SPARE_COUNT: Final = 64  # stale entries of an index that are tolerated


class _Entry:
    """A task and its sort key in a heap; keys that cannot be compared are reported, and ordered by arrival."""

    __slots__ = ("arrival", "key", "position", "rank", "report", "source")

    def __init__(
        self, key: Any, rank: Rank, arrival: int, source: Source | None, position: Any, report: Report
    ) -> None:
        self.key = key
        self.rank = rank
        self.arrival = arrival
        self.source = source  # None: position is a record
        self.position = position
        self.report = report

    def __lt__(self, other: _Entry) -> bool:
        if self.key is None or other.key is None:  # a key function that raised puts its task last
            return self.key is not None or (other.key is None and self.arrival < other.arrival)
        try:
            if self.key[0] < other.key[0]:
                return True
            if other.key[0] < self.key[0]:
                return False
        except BaseException as error:  # noqa: BLE001  # a comparison is user code: no error in it may lose a task
            self.report(error)
        return self.arrival < other.arrival


Report: TypeAlias = "Callable[[BaseException], None]"


class ReadyHeap:
    """Any order: a heap of tasks by their sort key, evaluated once when they become due.

    Args:
        calendar: the calendar that its records belong to.
        order: the key function.
        to_epoch: converts a due time to epoch seconds.
        report: called with errors of the key function and of comparisons.
        arrivals: numbers the tasks in order of arrival; heaps of one order share it.
    """

    active: Final = True
    __slots__ = (
        "_arrivals", "_by_due", "_first", "_heap", "_order", "_report", "_to_epoch", "_unkeyed", "calendar", "is_replaced",
    )  # fmt: skip

    opened: Final = True

    def __init__(
        self,
        calendar: Any,
        order: Order,
        *,
        to_epoch: Callable[[float], float],
        report: Report,
        arrivals: Iterator[int] | None = None,
    ) -> None:
        self.calendar = calendar
        self._order = order
        self._to_epoch = to_epoch
        self._report = report
        self._heap: GuardedHeap[_Entry] = GuardedHeap(self._is_gone)
        self._by_due: WholeHeap[tuple[float, int, _Entry]] | None = None  # None until earliest() is called
        self._first: Any = None  # the entry that head() found
        self._unkeyed: dict[TaskRecord, None] = {}  # waiting records whose sort keys are being computed
        self._arrivals = count(1) if arrivals is None else arrivals
        self.is_replaced = False  # True once the calendar has a queue of another order

    def push_record(self, record: TaskRecord) -> None:
        """Add a record whose due time has come: O(log n)."""
        self.push_records([record], (-record.priority, record._class))

    def return_record(self, record: TaskRecord) -> None:
        """Add a record that was taken and has not begun, by its sort key."""
        self.push_record(record)

    def push_records(self, records: list[TaskRecord], rank: Rank) -> None:  # noqa: ARG002  # each record has its own
        """Add records: O(log n) each."""
        for record in records:
            record._place = self
            self._unkeyed[record] = None
        for record in records:
            if record._place is not self:  # the order has cancelled it while computing another key
                del self._unkeyed[record]
            else:
                self._push(None, record, record._due, record.name, (-record.priority, record._class), record)

    def push_run(self, source: Source, positions: Sequence[int], rank: Rank) -> None:
        """Add tasks of one source and rank: O(log n) each."""
        for position in positions:
            if source.is_waiting(position):
                self._push(source, position, source.due_of(position), source.name_of(position), rank, source)

    def push_position(self, source: Source, position: int, rank: Rank) -> None:
        """Add one task of a source: O(log n)."""
        self.push_run(source, (position,), rank)

    def head(self) -> _Entry | None:
        """Return the entry of the first waiting task; None if none waits."""
        self._first = first = self._heap.first()
        return first

    def head_rank(self) -> Rank:
        """Return the rank of the first task; only right after :meth:`head` found one."""
        rank: Rank = self._first.rank
        return rank

    def peek(self) -> tuple[Source | None, Any]:
        """Return the first task, as (source, position) or (None, record); only right after :meth:`head` found one."""
        return self._first.source, self._first.position

    def release(self) -> None:
        """Do nothing: no task is held back."""

    def note_replaced(self) -> None:
        """Pass tasks to another queue that are added while the order computes their key."""
        self.is_replaced = True

    def pop(self) -> Run | RecordRun:
        """Return a run from which to take the first task; only right after :meth:`head` found one."""
        first = self._heap.pop()
        self._first = None
        if self._by_due is not None and len(self._by_due) > 2 * len(self._heap) + _SPARE_COUNT:  # not used any more
            self._by_due = None
        return self._run_of(first)

    def earliest(self) -> float | None:
        """Return the due time of the task due first, the first to arrive among equals: O(log n)."""
        if self._by_due is None:
            entries = ((_due_of(entry), entry.arrival, entry) for entry in self._heap.walk())
            self._by_due = WholeHeap(lambda each: self._is_gone(each[2]), entries)
        first = self._by_due.first()
        return None if first is None else first[0]

    def peek_earliest(self) -> tuple[Source | None, Any]:
        """Return the task due first, as :meth:`peek` does; only right after :meth:`earliest` found one."""
        assert self._by_due is not None
        entry = self._by_due.entries[0][2]
        return entry.source, entry.position

    def pop_earliest(self) -> Run | RecordRun:
        """Return a run from which to take the task due first; only right after :meth:`earliest` found one."""
        assert self._by_due is not None
        run = self._run_of(self._by_due.pop()[2])
        self.cancel_record()  # its entry in the heap by importance is stale now
        return run

    is_in_due_order: Final = True  # a run here is a single task

    def cancel_record(self) -> None:
        """Record that a record here no longer waits; its entry is freed when many are stale."""
        self._heap.note_stale()

    def walk(self) -> Iterator[tuple[Source | None, Any]]:
        """Walk the waiting tasks, in no order."""
        for entry in self._heap.walk():
            yield entry.source, entry.position
        for record in self._unkeyed:
            if record._place is self:
                yield None, record

    def leading(self, count: int) -> list[tuple[Source | None, Any]]:
        """Return about ``count`` of the first tasks, in their order: O(count log count)."""
        return [(entry.source, entry.position) for entry in self._heap.leading(count)]

    def drain(self, count: int) -> list[TaskRecord] | None:
        """Forget up to ``count`` tasks, and return the waiting records among them; None if none was left."""
        records = [entry.position for entry in self._heap.drain(count) if entry.source is None]
        self._heap.stale_count -= len(records)  # their ends will be noted
        if records or len(self._heap):
            return records
        return [record for record in islice(self._unkeyed, count) if record._place is self] or None

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()
        self._unkeyed.clear()
        self._by_due = self._first = None

    def keyed(self) -> Iterator[tuple[Any, Source | None, Any]]:
        """Walk the waiting tasks as (rank, source, position) or (rank, None, record)."""
        for entry in self._heap.walk():
            yield entry, entry.source, entry.position

    def _run_of(self, entry: _Entry) -> Run | RecordRun:
        if entry.source is not None:
            return Run(entry.source, (entry.position,))
        return RecordRun(self.calendar, [entry.position])

    def _is_gone(self, entry: _Entry) -> bool:
        if entry.source is None:
            return entry.position._place is not self
        return not entry.source.is_waiting(entry.position)

    def _push(
        self, source: Source | None, position: Any, due: float, name: str, rank: Rank, keyed: Source | TaskRecord
    ) -> None:
        arrival = next(self._arrivals)
        cost = position.cost if source is None else source.cost_of(position)
        place = (position, 0) if source is None else (source, position)
        view = view_of(name, rank, self._to_epoch(due), arrival=arrival, key=keyed.key, cost=cost, place=place)
        try:
            key: Any = (self._order(view),)
        except BaseException as error:  # noqa: BLE001  # an order is user code: its task goes last and is not lost
            self._report(error)
            key = None
        if source is None:
            self._unkeyed.pop(position, None)
            if position._place is not self:  # the order has cancelled it
                return
        if self.is_replaced:  # the order has set another order
            if source is None:
                self.calendar.ready.push_record(position)
            else:
                self.calendar.ready.push_position(source, position, rank)
            return
        entry = _Entry(key, rank, arrival, source, position, self._report)
        if self._by_due is not None:
            self._by_due.push((due, arrival, entry))
        self._heap.push(entry)


def _due_of(entry: _Entry) -> float:
    due: float = entry.position._due if entry.source is None else entry.source.due_of(entry.position)
    return due
