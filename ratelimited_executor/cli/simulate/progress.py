"""The progress of simulations: a bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.cli.screen import print_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from ratelimited_executor.simulation import RunProgress

__all__ = ["describe_run", "show_runs"]

_LINE_SECONDS: Final = 5.0  # between two lines without a terminal


def describe_run(progress: RunProgress) -> str:
    """Return the progress of a run as text."""
    past = "making the past again, " if progress.is_replaying else ""
    return (
        f"{past}{format_duration(progress.seconds)} of {format_duration(progress.total)}, {progress.jobs:,} jobs, "
        f"{progress.speed:,.0f} x real time"
    )


@contextmanager
def show_runs(console: Console, name: str, *, is_quiet: bool) -> Iterator[Callable[[float, float, str], None]]:
    """Show progress; yields a function to call with the amount done, the total, and a text."""
    if is_quiet:
        yield lambda *_: None
        return
    if not console.is_terminal:
        last = time.monotonic()

        def show_line(_: float, __: float, text: str) -> None:
            nonlocal last
            if time.monotonic() - last >= _LINE_SECONDS:
                last = time.monotonic()
                print_line(console, f"{name}: {text}")

        yield show_line
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[text]}", markup=False),
        TimeRemainingColumn(),
        console=console,
        auto_refresh=False,
        expand=True,
        transient=True,
    ) as bar:
        task = bar.add_task(name, total=None, text="")
        yield lambda done, total, text: bar.update(task, completed=done, total=total, text=text, refresh=True)
