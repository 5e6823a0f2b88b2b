"""The page of a measurement: tables and plots as one self-contained HTML document."""

from __future__ import annotations

import math
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.load.durations import SHARES
from ratelimited_executor.load.verdicts import why_tool_was_limit
from ratelimited_executor.simulation.report.document import document, plot_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.load.durations import Durations
    from ratelimited_executor.load.figures import Figures, Measurement

__all__ = ["render"]

_STYLE: Final = """
main { max-width: 1100px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 18px; margin: 0 0 10px; }
section { background: var(--paper); border: 1px solid var(--grid); border-radius: 8px; padding: 18px 20px;
  margin: 0 0 18px; overflow-x: auto; }
.alert { background: var(--bad-ground); border: 1px solid var(--bad); border-left-width: 6px; border-radius: 6px;
  padding: 10px 14px; margin: 0 0 18px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 28px 4px 0; border-bottom: 1px solid var(--grid); text-align: right; }
td { white-space: nowrap; }
.outcome { font-weight: 600; margin: 0 0 18px; }
@media (max-width: 600px) { main { padding: 16px 10px 40px; } section { padding: 14px 12px; } th, td { padding-right: 12px; } }
tbody th, th:first-child { text-align: left; font-weight: 400; } tr:last-child > * { border-bottom: 0; }
"""
_BLUE, _ORANGE, _RED, _GREY = "#3b76c4", "#e07b2a", "#c8484e", "#8a8f98"
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
        ""
        if limit is None
        else f'<p class="alert" role="alert"><strong>The load generator was the bottleneck:</strong> {escape(limit)}.</p>',
        ""
        if measurement.incomplete is None
        else f'<p class="alert" role="alert"><strong>The load is incomplete:</strong> {escape(measurement.incomplete)}.</p>',
        *(f'<p class="outcome">{escape(sentence)}</p>' for sentence in outcome),
        _section("Durations", _durations_table(figures)),
        _section("Requests", _summary_table(figures)),
        _section("By rate", _phases_table(figures)) if len(figures.phases) > 1 else "",
        _section("By class", _classes_table(figures)) if figures.classes else "",
        _section("By participant", _participants_table(measurement)) if measurement.participants else "",
        _section("Trials", _trials_table(measurement.search)) if measurement.search else "",
        _section("Response times over time", plot_html(_time_figure(figures), "time", with_plotly=True)),
        _section("Durations by percentile", plot_html(_curve_figure(figures), "curve", with_plotly=False)),
        _section("Requests over time", plot_html(_rate_figure(figures), "rate", with_plotly=False)),
    ]
    return document(title, style=_STYLE, body=body)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _durations_table(figures: Figures) -> str:
    columns = (figures.response_times, figures.service_times, figures.lateness)
    rows = [[name, *(format_duration(each.quantile(share)) for each in columns)] for name, share in SHARES]
    rows.append(["max", *(format_duration(each.most) for each in columns)])
    rows.append(["mean", *(format_duration(each.mean) for each in columns)])
    return _table(["", "response time", "service time", "our lateness"], rows)


def _summary_table(figures: Figures) -> str:
    rows = [
        ["requests", f"{figures.count:,}"],
        ["target rate", f"{figures.asked_rate:,.1f}/s"],
        ["throughput without errors", f"{figures.answered_rate:,.1f}/s"],
        ["errors", f"{figures.error_count:,} ({100 * figures.error_share:.3g} %)"],
        *([f"error: {kind}", f"{count:,}"] for kind, count in figures.errors.items()),
        *([f"answers with status {status}", f"{count:,}"] for status, count in figures.statuses.items()),
        ["bytes received", f"{figures.received:,}"],
        ["all connections in use", format_duration(figures.full_seconds)],
        ["CPU of the tool", f"{figures.cpu_share:.0%} of a core"],
    ]
    return _table(["", "value"], rows)


