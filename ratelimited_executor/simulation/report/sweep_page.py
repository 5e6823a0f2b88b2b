"""The page of a sweep, for whoever decides: the question, the answer with its interval, and what would be if.

A slider for each parameter chooses a configuration; a map shows two parameters at a time, and a plot what each saving
costs. The page is one file of some tens of kilobytes, without a library.
"""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.simulation.report.document import document, section, table

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ratelimited_executor.simulation.sweeps import Configuration, Estimate, Sweep

__all__ = ["answer_of", "interval_text", "write_sweep_page"]

_DURATIONS: Final = ("wait", "worst wait", "sync delay")  # what figures of a duration begin with
_SHOWN_SECONDS: Final = 1e-4  # a shorter duration counts as none

_STYLE: Final = """<style>
.answer { font-size: 18px; font-weight: 600; margin: 0; }
.sliders { display: grid; grid-template-columns: max-content 1fr minmax(80px, max-content); gap: 8px 16px; align-items: center; }
.sliders output { font-weight: 600; } input[type=range] { width: 100%; accent-color: var(--accent); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 16px 0 0; } dd { margin: 0; font-weight: 600; }
.kept { color: var(--good); } .missed { color: var(--bad); }
table.map td { text-align: center; padding: 6px 10px; min-width: 64px; cursor: pointer; border: 1px solid var(--paper); }
table.map th, table.map td { white-space: nowrap; } table.map th { padding: 6px 10px; } table.map td.chosen { outline: 3px solid var(--accent); outline-offset: -3px; }
table.map td[data-kept=no] { text-decoration: line-through; }
svg { width: 100%; height: auto; max-height: 420px; font: 12px system-ui, sans-serif; } svg text { fill: var(--soft); }
svg line { stroke: var(--grid); } svg polyline { fill: none; stroke: var(--accent); stroke-width: 2; }
svg circle { fill: var(--soft); cursor: pointer; } svg circle.kept { fill: var(--good); } svg circle.missed { fill: var(--bad); }
svg circle.chosen { stroke: var(--accent); stroke-width: 4; }
pre { overflow-x: auto; font-size: 13px; margin: 0; }
@media (max-width: 600px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 8px; } }
select { font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--grid); border-radius: 6px; padding: 2px 6px; }
</style>"""

