"""Plots as plotly figures for a page: with zoom, values at the pointer, and a legend that toggles lines."""

from __future__ import annotations

import html
import math
from itertools import pairwise
from typing import Any, Final

from ratelimited_executor.simulation.report.document import GREY, axis, layout, plot_html
from ratelimited_executor.simulation.report.plots import HistogramPlot, Mark, Plot, ReportLine, RingPlot, TimePlot

__all__ = ["figure_html"]

_WEIGHT_COLOURS: Final = ((0.0, "#cfe3ee"), (0.35, "#7fb6d3"), (0.7, "#3b76c4"), (1.0, "#26346f"))
_RINGS_IN_ROW: Final = 3
_MARKS_HEIGHT: Final = 70  # pixels, for the texts of events above a plot
_MARKS_TURN_AT: Final = 0.85  # of the axis: beyond it the texts would be cut off
_MARKERS_UP_TO: Final = 60  # points: a line with fewer shows each of them


def figure_html(plot: Plot, *, with_plotly: bool) -> str:
    """Return a plot as a piece of HTML.

    Args:
        plot: the plot to draw.
        with_plotly: True to include plotly's JavaScript, which a page needs once, before the first plot.
    """
    if isinstance(plot, TimePlot):
        figure = _time_figure(plot)
    elif isinstance(plot, HistogramPlot):
        figure = _histogram_figure(plot)
    else:
        figure = _ring_figure(plot)
    return plot_html(figure, plot.key, with_plotly=with_plotly)


def _time_figure(plot: TimePlot) -> dict[str, Any]:
    shape = layout() | {
        "hovermode": "x unified",
        "showlegend": len(plot.lines) > 1,
        "xaxis": axis(
            plot.x_label,
            range=[0, plot.end],
            dtick=plot.tick_distance,
            tick0=0,
            ticksuffix=f" {plot.unit.sign}",
            hoverformat=".2f",
            spikethickness=1,
            spikedash="dot",
            spikecolor=GREY,
            minallowed=0,
        ),
        "yaxis": axis(plot.y_label, rangemode="tozero", separatethousands=True, nticks=7),
        "shapes": [
            {
                "type": "line", "xref": "x", "yref": "paper", "x0": mark.x, "x1": mark.x, "y0": 0, "y1": 1,
                "line": {"color": GREY, "width": 1.2, "dash": "dash"},
            }
            for mark in plot.marks
        ],
        "annotations": [_mark_text(mark, plot.end) for mark in plot.marks if mark.text],
    }  # fmt: skip
    if any(mark.text for mark in plot.marks):
        shape["height"] += _MARKS_HEIGHT
        shape["margin"]["t"] += _MARKS_HEIGHT
    return {"data": [_line(line, plot.y_sign) for line in plot.lines], "layout": shape}


def _mark_text(mark: Mark, end: float) -> dict[str, Any]:
    """Return the text of an event, slanted and above the plot, where it hides no line."""
    is_turned = mark.x > _MARKS_TURN_AT * end
    return {
        "text": _text(mark.text), "x": mark.x, "xref": "x", "xanchor": "right" if is_turned else "left",
        "y": 1, "yref": "paper", "yanchor": "bottom", "textangle": 30 if is_turned else -30, "showarrow": False,
        "font": {"size": 11},
    }  # fmt: skip


def _line(line: ReportLine, sign: str) -> dict[str, Any]:
    is_short = len(line.x) <= _MARKERS_UP_TO
    return {
        "type": "scatter",
        "mode": "lines+markers" if (is_short or line.has_points) and not line.is_limit else "lines",
        "name": _text(line.name),
        "x": line.x,
        "y": line.y,
        "opacity": line.opacity,
        "line": {"color": line.colour, "width": line.width, **({"dash": "dash"} if line.is_limit else {})},
        "marker": {"size": 5 if is_short else 2.5},
        "visible": True if line.is_shown else "legendonly",
        "hovertemplate": f"%{{y:,}} {sign}".rstrip(),
    }


