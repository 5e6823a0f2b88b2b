"""The one module that reads time."""

from __future__ import annotations

import asyncio
import math
import time
from types import MethodType
from typing import TYPE_CHECKING, Final

from ratelimited_executor._kernel.sizes import TICKS, TICKS_MAX
from ratelimited_executor._kernel.timeline import NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._kernel.timeline import Timeline
    from ratelimited_executor.abc import Clock

__all__ = ["Moments", "SystemClock", "clock_for", "coarse_time_of", "is_of_system", "next_tick"]

# A foreign loop keeps its own time if that differs from the system's by more. uvloop's lags by up to an iteration.
_FOREIGN_SECONDS: Final = 60.0
# Two clocks read within this time count as read at once; a thread that is preempted each time gives up in the end.
_READING_SECONDS: Final = 0.0002
_READINGS_MAX: Final = 100


class SystemClock:
    """The system's monotonic and wall clock, on the scale of asyncio's and uvloop's ``loop.time()``."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    @staticmethod
    def suspended() -> float:
        """Return the seconds that the machine was suspended since it started; 0 if the system does not say.

        This is the difference of two clocks, which cannot be read at once: a thread preempted between the two readings
        would take its own pause for a suspension. So a reading that took too long is repeated. Suspensions do not
        prolong it, since monotonic time does not include them.
        """
        boot: int | None = getattr(time, "CLOCK_BOOTTIME", None)
        if boot is None:
            return 0.0
        best, narrowest = 0.0, math.inf
        for _ in range(_READINGS_MAX):
            before = time.monotonic()
            seconds = time.clock_gettime(boot) - before
            width = time.monotonic() - before
            if width < narrowest:
                best, narrowest = seconds, width
            if width < _READING_SECONDS:
                break
        return best


class _LoopClock:
    """The time of an event loop that keeps its own; wall time passes with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.monotonic = loop.time
        self._offset = time.time() - loop.time()

    def wall(self) -> float:
        """Return seconds since the epoch: the wall time at the creation of this clock, plus loop time since."""
        return self.monotonic() + self._offset


class Moments:
    """The time of one manager, as read by the parts of its executors.

    Args:
        clock: the source of the time.
        timeline: converts loop time to nanoseconds on the timeline.
    """

    __slots__ = ("monotonic", "timeline", "wall")

    def __init__(self, clock: Clock, timeline: Timeline) -> None:
        self.monotonic = clock.monotonic
        self.wall = clock.wall
        self.timeline = timeline

    def ns(self) -> int:
        """Return the time on the timeline in nanoseconds."""
        return self.timeline.to_ns(self.monotonic())

    def wall_ns(self) -> int:
        """Return the wall clock's time in nanoseconds."""
        return round(self.wall() * NS)


def clock_for(loop: asyncio.AbstractEventLoop) -> Clock:
    """Return the clock for a loop that offers none (``hooks.py``): the system's, or one with the loop's own time."""
    if isinstance(loop, asyncio.BaseEventLoop):
        is_foreign = loop.time != MethodType(asyncio.BaseEventLoop.time, loop)  # overridden or patched
    else:
        is_foreign = abs(loop.time() - time.monotonic()) > _FOREIGN_SECONDS
    return _LoopClock(loop) if is_foreign else SystemClock()


def is_of_system(clock: Clock) -> bool:
    """True if a clock follows the system's monotonic time, so that system timers fire by it."""
    return clock.monotonic is time.monotonic


def coarse_time_of(loop: asyncio.AbstractEventLoop, clock: Clock) -> Callable[[], float] | None:
    """Return ``loop.time`` if it stands still during a loop iteration, in whole milliseconds, as uvloop's does."""
    is_exact = isinstance(loop, asyncio.BaseEventLoop) or not isinstance(clock, SystemClock)
    return None if is_exact else loop.time


def next_tick(when: float) -> float:
    """Return the first tick of a coarse loop at or after a time; the time itself if it is beyond all ticks."""
    return math.ceil(when * TICKS) / TICKS if -TICKS_MAX < when < TICKS_MAX else when
