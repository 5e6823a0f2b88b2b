"""The table of a sweep, as the terminal and the page show it: one row for each configuration, and the texts of its figures."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.simulation.report.units import SHOWN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor.simulation.sweeps import Configuration, Estimate, Sweep

__all__ = ["DIFFERENCE", "KEPT", "columns_of", "figure_text", "interval_text", "is_duration"]

DIFFERENCE: Final = "difference, seed by seed"
KEPT: Final = "objectives kept"

_DURATIONS: Final = ("wait", "worst wait", "sync delay")  # what figures of a duration begin with


def columns_of(found: Sweep) -> list[tuple[str, Callable[[Configuration], str]]]:
    """Return the columns of the table: the heading of each, and what returns the text of a cell.

    Each figure that is shown is followed by its difference from the best configuration, seed by seed. Jobs that were lost
    have columns if any configuration lost some.
    """
    best = found.best if len(found.configurations) > 1 else None
    columns: list[tuple[str, Callable[[Configuration], str]]] = [(name, partial(_setting, name)) for name in found.axes]
    if found.has_cost:
        columns.append(("cost", partial(_mean, "cost")))
    columns.append((KEPT, _kept) if found.has_objectives else ("runs", _run_count))
    for figure in found.shown_figures:
        columns.append((figure, partial(_mean, figure)))
        if best is not None:
            columns.append((DIFFERENCE, partial(_difference, found, figure, best)))
    columns += [(name, partial(_mean, name)) for name in found.losses]
    return columns


def _setting(name: str, each: Configuration) -> str:
    return str(each.settings[name])


def _mean(figure: str, each: Configuration) -> str:
    return interval_text(figure, each.estimate(figure))


def _difference(found: Sweep, figure: str, best: Configuration, each: Configuration) -> str:
    other = found.counterpart(each, best)
    return "" if each is other else interval_text(figure, found.difference(each, other, figure), is_signed=True)


def _kept(each: Configuration) -> str:
    missed = "".join(f", not {kind}" for kind in each.missed_kinds)
    undecided = "".join(f", {kind} not decided" for kind in each.undecided_kinds)
    return f"{each.kept_count} of {len(each.runs)}{missed}{undecided}"


def _run_count(each: Configuration) -> str:
    return str(len(each.runs))


# Texts of figures.


def is_duration(figure: str) -> bool:
    """True if the values of a figure are seconds."""
    return figure.startswith(_DURATIONS)


def figure_text(figure: str, value: float) -> str:
    """Return a value of a figure."""
    if math.isnan(value):
        return "none"
    if is_duration(figure):
        return format_duration(value) if value >= SHOWN_SECONDS else "0 s"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def interval_text(figure: str, estimate: Estimate, *, is_signed: bool = False) -> str:
    """Return an estimate with half of its interval, if there is one."""
    if math.isnan(estimate.mean):
        return "none"
    sign = ("+" if estimate.mean > 0 else "-" if estimate.mean < 0 else "") if is_signed else ""
    mean = abs(estimate.mean) if is_signed else estimate.mean
    if is_duration(figure) or not 0 < estimate.half < math.inf:
        return sign + " ± ".join(figure_text(figure, value) for value in (mean, estimate.half) if value < math.inf)
    places = max(0, 1 - math.floor(math.log10(estimate.half)))  # two digits of the interval, and no more of the mean
    return f"{sign}{mean:,.{places}f} ± {estimate.half:,.{places}f}"
