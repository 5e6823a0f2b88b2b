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
from ratelimited_executor.simulation.report.document import document, notes_html, script_json, section, table
from ratelimited_executor.simulation.report.sweep_table import (
    DIFFERENCE,
    columns_of,
    figure_text,
    interval_text,
    is_duration,
)
from ratelimited_executor.simulation.report.units import round_ticks, unit_for

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ratelimited_executor.simulation.sweeps import Configuration, Sweep

__all__ = ["answer_of", "write_sweep_page"]

_STYLE: Final = """<style>
.answer { font-size: 18px; font-weight: 600; margin: 0; }
.sliders { display: grid; grid-template-columns: max-content 1fr minmax(80px, max-content); gap: 8px 16px; align-items: center; }
.sliders output { font-weight: 600; } input[type=range] { width: 100%; accent-color: var(--accent); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 16px 0 0; } dd { margin: 0; font-weight: 600; }
.kept { color: var(--good); } .missed { color: var(--bad); }
table.map td { text-align: center; padding: 6px 10px; min-width: 64px; cursor: pointer; border: 1px solid var(--paper); }
table.map th, table.map td { white-space: nowrap; } table.map th { padding: 6px 10px; } table.map td.chosen { outline: 3px solid var(--accent); outline-offset: -3px; }
table.map td[data-kept=no] { text-decoration: line-through; }
table.map td.missed { font-weight: 600; color: var(--ink); }
svg { width: 100%; height: 380px; font: 12px system-ui, sans-serif; } svg text { fill: var(--soft); }
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
  const kept = (cell) => cell.kept === cell.runs ? "kept" : cell.missed.some((is) => is) ? "missed" : "undecided";
  const sliders = names.map((name, n) => {
    const values = data.grid[name];
    const input = node("input", {type: "range", min: 0, max: values.length - 1, step: 1, id: "set-" + n});
    const shown = node("output", {for: "set-" + n});
    const label = node("label", {for: "set-" + n}, name);
    at("sliders").append(label, input, shown);
    input.addEventListener("input", () => { index[n] = Number(input.value); show(); });
    return {input, shown, values};
  });
  const select = (id, options, chosen) => {
    options.forEach((option) => at(id).append(node("option", {}, option)));
    at(id).selectedIndex = Math.min(chosen, options.length - 1);
    at(id).addEventListener("change", () => show());
    return at(id);
  };
  const figures = select("figure", data.figures.map((each) => each.name), 0);
  const axes = [select("across", names, 0), select("down", names, 1)];
  const shade = (value, {least, most}) => {
    const part = most > least ? (value - least) / (most - least) : 0;
    return `color-mix(in srgb, var(--bad) ${Math.round(55 * Math.sqrt(part))}%, var(--paper))`;
  };
  const drawMap = () => {
    const [across, down] = axes.map((axis) => axis.selectedIndex), nth = figures.selectedIndex;
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
        const drawn = node("td", {"data-kept": kept(cell) === "kept" || !data.hasObjectives ? "yes" : "no",
          class: (is ? "chosen " : "") + (cell.missed[nth] ? "missed" : "")}, cell.short[nth] + (cell.undecided[nth] ? ", not decided" : ""));
        if (cell.values[nth] !== null) drawn.style.background = shade(cell.values[nth], data.figures[nth]);
        drawn.addEventListener("click", () => { where.forEach((each, n) => { index[n] = each; }); show(); });
        line.append(drawn);
      });
      return line;
    });
    at("map").replaceChildren(head, ...body);
  };
  const drawPrices = () => {
    const svg = at("price");
    if (!svg) return;
    const nth = figures.selectedIndex, figure = data.figures[nth], costs = data.costTicks, values = figure.ticks;
    const [width, height, left, right, top, low] = [Math.max(svg.clientWidth, 280), 380, 70, 30, 32, 48];
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const along = (value, ticks, from, to) =>
      from + (value - ticks[0][0]) / (ticks[ticks.length - 1][0] - ticks[0][0]) * (to - from);
    const x = (cost) => along(cost, costs, left, width - right), y = (value) => along(value, values, height - low, top);
    const parts = values.flatMap(([value, text]) => [
      node("line", {x1: left, x2: width - right, y1: y(value), y2: y(value)}),
      node("text", {x: left - 8, y: y(value) + 4, "text-anchor": "end", class: "tick"}, text)]);
    const every = Math.ceil(costs.length * 64 / (width - left - right));
    costs.forEach(([cost, text], n) => {
      parts.push(node("line", {x1: x(cost), x2: x(cost), y1: height - low, y2: height - low + 5}));
      if (n % every === 0) parts.push(node("text", {x: x(cost), y: height - low + 20, "text-anchor": "middle", class: "tick"}, text));
    });
    parts.push(node("text", {x: width - right, y: height - 6, "text-anchor": "end"}, "cost, in the unit of the prices"));
    parts.push(node("text", {x: 4, y: 14, class: "of"}, figure.name));
    parts.push(node("polyline", {points: figure.frontier.map((n) => `${x(data.cells[n].cost)},${y(data.cells[n].values[nth])}`).join(" ")}));
    data.cells.forEach((cell) => {
      if (cell.values[nth] === null) return;
      const is = cell === found(index);
      const dot = node("circle", {cx: x(cell.cost), cy: y(cell.values[nth]), r: is ? 8 : 5, class: (data.hasObjectives ? kept(cell) : "") + (is ? " chosen" : "")});
      dot.append(node("title", {}, cell.name + ": " + cell.texts[nth]));
      dot.addEventListener("click", () => { cell.at.forEach((each, m) => { index[m] = each; }); show(); });
      parts.push(dot);
    });
    svg.replaceChildren(...parts);
    at("price-of-title").textContent = "Cost and " + figure.name;
  };
  const show = () => {
    sliders.forEach(({input, shown, values}, n) => { input.value = index[n]; shown.textContent = values[index[n]]; });
    const cell = found(index);
    const list = cell.figures.flatMap(([name, text]) => [node("dt", {}, name), node("dd", {}, text)]);
    if (data.hasObjectives) list.unshift(node("dt", {}, "objectives"),
      node("dd", {class: kept(cell)}, `kept in ${cell.kept} of ${cell.runs} runs` + (cell.undecided.some((is) => is) ? ", not decided as the run is too short" : "")));
    at("figures").replaceChildren(...list);
    at("map-of-title").textContent = data.figures[figures.selectedIndex].name;
    drawMap();
    drawPrices();
  };
  addEventListener("resize", drawPrices);
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
    shown = found.shown_figures
    of = "" if len(shown) > 1 else " hidden"
    selects = (
        f'<p><span{of}>Figure <select id="figure"></select>. </span>'
        'Across <select id="across"></select>, down <select id="down"></select>.'
    )
    struck = " What is struck through does not keep every objective" if found.has_objectives else ""
    if struck:
        struck += "; what is bold does not keep this one." if len(shown) > 1 else "."
    line = "" if found.given else " The line joins what no other betters in both."
    body = [
        _STYLE,
        f'<header><h1>{escape(question)}</h1><p class="lead">{escape(lead)}</p></header>',
        section("answer", "Answer", f'<p class="answer">{escape(answer_of(found))}</p>{notes_html(found.notes)}'),
        section("if", "What if", '<div class="sliders" id="sliders"></div><dl id="figures"></dl>'),
        section(
            "map-of", shown[0], f'{selects}{struck}</p><div class="wide"><table class="map" id="map"></table></div>'
        ),
        section(
            "price-of",
            "Cost",
            f'<svg id="price" role="img"></svg><p class="note">Each dot is a configuration.{line}</p>',
        )
        if found.has_cost
        else "",
        section("all", "All configurations", f'{_table(found)}<p class="note">{escape(found.shortcut)}</p>'),
        section("theory", "Check by queueing theory", _theory(found)) if found.expected_waits else "",
        section("given", "Assumptions", _assumptions(found)),
        f'<script type="application/json" id="sweep">{script_json(_data(found))}</script>',
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
    best = found.best
    if best is None:
        return "No run has ended."
    if not found.has_objectives:
        interval = interval_text(found.figure, best.estimate(found.figure))
        return f"The least {found.figure}, {interval}: {best}{_losses(found, best)}. With objectives in the scenario, the cheapest that keeps them is named."
    if not best.is_kept:
        count = len([each for each in found.choices if each.runs])
        kept = "; ".join(f"{name}: kept by {number} of {count}" for name, number in found.keepers.items())
        undecided = sum(bool(each.undecided) and not each.missed for each in found.choices)
        longer = (
            f" {undecided} of {count} are not decided, as the run is too short: give more days." if undecided else ""
        )
        return f"No configuration keeps every objective in every run: widen the ranges, or the objectives. {kept}.{longer} {_nearest(found, best)}"
    what = "The cheapest configuration" if found.has_cost else "The first configuration"
    names = [*(["cost"] if found.has_cost else []), *found.shown_figures]
    figures = "; ".join(f"{name} {interval_text(name, best.estimate(name))}" for name in names)
    return f"{what} that keeps every objective in all of its {len(best.runs)} runs: {best}; {figures}{_losses(found, best)}.{_edges(found, best)}"


def _nearest(found: Sweep, best: Configuration) -> str:
    """Return what the configuration that is nearest to keeping its objectives costs, what it misses, and when."""
    cost = f", cost {interval_text('cost', best.estimate('cost'))}" if found.has_cost else ""
    told = []
    for name in [*best.missed, *best.undecided]:
        runs = [run for run in best.runs.values() if name in (*run.missed, *run.undecided)]
        what = "missed" if name in best.missed else "not decided"
        worst = max(runs, key=lambda run: run.figures[name])
        at = f", the worst in the period from {_moment(worst.worst_at[name])}" if name in worst.worst_at else ""
        estimate = interval_text(name, best.estimate(name))
        told.append(f"{name} {estimate}, {what} in {len(runs)} of {len(best.runs)} runs{at}")
    return f"The nearest: {best}{cost}{''.join(f'; {each}' for each in told)}{_losses(found, best)}."


def _losses(found: Sweep, best: Configuration) -> str:
    """Return how many jobs a configuration loses, as no objective counts them; empty if none."""
    lost = [(name, each) for name in found.losses if (each := best.estimate(name)).mean]
    return "".join(f"; {name} {interval_text(name, each)}" for name, each in lost)


def _moment(seconds: float) -> str:
    return f"{format_duration(seconds)} on" if seconds else "the start on"


def _edges(found: Sweep, chosen: Configuration) -> str:
    """Return a warning if the answer is at the edge of what was tried; empty if it is not."""
    edges = [f"{name}={chosen.settings[name]} is the {which}" for name, which in found.edges.items()]
    return f" Beyond what was tried there may be a better one: {', '.join(edges)}." if edges else ""


def _table(found: Sweep) -> str:
    columns = columns_of(found)
    rows = [[text(each) for _, text in columns] for each in found.configurations]
    headings = [heading for heading, _ in columns]
    caption = f"Differences are from {found.best}" if DIFFERENCE in headings else ""
    return table(headings, rows, caption=caption)


def _theory(found: Sweep) -> str:
    """Return the mean waits beside those of Erlang's formula."""
    rows = []
    for each in found.configurations:
        if str(each) not in found.expected_waits:
            continue
        kind, expected = found.expected_waits[str(each)]
        figure = f"wait of {kind}, mean"
        rows.append([str(each), figure_text(figure, expected), interval_text(figure, each.estimate(figure))])
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
    names = [name for name in found.figures if name != "cost" or found.has_cost]
    first = found.configurations[0]
    chosen = first if found.best is None else found.counterpart(first, found.best)
    costs = _means(found, "cost") or [0.0]
    return {
        "grid": {name: [str(value) for value in values] for name, values in found.axes.items()},
        "chosen": {name: str(value) for name, value in chosen.settings.items()},
        "figures": [_figure(found, name) for name in found.shown_figures],
        "hasObjectives": found.has_objectives,
        "costTicks": round_ticks(min(costs), max(costs)),
        "cells": [_cell(found, each, names) for each in found.configurations],
    }


