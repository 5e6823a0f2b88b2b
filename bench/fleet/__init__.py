"""Limits that processes share: what users get of them, in virtual time.

Production code runs in each process, which has an event loop and a processor core of its own; the server is the pure
authority behind a model of its time and of the network. So a figure depends on the protocol alone: it is the same on
any machine, however busy. ``world.py`` has the processes, ``server.py`` the server (the one module that knows the
protocol), ``cases.py`` the programs and their goals, ``programs.py`` runs them, and ``figures.py`` computes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from bench.fleet.cases import CASES
from bench.fleet.programs import run_case
from bench.harness import Figure, Table, Target

if TYPE_CHECKING:
    from bench.fleet.cases import Case
    from bench.fleet.programs import Report
    from bench.harness import Options

__all__ = ["DESCRIPTION", "FIGURES", "NAME", "met", "run"]

NAME = "fleet"
DESCRIPTION = "what processes get of the limits that they share: use, shares, latency, calls; in virtual time"

FIGURES: Final = {  # unit, and whether less is better
    "use": ("", False),
    "rate": ("/s", False),
    "fair": ("", False),
    "fair in 2 s": ("", False),
    "fair in a key": ("", False),
    "hot key": ("", False),
    "p50": ("ms", True),
    "p99": ("ms", True),
    "hand-off p99": ("ms", True),
    "first start": ("s", True),
    "recovery": ("s", True),
    "calls a start": ("", True),
    "calls a second": ("", True),
    "server us a start": ("us", True),
    "server load": ("", True),
    "lapsed a start": ("", True),
}


def run(options: Options) -> list[Table]:
    """Run every case; a short version of each in a quick run."""
    groups: dict[str, list[tuple[Case, Report]]] = {}
    for number, case in enumerate(CASES):
        options.note(f"{number + 1} of {len(CASES)}: {case.id}", part=number / len(CASES))
        groups.setdefault(case.group, []).append((case, run_case(case, is_quick=options.quick)))
    return [_table(group, reports) for group, reports in groups.items()]


def met(name: str, value: float, goal: float) -> bool:
    """Return whether a figure reaches a goal."""
    return value <= goal if FIGURES[name][1] else value >= goal


def _table(group: str, reports: list[tuple[Case, Report]]) -> Table:
    shown = [name for name in FIGURES if any(_is_known(report, name) for _, report in reports)]
    table = Table(f"Shared limits: {group}", [*shown, "most in a window"])
    for case, report in reports:
        cells: dict[str, Figure | str] = {
            name: _figure(case, name, report.figures[name]) for name in shown if _is_known(report, name)
        }
        table.add(case.name, {**cells, "most in a window": ", ".join(report.worst)})
        table.check("laws broken", len(report.broken))
        table.notes += [f"{case.name}: LAW BROKEN: {text}" for text in report.broken]
    return table


def _is_known(report: Report, name: str) -> bool:
    return not math.isnan(report.figures.get(name, math.nan))


def _figure(case: Case, name: str, value: float) -> Figure:
    unit, is_less_better = FIGURES[name]
    goal = case.goals.get(name)
    target = None if goal is None else Target(f"{'<=' if is_less_better else '>='} {goal:g}", goal)
    return Figure([value], unit, smaller_is_better=is_less_better, target=target)
