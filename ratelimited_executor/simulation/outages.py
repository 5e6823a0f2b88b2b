"""Outages of a kind of job: when they are, and which fraction of the jobs that start in them fail."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.simulation.jobs import failures_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.testing.clock import VirtualClock

__all__ = ["JobOutage", "OutageFailures"]


@dataclass(frozen=True)
class JobOutage:
    """An outage of a kind of job.

    Attributes:
        begin: seconds of the run.
        end: seconds of the run, after the begin.
        times: seconds of the run, rising, at which the fraction is known.
        parts: the fractions at those times; between them it changes evenly, and before and after them not at all.
    """

    begin: float
    end: float
    times: Sequence[float] = (0.0,)
    parts: Sequence[float] = (1.0,)

    def part(self, now: float) -> float:
        """Return the fraction of the jobs that start at a time and fail; 0.0 outside of the outage."""
        if not self.begin <= now < self.end:
            return 0.0
        place = bisect_right(self.times, now)
        if place in (0, len(self.times)):
            return self.parts[max(place - 1, 0)]
        (since, until), (before, after) = self.times[place - 1 : place + 1], self.parts[place - 1 : place + 1]
        return before + (after - before) * (now - since) / (until - since)


class OutageFailures:
    """The fraction of jobs of a kind that fail, by the time at which they start: the usual one, or that of an outage if larger.

    Args:
        usual: the fraction at other times.
        outages: the outages.
        clock: the clock of the simulation.
    """

    def __init__(self, usual: float, outages: Sequence[JobOutage], clock: VirtualClock) -> None:
        self.usual: Final = failures_of(usual)
        self.outages: Final = tuple(outages)
        self._clock = clock
        self._begin = min((each.begin for each in self.outages), default=math.inf)
        self._end = max((each.end for each in self.outages), default=math.inf)

    def __call__(self, key: Any) -> float:  # noqa: ARG002  # the shape of such a function
        """Return the fraction of the jobs that start now."""
        now = self._clock._monotonic
        if not self._begin <= now < self._end:  # most jobs: this is on the path of all
            return self.usual
        return max(self.usual, *(outage.part(now) for outage in self.outages))
