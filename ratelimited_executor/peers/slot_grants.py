"""Requests for slots, as they pass between event loops and the thread that makes the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimited_executor._core.fleet.slot_peer import EntryState, SlotClaim

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Grant", "Owner", "note_all", "refuse_waker"]


class Owner:
    """The event loop of holders and waiters, and a check that it turns."""

    __slots__ = ("_asked_at", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._asked_at: float | None = None

    def is_well(self, now: float, seconds: float) -> bool:
        """True if the loop has turned within a time; asks it to report its next turn."""
        if self.loop.is_closed():  # its tasks are gone
            return False
        asked_at = self._asked_at  # read once: the loop may clear it meanwhile
        if asked_at is None:
            asked_at = self._asked_at = now
            try:
                self.loop.call_soon_threadsafe(self._note_turn)
            except RuntimeError:  # it has just been closed
                return False
        return now - asked_at <= seconds

    def _note_turn(self) -> None:
        self._asked_at = None


class Grant:
    """The request of one hold, passed between its event loop and the thread."""

    __slots__ = ("answered", "claim", "lost", "owner", "waker")

    def __init__(self, claim: SlotClaim, owner: Owner, waker: asyncio.Future[None], lost: Callable[[], None]) -> None:
        self.answered: Callable[[], None] | None = (
            None  # called when the claim is known to wait, or its slots are coming
        )
        self.claim = claim
        self.owner = owner
        self.waker = waker
        self.lost = lost

    def note(self, state: EntryState) -> None:
        """Process the claim's state; called on its event loop."""
        if state is EntryState.WAITING:
            if self.answered is not None:
                self.answered()
        elif not self.waker.done():
            self.waker.set_result(None)
        elif state is EntryState.LOST:
            self.lost()


def note_all(states: list[tuple[Grant, EntryState]]) -> None:
    """Process the states of claims; called on their event loop."""
    for grant, state in states:
        grant.note(state)


def refuse_waker(grant: Grant, error: Exception) -> None:
    """Refuse a request; called on its event loop."""
    if not grant.waker.done():
        grant.waker.set_exception(error)
