"""The slots of what starts next: asked for without waiting, and given back if nothing starts with them after all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.slot_keeping import SlotKeeper, SlotRequest

__all__ = ["IDLE_NS", "SOON_NS", "SlotAsker"]

IDLE_NS: Final = 1_000_000_000  # for which slots are kept that no task has started with ...
SOON_NS: Final = 25_000_000  # ... and where a group tells when one may: they are asked for when it has


class SlotAsker:
    """Asks for the slots of one task after the other: those of the next are there, or waited for, before it starts.

    Args:
        keeper: of the slots.
        pools: their names.
        name: of the executor.
        priority: with which it waits; larger goes first.
        told: called when slots may be there; if they are not, it is known that they have to be waited for.
        limit: how many may hold slots of these pools, instead of the limits of the pools; -1 for those.

    Attributes:
        pools: as above.
        limit: as above.
        request: the slots that it has, or waits for; None if it needs none now.
        held_ns: when it was found to have them; None while it waits.
        is_waiting: True if they are waited for, as far as is known.
    """

    __slots__ = ("_keeper", "_name", "_priority", "_told", "held_ns", "is_waiting", "limit", "pools", "request")

    def __init__(
        self,
        keeper: SlotKeeper,
        pools: tuple[str, ...],
        *,
        name: str,
        priority: float,
        told: Callable[[], object],
        limit: int = -1,
    ) -> None:
        self.pools = pools
        self.limit = limit
        self.request: SlotRequest | None = None
        self.held_ns: int | None = None
        self.is_waiting = False
        self._keeper = keeper
        self._name = name
        self._priority = priority
        self._told = told

    def has_slots(self, now_ns: int) -> bool:
        """True if the slots for one task are there; they are asked for if they are not."""
        request = self.request
        if request is not None and request.fence and not request.is_fresh():
            self.drop()  # this process has stood still since they were handed over
            request = None
        if request is None:
            request = self.request = self._keeper.request(
                self.pools,
                name=self._name,
                priority=self._priority,
                told=self._handed,
                limit=self.limit,
                answered=self._answered,
            )
        if not request.fence:
            return False
        if self.held_ns is None:
            self.held_ns = now_ns
        return True

    @property
    def is_there(self) -> bool:
        """True if it has slots."""
        return self.request is not None and self.request.fence > 0

    def idle_end(self, now_ns: int, idle_ns: int) -> int:
        """Return until when slots that are there are kept for a task; they are noted to be there, if they were not."""
        if self.held_ns is None:
            self.held_ns = now_ns
        return idle_ns + self.held_ns

    def ask_for_running(self, told: Callable[[SlotRequest], None]) -> SlotRequest:
        """Request slots for a running task without them, before all waiting tasks; call ``told`` when they are there."""
        return self._keeper.request(
            self.pools, name=self._name, priority=self._priority + 1, told=told, limit=self.limit
        )

    def take(self) -> SlotRequest:
        """Return the slots that are there, for a task that starts; they are its own from now on."""
        request, self.request, self.held_ns = self.request, None, None
        assert request is not None
        return request

    def drop(self) -> None:
        """Give back what is there, and wait for nothing."""
        request, self.request, self.held_ns, self.is_waiting = self.request, None, None, False
        if request is not None:
            request.release()

    def _handed(self, request: SlotRequest) -> None:
        if request is self.request:
            self.is_waiting = False
            self._told()

    def _answered(self, request: SlotRequest) -> None:
        if request is self.request and not request.fence:
            self.is_waiting = True
            self._told()