def _phases_table(figures: Figures) -> str:
    rows = [
        [
            phase.rate,
            f"{phase.count:,}",
            f"{phase.error_count:,}",
            *map(format_duration, (phase.p50, phase.p99, phase.most)),
        ]
        for phase in figures.phases
    ]
    return _table(["rate", "requests", "errors", "p50", "p99", "max"], rows)


def _classes_table(figures: Figures) -> str:
    rows = [
        [
            each.name,
            each.rate,
            f"{each.count:,}",
            f"{each.error_count:,}",
            *(
                format_duration(durations.quantile(share))
                for durations in (each.response_times, each.service_times)
                for share in (0.5, 0.99)
            ),
        ]
        for each in figures.classes
    ]
    return _table(["class", "rate", "requests", "errors", "p50", "p99", "actual p50", "actual p99"], rows)


def _participants_table(measurement: Measurement) -> str:
    rows = [
        [each.name, each.sent, "missing", "", "", ""]
        if each.is_missing and not each.known_part
        else [
            each.name,
            each.sent,
            f"{each.count:,}",
            f"{each.error_count:,}",
            f"{each.cpu_share:.0%} of a core",
            format_duration(each.lateness_p99),
        ]
        for each in measurement.participants
    ]
    return _table(["participant", "sent of its share", "requests", "errors", "CPU", "our lateness p99"], rows)


def _trials_table(search: dict[str, Any]) -> str:
    rows = [
        [
            f"{trial['rate']:g}/s",
            "held" if trial["held"] else "not held",
            "clearly" if trial["clear"] else "not clearly",
        ]
        for trial in search["trials"]
    ]
    return _table(["rate", "outcome", ""], rows)


# Plots.


def _time_figure(figures: Figures) -> dict[str, Any]:
    seconds = [each.second for each in figures.timeline]
    lines = [
        _line("p50", _BLUE, seconds, [each.p50 * _MILLISECONDS for each in figures.timeline]),
        _line("p99", _RED, seconds, [each.p99 * _MILLISECONDS for each in figures.timeline]),
        _line("max", _GREY, seconds, [each.most * _MILLISECONDS for each in figures.timeline]),
    ]
    return {"data": lines, "layout": _layout(_axis("second of the load"), _log_axis(lines))}


def _curve_figure(figures: Figures) -> dict[str, Any]:
    lines = [
        _curve("response time", _RED, figures.response_times),
        _curve("service time", _BLUE, figures.service_times),
        *(
            _curve(f"{each.name}, response time", colour, each.response_times)
            for each, colour in zip(figures.classes, cycle(_CLASS_COLOURS))  # the colours repeat
        ),
    ]
    x = _axis(
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
    y = _axis("requests a second", rangemode="tozero")
    return {"data": lines, "layout": _layout(_axis("second of the load"), y)}


def _line(name: str, colour: str, x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": [float(f"{value:.4g}") for value in y],
        "line": {"color": colour, "width": 1.6},
    }


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title},
        "zeroline": False,
        "showline": True,
        "ticks": "outside",
        "automargin": True,
        **more,
    }


def _log_axis(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an axis with labels at 1, 2, 5, 10 and so on, from the one below all values to the one above them."""
    values = [value for line in lines for value in line["y"] if value > 0]
    if not values:
        return _axis("milliseconds")
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if high - low <= _DECADES_DETAILED else (1,)
    ticks = [float(f"{step}e{power}") for power in range(low, high + 1) for step in steps]
    first = max((tick for tick in ticks if tick <= min(values)), default=ticks[0])
    last = min((tick for tick in ticks if tick >= max(values) and tick > first), default=ticks[-1])
    shown = [tick for tick in ticks if first <= tick <= last]
    return _axis(
        "milliseconds",
        type="log",
        range=[math.log10(first), math.log10(last)],
        tickvals=shown,
        ticktext=[f"{tick:,g}" for tick in shown],
    )


def _layout(x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    return {
        "height": 400,
        "margin": {"l": 70, "r": 20, "t": 16, "b": 50},
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 0, "y": -0.22},
        "xaxis": x,
        "yaxis": y,
    }
