"""Raw lines from a file or a stream, read in blocks outside the event loop, in bounded memory.

A regular file is read as fast as the disk allows. Anything else (pipe, terminal, socket, FIFO) is polled with a
timeout, so that a silent writer never blocks a thread: the command must be able to stop while it waits for input.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.cli.run.decoding import BadLineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

__all__ = ["LineSource", "LineSplitter", "count_lines", "is_file_at", "lines_in"]

# Splitting a block takes the interpreter about 0.3 ms; larger blocks would show in the lateness of starts.
BLOCK_BYTES: Final = 256 * 1024
# A longer line is refused, with its number, so that one line cannot fill the memory.
LINE_BYTES_MAX: Final = 16 * 1024 * 1024
# Timeout of one poll of a silent stream; also the delay before a signal is noticed while waiting for input.
STREAM_POLL_S: Final = 0.2


class LineSplitter:
    """Cuts blocks of bytes into lines, newlines kept; pure."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # the unfinished line; joined once, so that a long line costs linear time
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The number of buffered bytes of an unfinished line."""
        return self._held_bytes

    def feed(self, block: bytes) -> list[bytes]:
        """Return the lines that the block completes."""
        head, newline, rest = block.partition(b"\n")
        if not newline:
            self._hold(block)
            return []
        first = b"".join([*self._parts, head, newline])
        self._parts.clear()
        self._held_bytes = 0
        if not rest:
            return [first]
        pieces = rest.split(b"\n")
        self._hold(pieces.pop())
        return [first, *(piece + b"\n" for piece in pieces)]

    def finish(self) -> list[bytes]:
        """Return the last line if the input did not end with a newline."""
        last = b"".join(self._parts)
        self._parts.clear()
        self._held_bytes = 0
        return [last] if last else []

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._parts.append(piece)
            self._held_bytes += len(piece)


class LineSource:
    """Reads raw lines from a path, or from standard input if the path is ``-``; numbers them from 1.

    Methods that read block, but only for a disk access or ``STREAM_POLL_S``; call them in a worker thread.

    Raises:
        CommandError: if the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == "-" else path
        self._owned = path != "-"
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)) if self._owned else _standard_input()
            self._mode = os.fstat(self._fd).st_mode
            if stat.S_ISDIR(self._mode):
                raise IsADirectoryError(21, "Is a directory")
        except (OSError, ValueError) as error:
            raise CommandError(f"{self.name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
        self._splitter = LineSplitter()
        self._refused: list[bytes] = []  # a line that is too long, and those after it in its block
        self._read_count = 0
        self.at_end = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owned:
            os.close(self._fd)

    @property
    def is_file(self) -> bool:
        """True for a regular file, which can be read to its end at once."""
        return stat.S_ISREG(self._mode)

    @property
    def can_be_counted(self) -> bool:
        """True if the lines can be counted beforehand: for a regular file given by name."""
        return self.is_file and self._owned

    def is_same_file(self, path: str) -> bool:
        """True if a path names the input file itself."""
        return is_file_at(self._fd, path)

    def read(self) -> list[bytes]:
        """Return the next lines; an empty list if none came in time, or at the end (see ``at_end``).

        Raises:
            BadLineError: if a line is longer than ``LINE_BYTES_MAX``; its buffered part goes to :meth:`rest`.
            OSError: if reading fails.
        """
        if self.at_end or not self._is_ready():
            return []
        block = os.read(self._fd, BLOCK_BYTES)
        lines = self._splitter.feed(block) if block else self._splitter.finish()
        self.at_end = not block
        # Blocks are shorter than the limit, so only the first line, or the unfinished one, can be too long.
        length = len(lines[0].removesuffix(b"\n")) if lines else self._splitter.held_bytes
        if length > LINE_BYTES_MAX:
            self._refused = lines
            raise BadLineError(self._read_count + 1, f"longer than {LINE_BYTES_MAX // 1024**2} MiB")
        self._read_count += len(lines)
        return lines

    def rest(self, *, quiet_s: float) -> Iterator[bytes]:
        """Yield the rest of the input as blocks of bytes, beginning with refused lines and a buffered unfinished line.

        A stream is given up after a silence of ``quiet_s`` seconds, because its writer may never end.
        """
        yield from self._refused
        yield from self._splitter.finish()
        silent_since = time.monotonic()
        while not self.at_end:
            if self._is_ready():
                block = os.read(self._fd, BLOCK_BYTES)
                self.at_end = not block
                yield block
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since >= quiet_s:
                return

    def _is_ready(self) -> bool:
        if self.is_file or sys.platform == "win32":  # Windows cannot select on pipes; a read blocks there
            return True
        return bool(select.select([self._fd], [], [], STREAM_POLL_S)[0])


def count_lines(path: str, *, skip_blank: bool, is_wanted: Callable[[], bool] = lambda: True) -> int:
    """Count the lines of a regular file, including a last line without newline.

    Args:
        path: the file, read once from its beginning in blocks.
        skip_blank: True to skip blank lines, as for JSON Lines.
        is_wanted: called before each block; once it returns False, the count so far is returned.
    """
    with Path(path).open("rb", buffering=0) as file:
        blocks = iter(lambda: file.read(BLOCK_BYTES) if is_wanted() else b"", b"")
        return _count_used(blocks) if skip_blank else lines_in(blocks)


def is_file_at(descriptor: int, path: str | Path) -> bool:
    """True if a path names an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), Path(path).stat())
    except OSError:
        return False


def lines_in(blocks: Iterable[bytes]) -> int:
    """Count the lines in blocks of bytes, including a last line without newline."""
    count, last = 0, b"\n"
    for block in blocks:
        if block:
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def _standard_input() -> int:
    if sys.stdin is None:
        raise ValueError("it is closed")
    return sys.stdin.fileno()


def _count_used(blocks: Iterable[bytes]) -> int:
    splitter, total = LineSplitter(), 0
    for block in blocks:
        total += sum(1 for line in splitter.feed(block) if line.strip())
        if splitter.held_bytes > LINE_BYTES_MAX:  # the run refuses the line and ends there
            return total + 1
    return total + sum(1 for line in splitter.finish() if line.strip())
