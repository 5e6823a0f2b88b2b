"""Plots as PNG files by matplotlib, which is imported on use."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.simulation.report.plots import HistogramPlot, Plot, RingPlot, TimePlot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ratelimited_executor.simulation.report.plots import Bars, ReportLine

__all__ = ["draw_bars", "draw_line", "escaped", "save_figure", "save_picture", "set_log_scale"]

_SIZE_INCHES: Final = (10.0, 4.8)
_RING_INCHES: Final = 4.0
_RINGS_IN_ROW: Final = 3
_DOTS_PER_INCH: Final = 120
_LEGEND_MAX: Final = 20  # lines, beyond which it would hide the plot


def save_picture(plot: Plot, directory: Path) -> Path:
    """Draw a plot into a file in a directory, which is created if it does not exist; return the path.

    Args:
        plot: the plot to draw; lines that are initially hidden on a page are left out.
        directory: the directory of the file, which is named after the plot.
    """
    return save_figure(_size(plot), directory / f"{plot.key}.png", lambda picture: _draw(picture, plot))


def save_figure(size: tuple[float, float], path: Path, draw: Callable[[Any], None]) -> Path:
    """Draw a figure into a file, whose directory is created if it does not exist; return the path.

    Args:
        size: width and height in inches.
        path: the PNG file.
        draw: draws into the figure that it gets.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  # an extra, imported on use
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra, imported on use

    picture = Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(picture)
    draw(picture)
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph ", category=UserWarning)  # drawn as a box
        picture.savefig(path)
    return path


def _size(plot: Plot) -> tuple[float, float]:
    if not isinstance(plot, RingPlot):
        return _SIZE_INCHES
    columns = min(len(plot.rings), _RINGS_IN_ROW)
    return _RING_INCHES * columns + 1.5, _RING_INCHES * math.ceil(len(plot.rings) / columns) + 0.5


def _draw(picture: Any, plot: Plot) -> None:
    if isinstance(plot, TimePlot):
        _draw_lines(picture.add_subplot(), plot)
    elif isinstance(plot, HistogramPlot):
        _draw_histogram(picture.add_subplot(), plot)
    else:
        _draw_rings(picture, plot)


def draw_line(axes: Any, line: ReportLine) -> None:
    """Draw a line over time, with points if there are few or if it is broken."""
    is_short = len(line.x) < 30
    axes.plot(
        line.x,
        line.y,
        color=line.colour,
        alpha=line.opacity,
        linewidth=line.width,
        linestyle="--" if line.is_limit else "-",
        marker="o" if (is_short or line.has_points) and not line.is_limit else "",
        markersize=4 if is_short else 1.5,
        label=escaped(line.name),
    )


def draw_bars(axes: Any, bars: Bars) -> None:
    """Draw a histogram."""
    widths = [high - low for low, high in zip(bars.lows, bars.highs, strict=True)]
    axes.bar(
        bars.lows, bars.percents, widths, align="edge", color=bars.colour, alpha=bars.opacity, label=escaped(bars.name)
    )


def set_log_scale(axes: Any, plot: HistogramPlot) -> None:
    """Make the horizontal axis logarithmic, with few numbers."""
    axes.set_xscale("log")
    axes.set_xlim(plot.begin, plot.end)
    axes.set_xticks(plot.log_ticks, [f"{tick:g}" for tick in plot.log_ticks])
    axes.set_xticks([], minor=True)


def _draw_lines(axes: Any, plot: TimePlot) -> None:
    shown = [line for line in plot.lines if line.is_shown]
    for line in shown:
        draw_line(axes, line)
    for mark in plot.marks:
        axes.axvline(mark.x, color="0.5", linestyle="--", linewidth=1)
        is_turned = mark.x > 0.85 * plot.end
        axes.annotate(
            escaped(mark.text), (mark.x, 1.01), xycoords=("data", "axes fraction"), rotation=-30 if is_turned else 30,
            ha="right" if is_turned else "left", va="bottom", fontsize=8, color="0.3", annotation_clip=False,
        )  # fmt: skip
    axes.set_xlim(0, plot.end)
    axes.set_ylim(bottom=0)
    ticks = [plot.tick_distance * index for index in range(int(plot.end / plot.tick_distance + 1e-9) + 1)]
    axes.set_xticks(ticks)
    _finish(axes, plot.title, plot.x_label, plot.y_label, len(shown))


def _draw_histogram(axes: Any, plot: HistogramPlot) -> None:
    for bars in plot.bars:
        draw_bars(axes, bars)
    if plot.is_log:
        set_log_scale(axes, plot)
    _finish(axes, plot.title, plot.x_label, plot.y_label, len(plot.bars))


def _finish(axes: Any, title: str, x_label: str, y_label: str, legend_size: int) -> None:
    axes.figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if 1 < legend_size <= _LEGEND_MAX:
        axes.figure.legend(loc="outside lower center", ncols=min(legend_size, 3), frameon=False)


def _draw_rings(picture: Any, plot: RingPlot) -> None:
    from matplotlib import colormaps  # noqa: PLC0415  # an extra, imported on use
    from matplotlib.cm import ScalarMappable  # noqa: PLC0415  # an extra, imported on use
    from matplotlib.colors import Normalize  # noqa: PLC0415  # an extra, imported on use

    columns = min(len(plot.rings), _RINGS_IN_ROW)
    low, high = plot.weight_range
    norm, palette = Normalize(low, high if high > low else low + 1), colormaps["Blues"]
    all_axes = picture.subplots(math.ceil(len(plot.rings) / columns), columns, squeeze=False)
    for axes in all_axes.flat:
        axes.set_axis_off()
    for axes, ring in zip(all_axes.flat, plot.rings, strict=False):
        axes.set_title(escaped(ring.title), fontweight="bold")
        if sum(ring.keys):
            edge = {"edgecolor": "0.6", "linewidth": 0.5 if len(ring.keys) <= 100 else 0}
            axes.pie(
                ring.keys,
                colors=[palette(norm(weight)) for weight in ring.weights],
                startangle=90,
                counterclock=False,
                wedgeprops={"width": 0.38, **edge},
            )
        axes.text(0, 0, "\n".join(ring.centre), ha="center", va="center")
    if high > low:
        picture.colorbar(ScalarMappable(norm, palette), ax=all_axes, label="weight", shrink=0.7)


def escaped(text: str) -> str:
    """Escape a user's text for matplotlib: dollars would begin a formula, an underscore would hide a label."""
    return " " * text.startswith("_") + text.replace("$", r"\$")
