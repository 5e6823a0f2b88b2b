"""Tasks that hold slots while they run: a *lane* for all of one priority that need slots of the same pools.

A lane is to the queues what a key is (``key_gate.py``): while it waits for slots, its tasks leave the order, and hold back
no others. It asks for the slots of its first task when that may start otherwise, and waits in the line of each pool.

What it has got and cannot use is given back: when all places to run in are taken, when no permit comes up within
:data:`~ratelimited_executor._core.slot_asking.IDLE_NS`, and when nothing of it waits any more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from ratelimited_executor._core.keys import KeyToken, given_key
from ratelimited_executor._core.slot_asking import SlotAsker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ratelimited_executor._core.slot_keeping import SlotKeeper, SlotStatistics

__all__ = ["SlotLane"]


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
        slots: asks for those of its next task.
        parked: what to call when they are there.
        waiting_count: how many of its tasks have been accepted and not started or ended.
    """

    __slots__ = ("_keeper", "held_key", "parked", "slots", "waiting_count")

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
        self.slots = SlotAsker(keeper, pools, name=name, priority=priority, told=partial(_wake, ref(self), wake))
        self.parked: list[Callable[[], None]] = []
        self.waiting_count = 0
        self._keeper = keeper

    def statistics(self) -> list[SlotStatistics]:
        """Return the counts of its pools."""
        return [self._keeper.statistics(pool) for pool in self.slots.pools]

    def resume(self) -> None:
        """Return its tasks to the order."""
        parked, self.parked = self.parked, []
        for resume in parked:
            resume()


def _wake(lane: ref[SlotLane], wake: Callable[[SlotLane], None]) -> None:
    """Wake a lane, which is not kept in being for that."""
    found = lane()
    if found is not None:
        wake(found)
