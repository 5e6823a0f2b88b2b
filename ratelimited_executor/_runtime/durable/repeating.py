"""Durable repetitions: each process puts the next occurrence, under an id derived from its time.

So each occurrence is put once, by any process, without a table of schedules or a leader. The next one already waits in
the store while the last one runs: if no process runs when it is due, it runs as soon as one is back, and the
occurrences missed after it are skipped. The store remembers ids for a day after a task's end, so a process whose clock
is behind by less than that puts none twice.
"""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratelimited_executor._core.durable.tasks import NewTask
    from ratelimited_executor.abc import Clock, TaskStore

__all__ = ["Repetition", "fixed_times", "keep_placing"]

_LOOK_SECONDS: Final = 60.0  # between two readings of the wall clock, which may be set


class Repetition:
    """A repeated task.

    Args:
        name: of the repetition; ids begin with it.
        next_after: returns the first occurrence after an instant, both in epoch seconds; None if there is none.
        make: creates the task of an occurrence from its instant and id.
    """

    def __init__(
        self, name: str, next_after: Callable[[float], float | None], make: Callable[[float, str], NewTask]
    ) -> None:
        self.name = name
        self._next_after = next_after
        self._make = make

    def next_task(self, wall: float) -> tuple[float, NewTask] | None:
        """Return the due time and the task of the next occurrence; None if there is none."""
        due = self._next_after(wall)
        if due is None:
            return None
        return due, self._make(due, f"{self.name}@{datetime.fromtimestamp(due, UTC):%Y-%m-%dT%H:%M:%S.%fZ}")


def fixed_times(period: float) -> Callable[[float], float]:
    """Return ``next_after`` for the multiples of a period in seconds since the epoch: the same in every process."""
    return lambda wall: (math.floor(wall / period) + 1) * period


async def keep_placing(store: TaskStore, repetitions: Sequence[Repetition], clock: Clock) -> None:
    """Put the next occurrence of each repetition, forever."""
    placed: dict[str, str] = {}  # name -> id
    while True:
        wall = clock.wall()
        tasks, first = {}, math.inf
        for each in repetitions:
            if (found := each.next_task(wall)) is not None:
                first = min(first, found[0])
                tasks[each.name] = found[1]
        new = [task for name, task in tasks.items() if placed.get(name) != task.id]
        if new:
            await store.put(new)
        placed = {name: task.id for name, task in tasks.items()}
        await asyncio.sleep(max(0.0, min(_LOOK_SECONDS, first - clock.wall())))
