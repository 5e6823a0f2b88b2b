"""Durable repetitions in a store: tasks that are put again and again, each occurrence once over all processes.

A repetition has a row, with the occurrence that was placed last. Its next one is placed by any process that declares
the repetition, once that one has ended, and never at or before the time of that one: so it is known that a cancelled
one was placed. If processes differ in what they declare, the one that began last decides while its lease lasts;
an occurrence by another declaration that still waits is deleted.

Occurrences
    One *waits* until a process claims it for the first time. What was claimed once, and is retried, snoozes or was released,
    goes on like one that is claimed now, whatever users do to the repetition. One that was skipped or cancelled is
    remembered as ended when the next one is placed, or the repetition is deleted: it is not placed again, whatever is
    declared or paused after that.

Saved
    A repetition that was saved is declared by all processes of its queue that know its function, from the definition in
    its row. What a process has read may be old: it places nothing unless the row still has that definition. What code
    declares is not saved over; code that declares what was saved takes it over.

Pauses
    A paused repetition places no occurrence that is due before the end of the pause. Those that wait are deleted when the
    pause begins, as if the last one had never been placed: after a resume, the first occurrence from then on is placed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

from ratelimited_executor._core.durable.pauses import ENDED, is_in_force
from ratelimited_executor._core.durable.tasks import (
    REMEMBERED_US,
    ChangedRepetition,
    Duplicate,
    DurableState,
    Placed,
    Placement,
    RepetitionRow,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratelimited_executor._core.durable.ready import Task
    from ratelimited_executor._core.durable.tasks import NewTask, Occurrence

__all__ = ["RepetitionRecord", "RepetitionTable", "is_waiting", "name_of", "notes_on", "repetition_row"]

_OCCURRENCE: Final = re.compile(r"@\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\Z")  # the end of the id of an occurrence


class RepetitionRecord(NamedTuple):
    """What a store keeps of a repetition.

    Attributes:
        owner: the process that declared it last.
        since_us: since when it has.
        spec: what it has declared.
        queue: the queue of its tasks.
        function: the registered name of its function.
        schedule: its times, as text.
        last_spec: by which the last occurrence was placed; empty if that says nothing about the next one.
        last_id: the id of that; empty if there is none.
        last_due_us: when that is or was due.
        placed_us: when it was placed.
        definition: what it puts.
        is_saved: 1 if it was saved, 0 if code declares it.
        until_us: when its pause ends; None for an open end, ``ENDED`` if there is none.
        changed_us: when users changed it last.
    """

    owner: str = ""
    since_us: int = 0
    spec: str = ""
    queue: str = ""
    function: str = ""
    schedule: str = ""
    last_spec: str = ""
    last_id: str = ""
    last_due_us: int = 0
    placed_us: int = 0
    definition: str = ""
    is_saved: int = 0
    until_us: int | None = ENDED
    changed_us: int = 0

    @property
    def is_new(self) -> bool:
        """True if nobody has declared or saved it yet."""
        return not (self.spec or self.is_saved)

    @property
    def overlaps(self) -> bool:
        """True if earlier occurrences may wait beside the last one."""
        return '"overlap":"skip"' not in self.definition

    def is_changed(self, asked: Occurrence) -> bool:
        """True if it was saved, and is no longer what the process of an occurrence has read."""
        return asked.is_saved and not (self.is_saved and self.definition == asked.definition)

    def is_superseded(self, asked: Occurrence) -> bool:
        """True if another process, which began later, declares it otherwise."""
        return self.spec != asked.spec and self.since_us >= asked.since_us

    def is_outdated(self, asked: Occurrence, now_us: int) -> bool:
        """True if the last occurrence says nothing about the next one.

        It was placed by another declaration. Or the clock was set back since by more than a day: the repetition goes on.
        """
        return self.last_spec != asked.spec or now_us < self.placed_us - REMEMBERED_US

    def declared(self, owner: str, asked: Occurrence, *, is_others: bool) -> RepetitionRecord:
        """Return it as a process declares it, unless another one did so later, and still runs: ``is_others``."""
        stays = is_others and self.since_us >= asked.since_us
        return self._replace(
            owner=self.owner if stays else owner, since_us=self.since_us if stays else asked.since_us, spec=asked.spec,
            queue=asked.task.queue, function=asked.task.name, schedule=asked.schedule, definition=asked.definition,
            is_saved=int(asked.is_saved),
        )  # fmt: skip

    def placed(self, asked: Occurrence, now_us: int) -> RepetitionRecord:
        """Return it with another last occurrence."""
        assert asked.task.due_us is not None
        return self._replace(
            last_spec=asked.spec, last_id=asked.task.id, last_due_us=asked.task.due_us, placed_us=now_us
        )

    def dropped(self) -> RepetitionRecord:
        """Return it as if the last occurrence had not been placed, but those before it had been."""
        return self._replace(last_id="", last_due_us=self.last_due_us - 1)

    def changed(self, now_us: int) -> RepetitionRecord:
        """Return it as users have changed it now."""
        return self._replace(changed_us=max(now_us, self.changed_us + 1))

    def saved(self, definition: str, queue: str, function: str, schedule: str) -> RepetitionRecord:
        """Return it with another definition."""
        return self._replace(definition=definition, queue=queue, function=function, schedule=schedule, is_saved=1)

    def paused(self, until_us: int | None, now_us: int, *, is_dropped: bool) -> RepetitionRecord:
        """Return it with another end of its pause; what waits for the end of the former pause may be replaced."""
        record = self.dropped() if is_dropped else self
        if self.until_us is not None and self.until_us > now_us:
            record = record._replace(last_spec="")
        return record._replace(until_us=until_us)


class RepetitionTable(ABC):
    """The repetitions of a table of tasks, in memory."""

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}
        self._numbers: dict[str, int] = {}  # id -> number
        self._repetitions: dict[str, RepetitionRecord] = {}
        self._passed: dict[str, int] = {}  # id of a skipped or cancelled occurrence -> vouched time, as of its end

    def place(self, now_us: int, owner: str, occurrences: Iterable[Occurrence]) -> list[Placed]:
        """Put the next occurrences of repetitions that an owner declares, as far as their time has come."""
        return [self._place_one(now_us, owner, each) for each in occurrences]

    def repetitions(self, now_us: int) -> list[RepetitionRow]:
        """Return the repetitions, by name."""
        return [
            repetition_row(
                name, record, now_us, is_declared=self._has_lease(record.owner),
                is_waiting=(last := self._find(record.last_id)) is not None and is_waiting(last.state, last.token),
            )
            for name, record in sorted(self._repetitions.items())
        ]  # fmt: skip

    def changed_repetitions(self, queue: str) -> list[ChangedRepetition]:
        """Return the repetitions of a queue that users have changed, by name."""
        return [
            ChangedRepetition(name, record.definition if record.is_saved else "", record.changed_us)
            for name, record in sorted(self._repetitions.items())
            if record.queue == queue and record.changed_us
        ]

    def save_repetition(
        self, now_us: int, name: str, *, definition: str, queue: str, function: str, schedule: str
    ) -> bool | None:
        """Save a repetition; return True if it is new, None, with nothing changed, if code declares it."""
        known = self._repetitions.get(name, RepetitionRecord())
        if not (known.is_saved or known.is_new):
            return None
        if known.definition != definition or not known.is_saved:
            record = known.dropped() if self._drop_waiting(now_us, self._ids_of(name, known)) else known
            self._repetitions[name] = record.saved(definition, queue, function, schedule).changed(now_us)
        return known.is_new

    def pause_repetition(self, now_us: int, name: str, until_us: int | None) -> bool | None:
        """Set the end of a repetition's pause; return True if it was paused, None if there is no such repetition."""
        known = self._repetitions.get(name)
        if known is None:
            return None
        is_dropped = self._drop_waiting(now_us, self._ids_of(name, known), until_us)
        self._repetitions[name] = known.paused(until_us, now_us, is_dropped=is_dropped).changed(now_us)
        return is_in_force(known.until_us, now_us)

    def skip_repetition(self, now_us: int, name: str) -> int | None:
        """Delete the occurrence that waits; return when it was due, None if none waits."""
        known = self._repetitions.get(name)
        if known is None or not self._drop_waiting(now_us, [known.last_id]):
            return None
        self._repetitions[name] = known.changed(now_us)
        return known.last_due_us

    def forget(self, now_us: int, names: Iterable[str]) -> int:
        """Delete repetitions, and their occurrences that wait; return how many there were."""
        records = {name: self._repetitions.pop(name) for name in names if name in self._repetitions}
        for name, record in records.items():
            self._pass_last(now_us, record)
            self._drop_waiting(now_us, self._ids_of(name, record))
        return len(records)

    def _place_one(self, now_us: int, owner: str, asked: Occurrence) -> Placed:
        known = self._repetitions.get(asked.name, RepetitionRecord())
        if known.is_changed(asked):
            return Placed(Placement.SUPERSEDED, "", 0)
        is_others = known.owner != owner and self._has_lease(known.owner)
        if is_others and known.is_superseded(asked):
            return Placed(Placement.SUPERSEDED, known.last_id, known.last_due_us)
        record = self._repetitions[asked.name] = known.declared(owner, asked, is_others=is_others)
        placement = self._placement(now_us, record, asked)
        if placement is Placement.PAUSED:
            return Placed(placement, record.last_id, record.until_us or 0)
        if placement is None:
            record = self._repetitions[asked.name] = record.placed(asked, now_us)
            placement = Placement.PLACED if self._put_one(now_us, asked.task) is True else Placement.PAST
        return Placed(placement, record.last_id, record.last_due_us)

    def _placement(self, now_us: int, record: RepetitionRecord, asked: Occurrence) -> Placement | None:
        """Return what becomes of an occurrence; None if it is to be put."""
        due_us = asked.task.due_us or 0
        if is_in_force(record.until_us, due_us):
            return Placement.PAUSED
        is_other = record.is_outdated(asked, now_us)
        is_dropped = is_other and self._drop_waiting(now_us, [record.last_id])
        last = self._find(record.last_id)
        if last is not None and last.state is not DurableState.DEAD:
            if record.last_id == asked.task.id or (not is_other and record.last_due_us > due_us):
                return Placement.PLACED
            if not asked.allow_overlap:
                return Placement.BUSY
        if not is_other and due_us <= record.last_due_us:
            return Placement.PAST
        if not is_dropped:
            self._pass_last(now_us, record)
        return None

    def _ids_of(self, name: str, record: RepetitionRecord) -> list[str]:
        """Return the id of a repetition's last occurrence, and those of all others that exist."""
        others = [each for each in self._numbers if name_of(each) == name] if record.overlaps else []
        return [record.last_id, *others]

    def _drop_waiting(self, now_us: int, ids: Iterable[str], until_us: int | None = None) -> bool:
        """Delete those of some occurrences that wait, and are due before a time if given; return True for the first one."""
        dropped = []
        for task in map(self._find, ids):
            is_found = task is not None and is_waiting(task.state, task.token) and is_in_force(until_us, task.due_us)
            if task is not None and is_found:
                self._remove(now_us, task, is_remembered=False)
            dropped.append(is_found)
        return dropped[0]

    def _pass_last(self, now_us: int, record: RepetitionRecord) -> None:
        """Remember the last occurrence as ended if it is gone."""
        if record.last_id and self._find(record.last_id) is None:
            self._pass(record.last_id, ahead_us=max(0, record.last_due_us - now_us))

    def _find(self, task_id: str) -> Task | None:
        number = self._numbers.get(task_id)
        return None if number is None else self._tasks[number]

    @abstractmethod
    def _has_lease(self, owner: str) -> bool: ...

    @abstractmethod
    def _pass(self, task_id: str, *, ahead_us: int) -> None: ...

    @abstractmethod
    def _remove(self, now_us: int, task: Task, *, is_remembered: bool) -> None: ...

    @abstractmethod
    def _put_one(self, now_us: int, new: NewTask) -> bool | Duplicate: ...


