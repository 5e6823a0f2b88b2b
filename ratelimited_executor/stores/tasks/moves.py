"""The moves of durable tasks in SQL: a store's transactions, as programs that request statements.

Each function here is a generator. It yields the name of a statement and the arguments of each run, and is sent the rows
of all runs, in that order; or it yields rows that one run takes :class:`Together`. A store runs it inside a
transaction, and has the texts: ``statements.sql`` contains those that are the same everywhere. So one implementation of
the rules serves every database, both with a driver in a thread and with one on the event loop.

The rules are those of ``_core/durable/table.py``, whose docstring explains them. Databases that run several
transactions at once need one more: a transaction that moves tasks of lanes first locks the lanes, in the order of their
names, and then the tasks. SQLite has one writer, so this costs nothing there.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ratelimited_executor._core.durable.pauses import ENDED, MOVED_MAX, Pauses, is_in_force, pause_rows
from ratelimited_executor._core.durable.repetitions import is_waiting as waits
from ratelimited_executor._core.durable.table import vouched
from ratelimited_executor._core.durable.tasks import (
    LEVELS_MAX,
    REMEMBERED_US,
    Beat,
    Claimed,
    Claims,
    DurableState,
    End,
    LaneRow,
    Ref,
    TaskRow,
    backlog_rows,
    key_from,
    read_size,
)
from ratelimited_executor.stores.tasks.history import ended, forget_history, history, keep, save
from ratelimited_executor.stores.tasks.statements import Moves, Together
from ratelimited_executor.stores.tasks.turns import in_turn
from ratelimited_executor.stores.tasks.unique import parts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ratelimited_executor._core.durable.pauses import Pause, PauseRow
    from ratelimited_executor._core.durable.tasks import BacklogRow, Claim, Duplicate, NewTask, TaskOutcome
    from ratelimited_executor.stores.tasks.looks import Look
    from ratelimited_executor.stores.tasks.unique import HolderChange, UniquePart

Rows: TypeAlias = list[tuple[Any, ...]]

__all__ = ["backlog", "beat", "cancel", "cancelled", "claim", "counts", "ended", "find", "finish", "history", "join", "lanes", "latencies", "leave", "pause", "pauses", "put", "remember", "requeue", "resume", "revive", "rows", "save", "start"]  # fmt: skip

_BATCH: Final = 1000
"""Maximum tasks of one kind that a claim makes ready, or deletes as expired; the next claim continues."""
_NEVER: Final = -(2**62)  # before all times
_SAMPLE: Final = 1000
"""Rows of unique keys at which a beat looks, to delete those that no longer count; again while that is half of them."""
_SAMPLES_MAX: Final = 10
_DONE: Final = End.DONE  # members of an enum are slow to look up
_ROWS: Final = {  # states that may be rare, and whose statements name them so that the index of the state is used
    DurableState.BEHIND: "rows_behind",
    DurableState.CLAIMED: "rows_claimed",
    DurableState.UNKNOWN: "rows_unknown",
    DurableState.DEAD: "rows_dead",
    DurableState.PAUSED: "rows_paused",
}
_SCHEDULED, _READY, _BEHIND = int(DurableState.SCHEDULED), int(DurableState.READY), int(DurableState.BEHIND)


def put(now_us: int, tasks: Sequence[NewTask]) -> Moves[list[bool | Duplicate]]:
    """Add tasks, except those whose unique key has a task."""
    if not [new for new in tasks if new.unique is not None]:
        return (yield from _add(now_us, tasks))
    answers: list[bool | Duplicate] = []
    for part in parts_of(now_us, tasks):
        answers += yield from _put_unique(now_us, part)
    return answers


def _add(now_us: int, tasks: Sequence[NewTask]) -> Moves[list[bool | Duplicate]]:
    dues = [now_us + new.delay_us if new.due_us is None else new.due_us for new in tasks]
    last_places: dict[str, int] = {}
    for new, due_us in zip(tasks, dues, strict=True):
        if new.lane is not None:
            last_places[new.lane] = max(last_places.get(new.lane, 0), now_us if due_us <= now_us else 0)
    places = yield from _lock(last_places)
    rows_put = [_row_of(new, now_us, due_us, places) for new, due_us in zip(tasks, dues, strict=True)]
    [(last,)] = yield "last_number", [()]
    [(text,)] = yield "put", Together(rows_put, (last,))
    fresh = set(json.loads(text))
    named = [(new.id,) for new in tasks if new.is_named and new.id in fresh]
    if named:  # only now: another transaction may just have ended a task with this id
        deleted = yield "delete_ended_before", named
        fresh.difference_update(task_id for (task_id,) in deleted)
    yield from _settle(now_us, places)
    answers: list[bool | Duplicate] = []
    for new in tasks:  # of two tasks with one id in a call, the second is a duplicate
        answers.append(new.id in fresh)
        fresh.discard(new.id)
    return answers


def _put_unique(now_us: int, part: UniquePart) -> Moves[list[bool | Duplicate]]:
    keys = [(key,) for key in part.keys]
    yield "lock_unique", keys
    while True:  # again, if another transaction claims or ends a task between two statements
        changes = part.changes((yield "holder", keys))
        if (yield from _change(now_us, changes)):
            break
    added = part.added()
    answers = (yield from _add(now_us, added)) if added else []
    fresh = [(new.unique, new.id) for new in added if new.unique is not None]
    yield "set_unique", [(each.key, task_id, each.until(now_us)) for each, task_id in fresh]
    return part.answers(answers)


def _change(now_us: int, changes: Sequence[HolderChange]) -> Moves[bool]:
    """Change waiting tasks; return False if one of them no longer waits."""
    last_places: dict[str, int] = {}
    for each in changes:
        if (lane := each.holder.lane) is not None:
            is_due = each.due_us is not None and each.due_us <= now_us
            last_places[lane] = max(last_places.get(lane, 0), now_us if is_due else 0)
    places = yield from _lock(last_places)
    asked = [(each.new.body, each.new.cost, float(each.new.priority), each.holder.number) for each in changes]
    changed = yield "change", asked
    moved = []
    for holder, _, due_us in changes:
        if due_us is not None:
            is_due, lane = due_us <= now_us, holder.lane
            place_us = due_us if lane is None or not is_due else places[lane]
            state = _BEHIND if lane is not None else _READY if is_due else _SCHEDULED
            moved.append((due_us, int(is_due), place_us, state, holder.number))
    yield "postpone", moved
    yield from _settle(now_us, places)
    return len(changed) == len(changes)


def join(now_us: int, owner: str, lease_us: int, former: str, held: Collection[Ref]) -> Moves[bool]:
    """Begin a lease, in place of a former one if given."""
    dropped = yield "drop_owner", [(former,)] if former not in ("", owner) else []
    known = yield (
        "join_again",
        [(lease_us, owner)],
    )  # only now: a concurrent join has waited for the former owner's row
    if former and not (dropped or known):
        return False
    if not known:
        yield "join", [(owner, lease_us)]
    if dropped:
        yield "hand_over", [(owner, former, json.dumps(sorted(held)))]
        yield from _give_back(now_us, [former], lost_count=0)
    return True


def beat(now_us: int, owner: str) -> Moves[Beat | None]:
    """Renew a lease, and end the leases that were not renewed in time."""
    [(vouched_us, beat_us, shortest_us)] = yield "clock", [()]
    vouched_us = vouched(vouched_us, beat_us, now_us, shortest_us)
    yield "set_clock", [(vouched_us, now_us)]
    yield "forget_ended", [(vouched_us - REMEMBERED_US,)]
    yield from _forget_unique(now_us)
    yield from forget_history(now_us)
    renewed = yield "renew", [(vouched_us, owner)]
    for (late,) in (yield "late_owners", [(vouched_us,)]):
        marked = yield "cancelled_of", [(late,)]
        lanes = {lane for _, _, lane in marked if lane is not None}
        if lanes == (yield from _lock_free(lanes)):  # otherwise with a later beat: this one must not wait
            yield "drop_owner", [(late,)]
            yield from _give_back(now_us, [late], lost_count=1)
    if not renewed:
        return None
    unwanted = yield from cancelled(owner)
    [(claimed_count,)] = yield "count_claimed", [(owner,)]
    return Beat(unwanted, claimed_count)


def _forget_unique(now_us: int) -> Moves[None]:
    """Delete rows of unique keys that no longer count, among some after an arbitrary key; every fourth time the first."""
    for attempt in range(_SAMPLES_MAX):
        after = hashlib.blake2b(f"{now_us} {attempt}".encode(), digest_size=16).hexdigest()
        stale = yield "stale_unique", [("" if after[-1] < "4" else after, _SAMPLE, now_us - REMEMBERED_US)]
        yield "forget_unique", stale
        if len(stale) < _SAMPLE // 2:
            return


def leave(now_us: int, owner: str) -> Moves[None]:
    """End a lease, and give back its claims."""
    dropped = yield "drop_owner", [(owner,)]
    if dropped:
        yield from _give_back(now_us, [owner], lost_count=0)


def claim(now_us: int, asked: Claim, look: Look | None = None) -> Moves[Claims | None]:
    """Claim due tasks, from the beginning on or where a look begins."""
    joined = yield "owner", [(asked.owner,)]
    if not joined:
        return None
    [(_, text)] = joined
    pauses = None if text == "[]" else Pauses(json.loads(text), now_us)
    if pauses is not None:
        yield from _put_back(now_us, pauses)
    since_us = _NEVER if look is None else look.due_us
    yield "make_ready", [(asked.queue, now_us + asked.ahead_us, max(_BATCH, asked.count), since_us)]
    yield "make_heads_ready", [(asked.queue, now_us, max(_BATCH, asked.count), since_us)]
    expired_count = yield from _delete_expired(now_us)
    if pauses is not None:
        if pauses.stops(asked.queue):
            return Claims(expired_count=expired_count)
        first = yield "ready_first", [(asked.queue, MOVED_MAX)]
        yield from _set_aside(first, DurableState.READY, asked.queue, pauses)
    if asked.turns is None:
        found, is_more = yield from _claim_first(now_us, asked, look)
    else:
        found, is_more = yield from in_turn(now_us, asked, asked.turns)
    if pauses is not None:  # of tasks behind the first ones
        places = [(row[0], row[3], row[9], row[10]) for row in found]
        late = yield from _set_aside(places, DurableState.CLAIMED, asked.queue, pauses)
        found = [row for row in found if row[0] not in late]
    next_in_us: int | None = 0
    if not is_more:
        [(free_us,)] = yield "next_due", [(asked.queue, since_us)]
        [(head_us,)] = yield "next_head_due", [(asked.queue, since_us)]
        times = [*([] if free_us is None else [free_us - asked.ahead_us]), *([] if head_us is None else [head_us])]
        next_in_us = max(0, min(times) - now_us) if times else None
    tasks = tuple(map(_claimed, found))
    return Claims(tasks=tasks, next_in_us=next_in_us, expired_count=expired_count)


def _put_back(now_us: int, pauses: Pauses) -> Moves[None]:
    """Make tasks READY whose pause has ended."""
    for text, is_old in pauses.ended:
        moved = yield "put_back", [(text, MOVED_MAX)]
        if is_old and not moved:
            yield "forget_pause", [(text, now_us)]


def _set_aside(tasks: Rows, state: DurableState, queue: str, pauses: Pauses) -> Moves[set[int]]:
    """Set aside those of some tasks, given as number, name, lane and key, that are paused; return their numbers."""
    held: dict[str, list[int]] = defaultdict(list)
    for number, name, lane, key in tasks:
        if text := pauses.holding(name, queue, lane, key):
            held[text].append(number)
    yield "set_aside", [(text, json.dumps(sorted(numbers)), state) for text, numbers in held.items()]
    return {number for numbers in held.values() for number in numbers}


def _claim_first(now_us: int, asked: Claim, look: Look | None) -> Moves[tuple[list[Any], bool]]:
    """Claim tasks by priority and due time; return their rows, and True if there are more."""
    keys, functions = json.dumps(sorted(asked.full_keys)), json.dumps(sorted(asked.unknown))
    before_us = _NEVER if asked.before_us is None else now_us + asked.before_us
    if look is None or look.places is None:
        terms = asked.owner, asked.queue, asked.above, now_us, keys, functions, asked.count, before_us, asked.size
        [(text, left_count, *spent_us)] = yield "claim", [terms]
        if look is not None:
            [look.spent_us] = spent_us
        found = json.loads(text)
        return found, len(found) >= asked.count or left_count > 0
    found = []
    for priority, place in sorted(look.places.items(), reverse=True):
        end_us = -_NEVER if priority > asked.above else before_us if priority == asked.above else _NEVER
        room, size = asked.count - len(found), asked.size - sum(map(_size, found))
        if size <= 0:
            return found, True
        terms = asked.owner, asked.queue, priority, now_us, keys, functions, room, end_us, size
        [(text, left_count, _)] = yield "claim_on", [(*terms, *place)]
        found += json.loads(text)
        if len(found) >= asked.count or left_count:
            return found, True
    return found, False


def _size(row: list[Any]) -> int:
    """Return the bytes of the body and of the saved state of a claimed row, which are written in hexadecimal."""
    return (len(row[5]) + len(row[14] or "")) // 2


def start(refs: Sequence[Ref]) -> Moves[list[bool]]:
    """Record that claims are about to start."""
    found = yield "start", refs
    in_force = {Ref(*row) for row in found}
    return [ref in in_force for ref in refs]


def finish(now_us: int, outcomes: Sequence[TaskOutcome]) -> Moves[list[bool]]:
    """End claims."""
    refs = json.dumps([each.ref for each in outcomes])
    lanes = yield "lanes_of_numbers", [(refs,)]
    yield from _lock(dict.fromkeys((lane for (lane,) in lanes), 0))
    others = [each for each in outcomes if each.end is not _DONE]  # usually empty
    done = yield from _listed(
        "end", json.dumps([each.ref for each in outcomes if each.end is _DONE]) if others else refs
    )
    gone, changed = (yield from _finish_others(now_us, others)) if others else ([], [])
    yield from keep(now_us, outcomes, (*done, *gone))
    yield from remember([task_id for _, _, task_id, is_named, _ in done if is_named])
    yield from _settle(now_us, {lane for (lane,) in lanes})
    if len(done) == len(outcomes):
        return [True] * len(outcomes)
    in_force = {(number, token) for number, token, *_ in (*done, *gone, *changed)}
    return [outcome.ref in in_force for outcome in outcomes]


def _finish_others(now_us: int, outcomes: Sequence[TaskOutcome]) -> Moves[tuple[Rows, Rows]]:
    """End claims of tasks that are not done; return the rows that are gone, and those that have changed."""
    by_end: dict[End, list[TaskOutcome]] = defaultdict(list)
    for outcome in sorted(outcomes, key=itemgetter(0)):  # by claim
        by_end[outcome.end].append(outcome)
    unwanted = [*by_end.pop(End.EXPIRED, ()), *by_end.pop(End.CANCELLED, ())]
    gone = yield from _listed("end", json.dumps([each.ref for each in unwanted]))
    dropped = yield "end_cancelled", [each.ref for several in by_end.values() for each in several]
    released = yield "put_aside", [(DurableState.READY, *each.ref) for each in by_end[End.RELEASED]]
    unknown = yield "put_aside", [(DurableState.UNKNOWN, *each.ref) for each in by_end[End.UNKNOWN]]
    retried = yield (
        "retry",
        [(each.error, now_us + each.delay_us, now_us, *each.ref) for each in by_end[End.RETRY]],
    )
    snoozed = yield "snooze", [(now_us + each.delay_us, now_us, *each.ref) for each in by_end[End.SNOOZED]]
    buried = yield "bury", [(each.error, *each.ref) for each in by_end[End.DEAD]]
    expired = [row for row in gone if not row[-1]]
    yield from remember([task_id for _, _, task_id, is_named, _ in expired if is_named])
    return [*gone, *dropped], [*released, *unknown, *retried, *snoozed, *buried]


def cancel(
    now_us: int, ids: Sequence[str], *, is_waiting: bool = False, until_us: int | None = None
) -> Moves[list[DurableState | None]]:
    """Delete tasks; mark claimed ones as cancelled. With ``is_waiting`` only occurrences that wait, due before a time if given."""
    lanes = yield "lanes_of_ids", [(task_id,) for task_id in ids]
    yield from _lock(dict.fromkeys((lane for (lane,) in lanes), 0))
    answers = []
    for task_id in ids:
        state = yield from _cancel_one(task_id, is_waiting=is_waiting, until_us=until_us)
        answers.append(state)
    yield from _settle(now_us, {lane for (lane,) in lanes})
    return answers


def cancelled(owner: str) -> Moves[tuple[Ref, ...]]:
    """Return an owner's claims whose tasks were cancelled."""
    found = yield "cancelled_of", [(owner,)]
    return tuple(Ref(number, token) for number, token, _ in found)


