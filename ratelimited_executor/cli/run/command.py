"""``run`` from its options to its exit status: every file is opened before anything starts."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ratelimited_executor.cli.exits import CommandError, ExitStatus
from ratelimited_executor.cli.run.inputs import LineSource
from ratelimited_executor.cli.run.job import RunJob
from ratelimited_executor.cli.run.options import RunOptions, check_options
from ratelimited_executor.cli.run.outputs import Remaining, close_output, open_results
from ratelimited_executor.cli.stopping import Signals, Stop

if TYPE_CHECKING:
    import asyncio

__all__ = ["run"]


def run(options: RunOptions, runner: asyncio.Runner) -> ExitStatus:
    """Check the options, open every file, play the job.

    Raises:
        CommandError: if an option or a file cannot be used; then no call was made.
    """
    check_options(options)
    with ExitStack() as stack:
        source = stack.enter_context(LineSource(options.input))
        if options.count is not None and source.can_be_counted:
            raise CommandError(f"--count is for streams: the lines of {source.name} are counted")
        if options.over is not None and options.count is None and not source.can_be_counted:
            raise CommandError(f"--over needs --count for {source.name}: a stream cannot be counted beforehand")
        results = None
        if options.results is not None:
            results = open_results(options.results, source=source, append=options.append)
            if options.results != "-":
                stack.callback(close_output, results)
        remaining = None
        if options.remaining is not None:
            if results is not None and _is_same_file(results, options.remaining):
                raise CommandError("--results and --remaining must be different files")
            remaining = Remaining(options.remaining, source=source)
            stack.callback(remaining.close)
        # Not earlier: opening a FIFO waits for its other side, and only an unhandled signal ends the wait. Not later:
        # from here on, a signal must leave all lines in the file of remaining lines.
        stop = Stop()
        signals = stack.enter_context(Signals(stop))
        if remaining is not None:
            remaining.claim()
        return runner.run(RunJob(options, source, results, remaining, stop=stop, signals=signals).play())


def _is_same_file(file: BinaryIO, path: str) -> bool:
    with suppress(OSError):  # standard output is missing, or is not a real file
        return os.path.samestat(os.fstat(file.fileno()), Path(path).stat())
    return False
