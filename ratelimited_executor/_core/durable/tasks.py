"""Durable tasks as a store accepts them and hands them out.

States and moves::

    put ──┬─▶ SCHEDULED ── due ──▶ READY ── claim ──▶ CLAIMED ──┬─▶ done, cancelled or expired: gone, or in the history
          │       ▲                  ▲                          ├─▶ SCHEDULED   failed, and is retried; or snoozed
          │       └──────────┬───────┘                          ├─▶ READY       released, or its process has died
          └─▶ BEHIND ── it becomes the head of its lane         ├─▶ UNKNOWN     its function is not registered there
                                                                └─▶ DEAD        failed for the last time
    UNKNOWN ── a process that knows its function starts ──▶ READY
    DEAD ── requeue ──▶ READY (or BEHIND); remove ──▶ gone
    READY ── a claim, during a pause ──▶ PAUSED ── a claim, after it ──▶ READY

Every move out of CLAIMED names the claim's token, and changes nothing if the task has been claimed again since: a
process that was presumed dead can neither end nor delay a task that another process now runs. Source of the token: M.
Kleppmann, "How to do distributed locking", 2016 (fencing).

All times are integers in microseconds: instants since the epoch by the store's clock, or spans.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "CHANGING",
    "LEVELS_MAX",
    "NOT_OPEN",
    "NO_KEY",
    "REMEMBERED_US",
    "SIZE_MAX",
    "SPAN_MAX",
    "BacklogRow",
    "Beat",
    "ChangedRepetition",
    "Claim",
    "Claimed",
    "Claims",
    "Duplicate",
    "Durability",
    "DurableState",
    "End",
    "EndedRow",
    "KeptTask",
    "LaneRow",
    "NewTask",
    "Occurrence",
    "OnDuplicate",
    "Placed",
    "Placement",
    "Ref",
    "RepetitionRow",
    "TaskOutcome",
    "TaskRow",
    "Turns",
    "UniqueKey",
    "backlog_rows",
    "cut",
    "key_from",
    "read_size",
]  # fmt: skip

SPAN_MAX: Final = 1e12
"""Maximum seconds from now or from the epoch: 30,000 years. A sum of several still fits into the 64 bits of a store."""

SIZE_MAX: Final = 8 * 1024 * 1024
"""Bytes of the bodies of tasks in one call of a store, beyond which it is split: no call is long, or needs much memory."""

REMEMBERED_US: Final = 86_400 * 1_000_000
"""Vouched time for which the id of an ended task is remembered, if the caller chose the id."""

LEVELS_MAX: Final = 1000
"""Priorities of a queue at which a store looks for its oldest due task, the largest ones: there are rarely more than a few."""

NOT_OPEN: Final = "it is not open: enter DurableTasks with 'async with' first"
"""The reason of a store that is used before it was opened, or after it was closed."""

NO_KEY: Final = " "
"""The key of tasks without one, in :class:`Turns`: it differs from every encoded key, and sorts before all."""


class Durability(Enum):
    """The failures that a task survives once its put has returned."""

    FSYNC = "fsync"
    """A power failure: the task is on the disk, unless the disk reports a write that it has not made."""
    LAG = "lag"
    """The end of the process. A power failure of the server, or a failover, may lose the last changes."""
    MEMORY = "memory"
    """None: the task is lost with the process."""


class DurableState(IntEnum):
    """The state of a durable task, which is in its store: every state is true, and prints as its name.

    Stores keep the numbers; what is PAUSED they keep as UNKNOWN with a mark, as processes of older releases know no more.
    """

    SCHEDULED = 0
    """The task is not due yet."""
    READY = 1
    """The task is due: any process may claim it."""
    BEHIND = 2
    """The task waits behind other tasks of its lane."""
    CLAIMED = 3
    """A process has claimed the task, and runs it or will run it soon."""
    UNKNOWN = 4
    """The task was set aside by a process that does not know its function."""
    DEAD = 5
    """The task is a dead letter: it failed for the last time."""
    PAUSED = 6
    """The task was due during a pause, and was set aside until that ends."""

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return Enum.__str__(self)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class OnDuplicate(Enum):
    """What a unique put does if its task exists already. A task that a process has claimed is never changed."""

    KEEP = "keep"
    """The existing task stays as it is."""
    REFUSE = "refuse"
    """The existing task stays as it is, and the put raises ``DuplicateTaskError``."""
    REPLACE = "replace"
    """A waiting task takes the arguments and the cost of the put, and its priority if that is larger."""
    DEBOUNCE = "debounce"
    """As REPLACE, and a task that has not been tried yet also takes the due time of the put."""


CHANGING: Final = frozenset({OnDuplicate.REPLACE, OnDuplicate.DEBOUNCE})
"""Under these, a put changes the existing task if it waits."""


class UniqueKey(NamedTuple):
    """What makes a task unique: of the tasks with one key, only one waits.

    Attributes:
        key: the key, in the whole store; without NUL.
        period_us: how long after its put a task counts, whatever has become of it, unless it was cancelled; 0 if only
            while it exists. At most ``REMEMBERED_US``, and the task is named: its end is looked up.
        while_running: True if a claimed task counts; otherwise another may be put beside it.
        on_duplicate: what becomes of the existing task; a store takes REFUSE for KEEP.
        delay_max_us: how long after its put a task may be due at most, by DEBOUNCE; None for no limit.
    """

    key: str
    period_us: int = 0
    while_running: bool = True
    on_duplicate: OnDuplicate = OnDuplicate.KEEP
    delay_max_us: int | None = None

    @property
    def is_changing(self) -> bool:
        """True if a waiting task is changed."""
        return self.on_duplicate in CHANGING

    def until(self, now_us: int) -> int:
        """Return the end of the period of a task that is put now; 0 if it has none."""
        return now_us + self.period_us if self.period_us else 0

    def is_within_period(self, now_us: int, until_us: int) -> bool:
        """True if now is in the period that ends at a time; not if the clock was set back to before that period."""
        return until_us - self.period_us <= now_us < until_us

    def limited(self, due_us: int, put_us: int, now_us: int) -> int:
        """Return the due time of a task that is debounced, and was put at a time."""
        return due_us if self.delay_max_us is None else min(due_us, max(now_us, put_us + self.delay_max_us))


class Duplicate(NamedTuple):
    """The answer to a put whose task exists already, by its unique key.

    Attributes:
        id: the id of that task.
        is_changed: True if the put has changed it.
    """

    id: str
    is_changed: bool


class NewTask(NamedTuple):
    """A task to put into a store.

    Attributes:
        id: identifies it in the whole store: a second task with the same id is a duplicate.
        queue: its queue, whose processes run it.
        name: its function's registered name.
        version: its function's version.
        body: its encoded arguments.
        due_us: its due time; None for ``delay_us`` from now.
        delay_us: the time from now until it is due, >= 0; not used with ``due_us``.
        expires_us: how long after its due time it may start, > 0, at each attempt; None for no limit.
        priority: of due tasks, the largest is claimed first.
        lane: its lane, whose tasks run one at a time, in the order in which they become due; None for none.
        is_blocking: True if its lane waits while it is retried, and while it is a dead letter.
        key: its key in the executor, encoded; None for none.
        cost: its cost in the executor, encoded; None for one permit.
        is_named: True if the id is remembered for a while after the task's end, as the user chose it, or it has a period.
        unique: what makes it unique; None if nothing does. Its id is new then.
    """

    id: str
    name: str
    queue: str = "default"
    version: int = 1
    body: bytes = b""
    due_us: int | None = None
    delay_us: int = 0
    expires_us: int | None = None
    priority: float = 0.0
    lane: str | None = None
    is_blocking: bool = True
    key: str | None = None
    cost: str | None = None
    is_named: bool = False
    unique: UniqueKey | None = None

    def due_at(self, now_us: int) -> int:
        """Return when it is due, if it is put now."""
        return now_us + self.delay_us if self.due_us is None else self.due_us


class Ref(NamedTuple):
    """One claim of one task.

    Attributes:
        number: the task's number in its store, never used twice.
        token: the claim's fencing token, which rises with each claim of the task.
    """

    number: int
    token: int


def key_from(text: str | None) -> str | int | None:
    """Return the key that a user gave, from its encoded form."""
    return None if text is None else _read_key(text)


_read_key: Final = functools.lru_cache(10_000)(json.loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Claims in turn by key: the due tasks of the largest priority first, and of these some of each key.

    The keys of a priority follow each other in the order of their encoded texts, and the first follows the last. Tasks
    without a key share one, ``NO_KEY``. The last priority of a claim is one of whose keys some has due tasks left.

    Attributes:
        each: the largest number of tasks of one key and priority, >= 1 ...
        others: ... except of these, >= 0.
        after: the key, by priority, after which to begin; a priority without one begins with its first key.
    """

    each: int = 1
    others: Mapping[tuple[float, str], int] = field(default_factory=dict)
    after: Mapping[float, str] = field(default_factory=dict)

    def quota(self, priority: float, key: str) -> int:
        """Return the largest number of tasks of a key and priority."""
        return self.others.get((priority, key), self.each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A request for tasks.

    Attributes:
        owner: the process, which has joined the store.
        queue: the queue of the tasks.
        count: the largest number of tasks, >= 1.
        ahead_us: how long before their due time tasks may be claimed.
        unknown: functions, as (name, version), whose tasks are left to other processes.
        full_keys: keys whose tasks are left to other processes, or for later.
        above: claims only tasks with a larger priority, and those that ``before_us`` admits.
        before_us: also claims tasks with priority ``above`` that are due within this time from now; None for none.
        size: the largest sum of the bytes of their bodies; the first task is claimed whatever its size.
        turns: claims due tasks in turn by key, and others only if no key has due tasks left; None to claim by priority and
            due time alone.
    """

    owner: str
    queue: str = "default"
    count: int
    ahead_us: int = 0
    unknown: frozenset[tuple[str, int]] = frozenset()
    full_keys: frozenset[str] = frozenset()
    above: float = -math.inf
    before_us: int | None = None
    size: int = SIZE_MAX
    turns: Turns | None = None


class Claimed(NamedTuple):
    """A claimed task; other fields are as in :class:`NewTask`.

    Attributes:
        in_us: the time until it is due; negative if it is overdue.
        expires_in_us: the time until it expires; None for no limit.
        attempt_count: failed attempts.
        lost_count: claims that ended with their process: the first, and of the others those that had been started.
        saved: the state that an earlier attempt has saved, encoded; None if none has.
    """

    ref: Ref
    id: str
    name: str
    version: int
    body: bytes
    in_us: int
    expires_in_us: int | None
    priority: float
    lane: str | None
    key: str | None
    cost: str | None
    attempt_count: int
    lost_count: int
    saved: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of its body and its saved state."""
        return len(self.body) + len(self.saved or b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The answer to a :class:`Claim`.

    Attributes:
        tasks: the claimed tasks, in the order in which they were found.
        next_in_us: the time until the next claim is worthwhile, 0 if more tasks are ready; None if none is scheduled.
        expired_count: expired tasks, which were deleted.
    """

    tasks: tuple[Claimed, ...] = ()
    next_in_us: int | None = None
    expired_count: int = 0


class Beat(NamedTuple):
    """The answer to an owner that renews its lease.

    Attributes:
        cancelled: its claims whose tasks were cancelled.
        claimed_count: how many claims it has: more than it knows if an answer was lost, or the store has lost an end.
    """

    cancelled: tuple[Ref, ...]
    claimed_count: int


class End(Enum):
    """How a claim ends."""

    DONE = "done"
    """The task has run, and is deleted."""
    RETRY = "retry"
    """The task failed, and is due again after a delay."""
    DEAD = "dead"
    """The task failed for the last time, and becomes a dead letter."""
    RELEASED = "released"
    """The task did not run, or not to its end: any process may claim it, and no attempt is counted."""
    UNKNOWN = "unknown"
    """The task is set aside, because its function is not registered in this process."""
    EXPIRED = "expired"
    """The task did not start in time, and is deleted."""
    CANCELLED = "cancelled"
    """The task was cancelled, and is deleted."""
    SNOOZED = "snoozed"
    """The task asked to run later: it is due again after a delay, and no attempt is counted."""


class KeptTask(NamedTuple):
    """What is kept of a task in the history of its store, if the end of a claim is that of the task.

    Attributes:
        id: its id, and so on, as in :class:`NewTask` and :class:`Claimed`.
        run_us: how long its last attempt ran; 0 if that did not start.
        keep_us: for how long it is kept, by the store's clock.
        result: what it returned, encoded; None if that is not kept.
        error: why a result that was to be kept is not; empty otherwise.
    """

    id: str
    queue: str
    name: str
    version: int
    attempt_count: int
    run_us: int
    keep_us: int
    result: bytes | None = None
    error: str = ""


class TaskOutcome(NamedTuple):
    """The end of one claim.

    Attributes:
        ref: the claim.
        end: how it ended.
        delay_us: the time until it is due again, for RETRY and SNOOZED.
        error: the error of the attempt, for RETRY and DEAD.
        kept: what is kept of the task if it has ended; None for nothing.
    """

    ref: Ref
    end: End
    delay_us: int = 0
    error: str = ""
    kept: KeptTask | None = None


class Occurrence(NamedTuple):
    """The next occurrence of a repetition, as a process that declares the repetition would put it.

    Attributes:
        name: the name of the repetition, in the whole store.
        task: the task, with an id and a due time.
        schedule: the times of the repetition, for display.
        spec: differs between two declarations that differ in anything: times, function, arguments, options.
        since_us: when its process began to declare it; if it was saved, when it was changed last.
        allow_overlap: True to put it although the previous one has not ended.
        definition: the repetition as text, from which any process can put its task; the same if it has not changed.
        is_saved: True if the repetition was saved, and is not declared by code: nothing is put if it has changed since.
    """

    name: str
    task: NewTask
    schedule: str
    spec: str
    since_us: int
    allow_overlap: bool = False
    definition: str = ""
    is_saved: bool = False


class Placement(Enum):
    """What became of an occurrence."""

    PLACED = "placed"
    """It is in the store, put now or before, or a later one is."""
    BUSY = "busy"
    """An earlier occurrence has not ended."""
    PAST = "past"
    """It has been placed before, and has ended or was cancelled; or a later one was."""
    SUPERSEDED = "superseded"
    """A process that began later declares the repetition otherwise; or it was saved, and has been changed since."""
    PAUSED = "paused"
    """The repetition is paused when the occurrence would be due."""


class Placed(NamedTuple):
    """The answer to an occurrence.

    Attributes:
        placement: what became of it.
        id: of the occurrence that was placed last; empty if there is none.
        due_us: when that is or was due; for PAUSED when the pause ends, 0 if it does not.
    """

    placement: Placement
    id: str
    due_us: int


class ChangedRepetition(NamedTuple):
    """A repetition that users have saved, paused, resumed or skipped.

    Attributes:
        name: its name.
        definition: what was saved; empty if code declares it.
        changed_us: when they did so last; it rises with each change.
    """

    name: str
    definition: str
    changed_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionRow:
    """A repetition in a store, for display.

    Attributes:
        name: its name.
        queue: the queue of its tasks.
        function: the registered name of its function.
        schedule: its times, as text.
        id: the id of the occurrence that was placed last; it may have ended. Empty if there is none.
        due_us: when that is or was due; 0 if there is none.
        is_declared: True if the process that declared it last, or placed it if it was saved, still runs. If not, another
            process takes that over within a minute; if none does, no running code declares it, or knows its function.
        is_saved: True if it was saved; False if code declares it.
        is_paused: True if it is paused.
        until_us: when its pause ends by itself; None if it does not, or there is none.
        next_us: when its next occurrence is due, which waits in the store; None if none waits.
        definition: what it puts, as JSON; empty if a process of an older release has declared it.
    """

    name: str
    queue: str
    function: str
    schedule: str
    id: str
    due_us: int
    is_declared: bool
    is_saved: bool = False
    is_paused: bool = False
    until_us: int | None = None
    next_us: int | None = None
    definition: str = ""

    @property
    def overlap(self) -> str:
        """What happens to an occurrence that is due before the previous one has ended; empty if it is not known."""
        return str(json.loads(self.definition)["overlap"]) if self.definition else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task in a store, for display; other fields are as in :class:`NewTask` and :class:`Claimed`.

    Attributes:
        put_us: when it was put.
        key: its key in the executor, as it was given; None for none.
        owner: the process that has claimed it; empty if none has.
        is_cancelled: True if it was cancelled while claimed, and its owner has not ended it yet.
        error: the error of its last failed attempt; empty if none failed.
        saved: the state that it saved last, encoded; None if it has saved none.
    """

    number: int
    id: str
    queue: str
    name: str
    version: int
    body: bytes
    state: DurableState
    put_us: int
    due_us: int
    priority: float
    lane: str | None
    key: str | int | None
    attempt_count: int
    lost_count: int
    owner: str
    is_cancelled: bool
    error: str
    saved: bytes | None = None

    @property
    def error_line(self) -> str:
        """The type of the last error and the first line of its message; empty if no attempt failed."""
        lines = self.error.splitlines()
        lines = [line[4:] for line in lines if line.startswith("  | ")] or lines  # the outermost exception group
        frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
        rest = lines[frames[-1] + 1 :] if frames else lines  # after the code of the last frame, which is indented
        found = (line for line in rest if line and not line[0].isspace() and not line.startswith("Traceback "))
        return next(found, lines[-1] if lines else "")

    @property
    def error_class(self) -> str:
        """The type of the last error alone, with its module unless that is a built-in one; empty if no attempt failed."""
        return self.error_line.partition(": ")[0]


def read_size(body_max: int | None = None) -> int:
    """Return how many bytes of the arguments, and of the saved state, a database is to give: for None more than a task has."""
    return 2**30 if body_max is None else min(body_max, 2**30)


def cut(row: TaskRow, body_max: int) -> TaskRow:
    """Return a row with the first bytes of the arguments and of the saved state alone."""
    return replace(row, body=row.body[:body_max], saved=(row.saved or b"")[:body_max] or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRow:
    """A task that has ended and is kept in the history of its store; other fields are as in :class:`TaskRow`.

    Attributes:
        number: rises from end to end.
        end: how it ended: ``"done"``, ``"cancelled"`` or ``"expired"``.
        attempt_count: its failed attempts.
        run_us: how long its last attempt ran; 0 if that did not start.
        ended_us: when it ended.
        result: what it returned, encoded; None if that is not kept.
        error: why a result that was to be kept is not; empty otherwise.
    """

    number: int
    id: str
    queue: str
    name: str
    version: int
    end: str
    attempt_count: int
    run_us: int
    ended_us: int
    result: bytes | None
    error: str

    @property
    def started_us(self) -> int:
        """When its last attempt started."""
        return self.ended_us - self.run_us


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRow:
    """A lane in which tasks wait for others, for display.

    Attributes:
        lane: its name.
        behind_count: tasks behind its head.
        head_id: the id of its head.
        head_state: the state of its head.
    """

    lane: str
    behind_count: int
    head_id: str
    head_state: DurableState


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogRow:
    """The tasks of one function that are READY, BEHIND, DEAD or PAUSED, counted.

    Attributes:
        queue: their queue.
        name: the registered name of their function, in all versions.
        state: their state.
        count: how many they are.
        due_us: the least of their due times; that of a dead letter is the due time of its last attempt.
    """

    queue: str
    name: str
    state: DurableState
    count: int
    due_us: int


def backlog_rows(parts: Iterable[tuple[str, str, int, int, int]]) -> list[BacklogRow]:
    """Return rows, in order, from parts of them: queue, name, state, count and least due time."""
    merged: dict[tuple[str, str, int], tuple[int, int]] = {}
    for queue, name, state, count, due_us in parts:
        known, least_us = merged.get((queue, name, state), (0, due_us))
        merged[queue, name, state] = known + count, min(least_us, due_us)
    return [
        BacklogRow(queue=queue, name=name, state=DurableState(state), count=count, due_us=due_us)
        for (queue, name, state), (count, due_us) in sorted(merged.items())
    ]