def requeue(now_us: int, ids: Sequence[str]) -> Moves[list[DurableState | None]]:
    """Put dead letters back."""
    found = yield "state_of", [(task_id,) for task_id in ids]
    dead = [
        (task_id, lane, is_blocking) for task_id, state, lane, is_blocking, *_ in found if state == DurableState.DEAD
    ]
    places = yield from _lock({lane: now_us for _, lane, _ in dead if lane is not None})
    changes = []
    for task_id, lane, is_blocking in dead:
        state = DurableState.READY if lane is None or is_blocking else DurableState.BEHIND
        changes.append((now_us, places.get(lane, now_us), state, task_id))
    yield "requeue", changes
    yield from _settle(now_us, places)
    states = {task_id: _shown(state, version) for task_id, state, _, _, version, *_ in found}
    return [states.get(task_id) for task_id in ids]


def revive(queue: str, functions: Iterable[tuple[str, int]]) -> Moves[int]:
    """Make tasks READY that were set aside."""
    revived = yield "revive", [(queue, name, version) for name, version in functions]
    return len(revived)


def pause(now_us: int, pause: Pause, until_us: int | None) -> Moves[None]:
    """Begin a pause, or set the end of one."""
    yield "set_pause", [(pause.text, now_us, until_us)]


def resume(now_us: int, pause: Pause) -> Moves[bool]:
    """End a pause."""
    found = yield "pauses", [()]
    known = [row for row in found if row[0] == pause.text]
    yield "set_pause", [(text, now_us, ENDED) for text, *_ in known]
    return bool(pause_rows(known, now_us))