def _means(found: Sweep, figure: str) -> list[float]:
    """Return the means of a figure, of all configurations that have it."""
    return [each.estimate(figure).mean for each in found.configurations if each.values(figure)]


def _figure(found: Sweep, name: str) -> dict[str, Any]:
    """Return what the script shows of a figure: its range, ticks, and the configurations that no other betters."""
    values = _means(found, name) or [0.0]
    least, most = min(values), max(values)
    frontier = [] if found.given else [found.configurations.index(each) for each in found.frontier_of(name)]
    ticks = round_ticks(least, most, unit_for(most) if is_duration(name) else None)
    return {"name": name, "least": least, "most": most, "ticks": ticks, "frontier": frontier}


def _cell(found: Sweep, each: Configuration, names: Sequence[str]) -> dict[str, Any]:
    """Return what the script shows of a configuration, the figures shown in their order."""
    shown, missed, undecided = found.shown_figures, each.missed, each.undecided
    means = [each.estimate(name).mean for name in ("cost", *shown)]
    cost, *values = [None if math.isnan(mean) else mean for mean in means]
    return {
        "name": str(each),
        "at": [found.axes[name].index(value) for name, value in each.settings.items()],
        "values": values,
        "cost": cost,
        "short": [figure_text(name, mean) for name, mean in zip(shown, means[1:], strict=True)],
        "texts": [interval_text(name, each.estimate(name)) for name in shown],
        "missed": [name in missed for name in shown],
        "undecided": [name in undecided for name in shown],
        "kept": each.kept_count,
        "runs": len(each.runs),
        "figures": [(name, interval_text(name, each.estimate(name))) for name in names],
    }
