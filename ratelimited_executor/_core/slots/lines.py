"""Tasks that hold slots while they run: a *line* for all tasks of one priority that need slots of the same pools.

Queues treat a line like a key (``_core/keys/gate.py``): while it waits for slots, its tasks leave the order and hold
back no others. It requests the slots of its first task when the task may start otherwise, or ahead, together with a
permit of a group, and waits in the line of each pool.

Slots that it cannot use are given back: when the concurrency limit is reached, when no permit comes up within
:data:`~ratelimited_executor._core.slots.asking.IDLE_NS`, and when it has no waiting tasks any more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from ratelimited_executor._core.keys.keys import KeyToken, given_key
from ratelimited_executor._core.slots.asking import SlotAsker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ratelimited_executor._core.slots.keeping import SlotKeeper, SlotStatistics

__all__ = ["SlotLine", "stored_key"]


class SlotLine(KeyToken):
    """The tasks of an executor that need slots of the same pools, of one priority and key.

    Args:
        key: the key of the tasks in its stored form; None if they have none.
        pools: the names of the pools.
        priority: the priority of slot requests; larger goes first.
        name: the name of the executor.
        keeper: the keeper of the slots.
        wake: called with the line when its slots may have been handed over.

    Attributes:
        key: the key as the user passed it.
        held_key: the key in its stored form.
        slots: requests the slots of its next task.
        parked: functions to call when the slots are handed over.
        waiting_count: how many of its tasks were accepted and have not started or ended.
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
        wake: Callable[[SlotLine], None],
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


def stored_key(key: Hashable) -> Any:
    """Return the key of tasks in its stored form, also of those in a line."""
    return key.held_key if isinstance(key, SlotLine) else key


def _wake(line: ref[SlotLine], wake: Callable[[SlotLine], None]) -> None:
    """Wake a line if it still exists: the request does not keep it alive."""
    found = line()
    if found is not None:
        wake(found)
