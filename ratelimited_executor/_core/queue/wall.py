"""Tasks due by the wall clock, which may step.

They are kept in a separate wheel, keyed by wall time and read once an interval: tasks due by the wall clock before the
interval ends are handed over to the timeline. So a step of the clock moves only the reader's place, and the tasks
stepped over become due. Reading goes in steps, so that a million tasks for the same second do not block the loop.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.lazy_heap import LazyHeap
from ratelimited_executor._kernel.buckets import Bucket
from ratelimited_executor._kernel.fields import WallFields

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator

    from ratelimited_executor._kernel.batches import BatchSource
    from ratelimited_executor._kernel.contracts import Place
    from ratelimited_executor._kernel.records import Record

__all__ = ["WallWheel"]

_READ_COUNT: Final = 1000  # tasks handed over in one step: about a millisecond


class WallWheel(WallFields):
    """Records and batches by the wall time at which they are due.

    Args:
        width: seconds in one bucket.
        chores: receives deferred work.
    """

    __slots__ = (
        "_arrivals",
        "_chores",
        "_horizon",
        "_number_of",
        "_numbers",
        "_reading",
        "_width",
    )

    _batches: list[tuple[float, BatchSource]]
    _buckets: dict[int, Bucket]

    def __init__(self, width: float, chores: deque[Iterator[None]]) -> None:
        self._width = width
        self._chores = chores
        self._buckets = {}
        self._number_of: dict[Bucket, int] = {}
        number_of = self._number_of
        self._numbers: LazyHeap[tuple[int, int, Bucket]] = LazyHeap(lambda entry: entry[2] not in number_of)
        self._arrivals = count()  # of entries in that heap
        self._horizon = 0.0  # of the latest reading
        self._reading: list[Bucket] = []  # buckets that are being handed over
        self._batches = []

    @property
    def is_pending(self) -> bool:
        """True if any task waits here, so that the wall clock must be read every interval."""
        return bool(self._buckets or self._batches)

    @property
    def is_reading(self) -> bool:
        """True if records due in the running interval have not been handed over yet."""
        return bool(self._reading)

    def add_record(self, record: Record, wall_due: float) -> None:
        """Add a record; its due time on the timeline is set when it is handed over."""
        number = int(wall_due // self._width)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = Bucket(self)
            self._number_of[bucket] = number
            self._numbers.push((number, next(self._arrivals), bucket))
        record._due = wall_due
        bucket.add_record(record)

    def add_batch(self, source: BatchSource, wall_due: float) -> None:
        """Add a batch whose tasks are all due at one time."""
        source.calendar = self
        self._batches.append((wall_due, source))

    def read(
        self, horizon: float, record_due: Callable[[Record], None], batch_due: Callable[[BatchSource, float], None]
    ) -> None:
        """Hand over everything due before ``horizon``, in epoch seconds: batches at once, records as a chore."""
        self._horizon = horizon
        for wall_due, source in self._batches:
            if wall_due < horizon:
                batch_due(source, wall_due)
        self._batches = [entry for entry in self._batches if entry[0] >= horizon]
        while (first := self._numbers.first()) is not None and first[0] * self._width < horizon:
            number, _, bucket = self._numbers.pop()
            del self._buckets[number], self._number_of[bucket]
            bucket.opened = True
            self._reading.append(bucket)
            self._chores.append(self._hand_over(bucket, record_due))

    def revoke(self, source: BatchSource) -> int:
        """Cancel a batch that waits here, and return the number of its waiting tasks."""
        self._batches = [entry for entry in self._batches if entry[1] is not source]
        count = source.live
        source.revoked = True
        return count

    def buckets(self) -> list[Bucket]:
        """Return every bucket in which records may wait."""
        return [*self._buckets.values(), *self._reading]

    def batches(self) -> list[BatchSource]:
        """Return every batch that waits here."""
        return [source for _, source in self._batches]

    def clear(self) -> None:
        """Forget everything; the caller has walked the tasks before."""
        self._buckets.clear()
        self._numbers.clear()
        self._number_of.clear()
        self._reading.clear()
        self._batches.clear()

    def note_gone(self, place: Place) -> None:
        """Forget a bucket whose last task was cancelled, so that an idle wheel need not be read."""
        bucket: Bucket = place  # type: ignore[assignment]  # records lie in nothing else here
        if bucket.live or bucket not in self._number_of:
            return
        del self._buckets[self._number_of.pop(bucket)]
        self._numbers.note_stale()
        if not self._buckets:  # an idle wheel is not read, and stale entries would keep cancelled tasks alive
            self._numbers.clear()

    def note_sparse(self, bucket: Bucket) -> None:
        """Compact a bucket: at once if few tasks are left in it, else as a chore."""
        bucket.compact_with(self._chores)

    def _hand_over(self, bucket: Bucket, record_due: Callable[[Record], None]) -> Iterator[None]:
        for first in range(0, len(bucket.calls), _READ_COUNT):
            for position in range(first, min(first + _READ_COUNT, len(bucket.calls))):
                if not bucket.is_waiting(position):
                    continue
                record = bucket.calls[position]
                bucket.clear(position)
                if record._due < self._horizon:  # of the latest reading: this chore may have waited for longer
                    record_due(record)
                else:
                    self.add_record(record, record._due)
            yield
        self._reading.remove(bucket)
