"""The encoding of durable tasks for the scripts in Redis: ``redis_rules.lua`` has the other side."""

from __future__ import annotations

import json
import struct
from dataclasses import make_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durable.history import FORGOTTEN_MAX
from ratelimited_executor._core.durable.pauses import KEPT_US, pause_rows
from ratelimited_executor._core.durable.repetitions import RepetitionRecord, repetition_row
from ratelimited_executor._core.durable.tasks import (
    NO_KEY,
    REMEMBERED_US,
    ChangedRepetition,
    Claimed,
    Duplicate,
    DurableState,
    End,
    EndedRow,
    OnDuplicate,
    Placed,
    Placement,
    Ref,
    TaskRow,
    key_from,
)
from ratelimited_executor._redis.lua import LuaScript

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ratelimited_executor._core.durable.pauses import PauseRow
    from ratelimited_executor._core.durable.tasks import (
        KeptTask,
        NewTask,
        Occurrence,
        RepetitionRow,
        TaskOutcome,
        Turns,
    )

__all__ = [
    "KEYS",
    "SCRIPTS",
    "VERSION",
    "PartRecord",
    "answers_of",
    "arguments_of",
    "changed_of",
    "ended_of",
    "function_of",
    "held_of",
    "kept_of",
    "key_of",
    "outcomes_of",
    "pauses_of",
    "place_of",
    "placed_of",
    "rank_of",
    "records_of",
    "refs_of",
    "repetitions_of",
    "rows_of",
    "states_of",
    "tasks_of",
    "turns_of",
    "unique_of",
]

VERSION: Final = 1  # of the layout
KEYS: Final = (
    "store", "ids", "tasks", "bodies", "ready", "scheduled", "heads", "behind", "claimed", "cancelled", "started", "expiring", "unknown",
    "dead", "lanes", "crowded", "owners", "ended", "repetitions", "turns", "unique", "pauses", "paused",
    "operated", "saved", "history", "ends", "kept",
)  # fmt: skip
_NEW: Final = struct.Struct("<BddII")
_UNIQUE: Final = struct.Struct("<IdBBd")
_OUTCOME: Final = struct.Struct("<8sdBd")
_NUMBER: Final = struct.Struct(">d")
_BITS: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct("<8sIII")
_KEPT: Final = struct.Struct("<IdI")
_KEPT_FACTS: Final = struct.Struct("<Ii")
_ENDED: Final = struct.Struct("<ddB")
_STATE: Final = struct.Struct("<8sdI")
_RECORD: Final = struct.Struct("<BBBddddIIddBB")
_RANK_SIZE: Final = 8
_OWNER: Final = struct.Struct("<d")
_QUOTA: Final = struct.Struct("<d")
_REF: Final = struct.Struct(">dd")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
_PLACEMENTS: Final = tuple(Placement)
_REPETITION: Final = struct.Struct("<ddd")
_OPERATED: Final = struct.Struct("<Bdd")
_PAUSE: Final = struct.Struct("<ddd")
_PAUSED: Final = "-"  # before the function of a paused task
_ENDS: Final = {end: number for number, end in enumerate(End)}
_ENDINGS: Final = tuple(end.value for end in End)
_CONSTANTS: Final[dict[str, Any]] = {
    "VERSION": VERSION,
    "REMEMBERED_US": REMEMBERED_US,
    "KEPT_US": KEPT_US,
    "FORGOTTEN_MAX": FORGOTTEN_MAX,
    **{state.name: state.value for state in DurableState},
    **{f"AS_{each.name}": number for number, each in enumerate(Placement)},
    **{f"END_{end.name}": number for end, number in _ENDS.items()},
}
# The arguments of each script, in the order in which arguments_of() takes them.
_FIELDS: Final[dict[str, dict[str, Any]]] = {
    "put": {"tasks": bytes, "unique": bytes},
    "join": {"owner": str, "lease_us": int, "former": str, "held": bytes},
    "beat": {"owner": str},
    "leave": {"owner": str},
    "claim": {
        "owner": str, "queue": str, "count": int, "ahead_us": int, "floor": bytes, "has_before": int, "before_us": int,
        "unknown": tuple, "full_keys": tuple, "after": bytes, "size": int, "is_in_turn": bool, "each": int, "quotas": bytes,
        "turn_after": bytes,
    },
    "start": {"refs": bytes},
    "save": {"states": bytes},
    "finish": {"outcomes": bytes, "kept": bytes},
    "cancel": {"ids": tuple},
    "cancelled": {"owner": str},
    "requeue": {"ids": tuple},
    "revive": {"queue": str, "functions": tuple, "after": int},
    "pause": {"what": str, "until_us": int},
    "pauses": {},
    "place": {
        "owner": str, "name": str, "since_us": int, "spec": str, "schedule": str, "allow_overlap": bool,
        "definition": str, "is_saved": bool, "task": bytes,
    },
    "repetitions": {},
    "changed_repetitions": {"queue": str},
    "save_repetition": {"name": str, "definition": str, "queue": str, "called": str, "schedule": str},
    "pause_repetition": {"name": str, "until_us": int},
    "skip_repetition": {"name": str},
    "forget": {"names": tuple},
    "find": {"ids": tuple},
    "rows": {"state": int, "after": int, "limit": int, "size": int, "newest_first": bool, "body_max": int},
    "ended": {"ids": tuple},
    "history": {"before": int, "limit": int},
    "counts": {},
    "backlog": {"state": int, "after": bytes},
    "latencies": {"levels": int},
    "lanes": {"limit": int},
}  # fmt: skip
_ARGUMENTS: Final = {name: make_dataclass(name, fields.items(), slots=True) for name, fields in _FIELDS.items()}
SCRIPTS: Final[dict[str, LuaScript[Any]]] = {
    name: LuaScript(__package__, ("redis_rules.lua", f"redis_{name}.lua"), keys=KEYS, arguments=arguments, **_CONSTANTS)
    for name, arguments in _ARGUMENTS.items()
}


