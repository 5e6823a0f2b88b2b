"""The parts of a report page: the document around it, its colours, and plots that follow them."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["document", "plot_html"]

# Colours by name, light and dark, and the style of every page; a page's own rules follow it.
_THEME: Final = """
:root { color-scheme: light dark; --paper: #ffffff; --ground: #f4f5f7; --ink: #22262e; --soft: #5c6370; --grid: #d9dce2;
  --accent: #2b62ad; --good: #1f7a47; --bad: #b3261e; --bad-ground: #fdeceb; --wait: #8a5a00; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #1c1f26; --ground: #14161b; --ink: #e4e6ea; --soft: #a2a8b4; --grid: #3a3f4a;
    --accent: #82b1f5; --good: #6fcf97; --bad: #ff8f86; --bad-ground: #3a2022; --wait: #f0b95a; } }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
p.lead { color: var(--soft); margin: 0 0 20px; }
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


def document(title: str, *, style: str, body: Sequence[str], has_plots: bool = True) -> str:
    """Return a page as one self-contained document that makes no requests.

    Args:
        title: the title of the window, as text.
        style: the page's own rules, as CSS.
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
        f"<style>{_THEME}{style}</style>",
        "</head>",
        "<body><main>",
        *body,
        f"</main><script>{_SCRIPT if has_plots else ''}</script></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def plot_html(figure: dict[str, Any], key: str, *, with_plotly: bool) -> str:
    """Return a figure of plotly as a piece of HTML.

    Args:
        figure: data and layout; the layout sets the height.
        key: the name of the figure on its page.
        with_plotly: True to include plotly's JavaScript, which a page needs once, before the first plot.
    """
    import plotly.io  # type: ignore[import-untyped]  # noqa: PLC0415  # ships no types; an extra, imported on use

    return str(
        plotly.io.to_html(
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
    )