_SCRIPT: Final = """<script>
(() => {
  const data = JSON.parse(document.getElementById("sweep").textContent);
  const names = Object.keys(data.grid);
  const at = (id) => document.getElementById(id);
  const index = names.map((name) => data.grid[name].indexOf(data.chosen[name]));
  const found = (where) => data.cells[where.reduce((sum, each, n) => sum * data.grid[names[n]].length + each, 0)];
  const node = (tag, attributes, text) => {
    const made = tag === "svg" || ["line", "circle", "text", "polyline", "title"].includes(tag)
      ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const kept = (cell) => cell.kept === cell.runs ? "kept" : "missed";
  const sliders = names.map((name, n) => {
    const values = data.grid[name];
    const input = node("input", {type: "range", min: 0, max: values.length - 1, step: 1, id: "set-" + n});
    const shown = node("output", {for: "set-" + n});
    const label = node("label", {for: "set-" + n}, name);
    at("sliders").append(label, input, shown);
    input.addEventListener("input", () => { index[n] = Number(input.value); show(); });
    return {input, shown, values};
  });
  const axes = [at("across"), at("down")];
  axes.forEach((axis, n) => {
    names.forEach((name) => axis.append(node("option", {}, name)));
    axis.selectedIndex = Math.min(n, names.length - 1);
    axis.addEventListener("change", () => show());
  });
  const shade = (value) => {
    const part = data.most > data.least ? (value - data.least) / (data.most - data.least) : 0;
    return `color-mix(in srgb, var(--bad) ${Math.round(55 * Math.sqrt(part))}%, var(--paper))`;
  };
  const drawMap = () => {
    const [across, down] = axes.map((axis) => axis.selectedIndex);
    const rows = down === across ? [index[down]] : data.grid[names[down]].map((_, n) => n);
    const head = node("tr");
    head.append(node("th", {scope: "col"}, down === across ? names[across] : names[down] + " \\\\ " + names[across]));
    data.grid[names[across]].forEach((value) => head.append(node("th", {scope: "col"}, value)));
    const body = rows.map((row) => {
      const line = node("tr");
      line.append(node("th", {scope: "row"}, down === across ? "" : data.grid[names[down]][row]));
      data.grid[names[across]].forEach((_, column) => {
        const where = [...index];
        where[down] = row; where[across] = column;
        const cell = found(where), is = where.every((each, n) => each === index[n]);
        const drawn = node("td", {"data-kept": kept(cell) === "kept" || !data.hasObjectives ? "yes" : "no", class: is ? "chosen" : ""}, cell.short);
        if (cell.value !== null) drawn.style.background = shade(cell.value);
        drawn.addEventListener("click", () => { where.forEach((each, n) => { index[n] = each; }); show(); });
        line.append(drawn);
      });
      return line;
    });
    at("map").replaceChildren(head, ...body);
  };
  const drawFrontier = () => {
    const svg = at("frontier");
    if (!svg) return;
    const [width, height, left, low] = [760, 380, 80, 40];
    const x = (cost) => left + (cost - data.cheapest) / (data.dearest - data.cheapest || 1) * (width - left - 20);
    const y = (value) => 10 + (data.most - value) / (data.most - data.least || 1) * (height - low - 20);
    const parts = [node("line", {x1: left, x2: left, y1: 0, y2: height - low}), node("line", {x1: left, x2: width, y1: height - low, y2: height - low}),
      node("text", {x: width - 10, y: height - 8, "text-anchor": "end"}, "cost, " + data.cheapestText + " to " + data.dearestText),
      node("text", {x: left + 8, y: 14}, data.figure + ", up to " + data.mostText)];
    parts.push(node("polyline", {points: data.frontier.map((n) => `${x(data.cells[n].cost)},${y(data.cells[n].value)}`).join(" ")}));
    data.cells.forEach((cell, n) => {
      if (cell.value === null) return;
      const is = cell === found(index);
      const dot = node("circle", {cx: x(cell.cost), cy: y(cell.value), r: is ? 8 : 5, class: (data.hasObjectives ? kept(cell) : "") + (is ? " chosen" : "")});
      dot.append(node("title", {}, cell.name + ": " + cell.text));
      dot.addEventListener("click", () => { cell.at.forEach((each, m) => { index[m] = each; }); show(); });
      parts.push(dot);
    });
    svg.replaceChildren(...parts);
  };
  const show = () => {
    sliders.forEach(({input, shown, values}, n) => { input.value = index[n]; shown.textContent = values[index[n]]; });
    const cell = found(index);
    const list = cell.figures.flatMap(([name, text]) => [node("dt", {}, name), node("dd", {}, text)]);
    if (data.hasObjectives) list.unshift(node("dt", {}, "objectives"),
      node("dd", {class: kept(cell)}, `kept in ${cell.kept} of ${cell.runs} runs`));
    at("figures").replaceChildren(...list);
    drawMap();
    drawFrontier();
  };
  show();
})();
</script>"""