def pauses(now_us: int) -> Moves[list[PauseRow]]:
    """List the pauses in force."""
    found = yield "pauses", [()]
    return pause_rows(found, now_us)


def find(ids: Sequence[str]) -> Moves[list[TaskRow | None]]:
    """Look tasks up by their ids."""
    found = yield "find", [(task_id, read_size()) for task_id in ids]
    known = {row.id: row for row in map(_task_row, found)}
    return [known.get(task_id) for task_id in ids]


def rows(
    state: DurableState | None, after: int, limit: int, *, newest_first: bool = False, body_max: int | None = None
) -> Moves[list[TaskRow]]:
    """List tasks."""
    name = "rows" if state is None else _ROWS.get(state, "rows_in_state")
    terms = (after or -_NEVER if newest_first else after, read_size(body_max), limit)
    found = yield f"newest_{name}" if newest_first else name, [terms if name != "rows_in_state" else (*terms, state)]
    return [_task_row(row) for row in found]


def counts() -> Moves[dict[DurableState, int]]:
    """Count tasks."""
    found = yield "count", [()]
    return {DurableState(state): count for state, count in found}


def backlog() -> Moves[list[BacklogRow]]:
    """Count tasks by queue, function and state."""
    found = yield "backlog", [()]
    return backlog_rows(found)


