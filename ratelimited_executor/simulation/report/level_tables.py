"""The section of a report on the use of resources, and on the values of gauges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimited_executor.simulation.report.document import section, table
from ratelimited_executor.simulation.report.reading import label_of
from ratelimited_executor.simulation.report.units import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.simulation.report.reading import StoredRun

__all__ = ["levels_section"]


def levels_section(runs: Sequence[StoredRun]) -> str:
    """Return the section; nothing if no run has resources or gauges."""
    used = [
        [label_of(name, run, runs), number(amount), f"{100 * part:.1f} %"]
        for run in runs
        for name, (amount, part) in run.resources.items()
    ]
    gauges = [[label_of(name, run, runs), *map(number, values)] for run in runs for name, values in run.gauges.items()]
    body = ""
    if used:
        headings = ("Resource", "Used", "Of the limit")
        body += table(
            headings, used, caption="What starts used of each resource, and the part of its limit in the long run"
        )
    if gauges:
        body += table(("Gauge", "Least", "Mean", "Most", "At the end"), gauges, caption="Gauges, at the ends of steps")
    return section("levels", "Resources and gauges", body) if body else ""