def write_sweep_page(found: Sweep, page: str | os.PathLike[str]) -> Path:
    """Write the page of a sweep.

    Args:
        found: the sweep.
        page: the HTML file to write.
    """
    runs = [len(each.runs) for each in found.configurations]
    title = f"Which settings of {found.scenario}?"
    question = (
        f"Which settings of {found.scenario} keep its objectives at the least cost?"
        if found.has_objectives and found.has_cost
        else f"Which settings of {found.scenario} keep its objectives?"
        if found.has_objectives
        else f"Which settings of {found.scenario} have the least {found.figure}?"
    )
    lead = (
        f"{len(found.configurations):,} configurations, {sum(runs):,} simulated runs; "
        "each configuration has had the same traffic, seed by seed. ± is half of a 95 % interval."
    )
    selects = '<p>Across <select id="across"></select>, down <select id="down"></select>.'
    struck = " What is struck through does not keep the objectives." if found.has_objectives else ""
    body = [
        _STYLE,
        f'<header><h1>{escape(question)}</h1><p class="lead">{escape(lead)}</p></header>',
        section("answer", "Answer", f'<p class="answer">{escape(answer_of(found))}</p>'),
        section("if", "What if", '<div class="sliders" id="sliders"></div><dl id="figures"></dl>'),
        section(
            "map-of", found.figure, f'{selects}{struck}</p><div class="wide"><table class="map" id="map"></table></div>'
        ),
        section("price", f"Cost and {found.figure}", '<svg id="frontier" viewBox="0 0 760 380" role="img"></svg>')
        if found.has_cost
        else "",
        section("all", "All configurations", f'{_table(found)}<p class="note">{escape(found.shortcut)}</p>'),
        section("theory", "Check by queueing theory", _theory(found)) if found.expected_waits else "",
        section("given", "Assumptions", _assumptions(found)),
        f'<script type="application/json" id="sweep">{_json(_data(found))}</script>',
        _SCRIPT,
    ]
    path = Path(page)
    path.write_text(document(title, body=body, has_plots=False), encoding="utf-8")
    return path


def answer_of(found: Sweep) -> str:
    """Return which configuration to choose, in a sentence."""
    if not found.is_complete:
        return f"Stopped before all runs had ended, so this is not the answer yet. {_answer_of(found)}"
    return _answer_of(found)


def _answer_of(found: Sweep) -> str:
    chosen = found.cheapest
    if not found.frontier:
        return "No run has ended."
    if not found.has_objectives:
        best = found.frontier[-1]
        interval = interval_text(found.figure, best.estimate(found.figure))
        return f"The least {found.figure}, {interval}: {best}. With objectives in the scenario, the cheapest that keeps them is named."
    if chosen is None:
        count = len([each for each in found.choices if each.runs])
        kept = "; ".join(f"{name}: kept by {number} of {count}" for name, number in found.keepers.items())
        return f"No configuration keeps every objective in every run: widen the ranges, or the objectives. {kept}."
    cost = f", cost {interval_text('cost', chosen.estimate('cost'))}" if found.has_cost else ""
    what = "The cheapest configuration" if found.has_cost else "The first configuration"
    return (
        f"{what} that keeps every objective in all of its {len(chosen.runs)} runs: {chosen}{cost}, "
        f"{found.figure} {interval_text(found.figure, chosen.estimate(found.figure))}.{_edges(found, chosen)}"
    )


def _edges(found: Sweep, chosen: Configuration) -> str:
    """Return a warning if the answer is at the edge of what was tried; empty if it is not."""
    edges = [f"{name}={chosen.settings[name]} is the {which}" for name, which in found.edges.items()]
    return f" Beyond what was tried there may be a better one: {', '.join(edges)}." if edges else ""


def interval_text(figure: str, estimate: Estimate, *, is_signed: bool = False) -> str:
    """Return an estimate with half of its interval, if there is one."""
    if math.isnan(estimate.mean):
        return "none"
    sign = ("+" if estimate.mean > 0 else "-" if estimate.mean < 0 else "") if is_signed else ""
    mean = abs(estimate.mean) if is_signed else estimate.mean
    if figure.startswith(_DURATIONS) or not 0 < estimate.half < math.inf:
        return sign + " ± ".join(_text(figure, value) for value in (mean, estimate.half) if value < math.inf)
    places = max(0, 1 - math.floor(math.log10(estimate.half)))  # two digits of the interval, and no more of the mean
    return f"{sign}{mean:,.{places}f} ± {estimate.half:,.{places}f}"


