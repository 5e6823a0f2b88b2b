"""``run`` from its options to its exit status: every file is opened before anything starts."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, BinaryIO

from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.inputs import LineSource
from ratelimited_executor.cli.job import Job
from ratelimited_executor.cli.options import RunOptions, check_options
from ratelimited_executor.cli.outputs import open_output

if TYPE_CHECKING:
    import asyncio

__all__ = ["run"]


def run(options: RunOptions, runner: asyncio.Runner) -> ExitStatus:
    """Check the options, open every file, play the job.

    Raises:
        CommandError: if an option or a file cannot be used; nothing was called then.
    """
    check_options(options)
    with ExitStack() as stack:
        source = stack.enter_context(LineSource(options.input))
        if options.count is not None and source.can_be_counted:
            raise CommandError(f"--count is for streams: the lines of {source.name} are counted")
        if options.over is not None and options.count is None and not source.can_be_counted:
            raise CommandError(f"--over needs --count for {source.name}: a stream cannot be counted beforehand")
        results = _open(stack, "--results", options.results, source, append=options.append)
        remaining = _open(stack, "--remaining", options.remaining, source)
        return runner.run(Job(options, source, results, remaining).play())


def _open(
    stack: ExitStack, option: str, path: str | None, source: LineSource, *, append: bool = False
) -> BinaryIO | None:
    if path is None:
        return None
    file = open_output(option, path, source=source, append=append)
    if path != "-":
        stack.callback(_close, file)
    return file


def _close(file: BinaryIO) -> None:
    with suppress(OSError):  # the disk is full: that was reported when the rows were written
        file.close()
