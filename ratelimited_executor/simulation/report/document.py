"""The parts of a report page: the document around it, its colours, and plots that follow them."""

from __future__ import annotations

import json
from html import escape
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "GREY",
    "alert",
    "axis",
    "document",
    "layout",
    "notes_html",
    "plot_html",
    "row_html",
    "script_json",
    "section",
    "table",
    "table_html",
]

GREY: Final = "#8a8f98"
_TITLE_CHARACTERS: Final = 36  # of a line of the title of an axis: what fits on a phone

# Colours by name, light and dark, and the style of every page.
_THEME: Final = """
:root { color-scheme: light dark; --paper: #ffffff; --ground: #f4f5f7; --ink: #22262e; --soft: #5c6370; --grid: #d9dce2;
  --accent: #2b62ad; --good: #1f7a47; --bad: #b3261e; --bad-ground: #fdeceb; --wait: #8a5a00; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #1c1f26; --ground: #14161b; --ink: #e4e6ea; --soft: #a2a8b4; --grid: #3a3f4a;
    --accent: #82b1f5; --good: #6fcf97; --bad: #ff8f86; --bad-ground: #3a2022; --wait: #f0b95a; } }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
p.lead { color: var(--soft); margin: 0 0 20px; }
* { box-sizing: border-box; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 0 0 10px; }
section { background: var(--paper); border: 1px solid var(--grid); border-radius: 8px; padding: 18px 20px;
  margin: 0 0 18px; position: relative; }
.beside { display: grid; gap: 0 18px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.beside section { min-width: 0; }
button { position: absolute; top: 16px; right: 20px; font: inherit; font-size: 13px; padding: 2px 12px; cursor: pointer;
  color: var(--ink); background: transparent; border: 1px solid var(--grid); border-radius: 12px; }
button[aria-pressed=true] { color: var(--paper); background: var(--accent); border-color: var(--accent); }
figure { margin: 0; }
.plotly-graph-div { min-width: 680px; }
figcaption { color: var(--soft); font-size: 13px; margin-top: 8px; overflow-wrap: anywhere; }
.alert { background: var(--bad-ground); border: 1px solid var(--bad); border-left-width: 6px; border-radius: 6px;
  padding: 10px 14px; margin: 0 0 18px; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); font-size: 13px; padding-bottom: 6px; }
th, td { padding: 4px 22px 4px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid);
  overflow-wrap: anywhere; }
th { font-weight: 600; }
tbody th { font-weight: 400; color: var(--soft); white-space: nowrap; }
table.numbers td { white-space: nowrap; }
table.numbers thead th { overflow-wrap: break-word; } table.numbers thead th + th { min-width: 110px; }
table.numbers td, table.numbers thead th + th { text-align: right; padding: 4px 10px 4px 28px; }
table.runs td { min-width: 140px; max-width: 520px; }
tr:last-child > * { border-bottom: 0; }
tr.differs td { background: color-mix(in srgb, var(--accent) 10%, transparent); }
.status { font-weight: 600; } .finished { color: var(--good); } .failed, .interrupted { color: var(--bad); }
.running { color: var(--wait); }
.outcome { font-weight: 600; margin: 0 0 18px; }
p.note { color: var(--soft); font-size: 13px; margin: 10px 0 0; }
details { margin-top: 14px; } summary { cursor: pointer; color: var(--accent); margin-bottom: 8px; }
code { font: 13px/1.5 ui-monospace, monospace; }
@media (max-width: 600px) { main { padding: 16px 10px 40px; } section { padding: 14px 12px; }
  .plotly-graph-div { min-width: 0; }
  table.numbers:has([data-label]) :is(thead) { display: none; }
  table.numbers:has([data-label]), table.numbers:has([data-label]) :is(caption, tbody, tr, th, td) { display: block; }
  table.numbers:has([data-label]) tr { padding: 6px 0; border-bottom: 1px solid var(--grid); }
  table.numbers:has([data-label]) :is(th, td) { border: 0; padding: 1px 0; white-space: normal; }
  table.numbers:has([data-label]) tbody th { color: var(--ink); font-weight: 600; }
  table.numbers td[data-label] { display: flex; justify-content: space-between; gap: 16px; }
  table.numbers td[data-label]::before { content: attr(data-label); color: var(--soft); text-align: left; max-width: 62%; }
  table.numbers th[data-label]:not([data-label=""])::before { content: attr(data-label) ": "; color: var(--soft); font-weight: 400; } }
"""
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
_CONFIG: Final = {"responsive": True, "displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}
_SCRIPT: Final = """
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paint = () => {
    const style = getComputedStyle(document.documentElement);
    const [ink, grid, paper] = ["--ink", "--grid", "--paper"].map((name) => style.getPropertyValue(name).trim());
    for (const plot of document.querySelectorAll(".js-plotly-plot")) {
      const change = {"font.color": ink, "paper_bgcolor": paper, "plot_bgcolor": paper,
        "hoverlabel.bgcolor": paper, "hoverlabel.font.color": ink};
      for (const axis of ["xaxis", "yaxis"]) {
        change[axis + ".gridcolor"] = grid;
        change[axis + ".linecolor"] = grid;
      }
      Plotly.relayout(plot, change);
    }
  };
  for (const button of document.querySelectorAll("button[data-plot]")) {
    button.addEventListener("click", () => {
      const isLog = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", isLog);
      const change = {"yaxis.type": isLog ? "log" : "linear", "yaxis.autorange": true};
      Plotly.relayout(button.dataset.plot, change);
    });
  }
  dark.addEventListener("change", paint);
  paint();
})();
"""


def document(title: str, *, body: Sequence[str], has_plots: bool = True) -> str:
    """Return a page as one self-contained document that makes no requests.

    Args:
        title: the title of the window, as text.
        body: pieces of HTML, one below the other; empty ones are left out.
        has_plots: True if any piece is a plot; plots follow the colours of the page.
    """
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(title)}</title>",
        f"<style>{_THEME}</style>",
        "</head>",
        "<body><main>",
        *body,
        f"</main><script>{_SCRIPT if has_plots else ''}</script></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def section(key: str, title: str, body: str) -> str:
    """Return a section of a page, with a title; the body is HTML."""
    return f'<section aria-labelledby="{key}-title"><h2 id="{key}-title">{escape(title)}</h2>\n{body}</section>'


