"""Forecast the probability that work ends in time, from runs of one scenario with many seeds.

The probability has a Wilson score interval (Wilson, 1927), which is valid for few runs and when no run or every run is
in time. The median of the ends has an interval by order statistics, which is valid for every distribution. Both are at
95 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Final

from ratelimited_executor._runtime.arguments import count_of, seconds_of
from ratelimited_executor.simulation.limits import SEEDS_MAX, check_most
from ratelimited_executor.simulation.runs import simulate
from ratelimited_executor.testing.clock import DEFAULT_START_WALL

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor.simulation.runs import RunProgress, RunResult
    from ratelimited_executor.simulation.simulation import Scenario

__all__ = ["Forecast", "forecast"]

_Z95: Final = NormalDist().inv_cdf(0.975)
_TAIL: Final = 0.025
MEDIAN_RUNS_MIN: Final = 6  # the least number of runs that have an interval of their median: 1 / 2**6 <= _TAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The ends of all work, over several seeds.

    Attributes:
        ends: seconds since the start at which the last job of each run ended, rising; infinity for a run that did not
            end.
        within: the seconds within which all work is to end.
        in_time: the number of runs whose work ended within that time.
        chance: the probability that work ends in time, as (low, estimate, high), at 95 %.
        median: the median of the ends, as (low, estimate, high), at 95 %; infinite if runs did not end. With fewer than six
            runs no interval reaches 95 %, so it is from 0 to infinity.
        failed: the mean number of failed jobs.
        jobs: the mean number of jobs in a run.
    """

    ends: tuple[float, ...]
    within: float
    in_time: int
    chance: tuple[float, float, float]
    median: tuple[float, float, float]
    failed: float
    jobs: float


def forecast(
    scenario: Scenario,
    *,
    within: DurationLike,
    seeds: int = 20,
    first_seed: int = 0,
    start: float = DEFAULT_START_WALL,
    on_run: Callable[[int, RunResult], object] | None = None,
    on_progress: Callable[[RunProgress], object] | None = None,
) -> Forecast:
    """Run a scenario with several seeds until its work has ended.

    Args:
        scenario: the work.
        within: the span from the start within which all work is to end, > 0.
        seeds: the number of runs, >= 1; more runs give narrower intervals.
        first_seed: the seed of the first run; later runs have the seeds that follow.
        start: epoch seconds at which each run begins; by default a midnight.
        on_run: called when a run has ended, with its number, from 1 on, and its result.
        on_progress: called at most ten times a second with the progress of the current run.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range.
    """
    limit = seconds_of("within", within)
    count = count_of("seeds", seeds, least=1)
    check_most("seeds", count, SEEDS_MAX, "runs")
    ends: list[float] = []
    failed = jobs = 0
    horizon = max(2 * limit, limit + 3600.0)  # beyond the limit, to measure how late a late run is
    for number in range(count):
        result = simulate(
            scenario,
            days=horizon / 86_400,
            seed=first_seed + number,
            start=start,
            until_done=True,
            on_progress=on_progress,
        )
        ends.append(result.end if result.is_done else math.inf)
        failed += result.summary.total.failed
        jobs += result.summary.jobs
        if on_run is not None:
            on_run(number + 1, result)
    ends.sort()
    in_time = sum(end <= limit for end in ends)
    low = _order_statistic(count)
    return Forecast(
        ends=tuple(ends),
        within=limit,
        in_time=in_time,
        chance=_wilson(in_time, count),
        median=(0.0, median(ends), math.inf) if low is None else (ends[low], median(ends), ends[count - 1 - low]),
        failed=failed / count,
        jobs=jobs / count,
    )


def _wilson(hits: int, count: int) -> tuple[float, float, float]:
    """Return the probability estimated from a number of hits, with its interval."""
    part, square = hits / count, _Z95**2
    middle = (part + square / (2 * count)) / (1 + square / count)
    half = _Z95 / (1 + square / count) * math.sqrt(part * (1 - part) / count + square / (4 * count**2))
    return max(0.0, middle - half), part, min(1.0, middle + half)


def _order_statistic(count: int) -> int | None:
    """Return the largest index such that the median lies between it and its mirror image at 95 %; None if none does.

    The number of values below the median has a binomial distribution.
    """
    if count < MEDIAN_RUNS_MIN:
        return None
    below, index = 1 / 2**count, 0
    while (below := below + math.comb(count, index + 1) / 2**count) <= _TAIL:
        index += 1
    return index
