"""The folder of the results of ``simulate`` or ``sweep``: its names, and what an earlier run has left in it."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ratelimited_executor.cli.exits import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["file_name", "prepare", "removing_empty"]


def file_name(name: str) -> str:
    """Return a file name that is valid on all systems."""
    return re.sub(r"[^\w.,=\[\] -]", "_", name)


def prepare(
    directory: Path, runs: Sequence[Path], others: Sequence[Path], *, what: str, resume: bool, force: bool
) -> None:
    """Create a directory, unless that would lose results of an earlier run.

    Args:
        directory: the directory.
        runs: the files that ``--resume`` continues.
        others: the other files that will be written.
        what: what the command does, for messages: a run or a sweep.
        resume: the option.
        force: the option.

    Raises:
        CommandError: if there are results and neither option is given, there is nothing to resume, or the directory
            cannot be created.
    """
    if resume and force:
        raise CommandError(f"--resume continues an existing {what}, and --force removes it: give only one of them")
    try:
        if directory.exists() and not directory.is_dir():
            raise CommandError(f"--output must be a directory, {directory} is a file")
        there = [file for file in (*runs, *others) if file.exists()]
        if there and not (force or resume):
            raise CommandError(
                f"{there[0]} already exists: --resume continues it, --force starts again, --output DIR writes elsewhere"
            )
        if resume and not any(file.exists() for file in runs):
            raise CommandError(f"there is nothing to resume in {directory}")
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--output: {error}") from error


@contextmanager
def removing_empty(directory: Path) -> Iterator[None]:
    """Remove a directory, and those above it, if they were created here, and an error has left them empty."""
    created: list[Path] = []
    with suppress(OSError):  # such as a name that is too long, which is refused when it is used
        created = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):  # it is not empty
            for each in created:
                each.rmdir()
        raise
