"""One monotonic timeline for intervals, permits and delays, and the only place where times are rounded.

The timeline is epoch time at its start plus monotonic time since: it never steps. Three representations of an instant
are in use, each for one purpose, and only this module converts between them:

- *loop time*: float seconds on the scale of the event loop's ``time()``. Due times and timers are kept in it, because
  adding a delay is one float addition, and because small numbers keep sub-nanosecond precision.
- *timeline nanoseconds*: integer nanoseconds since the epoch. Permits and intervals are computed in it, exactly.
- *epoch seconds*: float seconds since the epoch, for people.

Loop time to nanoseconds rounds down (nothing is early); nanoseconds to loop time rounds up, far enough to convert back
to the same nanosecond or a later one. So a timer that is set for an instant finds it reached.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import TimelineFields
from ratelimited_executor._kernel.sizes import FAR_SECONDS as FAR_SECONDS

__all__ = ["FAR_SECONDS", "NS", "Timeline"]

NS: Final = 1_000_000_000
_TICK_SECONDS: Final = 0.000_99  # nearly the millisecond in which uvloop counts: a task due in a later one waits for it
_FAR_NS: Final = 2 * int(FAR_SECONDS) * NS  # instants beyond need not be told apart either


class Timeline(TimelineFields):
    """Conversions between the three representations, and the intervals of one width.

    Args:
        monotonic: loop time at the start.
        wall: epoch seconds at the start.
        interval_ns: the width of an interval in nanoseconds, > 0; interval ``k`` begins ``k`` widths after the epoch.

    Attributes:
        loop_time: returns the event loop's own time, if that stands still during a turn; else None.
    """

    __slots__ = ("epoch_offset",)

    def __init__(self, *, monotonic: float, wall: float, interval_ns: int) -> None:
        assert interval_ns > 0, interval_ns
        self.interval_ns = interval_ns
        self.loop_time = None
        # Exact: a float product of epoch seconds is only good to 256 ns.
        self.offset_ns = math.floor(Fraction(wall) * NS) - math.floor(Fraction(monotonic) * NS)
        self.epoch_offset: float = self.offset_ns / NS

    def seen_until(self, now: float) -> float:
        """Return the due time up to which tasks start: at most the tick that the event loop itself has reached."""
        return now if self.loop_time is None else min(now, self.loop_time() + _TICK_SECONDS)

    @property
    def interval_seconds(self) -> float:
        """The width of an interval in seconds."""
        return self.interval_ns / NS

    def cut(self, width_ns_max: int) -> Timeline:
        """Return the timeline with intervals divided into equal parts of a maximum width, if whole nanoseconds allow it."""
        least = -(-self.interval_ns // width_ns_max)
        parts = next((n for n in range(least, 8 * least + 1) if self.interval_ns % n == 0), 1)
        if parts == 1:
            return self
        other = Timeline(monotonic=0.0, wall=0.0, interval_ns=self.interval_ns // parts)
        other.offset_ns = self.offset_ns
        other.epoch_offset = self.epoch_offset
        return other

    def to_ns(self, loop_time: float) -> int:
        """Convert loop time to timeline nanoseconds, rounded down."""
        return math.floor(loop_time * NS) + self.offset_ns

    def to_loop(self, time_ns: int) -> float:
        """Convert timeline nanoseconds to the first loop time that :meth:`to_ns` does not put before them."""
        if time_ns > _FAR_NS:  # noqa: PLR1730  # this is the path of every wake-up
            time_ns = _FAR_NS
        offset_ns = self.offset_ns
        loop_time = (time_ns - offset_ns) / NS
        while math.floor(loop_time * NS) + offset_ns < time_ns:
            loop_time = math.nextafter(loop_time, math.inf)
        return loop_time

    def to_epoch(self, loop_time: float) -> float:
        """Convert loop time to epoch seconds on the timeline."""
        return loop_time + self.epoch_offset

    @two_bodies
    def number_at(self, loop_time: float) -> int:
        """Return the number of the interval that contains an instant; instants too far ahead share one interval."""
        if loop_time > FAR_SECONDS:  # noqa: PLR1730  # this is the path of every wake-up
            loop_time = FAR_SECONDS
        return (math.floor(loop_time * NS) + self.offset_ns) // self.interval_ns

    @two_bodies
    def start_of(self, number: int) -> float:
        """Return the loop time at which an interval begins."""
        return self.to_loop(number * self.interval_ns)
