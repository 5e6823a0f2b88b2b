"""The calendars of one executor as intervals begin and end, and the state of the running interval.

Two calendars. Tasks that must start at their due time (those that joined a running interval, those of the asyncio face,
those that expire within less than an interval) lie in ``on_time``; tasks that may be spread over their interval lie in
``spread``. Tasks due by the wall clock wait beside them until their interval begins.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ratelimited_executor._kernel.calendar import Calendar
from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import QueueFields
from ratelimited_executor._kernel.pacing import Pacing, SpreadPlan
from ratelimited_executor._kernel.records import TaskClass

if TYPE_CHECKING:
    from ratelimited_executor._kernel.batches import BatchSource
    from ratelimited_executor._kernel.chores import Chores
    from ratelimited_executor._kernel.contracts import Deadlines, Index, WallTasks
    from ratelimited_executor._kernel.records import Record
    from ratelimited_executor._kernel.timeline import Timeline

__all__ = ["Intervals"]


class Intervals(QueueFields):
    """The calendars, and the interval that runs.

    Args:
        timeline: the manager's timeline; pacing works on its intervals.
        now: loop time.
        slack: seconds for which a planned instant stays usable.
        pacing: how the tasks of an interval are paced.
        early: True if a task may start anywhere in the interval of its due time.
        bucket_ns_max: the maximum width of a bucket.
        chores: receives deferrable work.
        expiry: the index of tasks with deadlines.
        wall: the tasks due by the wall clock.

    Attributes:
        ticks: the timeline with the width of a bucket.
        end: loop time at which the running bucket ends, and :meth:`enter` is due.
        interval_end: loop time at which the running interval ends.
        last_tick: the number of the last bucket of the running interval.
        later_count: tasks to be spread in later buckets of the running interval.
        is_dense: True if every permit is a start instant.
        phase_seconds: seconds by which tasks to be spread start later than those of an executor of phase 0.
        plan: when the tasks of the interval start.
        drops: the index of tasks that may be dropped; None if none ever are.
    """

    on_time: Calendar
    plan: SpreadPlan
    spread: Calendar
    timeline: Timeline

    def __init__(
        self,
        timeline: Timeline,
        now: float,
        *,
        slack: float,
        pacing: Pacing,
        early: bool,
        bucket_ns_max: int,
        chores: Chores,
        expiry: Deadlines,
        wall: WallTasks,
    ) -> None:
        self.timeline = timeline
        self.ticks = timeline.cut(bucket_ns_max)
        self.chores = chores
        self.on_time = Calendar(self.ticks, now, chores, is_punctual=True)
        self.spread = Calendar(self.ticks, now, chores)
        self.expiry = expiry
        self.wall = wall
        self.drops: Index | None = None
        self.plan = SpreadPlan(slack=slack)
        self.pacing = pacing
        self.early = early
        self.end = self.spread.end
        self.interval_end = 0.0
        self.last_tick = 0
        self.later_count = 0
        self.is_dense = False
        self.phase_seconds = 0.0
        self._later_on_time_count = 0  # other tasks in later buckets of the running interval
        self._opening_at = -math.inf  # loop time at which a calendar should open or prepare its next bucket

    def ready_count(self) -> int:
        """Count the tasks whose interval has begun and that have not started."""
        return self.on_time.opened_count + self.spread.opened_count

    # Adding. The asyncio face adds to the columns of ``on_time`` itself.

    def add_record(self, record: Record) -> None:
        """Add a record by its due time."""
        is_joined = record._due < self.interval_end
        if is_joined and record._due >= self.end:
            self._later_on_time_count += 1
        if record._options is not None:
            self._calendar_for(record, joined=is_joined).add_record(record)
        elif is_joined or self.pacing is Pacing.ON_TIME:
            self.on_time.add_record(record)
        else:
            self.spread.add_record(record)

    def add_immediate(self, record: Record) -> None:
        """Add a record as ready."""
        self._index(record)
        self.on_time.add_ready(record)

    def return_record(self, record: Record) -> None:
        """Make a record ready again that was taken and has not begun."""
        self._index(record)
        self.on_time.return_record(record)

    def _index(self, record: Record) -> None:
        """Add a record to the indexes that its options name."""
        options = record._options
        if options is not None:
            if options.deadline is not None:
                self.expiry.add(record)
            if self.drops is not None:
                self.drops.add(record)

    def add_batch(self, source: BatchSource, *, joined: bool) -> None:
        """Add a batch, or a part of one; ``joined`` is True if it begins in the running interval."""
        is_on_time = joined or self.pacing is Pacing.ON_TIME or source.deadline_after < self.timeline.interval_seconds
        calendar = self.on_time if is_on_time else self.spread
        if joined and source.rank[1] is TaskClass.IMMEDIATE and calendar.can_add_ready(source.count):
            calendar.add_batch_ready(source)  # like the tasks after it, which must not overtake it
        else:
            calendar.add_batch(source)
        self._note_later(calendar, self._later_count_of(source))
        if source.deadline_after < math.inf:
            self.expiry.add_batch(source)

    # Advancing.

    @two_bodies
    def enter(self, now: float, wall: float) -> None:
        """Open the intervals that have begun by ``now``; due when ``now`` has reached :attr:`end`.

        Args:
            now: loop time.
            wall: epoch seconds by the wall clock, which may have stepped.
        """
        number = self.ticks.number_at(now)
        since = self.interval_end
        late_count = 0 if self.is_dense else self.spread.opened_count
        self.end = self.ticks.start_of(number + 1)
        self.on_time.open_until(number, self.end)
        self.spread.open_until(number, self.end)
        is_begin = now >= self.interval_end
        if is_begin:
            self.begin_interval(now, late_count)
        self.later_count = self._later_on_time_count = 0
        if self.last_tick > number:
            self.later_count = self.spread.waiting_until(self.last_tick) - self.spread.opened_count
            self._later_on_time_count = self.on_time.waiting_until(self.last_tick) - self.on_time.opened_count
        if is_begin and self.wall.is_pending:
            self._read_wall(now, wall, since)

    def rest(self) -> None:
        """Free memory that an idle queue does not need."""
        for calendar in (self.on_time, self.spread):
            if calendar.opened and not calendar.opened_count:
                calendar.rest()

    # Helpers.

    def _read_wall(self, now: float, wall: float, since: float) -> None:
        """Take over the tasks due by the wall clock in the running interval.

        Args:
            now: loop time.
            wall: epoch seconds at that time.
            since: the loop time at which the interval that was read last ended.
        """
        raise NotImplementedError

    @two_bodies
    def _note_opening(self) -> float:
        """Note and return the loop time at which a calendar should open or prepare its next bucket."""
        self._opening_at = self.on_time.opening_time()
        if self.spread.numbers:
            self._opening_at = min(self._opening_at, self.spread.opening_time())
        return self._opening_at

    @two_bodies
    def begin_interval(self, now: float, late_count: int) -> None:
        """Begin the interval of a loop time; ``late_count`` of its tasks are late."""
        if self.ticks is self.timeline:
            self.last_tick = number = self.on_time.number
            start, self.interval_end = self.ticks.start_of(number), self.end
        else:
            number = self.timeline.number_at(now)
            start, self.interval_end = self.timeline.start_of(number), self.timeline.start_of(number + 1)
            self.last_tick = ((number + 1) * self.timeline.interval_ns) // self.ticks.interval_ns - 1
        self.plan.begin(start + self.phase_seconds, self.interval_end + self.phase_seconds, late_count=late_count)

    def _calendar_for(self, record: Record, *, joined: bool) -> Calendar:
        """Return the calendar that a record belongs to, and note its deadline."""
        options = record._options
        is_on_time = joined or self.pacing is Pacing.ON_TIME or (options is not None and options.on_time)
        if self.drops is not None:
            self.drops.add(record)
        if options is not None and options.deadline is not None:
            self.expiry.add(record)
            assert options.expires is not None
            is_on_time = is_on_time or options.expires < self.timeline.interval_seconds
        return self.on_time if is_on_time else self.spread

    def _later_count_of(self, source: BatchSource) -> int:
        """Count the tasks of a batch that are due in later buckets of the running interval."""
        if self.interval_end == self.end or source.first >= self.interval_end:
            return 0
        return source.count_before(self.interval_end) - source.opened_count

    def _note_later(self, calendar: Calendar, change: int) -> None:
        """Add ``change`` to the count of tasks in later buckets of the running interval."""
        if calendar is self.spread:
            self.later_count += change
        else:
            self._later_on_time_count += change
