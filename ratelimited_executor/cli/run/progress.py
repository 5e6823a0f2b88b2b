"""The progress of a run, on standard error: a bar on a terminal, otherwise a plain line every few seconds."""

from __future__ import annotations

import asyncio
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from rich.progress import BarColumn, Progress, TextColumn

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.cli.screen import print_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

__all__ = ["Bar", "PlainLines", "ProgressView", "Snapshot", "describe", "expected_seconds", "show_progress"]

BAR_EVERY_S: Final = 0.2
LINE_EVERY_S: Final = 5.0
BAR_WIDTH: Final = 6  # columns that the bar keeps, with the space beside it, on a narrow terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a run at one moment.

    Attributes:
        finished: lines in a final state.
        total: the number of all lines; None if unknown.
        unwell: lines in a final state other than done.
        running: running calls.
        waiting: lines taken and not started.
        rate: recent starts a second.
        backlog: seconds of due work that waits for the rate.
        seconds_left: the expected time left; None if unknown.
        is_stopping: True if a stop was ordered.
    """

    finished: int
    total: int | None
    unwell: int
    running: int
    waiting: int
    rate: float
    backlog: float
    seconds_left: float | None
    is_stopping: bool = False


def expected_seconds(*, left: int | None, limit: float, recent: float, last_due_in: float) -> float | None:
    """Estimate the time left of a run.

    Args:
        left: lines without a final state; None if unknown.
        limit: the allowed rate in starts a second; infinite without a limit.
        recent: the recent rate; it counts if there is no limit, or if the target does not keep up with the limit.
        last_due_in: seconds until the last known due time; may be negative.
    """
    if left is None:
        return None
    pace = min(limit, recent) if recent > 0 else limit
    if left and (pace <= 0 or math.isinf(pace)):
        return None
    return max(left / pace if left else 0.0, last_due_in, 0.0)


def describe(snapshot: Snapshot, width: float = math.inf) -> str:
    """Return a snapshot as one plain line of at most ``width`` characters if that is enough for what matters most."""
    count, total = f"{snapshot.finished:,}", snapshot.total
    left = None if snapshot.seconds_left is None else format_duration(snapshot.seconds_left)
    end = "" if left is None else f"ends in {left}"
    parts = {
        "count": f"{count} lines" if total is None else f"{count} of {total:,} lines",
        "unwell": f"{snapshot.unwell:,} failed or expired" if snapshot.unwell else "",
        "rate": f"{snapshot.rate:,.1f}/s",
        "running": f"{snapshot.running:,} running",
        "backlog": f"backlog {format_duration(snapshot.backlog)}" if snapshot.backlog >= 0.05 else "",
        "end": "stopping" if snapshot.is_stopping else end,
    }
    shorter = {  # the least important first
        "backlog": "",
        "running": "",
        "unwell": f"{snapshot.unwell:,} went wrong" if snapshot.unwell else "",
        "count": f"{count} lines" if not total else f"{100 * snapshot.finished // total}%",
        "rate": "",
        "end": "stopping" if snapshot.is_stopping else f"{left} left" if left else "",
    }
    while len(line := ", ".join(filter(None, parts.values()))) > width and shorter:
        name = next(iter(shorter))
        parts[name] = shorter.pop(name)
    return line


class ProgressView(Protocol):
    """Shows snapshots."""

    every_s: float

    def show(self, snapshot: Snapshot) -> None:
        """Show the newest snapshot."""
        ...

    def close(self) -> None:
        """Restore the terminal."""
        ...


class PlainLines:
    """Prints one line every few seconds, for logs and pipes."""

    every_s = LINE_EVERY_S

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, snapshot: Snapshot) -> None:
        """Print the snapshot."""
        print_line(self._console, describe(snapshot))

    def close(self) -> None:
        """Do nothing: printed lines stay."""


class Bar:
    """A progress bar on a terminal, redrawn in the run's event loop without a thread."""

    def __init__(self, console: Console) -> None:
        self.every_s = BAR_EVERY_S
        # The target's output must go to standard output if that is a file; rich would print it above the bar.
        both_terminals = sys.stdout.isatty()
        self._progress = Progress(
            BarColumn(bar_width=None),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            auto_refresh=False,
            expand=True,
            transient=True,
            redirect_stdout=both_terminals,
        )
        self._task = self._progress.add_task("run", total=None, text="")
        self._progress.start()

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the bar."""
        self._progress.update(
            self._task,
            completed=snapshot.finished,
            total=snapshot.total,
            text=describe(snapshot, self._progress.console.width - BAR_WIDTH),
            refresh=True,
        )

    def close(self) -> None:
        """Remove the bar; the summary has its content."""
        self._progress.stop()


async def show_progress(view: ProgressView, snapshot: Callable[[], Snapshot]) -> None:
    """Show a snapshot at intervals, until cancelled."""
    while True:
        await asyncio.sleep(view.every_s)
        view.show(snapshot())
