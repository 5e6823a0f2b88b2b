"""The report of simulation runs: a page of tables and plots that needs nothing but itself, and plots as pictures."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ratelimited_executor.simulation.report.page import render
from ratelimited_executor.simulation.report.pictures import save_picture
from ratelimited_executor.simulation.report.plots import has_something_to_show, make_plots
from ratelimited_executor.simulation.report.reading import read_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["write_report"]


def write_report(
    databases: Sequence[str | os.PathLike[str]],
    page: str | os.PathLike[str],
    *,
    pictures: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Write the report of a run, or the comparison of several, whose lines lie over one another.

    The page holds all it needs, plotly's JavaScript included, and asks no host for anything. The databases are only
    read, which may be done while their runs continue.

    Args:
        databases: files that simulations wrote, one at least.
        page: the HTML file to write; its directory is made if it is not there.
        pictures: a directory for the same plots as PNG files; None for none.

    Returns:
        The files that were written: the page first.

    Raises:
        FileNotFoundError: if one of the databases is not there.
        ImportError: if the extra ``simulate`` is not installed.
        TypeError: if ``databases`` is one path and no sequence of paths.
        ValueError: if there is no database, or a file is none that this version can read.
    """
    if isinstance(databases, (str, bytes, os.PathLike)):
        raise TypeError(f"databases must be a sequence of paths, got {databases!r}: write [{databases!r}]")
    if not databases:
        raise ValueError("databases must hold one path at least, got none")
    _check_extra("plotly")
    if pictures is not None:
        _check_extra("matplotlib")
    runs = read_runs(databases)
    all_plots = make_plots(runs)
    plots = [plot for plot in all_plots if has_something_to_show(plot)]
    flat = [plot.title for plot in all_plots if not has_something_to_show(plot)]
    target = Path(page)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render(runs, plots, flat), encoding="utf-8")
    saved = [] if pictures is None else [save_picture(plot, Path(pictures)) for plot in plots]
    return [target, *saved]


def _check_extra(module: str) -> None:
    """Refuse to begin what would end without a module."""
    try:
        is_there = find_spec(module) is not None
    except ValueError:  # it stands in sys.modules as what cannot be imported
        is_there = False
    if not is_there:
        raise ImportError(f"write_report needs {module}, of the extra: pip install 'ratelimited-executor[simulate]'")
