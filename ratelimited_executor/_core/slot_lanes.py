"""Tasks that hold slots while they run: a *lane* for all of one priority that need slots of the same pools.

A lane is to the queues what a key is (``key_gate.py``): while it waits for slots, its tasks leave the order, and hold back
no others. It asks for the slots of its first task when that may start otherwise, and waits in the line of each pool.

What it has got and cannot use is given back: when all places to run in are taken, when no permit comes up within
:data:`IDLE_NS`, and when nothing of it waits any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.keys import KeyToken, given_key

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ratelimited_executor._core.slot_keeping import SlotKeeper, SlotRequest, SlotStatistics

__all__ = ["IDLE_NS", "SlotLane"]

IDLE_NS: Final = 1_000_000_000  # for which a lane keeps slots that no task of it has started with


class SlotLane(KeyToken):
    """The tasks of an executor that need slots of the same pools, of one priority and key.

    Args:
        key: of the tasks, as it is held; None if they are nobody's.
        pools: their names.
        priority: with which it waits for slots; larger goes first.
        name: of the executor.
        keeper: of the slots.
        wake: called with the lane when its slots may be there.

    Attributes:
        key: as the user gave it.
        held_key: as above.
        pools: as above.
        request: the slots that it has, or waits for; None if it needs none now.
        held_ns: when it was found to have them; None while it waits.
        parked: what to call when they are there.
        waiting_count: how many of its tasks have been accepted and not started or ended.
    """

    __slots__ = (
        "_keeper", "_name", "_priority", "_wake", "held_key", "held_ns", "parked", "pools", "request",
        "waiting_count",
    )  # fmt: skip

    def __init__(
        self,
        key: Hashable,
        pools: tuple[str, ...],
        *,
        priority: float,
        name: str,
        keeper: SlotKeeper,
        wake: Callable[[SlotLane], None],
    ) -> None:
        super().__init__(given_key(key))
        self.held_key = key
        self.pools = pools
        self.request: SlotRequest | None = None
        self.held_ns: int | None = None
        self.parked: list[Callable[[], None]] = []
        self.waiting_count = 0
        self._priority = priority
        self._name = name
        self._keeper = keeper
        self._wake = wake

    def has_slots(self, now_ns: int) -> bool:
        """Whether the slots for one task are there; they are asked for if they are not."""
        request = self.request
        if request is not None and request.fence and not request.is_fresh():
            self.drop()  # this process has stood still since they were handed over
            request = None
        if request is None:
            request = self.request = self._keeper.request(
                self.pools, name=self._name, priority=self._priority, told=self._told
            )
        if not request.fence:
            return False
        if self.held_ns is None:
            self.held_ns = now_ns
        return True

    def take(self) -> SlotRequest:
        """Return the slots that are there, for a task that starts; they are its own from now on."""
        request, self.request, self.held_ns = self.request, None, None
        assert request is not None
        return request

    def drop(self) -> None:
        """Give back what is there, and wait for nothing."""
        request, self.request, self.held_ns = self.request, None, None
        if request is not None:
            request.release()

    def statistics(self) -> list[SlotStatistics]:
        """Return the counts of its pools."""
        return [self._keeper.statistics(pool) for pool in self.pools]

    def resume(self) -> None:
        """Let its tasks come back into the order."""
        parked, self.parked = self.parked, []
        for resume in parked:
            resume()

    def _told(self, request: Any) -> None:
        if request is self.request:
            self._wake(self)
