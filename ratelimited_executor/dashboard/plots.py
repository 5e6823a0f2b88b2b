"""Lines over time as SVG, drawn by the server: no script, no style of their own, colours by the classes of the page."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from ratelimited_executor._core.ticks import ticks
from ratelimited_executor.dashboard.history import POINT_COUNT, STEP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Plot", "PlotLine", "plot_of", "plot_svg", "spark_svg"]

_WIDTH: Final = 640
_HEIGHT: Final = 180
_LEFT: Final = 72  # for the labels of the axis, up to 13h53m20s
_RIGHT: Final = 8
_TOP: Final = 8
_BOTTOM: Final = 22
_GAP_STEPS: Final = 2.5  # a line breaks where two points are further apart than so many steps


_SPANS: Final = {300.0: 1, 900.0: 5, 1800.0: 10, STEP_SECONDS * POINT_COUNT: 15}
# Of an axis, in seconds: the shortest that shows all there is; and the minutes between two of its labels.
_SPARK_WIDTH: Final = 120
_SPARK_HEIGHT: Final = 24
_SPARK_STEPS: Final = 36  # so many points of a line, each the highest of those that it stands for


class Plot(NamedTuple):
    """A plot on a page: what it shows, its SVG, and the names of its lines."""

    title: str
    svg: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotLine:
    """One line.

    Attributes:
        name: for the legend, and for the class that colours it: letters.
        values: one for each time; NaN and infinity are left out.
        is_sparse: True if it is drawn only where it is above 0, up from 0 and down to it, so that it covers no other line.
    """

    name: str
    values: Sequence[float]
    is_sparse: bool = False


def plot_of(
    title: str,
    times: Sequence[float],
    columns: Mapping[str, Sequence[float]],
    *,
    end: float,
    text_of: Callable[[float], str],
    unit: str = "",
    is_whole: bool = False,
    sparse: str = "",
) -> Plot:
    """Return a plot of the points of a history, an hour at most.

    Args:
        title: what it shows, as text.
        times: epoch seconds of the points, ascending.
        columns: the values of each line, one for each time, by the name of the line.
        end: epoch seconds at the right edge.
        text_of: writes a value.
        unit: as in :func:`plot_svg`.
        is_whole: True if the values are counts.
        sparse: the name of a line that is drawn only where it is above 0, and left out if it is nowhere.
    """
    longest = max(_SPANS)
    first = bisect_left(times, end - longest)
    times = times[first:]
    age = end - times[0] if times else 0.0
    span = next((each for each in _SPANS if age <= each), longest)
    lines = [
        PlotLine(name=name, values=values[first:], is_sparse=name == sparse)
        for name, values in columns.items()
        if name != sparse or any(value > 0 for value in values[first:])
    ]
    svg = plot_svg(
        title, times, lines, end=end, span=span, step=STEP_SECONDS, text_of=text_of, unit=unit, is_whole=is_whole
    )
    return Plot(title, svg, [line.name for line in lines])


def plot_svg(
    title: str,
    times: Sequence[float],
    lines: Sequence[PlotLine],
    *,
    end: float,
    span: float,
    step: float,
    text_of: Callable[[float], str],
    unit: str = "",
    is_whole: bool = False,
) -> str:
    """Return a plot of lines over the time until now.

    Args:
        title: what it shows, as text.
        times: epoch seconds of the points, ascending.
        lines: with a value for each time.
        end: epoch seconds at the right edge.
        span: seconds that the axis covers.
        step: seconds between two points as they are meant to come.
        text_of: writes a value.
        unit: what the script writes behind a value that is pointed at: ``/s``, ``s`` for a duration, or nothing.
        is_whole: True if the values are counts, whose axis has no fractions.
    """
    finite = [value for line in lines for value in line.values if math.isfinite(value)]
    marks = ticks(max(finite, default=0.0), is_whole=is_whole)
    top = marks[-1]

    def x_of(time: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (1 - (end - time) / span)

    def y_of(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / top)

    data = f'data-frame="{_LEFT} {_WIDTH - _RIGHT} {_TOP} {_HEIGHT - _BOTTOM}" data-top="{top:g}" data-span="{span:g}"'
    label = escape(_summary(title, lines, text_of))
    frame = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}" {data} data-unit="{unit}"'
    parts = [f"<svg {frame}>"]
    for mark in marks:
        y = y_of(mark)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4:.1f}">{escape(text_of(mark))}</text>')
    minutes_all = round(span / 60)
    for minutes in range(0, minutes_all + 1, _SPANS.get(span, max(1, minutes_all // 5))):
        label = "now" if minutes == 0 else f"-{minutes} min"
        anchor = " end" if minutes == 0 else " middle" if minutes * 60 < span else ""
        parts.append(f'<text class="tick{anchor}" x="{x_of(end - minutes * 60):.1f}" y="{_HEIGHT - 6}">{label}</text>')
    for line in lines:
        name, (path, dots) = (
            escape(line.name),
            _paths(
                times,
                _without_zeros(line.values) if line.is_sparse else line.values,
                x_of,
                y_of,
                gap=_GAP_STEPS * step,
                begin=end - span,
            ),
        )
        parts.append(f'<path class="line {name}" d="{path}"/><path class="dots {name}" d="{dots}"/>')
    return "".join([*parts, "</svg>"])


def spark_svg(values: Sequence[float], bad: Sequence[float], count: int) -> str:
    """Return a line of the size of a word, without axes (a "sparkline", E. Tufte, Beautiful Evidence, 2006).

    Args:
        values: finite ones >= 0 at a fixed distance, the newest last, at its right edge.
        bad: those of a second line, in the colour of trouble, which is left out if all of them are 0.
        count: how many values it has room for.
    """
    width = max(1, count // _SPARK_STEPS)
    lines = {"started": _highest(values, width), "failed": _without_zeros(_highest(bad, width)) if any(bad) else []}
    top = max(lines["started"], default=0.0) or 1.0

    def y_of(value: float) -> float:
        return _SPARK_HEIGHT - 2 - (_SPARK_HEIGHT - 4) * min(1.0, value / top)

    parts = [f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" aria-hidden="true">']
    for name, column in lines.items():
        if not column:
            continue
        step = _SPARK_WIDTH / (count / width - 1)
        left = _SPARK_WIDTH - step * (len(column) - 1)
        places = [left + step * place for place in range(len(column))]
        path, _ = _paths(places, column, float, y_of, gap=1.5 * step, begin=-math.inf)
        parts.append(f'<path class="line {name}" d="{path}"/>')
    return "".join([*parts, "</svg>"])


def _without_zeros(values: Sequence[float]) -> list[float]:
    """Return values with NaN in place of each 0 whose neighbours are not above 0 either."""
    padded = [0.0, *values, 0.0]
    return [
        value if max(around) > 0 else math.nan
        for value, *around in zip(values, padded, padded[1:], padded[2:], strict=False)
    ]


def _highest(values: Sequence[float], width: int) -> list[float]:
    """Return the highest of each so many values, the last of which end with the last one; two at least, as a line has."""
    highest = [max(values[max(0, end - width) : end]) for end in range(len(values), 0, -width)]
    return highest[::-1] if len(highest) != 1 else highest * 2


def _paths(
    times: Sequence[float],
    values: Sequence[float],
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
    *,
    gap: float,
    begin: float,
) -> tuple[str, str]:
    """Return the lines through points that follow each other, and the points that stand alone, as data of two paths."""
    pieces: list[list[str]] = []
    before = -math.inf
    for time, value in zip(times, values, strict=True):
        if time < begin or not math.isfinite(value):
            continue
        point = f"{x_of(time):.1f} {y_of(value):.1f}"
        if time - before <= gap:
            pieces[-1].append(point)
        else:
            pieces.append([point])
        before = time
    lines = "".join(f"M{'L'.join(piece)}" for piece in pieces if len(piece) > 1)
    return lines, "".join(f"M{piece[0]}h0" for piece in pieces if len(piece) == 1)


def _summary(title: str, lines: Sequence[PlotLine], text_of: Callable[[float], str]) -> str:
    """Say what a plot shows to those who do not see it."""
    told = []
    for line in lines:
        finite = [value for value in line.values if math.isfinite(value)]
        if finite:
            told.append(f"{line.name} {text_of(finite[-1])} now, {text_of(min(finite))} to {text_of(max(finite))}")
    return f"{title}: {'; '.join(told) or 'no data yet'}"
