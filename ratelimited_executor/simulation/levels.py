"""What a run looks at again and again: gauges of its scenario, and what is used of the resources of its executors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._runtime.arguments import callable_of, number_of
from ratelimited_executor.simulation.summary import GaugeSummary, ResourceSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ratelimited_executor._runtime.limits.quota import Quota

__all__ = ["Gauge", "GaugeRecord", "ResourceUse", "amount_a_second"]

_PERIOD_SECONDS: Final = {"minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 365.2425 / 12 * 86_400}


class Gauge:
    """A value that a scenario lets the run look at, at the end of each step.

    Args:
        name: its name, for messages.
        read: returns the value, a finite number.
        unit: the unit of its values, for reports.
    """

    def __init__(self, name: str, read: Callable[[], float], unit: str) -> None:
        self.unit: Final = unit
        self._name = name
        self._read = callable_of("read", read)

    def value(self) -> float:
        """Look at it.

        Raises:
            TypeError: if the function returns no number.
            ValueError: if it returns NaN or an infinity.
        """
        value = number_of(f"the value of the gauge {self._name}", self._read())
        if not math.isfinite(value):
            raise ValueError(f"the value of the gauge {self._name} must be finite, got {value!r}")
        return value


class GaugeRecord:
    """The values of a gauge in a run."""

    def __init__(self) -> None:
        self._least, self._most, self._last = math.inf, -math.inf, math.nan
        self._seconds = self._sum = 0.0

    def add(self, value: float, seconds: float) -> None:
        """Add a value that stands for a number of seconds."""
        self._least, self._most, self._last = min(self._least, value), max(self._most, value), value
        self._sum += value * seconds
        self._seconds += seconds

    def sum_up(self) -> GaugeSummary | None:
        """Return the figures; None if nothing was added."""
        if not self._seconds:
            return None
        return GaugeSummary(least=self._least, mean=self._sum / self._seconds, most=self._most, last=self._last)


class ResourceUse:
    """How much of a resource of an executor was used, and how much its limits would have admitted."""

    def __init__(self) -> None:
        self._used, self._admitted = 0, 0.0

    def add(self, used: int, admitted: float) -> None:
        """Add the amounts of a step."""
        self._used += used
        self._admitted += admitted

    def sum_up(self) -> ResourceSummary:
        """Return the figures."""
        return ResourceSummary(used=self._used, admitted=self._admitted)


def amount_a_second(limits: Iterable[Rate | Quota]) -> float:
    """Return what limits admit in the long run, an amount a second.

    >>> amount_a_second([Rate.of("600/min"), Rate.of("100/s")])
    10.0
    """

    def of(limit: Any) -> float:
        return float(limit) if isinstance(limit, Rate) else limit.permits / _PERIOD_SECONDS[limit.per]

    return min(map(of, limits), default=math.inf)
