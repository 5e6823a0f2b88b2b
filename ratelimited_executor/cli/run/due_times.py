"""The due times of lines: at once, evenly over a span of time, or from a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ratelimited_executor.cli.run.decoding import Facts

__all__ = ["DueAtField", "DueAtOnce", "DueEvenly", "DueTimes"]


class DueTimes(Protocol):
    """Gives each line its due time, in epoch seconds."""

    def due(self, facts: Facts, *, index: int, begin: float, now: float) -> float:
        """Return the due time of the line that is the ``index``-th (from 0) to be taken.

        Args:
            facts: the facts of the line.
            index: the number of lines taken before it.
            begin: the time at which the run began.
            now: the time at which the line is taken.
        """
        ...


class DueAtOnce:
    """All lines of a file are due when the run begins; a line of a stream is due when it is read."""

    def __init__(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream

    def due(self, facts: Facts, *, index: int, begin: float, now: float) -> float:  # noqa: ARG002  # the protocol's
        """Return the beginning of the run, or the current time."""
        return now if self._is_stream else begin


class DueEvenly:
    """Line i of n is due after i/n of a span of time; further lines keep the same distance.

    Args:
        over: the length of the span in seconds, > 0.
        count: the expected number of lines; 0 is treated as 1, since nothing is due then.
    """

    def __init__(self, *, over: float, count: int) -> None:
        self._gap = over / max(count, 1)

    def due(self, facts: Facts, *, index: int, begin: float, now: float) -> float:  # noqa: ARG002  # the protocol's
        """Return the due time of the line within the span."""
        return begin + index * self._gap


class DueAtField:
    """Each line has its own due time."""

    def due(self, facts: Facts, *, index: int, begin: float, now: float) -> float:  # noqa: ARG002  # the protocol's
        """Return the due time from the decoder."""
        assert facts.at is not None, "the decoder refuses lines without a due time"
        return facts.at
