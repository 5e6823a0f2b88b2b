"""One call of the target for one line: function, argument, and attempts to exit."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratelimited_executor.cli.run.results import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor import TaskHandle
    from ratelimited_executor.cli.run.decoding import Decoder
    from ratelimited_executor.cli.run.due_times import DueTimes

__all__ = ["CallSettings", "TakenLine", "TargetExitError", "call_target"]


class TargetExitError(Exception):
    """The target tried to end the process (``sys.exit``, ``KeyboardInterrupt``); only its line fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """How lines become calls.

    Attributes:
        target: called with one argument for each line.
        decoder: parses lines.
        due_times: determines the due time of a line.
        is_ordered: True if lines carry due times or priorities, so that the look-ahead is filled before the start.
        is_timed: True if lines carry due times.
        expires: seconds after its due time from which a line is no longer started; None for never.
        in_threads: True to run the target in worker threads.
        is_fair: True to share by key, instead of by due time across keys.
    """

    target: Callable[[Any], Any]
    decoder: Decoder
    due_times: DueTimes
    is_ordered: bool = False
    is_timed: bool = False
    expires: float | None = None
    in_threads: bool = False
    is_fair: bool = False


class TakenLine:
    """A line that was taken and has no final state yet."""

    __slots__ = ("behind", "cost", "due", "handle", "is_withdrawn", "number", "priority", "raw", "start_count")

    def __init__(self, number: int, raw: bytes, *, due: float, behind: float, priority: int, cost: int = 1) -> None:
        self.number = number
        self.raw = raw
        self.due = due  # epoch seconds
        self.behind = behind  # seconds by which it was overdue when it was taken, >= 0
        self.priority = priority
        self.cost = cost
        self.handle: TaskHandle[Any] | None = None
        self.start_count = 0  # attempts whose starts have been recorded
        self.is_withdrawn = False


def call_target(settings: CallSettings, line: TakenLine) -> object:
    """Call the target with a line, on the loop or in a worker thread.

    Raises:
        TargetExitError: if the target tried to end the process.
        TypeError: if the target returned a coroutine in a worker thread.
    """
    try:
        result = settings.target(settings.decoder.argument(line.number, line.raw))
    except (SystemExit, KeyboardInterrupt) as error:
        raise TargetExitError(describe_error(error)) from error
    if not inspect.iscoroutine(result):
        return result
    if settings.in_threads:
        result.close()
        raise TypeError("the target returned a coroutine; --threads is for plain functions")
    return _guarded(result)


async def _guarded(coroutine: Any) -> object:
    """Await the target's coroutine; an attempt to end the process fails only its own line."""
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise TargetExitError(describe_error(error)) from error