def arguments_of(name: str, *values: Any) -> list[Any]:
    """Write the arguments of a script."""
    return SCRIPTS[name].write(_ARGUMENTS[name](*values))


def tasks_of(tasks: Iterable[NewTask]) -> bytes:
    """Write new tasks."""
    return b"".join(map(_new, tasks))


def unique_of(tasks: Iterable[NewTask]) -> bytes:
    """Write what makes tasks unique, each with its task's place."""
    return b"".join(
        _UNIQUE.pack(
            place, each.period_us, each.while_running,
            each.is_changing + (each.on_duplicate is OnDuplicate.DEBOUNCE),
            -1 if each.delay_max_us is None else each.delay_max_us,
        ) + each.key.encode() + b"\0"
        for place, task in enumerate(tasks, start=1)
        if (each := task.unique) is not None
    )  # fmt: skip


def answers_of(digits: bytes, *ids: bytes) -> list[bool | Duplicate]:
    """Read the answers to new tasks: a digit for each, and the ids of duplicates by their unique keys."""
    rest = iter(ids)
    return [each == b"1"[0] if each < b"2"[0] else Duplicate(next(rest).decode(), each == b"3"[0]) for each in digits]


def outcomes_of(outcomes: Iterable[TaskOutcome]) -> bytes:
    """Write the ends of claims."""
    return b"".join(
        _OUTCOME.pack(_NUMBER.pack(each.ref.number), each.ref.token, _ENDS[each.end], each.delay_us)
        + each.error.encode()
        + b"\0"
        for each in outcomes
    )


def kept_of(outcomes: Iterable[TaskOutcome]) -> bytes:
    """Write what is kept of tasks that have ended, each with its outcome's place."""
    return b"".join(
        _KEPT.pack(place, each.keep_us, len(facts)) + facts
        for place, outcome in enumerate(outcomes, start=1)
        if (each := outcome.kept) is not None
        for facts in (_kept_facts(each),)
    )


def _kept_facts(kept: KeptTask) -> bytes:
    task_id, queue, name, version, attempt_count, run_us, _, result, error = kept
    text = json.dumps([task_id, queue, name, version, attempt_count, run_us, error]).encode()
    return _KEPT_FACTS.pack(len(text), -1 if result is None else len(result)) + text + (result or b"")


def ended_of(record: bytes) -> EndedRow:
    """Read a task that has ended."""
    number, ended, end = _ENDED.unpack_from(record)
    length, size = _KEPT_FACTS.unpack_from(record, _ENDED.size)
    at = _ENDED.size + _KEPT_FACTS.size
    task_id, queue, name, version, attempt_count, run_us, error = json.loads(record[at : at + length])
    return EndedRow(
        number=int(number), id=task_id, queue=queue, name=name, version=version, end=_ENDINGS[end], attempt_count=attempt_count,
        run_us=run_us, ended_us=int(ended), result=None if size < 0 else record[at + length :], error=error,
    )  # fmt: skip


