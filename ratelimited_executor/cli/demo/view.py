"""The live view of a running half: the server's arrivals per second, and the waiting deliveries by priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ratelimited_executor.cli.screen import block_for, print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LiveView", "PlainView", "SilentView", "View", "bar"]

BAR_WIDTH: Final = 40
# Seconds shown at a time, so that the view fits a terminal of 24 lines.
SECONDS_SHOWN_MAX: Final = 14


def bar(count: int, *, scale: int, width: int = BAR_WIDTH, block: str = "█") -> str:
    """Draw a count as a bar; a full bar is ``scale``, and a longer bar is cut and ends with ``>``.

    >>> bar(100, scale=200, width=10, block="#"), bar(500, scale=200, width=10, block="#")
    ('#####', '#########>')
    """
    length = round(width * count / max(scale, 1))
    return block * length if length <= width else block * (width - 1) + ">"


class View(Protocol):
    """Shows a half while it runs."""

    every_s: float

    def begin(self, title: str) -> None:
        """Announce a half."""
        ...

    def show(self, seconds: Sequence[int], waiting: dict[int, int]) -> None:
        """Show the server's counts by second (the last is incomplete), and the due unsent deliveries by priority."""
        ...

    def end(self) -> None:
        """End a half."""
        ...


class SilentView:
    """Shows nothing."""

    every_s = 0.5

    def begin(self, title: str) -> None:
        """Do nothing."""

    def show(self, seconds: Sequence[int], waiting: dict[int, int]) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class PlainView:
    """Prints a line for each past second, for logs and pipes."""

    every_s = 0.25

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0

    def begin(self, title: str) -> None:
        """Print the title."""
        self._printed = 0
        self._print(title)

    def show(self, seconds: Sequence[int], waiting: dict[int, int]) -> None:
        """Print the seconds that ended since the last call."""
        for second in range(self._printed, len(seconds) - 1):
            waits = ", ".join(f"{count} of priority {priority}" for priority, count in waiting.items() if count)
            self._print(f"  second {second:2}: {seconds[second]:5} arrived; waiting: {waits or 'none'}")
        self._printed = max(self._printed, len(seconds) - 1)

    def end(self) -> None:
        """Do nothing."""

    def _print(self, text: str) -> None:
        print_line(self._console, text)


class LiveView:
    """Redraws bars in place on a terminal of 80 columns or more; it draws in the event loop, without a thread.

    Args:
        console: the terminal.
        rate: the value of a full bar.
    """

    every_s = 0.25

    def __init__(self, console: Console, *, rate: int) -> None:
        self._console = console
        self._rate = rate
        self._title = ""
        self._live: Live | None = None

    def begin(self, title: str) -> None:
        """Open the view."""
        self._title = title
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, seconds: Sequence[int], waiting: dict[int, int]) -> None:
        """Redraw it."""
        if self._live is not None:
            self._live.update(self.draw(seconds, waiting), refresh=True)

    def end(self) -> None:
        """Remove the view."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def draw(self, seconds: Sequence[int], waiting: dict[int, int]) -> RenderableType:
        """Return one frame of the view."""
        table = Table(box=None, show_header=False, pad_edge=False)
        block = block_for(self._console)
        for second in range(max(0, len(seconds) - SECONDS_SHOWN_MAX), len(seconds)):
            style = "red" if seconds[second] > self._rate * 1.05 else "green"
            drawn = Text(bar(seconds[second], scale=self._rate, block=block), style=style)
            table.add_row(f"second {second:2}", f"{seconds[second]:5}", drawn)
        backlog = sum(waiting.values())
        waits = ", ".join(f"{priority}: {count:,}" for priority, count in waiting.items())
        foot = f"due and waiting: {backlog:5,} ({backlog / self._rate:.1f} s)   by priority: {waits}"
        return Group(Text(self._title, style="bold"), table, Text(foot))