def _text(figure: str, value: float) -> str:
    if figure.startswith(_DURATIONS):
        return format_duration(value) if value >= _SHOWN_SECONDS else "0 s"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _table(found: Sweep) -> str:
    headings = [*found.axes, *(["cost"] if found.has_cost else []), found.figure, "runs"]
    if found.has_objectives:
        headings.append("objectives kept")
    rows = []
    for each in found.configurations:
        cells = [str(value) for value in each.settings.values()]
        cells += [interval_text(name, each.estimate(name)) for name in ("cost", found.figure) if name in headings]
        cells += [str(len(each.runs)), *([str(each.kept_count)] if found.has_objectives else [])]
        rows.append(cells)
    return table(headings, rows)


def _theory(found: Sweep) -> str:
    """Return the mean waits beside those of Erlang's formula."""
    rows = []
    for each in found.configurations:
        if str(each) not in found.expected_waits:
            continue
        kind, expected = found.expected_waits[str(each)]
        figure = f"wait of {kind}, mean"
        rows.append([str(each), _text(figure, expected), interval_text(figure, each.estimate(figure))])
    caption = (
        "Erlang C, for random arrivals, exponential durations and a queue without end: of 20 intervals, one misses it by chance, "
        "and a run that begins empty waits a bit less unless it has a warm-up"
    )
    return table(["Configuration", "Mean wait by the formula", "Mean wait of the runs"], rows, caption=caption)


def _assumptions(found: Sweep) -> str:
    """Return what the runs have in common, with the values of the first configuration."""
    text = json.dumps(found.parameters, indent=2, default=str)
    first = found.configurations[0]
    which = escape(str(first if found.cheapest is None else found.counterpart(first, found.cheapest)))
    return f"<details><summary>The scenario, with {which}</summary><pre>{escape(text)}</pre></details>"


def _data(found: Sweep) -> dict[str, Any]:
    """Return what the script of the page shows."""
    shown = [name for name in found.figures if name != "cost" or found.has_cost]
    first = found.configurations[0]
    chosen = found.counterpart(first, found.cheapest or (found.frontier[-1] if found.frontier else first))
    numbers = {id(each): number for number, each in enumerate(found.configurations)}
    there = [each for each in found.configurations if each.values(found.figure)]
    values = [each.estimate(found.figure).mean for each in there] or [0.0]
    costs = [each.estimate("cost").mean for each in there] or [0.0]
    return {
        "grid": {name: [str(value) for value in values] for name, values in found.axes.items()},
        "chosen": {name: str(value) for name, value in chosen.settings.items()},
        "figure": found.figure,
        "hasObjectives": found.has_objectives,
        "least": min(values),
        "most": max(values),
        "mostText": _text(found.figure, max(values)),
        "cheapest": min(costs),
        "dearest": max(costs),
        "cheapestText": _text("cost", min(costs)),
        "dearestText": _text("cost", max(costs)),
        "frontier": [] if found.given else [numbers[id(each)] for each in found.frontier],
        "cells": [_cell(found, each, shown) for each in found.configurations],
    }


def _cell(found: Sweep, each: Configuration, shown: Sequence[str]) -> dict[str, Any]:
    value, cost = (each.estimate(name).mean if each.runs else math.nan for name in (found.figure, "cost"))
    return {
        "name": str(each),
        "at": [found.axes[name].index(value) for name, value in each.settings.items()],
        "value": None if math.isnan(value) else value,
        "cost": None if math.isnan(cost) else cost,
        "short": "none" if math.isnan(value) else _text(found.figure, value),
        "text": interval_text(found.figure, each.estimate(found.figure)),
        "kept": each.kept_count,
        "runs": len(each.runs),
        "figures": [(name, interval_text(name, each.estimate(name))) for name in shown],
    }


def _json(data: dict[str, Any]) -> str:
    """Return JSON that no browser takes for the end of its script."""
    return json.dumps(data).replace("<", "\\u003c")
