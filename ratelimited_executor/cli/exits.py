"""Exit statuses, and the error that ends the command with status 2."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CommandError", "ExitStatus"]


class ExitStatus(IntEnum):
    """The exit status for the shell."""

    DONE = 0  # every line ended in the state "done"
    FAILED = 1  # some line failed, expired or was cancelled; the demo: the rate was not held; peers: no rates
    USAGE = 2  # bad usage or bad input, named on stderr
    INTERRUPTED = 130  # SIGINT, SIGTERM or SIGHUP; 128 + SIGINT, as shells count


class CommandError(Exception):
    """Bad usage or input that the user can correct; the command prints it and exits with status 2."""
