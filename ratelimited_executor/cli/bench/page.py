"""The page of a measurement: tables and plots as one self-contained HTML document."""

from __future__ import annotations

import math
from bisect import bisect_left
from html import escape
from itertools import cycle
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.cli.bench.drawing import (
    DRAWING_SCRIPT,
    DRAWING_STYLE,
    Line,
    Scale,
    drawing,
    linear_scale,
    log_scale,
)
from ratelimited_executor.cli.bench.tables import span, tables_of
from ratelimited_executor.load.verdicts import why_tool_was_limit
from ratelimited_executor.simulation.report.document import GREY, alert, document, section, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ratelimited_executor.load.durations import Durations
    from ratelimited_executor.load.figures import Figures, Measurement, SecondFigures

__all__ = ["render"]

_BLUE, _ORANGE, _RED = "#3b76c4", "#e07b2a", "#c8484e"
_CLASS_COLOURS: Final = ("#5a9e6f", "#8e6bbf", "#b08d2e", "#3fa3a8")
_CURVE_TICKS: Final = (
    (1.0, "0 %"),
    (2.0, "50 %"),
    (10.0, "90 %"),
    (1e2, "99 %"),
    (1e3, "99.9 %"),
    (1e4, "99.99 %"),
    (1e5, "99.999 %"),
)
# Values of tables of names and values, and the reasons of trials, may take several lines.
_STYLE: Final = """<style>
table.numbers:not(:has(thead)) :is(td, tbody th), [aria-labelledby=trials-title] table.numbers td:last-child { white-space: normal; }
</style>"""
_MILLISECONDS: Final = 1e3
# Of a line, and of one among many: a page of three plots stays below 300 kB.
_POINTS_MAX: Final = 400
_POINTS_LEAST: Final = 50


def render(measurement: Measurement, outcome: Sequence[str] = ()) -> str:
    """Return the page, of some tens of kilobytes.

    Args:
        measurement: what the page shows.
        outcome: sentences about it, such as which thresholds were not kept.
    """
    figures = measurement.figures
    settings = ", ".join(f"{name} {text}" for name, text in measurement.settings.items())
    title = f"Measurement of {measurement.target}"
    limit = why_tool_was_limit(figures)
    tables = [
        section(f"table-{index}", each.title, table(each.headings, each.rows))
        for index, each in enumerate(tables_of(measurement))
    ]
    body = [
        DRAWING_STYLE,
        _STYLE,
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(settings)}; begun {escape(measurement.begun)}, version {escape(measurement.version)}</p>',
        "" if limit is None else alert("The load generator was the bottleneck:", f"{limit}."),
        "" if measurement.incomplete is None else alert("The load is incomplete:", f"{measurement.incomplete}."),
        *(f'<p class="outcome">{escape(sentence)}</p>' for sentence in outcome),
        f'<div class="beside">{"".join(tables[:2])}</div>',
        *tables[2:],
        section("trials", "Trials", _trials_table(measurement.search)) if measurement.search else "",
        section("time", "Response times over time", _time_plot(figures)),
        section("curve", "Durations by percentile", _curve_plot(figures, is_open=measurement.is_open)),
        section("rate", "Requests over time", _rate_plot(figures, is_open=measurement.is_open)),
        DRAWING_SCRIPT,
    ]
    return document(title, body=body, has_plots=False)


def _trials_table(search: dict[str, Any]) -> str:
    rows = []
    for trial in search["trials"]:
        limit, reasons = trial["tool_limit"], list(trial["broken"])
        if limit is not None:
            reasons.append(f"it does not count, as the load generator was the bottleneck: {limit}")
        sure = "does not count" if limit is not None else "clearly" if trial["clear"] else "not clearly"
        rows.append([f"{trial['rate']:g}/s", "held" if trial["held"] else "not held", sure, "; ".join(reasons)])
    return table(["rate", "outcome", "", "reasons"], rows)


