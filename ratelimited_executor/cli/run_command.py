"""The options of ``run``, checked against each other, and every file opened before anything starts."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from typing import BinaryIO

from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.inputs import LineSource
from ratelimited_executor.cli.job import Job, RunOptions
from ratelimited_executor.cli.outputs import open_output

__all__ = ["run"]


def run(options: RunOptions, runner: asyncio.Runner) -> ExitStatus:
    """Check the options, open every file, play the job.

    Raises:
        CommandError: if an option or a file cannot be used; nothing was called then.
    """
    _check(options)
    with ExitStack() as stack:
        source = stack.enter_context(LineSource(options.input))
        if options.over is not None and options.count is None and not source.can_be_counted:
            raise CommandError(f"--over needs --count for {source.name}: a stream cannot be counted beforehand")
        results = _open(stack, "--results", options.results, source, append=options.append)
        remaining = _open(stack, "--remaining", options.remaining, source)
        return runner.run(Job(options, source, results, remaining).play())


def _check(options: RunOptions) -> None:
    """Refuse options that do not go together."""
    if not options.jsonl:
        for name, value in (("--at-field", options.at_field), ("--priority-field", options.priority_field)):
            if value is not None:
                raise CommandError(f"{name} needs --jsonl: plain lines have no fields")
    if options.over is not None and options.at_field is not None:
        raise CommandError("--over and --at-field exclude each other: both say when a line is due")
    if options.rate.is_zero:
        raise CommandError("--rate 0 would never start a line")
    if options.results is not None and options.results != "-" and options.results == options.remaining:
        raise CommandError("--results and --remaining must be different files")
    if options.remaining == "-":
        raise CommandError("--remaining must be a file")


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
