"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["SectionProgress"]


class SectionProgress:
    """Shows which section is running, and what it is doing.

    Args:
        count: how many sections there are.
    """

    def __init__(self, count: int) -> None:
        self._console = Console(stderr=True)
        self._began = time.monotonic()
        self._name = ""
        self._count = count
        self._done = 0
        # No thread redraws it, since that would run in the middle of a measurement.
        self._bar = Progress(
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("", total=count)
        self._is_bar = sys.stderr.isatty()

    def begin(self, name: str) -> None:
        """Note that a section begins."""
        self._name = name
        self.note("begins")

    def end(self) -> None:
        """Note that the section has ended."""
        self._done += 1
        self.note("done")

    def note(self, text: str, *, part: float = 0.0) -> None:
        """Show what is being done, and how far the section has come."""
        text = f"{self._name}: {text}"
        if self._is_bar:
            self._bar.update(self._task, completed=self._done + part, description=text, refresh=True)
        else:
            print(f"[{time.monotonic() - self._began:7.1f} s] {text}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if self._is_bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_bar:
            self._bar.stop()
