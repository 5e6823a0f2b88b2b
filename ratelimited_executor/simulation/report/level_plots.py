"""Plots of what a run looked at again and again: resources beside their limits, numbers of keys, gauges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from ratelimited_executor.simulation.report.plots import COLOURS, ReportLine, TimeFrame, TimePlot, rounded
from ratelimited_executor.simulation.report.reading import label_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratelimited_executor.simulation.report.reading import Series, StoredRun

__all__ = ["make_level_plots"]

_Found: TypeAlias = "tuple[StoredRun, Series]"

_LINES_MAX: Final = 16  # of a plot: with more it could not be read
_PLOTS_MAX: Final = 12  # of resources, and of gauges
_USED: Final = "used "
_LIMIT: Final = "limit of "
_KEYS: Final = {
    "keys_alive": "there",
    "keys_never_synced": "never synced",
    "keys_synced_once": "synced once",
}


def make_level_plots(runs: Sequence[StoredRun]) -> list[TimePlot]:
    """Return the plots, in their order.

    Args:
        runs: one run, or several to compare.
    """
    found = [(run, series) for run in runs for series in run.series]
    frame = TimeFrame(runs)
    return [*_resources(found, frame, runs), *_keys(found, frame, runs), *_gauges(found, frame, runs)]


def _resources(found: list[_Found], frame: TimeFrame, runs: Sequence[StoredRun]) -> Iterator[TimePlot]:
    """Yield a plot of each resource: what was used of it a minute, and the limit."""
    names = dict.fromkeys(each.metric.removeprefix(_USED) for _, each in found if each.metric.startswith(_USED))
    caption = frame.point("the amount that starts in it used", "the sum of its steps, as an amount a minute")
    caption += " The dashed line is the limit in the long run."
    for number, name in enumerate(list(names)[:_PLOTS_MAX], start=1):
        lines: list[ReportLine] = []
        for index, (run, series) in enumerate(pair for pair in found if pair[1].metric == _USED + name):
            label = label_of(series.source, run, runs)
            lines.append(_line(label, index, frame, run, series.values))
            for other in run.series:
                if (other.source, other.metric) == (series.source, _LIMIT + name):
                    limit = [None if value is None else 60 * value for value in other.values]
                    lines.append(_line(f"limit of {label}", index, frame, run, limit, is_limit=True))
        yield _plot(f"resource-{number}", f"Resource {name}", caption, f"{name} a minute", frame, lines)


def _keys(found: list[_Found], frame: TimeFrame, runs: Sequence[StoredRun]) -> Iterator[TimePlot]:
    """Yield a plot of the numbers of keys; of several runs, one of each number, so that the runs lie beside each other."""
    several = len(runs) > 1
    of_keys = [pair for pair in found if pair[1].metric in _KEYS]
    for number, metrics in enumerate([[metric] for metric in _KEYS] if several else [list(_KEYS)], start=1):
        chosen = [pair for pair in of_keys if pair[1].metric in metrics]
        if chosen:
            lines = [
                _line(
                    label_of(series.source, run, runs) + ("" if several else f", {_KEYS[series.metric]}"),
                    index, frame, run, series.values,
                )
                for index, (run, series) in enumerate(chosen)
            ]  # fmt: skip
            told = (
                " and ".join(_KEYS[metric] for metric in metrics) if several else "there, never synced and synced once"
            )
            caption = f"How many keys are {told}; those that are never synced, or once, are counted every hour."
            title = f"Keys that are {told}" if several else "Keys over time"
            yield _plot(f"keys-{number}", title, caption, "keys", frame, lines, has_log_scale=True)


def _gauges(found: list[_Found], frame: TimeFrame, runs: Sequence[StoredRun]) -> Iterator[TimePlot]:
    """Yield a plot of each gauge."""
    names = dict.fromkeys(each.source for _, each in found if each.kind == "gauge")
    caption = frame.point("the value at its end", "the value at the end of its last step")
    for number, name in enumerate(list(names)[:_PLOTS_MAX], start=1):
        chosen = [pair for pair in found if (pair[1].kind, pair[1].source) == ("gauge", name)]
        lines = [
            _line(run.label if len(runs) > 1 else name, index, frame, run, series.values)
            for index, (run, series) in enumerate(chosen)
        ]
        yield _plot(f"gauge-{number}", f"Gauge {name}", caption, chosen[0][1].unit or name, frame, lines)


def _line(
    name: str, index: int, frame: TimeFrame, run: StoredRun, values: list[float | None], *, is_limit: bool = False
) -> ReportLine:
    return ReportLine(
        name,
        COLOURS[index % len(COLOURS)],
        frame.x(run.grid.ends),
        [None if value is None else rounded(value) for value in values],
        is_limit=is_limit,
    )


def _plot(
    key: str,
    title: str,
    caption: str,
    y_label: str,
    frame: TimeFrame,
    lines: list[ReportLine],
    *,
    has_log_scale: bool = False,
) -> TimePlot:
    if len(lines) > _LINES_MAX:
        caption += f" The first {_LINES_MAX} of {len(lines):,} lines are shown."
    return TimePlot(key, title, caption, y_label, frame.unit, frame.end, lines[:_LINES_MAX], frame.marks, has_log_scale)
