"""The tasks of a queue that are READY, in the order in which they are claimed."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

from ratelimited_executor._core.durable.tasks import NO_KEY, Claimed, DurableState, Ref, TaskRow, key_from

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from ratelimited_executor._core.durable.tasks import Claim, NewTask, Turns, UniqueKey

__all__ = ["ReadyTasks", "Taking", "Task"]


@dataclass(slots=True, eq=False)
class Task:
    """A task in the table."""

    number: int
    new: NewTask
    put_us: int
    was_due: bool  # when it was put: then it does not wait, even if the clock is set back later
    state: DurableState = DurableState.BEHIND
    due_us: int = 0
    expires_us: int | None = None
    place_us: int = 0  # in its lane
    token: int = 0
    attempt_count: int = 0
    lost_count: int = 0
    started_token: int = 0  # of the last claim of which a start was recorded
    owner: str = ""
    is_cancelled: bool = False
    error: str = ""
    saved: bytes | None = None

    @property
    def ref(self) -> Ref:
        """Its last claim."""
        return Ref(self.number, self.token)

    def set_due(self, due_us: int) -> None:
        """Set the due time, and the expiry that counts from it."""
        self.due_us = due_us
        self.expires_us = None if self.new.expires_us is None else due_us + self.new.expires_us

    @property
    def gives_way(self) -> bool:
        """True if, as a head, it lets a task that is due earlier go first."""
        return self.state is DurableState.SCHEDULED and not (self.new.is_blocking and self.attempt_count > 0)

    def counts(self, now_us: int, unique: UniqueKey) -> bool:
        """True if it makes others with its unique key duplicates: one that will run, or runs."""
        if self.state is DurableState.CLAIMED:
            return unique.while_running and not self.is_cancelled
        return self.state is not DurableState.DEAD and (self.expires_us is None or self.expires_us > now_us)

    def claimed(self, now_us: int) -> Claimed:
        """Return the task as claimed."""
        new = self.new
        return Claimed(
            ref=self.ref,
            id=new.id,
            name=new.name,
            version=new.version,
            body=new.body,
            in_us=self.due_us - now_us,
            expires_in_us=None if self.expires_us is None else self.expires_us - now_us,
            priority=new.priority,
            lane=new.lane,
            key=new.key,
            cost=new.cost,
            attempt_count=self.attempt_count,
            lost_count=self.lost_count,
            saved=self.saved,
        )

    def row(self) -> TaskRow:
        """Return the task for display."""
        new = self.new
        return TaskRow(
            number=self.number,
            id=new.id,
            queue=new.queue,
            name=new.name,
            version=new.version,
            body=new.body,
            state=self.state,
            put_us=self.put_us,
            due_us=self.due_us,
            priority=new.priority,
            lane=new.lane,
            key=key_from(new.key),
            attempt_count=self.attempt_count,
            lost_count=self.lost_count,
            owner="" if self.state is DurableState.PAUSED else self.owner,
            is_cancelled=self.is_cancelled,
            error=self.error,
            saved=self.saved,
        )


@dataclass(slots=True, eq=False)
class Taking:
    """What a claim has taken so far.

    Attributes:
        is_full: True if no more fit: the count or the size of the claim is reached.
        is_more: True if some key has more tasks than its quota.
    """

    now_us: int
    claim: Claim
    taken: list[Task] = field(default_factory=list)
    size: int = 0
    is_full: bool = False
    is_more: bool = False

    def is_within(self, task: Task) -> bool:
        """True if a task is within the bounds of the claim."""
        claim = self.claim
        if task.new.priority == claim.above and claim.before_us is not None:
            return task.due_us < self.now_us + claim.before_us
        return task.new.priority > claim.above

    def is_wanted(self, task: Task) -> bool:
        """True if a task is not left to other processes."""
        return (task.new.name, task.new.version) not in self.claim.unknown and task.new.key not in self.claim.full_keys

    def take(self, task: Task) -> bool:
        """Take a task, if it fits."""
        self.size += len(task.new.body) + len(task.saved or b"")
        self.is_full = bool(self.taken) and self.size > self.claim.size
        if self.is_full:
            return False
        self.taken.append(task)
        task.state = DurableState.CLAIMED  # now: it may have several entries, since it was changed
        self.is_full = len(self.taken) == self.claim.count
        return True


@dataclass(slots=True, eq=False)
class _Level:
    """The READY tasks of one priority, by key."""

    keys: list[str] = field(default_factory=list)  # in order
    heaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # key -> (due, number)

    def push(self, key: str, due_us: int, number: int) -> None:
        heap = self.heaps.get(key)
        if heap is None:
            heap = self.heaps[key] = []
            insort(self.keys, key)
        heappush(heap, (due_us, number))

    def cycle(self, after: str) -> Iterator[str]:
        """Return the keys after one, and then the others."""
        first = bisect_right(self.keys, after)
        return chain(self.keys[first:], self.keys[:first])

    def tidy(self, keys: Iterable[str]) -> None:
        """Forget those of some keys that have no tasks."""
        for key in keys:
            if not self.heaps[key]:
                del self.heaps[key]
                del self.keys[bisect_left(self.keys, key)]


class ReadyTasks:
    """In one heap, or by priority and key if the last claim was in turn.

    Entries stay for a while after their tasks have left the state.

    Args:
        tasks: all tasks by number.
    """

    def __init__(self, tasks: Mapping[int, Task]) -> None:
        self._tasks = tasks
        self._heap: list[tuple[float, int, int]] = []  # (-priority, due, number)
        self._levels: dict[float, _Level] | None = None  # by priority; in place of the heap

    def push(self, task: Task) -> None:
        """Add a task that has become READY."""
        if self._levels is None:
            heappush(self._heap, _rank(task))
            return
        level = self._levels.get(task.new.priority)
        if level is None:
            level = self._levels[task.new.priority] = _Level()
        level.push(_key_of(task), task.due_us, task.number)

    def take(self, now_us: int, claim: Claim) -> Taking:
        """Remove the tasks that a claim takes."""
        taking = Taking(now_us, claim)
        if claim.turns is None:
            self._take(taking)
        else:
            self._take_in_turn(taking, claim.turns)
        return taking

    def oldest(self) -> Task | None:
        """Return the task that was due first; None if there is none."""
        ranks = list(self._heap)
        for priority, level in (self._levels or {}).items():
            ranks += [(-priority, *each) for heap in level.heaps.values() for each in heap]
        while ranks:
            task = self._current(min(ranks, key=itemgetter(1)))
            if task is not None:
                return task
            ranks = [rank for rank in ranks if self._current(rank) is not None]
        return None

    def first(self, count: int) -> list[Task]:
        """Return the tasks that a claim without bounds would take."""
        self._collect()
        found = (self._current(rank) for rank in nsmallest(count, self._heap))
        return [task for task in found if task is not None]

    def remove(self, numbers: Collection[int]) -> None:
        """Remove tasks by their numbers."""
        self._collect()
        self._heap = [rank for rank in self._heap if rank[2] not in numbers]
        heapify(self._heap)

    def _take(self, taking: Taking) -> None:
        """Take READY tasks by priority and due time."""
        self._collect()
        left: list[Task] = []
        while self._heap and not taking.is_full:
            task = self._pop()
            if task is None:
                continue
            if not taking.is_within(task):
                left.append(task)
                break
            if not taking.is_wanted(task) or not taking.take(task):
                left.append(task)
        for task in left:
            self.push(task)

    def _take_in_turn(self, taking: Taking, turns: Turns) -> None:
        """Take READY tasks in turn by key: first of those that are due."""
        levels = self._separate()
        for until_us in (taking.now_us, math.inf):
            for priority in sorted(levels, reverse=True):
                level, visited = levels[priority], []
                for key in level.cycle(turns.after.get(priority, "")):
                    if taking.is_full:
                        break
                    visited.append(key)
                    if key not in taking.claim.full_keys:
                        quota = turns.quota(priority, key)
                        self._take_of_key(level.heaps[key], taking, priority, quota, until_us)
                level.tidy(visited)
                if not level.keys:
                    del levels[priority]
                if taking.is_full or taking.is_more:
                    return

    def _take_of_key(
        self, heap: list[tuple[int, int]], taking: Taking, priority: float, quota: int, until_us: float
    ) -> None:
        left: list[tuple[int, int]] = []
        while heap and not taking.is_full:
            due_us, number = heap[0]
            if (task := self._current((-priority, due_us, number))) is not None:
                if due_us > until_us or not taking.is_within(task):
                    break
                if not taking.is_wanted(task):
                    left.append(heap[0])
                elif not quota:
                    taking.is_more = True
                    break
                elif taking.take(task):
                    quota -= 1
                else:
                    break
            heappop(heap)
        for each in left:
            heappush(heap, each)

    def _separate(self) -> dict[float, _Level]:
        """Keep READY tasks by priority and key."""
        if self._levels is None:
            self._levels = {}
            while self._heap:
                if (task := self._pop()) is not None:
                    self.push(task)
        return self._levels

    def _collect(self) -> None:
        """Keep READY tasks in one heap."""
        levels, self._levels = self._levels, None
        for priority, level in (levels or {}).items():
            for heap in level.heaps.values():
                for due_us, number in heap:
                    if (task := self._current((-priority, due_us, number))) is not None:
                        self.push(task)

    def _pop(self) -> Task | None:
        return self._current(heappop(self._heap))

    def _current(self, rank: tuple[float, int, int]) -> Task | None:
        """Return the task of an entry; None if it has left the state, or has another entry since it was changed."""
        task = self._tasks.get(rank[2])
        is_current = task is not None and task.state is DurableState.READY and _rank(task) == rank
        return task if is_current else None


def _rank(task: Task) -> tuple[float, int, int]:
    return (-task.new.priority, task.due_us, task.number)


def _key_of(task: Task) -> str:
    return NO_KEY if task.new.key is None else task.new.key
