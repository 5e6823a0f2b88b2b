"""What a run wrote at its end: of each kind of job its waits, its objectives, and what its calls cost; resources; gauges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.simulation.summary import ObjectiveSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "GAUGE_FIGURES",
    "RESOURCE_FIGURES",
    "VALUE_MAX",
    "StoredKind",
    "StoredQuantiles",
    "kinds_of",
    "named_figures",
    "number_of",
    "quantiles_of",
]

# No simulation writes a number beyond this, or a value of another type, and neither could be drawn.
VALUE_MAX: Final = 2.0**53
RESOURCE_FIGURES: Final = ("used", "part")
GAUGE_FIGURES: Final = ("least", "mean", "most", "last")
_KEY_LENGTH: Final = 40  # of a key, as it is shown


@dataclass(frozen=True, slots=True)
class StoredQuantiles:
    """Quantiles of a whole run, in seconds; None if the run does not have them."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class StoredKind:
    """A kind of job.

    Attributes:
        name: its name.
        waits: the waits of all jobs, of each priority, and of the key that waited longest, each with a heading.
        objectives: its objectives.
        cost: what its calls cost.
    """

    name: str
    waits: list[tuple[str, StoredQuantiles]]
    objectives: list[ObjectiveSummary]
    cost: float


def kinds_of(written: Any) -> list[StoredKind]:
    """Return the kinds of jobs that a run wrote at its end; what is damaged is left out."""
    if not isinstance(written, dict):
        return []
    return [_kind(str(name), of) for name, of in written.items() if isinstance(of, dict)]


def _kind(name: str, of: dict[str, Any]) -> StoredKind:
    by_priority = of.get("wait_by_priority")
    longest = of.get("longest_waiting_key")
    named = [("all", of.get("wait"))]
    if isinstance(by_priority, dict):
        named += [(f"priority {priority}", waits) for priority, waits in reversed(by_priority.items())]
    if isinstance(longest, dict):
        named.append((f"the key that waited longest, {str(longest.get('key'))[:_KEY_LENGTH]}", longest))
    waits = [(heading, found) for heading, values in named if (found := quantiles_of(values)) is not None]
    objectives = of.get("objectives")
    made = [_objective(each) for each in objectives] if isinstance(objectives, list) else []
    cost = number_of(of.get("cost"))
    return StoredKind(name, waits, [each for each in made if each is not None], 0.0 if cost is None else cost)


def _objective(of: Any) -> ObjectiveSummary | None:
    names = ("percent", "within", "each", "periods", "missed", "worst")
    values = [number_of(of.get(name)) if isinstance(of, dict) else None for name in names]
    if any(value is None or not 0 <= value <= VALUE_MAX for value in values):
        return None
    percent, within, each, periods, missed, worst = (value or 0.0 for value in values)
    undecided = number_of(of.get("undecided"))
    return ObjectiveSummary(
        percent=percent,
        within=within,
        each=each,
        periods=int(periods),
        missed=int(missed),
        worst=worst,
        undecided=int(bool(undecided)),
    )


def quantiles_of(of: Any) -> StoredQuantiles | None:
    """Return quantiles that a run wrote; None if nothing was measured, or they are damaged."""
    if not isinstance(of, dict) or not number_of(of.get("count")):
        return None
    values = [number_of(of.get(part)) for part in ("p50", "p90", "p99", "most")]
    if any(value is None or abs(value) > VALUE_MAX for value in values):
        return None
    return StoredQuantiles(*values)


def named_figures(written: Any, names: Sequence[str]) -> dict[str, list[float]]:
    """Return the figures that a run wrote at its end of each of its resources or gauges; what is damaged is left out.

    Args:
        written: what it wrote: the figures by name, of each resource or gauge by name.
        names: the names of the figures.
    """
    found: dict[str, list[float]] = {}
    for name, of in written.items() if isinstance(written, dict) else ():
        values = [number_of(of.get(each)) if isinstance(of, dict) else None for each in names]
        numbers = [value for value in values if value is not None and abs(value) <= VALUE_MAX]
        if len(numbers) == len(names):
            found[str(name)] = numbers
    return found


def number_of(value: Any) -> float | None:
    """Return the value if it is a finite number; otherwise None."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
