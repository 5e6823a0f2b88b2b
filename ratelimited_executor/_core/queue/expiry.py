"""Waiting tasks that have passed their deadline: an index by interval, read once an interval.

A task is also checked when its turn comes, so the index matters only while nothing starts: paused, at rate 0, or behind
a long overflow. It then ends a task within one interval of its deadline. A task that starts or is cancelled leaves the
index at once, so that a distant deadline keeps no object alive.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.lazy_heap import LazyHeap
from ratelimited_executor._kernel.batches import BatchSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratelimited_executor._kernel.contracts import Source
    from ratelimited_executor._kernel.records import Record
    from ratelimited_executor._kernel.timeline import Timeline

__all__ = ["ExpiryIndex", "deadline_of"]

_PURGE_COUNT: Final = 64


class ExpiryIndex:
    """Records by the interval in which their deadline lies, and batches by the next deadline among their tasks.

    Attributes:
        is_used: True if there was ever a deadline; most executors have none, and need not read the index.
    """

    __slots__ = ("_arrivals", "_batches", "_intervals", "_numbers", "_purge_count", "_timeline", "is_used")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._intervals: dict[int, list[Record]] = {}  # without empty lists
        self._numbers: LazyHeap[tuple[int, int, list[Record]]] = LazyHeap(lambda entry: not entry[2])
        # By next deadline; batches that end are not noted as stale.
        self._batches: LazyHeap[tuple[float, int, BatchSource]] = LazyHeap(lambda entry: not entry[2].live)
        self._arrivals = count()  # of entries in both heaps
        self.is_used = False
        self._purge_count = _PURGE_COUNT  # at so many batches, ended ones are forgotten

    def add(self, record: Record) -> None:
        """Add a record that has a deadline."""
        options = record._options
        assert options is not None
        assert options.deadline is not None
        self.is_used = True
        number = self._timeline.number_at(options.deadline)
        records = self._intervals.get(number)
        if records is None:
            records = self._intervals[number] = []
            self._numbers.push((number, next(self._arrivals), records))
        options.expiry_index = len(records)
        records.append(record)

    def add_batch(self, source: BatchSource) -> None:
        """Add a batch whose tasks have deadlines."""
        self.is_used = True
        if len(self._batches) >= self._purge_count:
            self._batches.compact()
            self._purge_count = max(_PURGE_COUNT, 2 * len(self._batches))
        self._batches.push((source.next_deadline(), next(self._arrivals), source))

    def discard(self, record: Record) -> None:
        """Forget a record that starts or is cancelled."""
        options = record._options
        if options is None or options.expiry_index is None or options.deadline is None:
            return
        number = self._timeline.number_at(options.deadline)
        records = self._intervals[number]
        last = records.pop()
        if last is not record:  # the last record takes its place
            assert last._options is not None
            records[options.expiry_index] = last
            last._options.expiry_index = options.expiry_index
        elif not records:
            self._forget(number)
        options.expiry_index = None

    def next_sweep(self) -> int | None:
        """Return the number of the interval at whose start deadlines have passed; None if there are none."""
        interval, batch = self._numbers.first(), self._batches.first()
        numbers = [] if interval is None else [interval[0]]
        if batch is not None:
            numbers.append(self._timeline.number_at(batch[0]))
        return min(numbers) + 1 if numbers else None

    def passing(self, number: int, end: float, calendar: Any) -> list[Record | BatchSource]:
        """Return the records waiting in a calendar with a deadline in an interval, and batches with such tasks.

        Args:
            number: the number of the interval.
            end: loop time at which it ends.
            calendar: the calendar.
        """
        records = self._intervals.get(number, ())
        found: list[Record | BatchSource] = [
            each for each in records if getattr(each._place, "calendar", None) is calendar
        ]  # a running record has no place
        found += [source for when, _, source in self._batches.walk() if when < end and source.calendar is calendar]
        return found

    def sweep(self, number: int) -> Iterator[Record]:
        """Remove and return the records whose deadline lies in an interval before ``number``, one by one."""
        while (first := self._numbers.first()) is not None and first[0] < number:
            passed, _, records = first
            while records:
                record = records.pop()
                assert record._options is not None
                record._options.expiry_index = None
                if not records:
                    self._forget(passed)
                yield record

    def _forget(self, number: int) -> None:
        """Forget an interval without deadlines."""
        del self._intervals[number]
        self._numbers.note_stale()

    def sweep_batches(self, now: float) -> Iterator[tuple[BatchSource, int]]:
        """Walk the tasks of batches whose deadline has passed; the caller must remove each before the next."""
        while (first := self._batches.first()) is not None and first[0] < now:
            _, arrival, source = self._batches.pop()
            try:
                for position in source.overdue(now):
                    yield source, position
            finally:
                if source.live:
                    self._batches.push((source.next_deadline(), arrival, source))


def deadline_of(source: Source | None, item: Any) -> float:
    """Return the loop time after which a task must not start, given as (source, position) or (None, record)."""
    if source is None:
        deadline = None if item._options is None else item._options.deadline
        return math.inf if deadline is None else deadline
    return source.due_of(item) + source.deadline_after if isinstance(source, BatchSource) else math.inf