def latencies(now_us: int) -> Moves[dict[str, int]]:
    """Return for how long the oldest due task of each queue has waited."""
    found = yield "latencies", [(now_us, LEVELS_MAX)]
    return {queue: now_us - due_us for queue, due_us in found}


def lanes(limit: int) -> Moves[list[LaneRow]]:
    """List lanes with waiting tasks."""
    found = yield "lanes", [(limit,)]
    return [
        LaneRow(lane=lane, behind_count=count, head_id=head_id, head_state=DurableState(state))
        for lane, count, head_id, state in found
    ]


# Shared parts


def _listed(name: str, *arguments: Any) -> Moves[list[Any]]:
    """Run a statement that returns a list in JSON; skip it if its first argument is an empty list."""
    if arguments[0] == "[]":
        return []
    [(text,)] = yield name, [arguments]
    return json.loads(text)  # type: ignore[no-any-return]  # as the statement makes it


def remember(ids: Sequence[str], *, ahead_us: int = 0) -> Moves[None]:
    """Remember the ids of tasks as ended, for longer by some time."""
    if ids:
        yield "remember", [(json.dumps(ids), ahead_us)]


def _lock(last_places: dict[str, int]) -> Moves[dict[str, int]]:
    """Lock lanes and return the last place of each; raise it to the given one if that is larger."""
    if not last_places:
        return {}
    found = yield "lock_lane", sorted(last_places.items())
    return dict(found)


