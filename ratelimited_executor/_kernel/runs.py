"""Tasks that became due together, in due order: many of one source, or records.

A :class:`Run` names many tasks of one source at once (positions in a bucket's columns, or indexes of a batch) and costs
nothing per task, so that an overflow of a million is a few hundred objects. A :class:`RecordRun` holds records, and is the
place of those that are due and wait.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.choice import used_there
from ratelimited_executor._kernel.fields import RecordRunFields, RunFields
from ratelimited_executor._kernel.sizes import RECORD_COUNT_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratelimited_executor._kernel.contracts import Source
    from ratelimited_executor._kernel.records import Record

__all__ = ["RecordRun", "Run"]

_SPARE_COUNT: Final = 64  # stale places that are tolerated


@used_there
class Run(RunFields):
    """Tasks of one source that became due together, in due order.

    Args:
        source: the source of the tasks.
        positions: their positions in it.
        number: the number of the first, in the order in which tasks became due; that of the next is one more.
    """

    __slots__ = ()

    _positions: Sequence[int]
    source: Source

    def __init__(self, source: Source, positions: Sequence[int], number: int = 0) -> None:
        self.source = source
        self._positions = positions
        self._number = number
        self._cursor = 0

    def head_due(self) -> float | None:
        """Return the due time of the first task that still waits; None if none does."""
        if not self.source.live:  # all its tasks have gone: there may be a million of them
            return None
        while self._cursor < len(self._positions):
            position = self._positions[self._cursor]
            if self.source.is_waiting(position):
                return self.source.due_of(position)
            self._cursor += 1
        return None

    @property
    def head_number(self) -> int:
        """The number of the task that :meth:`head_due` found."""
        return self._number + self._cursor

    def extend(self, source: Source, position: int) -> bool:
        """Append a task, if it is of the same source and the run can grow."""
        if source is self.source and type(self._positions) is list:
            self._positions.append(position)
            return True
        return False

    def take(self) -> int:
        """Return the position that :meth:`head_due` found, and advance to the next."""
        position = self._positions[self._cursor]
        self._cursor += 1
        return position

    @property
    def first(self) -> int:
        """The position that :meth:`head_due` found."""
        return self._positions[self._cursor]

    def peek(self) -> tuple[Source, int]:
        """Return source and position of the task that :meth:`head_due` found."""
        return self.source, self._positions[self._cursor]

    def positions(self) -> Iterator[int]:
        """Return an iterator over the positions left, which knows its progress: see :meth:`advance`."""
        positions: Any = iter(self._positions)
        positions.__setstate__(self._cursor)
        rest: Iterator[int] = positions
        return rest

    def advance(self, positions: Any) -> int:
        """Advance to the progress of an iterator of :meth:`positions`; return the number of positions passed."""
        before, self._cursor = self._cursor, len(self._positions) - positions.__length_hint__()
        return self._cursor - before

    def last_due(self) -> float:
        """Return the due time of the task that was taken last."""
        return self.source.due_of(self._positions[max(self._cursor - 1, 0)])

    def walk(self) -> Iterator[tuple[Source, Any]]:
        """Walk the waiting tasks."""
        for position in self.positions() if self.source.live else ():
            if self.source.is_waiting(position):
                yield self.source, position


class RecordRun(RecordRunFields):
    """Records of equal rank, in due order; the place of a record that is due and waits.

    Args:
        calendar: the calendar of the records.
        records: the first records; the run takes ownership of the list.
        number: the number of the first, in the order in which tasks became due; that of the next is one more.

    Attributes:
        records: all records; None in place of one that was taken.
        cursor: no record below it waits.
    """

    __slots__ = ()

    records: list[Record]
    _numbers: Sequence[int]

    opened: Final = True
    source: Final = None

    def __init__(self, calendar: Any, records: list[Record] | None = None, number: int = 0) -> None:
        self.calendar = calendar
        self.records = [] if records is None else records
        self._numbers = range(number, number + len(self.records))
        self.cursor = 0
        self._stale_count = 0
        for record in self.records:
            record._place = self

    def push(self, record: Record, number: int = 0) -> bool:
        """Append a record; False if the run is full."""
        if len(self.records) >= RECORD_COUNT_MAX:
            return False
        record._place = self
        self.records.append(record)
        if type(self._numbers) is not array:
            self._numbers = array("Q", self._numbers)
        self._numbers.append(number)
        return True

    def head_due(self) -> float | None:
        """Return the due time of the first record that still waits; None if none does."""
        while self.cursor < len(self.records):
            record = self.records[self.cursor]
            if record._place is self:
                return record._due
            self.cursor += 1
        return None

    @property
    def head_number(self) -> int:
        """The number of the record that :meth:`head_due` found."""
        return self._numbers[self.cursor]

    def take(self) -> Record:
        """Return the record that :meth:`head_due` found, and advance to the next."""
        record = self.records[self.cursor]
        self.records[self.cursor] = None  # type: ignore[call-overload]  # it is never read again, and must be freed
        self.cursor += 1
        record._place = None
        return record

    def peek(self) -> tuple[None, Record]:
        """Return (None, record) for the record that :meth:`head_due` found."""
        return None, self.records[self.cursor]

    def cancel_record(self) -> None:
        """Note that a record here no longer waits; places are freed when half of them are stale."""
        self._stale_count += 1
        if self._stale_count * 2 > len(self.records) - self.cursor + _SPARE_COUNT:
            waiting = [index for index in range(self.cursor, len(self.records)) if self.records[index]._place is self]
            self._numbers = array("Q", [self._numbers[index] for index in waiting])
            self.records = [self.records[index] for index in waiting]
            self.cursor = self._stale_count = 0

    def drain(self, count: int) -> list[Record]:
        """Forget the next ``count`` places, and return the records that waited there."""
        begin, self.cursor = self.cursor, min(self.cursor + count, len(self.records))
        return [record for record in self.records[begin : self.cursor] if record._place is self]

    def walk(self) -> Iterator[tuple[None, Any]]:
        """Walk the waiting records."""
        for record in self.records[self.cursor :]:
            if record._place is self:
                yield None, record
