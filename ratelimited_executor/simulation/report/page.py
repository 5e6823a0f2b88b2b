"""The page: heading, tables and plots as one self-contained HTML document."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

from ratelimited_executor.simulation.report.document import (
    alert,
    document,
    notes_html,
    row_html,
    section,
    table,
    table_html,
)
from ratelimited_executor.simulation.report.figures import figure_html
from ratelimited_executor.simulation.report.kind_tables import kinds_section
from ratelimited_executor.simulation.report.level_tables import levels_section
from ratelimited_executor.simulation.report.plots import TimePlot
from ratelimited_executor.simulation.report.reading import label_of
from ratelimited_executor.simulation.report.units import NONE, delay_text, duration, number
from ratelimited_executor.simulation.summary import gathered_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratelimited_executor.simulation.report.kinds import StoredQuantiles
    from ratelimited_executor.simulation.report.plots import Plot
    from ratelimited_executor.simulation.report.reading import StoredRun

__all__ = ["render"]


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a table with a column for each run; the cells are HTML."""

    heading: str
    cells: list[str]
    key: str = ""


def render(runs: Sequence[StoredRun], plots: Sequence[Plot], flat: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        runs: one run, or several to compare.
        plots: the plots to show, in order.
        flat: titles of omitted plots, whose lines would all be at zero.
    """
    title = f"Simulation of {runs[0].scenario}" if len(runs) == 1 else f"Comparison of {len(runs)} simulations"
    body = [
        f"<header><h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(_lead(runs))}</p></header>',
        *(_alert(run) for run in runs if run.status != "finished"),
        f'<div class="{"beside" if len(runs) == 1 else "below"}">',
        section("run", "Run" if len(runs) == 1 else "Runs", _runs_table(runs) + _details(runs)),
        section(
            "summary",
            "Summary",
            notes_html(gathered_notes((run.label, run.notes) for run in runs))
            + _summary_table(runs)
            + _flat_note(flat),
        ),
        "</div>",
        kinds_section(runs),
        levels_section(runs),
        *(_plot_section(plot, is_first=index == 0) for index, plot in enumerate(plots)),
        section("keys", "Keys", _keys_table(runs)) if any(run.populations for run in runs) else "",
    ]
    return document(title, body=body, has_plots=bool(plots))


def _lead(runs: Sequence[StoredRun]) -> str:
    if len(runs) > 1:
        return "; ".join(run.label for run in runs)
    run = runs[0]
    speed = _speed(run)
    return f"Seed {run.seed}, {duration(run.span)} of simulated time{'' if speed == NONE else f', {speed}'}."


def _alert(run: StoredRun) -> str:
    """Return a notice that a run is not finished."""
    how_far = f"It came to {duration(run.span)}"
    if run.planned:
        how_far += f" of {duration(run.planned)} ({100 * run.span / run.planned:.1f} %)"
    words = {
        "interrupted": "was interrupted",
        "failed": "failed",
        "running": "is not finished: it still goes on, or was killed",
    }.get(run.status, f"has the status “{run.status}”")
    return alert(f"{run.label} {words}.", f"{how_far}; what follows is of this time only.")


def _plot_section(plot: Plot, *, is_first: bool) -> str:
    drawn = figure_html(plot, with_plotly=is_first)
    caption = f"<figcaption>{escape(plot.caption)}</figcaption>"
    body = f'<figure aria-labelledby="{plot.key}-title">{drawn}{caption}</figure>'
    button = f'<button type="button" aria-pressed="false" data-plot="plot-{plot.key}">logarithmic scale</button>'
    return section(plot.key, plot.title, (button if isinstance(plot, TimePlot) and plot.has_log_scale else "") + body)


def _runs_table(runs: Sequence[StoredRun]) -> str:
    rows = [
        _Row("Scenario", [escape(run.scenario) for run in runs]),
        _Row("Seed", [escape(run.seed) for run in runs]),
        _Row("Status", [_status(run) for run in runs]),
        _Row("Begins at", [_start(run) for run in runs]),
        _Row("Simulated time", [_span(run) for run in runs]),
        *(
            [_Row("Warm-up", [duration(run.warm_up) if run.warm_up else NONE for run in runs])]
            if any(run.warm_up for run in runs)
            else []
        ),
        _Row("Wall time", [NONE if run.wall_seconds is None else duration(run.wall_seconds) for run in runs]),
        _Row("Speed", [_speed(run) for run in runs]),
        _Row("Version", [escape(run.version) for run in runs]),
        _Row("File", [f"<code>{escape(run.path.name)}</code>" for run in runs]),
    ]
    names = list(dict.fromkeys(name for run in runs for name in run.parameters))
    rows += [_Row(f"Parameter {name}", [_parameter(run, name) for run in runs]) for name in names]
    return _table(runs, rows, "What was simulated", "runs")


def _summary_table(runs: Sequence[StoredRun]) -> str:
    def row(heading: str, key: str, read: Callable[[StoredRun], str]) -> _Row:
        return _Row(heading, [read(run) for run in runs], key)

    rows = [
        _Row(f"Jobs {end}", [f"{run.ends[end]:,}" for run in runs], f"{end}_jobs")
        for end in ("done", "failed", "expired", "cancelled", "dropped")
        if end in ("done", "failed", "expired") or any(run.ends[end] for run in runs)
    ]
    rows += [
        row("Queue depth, maximum", "queue_depth_max", lambda run: f"{run.depth_max:,}"),
        row("Queue depth, mean", "queue_depth_mean", lambda run: number(run.depth_mean)),
        *_quantile_rows("Start delay", "start_delay", [run.start_delay for run in runs]),
        *_quantile_rows("Sync delay", "sync_delay", [run.sync_delay for run in runs]),
    ]
    has_keys = any(run.populations for run in runs)
    if has_keys:
        rows.append(row("Lock conflicts", "lock_conflicts", lambda run: f"{run.lock_conflicts:,}"))
    if any(run.outage_failures for run in runs):
        rows.append(row("Failures in outages", "outage_failures", lambda run: f"{run.outage_failures:,}"))
    if has_keys:
        rows.append(row("Keys never synced", "never_synced", lambda run: _optional(run.never_synced)))
    caption = "Over the whole run without its warm-up, and all executors. Percentiles are exact to 0.1 % where the run has ended."
    return _table(runs, rows, caption, "numbers")


def _flat_note(flat: Sequence[str]) -> str:
    return f'<p class="note">Not plotted, being 0 in every step: {escape(", ".join(flat).lower())}.</p>' if flat else ""


def _quantile_rows(heading: str, key: str, found: list[StoredQuantiles]) -> list[_Row]:
    parts = (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("most", "maximum"))
    return [
        _Row(f"{heading}, {name}", [delay_text(getattr(each, part)) for each in found], f"{key}_{part}")
        for part, name in parts
        if any(getattr(each, part) is not None for each in found)
    ]


def _keys_table(runs: Sequence[StoredRun]) -> str:
    is_changing = any(any(population.turnover) for run in runs for population in run.populations)
    rows = [
        [
            label_of(population.name, run, runs),
            *map(_optional, (population.keys, population.never_synced, population.syncs, population.failures)),
            _seconds(population.longest_interval),
            *((f"{count:,}" for count in population.turnover) if is_changing else ()),
        ]
        for run in runs
        for population in run.populations
    ]
    headings = ("Population", "Keys", "Never synced", "Syncs", "Failures", "Longest time without a sync")
    further = ("Joined", "Left", "Left without a sync") if is_changing else ()
    return table((*headings, *further), rows, caption="Keys of each population, at the end")


def _details(runs: Sequence[StoredRun]) -> str:
    """Return the measured subjects and the events, collapsed."""
    several = len(runs) > 1
    sources = [
        (
            run.label,
            source.kind,
            source.name,
            ", ".join(f"{key} {_json(value)}" for key, value in source.details.items()),
        )
        for run in runs
        for source in run.sources
    ]
    events = [(run.label, duration(event.time), event.name) for run in runs for event in run.events]
    text = ""
    for title, headings, rows in (
        ("Sources", ("Kind", "Name", "Details"), sources),
        ("Events", ("Simulated time", "Event"), events),
    ):
        if rows:
            shown = [row if several else row[1:] for row in rows]
            listed = table((*(("Run",) * several), *headings), shown, kind="list")
            text += f"<details><summary>{title} ({len(rows):,})</summary>{listed}</details>"
    return text


def _table(runs: Sequence[StoredRun], rows: Sequence[_Row], caption: str, kind: str) -> str:
    """Return a table with a column for each run; with several runs, rows with differing texts are marked."""
    lines = []
    for row in rows:
        mark = ' class="differs"' if kind == "runs" and len(set(row.cells)) > 1 else ""
        key = f' data-key="{row.key}"' if row.key else ""
        lines.append(row_html(escape(row.heading), row.cells, mark + key))
    return table_html(["Property", *(run.label for run in runs)], "\n".join(lines), kind=kind, caption=caption)


def _status(run: StoredRun) -> str:
    kind = run.status if run.status in ("finished", "failed", "interrupted", "running") else "unknown"
    return f'<span class="status {kind}">{escape(run.status)}</span>'


def _start(run: StoredRun) -> str:
    if run.start is None:
        return NONE
    try:
        return datetime.fromtimestamp(run.start, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return f"{run.start:g} s after 1970"


def _span(run: StoredRun) -> str:
    if run.planned is None or run.status == "finished":
        return duration(run.span)
    return f"{duration(run.span)} of {duration(run.planned)}"


def _speed(run: StoredRun) -> str:
    return f"{number(run.span / run.wall_seconds)} times real time" if run.wall_seconds else NONE


def _parameter(run: StoredRun, name: str) -> str:
    return escape(_json(run.parameters[name])) if name in run.parameters else NONE


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _optional(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    return NONE if value is None else duration(value)
