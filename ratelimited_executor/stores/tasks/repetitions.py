"""The moves of repetitions in SQL, in the same way as those in ``moves.py``.

The rules are those of ``_core/durable/repetitions.py``, whose docstring explains them. A move first locks the row of a
repetition, and then what it moves of lanes and tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimited_executor._core.durable.pauses import is_in_force
from ratelimited_executor._core.durable.repetitions import RepetitionRecord, repetition_row
from ratelimited_executor._core.durable.tasks import ChangedRepetition, DurableState, Placed, Placement
from ratelimited_executor.stores.tasks import moves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor._core.durable.tasks import Occurrence, RepetitionRow
    from ratelimited_executor.stores.tasks.statements import Moves

__all__ = ["changed_repetitions", "forget", "pause_repetition", "place", "repetitions", "save_repetition", "skip_repetition"]  # fmt: skip


def place(now_us: int, owner: str, occurrences: Sequence[Occurrence]) -> Moves[list[Placed]]:
    """Put the next occurrences of repetitions."""
    placed = []
    for each in occurrences:
        one = yield from _place_one(now_us, owner, each)
        placed.append(one)
    return placed


def repetitions(now_us: int) -> Moves[list[RepetitionRow]]:
    """List repetitions."""
    found = yield "repetitions", [()]
    return [
        repetition_row(name, RepetitionRecord(*row), now_us, is_declared=bool(is_declared), is_waiting=bool(is_waiting))
        for name, is_declared, is_waiting, *row in found
    ]


def changed_repetitions(queue: str) -> Moves[list[ChangedRepetition]]:
    """List the repetitions of a queue that users have changed."""
    found = yield "changed_repetitions", [(queue,)]
    return [ChangedRepetition(*row) for row in found]


def save_repetition(
    now_us: int, name: str, *, definition: str, queue: str, function: str, schedule: str
) -> Moves[bool | None]:
    """Save a repetition."""
    [row] = yield "lock_repetition", [(name,)]
    known = RepetitionRecord(*row)
    if not (known.is_saved or known.is_new):
        return None
    if known.definition != definition or not known.is_saved:
        ids = yield from _ids_of(name, known)
        is_dropped = yield from _drop_waiting(now_us, ids)
        record = (known.dropped() if is_dropped else known).saved(definition, queue, function, schedule)
        yield "declare", [(*record.changed(now_us), name)]
    return known.is_new


def pause_repetition(now_us: int, name: str, until_us: int | None) -> Moves[bool | None]:
    """Set the end of a pause."""
    known = yield from _known(name)
    if known is None:
        return None
    ids = yield from _ids_of(name, known)
    is_dropped = yield from _drop_waiting(now_us, ids, until_us)
    yield "declare", [(*known.paused(until_us, now_us, is_dropped=is_dropped).changed(now_us), name)]
    return is_in_force(known.until_us, now_us)


def skip_repetition(now_us: int, name: str) -> Moves[int | None]:
    """Delete the occurrence that waits."""
    known = yield from _known(name)
    if known is None or not (yield from _drop_waiting(now_us, [known.last_id])):
        return None
    yield "declare", [(*known.changed(now_us), name)]
    return known.last_due_us


def forget(now_us: int, names: Sequence[str]) -> Moves[int]:
    """Delete repetitions."""
    found = yield "forget", [(name,) for name in sorted(set(names))]
    ids = []
    for name, last_id, last_due_us, definition in found:
        record = RepetitionRecord(last_id=last_id, last_due_us=last_due_us, definition=definition)
        yield from _pass_last(now_us, record)
        ids += yield from _ids_of(name, record)
    yield from moves.cancel(now_us, ids, is_waiting=True)
    return len(found)


def _place_one(now_us: int, owner: str, asked: Occurrence) -> Moves[Placed]:
    """Put the next occurrence of one repetition."""
    [row] = yield "lock_repetition", [(asked.name,)]
    known = RepetitionRecord(*row)
    if known.is_changed(asked):
        yield "forget", [(asked.name,)] if known.is_new else []
        return Placed(Placement.SUPERSEDED, "", 0)
    is_others = known.owner != owner and bool((yield "owner", [(known.owner,)]))
    if is_others and known.is_superseded(asked):
        return Placed(Placement.SUPERSEDED, known.last_id, known.last_due_us)
    record = known.declared(owner, asked, is_others=is_others)
    placement = yield from _placement(now_us, record, asked)
    if placement is None:
        record = record.placed(asked, now_us)
        [is_put] = yield from moves.put(now_us, [asked.task])
        placement = Placement.PLACED if is_put else Placement.PAST
    if record != known:
        yield "declare", [(*record, asked.name)]
    return Placed(
        placement, record.last_id, (record.until_us or 0) if placement is Placement.PAUSED else record.last_due_us
    )


def _placement(now_us: int, record: RepetitionRecord, asked: Occurrence) -> Moves[Placement | None]:
    """Return what becomes of an occurrence; None if it is to be put."""
    due_us = asked.task.due_us or 0
    if is_in_force(record.until_us, due_us):
        return Placement.PAUSED
    is_other = record.is_outdated(asked, now_us)
    is_dropped = is_other and (yield from _drop_waiting(now_us, [record.last_id]))
    found = yield "state_of", [(record.last_id,)]
    if found and found[0][1] != DurableState.DEAD:
        if record.last_id == asked.task.id or (not is_other and record.last_due_us > due_us):
            return Placement.PLACED
        if not asked.allow_overlap:
            return Placement.BUSY
    if not is_other and due_us <= record.last_due_us:
        return Placement.PAST
    if not (found or is_dropped):
        yield from _pass_last(now_us, record)
    return None


def _known(name: str) -> Moves[RepetitionRecord | None]:
    """Lock a repetition; return None if there is none."""
    [row] = yield "lock_repetition", [(name,)]
    known = RepetitionRecord(*row)
    if known.is_new:  # the statement has made it
        yield "forget", [(name,)]
        return None
    return known


def _pass_last(now_us: int, record: RepetitionRecord) -> Moves[None]:
    """Remember the last occurrence as ended if it is gone."""
    if record.last_id and not (yield "state_of", [(record.last_id,)]):
        yield from moves.remember([record.last_id], ahead_us=max(0, record.last_due_us - now_us))


def _ids_of(name: str, record: RepetitionRecord) -> Moves[list[str]]:
    """Return the id of a repetition's last occurrence, and those of all others that wait."""
    found = yield "waiting", [(name,)] if record.overlaps else []
    return [record.last_id, *(task_id for (task_id,) in found)]


def _drop_waiting(now_us: int, ids: Sequence[str], until_us: int | None = None) -> Moves[bool]:
    """Delete those of some occurrences that wait, and are due before a time if given; return True for the first one."""
    first, *_ = yield from moves.cancel(now_us, ids, is_waiting=True, until_us=until_us)
    return first is not None