# Plots.


def _time_plot(figures: Figures) -> str:
    positions, together = _spans_of(figures.timeline)
    lines = [
        Line(name="p50", colour=_BLUE, values=[_ms(median(each.p50 for each in some)) for some in together]),
        Line(name="p99", colour=_RED, values=[_ms(max(each.p99 for each in some)) for some in together]),
        Line(name="max", colour=GREY, values=[_ms(max(each.most for each in some)) for some in together]),
    ]
    return drawing(positions, lines, x=_seconds_scale(figures), y=_ms_scale(lines), text_of=_text_of_ms)


def _rate_plot(figures: Figures, *, is_open: bool) -> str:
    positions, together = _spans_of(figures.timeline)

    def a_second(count_of: Callable[[SecondFigures], int]) -> list[float]:
        return [sum(map(count_of, some)) / len(some) for some in together]

    lines = [
        Line(name="due" if is_open else "sent", colour=_BLUE, values=a_second(lambda each: each.count)),
        Line(name="failed", colour=_ORANGE, values=a_second(lambda each: each.error_count)),
    ]
    y = linear_scale("requests a second", max((value for line in lines for value in line.values), default=1.0))
    return drawing(positions, lines, x=_seconds_scale(figures), y=y, text_of=lambda value: f"{value:,.4g}/s")


def _spans_of(timeline: Sequence[SecondFigures]) -> tuple[list[tuple[float, str]], list[Sequence[SecondFigures]]]:
    """Return the place and the name of each point, and its seconds: one, or several in a long load."""
    size = max(1, math.ceil(len(timeline) / _POINTS_MAX))
    together = [timeline[first : first + size] for first in range(0, len(timeline), size)]
    names = [f"second {some[0].second:,}" + (f" to {some[-1].second:,}" if len(some) > 1 else "") for some in together]
    return [(float(some[0].second), name) for some, name in zip(together, names, strict=True)], together


def _seconds_scale(figures: Figures) -> Scale:
    return linear_scale("second of the load", max((each.second for each in figures.timeline), default=1))


def _curve_plot(figures: Figures, *, is_open: bool) -> str:
    """Return the durations over 1 / (1 - share), which gives each further nine of a percentile the same width."""
    end = 2.0 * max(10, figures.response_times.count)  # the longest would be at infinity
    count = max(_POINTS_LEAST, _POINTS_MAX // (1 + len(figures.classes)))
    shares = [1 - end ** (-number / count) for number in range(count + 1)]
    populations = [
        ("response time", _RED, figures.response_times),
        *([("service time", _BLUE, figures.service_times)] if is_open else []),
        *(
            (f"{each.name}, response time", colour, each.response_times)
            for each, colour in zip(figures.classes, cycle(_CLASS_COLOURS))  # the colours repeat
        ),
    ]
    lines = [Line(name=name, colour=colour, values=_curve(shares, each)) for name, colour, each in populations]
    x = Scale(
        title="percentile", low=1.0, high=end, ticks=[each for each in _CURVE_TICKS if each[0] <= end], is_log=True
    )
    positions = [(1 / (1 - share), f"{100 * share:.6g} %") for share in shares]
    return drawing(positions, lines, x=x, y=_ms_scale(lines), text_of=_text_of_ms)


def _curve(shares: Sequence[float], durations: Durations) -> list[float]:
    """Return the milliseconds that each share of some durations does not exceed."""
    points = durations.curve()
    reached = [share for share, _ in points]
    return [_ms(points[min(bisect_left(reached, share), len(points) - 1)][1]) if points else 0.0 for share in shares]


def _ms(seconds: float) -> float:
    return seconds * _MILLISECONDS


def _text_of_ms(milliseconds: float) -> str:
    return span(milliseconds / _MILLISECONDS)


def _ms_scale(lines: Iterable[Line]) -> Scale:
    return log_scale("milliseconds", [value for line in lines for value in line.values])
