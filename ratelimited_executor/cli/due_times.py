"""When a line is due: at once, evenly over a time, or when a field of it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ratelimited_executor.cli.decoding import Facts

__all__ = ["DueAtField", "DueAtOnce", "DueEvenly", "DueTimes"]


class DueTimes(Protocol):
    """Gives each line its due time, in epoch seconds."""

    def due(self, facts: Facts, *, index: int, begin: float, now: float) -> float:
        """Return the due time of the line that is the ``index``-th (from 0) to be taken.

        Args:
            facts: what the line says of itself.
            index: how many lines were taken before it.
            begin: when the run began.
            now: when the line is taken.
        """
        ...


class DueAtOnce:
    """A file is due as a whole when the run begins; a line of a stream when it is read."""

    def __init__(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream

    def due(self, facts: Facts, *, index: int, begin: float, now: float) -> float:  # noqa: ARG002  # the protocol's
        """Return the begin of the run, or the present."""
        return now if self._is_stream else begin


class DueEvenly:
    """Line i of n is due i/n of the way through a time; further lines keep the same distance.

    Args:
        over: the length of the time in seconds, > 0.
        count: how many lines are expected; 0 is taken as 1, as nothing is due then.
    """

    def __init__(self, *, over: float, count: int) -> None:
        self._gap = over / max(count, 1)

    def due(self, facts: Facts, *, index: int, begin: float, now: float) -> float:  # noqa: ARG002  # the protocol's
        """Return the line's place in the time."""
        return begin + index * self._gap


class DueAtField:
    """Each line says itself."""

    def due(self, facts: Facts, *, index: int, begin: float, now: float) -> float:  # noqa: ARG002  # the protocol's
        """Return the due time that the decoder found."""
        assert facts.at is not None, "the decoder refuses lines without a due time"
        return facts.at
