"""The slots of the next task: requested without blocking, and given back if no task starts with them after all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.slots.keeping import SlotKeeper, SlotRequest

__all__ = ["IDLE_NS", "SOON_NS", "SlotAsker"]

IDLE_NS: Final = 1_000_000_000  # for which unused slots are kept ...
SOON_NS: Final = 25_000_000  # ... and where a group admits each start: slots are requested once it has


class SlotAsker:
    """Requests the slots of one task after another, each before its task starts.

    Args:
        keeper: the keeper of the slots.
        pools: the names of the pools.
        name: the name of the executor.
        priority: the priority of the requests; larger goes first.
        told: called when slots are handed over, or when the request is known to have to wait.
        limit: how many may hold slots of these pools; -1 for the limits of the pools.

    Attributes:
        pools: as passed.
        limit: as passed.
        request: the slots held or waited for; None if no slots are needed now.
        held_ns: when the hand-over was noticed; None before.
        is_waiting: True if the request is known to have to wait, and nothing has been handed over to it yet.
        is_prompt: True if the latest slots came without a wait, so that the next ones may, too.
    """

    __slots__ = (
        "_has_waited",
        "_keeper",
        "_name",
        "_priority",
        "_told",
        "held_ns",
        "is_prompt",
        "is_waiting",
        "limit",
        "pools",
        "request",
    )

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
        self.is_prompt = True
        self._has_waited = False  # the present request
        self._keeper = keeper
        self._name = name
        self._priority = priority
        self._told = told

    def has_slots(self, now_ns: int) -> bool:
        """True if the slots for one task are held; requests them if needed."""
        request = self.request
        if request is not None and request.fence and not request.is_fresh():
            self.drop()  # this process stood still after the hand-over
            request = None
        if request is None:
            self._has_waited = False
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
    def quarantine(self) -> float:
        """Seconds for which no slot is handed over, because holders may have been forgotten; 0 if none."""
        return self._keeper.quarantine

    @property
    def is_there(self) -> bool:
        """True if slots are held."""
        return self.request is not None and self.request.fence > 0

    @property
    def is_near(self) -> bool:
        """True if slots are held, or likely to be in a moment."""
        if self.request is not None and (self.request.fence or self.request.is_coming):
            return True
        return self.is_prompt and not self.is_waiting

    def idle_end(self, now_ns: int, idle_ns: int) -> int:
        """Return until when held slots are kept for a task; notes the hand-over if not done before."""
        if self.held_ns is None:
            self.held_ns = now_ns
        return idle_ns + self.held_ns

    def ask_for_running(self, told: Callable[[SlotRequest], None]) -> SlotRequest:
        """Request slots for a running task without them, ahead of all waiting tasks; call ``told`` at hand-over."""
        return self._keeper.request(
            self.pools, name=self._name, priority=self._priority + 1, told=told, limit=self.limit
        )

    def take(self) -> SlotRequest:
        """Return the held slots, for a task that starts and owns them from now on."""
        request, self.request, self.held_ns = self.request, None, None
        assert request is not None
        return request

    def drop(self) -> None:
        """Give back held slots, or withdraw the request."""
        request, self.request, self.held_ns, self.is_waiting = self.request, None, None, False
        if request is not None:
            request.release()

    def _handed(self, request: SlotRequest) -> None:
        if request is self.request:
            self.is_waiting, self.is_prompt = False, not self._has_waited
            self._told()

    def _answered(self, request: SlotRequest) -> None:
        if request is self.request and not request.fence:
            self.is_waiting = not request.is_coming
            self._has_waited = self._has_waited or self.is_waiting
            self.is_prompt = not self._has_waited
            self._told()
