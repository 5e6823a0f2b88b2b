"""All compared runs in one picture: a row for each run, and a column for each plot, on axes that all rows share.

Lines over each other hide what is equal; side by side, a strategy that keeps its queue short is seen to do so. Such a
table of small plots is what Tufte calls small multiples ("The Visual Display of Quantitative Information", 1983).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.simulation.report.pictures import draw_bars, draw_line, escaped, save_figure, set_log_scale
from ratelimited_executor.simulation.report.plots import HistogramPlot, TimePlot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ratelimited_executor.simulation.report.plots import Plot

__all__ = ["RUN_COUNT_MAX", "draw_overview", "save_overview"]

RUN_COUNT_MAX: Final = 12  # with more, the rows would be too low to be read
_KEYS: Final = ("queue_depth", "throughput", "sync_interval")
_CELL_INCHES: Final = (4.2, 1.35)
_FRAME_INCHES: Final = 1.0


def save_overview(plots: Sequence[Plot], names: Sequence[str], directory: Path) -> Path | None:
    """Draw all runs beside each other into ``overview.png``; return its path, or None if there is nothing to compare.

    Args:
        plots: all plots of the report.
        names: the names of the runs, as in the plots.
        directory: the directory of the file.
    """
    chosen = [
        plot for key in _KEYS for plot in plots if plot.key == key and isinstance(plot, (TimePlot, HistogramPlot))
    ]
    if not chosen or not 1 < len(names) <= RUN_COUNT_MAX:
        return None
    width, height = _CELL_INCHES
    size = (width * len(chosen), height * len(names) + _FRAME_INCHES)
    return save_figure(size, directory / "overview.png", lambda picture: draw_overview(picture, chosen, names))


def draw_overview(picture: Any, plots: Sequence[TimePlot | HistogramPlot], names: Sequence[str]) -> None:
    """Draw a row for each run, and a column for each plot.

    Args:
        picture: the figure to draw into.
        plots: the plots that hold the lines or bars of all runs.
        names: the names of the runs, as in the plots.
    """
    cells = picture.subplots(len(names), len(plots), sharex="col", sharey="col", squeeze=False)
    for column, plot in zip(cells.T, plots, strict=True):
        column[0].set_title(f"{plot.title}: {plot.y_label}", fontsize=9)
        column[-1].set_xlabel(plot.x_label, fontsize=8)
        for axes, name in zip(column, names, strict=True):
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            if isinstance(plot, TimePlot):
                _draw_lines(axes, plot, name)
            else:
                for bars in plot.bars:
                    if bars.name.startswith(f"{name}: "):
                        draw_bars(axes, bars)
                if plot.is_log:
                    set_log_scale(axes, plot)
    for axes, name in zip(cells[:, 0], names, strict=True):
        axes.set_ylabel(escaped(name), rotation=0, ha="right", va="center", fontweight="bold")
    picture.align_ylabels(cells[:, 0])


def _draw_lines(axes: Any, plot: TimePlot, name: str) -> None:
    for line in plot.lines:
        if line.name == name:
            draw_line(axes, line)
            highest = max((value for value in line.y if value is not None), default=0)
            shown = f"{highest:,.0f}" if highest >= 100 else f"{highest:.3g}"
            axes.text(
                0.99, 0.93, f"at most {shown}", transform=axes.transAxes, ha="right", va="top", fontsize=8,
                bbox={"color": "white", "alpha": 0.8, "pad": 1},
            )  # fmt: skip
    for mark in plot.marks:
        axes.axvline(mark.x, color="0.5", linestyle="--", linewidth=1)
    axes.set_xlim(0, plot.end)
    axes.set_ylim(bottom=0)
