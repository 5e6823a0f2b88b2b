"""Values measured in a simulation: their quantiles in each step of time, and over the whole run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ratelimited_executor._core.histogram import DurationHistogram
from ratelimited_executor._kernel.choice import two_bodies, used_there

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["GATHER_COUNT", "GROWTH", "Meter", "StepQuantiles", "new_histogram"]

GATHER_COUNT: Final = 2000
GROWTH: Final = 1.001  # of the buckets in the histogram of a run


@used_there
def new_histogram() -> DurationHistogram:
    """Return an empty histogram with the precision of meters."""
    return DurationHistogram(GROWTH)


@used_there
class StepQuantiles(NamedTuple):
    """The number of values in a step, and their quantiles in seconds, by the nearest rank."""

    number: int
    mean: float
    least: float
    p50: float
    p90: float
    p99: float
    most: float


@two_bodies
class Meter:
    """The values of one metric of one source.

    Args:
        source: number of the source in the database.
        metric: the name of the metric.

    Attributes:
        values: the values of the current step; append to it.
        add: adds a value.
    """

    __slots__ = ("_counted", "_gathered", "add", "metric", "source", "values")

    def __init__(self, source: int, metric: str) -> None:
        self.source = source
        self.metric = metric
        self.values: list[float] = []
        self._counted = new_histogram()
        self._gathered: list[float] = []  # of earlier steps; counting many together is faster
        self.add: Callable[[float], None] = self.values.append

    def extend(self, values: Sequence[float]) -> None:
        """Add values."""
        self.values += values

    def extend_by_excess(self, other: Meter, least: float) -> None:
        """Add by how much each value of another meter in its current step exceeds ``least``; 0 if it does not."""
        self.values += [value - least if value > least else 0.0 for value in other.values]  # faster than max()

    def keep(self, write: Callable[[tuple[int, str, Any, float]], None], key: Callable[[], Any]) -> None:
        """Write every single value from now on, with its key."""
        append, source, metric = self.values.append, self.source, self.metric

        def add(value: float) -> None:
            append(value)
            write((source, metric, key(), value))

        self.add = add

    def take(self) -> StepQuantiles | None:
        """End the step, and return its quantiles; None if nothing was measured."""
        values = self.values
        if not values:
            return None
        values.sort()
        count = len(values)
        found = StepQuantiles(
            count,
            math.fsum(values) / count,
            values[0],
            values[(count - 1) // 2],
            values[(9 * count - 1) // 10],
            values[(99 * count - 1) // 100],
            values[-1],
        )
        self._gathered += values
        values.clear()
        if len(self._gathered) > GATHER_COUNT:
            self._count()
        return found

    @property
    def histogram(self) -> DurationHistogram:
        """The values of the whole run, except those of the current step."""
        self._count()
        return self._counted

    def adopt(self, histogram: DurationHistogram) -> None:
        """Replace all values by those that were counted elsewhere."""
        self.forget()
        self._counted = histogram

    def forget(self) -> None:
        """Forget all values of the run."""
        self.values.clear()
        self._gathered.clear()
        self._counted = new_histogram()

    def _count(self) -> None:
        self._gathered.sort()
        self._counted.add_sorted(self._gathered)
        self._gathered.clear()