def _lock_free(lanes: Collection[str]) -> Moves[set[str]]:
    """Lock those of some lanes that no other transaction has locked, and return them.

    A user's transaction may hold a lane for long. Moves on which a lease or other tasks depend do not wait for it.
    """
    found = yield "lock_free_lane", [(lane,) for lane in sorted(lanes)]
    return {lane for (lane,) in found}


def _settle(now_us: int, lanes: Iterable[str]) -> Moves[None]:
    """Promote the first task behind in each locked lane that has no head, or whose head gives way."""
    names = [(lane,) for lane in sorted(lanes)]
    if not names:
        return
    heads = {lane: rest for lane, *rest in (yield "head", names)}
    firsts = {lane: rest for lane, *rest in (yield "first_behind", names)}
    fallen, risen = [], {}
    for (lane,) in names:
        head, first = heads.get(lane), firsts.get(lane)
        if first is None:
            continue
        number, due_us, was_due, place_us = first
        if head is not None:
            head_number, state, is_blocking, attempt_count, head_place_us = head
            gives_way = state == DurableState.SCHEDULED and not (is_blocking and attempt_count)
            if not gives_way or place_us >= head_place_us:
                continue
            fallen.append((DurableState.BEHIND, head_number, DurableState.SCHEDULED))
        is_due = was_due or due_us <= now_us
        risen[lane] = (DurableState.READY if is_due else DurableState.SCHEDULED, number, DurableState.BEHIND)
    fell = {lane for (lane,) in (yield "move", fallen)}  # a head that another transaction has just made READY stays
    yield "move", [move for lane, move in risen.items() if lane not in heads or lane in fell]
    yield "drop_lane", [name for name in names if name[0] not in heads and name[0] not in firsts]


