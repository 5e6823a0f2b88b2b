"""Unique tasks in SQL, apart from the statements: which tasks of a call are new, and what they change.

The rules are those of ``_core/durable/table.py``, for each task in turn. Here a call is split into parts, in which the
tasks of each key are merged, so that a part takes the same number of statements however many tasks it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ratelimited_executor._core.durable.tasks import Duplicate, DurableState, OnDuplicate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ratelimited_executor._core.durable.tasks import NewTask, UniqueKey

__all__ = ["Holder", "HolderChange", "UniquePart", "parts_of"]

_CLAIMED, _UNKNOWN, _DEAD = int(DurableState.CLAIMED), int(DurableState.UNKNOWN), int(DurableState.DEAD)


class Holder(NamedTuple):
    """The task that was put last with a unique key; without a state if it has ended."""

    id: str
    until_us: int
    is_remembered: int
    number: int
    state: int | None
    lane: str | None
    put_us: int
    attempt_count: int
    is_cancelled: int
    expires_us: int | None

    def counts(self, now_us: int, unique: UniqueKey) -> bool:
        """True if it makes others duplicates, as it will run, or runs."""
        if self.state in (None, _CLAIMED, _DEAD):
            return self.state == _CLAIMED and unique.while_running and not self.is_cancelled
        return self.expires_us is None or self.expires_us > now_us

    def counts_by_period(self, now_us: int, unique: UniqueKey) -> bool:
        """True if it makes others duplicates, as its period has not ended, and it was not cancelled."""
        is_known = self.is_remembered if self.state is None else not self.is_cancelled
        return bool(is_known) and unique.is_within_period(now_us, self.until_us)


class HolderChange(NamedTuple):
    """A change of a waiting task.

    Attributes:
        holder: the task.
        new: what was put.
        due_us: its new due time; None if that stays.
    """

    holder: Holder
    new: NewTask
    due_us: int | None


class UniquePart:
    """Tasks of one call, of which those with one unique key can be merged.

    Attributes:
        keys: their unique keys, in order.
    """

    def __init__(self, now_us: int, tasks: Sequence[NewTask]) -> None:
        self._now_us = now_us
        self._tasks = tasks
        self._merged: dict[str, NewTask] = {}
        self._known: dict[str, Duplicate] = {}
        for new in tasks:
            if (unique := new.unique) is not None:
                first = self._merged.get(unique.key)
                self._merged[unique.key] = new if first is None else self._merge(first, new, unique)
        self.keys = sorted(self._merged)

    def _merge(self, first: NewTask, new: NewTask, unique: UniqueKey) -> NewTask:
        """Return a task as a later one changes it; without the limit of its due time, which depends on its holder."""
        if not unique.is_changing:
            return first
        due_us = new.due_at(self._now_us) if unique.on_duplicate is OnDuplicate.DEBOUNCE else first.due_us
        return first._replace(body=new.body, cost=new.cost, priority=max(first.priority, new.priority), due_us=due_us)

    def changes(self, rows: Iterable[Sequence[Any]]) -> list[HolderChange]:
        """Return what is to be changed, given the keys and their holders."""
        self._known, changes = {}, []
        for key, *values in rows:
            new, holder = self._merged[key], Holder(*values)
            unique = new.unique
            assert unique is not None
            if holder.counts(self._now_us, unique):
                is_changed = unique.is_changing and holder.state != _CLAIMED
                self._known[key] = Duplicate(holder.id, is_changed)
                if is_changed:
                    is_moved = unique.on_duplicate is OnDuplicate.DEBOUNCE
                    is_moved = is_moved and not holder.attempt_count and holder.state != _UNKNOWN
                    due_us = unique.limited(new.due_at(self._now_us), holder.put_us, self._now_us) if is_moved else None
                    changes.append(HolderChange(holder, new, due_us))
            elif holder.counts_by_period(self._now_us, unique):
                self._known[key] = Duplicate(holder.id, is_changed=False)
        return changes

    def added(self) -> list[NewTask]:
        """Return the tasks that are to be added."""
        added, seen = [], set(self._known)
        for new in self._tasks:
            if (unique := new.unique) is None:
                added.append(new)
            elif unique.key not in seen:
                seen.add(unique.key)
                one = self._merged[unique.key]
                if one is not new and one.due_us is not None:
                    one = one._replace(due_us=unique.limited(one.due_us, self._now_us, self._now_us))
                added.append(one)
        return added

    def answers(self, added: Iterable[bool | Duplicate]) -> list[bool | Duplicate]:
        """Return the answers to all tasks, given those to the added ones."""
        rest, known = iter(added), dict(self._known)
        answers: list[bool | Duplicate] = []
        for new in self._tasks:
            unique = new.unique
            if unique is not None and unique.key in known:
                answers.append(known[unique.key])
                continue
            answers.append(next(rest))
            if unique is not None:
                known[unique.key] = Duplicate(new.id, unique.is_changing)
        return answers


def parts_of(now_us: int, tasks: Sequence[NewTask]) -> Iterator[UniquePart]:
    """Split the tasks of a call where two of one key ask for different things, or the first may not count afterwards."""
    part: list[NewTask] = []
    asked: dict[str, UniqueKey | None] = {}
    for new in tasks:
        if new.unique is not None:
            if asked.setdefault(new.unique.key, new.unique) != new.unique:
                yield UniquePart(now_us, part)
                part, asked = [], {}
            due_us = new.due_at(now_us)
            is_expired = new.expires_us is not None and due_us + new.expires_us <= now_us
            may_end_holder = new.unique.on_duplicate is OnDuplicate.DEBOUNCE and due_us < now_us  # which then expires
            asked[new.unique.key] = None if is_expired or may_end_holder else new.unique
        part.append(new)
    yield UniquePart(now_us, part)
