"""The report of simulation runs: a self-contained page of tables and plots, and plots as pictures."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ratelimited_executor.simulation.report.level_plots import make_level_plots
from ratelimited_executor.simulation.report.overview import save_overview
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
    """Write the report of a run, or a comparison of several runs with their lines in the same plots.

    The page is self-contained, with plotly's JavaScript, and makes no requests. The databases are only read, even while
    their runs continue.

    Args:
        databases: files written by simulations, at least one.
        page: the HTML file to write; its directory is created if it does not exist.
        pictures: a directory for the same plots as PNG files, and for ``overview.png`` with all of up to 12 compared
            runs beside each other; None for none.

    Returns:
        The written files, the page first.

    Raises:
        FileNotFoundError: if a database does not exist.
        ImportError: if the extra ``simulate`` is not installed.
        TypeError: if ``databases`` is one path instead of a sequence of paths.
        ValueError: if there is no database, or this version cannot read a file.
    """
    if isinstance(databases, (str, bytes, os.PathLike)):
        raise TypeError(f"databases must be a sequence of paths, got {databases!r}: write [{databases!r}]")
    if not databases:
        raise ValueError("databases must hold one path at least, got none")
    _check_extra("plotly")
    if pictures is not None:
        _check_extra("matplotlib")
    runs = read_runs(databases)
    all_plots = [*make_plots(runs), *make_level_plots(runs)]
    plots = [plot for plot in all_plots if has_something_to_show(plot)]
    flat = [plot.title for plot in all_plots if not has_something_to_show(plot)]
    target = Path(page)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render(runs, plots, flat), encoding="utf-8")
    if pictures is None:
        return [target]
    overview = save_overview(all_plots, [run.label for run in runs], Path(pictures))
    saved = [save_picture(plot, Path(pictures)) for plot in plots]
    return [target, *([] if overview is None else [overview]), *saved]


def _check_extra(module: str) -> None:
    """Refuse to begin if a required module is missing."""
    try:
        is_there = find_spec(module) is not None
    except ValueError:  # sys.modules marks it as not importable
        is_there = False
    if not is_there:
        raise ImportError(f"write_report needs {module}, of the extra: pip install 'ratelimited-executor[simulate]'")