def _give_back(now_us: int, owners: Sequence[str], *, lost_count: int) -> Moves[None]:
    names = [(owner,) for owner in owners]
    unwanted = yield "cancelled_of", names
    while True:  # again, if another transaction cancels between two statements
        lanes = {lane for _, _, lane in unwanted if lane is not None}
        yield from _lock(dict.fromkeys(lanes, 0))
        yield "end_cancelled", [(number, token) for number, token, _ in unwanted]
        yield "give_back", [(lost_count, owner) for owner in owners]
        yield from _settle(now_us, lanes)
        unwanted = yield "cancelled_of", names
        if not unwanted:
            return


def _delete_expired(now_us: int) -> Moves[int]:
    """Delete expired READY tasks; their successors in lanes may have expired, too."""
    count = 0
    while count < _BATCH:
        found = yield "expired", [(now_us, _BATCH)]
        if not found:
            break
        lanes = yield from _lock_free({lane for _, _, lane, _ in found if lane is not None})
        found = [each for each in found if each[2] is None or each[2] in lanes]
        if not found:
            break
        deleted = {number for (number,) in (yield "delete_expired", [(number, now_us) for number, *_ in found])}
        yield from remember([task_id for number, task_id, _, is_named in found if is_named and number in deleted])
        yield from _settle(now_us, lanes)
        count += len(deleted)
    return count


