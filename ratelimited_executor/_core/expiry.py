"""Which waiting tasks have passed their deadline: an index by interval, read once an interval.

A task is also checked when its turn comes, so the index matters only while nothing starts: paused, at rate 0, or behind
a long overflow. It then ends a task within one interval of its deadline. A task that starts or is cancelled leaves the
index at once, so that nothing is kept alive by a deadline that lies far ahead.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratelimited_executor._kernel.batches import BatchSource
    from ratelimited_executor._kernel.records import Record
    from ratelimited_executor._kernel.timeline import Timeline

__all__ = ["ExpiryIndex"]

_PURGE_COUNT: Final = 64


class ExpiryIndex:
    """Records by the interval in which their deadline lies, and batches by the next deadline among their tasks.

    Attributes:
        is_used: whether there was ever a deadline: most executors see none, and need not ask.
    """

    __slots__ = ("_arrival", "_batches", "_intervals", "_numbers", "_purge_count", "_timeline", "is_used")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._intervals: dict[int, list[Record]] = {}
        self._numbers: list[int] = []  # a heap of the keys
        self._batches: list[tuple[float, int, BatchSource]] = []  # a heap of (next deadline, arrival, batch)
        self._arrival = 0
        self.is_used = False
        self._purge_count = _PURGE_COUNT  # at so many batches, those that have ended are forgotten

    def add(self, record: Record) -> None:
        """Take in a record that has a deadline."""
        options = record._options
        assert options is not None
        assert options.deadline is not None
        self.is_used = True
        number = self._timeline.number_at(options.deadline)
        records = self._intervals.get(number)
        if records is None:
            records = self._intervals[number] = []
            heapq.heappush(self._numbers, number)
        options.expiry_index = len(records)
        records.append(record)

    def add_batch(self, source: BatchSource) -> None:
        """Take in a batch whose tasks have deadlines."""
        self.is_used = True
        if len(self._batches) >= self._purge_count:
            self._batches = [entry for entry in self._batches if entry[2].live]
            heapq.heapify(self._batches)
            self._purge_count = max(_PURGE_COUNT, 2 * len(self._batches))
        self._arrival += 1
        heapq.heappush(self._batches, (source.next_deadline(), self._arrival, source))

    def discard(self, record: Record) -> None:
        """Forget a record, which starts or is cancelled."""
        options = record._options
        if options is None or options.expiry_index is None or options.deadline is None:
            return
        records = self._intervals[self._timeline.number_at(options.deadline)]
        last = records.pop()
        if last is not record:  # the last one takes its place: nothing is left of what has gone
            assert last._options is not None
            records[options.expiry_index] = last
            last._options.expiry_index = options.expiry_index
        options.expiry_index = None

    def next_sweep(self) -> int | None:
        """Return the number of the interval at whose start deadlines have passed; None if there are none."""
        while self._numbers and not self._intervals[self._numbers[0]]:
            del self._intervals[heapq.heappop(self._numbers)]
        while self._batches and not self._batches[0][2].live:
            heapq.heappop(self._batches)
        numbers = self._numbers[:1]
        if self._batches:
            numbers.append(self._timeline.number_at(self._batches[0][0]))
        return min(numbers) + 1 if numbers else None

    def passing(self, number: int, end: float, calendar: Any) -> list[Record | BatchSource]:
        """Return what waits in a calendar and has a deadline in an interval: records, and batches with such tasks.

        Args:
            number: of the interval.
            end: loop time at which it ends.
            calendar: whose tasks are asked for.
        """
        records = self._intervals.get(number, ())
        found: list[Record | BatchSource] = [
            each for each in records if getattr(each._place, "calendar", None) is calendar
        ]  # one that runs has none
        found += [source for when, _, source in self._batches if when < end and source.calendar is calendar]
        return found

    def sweep(self, number: int) -> Iterator[Record]:
        """Remove and return the records whose deadline lies in an interval before ``number``, one by one."""
        while self._numbers and self._numbers[0] < number:
            records = self._intervals[self._numbers[0]]
            while records:
                record = records.pop()
                assert record._options is not None
                record._options.expiry_index = None
                yield record
            del self._intervals[heapq.heappop(self._numbers)]

    def sweep_batches(self, now: float) -> Iterator[tuple[BatchSource, int]]:
        """Walk the tasks of batches whose deadline has passed; each is to be started before the next."""
        while self._batches and self._batches[0][0] < now:
            _, arrival, source = self._batches[0]
            if source.live:
                for position in source.overdue(now):
                    yield source, position
            if source.live:
                heapq.heapreplace(self._batches, (source.next_deadline(), arrival, source))
            else:
                heapq.heappop(self._batches)