def states_of(states: Iterable[tuple[Ref, bytes]]) -> bytes:
    """Write states that tasks have saved."""
    return b"".join(_STATE.pack(_NUMBER.pack(ref.number), ref.token, len(state)) + state for ref, state in states)


def function_of(name: str, version: int) -> str:
    """Write a function."""
    return f"{version} {name}"


def key_of(text: str | None) -> str:
    """Write a text; None is written as an empty text."""
    return "" if text is None else f"={text}"


def turns_of(turns: Turns | None) -> tuple[Any, ...]:
    """Return the arguments of the script ``claim`` that describe turns."""
    if turns is None:
        return False, 0, b"", b""
    quotas = (
        rank_of(priority) + _turn_key_of(key) + _QUOTA.pack(quota) for (priority, key), quota in turns.others.items()
    )
    after = (rank_of(priority) + _turn_key_of(key) for priority, key in turns.after.items())
    return True, turns.each, b"".join(quotas), b"".join(after)


def _turn_key_of(key: str) -> bytes:
    return key_of(None if key == NO_KEY else key).encode() + b"\0"


@lru_cache(1024)
def rank_of(priority: float) -> bytes:
    """Encode a priority as bytes that sort in the order of claims: larger priorities first."""
    [bits] = _BITS.unpack(struct.pack(">d", 0.0 - priority))
    return _BITS.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))


@lru_cache(1024)
def _priority_of(rank: bytes) -> float:
    [bits] = _BITS.unpack(rank)
    [negative] = struct.unpack(">d", _BITS.pack(bits ^ (_SIGN if bits & _SIGN else _ALL)))
    return 0.0 - float(negative)


def place_of(owner: str, occurrence: Occurrence) -> tuple[Any, ...]:
    """Return the arguments of the script ``place``."""
    name, task, schedule, spec, since_us, allow_overlap, definition, is_saved = occurrence
    return owner, name, since_us, spec, schedule, allow_overlap, definition, is_saved, _new(task)


def placed_of(answer: Sequence[Any]) -> Placed:
    """Read what became of an occurrence."""
    number, task_id, due_us = answer
    return Placed(_PLACEMENTS[number], task_id.decode(), due_us)


def repetitions_of(now_us: int, owners: Sequence[bytes], *found: Any) -> list[RepetitionRow]:
    """Read repetitions, given as names and records; an older release writes no second record."""
    rows = []
    for name, record, operated, is_waiting in sorted(zip(*[iter(found)] * 4, strict=True)):
        since, due, placed = map(int, _REPETITION.unpack_from(record))
        owner, spec, queue, function, schedule, last_spec, task_id, _ = record[_REPETITION.size :].decode().split("\0")
        is_saved, changed, until = _OPERATED.unpack_from(operated or bytes(_OPERATED.size))
        known = RepetitionRecord(
            owner, since, spec, queue, function.partition(" ")[2], schedule, last_spec, task_id, due, placed,
            operated[_OPERATED.size :].decode(), is_saved, None if until < 0 else int(until), int(changed),
        )  # fmt: skip
        is_declared = owner.encode() in owners
        rows.append(repetition_row(name.decode(), known, now_us, is_declared=is_declared, is_waiting=bool(is_waiting)))
    return rows


def changed_of(found: Sequence[Any]) -> list[ChangedRepetition]:
    """Read repetitions that users have changed."""
    return [
        ChangedRepetition(name.decode(), definition.decode(), changed_us)
        for name, definition, changed_us in sorted(zip(*[iter(found)] * 3, strict=True))
    ]


def pauses_of(now_us: int, records: Sequence[bytes]) -> list[PauseRow]:
    """Read the pauses in force, of all, given as what they cover and records."""
    rows = []
    for what, record in zip(records[::2], records[1::2], strict=True):
        _, since, until = _PAUSE.unpack(record)
        rows.append((what.decode(), int(since), None if until < 0 else int(until)))
    return pause_rows(rows, now_us)


