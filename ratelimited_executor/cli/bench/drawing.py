"""Plots of lines as SVG, drawn when the page is written; a script of a few lines shows the values under the pointer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.ticks import ticks
from ratelimited_executor.simulation.report.document import script_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["DRAWING_SCRIPT", "DRAWING_STYLE", "Line", "Scale", "drawing", "linear_scale", "log_scale"]

_WIDTH: Final = 1100
_HEIGHT: Final = 340
_LEFT: Final = 78
_RIGHT: Final = 16
_TOP: Final = 12
_BOTTOM: Final = 46
_TICK_COUNT: Final = 6
_DECADES_DETAILED: Final = 3  # a logarithmic scale of more has labels at the powers of ten alone
_STEPS: Final = (1, 2, 5, 10)

DRAWING_STYLE: Final = """<style>
.drawing { position: relative; min-width: 640px; }
.drawing svg { display: block; width: 100%; height: auto; font: 13px system-ui, sans-serif; } .drawing text { fill: var(--soft); }
.drawing line { stroke: var(--grid); } .drawing polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.drawing .under { stroke: var(--soft); visibility: hidden; }
.drawing output { position: absolute; top: 8px; pointer-events: none; visibility: hidden; white-space: pre; font-size: 13px;
  background: var(--paper); border: 1px solid var(--grid); border-radius: 6px; padding: 4px 10px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 8px 0 0; padding: 0; list-style: none; font-size: 13px; }
.legend i { display: inline-block; width: 18px; height: 3px; margin-right: 8px; vertical-align: middle; }
</style>"""

DRAWING_SCRIPT: Final = """<script>
for (const place of document.querySelectorAll(".drawing")) {
  const [svg, shown] = [place.querySelector("svg"), place.querySelector("output")];
  const under = svg.querySelector(".under"), data = JSON.parse(place.querySelector("script").textContent);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    let best = 0;
    data.at.forEach((each, n) => { if (Math.abs(each - x) < Math.abs(data.at[best] - x)) best = n; });
    under.setAttribute("x1", data.at[best]); under.setAttribute("x2", data.at[best]);
    shown.textContent = [data.over[best], ...data.lines.map(([name, texts]) => name + ": " + texts[best])].join("\\n");
    const isRight = data.at[best] > svg.viewBox.baseVal.width / 2, there = data.at[best] / svg.viewBox.baseVal.width * box.width;
    shown.style.left = isRight ? "auto" : there + 12 + "px"; shown.style.right = isRight ? box.width - there + 12 + "px" : "auto";
    under.style.visibility = shown.style.visibility = "visible";
  });
  svg.addEventListener("pointerleave", () => { under.style.visibility = shown.style.visibility = "hidden"; });
}
</script>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a plot.

    Attributes:
        name: its name, as text.
        colour: its colour, as CSS writes it.
        values: one for each position.
    """

    name: str
    colour: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis.

    Attributes:
        title: what it shows, as text.
        low: the value at its beginning.
        high: the value at its end, > ``low``.
        ticks: (value, label) of its labels.
        is_log: True if it is logarithmic; then ``low`` > 0.
    """

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False

    def part_of(self, value: float) -> float:
        """Return where a value lies, 0 to 1; one beyond an end lies at that end."""
        low, high = self.low, self.high
        value = min(high, max(low, value))
        if self.is_log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)


def linear_scale(title: str, high: float) -> Scale:
    """Return a scale from 0 to a round number that is not below ``high``.

    >>> [label for _, label in linear_scale("requests", 1234).ticks]
    ['0', '500', '1,000', '1,500']
    """
    marks = ticks(max(high, 1e-9), _TICK_COUNT)
    return Scale(title=title, low=0.0, high=marks[-1], ticks=[(mark, f"{mark:,g}") for mark in marks])


def log_scale(title: str, values: Sequence[float]) -> Scale:
    """Return a scale with labels at 1, 2, 5, 10 and so on, from the one below all values > 0 to the one above them.

    >>> [label for _, label in log_scale("milliseconds", [0.3, 0, 4]).ticks]
    ['0.2', '0.5', '1', '2', '5']
    """
    values = [each for each in values if each > 0] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = _STEPS[:3] if high - low <= _DECADES_DETAILED else (1,)
    marks = [float(f"{step}e{power}") for power in range(low, high + 2) for step in steps]
    first = max(mark for mark in marks if mark <= min(values))
    last = min(mark for mark in marks if mark >= max(values) and mark > first)
    ticks = [(mark, f"{mark:,g}") for mark in marks if first <= mark <= last]
    return Scale(title=title, low=first, high=last, ticks=ticks, is_log=True)


def drawing(
    positions: Sequence[tuple[float, str]],
    lines: Sequence[Line],
    *,
    x: Scale,
    y: Scale,
    text_of: Callable[[float], str],
) -> str:
    """Return a plot as a piece of HTML, for a page that has ``DRAWING_STYLE`` and ends with ``DRAWING_SCRIPT``.

    Args:
        positions: (place on the axis below, what is there as text) of each value.
        lines: the lines.
        x: the axis below.
        y: the axis at the left.
        text_of: writes a value.
    """
    at = [round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * x.part_of(place), 1) for place, _ in positions]
    bottom = _HEIGHT - _BOTTOM
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(_summary(y, lines, text_of))}">']
    for value, label in y.ticks:
        height = _height_of(y, value)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height}" y2="{height}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{height + 4}" text-anchor="end">{escape(label)}</text>')
    for value, label in x.ticks:
        place = round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * x.part_of(value), 1)
        parts.append(f'<line x1="{place}" x2="{place}" y1="{bottom}" y2="{bottom + 5}"/>')
        parts.append(f'<text x="{place}" y="{bottom + 19}" text-anchor="middle">{escape(label)}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{escape(x.title)}</text>')
    parts.append(
        f'<text transform="translate(14 {(_TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">{escape(y.title)}</text>'
    )
    for line in lines:
        points = " ".join(f"{place},{_height_of(y, value)}" for place, value in zip(at, line.values, strict=True))
        parts.append(f'<polyline points="{points}" stroke="{line.colour}"/>')
    parts.append(f'<line class="under" x1="0" x2="0" y1="{_TOP}" y2="{bottom}"/></svg>')
    data = {
        "at": at,
        "over": [text for _, text in positions],
        "lines": [(line.name, [text_of(value) for value in line.values]) for line in lines],
    }
    legend = "".join(f'<li><i style="background:{line.colour}"></i>{escape(line.name)}</li>' for line in lines)
    return (
        f'<div class="wide"><div class="drawing">{"".join(parts)}<output></output>'
        f'<script type="application/json">{script_json(data)}</script></div></div><ul class="legend">{legend}</ul>'
    )


def _height_of(scale: Scale, value: float) -> float:
    return round(_TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - scale.part_of(value)), 1)


def _summary(scale: Scale, lines: Sequence[Line], text_of: Callable[[float], str]) -> str:
    """Say what a plot shows to those who do not see it."""
    told = [f"{line.name} {text_of(min(line.values))} to {text_of(max(line.values))}" for line in lines if line.values]
    return f"{scale.title}: {'; '.join(told) or 'no data'}"
