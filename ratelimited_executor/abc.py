"""The protocols that a user may implement."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import asyncio

__all__ = ["Clock", "Fleet", "Peers", "Progress"]


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


@runtime_checkable
class Progress(Protocol):
    """Where it is kept how far cycles have come, so that a restart repeats and skips nothing, and that nodes share the work.

    A *turn* is a slot's time in one cycle, an integer that grows by one with every slot. Of each turn a store knows whose it
    is and until when, whether it is complete and, while it is not, which keys are through. Times are epoch seconds.

    Every method may be called by several nodes at once, and may be repeated where its answer was lost. An exception ends the
    cycle; one of ``done_keys`` does not: the turn is loaded again after a pause.

    A store may name this class as its base: then it has these docstrings, and cannot be made while a method is missing.
    """

    @abstractmethod
    async def begin(self, name: str, shape: str, turn: int) -> int:
        """Take up a cycle; return the first turn that concerns it: ``turn``, if it is new.

        Raises:
            ValueError: if there is a cycle of that name and another shape.
        """
        ...

    @abstractmethod
    async def open_turns(self, name: str, first: int, last: int) -> list[int]:
        """Return the turns from ``first`` to ``last`` that are not complete, in order."""
        ...

    @abstractmethod
    async def claim(self, name: str, turn: int, *, owner: str, now: float, until: float) -> bool:
        """Claim a turn until a time, or renew the claim; return False if another owner has it or it is complete.

        With ``until`` equal to ``now`` the turn is given up: another may claim it at once. A store may go by a clock of its
        own: then the claim lasts for ``until - now`` seconds.
        """
        ...

    @abstractmethod
    async def done_keys(self, name: str, turn: int) -> set[bytes]:
        """Return the keys of a turn that are through."""
        ...

    @abstractmethod
    async def note(self, name: str, turn: int, keys: list[bytes]) -> None:
        """Note that keys of a turn are through, perhaps again; when this returns, the end of the process does not undo it."""
        ...

    @abstractmethod
    async def complete(self, name: str, turn: int, *, keep_from: int) -> None:
        """Note that all keys of a turn are through; what is known of turns before ``keep_from`` may be forgotten."""
        ...

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of what is held."""
        ...