def is_waiting(state: DurableState, token: int) -> bool:
    """True if no process has ever claimed a task; or if the last one that did has set it aside: perhaps no other knows its function."""
    return not token or state is DurableState.UNKNOWN


def name_of(task_id: str) -> str | None:
    """Return the name of the repetition of whose occurrences an id is; None if it is of another form."""
    found = _OCCURRENCE.search(task_id)
    return None if found is None else task_id[: found.start()]


def repetition_row(
    name: str, record: RepetitionRecord, now_us: int, *, is_declared: bool, is_waiting: bool
) -> RepetitionRow:
    """Return a repetition for display."""
    is_paused = is_in_force(record.until_us, now_us)
    return RepetitionRow(
        name=name, queue=record.queue, function=record.function, schedule=record.schedule, id=record.last_id,
        due_us=record.last_due_us if record.last_id else 0, is_declared=is_declared, is_saved=bool(record.is_saved),
        is_paused=is_paused,
        until_us=record.until_us if is_paused else None, next_us=record.last_due_us if is_waiting else None,
        definition=record.definition,
    )  # fmt: skip


def notes_on(row: RepetitionRow, until: str) -> str:
    """Return what a reader should know about a repetition; ``until`` is the end of its pause, as text."""
    notes = {
        "saved": row.is_saved,
        f"overlap: {row.overlap}": row.overlap not in ("", "skip"),
        "paused" if row.until_us is None else f"paused, ends {until}": row.is_paused,
        f"no running process {'knows its function' if row.is_saved else 'declares it'}": not row.is_declared,
    }
    return "; ".join(note for note, is_true in notes.items() if is_true)