def alert(what: str, text: str) -> str:
    """Return a prominent notice, whose first words are bold."""
    return f'<p class="alert" role="alert"><strong>{escape(what)}</strong> {escape(text)}</p>'


def notes_html(notes: Iterable[str]) -> str:
    """Return what a reader must know before believing the figures, a line each; empty if there is nothing."""
    return "".join(f'<p class="note">Note: {escape(note)}.</p>' for note in notes)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "numbers", caption: str = "") -> str:
    """Return a table of texts, each row with a heading; without headings if all are empty."""
    labels = headings if any(headings) else ()
    body = "".join(row_html(escape(first), map(escape, cells), labels=labels) for first, *cells in rows)
    return table_html(headings, body, kind=kind, caption=caption)


def table_html(headings: Sequence[str], body: str, *, kind: str, caption: str = "") -> str:
    """Return a table whose rows are HTML."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    head = f"<thead><tr>{head}</tr></thead>" if any(headings) else ""
    about = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="wide"><table class="{kind}">{about}{head}\n<tbody>{body}</tbody></table></div>'


def row_html(heading: str, cells: Iterable[str], attributes: str = "", *, labels: Sequence[str] = ()) -> str:
    """Return a row of a table; heading and cells are HTML.

    Args:
        heading: the heading of the row.
        cells: its cells.
        attributes: those of the row.
        labels: the headings of all columns, which a phone shows beside each cell; none for none.
    """
    first, *marks = [f' data-label="{escape(label)}"' for label in labels] or [""]
    body = "".join(f"<td{mark}>{cell}</td>" for cell, mark in zip_longest(cells, marks, fillvalue=""))
    return f'<tr{attributes}><th scope="row"{first}>{heading}</th>{body}</tr>'


def script_json(value: Any) -> str:
    r"""Return a value as JSON that no browser takes for the end of the script that contains it.

    >>> script_json({"name": "</script>"})
    '{"name":"\\u003c/script>"}'
    """
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def layout(height: int = 400, **more: Any) -> dict[str, Any]:
    """Return the layout of a figure of plotly, as all pages have it."""
    return {
        "height": height,
        "margin": {"l": 70, "r": 20, "t": 16, "b": 50},
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"align": "left", "namelength": 60},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": "#3b76c4"},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.22, "yanchor": "top"},
        **more,
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis of a figure of plotly, as all pages have it."""
    return {
        "title": {"text": "<br>".join(wrap(title, _TITLE_CHARACTERS)), "standoff": 12},
        "zeroline": False,
        "showline": True,
        "ticks": "outside",
        "automargin": True,
        **more,
    }


def plot_html(figure: dict[str, Any], key: str, *, with_plotly: bool) -> str:
    """Return a figure of plotly as a piece of HTML.

    Args:
        figure: data and layout; the layout sets the height.
        key: the name of the figure on its page.
        with_plotly: True to include plotly's JavaScript, which a page needs once, before the first plot.
    """
    import plotly.io  # type: ignore[import-untyped]  # noqa: PLC0415  # ships no types; an extra, imported on use

    drawn = plotly.io.to_html(
        figure,
        config=_CONFIG,
        include_plotlyjs=with_plotly,
        include_mathjax=False,
        full_html=False,
        div_id=f"plot-{key}",
        default_width="100%",
        default_height=f"{figure['layout']['height']}px",
        validate=False,
    )
    return f'<div class="wide">{drawn}</div>'
