"""Percentiles of durations in bounded memory.

Durations fall into buckets whose bounds grow by 2 %, from one microsecond on, so a percentile is exact within 2 % and
some 1,700 buckets reach a billion seconds. The idea is that of HdrHistogram (Gil Tene); a library was not worth it for
these few lines.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["DurationHistogram"]

_SMALLEST_S: Final = 1e-6
_GROWTH_LOG: Final = math.log(1.02)


class DurationHistogram:
    """Counts durations in seconds; anything below a microsecond counts as one."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0
        self._max = 0.0

    @property
    def total(self) -> int:
        """How many durations were added."""
        return self._total

    @property
    def max(self) -> float:
        """The longest duration, exactly; 0 if there was none."""
        return self._max

    def add(self, seconds: float) -> None:
        """Count one duration, finite."""
        bucket = math.ceil(math.log(max(seconds, _SMALLEST_S) / _SMALLEST_S) / _GROWTH_LOG)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._total += 1
        self._max = max(self._max, seconds)

    def quantile(self, share: float) -> float:
        """Return a duration that ``share`` of all do not exceed, at most 2 % too long; 0 if there was none.

        >>> histogram = DurationHistogram()
        >>> for milliseconds in range(1, 101):
        ...     histogram.add(milliseconds / 1000)
        >>> 0.050 <= histogram.quantile(0.5) <= 0.051
        True
        """
        assert 0 < share <= 1, share
        wanted, seen = share * self._total, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(self._max, _SMALLEST_S * math.exp(bucket * _GROWTH_LOG))
        return self._max
