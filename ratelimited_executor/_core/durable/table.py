"""The rules of a store of durable tasks, as a table in memory.

Every store implements these rules in its own language; a store in memory runs this one, the reference in tests.

Leases
    A process joins as an *owner* with a lease, and beats. One lease covers all its claims, so a beat costs the same for
    one claim as for thousands. Each beat also looks for owners whose lease has ended, and gives their claims back.

    Leases count by *vouched* time. It passes from one beat of any process to the next, by at most a third of the
    shortest lease at once, and never backwards. So a clock that is set forward by hours ends no lease. After a time in
    which no process ran at all, the claims of the last ones are given back within a lease. No claim is ever given back
    because of its age.

Losses
    A claim that ends with its process is a loss, which may be the fault of the task: it may kill its processes. Starts
    are not recorded, as that would cost a call for each task, so the first loss of a task proves nothing. From then on
    its process records each start before it happens, and further losses count only for claims that were started.

Unique tasks
    A unique key has a row with the id of the task that was put last with it, and when that one's period ends. So nothing
    is done at the end of a task: a row counts while its task exists in a state that counts, or within the period. Then
    the end is known by its id, which is remembered; a task that was cancelled leaves none. Tasks that are dead letters,
    cancelled or expired count only within a period. Rows that no longer count are deleted some time later.

Repetitions
    See ``repetitions.py``.

Lanes
    One of a lane's tasks is the *head*, and the others are BEHIND it. Only a head can become READY. So there is never a
    second claim in a lane, whatever owners do, and no lease of a lane to lose. When the head goes, the task with the
    smallest place follows. The place is the time at which a task becomes due. A task that was due when it was put has a
    place at least as large as those before it, even if the clock was set back in between. A head that is not due yet
    gives way to a task that is due earlier, unless the head is being retried, or was snoozed, and blocks. A snoozed task
    that blocks keeps its lane by its place: 0, before all others.

Pauses
    See ``pauses.py``. A head that is set aside stays the head of its lane.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ratelimited_executor._core.durable.history import EndedTasks, ending_of
from ratelimited_executor._core.durable.pauses import ENDED, MOVED_MAX, Pauses, is_in_force, pause_rows
from ratelimited_executor._core.durable.ready import ReadyTasks, Task
from ratelimited_executor._core.durable.repetitions import RepetitionTable
from ratelimited_executor._core.durable.tasks import (
    REMEMBERED_US,
    Beat,
    Claims,
    Duplicate,
    DurableState,
    End,
    LaneRow,
    OnDuplicate,
    backlog_rows,
    cut,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ratelimited_executor._core.durable.pauses import Pause, PauseRow
    from ratelimited_executor._core.durable.tasks import (
        BacklogRow,
        Claim,
        EndedRow,
        NewTask,
        Ref,
        TaskOutcome,
        TaskRow,
        UniqueKey,
    )

__all__ = ["TaskTable", "vouched"]


@dataclass(slots=True, eq=False)
class _Lane:
    head: Task | None = None
    last_place_us: int = 0  # of tasks that were due when they were put
    behind: list[tuple[int, int]] = field(
        default_factory=list
    )  # a heap of (place, number), also of some that have left


@dataclass(slots=True, eq=False)
class _Queue:
    """Heaps, which keep tasks for a while after they have left the state."""

    ready: ReadyTasks
    scheduled: list[tuple[int, int]] = field(default_factory=list)  # (due, number) of tasks without a lane
    scheduled_heads: list[tuple[int, int]] = field(default_factory=list)  # (due, number) of heads


@dataclass(slots=True, eq=False)
class _Owner:
    lease_us: int = 0
    seen_us: int = 0  # vouched
    claimed: dict[int, Task] = field(default_factory=dict)


class TaskTable(RepetitionTable):
    """Durable tasks in memory; ``now_us`` is the store's clock, which may be set back and forth."""

    def __init__(self) -> None:
        super().__init__()
        self._lanes: dict[str, _Lane] = {}
        self._owners: dict[str, _Owner] = {}
        self._ended: dict[str, int] = {}  # id -> vouched time of its end, in order
        self._queues: defaultdict[str, _Queue] = defaultdict(lambda: _Queue(ReadyTasks(self._tasks)))
        self._pauses: dict[str, tuple[int, int | None]] = {}  # text -> since when, and its end
        self._unique: dict[str, tuple[str, int]] = {}  # key -> id of the last task, end of its period
        self._history = EndedTasks()
        self._expiring: list[tuple[int, int]] = []  # a heap of (expiry, number) of tasks that were READY
        self._last_number = 0
        self._vouched_us = 0
        self._last_beat_us: int | None = None

    # Putting and running tasks

    def put(self, now_us: int, tasks: Sequence[NewTask]) -> list[bool | Duplicate]:
        """Add tasks; return for each True if it is new, False if its id exists or did until recently.

        If its unique key has a task, a :class:`Duplicate`.
        """
        return [self._put_one(now_us, new) for new in tasks]

    def join(self, now_us: int, owner: str, lease_us: int, *, former: str = "", held: Collection[Ref] = ()) -> bool:
        """Let a process claim tasks. Held claims of its former owner pass to it, others are released.

        Returns:
            False, with nothing changed, if a former owner is named and neither owner has a lease.
        """
        if former and self._owners.keys().isdisjoint((owner, former)):
            return False
        known = self._owners.setdefault(owner, _Owner())
        known.lease_us, known.seen_us = lease_us, self._vouched_us
        if former in self._owners and former != owner:
            for ref in held:
                task = self._owners[former].claimed.get(ref.number)
                if task is not None and task.token == ref.token:
                    self._let_go(task)
                    task.owner = owner
                    known.claimed[task.number] = task
            self._give_back(now_us, former, is_lost=False)
        return True

    def beat(self, now_us: int, owner: str) -> Beat | None:
        """Renew an owner's lease, and end the leases that were not renewed in time.

        Returns:
            None if the owner's lease had ended: it then has no claims.
        """
        self._pass_time(now_us)
        self._history.forget(now_us)
        if owner in self._owners:
            self._owners[owner].seen_us = self._vouched_us
        for name in [name for name, each in self._owners.items() if each.seen_us + each.lease_us <= self._vouched_us]:
            self._give_back(now_us, name, is_lost=True)
        if owner not in self._owners:
            return None
        return Beat(self.cancelled(owner), len(self._owners[owner].claimed))

    def leave(self, now_us: int, owner: str) -> None:
        """Give back an owner's claims, and end its lease."""
        if owner in self._owners:
            self._give_back(now_us, owner, is_lost=False)

    def claim(self, now_us: int, claim: Claim) -> Claims | None:
        """Claim due tasks: the largest priority first, then the earliest due, then the first put; or in turn by key.

        Returns:
            None if the owner's lease has ended.
        """
        owner = self._owners.get(claim.owner)
        if owner is None:
            return None
        queue = self._queues[claim.queue]
        pauses = Pauses(self._pause_values(), now_us) if self._pauses else None
        if pauses is not None:
            self._put_back(pauses)
        self._make_ready(queue.scheduled, now_us + claim.ahead_us)
        self._make_ready(queue.scheduled_heads, now_us)  # not ahead: due tasks of its lane would wait for it
        expired_count = self._delete_expired(now_us)
        if pauses is not None:
            if pauses.stops(claim.queue):
                return Claims(expired_count=expired_count)
            queue.ready.remove(self._set_aside(queue.ready.first(MOVED_MAX), pauses))
        taking = queue.ready.take(now_us, claim)
        if pauses is not None:
            late = self._set_aside(taking.taken, pauses)
            taking.taken = [task for task in taking.taken if task.number not in late]
        for task in taking.taken:
            task.token += 1
            task.owner = claim.owner
            owner.claimed[task.number] = task
        next_in_us = 0 if taking.is_full or taking.is_more else self._next_in(queue, now_us, claim.ahead_us)
        claimed = tuple(task.claimed(now_us) for task in taking.taken)
        return Claims(tasks=claimed, next_in_us=next_in_us, expired_count=expired_count)

    def start(self, refs: Iterable[Ref]) -> list[bool]:
        """Record that claims are about to start; return for each False if it was no longer in force."""
        return [self._start_one(ref) for ref in refs]

    def save(self, states: Iterable[tuple[Ref, bytes]]) -> None:
        """Keep the states that claimed tasks have saved, for their next attempts, as far as the claims are in force."""
        for ref, state in states:
            task = self._in_force(ref)
            if task is not None:
                task.saved = state

    def finish(self, now_us: int, outcomes: Sequence[TaskOutcome]) -> list[bool]:
        """End claims; return for each False, with nothing changed, if it was no longer in force."""
        if any(outcome.kept is not None for outcome in outcomes):
            self._history.forget(now_us)
        return [self._finish_one(now_us, outcome) for outcome in outcomes]

    def cancel(self, now_us: int, ids: Iterable[str]) -> list[DurableState | None]:
        """Delete tasks; return the previous state of each, None if it did not exist.

        A claimed task stays, marked: its owner asks for the cancelled of its claims, and the task is not run again.
        """
        numbers = [self._numbers.get(each) for each in ids]
        states = [None if number is None else self._tasks[number].state for number in numbers]
        for number in numbers:
            if number in self._tasks:
                self._cancel_one(now_us, self._tasks[number])
        return states

    def cancelled(self, owner: str) -> tuple[Ref, ...]:
        """Return the claims of an owner whose tasks were cancelled."""
        known = self._owners.get(owner)
        return () if known is None else tuple(task.ref for task in known.claimed.values() if task.is_cancelled)

    def requeue(self, now_us: int, ids: Iterable[str]) -> list[DurableState | None]:
        """Put dead letters back, as if never tried; return the previous state of each task, or None.

        Tasks in other states stay as they are.
        """
        numbers = [self._numbers.get(each) for each in ids]
        states = [None if number is None else self._tasks[number].state for number in numbers]
        for number in numbers:
            if number is not None and self._tasks[number].state is DurableState.DEAD:
                self._requeue_one(now_us, self._tasks[number])
        return states

    def revive(self, queue: str, functions: Iterable[tuple[str, int]]) -> int:
        """Make tasks READY that were set aside because their function was unknown; return how many."""
        known = frozenset(functions)
        found = [
            task
            for task in self._tasks.values()
            if task.state is DurableState.UNKNOWN
            and task.new.queue == queue
            and (task.new.name, task.new.version) in known
        ]
        for task in found:
            self._enter(task, DurableState.READY)
        return len(found)

    # Pauses

    def pause(self, now_us: int, pause: Pause, until_us: int | None) -> None:
        """Begin a pause, or set the end of one."""
        self._pauses[pause.text] = now_us, until_us

    def resume(self, now_us: int, pause: Pause) -> bool:
        """End a pause; return False if it was not in force."""
        if pause.text not in self._pauses:
            return False
        _, until_us = self._pauses[pause.text]
        self._pauses[pause.text] = now_us, ENDED
        return is_in_force(until_us, now_us)

    def pauses(self, now_us: int) -> list[PauseRow]:
        """Return the pauses in force."""
        return pause_rows(self._pause_values(), now_us)

    # Reading

    def find(self, ids: Iterable[str]) -> list[TaskRow | None]:
        """Return the tasks with the given ids; None for each that does not exist."""
        return [None if number is None else self._tasks[number].row() for number in map(self._numbers.get, ids)]

    def rows(
        self,
        state: DurableState | None,
        *,
        after: int,
        limit: int,
        newest_first: bool = False,
        body_max: int | None = None,
    ) -> list[TaskRow]:
        """Return tasks in a state, or in any, behind the number ``after`` in the order of their numbers, or its reverse."""
        if newest_first:
            ordered = (task for number, task in reversed(self._tasks.items()) if not after or number < after)
        else:
            ordered = (task for number, task in self._tasks.items() if number > after)
        found = (task for task in ordered if state is None or task.state is state)
        rows = (task.row() for _, task in zip(range(limit), found, strict=False))
        return [row if body_max is None else cut(row, body_max) for row in rows]

    def ended(self, ids: Iterable[str]) -> list[EndedRow | DurableState | None]:
        """Return for each id the state of its task, or how it ended; None if there is neither."""
        numbers = ((task_id, self._numbers.get(task_id)) for task_id in ids)
        return [self._history.find(task_id) if n is None else self._tasks[n].state for task_id, n in numbers]

    def history(self, *, before: int | None, limit: int) -> list[EndedRow]:
        """Return ended tasks with numbers less than ``before``, the one that ended last first."""
        return self._history.rows(before, limit)

    def counts(self) -> dict[DurableState, int]:
        """Count the tasks in each state."""
        counted = Counter(task.state for task in self._tasks.values())
        return {state: counted[state] for state in DurableState}

    def backlog(self) -> list[BacklogRow]:
        """Count the tasks in some states, by queue, function and state."""
        wanted = (DurableState.READY, DurableState.BEHIND, DurableState.DEAD, DurableState.PAUSED)
        found = [task for task in self._tasks.values() if task.state in wanted]
        return backlog_rows((task.new.queue, task.new.name, int(task.state), 1, task.due_us) for task in found)

    def latencies(self, now_us: int) -> dict[str, int]:
        """Return for how long the oldest due task has waited for a claim, by queue; without those in which none waits."""
        ages: dict[str, int] = {}
        for name, queue in sorted(self._queues.items()):
            firsts = (queue.ready.oldest(), *map(self._first_scheduled, (queue.scheduled, queue.scheduled_heads)))
            due_us = min((task.due_us for task in firsts if task is not None), default=now_us + 1)
            if due_us <= now_us:
                ages[name] = now_us - due_us
        return ages

    def lanes(self, *, limit: int) -> list[LaneRow]:
        """Return the lanes with the most tasks behind their heads, the most first, then by name."""
        behind = Counter(task.new.lane for task in self._tasks.values() if task.state is DurableState.BEHIND)
        ordered = sorted(behind.items(), key=lambda each: (-each[1], each[0]))[:limit]
        heads = {name: self._lanes[name].head for name, _ in ordered if name is not None}
        return [
            LaneRow(lane=name, behind_count=behind[name], head_id=head.new.id, head_state=head.state)
            for name, head in heads.items()
            if head is not None
        ]

    # The rules

    def _put_one(self, now_us: int, new: NewTask) -> bool | Duplicate:
        if new.unique is not None and (duplicate := self._duplicate(now_us, new, new.unique)) is not None:
            return duplicate
        if new.id in self._numbers or new.id in self._ended or new.id in self._passed:
            return False
        if new.unique is not None:
            self._unique[new.unique.key] = new.id, new.unique.until(now_us)
        self._last_number += 1
        due_us = new.due_at(now_us)
        task = Task(self._last_number, new, now_us, was_due=due_us <= now_us)
        task.set_due(due_us)
        self._tasks[task.number] = task
        self._numbers[new.id] = task.number
        self._join_lane(now_us, task)
        return True

    def _duplicate(self, now_us: int, new: NewTask, unique: UniqueKey) -> Duplicate | None:
        """Find the task that exists with a unique key, and change it if asked for; None if none counts."""
        task_id, until_us = self._unique.get(unique.key, ("", 0))
        number = self._numbers.get(task_id)
        task = None if number is None else self._tasks[number]
        if task is not None and task.counts(now_us, unique):
            is_changed = unique.is_changing and task.state is not DurableState.CLAIMED
            if is_changed:
                self._change(now_us, task, new, unique)
            return Duplicate(task_id, is_changed)
        is_known = task_id in self._ended if task is None else not task.is_cancelled
        is_within = is_known and unique.is_within_period(now_us, until_us)
        return Duplicate(task_id, is_changed=False) if is_within else None

    def _change(self, now_us: int, task: Task, new: NewTask, unique: UniqueKey) -> None:
        """Give a waiting task what a later put asks for."""
        priority = max(task.new.priority, new.priority)
        task.new = task.new._replace(body=new.body, cost=new.cost, priority=priority)
        task.saved = None
        is_tried = task.attempt_count > 0 or task.state in (DurableState.UNKNOWN, DurableState.PAUSED)
        if unique.on_duplicate is OnDuplicate.DEBOUNCE and not is_tried:
            task.set_due(unique.limited(new.due_at(now_us), task.put_us, now_us))
            task.was_due = task.due_us <= now_us
            lane = None if task.new.lane is None else self._lanes[task.new.lane]
            if lane is not None and lane.head is task:
                lane.head = None
            self._join_lane(now_us, task)
        elif task.state is DurableState.READY:
            self._enter(task, DurableState.READY)  # by its new priority

    def _join_lane(self, now_us: int, task: Task) -> None:
        """Move a task to SCHEDULED, or into its lane."""
        name = task.new.lane
        if name is None:
            self._wait(now_us, task)
            return
        lane = self._lanes.setdefault(name, _Lane())
        task.place_us = task.due_us
        if task.was_due:
            task.place_us = lane.last_place_us = max(now_us, lane.last_place_us)
        self._fall_behind(lane, task)
        self._settle(now_us, name)

    def _fall_behind(self, lane: _Lane, task: Task) -> None:
        task.state = DurableState.BEHIND
        heappush(lane.behind, (task.place_us, task.number))

    def _settle(self, now_us: int, name: str | None) -> None:
        """Make the first task behind the head, if the lane has no head or its head gives way."""
        lane = None if name is None else self._lanes.get(name)
        if lane is None or name is None:
            return
        head, first = lane.head, self._first_behind(lane)
        if head is not None and (first is None or not head.gives_way or first.place_us >= head.place_us):
            return
        lane.head = first
        if first is None:
            del self._lanes[name]
            return
        heappop(lane.behind)
        if head is not None:
            self._fall_behind(lane, head)
        self._wait(now_us, first)

    def _first_behind(self, lane: _Lane) -> Task | None:
        while lane.behind:
            place_us, number = lane.behind[0]
            task = self._tasks.get(number)
            if task is not None and task.state is DurableState.BEHIND and task.place_us == place_us:
                return task
            heappop(lane.behind)
        return None

    def _wait(self, now_us: int, task: Task) -> None:
        is_due = task.was_due or task.due_us <= now_us
        self._enter(task, DurableState.READY if is_due else DurableState.SCHEDULED)

    def _enter(self, task: Task, state: DurableState) -> None:
        task.state = state
        queue = self._queues[task.new.queue]
        if state is DurableState.READY:
            queue.ready.push(task)
            if task.expires_us is not None:
                heappush(self._expiring, (task.expires_us, task.number))
        elif state is DurableState.SCHEDULED:
            heappush(queue.scheduled if task.new.lane is None else queue.scheduled_heads, (task.due_us, task.number))

    def _make_ready(self, scheduled: list[tuple[int, int]], until_us: int) -> None:
        """Move to READY the tasks that are due by a time."""
        while (task := self._first_scheduled(scheduled)) is not None and task.due_us <= until_us:
            heappop(scheduled)
            self._enter(task, DurableState.READY)

    def _first_scheduled(self, scheduled: list[tuple[int, int]]) -> Task | None:
        while scheduled:
            due_us, number = scheduled[0]
            task = self._tasks.get(number)
            if task is not None and task.state is DurableState.SCHEDULED and task.due_us == due_us:
                return task
            heappop(scheduled)
        return None

    def _delete_expired(self, now_us: int) -> int:
        count = 0
        while self._expiring and self._expiring[0][0] <= now_us:
            expires_us, number = heappop(self._expiring)
            task = self._tasks.get(number)
            if task is not None and task.state is DurableState.READY and task.expires_us == expires_us:
                self._remove(now_us, task, is_remembered=True)
                count += 1
        return count

    def _next_in(self, queue: _Queue, now_us: int, ahead_us: int) -> int | None:
        """Return the time until a SCHEDULED task can be claimed; None if there is none."""
        free = self._first_scheduled(queue.scheduled)
        head = self._first_scheduled(queue.scheduled_heads)
        times = [*([] if free is None else [free.due_us - ahead_us]), *([] if head is None else [head.due_us])]
        return max(0, min(times) - now_us) if times else None

    def _pause_values(self) -> list[tuple[str, int, int | None]]:
        return [(text, *times) for text, times in self._pauses.items()]

    def _set_aside(self, tasks: Iterable[Task], pauses: Pauses) -> frozenset[int]:
        """Set aside those of some tasks that are paused; return their numbers."""
        held = set()
        for task in tasks:
            text = pauses.holding(task.new.name, task.new.queue, task.new.lane, task.new.key)
            if text:
                task.state, task.owner = DurableState.PAUSED, text
                held.add(task.number)
        return frozenset(held)

    def _put_back(self, pauses: Pauses) -> None:
        """Make tasks READY whose pause has ended."""
        for text, is_old in pauses.ended:
            held = [each for each in self._tasks.values() if each.state is DurableState.PAUSED and each.owner == text]
            for task in held[:MOVED_MAX]:
                task.owner = ""
                self._enter(task, DurableState.READY)
            if is_old and not held:
                del self._pauses[text]

    def _in_force(self, ref: Ref) -> Task | None:
        task = self._tasks.get(ref.number)
        is_claimed = task is not None and task.state is DurableState.CLAIMED and task.token == ref.token
        return task if is_claimed else None

    def _start_one(self, ref: Ref) -> bool:
        task = self._in_force(ref)
        if task is not None:
            task.started_token = task.token
        return task is not None

    def _finish_one(self, now_us: int, outcome: TaskOutcome) -> bool:
        task = self._in_force(outcome.ref)
        if task is None:
            return False
        self._let_go(task)
        end = outcome.end
        is_gone = task.is_cancelled or end in (End.DONE, End.EXPIRED, End.CANCELLED)
        if is_gone and outcome.kept is not None:
            self._history.add(now_us, ending_of(end), outcome.kept)
        if end is End.DONE:
            self._remove(now_us, task, is_remembered=True)
        elif is_gone:
            self._remove(now_us, task, is_remembered=not task.is_cancelled)
        elif end is End.RELEASED:
            self._enter(task, DurableState.READY)
        elif end is End.UNKNOWN:
            self._enter(task, DurableState.UNKNOWN)
        elif end is End.SNOOZED:
            self._postpone(now_us, task, outcome.delay_us, keeps_lane=task.new.is_blocking)
        else:
            self._fail(now_us, task, outcome)
        return True

    def _fail(self, now_us: int, task: Task, outcome: TaskOutcome) -> None:
        task.attempt_count += 1
        task.error = outcome.error
        if outcome.end is End.DEAD:
            task.state = DurableState.DEAD
            if not task.new.is_blocking:
                self._leave_lane(now_us, task)
            return
        self._postpone(now_us, task, outcome.delay_us)

    def _postpone(self, now_us: int, task: Task, delay_us: int, *, keeps_lane: bool = False) -> None:
        lane = None if task.new.lane is None else self._lanes[task.new.lane]
        task.set_due(now_us + delay_us)
        task.place_us = 0 if keeps_lane else task.due_us
        task.was_due = False
        if lane is not None and not task.new.is_blocking:
            self._fall_behind(lane, task)
            self._leave_lane(now_us, task)
        else:
            self._wait(now_us, task)

    def _remove(self, now_us: int, task: Task, *, is_remembered: bool) -> None:
        del self._tasks[task.number]
        del self._numbers[task.new.id]
        if is_remembered and task.new.is_named:
            self._ended[task.new.id] = self._vouched_us
        self._leave_lane(now_us, task)

    def _leave_lane(self, now_us: int, task: Task) -> None:
        lane = None if task.new.lane is None else self._lanes.get(task.new.lane)
        if lane is not None and lane.head is task:
            lane.head = None
            self._settle(now_us, task.new.lane)

    def _cancel_one(self, now_us: int, task: Task) -> None:
        if task.state is DurableState.CLAIMED:
            task.is_cancelled = True
        else:
            self._remove(now_us, task, is_remembered=False)

    def _requeue_one(self, now_us: int, task: Task) -> None:
        task.attempt_count = task.lost_count = 0
        task.set_due(now_us)
        task.was_due = True
        lane = None if task.new.lane is None else self._lanes.get(task.new.lane)
        if lane is not None and lane.head is task:
            lane.last_place_us = max(now_us, lane.last_place_us)
            self._enter(task, DurableState.READY)
        else:
            self._join_lane(now_us, task)

    def _has_lease(self, owner: str) -> bool:
        return owner in self._owners

    def _pass(self, task_id: str, *, ahead_us: int) -> None:
        if task_id not in self._ended:
            self._passed.setdefault(task_id, self._vouched_us + ahead_us)

    def _pass_time(self, now_us: int) -> None:
        """Advance vouched time since the last beat, and forget tasks that ended long ago."""
        shortest_us = min((owner.lease_us for owner in self._owners.values()), default=None)
        self._vouched_us = vouched(self._vouched_us, self._last_beat_us, now_us, shortest_us)
        self._last_beat_us = now_us
        while self._ended and self._ended[first := next(iter(self._ended))] + REMEMBERED_US <= self._vouched_us:
            del self._ended[first]
        self._passed = {each: us for each, us in self._passed.items() if us + REMEMBERED_US > self._vouched_us}
        if len(self._unique) > 2 * len(self._tasks) + 1000:
            self._unique = {
                key: (task_id, until_us)
                for key, (task_id, until_us) in self._unique.items()
                if task_id in self._numbers or until_us > now_us - REMEMBERED_US
            }

    def _give_back(self, now_us: int, owner: str, *, is_lost: bool) -> None:
        for task in list(self._owners[owner].claimed.values()):
            self._let_go(task)
            task.lost_count += is_lost and (not task.lost_count or task.started_token == task.token)
            if task.is_cancelled:
                self._remove(now_us, task, is_remembered=False)
            else:
                self._enter(task, DurableState.READY)
        del self._owners[owner]

    def _let_go(self, task: Task) -> None:
        del self._owners[task.owner].claimed[task.number]
        task.owner = ""


def vouched(vouched_us: int, beat_us: int | None, now_us: int, shortest_us: int | None) -> int:
    """Return the vouched time at a beat.

    Args:
        vouched_us: the vouched time of the last beat.
        beat_us: the clock at the last beat; None if there was none.
        now_us: the clock now.
        shortest_us: the shortest lease of all owners; None if there are none.
    """
    if beat_us is None or shortest_us is None:
        return vouched_us
    return vouched_us + min(shortest_us // 3, max(0, now_us - beat_us))
