"""Tasks by due time: a hashed timing wheel of buckets, the open interval in due order, and the ready tasks.

A task travels down three levels. In the *future* it lies in the bucket of its interval: O(1) to add, nothing compared.
When the interval begins its bucket is *opened* and put in due order (``due_order.py``); tasks that join the running
interval are added there. When its due time comes it is *ready*, in order of importance (``ready.py``).

Buckets are as wide as the executor's interval, or an even part of it of at most a second: an open bucket is in memory
twice and is not compacted, so it must not stay open for an hour.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ratelimited_executor._kernel.batches import BatchSource, RisingOrder
from ratelimited_executor._kernel.buckets import RECORD, Bucket
from ratelimited_executor._kernel.choice import two_bodies, used_there
from ratelimited_executor._kernel.due_order import DueOrder
from ratelimited_executor._kernel.fields import CalendarFields, StreamFields
from ratelimited_executor._kernel.ready import ReadyQueues
from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor._kernel.sizes import LARGE_COUNT as LARGE_COUNT
from ratelimited_executor._kernel.sizes import READY_RECORD_COUNT_MAX, RUN_COUNT
from ratelimited_executor._kernel.timeline import FAR_SECONDS, NS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratelimited_executor._kernel.contracts import Place, Ready, Source
    from ratelimited_executor._kernel.records import Record
    from ratelimited_executor._kernel.timeline import Timeline

__all__ = ["LARGE_COUNT", "PLAIN_RANK", "Calendar"]

CallPlace: TypeAlias = "tuple[Bucket, int]"

PLAIN_RANK: Final = (0, TaskClass.OTHER)  # of tasks without a record
_LOOK_COUNT_MAX: Final = 16  # due times scanned for the earliest, before they are put in order
_LEAD_SECONDS_PER_TASK: Final = 1e-6  # a generous estimate of the time to order a task
_RESET_COUNT: Final = 1024  # an idle bucket with more places is freed


class _Order(Protocol):
    def prepare(self) -> bool: ...
    def head(self) -> float: ...
    def take(self, now: float, limit: int) -> Sequence[int]: ...
    def take_lone(self, now: float) -> int | None: ...
    def take_first(self, now: float) -> int | None: ...
    @property
    def left_count(self) -> int: ...
    def count_until(self, when: float) -> int: ...


@used_there
class _Stream(StreamFields):
    """One source whose interval has begun, and the order in which its tasks become due."""

    __slots__ = ()

    order: _Order
    source: Bucket | BatchSource

    def __init__(self, source: Bucket | BatchSource, order: _Order) -> None:
        self.source = source
        self.order = order


class Calendar(CalendarFields):
    """All waiting tasks of one kind in an executor.

    Args:
        timeline: converts times, and has the width of a bucket.
        now: loop time.
        chores: receives deferrable work, as iterators whose steps take about a millisecond.
        is_punctual: True if tasks start only at their due times, so that no interval need be opened before one.

    Attributes:
        number: the number of the running interval.
        end: loop time at which it ends.
        future: buckets of later intervals, by number.
        parcels: batches, by the number of the interval that opens their next tasks.
        opened: buckets whose interval has begun, and in which tasks may wait.
        batches: batches of which tasks may wait, in order of arrival.
        groups: the streams of each open interval that is not read to the end, oldest first.
        ready: tasks whose due time has come.
        opened_count: waiting tasks whose interval has begun.
        cancelled_count: tasks without a record that were cancelled by their handle.
        on_cancelled: called for each of them while someone waits for the end.
        owner: the owner of the tasks; a handle of one without a record finds it here.
    """

    __slots__ = ("_chores", "batches", "owner")

    _current: _Stream | None  # the bucket for tasks that join the running interval
    _ahead: dict[int, tuple[DueOrder, int]]  # future buckets being ordered, and how many tasks they had then
    _current_group: list[_Stream] | None  # the streams of the running interval, the last of groups
    future: dict[int, Bucket]
    parcels: dict[int, dict[BatchSource, None]]
    ready: Ready
    timeline: Timeline

    def __init__(
        self, timeline: Timeline, now: float, chores: deque[Iterator[None]], *, is_punctual: bool = False
    ) -> None:
        self.timeline = timeline
        self._is_punctual = is_punctual
        self._chores = chores
        self.future = {}
        self.parcels = {}
        self.numbers = []  # a heap of the keys of future and parcels
        self._ahead = {}
        self.groups: deque[list[_Stream]] = deque()
        self.opened: list[Bucket] = []
        self.batches: dict[BatchSource, None] = {}
        self._current = None
        self._current_group = None
        self.cancelled_count = 0
        self.on_cancelled = None
        self.opened_count = 0
        self.owner: Any = None
        self.ready = ReadyQueues(self)
        self.soon_class = TaskClass.IMMEDIATE  # the class of tasks scheduled without delay, in the default order
        self.take_count_max = RUN_COUNT  # how many tasks become ready in one step
        # The asyncio face finds buckets by these two floats, which is faster than exact arithmetic. Finding the
        # neighbouring bucket instead only makes a start a quarter of a microsecond late.
        self.epoch_offset = timeline.epoch_offset
        self.per_second = NS / timeline.interval_ns
        self._next_number = None  # the interval whose start was computed last
        self._next_start = math.inf  # its start
        self.number = timeline.number_at(now)
        self.end = timeline.start_of(self.number + 1)

    # Adding.

    def bucket_of(self, number: int) -> Bucket:
        """Return the bucket of a future interval; create it if needed."""
        bucket = self.future.get(number)
        if bucket is None:
            assert number > self.number, (number, self.number)
            bucket = self.future[number] = Bucket(self)
            if number not in self.parcels:
                heapq.heappush(self.numbers, number)
        return bucket

    def add_call(self, due: float, call: Any, args: Any, context: Any) -> CallPlace:
        """Add a task without a record by its due time; return bucket and place."""
        if due < self.end:
            bucket = self.joined()
            place = bucket.add(due, call, args, context)
            self.join()
            return bucket, place
        number = self.timeline.number_at(due)
        bucket = self.bucket_of(max(number, self.number + 1))
        place = bucket.add(due, call, args, context)
        if len(bucket.calls) == LARGE_COUNT:
            self._note_large()
        return bucket, place

    def move_call(self, bucket: Bucket, place: int, due: float) -> CallPlace | None:
        """Move a task without a record to another due time; return bucket and place, None if it no longer waits."""
        number = int((due + self.epoch_offset) * self.per_second) if due < FAR_SECONDS else self.number
        target = self.future.get(number)
        if target is bucket and bucket.set_due(place, due):
            return bucket, place
        taken = bucket.take(place)
        if taken is None:
            return None
        call, args, context = taken
        if bucket.opened:
            self.opened_count -= 1
        if target is None or due < self.end or len(target.calls) == LARGE_COUNT - 1:
            return self.add_call(due, call, args, context)
        return target, target.add(due, call, args, context)

    def add_call_ready(self, due: float, call: Any, args: Any, context: Any) -> CallPlace:
        """Add a task without a record as ready: it was scheduled without delay."""
        bucket: Bucket = (self._current or self._make_current()).source  # type: ignore[assignment]  # as in joined()
        place = bucket.add(due, call, args, context)
        self.ready.push_position(bucket, place - bucket.shift, (0, self.soon_class))
        self.opened_count += 1
        return bucket, place

    def joined(self) -> Bucket:
        """Return the bucket for tasks that join the running interval; call :meth:`join` after adding to it."""
        current = self._current
        if current is None or current.order.is_busy:  # type: ignore[attr-defined]  # as in join()
            current = self._make_current()
        return current.source  # type: ignore[return-value]  # it is a bucket's stream

    def join(self) -> None:
        """Put the task that was just added to :meth:`joined` in due order."""
        assert self._current is not None
        bucket: Bucket = self._current.source  # type: ignore[assignment]  # it is a bucket's stream
        self._current.order.add(len(bucket.calls) - 1)  # type: ignore[attr-defined]  # so it has an order that grows
        self.opened_count += 1

    def add_record(self, record: Record) -> None:
        """Add a record by its due time."""
        due = record._due
        if due < self.end:
            self.joined().add_record(record)
            self.join()
            return
        bucket = self.future.get(int((due + self.epoch_offset) * self.per_second)) if due < FAR_SECONDS else None
        if bucket is None:
            bucket = self.bucket_of(max(self.timeline.number_at(due), self.number + 1))
        bucket.add_record(record)
        if len(bucket.calls) == LARGE_COUNT:
            self._note_large()

    def _note_large(self) -> None:
        """Wake the queue: a bucket became large and may have to be prepared."""
        self._chores.append(iter(()))

    def add_ready(self, record: Record) -> None:
        """Add a record as ready: it was scheduled without delay."""
        self.opened_count += 1
        ready = self.ready
        if self.soon_class is record._class or type(ready) is not ReadyQueues:
            ready.push_record(record)
        else:
            ready.push_record(record, self.soon_class)

    def return_record(self, record: Record) -> None:
        """Add a record as ready that was taken and has not begun."""
        self.opened_count += 1
        self.ready.return_record(record)

    def add_batch(self, source: BatchSource) -> None:
        """Add a batch, or a part of one, by its due times."""
        source.calendar = self
        self.batches[source] = None
        number = self.timeline.number_at(source.first)
        if number <= self.number:
            self._open_batch(source, self.number, self.end, self._running_group())
        else:
            self._add_parcel(number, source)

    def can_add_ready(self, count: int) -> bool:
        """True if ``count`` tasks of a batch can be made ready in one step."""
        return count <= self.take_count_max or isinstance(self.ready, ReadyQueues)

    def add_batch_ready(self, source: BatchSource) -> None:
        """Add a whole batch as ready: it was scheduled without delay."""
        source.calendar = self
        self.batches[source] = None
        source.opened_count = source.count
        self.opened_count += source.count
        rank = source.rank if type(self.ready) is not ReadyQueues else (source.rank[0], self.soon_class)
        self.ready.push_run(source, range(source.count), rank)

    # Advancing.

    @two_bodies
    def open_until(self, number: int, end: float) -> None:
        """Open every interval up to ``number``, the running one, which ends at loop time ``end``."""
        assert number > self.number, (number, self.number)
        self._current = self._current_group = None
        if self.opened:
            self._prune()
        self.number = number
        self.end = end
        while self.numbers and self.numbers[0] <= number:
            self._open(heapq.heappop(self.numbers))

    @two_bodies
    def opening_time(self) -> float:
        """Return the loop time at which the next interval with tasks should open; infinity if there is none.

        A large bucket opens before its interval starts, by the time that it takes to put it in order: see
        :meth:`prepare_ahead`. A small one whose tasks start only at their due times opens at the first of these.
        """
        if not self.numbers:
            return math.inf
        start = self.next_start()
        if start == math.inf:
            return start
        number = self.numbers[0]
        bucket = self.future.get(number)
        if bucket is None:
            due = math.inf
        else:
            length = len(bucket.calls)
            if length > _LOOK_COUNT_MAX or not self._is_punctual:
                if length < LARGE_COUNT or number in self._ahead:
                    return start
                return start - length * _LEAD_SECONDS_PER_TASK
            due = min(bucket.dues)  # perhaps of a cancelled task, which costs a needless wake-up
        if not self._is_punctual or self._is_large(min(self.numbers[1:3], default=-1)):
            return start
        for source in self.parcels.get(number, ()):
            due = min(due, source.due_of(source.opened_count))
        return max(start, due)

    @property
    def is_large_ahead(self) -> bool:
        """True if the next bucket should be prepared before its time comes."""
        return bool(self.numbers) and self._is_large(self.numbers[0])

    def _is_large(self, number: int) -> bool:
        bucket = self.future.get(number)
        return bucket is not None and len(bucket.calls) >= LARGE_COUNT

    def prepare_ahead(self) -> None:
        """Begin to put the next bucket in order, as a chore; does nothing if it is small or begun already."""
        if self.opening_time() >= self.next_start():
            return
        number = self.numbers[0]
        bucket = self.future[number]
        bucket.frozen = True
        order = DueOrder(bucket.dues, self.timeline.start_of(number), self.timeline.start_of(number + 1))
        self._ahead[number] = order, len(bucket.calls)
        self._chores.append(_steps_of(order))

    def pull(self, now: float, steps: float) -> float:
        """Make the due tasks ready, in due order; return the steps left, 0 if there may be more to do.

        Args:
            now: loop time.
            steps: the work allowed; one step is about a millisecond.
        """
        groups = self.groups
        while groups and steps > 0:
            group = groups[0]
            if len(group) == 1:
                stream = group[0]
                steps = self._pull_stream(stream, now, steps)
                # The order function may have scheduled a task, and so added to the group.
                is_read = stream is not self._current and stream.order.head() == math.inf
                if steps > 0 and is_read and len(group) == 1:
                    group.clear()  # it has been read to the end
            else:
                steps = self._pull_group(group, now, steps)
                if steps > 0:
                    group[:] = [s for s in group if s is self._current or s.order.head() < math.inf]
            if group or group is self._current_group:
                break
            if groups and groups[0] is group:  # else the order function has asked the queue, which advanced further
                groups.popleft()
        return max(steps, 0)

    def take_lone(self, now: float) -> tuple[Source | None, Any] | None:
        """Take the only due task directly, if no task is ready.

        Returns:
            (source, position) or (None, record); None if there is no such task, or finding out takes work.
        """
        groups = self.groups
        if len(groups) > 1 and all(stream.order.head() == math.inf for stream in groups[0]):
            groups.popleft()
        if len(groups) != 1 or self.ready.active:
            return None
        found: _Stream | None = None
        group = groups[0]
        for stream in group:
            if stream.order.head() <= now:
                if found is not None:
                    return None
                found = stream
        position = None if found is None else found.order.take_lone(now)
        if found is None or position is None:
            return None
        if len(group) > 1 and found is not self._current and found.order.head() == math.inf:
            group.remove(found)
        return _taken(found.source, position)

    def take_first(self, now: float) -> tuple[Source | None, Any] | None:
        """Take the first due task directly, like :meth:`take_lone`; call only while no task is ready."""
        groups = self.groups
        if len(groups) > 1 and all(stream.order.head() == math.inf for stream in groups[0]):
            groups.popleft()
        if len(groups) != 1 or len(groups[0]) != 1:
            return None
        stream = groups[0][0]
        position = stream.order.take_first(now)
        return None if position is None else _taken(stream.source, position)

    def next_due(self) -> float:
        """Return the earliest due time in the open intervals; infinity if there is none."""
        due = math.inf
        for group in self.groups:
            for stream in group:
                head = stream.order.head()
                if head < due:  # noqa: PLR1730  # this is the path of every wake-up
                    due = head
        return due

    def next_start(self) -> float:
        """Return the loop time at which the next non-empty interval begins; infinity if there is none."""
        while self.numbers:
            number = self.numbers[0]
            if self.parcels.get(number) or not self._is_void(number):
                if number != self._next_number:
                    self._next_number, self._next_start = number, self.timeline.start_of(number)
                return self._next_start
            heapq.heappop(self.numbers)
            self.future.pop(number, None)
            self.parcels.pop(number, None)
        return math.inf

    def rest(self) -> None:
        """Free memory that an idle calendar does not need."""
        if self.opened and any(len(bucket.calls) > _RESET_COUNT for bucket in self.opened):
            self._current = self._current_group = None
            self.groups.clear()
            self._prune()

    def waiting_until(self, number: int) -> int:
        """Count the waiting tasks of intervals up to ``number``."""
        if not self.numbers or self.numbers[0] > number:
            return self.opened_count
        later = sum(self.future[n].live for n in range(self.number + 1, number + 1) if n in self.future)
        batches = sum(
            source.count_before(self.timeline.start_of(number + 1)) - source.opened_count
            for n in range(self.number + 1, number + 1)
            for source in self.parcels.get(n, ())
        )
        return self.opened_count + later + batches

    def revoke(self, source: BatchSource) -> int:
        """Cancel the waiting tasks of a batch; return their number."""
        count = source.live
        self.opened_count -= source.opened_live
        source.revoked = True
        self.batches.pop(source, None)
        if source.parcel is not None:
            self.parcels.get(source.parcel, {}).pop(source, None)
        return count

    def finish(self, source: BatchSource) -> None:
        """Forget a batch all of whose tasks have started."""
        del self.batches[source]

    def buckets(self) -> list[Bucket]:
        """Return every bucket in which tasks may wait."""
        return [*self.opened, *self.future.values()]

    def clear(self) -> None:
        """Free everything, once no task waits."""
        for bucket in self.buckets():
            bucket.discard()
        self.future.clear()
        self.parcels.clear()
        self.numbers.clear()
        self._ahead.clear()
        self.groups.clear()
        self.opened.clear()
        self.batches.clear()
        self.ready.clear()
        self._current = self._current_group = None
        self.opened_count = 0

    # Buckets and batches.

    def note_sparse(self, bucket: Bucket) -> None:
        """Compact a sparse bucket: at once if it is small, else as a chore."""
        bucket.compact_with(self._chores)

    def cancel_call(self, bucket: Bucket, place: int) -> None:
        """Cancel a task without a record, if it has not started."""
        if bucket.cancel(place):
            self.note_gone(bucket)
            self.cancelled_count += 1
            if self.on_cancelled is not None:
                self.on_cancelled()

    def note_gone(self, place: Place) -> None:
        """Record that a task no longer waits at ``place``."""
        if place.opened:
            self.opened_count -= 1

    @two_bodies
    def _open(self, number: int) -> None:
        """Open an interval: put its bucket in due order, and open the tasks of batches in it."""
        group: list[_Stream] = []
        self.groups.append(group)
        if number == self.number:
            self._current_group = group
        end = self.end if number == self.number else self.timeline.start_of(number + 1)
        bucket = self.future.pop(number, None)
        if bucket is not None:
            if number in self._ahead:
                order, count = self._ahead.pop(number)
                order.extend(range(count, len(bucket.calls)))
            else:
                order = DueOrder(bucket.dues, self.timeline.start_of(number), end)
            bucket.opened = True
            self.opened.append(bucket)
            self.opened_count += bucket.live
            group.append(_Stream(bucket, order))
            if number == self.number:
                self._current = group[0]
        for source in self.parcels.pop(number, ()):
            self._open_batch(source, number, end, group)

    @two_bodies
    def _open_batch(self, source: BatchSource, number: int, end: float, group: list[_Stream]) -> None:
        """Open the tasks of a batch that are due in an interval, and register the interval of the next ones."""
        source.parcel = None
        start, stop = source.opened_count, source.count_before(end)
        if stop > start:
            group.append(_Stream(source, RisingOrder(source, start, stop)))
            source.opened_count = stop
            self.opened_count += stop - start
        if stop < source.count:
            self._add_parcel(max(self.timeline.number_at(source.due_of(stop)), number + 1), source)

    def _add_parcel(self, number: int, source: BatchSource) -> None:
        parcels = self.parcels.get(number)
        if parcels is None:
            parcels = self.parcels[number] = {}
            if number not in self.future:
                heapq.heappush(self.numbers, number)
        parcels[source] = None
        source.parcel = number

    def _is_void(self, number: int) -> bool:
        """True if all tasks of an interval were cancelled."""
        bucket = self.future.get(number)
        if bucket is not None and len(bucket.calls) > bucket.gone:
            return False
        return number not in self._ahead and not self.parcels.get(number)

    def _make_current(self) -> _Stream:
        bucket = Bucket(self)
        bucket.opened = True
        self.opened.append(bucket)
        order = DueOrder(bucket.dues, self.timeline.start_of(self.number), self.end)
        self._current = _Stream(bucket, order)
        self._running_group().append(self._current)
        return self._current

    def _running_group(self) -> list[_Stream]:
        if self._current_group is None:
            self._current_group = []
            self.groups.append(self._current_group)
        return self._current_group

    def _prune(self) -> None:
        """Free the open buckets without waiting tasks."""
        for bucket in self.opened:
            if not bucket.live:
                bucket.discard_with(self._chores)
        self.opened = [bucket for bucket in self.opened if bucket.live]

    # From due to ready.

    def _pull_stream(self, stream: _Stream, now: float, steps: float) -> float:
        """Make the due tasks of an interval's only stream ready; return the steps left."""
        order, source = stream.order, stream.source
        while order.head() <= now:
            if not order.prepare():
                steps -= 1
            else:
                count_max = self._take_count_max_of(source)
                positions = order.take(now, count_max)
                self._make_ready(source, positions)
                steps -= 0.01 + len(positions) / count_max
            if steps <= 0:
                return 0
        return steps

    def _pull_group(self, group: list[_Stream], now: float, steps: float) -> float:
        """Make the due tasks of an interval's streams ready, merged by due time; return the steps left."""
        heap: list[tuple[float, int, _Stream]] = []
        for index, stream in enumerate(group):
            head, steps = _head(stream.order, now, steps)
            if steps <= 0:
                return 0
            if head <= now:
                heap.append((head, index, stream))
        heapq.heapify(heap)
        while heap:
            _, index, stream = heap[0]
            limit, next_index, _ = min(heap[1:3], default=(now, index, stream))  # until the next stream's turn
            if next_index < index:  # it goes first where due times are equal
                limit = math.nextafter(limit, -math.inf)
            count_max = self._take_count_max_of(stream.source)
            positions = stream.order.take(limit, count_max)
            self._make_ready(stream.source, positions)
            steps -= 0.01 + len(positions) / count_max
            head, steps = _head(stream.order, now, steps)
            if steps <= 0:
                return 0
            if head <= now:
                heapq.heapreplace(heap, (head, index, stream))
            else:
                heapq.heappop(heap)
        return steps

    def _take_count_max_of(self, source: Bucket | BatchSource) -> int:
        return min(self.take_count_max, READY_RECORD_COUNT_MAX) if source.has_records else self.take_count_max

    def _make_ready(self, source: Bucket | BatchSource, positions: Sequence[int]) -> None:
        if isinstance(source, BatchSource):
            self.ready.push_run(source, positions, source.rank)
        elif not source.live:  # all its tasks have gone, and its columns may have been freed
            return
        elif source.has_records:
            self._split(source, positions)
        else:
            self.ready.push_run(source, positions, PLAIN_RANK)

    @two_bodies
    def _split(self, bucket: Bucket, positions: Sequence[int]) -> None:
        """Make records and the plain tasks between them ready, those of one kind and rank together."""
        calls, args, ready = bucket.calls, bucket.args, self.ready
        plain: list[int] = []
        records: list[Record] = []  # of the same rank as plain tasks
        for position in positions:
            if args[position] is not RECORD:
                if records:
                    ready.push_records(records, PLAIN_RANK)
                    records = []
                plain.append(position)
                continue
            if plain:
                ready.push_run(bucket, plain, PLAIN_RANK)
                plain = []
            record = calls[position]
            calls[position] = None
            if record._place is not bucket:  # it was cancelled; perhaps just now, by the order function
                continue
            bucket.gone += 1
            if record._options is None and record._class is TaskClass.OTHER:
                records.append(record)
            else:
                if records:
                    ready.push_records(records, PLAIN_RANK)
                    records = []
                ready.push_record(record)
        if plain:
            ready.push_run(bucket, plain, PLAIN_RANK)
        if records:
            ready.push_records(records, PLAIN_RANK)


def _taken(source: Bucket | BatchSource, position: int) -> tuple[Source | None, Any] | None:
    """Return a task that was taken from the order, as (source, position) or (None, record); None if it has gone."""
    if not source.is_waiting(position):
        return None
    if type(source) is Bucket and source.args[position] is RECORD:
        return None, source.take_record(position)
    return source, position


def _head(order: _Order, now: float, steps: float) -> tuple[float, float]:
    """Return the earliest due time of a stream, and the steps left once it is known."""
    head = order.head()
    while head <= now and steps > 0 and not order.prepare():
        steps -= 1
        head = order.head()
    return head, steps


def _steps_of(order: DueOrder) -> Iterator[None]:
    while not order.prepare():
        yield