def _histogram_figure(plot: HistogramPlot) -> dict[str, Any]:
    shape = layout() | {
        "barmode": "overlay",
        "bargap": 0,
        "showlegend": len(plot.bars) > 1,
        "hovermode": "closest",
        "xaxis": axis(
            plot.x_label, type="log" if plot.is_log else "linear", **(_log_axis(plot) if plot.is_log else {})
        ),
        "yaxis": axis(plot.y_label, rangemode="tozero", nticks=7),
    }
    data = [
        {
            "type": "bar",
            "name": _text(bars.name),
            "x": [(low + high) / 2 for low, high in zip(bars.lows, bars.highs, strict=True)],
            "width": [high - low for low, high in zip(bars.lows, bars.highs, strict=True)],
            "y": bars.percents,
            "customdata": bars.texts,
            "opacity": bars.opacity,
            "marker": {"color": bars.colour, "line": {"width": 0}},
            "hovertemplate": "%{customdata} (%{y:.3~g} %)",
        }
        for bars in plot.bars
    ]
    return {"data": data, "layout": shape}


def _log_axis(plot: HistogramPlot) -> dict[str, Any]:
    return {
        "range": [math.log10(plot.begin), math.log10(plot.end)],
        "tickvals": plot.log_ticks,
        "ticktext": [f"{tick:g}" for tick in plot.log_ticks],
    }


def _ring_figure(plot: RingPlot) -> dict[str, Any]:
    columns = min(len(plot.rings), _RINGS_IN_ROW)
    rows = math.ceil(len(plot.rings) / columns)
    low, high = plot.weight_range
    notes: list[dict[str, Any]] = []
    data: list[dict[str, Any]] = [_weight_bar(low, high, 0.7 if columns == 1 else 1.02)]
    for index, ring in enumerate(plot.rings):
        row, column = divmod(index, columns)
        left, top = column / columns, 1 - row / rows
        gap = 0.09 / rows
        data.append(
            {
                "type": "pie",
                "name": _text(ring.title),
                "hole": 0.62,
                "sort": False,
                "direction": "clockwise",
                "textinfo": "none",
                "labels": ring.names,
                "values": ring.keys,
                "customdata": ring.texts,
                "domain": {"x": [left + 0.02, left + 1 / columns - 0.02], "y": [top - 1 / rows + gap / 2, top - gap]},
                "marker": {
                    "colors": [_weight_colour(weight, low, high) for weight in ring.weights],
                    "line": {"color": "rgba(128,128,128,0.55)", "width": 1 if len(ring.keys) <= 100 else 0},
                },
                "hovertemplate": "%{label} %{customdata} (%{percent})<extra></extra>",
            }
        )
        middle = {"x": left + 0.5 / columns, "xref": "paper", "yref": "paper", "xanchor": "center", "showarrow": False}
        title = {"text": f"<b>{_text(ring.title)}</b>", "y": top, "yanchor": "top"}
        centre = {"text": "<br>".join(ring.centre), "y": top - 0.5 / rows - gap / 4, "yanchor": "middle"}
        notes += [middle | title, middle | centre]
    hidden = {"visible": False}
    margin = {"l": 20, "r": 20, "t": 30, "b": 20}
    shape = layout(60 + 360 * rows, showlegend=False, xaxis=hidden, yaxis=hidden, annotations=notes, margin=margin)
    return {"data": data, "layout": shape}


def _weight_bar(low: float, high: float, x: float) -> dict[str, Any]:
    """Return a trace without points, with the colour bar of weights."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [None],
        "y": [None],
        "hoverinfo": "skip",
        "marker": {
            "color": [low],
            "cmin": low,
            "cmax": high if high > low else low + 1,
            "colorscale": _WEIGHT_COLOURS,
            "showscale": high > low,
            "colorbar": {
                "title": {"text": "weight", "side": "right"},
                "thickness": 12,
                "len": 0.8,
                "outlinewidth": 0,
                "x": x,
            },
        },
    }


def _weight_colour(weight: float, low: float, high: float) -> str:
    """Return the colour of a weight, by linear interpolation in the scale."""
    place = (weight - low) / (high - low) if high > low else 0.7
    for (begin, first), (end, second) in pairwise(_WEIGHT_COLOURS):
        if place <= end:
            part = (place - begin) / (end - begin)
            channels = zip(_channels(first), _channels(second), strict=True)
            return "#" + "".join(f"{round(one + part * (other - one)):02x}" for one, other in channels)
    return _WEIGHT_COLOURS[-1][1]


def _channels(colour: str) -> list[int]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def _text(text: str) -> str:
    """Escape a user's text so that plotly shows it literally: plotly interprets some tags and entities."""
    return html.escape(text, quote=False)
