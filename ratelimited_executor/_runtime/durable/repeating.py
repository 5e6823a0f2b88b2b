"""Durable repetitions: each process places the next occurrence, under an id derived from its time.

The store has a row for each repetition, with its last occurrence, and decides what is put: there is no leader. By
default an occurrence is put once the previous one has ended, so runs do not overlap, and the next one waits in the store
until it is due: if no process runs then, it runs as soon as one is back, and the occurrences missed after it are
skipped.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import anyio

from ratelimited_executor._core.durable.tasks import Occurrence, Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ratelimited_executor._core.durable.tasks import NewTask
    from ratelimited_executor.abc import Clock, TaskStore

__all__ = ["Placing", "Repetition", "Repetitions", "fixed_times"]

_US: Final = 1_000_000
_BUSY_SECONDS: Final = 1.0  # until another look for the end of an occurrence that another process runs ...
_BUSY_SECONDS_MAX: Final = 15.0  # ... doubled after each one


class Repetition:
    """A repeated task.

    Args:
        name: the name of the repetition; ids begin with it.
        schedule: its times, as text.
        allow_overlap: True to put an occurrence although the previous one has not ended.
        next_after: returns the first occurrence after an instant, both in epoch seconds; None if there is none.
        make: creates the task of an occurrence from its instant and id.
    """

    def __init__(
        self,
        name: str,
        schedule: str,
        next_after: Callable[[float], float | None],
        make: Callable[[float, str], NewTask],
        *,
        allow_overlap: bool,
    ) -> None:
        self.name = name
        self._schedule = schedule
        self._next_after = next_after
        self._make = make
        self._allow_overlap = allow_overlap

    def next_occurrence(self, wall: float, since: float) -> Occurrence | None:
        """Return the first occurrence after an instant, of a repetition that is declared since another; None if there is none."""
        due = self._next_after(wall)
        if due is None:
            return None
        task = self._make(due, f"{self.name}@{datetime.fromtimestamp(due, UTC):%Y-%m-%dT%H:%M:%S.%fZ}")
        facts = repr((self._schedule, self._allow_overlap, task._replace(id="", due_us=None)))
        return Occurrence(
            name=self.name, task=task, schedule=self._schedule, spec=hashlib.sha256(facts.encode()).hexdigest(),
            since_us=round(since * _US), allow_overlap=self._allow_overlap,
        )  # fmt: skip


class Repetitions:
    """The repetitions that one ``DurableTasks`` declares, which may change while they are placed.

    Attributes:
        declared: by name.
        lock: held while they are placed, and while one is removed; of the event loop in which the store is open.
        placings: those who place them now.
    """

    def __init__(self) -> None:
        self.declared: dict[str, Repetition] = {}
        self.lock = asyncio.Lock()
        self.placings: list[Placing] = []

    def add(self, repetition: Repetition) -> None:
        """Declare a repetition."""
        self.declared[repetition.name] = repetition
        self._change()

    def discard(self, names: Iterable[str]) -> None:
        """Declare repetitions no longer."""
        for name in names:
            self.declared.pop(name, None)
        self._change()

    def _change(self) -> None:
        for placing in self.placings:
            placing.changed.set()


class Placing:
    """Places the occurrences of repetitions, while a process runs tasks.

    Args:
        store: the store of the tasks.
        repetitions: what is declared.
        clock: the clock of the process.
        owner: returns the name under which the process claims tasks.
        seconds: the longest time between two looks: the clock may be set, and the process that decides may have left.

    Attributes:
        waiting: the ids of the last occurrences, whose end is to be noticed.
        changed: set when it is worth to look before the time.
    """

    def __init__(
        self, store: TaskStore, repetitions: Repetitions, clock: Clock, owner: Callable[[], str], seconds: float
    ) -> None:
        self.waiting: frozenset[str] = frozenset()
        self.changed = asyncio.Event()
        self._store = store
        self._repetitions = repetitions
        self._clock = clock
        self._owner = owner
        self._seconds = seconds
        self._busy_seconds = _BUSY_SECONDS
        self._is_stopped = False
        self._since: dict[Repetition, float] = {}  # -> the wall time at which this process began to declare it

    async def run(self) -> None:
        """Place occurrences, until :meth:`stop`."""
        self._repetitions.placings.append(self)
        try:
            while not self._is_stopped:
                self.changed.clear()
                seconds = await self.look()
                with anyio.move_on_after(seconds):
                    await self.changed.wait()
                if self.changed.is_set():
                    self._busy_seconds = _BUSY_SECONDS
        finally:
            self._repetitions.placings.remove(self)

    def stop(self) -> None:
        """Place nothing more."""
        self._is_stopped = True
        self.changed.set()

    async def look(self) -> float:
        """Place what is next; return the seconds until the next look."""
        async with self._repetitions.lock:
            wall = self._clock.wall()
            until = wall + self._seconds
            after = dict.fromkeys(sorted(self._repetitions.declared), wall)
            waiting: set[str] = set()
            is_busy = False
            for _ in range(2):  # again, after the last one, where the next one is past
                found = [each for name, when in after.items() if (each := self._next(name, when)) is not None]
                after = {}
                placed = await self._store.place(self._owner(), found) if found else []
                for asked, answer in zip(found, placed, strict=True):
                    waiting.add(answer.id)
                    if answer.placement is Placement.PLACED:
                        until = min(until, answer.due_us / _US)
                    elif answer.placement is Placement.PAST:
                        after[asked.name] = answer.due_us / _US
                    is_busy = is_busy or answer.placement is Placement.BUSY
            self.waiting = frozenset(waiting)
        if is_busy:
            until = min(until, wall + self._busy_seconds)
            self._busy_seconds = min(2 * self._busy_seconds, _BUSY_SECONDS_MAX)
        else:
            self._busy_seconds = _BUSY_SECONDS
        return max(0.0, until - self._clock.wall())

    def _next(self, name: str, after: float) -> Occurrence | None:
        repetition = self._repetitions.declared.get(name)
        if repetition is None:
            return None
        return repetition.next_occurrence(after, self._since.setdefault(repetition, self._clock.wall()))


def fixed_times(period: float) -> Callable[[float], float]:
    """Return ``next_after`` for the multiples of a period in seconds since the epoch: the same in every process.

    They are rounded up to whole microseconds, as stores keep them, so that the next one is always later.
    """
    period_us = Fraction(repr(period)) * _US
    return lambda wall: math.ceil((round(wall * _US) // period_us + 1) * period_us) / _US
