"""The page of a measurement: tables and plots as one self-contained HTML document."""

from __future__ import annotations

import math
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.cli.bench.tables import tables_of
from ratelimited_executor.load.verdicts import why_tool_was_limit
from ratelimited_executor.simulation.report.document import (
    GREY,
    alert,
    axis,
    document,
    layout,
    plot_html,
    section,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.load.durations import Durations
    from ratelimited_executor.load.figures import Figures, Measurement

__all__ = ["render"]

_BLUE, _ORANGE, _RED = "#3b76c4", "#e07b2a", "#c8484e"
_CLASS_COLOURS: Final = ("#5a9e6f", "#8e6bbf", "#b08d2e", "#3fa3a8")
_CURVE_TICKS: Final = ((1, "0 %"), (2, "50 %"), (10, "90 %"), (100, "99 %"), (1e3, "99.9 %"), (1e4, "99.99 %"))
_MILLISECONDS: Final = 1e3
_DECADES_DETAILED: Final = 3  # an axis of more has labels at the powers of ten alone


def render(measurement: Measurement, outcome: Sequence[str] = ()) -> str:
    """Return the page; requires plotly, whose JavaScript it includes.

    Args:
        measurement: what the page shows.
        outcome: sentences about it, such as which thresholds were not kept.
    """
    figures = measurement.figures
    settings = ", ".join(f"{name} {text}" for name, text in measurement.settings.items())
    title = f"Measurement of {measurement.target}"
    limit = why_tool_was_limit(figures)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(settings)}; begun {escape(measurement.begun)}, version {escape(measurement.version)}</p>',
        "" if limit is None else alert("The load generator was the bottleneck:", f"{limit}."),
        "" if measurement.incomplete is None else alert("The load is incomplete:", f"{measurement.incomplete}."),
        *(f'<p class="outcome">{escape(sentence)}</p>' for sentence in outcome),
        *(
            section(f"table-{index}", each.title, table(each.headings, each.rows))
            for index, each in enumerate(tables_of(measurement))
        ),
        section("trials", "Trials", _trials_table(measurement.search)) if measurement.search else "",
        section("time", "Response times over time", plot_html(_time_figure(figures), "time", with_plotly=True)),
        section("curve", "Durations by percentile", plot_html(_curve_figure(figures), "curve", with_plotly=False)),
        section("rate", "Requests over time", plot_html(_rate_figure(figures), "rate", with_plotly=False)),
    ]
    return document(title, body=body)


def _trials_table(search: dict[str, Any]) -> str:
    rows = [
        [
            f"{trial['rate']:g}/s",
            "held" if trial["held"] else "not held",
            "clearly" if trial["clear"] else "not clearly",
        ]
        for trial in search["trials"]
    ]
    return table(["rate", "outcome", ""], rows)


# Plots.


def _time_figure(figures: Figures) -> dict[str, Any]:
    seconds = [each.second for each in figures.timeline]
    lines = [
        _line("p50", _BLUE, seconds, [each.p50 * _MILLISECONDS for each in figures.timeline]),
        _line("p99", _RED, seconds, [each.p99 * _MILLISECONDS for each in figures.timeline]),
        _line("max", GREY, seconds, [each.most * _MILLISECONDS for each in figures.timeline]),
    ]
    return {"data": lines, "layout": _layout(axis("second of the load"), _log_axis(lines))}


def _curve_figure(figures: Figures) -> dict[str, Any]:
    lines = [
        _curve("response time", _RED, figures.response_times),
        _curve("service time", _BLUE, figures.service_times),
        *(
            _curve(f"{each.name}, response time", colour, each.response_times)
            for each, colour in zip(figures.classes, cycle(_CLASS_COLOURS))  # the colours repeat
        ),
    ]
    x = axis(
        "percentile",
        type="log",
        tickvals=[tick for tick, _ in _CURVE_TICKS],
        ticktext=[text for _, text in _CURVE_TICKS],
    )
    return {"data": lines, "layout": _layout(x, _log_axis(lines))}


def _curve(name: str, colour: str, durations: Durations) -> dict[str, Any]:
    """Return a line over 1 / (1 - share), which gives each further nine of a percentile the same width."""
    last = 0.5 / max(1, durations.count)  # for the longest duration, since its share of 1 would be at infinity
    points = durations.curve()
    return _line(
        name,
        colour,
        [1 / max(last, 1 - share) for share, _ in points],
        [seconds * _MILLISECONDS for _, seconds in points],
    )


def _rate_figure(figures: Figures) -> dict[str, Any]:
    seconds = [each.second for each in figures.timeline]
    lines = [
        _line("due", _BLUE, seconds, [each.count for each in figures.timeline]),
        _line("failed", _ORANGE, seconds, [each.error_count for each in figures.timeline]),
    ]
    y = axis("requests a second", rangemode="tozero")
    return {"data": lines, "layout": _layout(axis("second of the load"), y)}


def _line(name: str, colour: str, x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": [float(f"{value:.4g}") for value in y],
        "line": {"color": colour, "width": 1.6},
    }


def _log_axis(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an axis with labels at 1, 2, 5, 10 and so on, from the one below all values to the one above them."""
    values = [value for line in lines for value in line["y"] if value > 0]
    if not values:
        return axis("milliseconds")
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if high - low <= _DECADES_DETAILED else (1,)
    ticks = [float(f"{step}e{power}") for power in range(low, high + 1) for step in steps]
    first = max((tick for tick in ticks if tick <= min(values)), default=ticks[0])
    last = min((tick for tick in ticks if tick >= max(values) and tick > first), default=ticks[-1])
    shown = [tick for tick in ticks if first <= tick <= last]
    return axis(
        "milliseconds",
        type="log",
        range=[math.log10(first), math.log10(last)],
        tickvals=shown,
        ticktext=[f"{tick:,g}" for tick in shown],
    )


def _layout(x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    return layout(hovermode="x unified", xaxis=x, yaxis=y)
