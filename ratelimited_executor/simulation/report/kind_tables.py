"""The section of a report on the waits of each kind of job, its objectives, and what its calls cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.simulation.report.document import section, table
from ratelimited_executor.simulation.report.units import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.simulation.report.kinds import StoredObjective
    from ratelimited_executor.simulation.report.reading import StoredRun

__all__ = ["delay_text", "kinds_section"]

_NONE: Final = "\N{EN DASH}"
_SHOWN_SECONDS: Final = 1e-4  # a shorter delay counts as none


def kinds_section(runs: Sequence[StoredRun]) -> str:
    """Return the section of the kinds of jobs; nothing if no run has any."""
    several = len(runs) > 1
    kinds = [(f"{run.label}: {kind.name}" if several else kind.name, kind) for run in runs for kind in run.kinds]
    if not kinds:
        return ""
    waits = [
        [name, heading, *(delay_text(getattr(found, part)) for part in ("p50", "p90", "p99", "most"))]
        for name, kind in kinds
        for heading, found in kind.waits
    ]
    kept = [[name, *_cells(each)] for name, kind in kinds for each in kind.objectives]
    costs = [row for run in runs for row in _costs(run, f"{run.label}: " if several else "")]
    body = ""
    for headings, rows, caption in (
        (
            ("Kind of job", "Jobs", "p50", "p90", "p99", "Maximum"),
            waits,
            "Time from the due time of each attempt to its start",
        ),
        (("Kind of job", "Objective", "Kept", "At worst"), kept, "Objectives, each in every period"),
        (("", "Cost"), costs, "What workers and calls cost, in the unit of the prices"),
    ):
        if rows:
            body += table(headings, rows, caption=caption)
    return section("kinds", "Waits, objectives and cost", body)


def _cells(each: StoredObjective) -> list[str]:
    objective = f"{each.percent:g} % within {format_duration(each.within)} in each {format_duration(each.each)}"
    kept = f"missed in {each.missed} of {each.periods + each.undecided}" if each.missed else f"in all {each.periods}"
    if not each.missed and (each.undecided or not each.periods):
        kept = "not decided, as the run is too short"
    return [objective, kept, delay_text(each.worst)]


def _costs(run: StoredRun, label: str) -> list[list[str]]:
    calls = [(f"calls of {kind.name}", kind.cost) for kind in run.kinds if kind.cost]
    parts = [*([("workers", run.worker_cost)] if run.worker_cost else []), *calls]
    if len(parts) > 1:
        parts.append(("all", math.fsum(cost for _, cost in parts)))
    return [[f"{label}{name}", f"{cost:,.2f}" if cost < 1000 else number(cost)] for name, cost in parts]


def delay_text(value: float | None) -> str:
    """Format a delay as the terminal does."""
    return _NONE if value is None else format_duration(value) if value >= _SHOWN_SECONDS else "0"
