"""How many permits may be taken now, in loop time, as the queue remembers it from one look to the next.

The permits themselves count in integer nanoseconds, and are asked seldom: what :meth:`Admission.look` has counted stays
usable for a while, and where nothing is usable, it is known before when nothing will be.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.fields import AdmissionFields
from ratelimited_executor._kernel.sizes import MARGIN_COUNT
from ratelimited_executor._kernel.timeline import NS

if TYPE_CHECKING:
    from ratelimited_executor._kernel.contracts import Permits
    from ratelimited_executor._kernel.timeline import Timeline

__all__ = ["UNLIMITED", "Admission"]

UNLIMITED: Final = 1 << 62  # more permits than anybody takes at one instant: the answer at an infinite rate


class Admission(AdmissionFields):
    """The permits of one queue.

    Args:
        permits: what admits starts.
        timeline: turns loop time into nanoseconds.

    Attributes:
        permits: the same; another by :meth:`put`.
        is_unlimited: True if everything may start at once.
        effects: the permits, if their starts count from when they take effect; else None.
        count: permits that were counted and not yet taken.
        usable_until: loop time until which they may be taken.
        next_at: loop time before which no other permit comes up.
        per_second: how many come up in a second, evenly; 0 if that is not known.
        usable_max: how many may be usable at once; infinity if that is not known.
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
        self.effects: Any = permits if permits.counts_effects and not self.is_unlimited else None
        self._is_by_wall_clock = permits.is_by_wall_clock
        self.usable_until = math.inf if self.is_unlimited else 0.0
        self.per_second, self.usable_max = permits.pace()
        self.forget()

    def forget(self) -> None:
        """Count the permits anew: some were granted, or used up."""
        self.count = 0
        self.next_at = -math.inf

    def look(self, now: float) -> int:
        """Count the permits that may be taken at loop time ``now``."""
        now_ns = (
            math.floor(now * NS) + self._timeline.offset_ns
        )  # to_ns() without a call: this is the path of every start
        self._counted_at = now
        count: int = min(self.permits.usable(now_ns), UNLIMITED)  # at 1e21 a second there may be more
        self.count = count
        if count and not self.is_unlimited:
            self.usable_until = now + (self.permits.usable_until_ns - now_ns) / NS
        return count

    def find(self, now: float, interval_end: float) -> int:
        """Count permits like :meth:`count`, reusing the previous count while valid; if there is none, note the next time.

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
        """Return True if so many permits can be taken from ``now`` to ``end``, if their pace alone tells; else None.

        The margins are for what rounding, a late start and a permit at either end may take or give.
        """
        since = now if self.count else self.next_at  # before the next one comes up there is none
        if since > -math.inf and count <= (end - max(since, now)) * self.per_second - MARGIN_COUNT:
            return True
        return False if count > (end - now) * self.per_second + self.usable_max + MARGIN_COUNT else None

    def take(self, count: int, now: float) -> None:
        """Use some of the counted permits for starts at loop time ``now``; nothing if none were needed."""
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
