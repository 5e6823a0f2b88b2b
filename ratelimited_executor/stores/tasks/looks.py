"""Where claims in PostgreSQL begin to look for tasks.

While a transaction stays open, such as that of a backup, the server keeps the index entries of all tasks that have gone
since its beginning, and a claim that looks from the earliest due time on passes all of them: each one takes longer than
the one before.

So once a look from the beginning has taken long, the next claims begin where earlier ones of this process have stopped.
What has become ready behind them, such as a task of a process that has died or one of a new priority, is found by the next
look from the beginning. Such looks are two seconds apart, or up to ten if one takes more than a twenty-fifth of a second.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ratelimited_executor._core.durable.tasks import Claim, Claims

__all__ = ["Look", "Looks"]

LONG_US = 4_000  # that a look from the beginning takes on the server, apart from ...
_TASK_US: Final = 200  # ... these for each task found; one that takes no longer is made each time
_APART_SECONDS: Final = 2.0  # between two looks from the beginning, or ...
_PARTS: Final = 50  # ... that many times as long as one takes, if that is more, but at most ...
_APART_SECONDS_MAX: Final = 10.0  # ... that
_LATE_US: Final = 2_000_000  # from the time that a put has read to its commit, without being missed
_LEVELS_MAX: Final = 4  # with more priorities, each claim looks from the beginning


class Look:
    """Where a claim begins to look, and how long that takes.

    Attributes:
        due_us: due time of the first task that is not ready yet.
        places: by priority, due time and number of the first task that is ready; None for all tasks.
        now_us: the server's time.
        spent_us: how long it took on the server.
    """

    __slots__ = ("due_us", "now_us", "places", "spent_us")

    def __init__(self, due_us: int, places: dict[float, tuple[int, int]] | None) -> None:
        self.due_us = due_us
        self.places = places
        self.now_us = self.spent_us = 0


class Looks:
    """The looks of one process for the tasks of one queue.

    Attributes:
        next_full: loop time of the next look from the beginning.
    """

    def __init__(self) -> None:
        self.next_full = -math.inf
        self._has_lanes = False  # a task that follows another in its lane becomes ready with its own, earlier due time
        self._places: dict[float, tuple[int, int]] = {}
        self._looked_us = 0  # server's time of the last look

    def begin(self, asked: Claim, now: float) -> Look:
        """Return where a claim begins."""
        places = self._places
        leaves_tasks = asked.turns is not None or asked.full_keys or asked.unknown  # ... that are ready
        if now >= self.next_full or leaves_tasks or self._has_lanes or not 0 < len(places) <= _LEVELS_MAX:
            return Look(-(2**62), None)
        return Look(self._looked_us - _LATE_US, places)

    def end(self, asked: Claim, look: Look, found: Claims, now: float) -> None:
        """Record what a claim has found, and that it ended at a loop time."""
        places = self._places
        if look.places is None:
            apart = min(_APART_SECONDS_MAX, max(_APART_SECONDS, _PARTS * look.spent_us / 1e6))
            is_long = look.spent_us > LONG_US + _TASK_US * len(found.tasks)
            if asked.above == -math.inf:
                self.next_full = now + apart if is_long else -math.inf
                places.clear()
        self._has_lanes = self._has_lanes or any(each.lane is not None for each in found.tasks)
        self._looked_us = look.now_us
        recent = (look.now_us - _LATE_US, 0)
        is_full = found.next_in_us == 0
        least = found.tasks[-1].priority if found.tasks else -math.inf  # they come by priority
        for priority in {*places, *(each.priority for each in found.tasks)}:
            if priority > (least if is_full else asked.above):
                places[priority] = recent  # all that were ready are claimed
        if is_full and found.tasks:
            last = found.tasks[-1]
            places[least] = min((look.now_us + last.in_us, last.ref.number), recent)
