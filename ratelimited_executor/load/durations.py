"""Durations in an HdrHistogram, in constant memory.

It has three significant digits from a microsecond to an hour. The histogram is that of the package ``hdrhistogram``: results
keep its encoded form, which other tools of the HdrHistogram family can read, and which is merged. ``_core.histogram`` has
neither a form to keep nor a longest value, and needs no package: it serves figures that are only printed.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable

__all__ = ["SHARES", "Durations", "HistogramMissingError", "rank_of"]

# The percentiles reported of durations, by name.
SHARES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))

# Microseconds. Longer durations are recorded as an hour; no timeout of a measurement is longer.
_MOST_US: Final = 3_600_000_000
_DIGITS: Final = 3
_MICROSECONDS: Final = 1e6
_STEP_COUNT: Final = 200  # distinct durations that a step adds to a histogram: it takes 0.3 ms


def rank_of(share: float, count: int) -> int:
    """Return the rank of a quantile, 1 to ``count``: of the smallest value that the share does not exceed.

    >>> [rank_of(share, 4) for share in (0, 0.5, 0.51, 1)]
    [1, 2, 3, 4]
    """
    return max(1, math.ceil(share * count - 1e-9))


class HistogramMissingError(ImportError):
    """The package ``hdrhistogram`` is not installed."""

    def __str__(self) -> str:
        return "hdrhistogram is not installed: pip install 'ratelimited-executor[load]'"


class Durations:
    """A set of durations in seconds.

    Raises:
        HistogramMissingError: if the extra is not installed.
    """

    __slots__ = ("_made", "_most", "_pending", "_sum")

    def __init__(self) -> None:
        self._made: Any = _histogram_class()(1, _MOST_US, _DIGITS)
        self._pending: Counter[int] = Counter()  # microseconds that are not in the histogram yet
        self._sum = 0.0
        self._most = 0.0

    @property
    def _histogram(self) -> Any:
        """The histogram of all durations."""
        for _ in self.settle_in_steps():
            pass
        return self._made

    @property
    def count(self) -> int:
        """The number of recorded durations."""
        return int(self._made.total_count) + self._pending.total()

    @property
    def mean(self) -> float:
        """The mean in seconds; 0 if there are none."""
        return self._sum / self.count if self.count else 0.0

    @property
    def most(self) -> float:
        """The longest in seconds; 0 if there are none."""
        return self._most

    def add_all(self, values: Collection[float]) -> None:
        """Record durations; a negative one counts as 0. Takes a fifth of a microsecond for each."""
        if not values:
            return
        if min(values) < 0:
            values = [max(0.0, each) for each in values]
        self._sum += sum(values)
        longest = max(values)
        self._most = max(self._most, longest)
        self._pending.update([round(each * _MICROSECONDS) for each in values])

    def settle_in_steps(self) -> Generator[None, None, None]:
        """Do now what reading would do, a microsecond for each distinct duration; yield between short steps."""
        record = self._made.record_value
        for number, (microseconds, count) in enumerate(self._pending.items(), start=1):
            record(min(_MOST_US, microseconds), count)
            if number % _STEP_COUNT == 0:
                yield
        self._pending.clear()

    def take(self, other: Durations) -> None:
        """Add the durations of another set."""
        self._histogram.add(other._histogram)
        self._sum += other._sum
        self._most = max(self._most, other._most)

    @classmethod
    def merged(cls, populations: Iterable[Durations]) -> Durations:
        """Return the union of several sets."""
        merged = cls()
        for each in populations:
            merged.take(each)
        return merged

    def quantile(self, share: float) -> float:
        """Return the duration that a share, 0 to 1, does not exceed; 0 if there are none. Takes milliseconds."""
        if not self.count:
            return 0.0
        # The histogram rounds to the nearest rank; the percentile of a whole rank leaves nothing to round.
        percentile = 100 * rank_of(share, self.count) / self.count
        return min(self._most, float(self._histogram.get_value_at_percentile(percentile)) / _MICROSECONDS)

    def count_above(self, seconds: float) -> int:
        """Count the durations longer than a value, within the resolution of the histogram."""
        limit = self._histogram.get_highest_equivalent_value(round(seconds * _MICROSECONDS))
        return sum(count for value, count in self._recorded() if value > limit)

    def curve(self) -> list[tuple[float, float]]:
        """Return (share of the durations up to a value, the value in seconds) for each recorded value."""
        points, total = [], 0
        for value, count in self._recorded():
            total += count
            points.append((total / self.count, min(self._most, value / _MICROSECONDS)))
        return points

    def to_json(self) -> dict[str, Any]:
        """Return the figures and the compressed histogram as values for JSON."""
        encoded = self._histogram.encode()
        return {
            "count": self.count,
            "mean": self.mean,
            "max": self._most,
            "hdr": encoded.decode("ascii") if isinstance(encoded, bytes) else str(encoded),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Durations:
        """Return the durations that :meth:`to_json` was called on.

        Raises:
            ValueError: if the fields are not those of a histogram.
        """
        try:
            durations = cls()
            if fields["count"]:
                durations._made = _histogram_class().decode(fields["hdr"])
            durations._most = float(fields["max"])
            durations._sum = float(fields["mean"]) * fields["count"]
        except HistogramMissingError:
            raise
        except Exception as error:  # the codec raises errors of zlib, base64, ctypes and its own
            raise ValueError(f"a histogram cannot be read: {type(error).__name__}: {error}") from error
        if durations.count != fields["count"] or not math.isfinite(durations._most + durations._sum):
            raise ValueError(f"a histogram holds {durations.count} values, and should hold {fields['count']}")
        return durations

    def _recorded(self) -> list[tuple[int, int]]:
        """Return (highest equivalent value, count) for each recorded value, ascending."""
        if not self.count:
            return []
        return [
            (each.value_iterated_to, each.count_added_in_this_iter_step)
            for each in self._histogram.get_recorded_iterator()
        ]


def _histogram_class() -> Any:
    try:
        from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]  # noqa: PLC0415  # ships no types; an extra
    except ModuleNotFoundError as error:
        raise HistogramMissingError from error
    return HdrHistogram
