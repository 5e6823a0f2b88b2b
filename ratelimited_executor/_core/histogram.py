"""Percentiles of durations in bounded memory.

Durations fall into buckets whose bounds grow by 2 % or less, from one microsecond on, so percentiles are exact to that
percentage; with 2 %, some 1,700 buckets reach a billion seconds. The idea is that of HdrHistogram (Gil Tene); these few
lines did not justify a library. Measurements of ``load`` are in a real one, since their results are kept in its format.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import accumulate, repeat
from operator import mul
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["DurationHistogram"]

_SMALLEST_S: Final = 1e-6
_SMALLEST_LOG: Final = math.log(_SMALLEST_S)


class DurationHistogram:
    """Counts durations in seconds; a duration below a microsecond is in the bucket of one microsecond.

    Args:
        growth: the ratio of the bounds of successive buckets, > 1.
    """

    def __init__(self, growth: float = 1.02) -> None:
        self._growth_log = math.log(growth)
        self._per_log = 1 / self._growth_log
        self._counts: Counter[int] = Counter()
        self._longest: dict[int, float] = {}  # of each bucket, so that a constant duration is reported exactly
        self._total = 0
        self._sum = 0.0
        self._max = 0.0
        self._order: list[int] = []  # of the buckets, when a quantile was asked for last
        self._sums: list[int] = []  # how many durations are in each of them and those before
        self._summed_total = 0

    @property
    def mean(self) -> float:
        """The exact mean of the durations; 0 if there are none."""
        return self._sum / self._total if self._total else 0.0

    @property
    def total(self) -> int:
        """The number of durations added."""
        return self._total

    @property
    def max(self) -> float:
        """The longest duration, exact; 0 if there are none."""
        return self._max

    def add(self, seconds: float) -> None:
        """Count one finite duration."""
        bucket = math.ceil(math.log(max(seconds, _SMALLEST_S) / _SMALLEST_S) / self._growth_log)
        self._counts[bucket] += 1
        self._longest[bucket] = max(seconds, self._longest.get(bucket, 0.0))
        self._total += 1
        self._sum += seconds
        self._max = max(self._max, seconds)

    def add_sorted(self, seconds: Sequence[float]) -> None:
        """Count many finite durations in ascending order: several times faster than one by one."""
        if not seconds:
            return
        self._total += len(seconds)
        self._sum += math.fsum(seconds)
        self._max = max(self._max, seconds[-1])
        small = bisect_right(seconds, _SMALLEST_S)
        if small:
            self._counts[0] += small
            self._longest[0] = max(seconds[small - 1], self._longest.get(0, 0.0))
            seconds = seconds[small:]
        # Rounded down plus one instead of rounded up, which differs only at a bound.
        scaled = map(mul, map(math.log, seconds), repeat(self._per_log))
        buckets = list(map(int, map((1 - _SMALLEST_LOG * self._per_log).__add__, scaled)))
        self._counts.update(buckets)
        longest = self._longest
        for bucket, last in dict(zip(buckets, seconds, strict=True)).items():  # the last of each bucket is its longest
            if last > longest.get(bucket, 0.0):
                longest[bucket] = last

    def add_counted(
        self, buckets: Sequence[int], counts: Sequence[int], longest: Sequence[float], total_seconds: float
    ) -> None:
        """Add durations that were counted elsewhere, as :meth:`add_sorted` does.

        Args:
            buckets: the numbers of buckets.
            counts: how many durations are in each.
            longest: the longest in each, >= 0.
            total_seconds: the sum of all durations.
        """
        self._counts.update(dict(zip(buckets, counts, strict=True)))
        for bucket, most in zip(buckets, longest, strict=True):
            self._longest[bucket] = max(most, self._longest.get(bucket, 0.0))
        self._total += sum(counts)
        self._sum += total_seconds
        self._max = max(self._max, *longest, 0.0)

    def merge(self, other: DurationHistogram) -> None:
        """Add the counts of another histogram of the same growth."""
        assert self._growth_log == other._growth_log
        longest = [other._longest[bucket] for bucket in other._counts]
        self.add_counted([*other._counts], [*other._counts.values()], longest, other._sum)

    def quantile(self, share: float) -> float:
        """Return a duration that ``share`` of all do not exceed, too long by at most the growth; 0 if there are none.

        >>> histogram = DurationHistogram()
        >>> for milliseconds in range(1, 101):
        ...     histogram.add(milliseconds / 1000)
        >>> 0.050 <= histogram.quantile(0.5) <= 0.051
        True
        """
        assert 0 < share <= 1, share
        if self._summed_total != self._total:  # else it was asked for another quantile of the same durations
            self._order = sorted(self._counts)
            self._sums = list(accumulate(map(self._counts.__getitem__, self._order)))
            self._summed_total = self._total
        index = bisect_left(self._sums, share * self._total)
        return self._longest[self._order[index]] if index < len(self._order) else self._max

    def buckets(self) -> Iterator[tuple[float, float, int]]:
        """Iterate over the non-empty buckets in ascending order, as (low, high, count) of durations in (low, high].

        The first bucket includes 0.
        """
        for bucket in sorted(self._counts):
            high = _SMALLEST_S * math.exp(bucket * self._growth_log)
            yield high * math.exp(-self._growth_log) if bucket else 0.0, high, self._counts[bucket]
