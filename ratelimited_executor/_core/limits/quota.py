"""A quota of starts from one mark of the wall clock to the next, such as a day's, from midnight to midnight.

Law: the costs of the starts between two marks, by the wall clock, sum to at most N, whichever way the clock steps. When
it steps back into a period, the count of that period continues. The last :data:`PERIOD_COUNT` periods seen are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.limits.limit import Limit
from ratelimited_executor._kernel.admission import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = ["PERIOD_COUNT", "QuotaLimit"]

PERIOD_COUNT: Final = 16


class QuotaLimit(Limit):
    """The permits used in each period.

    Args:
        permits: the number in a period, >= 0.
        period_of: returns begin and end of the period that contains a time, all in nanoseconds of the wall clock.
        wall_ns: returns the time by the wall clock.
        margin_ns: how much later than its decision a start may take effect. No start is decided within this time before
            a mark, because it could count after it.
    """

    __slots__ = ("_begin_ns", "_end_ns", "_margin_ns", "_period_of", "_used", "_wall_ns", "permits")

    def __init__(
        self,
        permits: int,
        *,
        period_of: Callable[[int], tuple[int, int]],
        wall_ns: Callable[[], int],
        margin_ns: int = 0,
    ) -> None:
        self.permits = permits
        self._period_of = period_of
        self._wall_ns = wall_ns
        self._margin_ns = margin_ns
        self._begin_ns = self._end_ns = 0
        self._used: dict[int, int] = {}  # by the begin of the period; the period seen last is at the end

    def change_to(self, other: Self, now_ns: int) -> None:  # noqa: ARG002  # the wall clock decides
        """Adopt the permits of another quota of the same periods."""
        self.permits = other.permits

    @property
    def is_by_wall_clock(self) -> bool:
        """Always True."""
        return True

    @property
    def cost_max(self) -> int:
        """N."""
        return self.permits

    def count(self, now_ns: int) -> int:  # noqa: ARG002  # the wall clock decides
        """Count the starts of cost 1 that are admitted now; negative if costs were settled to more than N."""
        wall_ns = self._enter()
        left = self.permits - self._used[self._begin_ns]
        return left if wall_ns < self._end_ns - self._margin_ns else min(0, left)

    def take(self, cost: int, now_ns: int) -> list[int]:  # noqa: ARG002  # as above
        """Record a start."""
        self._enter()
        self._used[self._begin_ns] += cost
        return [self._begin_ns, cost]

    def settle(self, receipt: list[int], cost: int, now_ns: int) -> None:  # noqa: ARG002  # as above
        """Correct the cost of a start in its period."""
        begin_ns, charged = receipt
        if begin_ns in self._used:
            self._used[begin_ns] += cost - charged
            receipt[1] = cost

    def take_effect(self, receipt: list[int], now_ns: int) -> None:
        """Record that a start has taken effect only now: it counts in the present period, which may be a later one."""
        self._enter()
        begin_ns, charged = receipt
        if begin_ns < self._begin_ns:
            self.settle(receipt, 0, now_ns)
            self._used[self._begin_ns] += charged
            receipt[:] = self._begin_ns, charged

    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when a start of a cost is admitted."""
        if cost > self.permits:
            return None
        if self.admits(cost, now_ns):
            return now_ns
        mark_ns = self._end_ns
        while self.permits - self._used.get(mark_ns, 0) < cost:
            mark_ns = self._period_of(mark_ns)[1]
        return self._here(mark_ns, now_ns)

    def when_count(self, count: int, now_ns: int) -> int | None:
        """Return when the ``count``-th start of cost 1 from now is admitted."""
        left = max(0, self.count(now_ns))
        if count <= left:
            return now_ns
        if not self.permits:
            return None
        mark_ns = self._end_ns
        try:
            while (left := left + self._left_at(mark_ns)) < count:
                mark_ns = self._period_of(mark_ns)[1]
        except (OverflowError, ValueError):  # beyond the last year of the calendar
            return None
        return self._here(mark_ns, now_ns)

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Count the starts of cost 1 that are admitted in [``now_ns``, ``end_ns``)."""
        count = max(0, self.count(now_ns))
        mark_ns = self._end_ns
        while self._here(mark_ns, now_ns) < end_ns and count < UNLIMITED:
            count += self._left_at(mark_ns)
            mark_ns = self._period_of(mark_ns)[1]
        return count

    def idle_at(self, now_ns: int) -> int:
        """Return when the running period ends; now if nothing was used in it."""
        self._enter()
        return self._here(self._end_ns, now_ns) if self._used[self._begin_ns] else now_ns

    def trial(self, time_ns: Callable[[], int]) -> Self:
        """Return a copy with another time for questions about the future; the wall clock moves along."""
        other = super().trial(time_ns)
        other._used = dict(self._used)  # noqa: SLF001  # a copy of itself
        ahead_ns = self._wall_ns() - time_ns()
        other._wall_ns = lambda: time_ns() + ahead_ns  # noqa: SLF001  # a copy of itself
        return other

    def _left_at(self, begin_ns: int) -> int:
        """Return the permits left in a future period; some are used if the wall clock was in it before a step back."""
        return max(0, self.permits - self._used.get(begin_ns, 0))

    def _enter(self) -> int:
        """Enter the present period, and return the time by the wall clock."""
        wall_ns = self._wall_ns()
        if not self._begin_ns <= wall_ns < self._end_ns or not self._used:
            self._begin_ns, self._end_ns = self._period_of(wall_ns)
            self._used[self._begin_ns] = self._used.pop(self._begin_ns, 0)
            if len(self._used) > PERIOD_COUNT:
                del self._used[next(iter(self._used))]
        return wall_ns

    def _here(self, wall_ns: int, now_ns: int) -> int:
        """Convert a time of the wall clock to the timeline, by their present difference."""
        return max(now_ns, now_ns + wall_ns - self._wall_ns())
