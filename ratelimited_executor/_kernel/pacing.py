"""When, within the interval, the next task to be spread starts.

The tasks in bucket and overflow when the interval began are spread evenly over it. The first planned instant is the
interval's start; after a start at ``last`` with ``k`` of them unstarted the next is ``last + (end - last) / (k + 1)``.
Without interference the instants divide the interval into equal parts; after a delay the rest closes up evenly, and no
task is moved past the interval's end.

``last`` is the planned instant, not the moment of the start, so that a timer that wakes a millisecond late, or rarely,
does not add up. Only lateness beyond the slack counts as a delay, and the plan continues from there.
"""

from __future__ import annotations

from ratelimited_executor._kernel.fields import PlanFields
from ratelimited_executor._kernel.states import Pacing as Pacing

__all__ = ["Pacing", "SpreadPlan"]


class SpreadPlan(PlanFields):
    """The plan of one interval.

    Attributes:
        next_at: loop time of the next planned instant.
        end: loop time at which the interval ends.
    """

    __slots__ = ()

    def __init__(self, *, slack: float) -> None:
        self._slack = slack
        self._late_count = 0
        self.next_at = 0.0
        self.end = 0.0

    def begin(self, start: float, end: float, *, late_count: int) -> None:
        """Plan a new interval from its start.

        Args:
            start: loop time at which it begins.
            end: loop time at which it ends.
            late_count: how many tasks of the previous interval passed their instant without a start, because a timer
                woke late: they start at once. Spread again, they would be moved past their interval's end.
        """
        self.next_at = start
        self.end = end
        self._late_count = late_count

    def is_one(self, now: float, *, left: int) -> bool:
        """True if exactly one of ``left`` tasks starts at or before ``now``, and the next one certainly later.

        This is :meth:`count_until` without a division. After a delay of more than an instant it is uncertain: the plan
        continues from the due time of the task that starts, if that is later.
        """
        if now < self.next_at or self._late_count:
            return False
        return left <= 1 or (now - self.next_at) * left < self.end - self.next_at

    def count_until(self, now: float, *, left: int) -> int:
        """Count the tasks, of ``left`` that are still to start, that start at or before ``now``."""
        gap = (self.end - self.next_at) / max(left, 1)
        if gap <= 0:
            return max(left, 1)
        is_late = now - self.next_at > self._slack  # a delay: one starts, and the plan continues from there
        planned = 1 if is_late else int((now - self.next_at) / gap) + 1
        return max(1, min(left, self._late_count + planned))

    def started(self, *, due: float, now: float, left: int, count: int = 1) -> None:
        """Record ``count`` starts at one instant, and plan the next.

        Args:
            due: the due time of the task that started, as it is read: a planned instant is never before it.
            now: loop time of the start.
            left: how many tasks of the plan are still to start.
            count: how many tasks have started.
        """
        late_count = min(count, self._late_count)
        self._late_count -= late_count
        count -= late_count
        if not count:
            return
        self.next_at += (count - 1) * (self.end - self.next_at) / (left + count)  # the instant of the last of them
        last = max(self.next_at, due)
        if now - last > self._slack:
            last = now
        self.next_at = last + max(0.0, self.end - last) / (left + 1)
