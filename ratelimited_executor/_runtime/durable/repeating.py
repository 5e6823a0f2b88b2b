"""Durable repetitions: each process places the next occurrence, under an id derived from its time.

The store has a row for each repetition, with its last occurrence, and decides what is put: there is no leader. By
default an occurrence is put once the previous one has ended, so runs do not overlap, and the next one waits in the store
until it is due: if no process runs then, it runs as soon as one is back, and the occurrences missed after it are
skipped.

Code declares repetitions, and users save them in the store, as a *definition*: text from which every process can place
occurrences in the same way.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from ratelimited_executor._core.durable.repetitions import name_of
from ratelimited_executor._core.durable.tasks import NewTask, Occurrence, Placement
from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._runtime.arguments import seconds_of, tz_of
from ratelimited_executor._runtime.log import LOGGER, Masked
from ratelimited_executor._runtime.repeat.cron import cron_times

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from ratelimited_executor._core.durable.tasks import ChangedRepetition
    from ratelimited_executor.abc import Clock, TaskStore

__all__ = [
    "LANE_PREFIX", "OVERLAPS", "Placing", "Repetition", "RepetitionTimes", "Repetitions", "fixed_times", "is_of_repetition",
    "task_of", "times_of",
]  # fmt: skip

OVERLAPS: Final = ("skip", "queue", "allow")
"""What happens to an occurrence that is due before the previous one has ended."""
LANE_PREFIX: Final = "repetition "
"""Of the lanes of repetitions with ``overlap="queue"``; the name follows."""
_US: Final = 1_000_000
_PERIOD_SECONDS_MIN: Final = 0.001
_PERIOD_SECONDS_MAX: Final = 30 * 365.25 * 86_400
_FACTS: Final = ("queue", "name", "version", "body", "expires_us", "priority", "lane", "is_blocking", "key", "cost")
_BUSY_SECONDS: Final = 1.0  # until another look for the end of an occurrence that another process runs ...
_BUSY_SECONDS_MAX: Final = 15.0  # ... doubled after each one


class RepetitionTimes(NamedTuple):
    """The times of a repetition.

    Attributes:
        next_after: returns the first one after an instant, both in epoch seconds; None if there is none.
        text: for display.
        facts: for a definition; the arguments of :func:`times_of`.
    """

    next_after: Callable[[float], float | None]
    text: str
    facts: dict[str, Any]


def times_of(call: str, period: Any = None, cron: Any = None, tz: Any = "UTC") -> RepetitionTimes:
    """Return the times that a call asks for.

    Raises:
        TypeError: if an argument has a wrong type, or neither or both of ``period`` and ``cron`` are given.
        ValueError: if an argument is out of range.
    """
    if (period is None) == (cron is None):
        raise TypeError(f"{call}() takes period= or cron=, one of them")
    if cron is not None:
        zone = tz_of("tz", tz)
        return RepetitionTimes(cron_times(cron, zone), f"{cron} ({zone})", {"cron": cron, "tz": str(zone)})
    seconds = float(seconds_of("period", period))
    if not _PERIOD_SECONDS_MIN <= seconds <= _PERIOD_SECONDS_MAX:
        raise ValueError(f"period must be from 1 ms to 30 years, got {period!r}")
    return RepetitionTimes(fixed_times(seconds), f"every {format_duration(seconds)}", {"period": seconds})


class Repetition:
    """A repeated task.

    Args:
        name: the name of the repetition; ids begin with it.
        task: the task of its occurrences, but for its id and its due time.
        times: when they are due.
        overlap: one of ``OVERLAPS``.
        changed_us: when users changed it last, if they saved it; None if code declares it.

    Attributes:
        function: the name and the version of its function.
        schedule: its times, as text.
        definition: text from which it can be read.
        is_saved: True if users saved it.
    """

    def __init__(
        self, name: str, task: NewTask, times: RepetitionTimes, overlap: str, changed_us: int | None = None
    ) -> None:
        self.name = name
        self.function = task.name, task.version
        self.schedule = times.text
        facts = {each: getattr(task, each) for each in _FACTS} | {"body": task.body.decode("latin-1")}
        self.definition = json.dumps({**facts, "times": times.facts, "overlap": overlap}, separators=(",", ":"))
        self._task = task
        self._next_after = times.next_after
        self._allow_overlap = overlap != "skip"
        self.is_saved = changed_us is not None
        self._changed_us = changed_us

    @classmethod
    def read(cls, saved: ChangedRepetition) -> Repetition:
        """Return a repetition that was saved."""
        facts = json.loads(saved.definition)
        times = times_of("save_repetition", **facts["times"])
        return cls(saved.name, task_of(saved.definition), times, facts["overlap"], saved.changed_us)

    def next_occurrence(self, wall: float, since: float) -> Occurrence | None:
        """Return the first occurrence after an instant, of a repetition that code declares since another; None if there is none."""
        due = self._next_after(wall)
        if due is None:
            return None
        task_id = f"{self.name}@{datetime.fromtimestamp(due, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        return Occurrence(
            name=self.name, task=self._task._replace(id=task_id, due_us=round(due * _US), is_named=True),
            schedule=self.schedule, spec=hashlib.sha256(self.definition.encode()).hexdigest(),
            since_us=round(since * _US) if self._changed_us is None else self._changed_us,
            allow_overlap=self._allow_overlap, definition=self.definition, is_saved=self.is_saved,
        )  # fmt: skip


def task_of(definition: str) -> NewTask:
    """Return the task of a definition, due now and without an id."""
    facts = json.loads(definition)
    return NewTask(id="", **{each: facts[each] for each in _FACTS} | {"body": facts["body"].encode("latin-1")})


class Repetitions:
    """The repetitions that one ``DurableTasks`` declares, which may change while they are placed, and those saved in its queue.

    Args:
        queue: the queue.
        functions: the functions, as (name, version), of which saved repetitions are placed.

    Attributes:
        declared: by name.
        lock: held while they are placed, and while one is removed; of the event loop in which the store is open.
        placings: those who place them now.
    """

    def __init__(self, queue: str = "", functions: Collection[tuple[str, int]] = ()) -> None:
        self.queue = queue
        self.functions = functions
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
        self._seen: list[ChangedRepetition] = []  # at the last look
        self._saved: dict[ChangedRepetition, Repetition | None] = {}  # None if it cannot be read here

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

    async def notice(self) -> None:
        """Look at once if users have changed repetitions since the last look."""
        if await self._store.changed_repetitions(self._repetitions.queue) != self._seen:
            self.changed.set()

    async def look(self) -> float:
        """Place what is next; return the seconds until the next look."""
        async with self._repetitions.lock:
            known = {**await self._read_saved(), **self._repetitions.declared}
            wall = self._clock.wall()
            until = wall + self._seconds
            after = dict.fromkeys(sorted(known), wall)
            waiting: set[str] = set()
            is_busy = False
            for _ in range(3):  # again, after the last one or after the pause, where the next one is not placed
                found = [each for name, when in after.items() if (each := self._next(known[name], when)) is not None]
                after = {}
                placed = await self._store.place(self._owner(), found) if found else []
                for asked, answer in zip(found, placed, strict=True):
                    waiting.add(answer.id)
                    if answer.placement is Placement.PLACED:
                        until = min(until, answer.due_us / _US)
                    elif answer.placement is Placement.PAST:
                        after[asked.name] = answer.due_us / _US
                    elif answer.placement is Placement.PAUSED and answer.due_us:
                        after[asked.name] = (answer.due_us - 1) / _US  # at its end, repetitions go on
                    is_busy = is_busy or answer.placement is Placement.BUSY
            self.waiting = frozenset(waiting)
        if is_busy:
            until = min(until, wall + self._busy_seconds)
            self._busy_seconds = min(2 * self._busy_seconds, _BUSY_SECONDS_MAX)
        else:
            self._busy_seconds = _BUSY_SECONDS
        return max(0.0, until - self._clock.wall())

    async def _read_saved(self) -> dict[str, Repetition]:
        """Return the saved repetitions of functions that are known here, by name."""
        if not self._repetitions.functions:
            return {}
        self._seen = await self._store.changed_repetitions(self._repetitions.queue)
        known = self._saved
        self._saved = {each: known[each] if each in known else _read(each) for each in self._seen if each.definition}
        found = [each for each in self._saved.values() if each is not None]
        return {each.name: each for each in found if each.function in self._repetitions.functions}

    def _next(self, repetition: Repetition, after: float) -> Occurrence | None:
        since = 0.0 if repetition.is_saved else self._since.setdefault(repetition, self._clock.wall())
        return repetition.next_occurrence(after, since)


def _read(saved: ChangedRepetition) -> Repetition | None:
    try:
        return Repetition.read(saved)
    except Exception as error:  # noqa: BLE001  # a newer release may have saved it, or an extra is missing here
        LOGGER.warning("durable tasks: the repetition %r cannot be placed here: %r", saved.name, Masked(error))
        return None


def is_of_repetition(task: NewTask) -> bool:
    """True if the id or the lane of a task is of the form that occurrences of repetitions have."""
    return name_of(task.id) is not None or (task.lane or "").startswith(LANE_PREFIX)


def fixed_times(period: float) -> Callable[[float], float]:
    """Return ``next_after`` for the multiples of a period in seconds since the epoch: the same in every process.

    They are rounded up to whole microseconds, as stores keep them, so that the next one is always later.
    """
    period_us = Fraction(repr(period)) * _US
    return lambda wall: math.ceil((round(wall * _US) // period_us + 1) * period_us) / _US
