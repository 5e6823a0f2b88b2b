"""The calendars of one executor, and the order in which what is due in them starts.

Two calendars, one for tasks that must start at their due time and one for those that may be spread, and a wheel of those
that follow the wall clock. When a task starts is decided in ``queue.py``; here is where each of them lies.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.fair import Fair, FairClock
from ratelimited_executor._core.ordering import default_order
from ratelimited_executor._core.ready_fair import ReadyFair
from ratelimited_executor._core.ready_heap import ReadyHeap
from ratelimited_executor._core.ready_keyed import ReadyKeyed
from ratelimited_executor._core.wall import WallWheel
from ratelimited_executor._kernel.calendar import Calendar
from ratelimited_executor._kernel.chores import Chores
from ratelimited_executor._kernel.contracts import is_empty
from ratelimited_executor._kernel.due_order import RUN_COUNT
from ratelimited_executor._kernel.ready import ReadyQueues
from ratelimited_executor._kernel.timeline import NS, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratelimited_executor._core.key_gate import KeyGate
    from ratelimited_executor._core.ordering import Order
    from ratelimited_executor._kernel.batches import BatchSource
    from ratelimited_executor._kernel.buckets import Bucket
    from ratelimited_executor._kernel.contracts import Ready
    from ratelimited_executor._kernel.records import Record

__all__ = ["Calendars"]

_REKEY_COUNT: Final = 200  # tasks put into a new order at a stretch: about two milliseconds


class Calendars:
    """Where the waiting tasks of one executor lie.

    Args:
        timeline: the manager's timeline.
        now: loop time.
        report_order_error: is told when the order raises.
        gate: the limits of keys; None if there are none.
        bucket_ns_max: the width of a bucket at most.
    """

    def __init__(
        self,
        timeline: Timeline,
        now: float,
        *,
        report_order_error: Callable[[BaseException], None],
        gate: KeyGate | None,
        bucket_ns_max: int,
    ) -> None:
        self.timeline = timeline
        self.ticks = timeline.cut(bucket_ns_max)
        self.gate = gate
        self.chores = Chores()
        self.on_time = Calendar(self.ticks, now, self.chores, is_punctual=True)
        self.spread = Calendar(self.ticks, now, self.chores)
        self.wall = WallWheel(timeline.interval_ns / NS, self.chores)
        self.order: Order | Fair = default_order
        self._fair_clock: FairClock | None = None  # under an order of that kind
        self._report_order_error = report_order_error
        self._rekeying: list[tuple[Calendar, Ready]] = []  # ready queues in an old order, being emptied
        self._is_interim = False  # whether a heap keeps the default order, because another came before

    # The order.

    def note_order(self) -> None:
        """Note what depends on the order, which has changed: for who decides."""

    def set_gate(self, gate: KeyGate | None) -> None:
        """Put limits of keys in force, or none."""
        self.gate = gate
        self.set_order(self.order)

    def set_order(self, order: Order | Fair) -> None:
        """Start by another order from now on; what is ready is re-keyed once, in slices.

        The queues of the default order must be filled in due order. What another order has mixed up goes through a heap
        once more, until nothing is ready.
        """
        calendars = (self.on_time, self.spread)
        is_mixed = bool(self._rekeying) or any(
            not isinstance(calendar.ready, ReadyQueues) and not is_empty(calendar.ready) for calendar in calendars
        )
        self.order = order
        self._is_interim = order is default_order and is_mixed
        self._fair_clock = None
        if isinstance(order, Fair):
            self._fair_clock = FairClock(
                order,
                gate=self.gate,
                chores=self.chores,
                report=self._report_order_error,
                to_epoch=self.timeline.to_epoch,
            )
        self.note_order()
        for index, calendar in enumerate(calendars):
            old = calendar.ready
            old.release()
            self._rekeying.append((calendar, old))
            calendar.ready = self._make_ready(calendar, index, is_sorted=order is default_order and not is_mixed)
            calendar.take_count_max = RUN_COUNT if isinstance(calendar.ready, ReadyQueues) else _REKEY_COUNT
            old.succeed(calendar.ready)
        self.rekey(_REKEY_COUNT)

    def rekey(self, count: int = _REKEY_COUNT) -> None:
        """Move some tasks from the old order to the one in force."""
        while self._rekeying and count > 0:
            calendar, old = self._rekeying[0]
            while count > 0 and old.head() is not None:
                count -= 1
                rank = old.head_rank()
                run = old.pop()
                if run.source is None:
                    calendar.ready.push_record(run.take())
                else:
                    calendar.ready.push_position(run.source, run.take(), rank)
            if count > 0 and self._rekeying and self._rekeying[0][1] is old:  # an order may have gone on by itself
                del self._rekeying[0]

    # Looking.

    def batches(self) -> list[BatchSource]:
        """Return every batch of which tasks may wait."""
        return [*self.on_time.batches(), *self.spread.batches(), *self.wall.batches()]

    def live_count(self) -> int:
        """Count the tasks that wait."""
        return self.on_time.live_count() + self.spread.live_count() + self.wall.live_count()

    def ready_count(self) -> int:
        """Count the tasks whose interval has begun and that have not started."""
        return self.on_time.opened_count + self.spread.opened_count

    def last_start(self) -> float:
        """Return a loop time by whose interval the last task on the timeline is due; minus infinity if none waits."""
        return max(self.on_time.last_start(), self.spread.last_start())

    def walk(self) -> Iterator[tuple[Any, Any]]:
        """Walk every task that waits, by looking at each: (source, position) or (None, record)."""
        yield from self.on_time.walk()
        yield from self.spread.walk()
        yield from self.wall.walk()
        for _, old in self._rekeying:
            yield from (entry for entry in old.walk() if entry[0] is None)

    # Ending.

    def cut(
        self, step_count: int, on_call: Callable[[Bucket, int], None] | None = None
    ) -> Iterator[tuple[int, list[Record]]]:
        """Empty a halted queue of all but its batches, which must have been revoked; nothing may be added meanwhile.

        Args:
            step_count: tasks looked at, at most, from one result to the next.
            on_call: is told of each task without a record before it goes.

        Yields:
            How many tasks without a record have gone, and records, for the caller to cancel.
        """
        for ready in (self.on_time.ready, self.spread.ready, *(old for _, old in self._rekeying)):
            waiting = ready.drain()
            while entries := list(islice(waiting, step_count)):
                yield 0, [item for source, item in entries if source is None]
        for holder in (self.on_time, self.spread, self.wall):
            for bucket in holder.buckets():
                bucket.frozen = True  # compacting it would move what the next step looks for
                for start in range(0, len(bucket.calls), step_count):
                    count, records = bucket.cut(start, start + step_count, on_call)
                    if bucket.opened and isinstance(holder, Calendar):
                        holder.opened_count -= count
                    yield count, records
                bucket.discard()
        self.on_time.clear()
        self.spread.clear()
        self.wall.clear()

    def _make_ready(self, calendar: Calendar, index: int, *, is_sorted: bool) -> Ready:
        """Make an empty ready queue of the order in force; ``is_sorted`` if it will be filled in due order."""
        if self._fair_clock is not None:
            return ReadyFair(calendar, self._fair_clock, index)
        order: Any = self.order
        arrivals = count(1)

        def make() -> Ready:
            if is_sorted:
                return ReadyQueues(calendar)
            return ReadyHeap(
                calendar, order, to_epoch=self.timeline.to_epoch, report=self._report_order_error, arrivals=arrivals
            )

        return make() if self.gate is None else ReadyKeyed(self.gate, make)