def _cancel_one(task_id: str, *, is_waiting: bool, until_us: int | None) -> Moves[DurableState | None]:
    while True:  # again, if another transaction moves the task between two statements
        found = yield "state_of", [(task_id,)]
        if not found:
            return None
        [(_, state, _, _, version, token, due_us)] = found
        shown = _shown(state, version)
        if is_waiting and not (waits(shown, token) and is_in_force(until_us, due_us)):
            return None
        if shown is DurableState.CLAIMED:
            changed = yield "cancel_claimed", [(task_id,)]
        else:
            changed = yield "cancel", [(task_id, state, token)]
        if changed:
            return shown


def _row_of(new: NewTask, now_us: int, due_us: int, places: dict[str, int]) -> tuple[Any, ...]:
    was_due = due_us <= now_us
    if new.lane is not None:
        state, place_us = _BEHIND, places[new.lane] if was_due else due_us
    else:
        state, place_us = (_READY if was_due else _SCHEDULED), due_us
    expires_us = None if new.expires_us is None else due_us + new.expires_us
    return (
        new.id, new.queue, new.name, new.version, state, now_us, due_us, new.expires_us, expires_us, int(was_due), place_us,
        float(new.priority), new.lane, int(new.is_blocking), new.key, new.cost, int(new.is_named), new.body,
    )  # fmt: skip


def _claimed(row: tuple[Any, ...]) -> Claimed:
    (
        number, token, task_id, name, version, body, in_us, expires_in_us, priority, lane, key, cost, attempts, lost, saved,
    ) = row  # fmt: skip
    return Claimed(
        Ref(number, token), task_id, name, version, bytes.fromhex(body), in_us, expires_in_us, float(priority), lane, key, cost,
        attempts, lost, bytes.fromhex(saved) if saved else None,
    )  # fmt: skip


def _shown(state: int, version: int) -> DurableState:
    """Return the state of a task; the version of one that is paused is negative, so that nothing else revives it."""
    return DurableState.PAUSED if version < 0 else DurableState(state)


def _task_row(row: tuple[Any, ...]) -> TaskRow:
    (
        number, task_id, queue, name, version, body, state, put_us, due_us, priority, lane, key, attempts, lost, owner,
        is_cancelled, error, saved,
    ) = row  # fmt: skip
    return TaskRow(
        number=number,
        id=task_id,
        queue=queue,
        name=name,
        version=-1 - version if version < 0 else version,
        body=bytes(body or b""),  # SQLite cuts nothing to null
        state=_shown(state, version),
        put_us=put_us,
        due_us=due_us,
        priority=priority,
        lane=lane,
        key=key_from(key),
        attempt_count=attempts,
        lost_count=lost,
        owner="" if owner is None or version < 0 else owner,
        is_cancelled=bool(is_cancelled),
        error=error,
        saved=bytes(saved) if saved else None,
    )