def refs_of(data: bytes) -> tuple[Ref, ...]:
    """Read numbers and tokens."""
    return tuple(Ref(int(number), int(token)) for number, token in _REF.iter_unpack(data))


def held_of(refs: Iterable[Ref]) -> bytes:
    """Write numbers and tokens."""
    return b"".join(_REF.pack(*ref) for ref in refs)


class PartRecord:
    """A task in a script's answer."""

    __slots__ = ("_body", "_cost", "_error", "_fields", "_number", "_rank", "_saved", "_texts")

    def __init__(self, number: bytes, record: bytes, body: bytes, saved: bytes) -> None:
        [value] = _NUMBER.unpack(number)
        self._number = int(value)
        self._fields = _RECORD.unpack_from(record)
        task_id, lane, rest = record[_RECORD.size :].split(b"\0", 2)
        self._rank = rest[:_RANK_SIZE]
        queue, function, key, self._error = rest[_RANK_SIZE:].split(b"\0", 3)
        self._texts = b"\0".join((task_id, lane, queue, function, key)).decode().split("\0")
        cost, _, self._body = body.partition(b"\0")
        self._cost = _text(cost.decode())
        self._saved = saved or None

    def claimed(self, now_us: int) -> Claimed:
        """Return the task as claimed."""
        _, _, _, due, _, _, token, attempt_count, lost_count, _, expires, _, _ = self._fields
        task_id, lane, _, function, key = self._texts
        version, _, name = function.partition(" ")
        in_us = int(due) - now_us
        return Claimed(
            ref=Ref(self._number, int(token)),
            id=task_id,
            name=name,
            version=int(version),
            body=self._body,
            in_us=in_us,
            expires_in_us=None if expires < 0 else in_us + int(expires),
            priority=_priority_of(self._rank),
            lane=_text(lane),
            key=_text(key),
            cost=self._cost,
            attempt_count=attempt_count,
            lost_count=lost_count,
            saved=self._saved,
        )

    def row(self, owners: Mapping[int, str]) -> TaskRow:
        """Return the task for display."""
        state, _, is_cancelled, due, _, put, _, attempt_count, lost_count, owner, _, _, _ = self._fields
        task_id, lane, queue, function, key = self._texts
        if function.startswith(_PAUSED):
            state, function = DurableState.PAUSED, function.removeprefix(_PAUSED)
        version, _, name = function.partition(" ")
        return TaskRow(
            number=self._number,
            id=task_id,
            queue=queue,
            name=name,
            version=int(version),
            body=self._body,
            state=DurableState(state),
            put_us=int(put),
            due_us=int(due),
            priority=_priority_of(self._rank),
            lane=_text(lane),
            key=key_from(_text(key)),
            attempt_count=attempt_count,
            lost_count=lost_count,
            owner=owners.get(int(owner), ""),
            is_cancelled=bool(is_cancelled),
            error=self._error.decode(),
            saved=self._saved,
        )


def records_of(data: bytes) -> Iterator[PartRecord]:
    """Read tasks."""
    at = 0
    while at < len(data):
        number, length, body_length, saved_length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        end = at + length
        body_end = end + body_length
        saved_end = body_end + saved_length
        yield PartRecord(number, data[at:end], data[end:body_end], data[body_end:saved_end])
        at = saved_end


def rows_of(data: bytes, owners: Sequence[bytes]) -> list[TaskRow]:
    """Read tasks for display, with the names of their owners."""
    names = {
        int(_OWNER.unpack_from(text)[0]): name.decode() for name, text in zip(owners[::2], owners[1::2], strict=True)
    }
    return [record.row(names) for record in records_of(data)]


def _new(task: NewTask) -> bytes:
    has_time = task.due_us is not None
    facts = b"".join((
        bytes((task.is_blocking, task.is_named)),
        f"{task.id}\0{key_of(task.lane)}\0".encode(),
        rank_of(task.priority),
        f"{task.queue}\0{function_of(task.name, task.version)}\0{key_of(task.key)}\0".encode(),
    ))  # fmt: skip
    body = key_of(task.cost).encode() + b"\0" + task.body
    head = _NEW.pack(
        has_time,
        task.due_us if has_time else task.delay_us,
        -1 if task.expires_us is None else task.expires_us,
        len(facts),
        len(body),
    )
    return head + facts + body


def _text(written: str) -> str | None:
    return written[1:] if written else None
