"""The queue's cache of usable permits, in loop time.

The permits themselves count in integer nanoseconds and are asked seldom: a count by :meth:`Admission.look` stays valid
for a while, and where none is usable, a lower bound on the next permit's time is known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import AdmissionFields
from ratelimited_executor._kernel.sizes import MARGIN_COUNT
from ratelimited_executor._kernel.timeline import NS

if TYPE_CHECKING:
    from ratelimited_executor._kernel.contracts import Permits
    from ratelimited_executor._kernel.timeline import Timeline

__all__ = ["UNLIMITED", "Admission"]

UNLIMITED: Final = 1 << 62  # more permits than can be taken at one instant: the count at an infinite rate


class Admission(AdmissionFields):
    """The permits of one queue.

    Args:
        permits: the permits that admit starts.
        timeline: converts loop time to nanoseconds.

    Attributes:
        permits: the permits in force; :meth:`put` replaces them.
        is_unlimited: True if everything may start at once.
        is_paused: True if nothing starts, at a rate of 0.
        effects: the permits, if a start counts from when it takes effect; else None.
        count: permits counted and not yet taken.
        usable_until: loop time until which they may be taken.
        next_at: loop time before which no other permit comes up.
        per_second: permits that come up per second, evenly; 0 if unknown.
        usable_max: the maximum number of permits usable at once; infinity if unknown.
    """

    __slots__ = ("_is_by_wall_clock",)

    def __init__(self, permits: Permits, timeline: Timeline) -> None:
        self._timeline = timeline
        self._counted_at = 0.0  # loop time at which permits were counted
        self.put(permits)

    def put(self, permits: Permits) -> None:
        """Replace the permits that admit starts, or their rate."""
        self.permits: Any = permits
        self.is_unlimited = permits.is_unlimited
        self.is_paused = permits.rate.is_zero
        self.effects: Any = permits if permits.counts_effects and not self.is_unlimited else None
        self._is_by_wall_clock = permits.is_by_wall_clock
        self.usable_until = math.inf if self.is_unlimited else 0.0
        self.per_second, self.usable_max = permits.pace()
        self.forget()

    def forget(self) -> None:
        """Discard the count, because permits were granted or used up."""
        self.count = 0
        self.next_at = -math.inf

    @two_bodies
    def look(self, now: float) -> int:
        """Count the permits that may be taken at loop time ``now``."""
        now_ns = math.floor(now * NS) + self._timeline.offset_ns  # to_ns(), inlined: every start passes here
        self._counted_at = now
        count: int = min(self.permits.usable(now_ns), UNLIMITED)  # at 1e21 a second there may be more
        self.count = count
        if count and not self.is_unlimited:
            self.usable_until = now + (self.permits.usable_until_ns - now_ns) / NS
        return count

    def find(self, now: float, interval_end: float) -> int:
        """Return the number of usable permits, reusing a valid count; if 0, note the next permit's time.

        Args:
            now: loop time.
            interval_end: loop time at which a step of the wall clock is noticed.
        """
        if (self.count and now <= self.usable_until) or self.look(now):
            return self.count
        self.next_at = self._loop_time(self.permits.next_fresh_time(self._timeline.to_ns(now)), interval_end)
        return 0

    def next_time(self, now: float, interval_end: float) -> float:
        """Return the loop time at which a permit may be taken; arguments as of :meth:`find`."""
        if not self.count and self.next_at > now:
            return self.next_at
        return self._loop_time(self.permits.next_time(self._timeline.to_ns(now)), interval_end)

    def is_enough(self, count: int, now: float, end: float) -> bool | None:
        """Return whether ``count`` permits can be taken from ``now`` to ``end``; None if their pace alone cannot tell.

        The margins cover rounding, a late start and a permit at either end.
        """
        since = now if self.count else self.next_at  # none is usable before the next one comes up
        if since > -math.inf and count <= (end - max(since, now)) * self.per_second - MARGIN_COUNT:
            return True
        return False if count > (end - now) * self.per_second + self.usable_max + MARGIN_COUNT else None

    @two_bodies
    def take(self, count: int, now: float) -> None:
        """Use ``count`` of the counted permits for starts at loop time ``now``; does nothing if none are counted."""
        if not self.count:
            return
        self.count -= count
        if self.effects is None:
            self.permits.take(count)
        else:
            self.permits.take(count, 0 if now == self._counted_at else self._timeline.to_ns(now))
        if not self.count:
            self.next_at = self._timeline.to_loop(self.permits.next_number_time())

    def _loop_time(self, time_ns: int | None, interval_end: float) -> float:
        when = math.inf if time_ns is None else self._timeline.to_loop(time_ns)
        return min(when, interval_end) if self._is_by_wall_clock else when
