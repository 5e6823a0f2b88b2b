"""The section of a report on the waits of each kind of job, its objectives, and what its calls cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ratelimited_executor.simulation.report.document import section, table
from ratelimited_executor.simulation.report.reading import label_of
from ratelimited_executor.simulation.report.units import delay_text, kept_text, number, objective_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.simulation.report.reading import StoredRun
    from ratelimited_executor.simulation.summary import ObjectiveSummary

__all__ = ["kinds_section"]


def kinds_section(runs: Sequence[StoredRun]) -> str:
    """Return the section of the kinds of jobs; nothing if no run has any."""
    kinds = [(label_of(kind.name, run, runs), kind) for run in runs for kind in run.kinds]
    if not kinds:
        return ""
    waits = [
        [name, heading, *(delay_text(getattr(found, part)) for part in ("p50", "p90", "p99", "most"))]
        for name, kind in kinds
        for heading, found in kind.waits
    ]
    kept = [[name, *_objective(each)] for name, kind in kinds for each in kind.objectives]
    costs = [[label_of(name, run, runs), cost] for run in runs for name, cost in _costs(run)]
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


def _objective(each: ObjectiveSummary) -> list[str]:
    kept = f"in all {each.periods}" if each.is_kept else kept_text(each)
    return [objective_text(each), kept, delay_text(each.worst)]


def _costs(run: StoredRun) -> list[tuple[str, str]]:
    calls = [(f"calls of {kind.name}", kind.cost) for kind in run.kinds if kind.cost]
    parts = [*([("workers", run.worker_cost)] if run.worker_cost else []), *calls]
    if len(parts) > 1:
        parts.append(("all", math.fsum(cost for _, cost in parts)))
    return [(name, f"{cost:,.2f}" if cost < 1000 else number(cost)) for name, cost in parts]
