"""The next due time of a repeating task.

A fixed rate keeps its phase: tick k is due at ``first + k * period``, and a policy decides on missed ticks. A fixed
delay counts from the end of the previous run. All functions are pure: the time is an argument.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

__all__ = ["LastRun", "MissedTick", "OnError", "Tick", "newest_tick", "next_tick"]


class MissedTick(Enum):
    """What happens to ticks whose time passed while the task ran or could not start.

    With a period of 10 s, and a run that lasts from 0 to 35::

        due       0         10        20        30        40        50
        SKIP      0---------------------------------35    40        50      the next tick on the grid
        COALESCE  0---------------------------------35 35 40        50      one run at once for all missed ticks
        BURST     0---------------------------------35 35 35 35 40  50      one run at once for each missed tick
    """

    SKIP = "skip"
    COALESCE = "coalesce"
    BURST = "burst"


class OnError(Enum):
    """What happens after a run of a repeating task that raised."""

    CONTINUE = "continue"
    """Report the exception to the event loop's handler, and continue the repetition."""

    STOP = "stop"
    """End the repetition; its handle raises the exception."""


class Tick(NamedTuple):
    """One occurrence: its number in the series, and the loop time at which it is due."""

    number: int
    due: float


class LastRun(NamedTuple):
    """The previous run, in loop time; with overlap it counts as ended when it starts."""

    started: float
    ended: float


def newest_tick(first: float, period: float, now: float) -> int:
    """Return the number of the newest tick that is due; below 0 before the first."""
    number = math.floor((now - first) / period)
    # The quotient is rounded, so the product decides: ticks become due by it.
    if first + (number + 1) * period <= now:
        return number + 1
    return number - 1 if first + number * period > now else number


def next_tick(first: float, period: float, last: int, now: float, missed: MissedTick) -> Tick:
    """Return the tick that follows the one numbered ``last`` in a series with a fixed rate.

    Args:
        first: loop time of tick 0.
        period: seconds from one tick to the next, > 0.
        last: number of the tick that has just run.
        now: loop time.
        missed: the policy for ticks that are already due.

    >>> next_tick(0.0, 10.0, 0, 35.0, MissedTick.SKIP)
    Tick(number=4, due=40.0)
    >>> next_tick(0.0, 10.0, 0, 35.0, MissedTick.COALESCE)
    Tick(number=3, due=30.0)
    >>> next_tick(0.0, 10.0, 0, 35.0, MissedTick.BURST)
    Tick(number=1, due=10.0)
    """
    number = last + 1
    if missed is not MissedTick.BURST:
        newest = newest_tick(first, period, now)
        if missed is MissedTick.COALESCE:
            number = max(number, newest)
        elif newest >= number:
            is_exact = first + newest * period == now  # due at this instant: not missed
            number = newest if is_exact else newest + 1
    return Tick(number, first + number * period)
