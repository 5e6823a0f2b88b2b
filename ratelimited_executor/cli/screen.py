"""The consoles of commands: standard output, and standard error for a run, which may outlive its terminal and its reader."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final, cast

from rich.console import Console
from rich.measure import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.console import ConsoleOptions, RenderableType
    from rich.table import Table

__all__ = ["Fitting", "block_for", "console_of", "print_line", "screen_of_stderr", "warn"]

_PLAIN_WIDTH: Final = 1000  # for a pipe, so that nothing is cut off


def console_of(given: Console | None) -> Console:
    """Return the console that a command prints on: the given one, or standard output; in a pipe, no table is cut off."""
    console = given or Console(emoji=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    return console


def print_line(console: Console, text: str) -> None:
    """Print a text as it is, in one line if it has no line breaks."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr)  # noqa: T201  # no console, which would break it


def screen_of_stderr() -> Console:
    """Return a console on standard error that drops output to a closed pipe or a closed terminal."""
    return Console(file=None if sys.stderr is None else cast("IO[str]", _Patient(sys.stderr)), stderr=True, emoji=False)


class Fitting:
    """A table where it fits, and something else where its cells would be broken.

    Args:
        table: the table.
        narrow: what stands in its place on a narrower screen.
        more: what follows the table.
    """

    def __init__(self, table: Table, narrow: RenderableType, *more: RenderableType) -> None:
        self._table = table
        self._narrow = narrow
        self._more = more

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        wanted = Measurement.get(console, options.update(max_width=_PLAIN_WIDTH), self._table).maximum
        if wanted > options.max_width:
            yield self._narrow
        else:
            yield self._table
            yield from self._more


class _Patient:
    """A stream that discards all output after its first failure."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._silence()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._silence()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _silence(self) -> None:
        """Redirect the descriptor to the null device; else the rest of the stream's buffer would fail again at exit."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def block_for(console: Console) -> str:
    """Choose a block for bars that the terminal's encoding has."""
    return "█" if console.encoding.lower().startswith("utf") else "#"
