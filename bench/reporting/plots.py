"""Charts as PNG files by matplotlib, and in the terminal by plotext; both are imported on first use."""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.harness import Chart

__all__ = ["save_png", "terminal_chart"]

_SIZE_INCHES = (8.0, 4.5)
_DOTS_PER_INCH = 120
_TERMINAL_SIZE = (90, 18)  # characters


def save_png(chart: Chart, directory: Path, *, section: str) -> Path:
    """Draw a chart into a file of ``directory``, named after section and title; return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  # an extra, imported on use
    from matplotlib.figure import Figure  # noqa: PLC0415  # as above

    picture = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="tight")
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    if chart.kind == "bar":
        _draw_bars(axes, chart)
    else:
        for line in chart.series:
            axes.plot(line.x, line.y, marker="o" if len(line.x) < 30 else "", label=line.name)
    if "x" in chart.log:
        axes.set_xscale("log")
    if "y" in chart.log:
        axes.set_yscale("log")
    elif chart.kind != "bar":
        axes.set_ylim(bottom=0)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(alpha=0.3)
    axes.legend()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{section}-{re.sub(r'[^a-z0-9]+', '-', chart.title.lower()).strip('-')}.png"
    picture.savefig(path)
    return path


def _draw_bars(axes, chart: Chart) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001  # matplotlib loads only on use
    width = 0.8 / len(chart.series)
    labels = chart.series[0].x
    for number, bars in enumerate(chart.series):
        places = [place + (number - (len(chart.series) - 1) / 2) * width for place in range(len(labels))]
        axes.bar(places, bars.y, width, label=bars.name)
    axes.set_xticks(range(len(labels)), labels, rotation=20, ha="right")


def terminal_chart(chart: Chart) -> str:
    """Draw a chart as text; a logarithmic axis shows logarithms to base 10."""
    import plotext  # type: ignore[import-untyped]  # noqa: PLC0415  # ships no types; an extra, imported on use

    drawn = plotext.figure
    drawn.clear()
    drawn.plot_size(*_TERMINAL_SIZE)
    drawn.title(f"{chart.title}, {_axis(chart, 'y')} over {_axis(chart, 'x')}")
    if chart.kind == "bar":
        labels = [str(label) for label in chart.series[0].x]
        drawn.draw(drawn.bar(labels, [list(bars.y) for bars in chart.series]))
    else:
        for line, marker in zip(chart.series, itertools.cycle("*o+x#@")):
            signal = drawn.signal(_scaled(line.x, chart, "x"), _scaled(line.y, chart, "y"), marker=marker)
            signal.lines(active=True)
            signal.label(line.name)
            drawn.draw(signal)
    text = str(drawn.build().string(colorless=True))
    drawn.clear()
    legend = ", ".join(bars.name for bars in chart.series) if chart.kind == "bar" and len(chart.series) > 1 else ""
    return "\n".join(
        [*(line.rstrip() for line in text.splitlines()), *([f"bars from left to right: {legend}"] * bool(legend))]
    )


def _axis(chart: Chart, axis: str) -> str:
    label = chart.x_label if axis == "x" else chart.y_label
    return f"log10({label})" if axis in chart.log else label


def _scaled(values: Sequence[float], chart: Chart, axis: str) -> list[float]:
    """Return the values or their logarithms; a value without a logarithm is drawn at the least that has one."""
    if axis not in chart.log:
        return list(values)
    least = min((value for value in values if value > 0), default=1.0)
    return [math.log10(max(value, least)) for value in values]
