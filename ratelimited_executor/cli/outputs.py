"""The files a run writes: opened, and refused, before anything is read.

Nothing that an earlier run left is overwritten: its results are a record, its remaining lines are work still to do.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ratelimited_executor.cli.exits import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratelimited_executor.cli.inputs import LineSource

__all__ = ["open_output", "write_remaining"]


def open_output(option: str, path: str, *, source: LineSource, append: bool = False) -> BinaryIO:
    """Open a file for writing; ``-`` is standard output.

    Args:
        option: the option that named the file, for the message.
        path: the file; made if it is not there.
        source: the input, which must be another file.
        append: add to a file that is not empty instead of refusing it.

    Raises:
        CommandError: if the file cannot be written, is the input, or holds something and ``append`` is False.
    """
    if path == "-":
        return sys.stdout.buffer
    if source.is_same_file(path):
        raise CommandError(f"{option} {path!r} is the input itself; name another file")
    try:
        file = Path(path).open("ab")  # noqa: SIM115  # closed by the command, which may end in several ways
    except OSError as error:
        raise CommandError(f"{option} {path!r} cannot be written: {error.strerror}") from error
    if not append and file.seekable() and os.fstat(file.fileno()).st_size:
        file.close()
        remedy = " or pass --append" if option == "--results" else ""
        raise CommandError(f"{option} {path!r} is not empty, an earlier run may need it; name another file{remedy}")
    return file


def write_remaining(file: BinaryIO | None, blocks: Iterable[bytes]) -> int:
    """Write lines that were not started, in their order, and count them.

    Args:
        file: where to; None only counts.
        blocks: raw lines or blocks of raw lines, in the order of the input.

    Raises:
        OSError: if the file cannot take them.
    """
    count, last = 0, b"\n"
    for block in blocks:
        if block:
            count += block.count(b"\n")
            last = block[-1:]
            if file is not None:
                file.write(block)
    if file is not None:
        file.flush()
    return count + (last != b"\n")
