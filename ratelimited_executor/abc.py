"""The protocols that a user may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import asyncio

__all__ = ["Clock", "Fleet", "Peers"]


@runtime_checkable
class Clock(Protocol):
    """Where an :class:`~ratelimited_executor.ExecutorManager` reads the time.

    The two scales are never subtracted from each other, except once, when the manager's timeline is anchored.
    """

    def monotonic(self) -> float:
        """Return seconds on the scale of the event loop's ``time()``; never steps, never runs backwards."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch (UTC); may step in either direction."""
        ...


@runtime_checkable
class Peers(Protocol):
    """Which of the numbered permits belong to this process.

    Permits are numbered 0, 1, 2, ... on a grid that all peers share (see ``_core/permits.py``). Of ``count`` peers,
    the one of rank ``rank`` owns the numbers that are ``rank`` modulo ``count``: every permit has exactly one owner.
    """

    @property
    def count(self) -> int:
        """Return how many peers share the rate, >= 1."""
        ...

    @property
    def rank(self) -> int:
        """Return this peer's position, 0 <= rank < count."""
        ...


@runtime_checkable
class Fleet(Protocol):
    """Peers that are granted their permits by an authority, while they run."""

    def start(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        """Begin, on the manager's event loop and by its clock."""
        ...

    def join(self, owner: Any) -> Any:
        """Take part in the rate of an executor, and return its part."""
        ...

    async def aclose(self) -> None:
        """Leave the group."""
        ...
