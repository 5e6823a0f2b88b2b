"""A ready queue in the order of :class:`Fair`; ``fair.py`` has the theory and the law."""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ratelimited_executor._core.order.fair import Flow, Level
from ratelimited_executor._core.order.ordering import view_of
from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor._kernel.runs import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from ratelimited_executor._core.order.fair import FairClock
    from ratelimited_executor._core.queue.records import TaskRecord
    from ratelimited_executor._kernel.contracts import Rank, Source
    from ratelimited_executor._kernel.runs import RecordRun

__all__ = ["ReadyFair"]

Item: TypeAlias = "TaskRecord | Run"
_COMPACT_STEP_COUNT: Final = 1024  # keys whose queues are freed of cancelled tasks in one step
_SPARE_COUNT: Final = 64  # cancelled tasks that are tolerated
_AHEAD: Final = 32  # tasks of a key examined to estimate its needs
_CREDIT_COUNT: Final = 4  # tasks that a key may catch up on after its own limit has held it back


class ReadyFair:
    """The ready queue of one calendar of an executor whose order is :class:`Fair`.

    Args:
        calendar: the calendar that its records belong to.
        clock: the virtual times, shared with the other calendar.
        index: 0 or 1: which of the two calendars this is.
    """

    active: Final = True
    __slots__ = (
        "_active", "_clock", "_draining", "_found", "_head", "_index", "_is_compacting", "_is_fresh", "_parked", "_record", "_stale_count",
        "_taken", "_taken_at", "calendar", "count", "is_replaced",
    )  # fmt: skip

    opened: Final = True
    source: Final = None  # this object serves as the run of one taken record

    def __init__(self, calendar: Any, clock: FairClock, index: int) -> None:
        self.calendar = calendar
        self.count = 0  # items, cancelled ones included
        self._clock = clock
        self._index = index
        self._active: list[float] = []  # a heap of the levels that hold flows, by negated priority
        self._taken: Flow | None = None  # the flow of the taken task; its next task is not examined yet
        self._taken_at: tuple[float, Level, float, int] = (
            0.0,
            Level(),
            0.0,
            0,
        )  # negated priority, level, tag and cost of the taken task
        self._parked: set[Flow] = set()  # the flows that wait for a known event
        self._record: Any = None  # the record being taken
        self._stale_count = 0
        self._is_compacting = False
        self._draining: list[Flow] | None = None  # the flows still to be drained; None until drain() is called
        self.is_replaced = False  # True once the calendar has a queue of another order
        self._head: Any = None  # the item that head() found
        self._is_fresh = False  # True if its flow is fresh
        self._found: tuple[float, Level, float, Flow]  # its negated priority, level, tag and flow

    # Adding.

    def push_record(self, record: TaskRecord) -> None:
        """Add a record whose due time has come: O(log keys) if its key had none waiting, else O(1)."""
        record._place = self
        rank = (-record.priority, record._class)
        key = record._key  # its line, if it needs slots
        if self._clock.fair.by is not None:
            key = self._key_by(key, record.name, record._due, rank, record.cost, (record, 0))
            if record._place is not self:  # the user function has cancelled it
                return
            if self.is_replaced:  # the user function has set another order
                self.calendar.ready.push_record(record)
                return
        self._append(rank, key, record)

    def return_record(self, record: TaskRecord) -> None:
        """Add a record that was taken and has not begun, to its key."""
        self.push_record(record)

    def push_records(self, records: list[TaskRecord], rank: Rank) -> None:  # noqa: ARG002  # each record has its own
        """Add records."""
        for record in records:
            record._place = self
        for record in records:
            if record._place is self:  # a user function may have cancelled it meanwhile
                self.push_record(record)

    def push_run(self, source: Source, positions: Sequence[int], rank: Rank) -> None:
        """Add tasks of one source and rank: as one item, unless a function returns the key of each."""
        if self._clock.fair.by is None:
            self._append(rank, source.key, Run(source, positions))
            return
        for position in positions:
            if source.is_waiting(position):
                due, name = source.due_of(position), source.name_of(position)
                key = self._key_by(source.key, name, due, rank, source.cost_of(position), (source, position))
                if self.is_replaced:  # the user's function has replaced this queue
                    self.calendar.ready.push_position(source, position, rank)
                else:
                    self._append(rank, key, Run(source, (position,)))

    def push_position(self, source: Source, position: int, rank: Rank) -> None:
        """Add one task of a source."""
        if self._clock.fair.by is None:
            _, flow = self._clock.flow(rank[0], source.key)
            waiting = flow.second if self._index else flow.first
            last = waiting[-1] if type(waiting) is deque else waiting
            if type(last) is Run and last.extend(source, position):
                return
        self.push_run(source, [position], rank)

    def _append(self, rank: Rank, key: Hashable, item: Item) -> None:
        """Put an item at the end of its flow."""
        minus_priority = rank[0]
        level, flow = self._clock.flow(minus_priority, key)
        if self.is_replaced:  # the weight function has set another order
            if type(item) is Run:
                self.calendar.ready.push_run(item.source, list(item.positions()), rank)
            else:
                self.calendar.ready.push_record(item)
            return
        self.count += 1
        waiting = flow.second if self._index else flow.first
        if type(waiting) is deque:
            waiting.append(item)
            return
        joined = item if waiting is None else deque((waiting, item))
        if self._index:
            flow.second = joined
        else:
            flow.first = joined
        if waiting is None and self._taken is not flow:  # else _put_back() enters it
            level.waiting_count += 1
            level.weight_sum += flow.weight
            self._enter(minus_priority, level, flow, _cost_of(item))

    def _enter(self, minus_priority: float, level: Level, flow: Flow, cost: int, *, credit: float = 0.0) -> None:
        """Add a flow that had no waiting task in this calendar, with a credit of virtual time."""
        tag = min(level.now, level.least_tag(self._clock.numbers) + cost / flow.weight)
        tag = max(tag - credit if credit else tag, flow.finish)  # most keys share one float object here
        fresh = level.fresh[self._index]
        is_elsewhere = flow.first is not None if self._index else flow.second is not None
        if not is_elsewhere and (not fresh or fresh[-1].finish <= tag):
            flow.finish = tag
            fresh.append(flow)
        else:
            heapq.heappush(level.heaps[self._index], (tag, next(self._clock.numbers), flow))
        self._activate(minus_priority, level)

    def _activate(self, minus_priority: float, level: Level) -> None:
        if not level.is_active[self._index]:
            level.is_active[self._index] = True
            heapq.heappush(self._active, minus_priority)

    # Taking.

    def head(self) -> tuple[float, float] | None:
        """Return negated priority and start tag of the first task of keys not held back; None if none waits."""
        if self._taken is not None:
            self._put_back(self._taken)
        index = self._index
        while self._active:
            minus_priority = self._active[0]
            level = self._clock.levels.get(minus_priority)
            if level is None:  # an empty level was forgotten
                heapq.heappop(self._active)
                continue
            heap, fresh = level.heaps[index], level.fresh[index]
            while heap or fresh:
                if level.moved:
                    level.settle_fresh(index, self._clock.numbers)
                is_fresh = bool(fresh) and (not heap or fresh[0].finish <= heap[0][0])
                if is_fresh:
                    flow = fresh[0]
                    tag = flow.finish
                else:
                    tag, _, flow = heap[0]
                    if tag < flow.finish:  # the other calendar has served it meanwhile
                        heapq.heapreplace(heap, (flow.finish, next(self._clock.numbers), flow))
                        continue
                item = self._first(flow)
                if item is None:
                    if is_fresh:
                        fresh.popleft()
                    else:
                        heapq.heappop(heap)
                    self._clock.rest(minus_priority, level, flow)
                    continue
                self._head = item
                self._is_fresh = is_fresh
                self._found = minus_priority, level, tag, flow
                return minus_priority, tag
            heapq.heappop(self._active)
            level.is_active[index] = False
        return None

    def head_at(self, now_ns: int) -> tuple[float, float] | None:
        """Return what :meth:`head` does for the first task that may start at a time; None if none may."""
        while (head := self.head()) is not None:
            gate, item = self._clock.gate, self._head
            if gate is None:
                return head
            _, level, _, flow = self._found
            key = flow.key if self._clock.fair.by is None else _key_of(item)
            if key is None:
                return head
            if not gate.knows(key):
                gate.meet(key, now_ns)
                if self.is_replaced:
                    return None
            elif gate.admits(key, cost := _cost_of(item), now_ns) or gate.is_over(self.peek(), now_ns):
                return head
            elif gate.is_put_off and gate.is_asking:
                return None
            else:
                is_put_off = gate.is_put_off
                if self._is_fresh:
                    level.fresh[self._index].popleft()
                else:
                    _leave(level.heaps[self._index], flow)
                self._head = None  # the item may be freed before another becomes first
                level.waiting_count -= 1
                level.weight_sum -= flow.weight
                self._park(head, level, flow, key, cost, None if is_put_off else now_ns)
        return None

    def head_rank(self) -> Rank:
        """Return the rank of the first task; only right after :meth:`head` found one."""
        item: Any = self._head
        kind = item.source.rank[1] if type(item) is Run and hasattr(item.source, "rank") else TaskClass.OTHER
        return self._found[0], kind

    def peek(self) -> tuple[Source | None, Any]:
        """Return the first task, as (source, position) or (None, record); only right after :meth:`head` found one."""
        item: Any = self._head
        return item.peek() if type(item) is Run else (None, item)

    def pop(self) -> Run | RecordRun:
        """Return a run from which to take the first task, and that alone; only right after :meth:`head` found one."""
        minus_priority, level, tag, flow = self._found  # the flow stays in place until its next task is known
        item: Any = self._head
        self._taken = flow
        self._taken_at = minus_priority, level, tag, _cost_of(item)
        if type(item) is Run:
            return item
        self._drop_first(flow)
        self._record = item
        return self  # type: ignore[return-value]  # it has the used part of a record run

    def take(self) -> TaskRecord:
        """Return the record that :meth:`pop` found."""
        record: TaskRecord = self._record
        self._record = None
        record._place = None
        return record

    def served(self) -> None:
        """Record that the taken task starts: a key is charged for started tasks, and not for expired ones."""
        flow = self._taken
        if flow is not None:
            minus_priority, level, tag, cost = self._taken_at
            self._clock.serve(minus_priority, level, flow, tag, cost)
            if self._is_fresh or (flow.first if self._index else flow.second) is not None:
                level.moved.add(flow)  # its new tag would hide those of the flows behind it

    def release(self) -> None:
        """Stop holding back keys: all tasks move to another order."""
        if self._clock.gate is not None:
            gate, self._clock.gate = self._clock.gate, None
            gate.open_all()

    def note_replaced(self) -> None:
        """Pass tasks to another queue that are added while a user function computes their key."""
        self.is_replaced = True

    def _put_back(self, flow: Flow) -> None:
        """Return a flow whose task was taken to its place, for its next task or as idle."""
        minus_priority, level, tag, _ = self._taken_at
        self._taken = None
        heap = level.heaps[self._index]
        waits = (flow.second if self._index else flow.first) is not None
        fresh = level.fresh[self._index]
        if not self._is_fresh or not fresh or fresh[0] is not flow:
            if waits and heap[0][2] is flow:
                heapq.heapreplace(heap, (max(tag, flow.finish), next(self._clock.numbers), flow))
            else:
                _leave(heap, flow)
                if waits:
                    heapq.heappush(heap, (max(tag, flow.finish), next(self._clock.numbers), flow))
        else:
            fresh.popleft()
            if waits:
                heapq.heappush(heap, (flow.finish, next(self._clock.numbers), flow))
        if not waits:
            self._clock.rest(minus_priority, level, flow)

    def _park(  # the place in the order, and the arguments of the gate
        self, head: tuple[float, float], level: Level, flow: Flow, key: Hashable, cost: int, now_ns: int | None
    ) -> None:
        """Park a flow until its key may start a task; put it off if ``now_ns`` is None."""

        def resume() -> None:
            self._parked.discard(flow)
            level.waiting_count += 1
            level.weight_sum += flow.weight
            self._enter(head[0], level, flow, cost, credit=_CREDIT_COUNT * cost / flow.weight)

        gate = self._clock.gate
        assert gate is not None
        if now_ns is None:
            gate.put_off(key, head, cost, resume, lambda most: self._count(flow, most))
        elif gate.park(key, cost, now_ns, resume, lambda most: self._count(flow, most)):
            self._parked.add(flow)

    def _first(self, flow: Flow) -> Any:
        """Return the first item of a flow with a waiting task; None if no task waits."""
        while True:
            waiting = flow.second if self._index else flow.first
            if waiting is None:
                return None
            item = waiting[0] if type(waiting) is deque else waiting
            if (item.head_due() is not None) if type(item) is Run else item._place is self:
                return item
            self._stale_count -= type(item) is not Run
            self._drop_first(flow)

    def _drop_first(self, flow: Flow) -> None:
        self.count -= 1
        waiting = flow.second if self._index else flow.first
        if type(waiting) is deque:
            waiting.popleft()
            if waiting:
                return
        if self._index:
            flow.second = None
        else:
            flow.first = None

    # Cancelling.

    def cancel_record(self) -> None:
        """Record that a record here no longer waits; stale places are freed as a chore once they are the majority."""
        self._stale_count += 1
        if self._stale_count * 2 > self.count + _SPARE_COUNT and not self._is_compacting:
            self._is_compacting = True
            self._clock.chores.append(self._compact())

    def _compact(self) -> Iterator[None]:
        """Free the places of records that no longer wait."""
        for level in list(self._clock.levels.values()):
            flows = list(level.flows.values())
            for number, flow in enumerate(flows):
                if number % _COMPACT_STEP_COUNT == 0:
                    yield
                waiting = flow.second if self._index else flow.first
                if type(waiting) is deque:
                    kept = [item for item in waiting if type(item) is Run or item._place is self]
                    kept = kept or [waiting[0]]  # a flow in the heap must not be empty; head() removes it
                    self.count -= len(waiting) - len(kept)
                    self._stale_count -= len(waiting) - len(kept)
                    rest = deque(kept)
                    if self._index:
                        flow.second = rest
                    else:
                        flow.first = rest
        self._is_compacting = False

    def clear(self) -> None:
        """Forget everything."""
        self._clock.levels.clear()
        self._active.clear()
        self._parked.clear()
        self._taken = None
        self.count = self._stale_count = 0

    # Inspecting.

    def _flows(self) -> Iterator[tuple[float, Level, Flow, list[Any]]]:
        for minus_priority in sorted(self._clock.levels):
            level = self._clock.levels[minus_priority]
            for flow in level.flows.values():
                waiting = flow.second if self._index else flow.first
                if waiting is not None:
                    yield minus_priority, level, flow, list(waiting) if type(waiting) is deque else [waiting]

    def walk(self) -> Iterator[tuple[Source | None, Any]]:
        """Walk the waiting tasks, key by key."""
        for *_, items in self._flows():
            for item in items:
                if isinstance(item, Run):
                    yield from item.walk()
                elif item._place is self:
                    yield None, item

    def drain(self, count: int) -> list[Any] | None:
        """Forget up to ``count`` items, key by key, and return the waiting records among them; None if none was left."""
        if self._draining is None:  # no task is added any more
            self._draining = [flow for level in self._clock.levels.values() for flow in level.flows.values()]
        if not self._draining:
            return None
        records: list[Any] = []
        while self._draining and count > 0:
            count -= 1
            item = self._first(self._draining[-1])
            if item is None:
                self._draining.pop()
                continue
            self._drop_first(self._draining[-1])
            if type(item) is not Run:
                records.append(item)
        self._stale_count -= len(records)  # their ends will be noted
        return records

    def keyed(self) -> Iterator[tuple[Any, Source | None, Any]]:
        """Walk the waiting tasks as (rank, source, position) or (rank, None, record), as if no key were held back.

        The rank contains the tag that a task will get if no task is added. Keys with equal tags keep their present
        order.
        """
        flows = sorted(self._flows(), key=lambda each: (each[0], each[2].finish))
        for turn, (minus_priority, _, flow, items) in enumerate(flows):
            tag = flow.finish
            for item in items:
                if type(item) is Run:
                    for source, position in item.walk():
                        yield (minus_priority, tag, turn), source, position
                        tag += source.cost_of(position) / flow.weight
                elif item._place is self:
                    yield (minus_priority, tag, turn), None, item
                    tag += item.cost / flow.weight

    def upcoming(self, most: int) -> Iterator[tuple[Hashable, list[tuple[Source | None, Any]]]]:
        """Walk at most ``most`` keys that wait for nothing known, roughly in order, each with some of its tasks."""
        flows = (
            (minus_priority, flow.finish, flow)
            for minus_priority, level in self._clock.levels.items()
            for flow in level.flows.values()
            if flow not in self._parked
        )
        for _, _, flow in heapq.nsmallest(most, flows, key=lambda each: each[:2]):
            first = next(self._waiting(flow), None)
            if first is not None:
                key = flow.key if self._clock.fair.by is None else _key_of(first)
                yield key, list(islice(self._tasks(flow), _AHEAD))

    def count_startable(self, allowance: Callable[[Hashable, int], float], most: float) -> float:
        """Estimate how many tasks of keys that are not parked could start.

        Args:
            allowance: returns how many tasks of a key and a cost could start.
            most: stop counting at this number.
        """
        total = 0.0
        for level in self._clock.levels.values():
            for flow in chain((flow for *_, flow in level.heaps[self._index]), level.fresh[self._index]):
                item = next(self._waiting(flow), None)
                if item is None:
                    continue
                key = flow.key if self._clock.fair.by is None else _key_of(item)
                count = min(allowance(key, _cost_of(item)), most)
                total += min(count, self._count(flow, count))
                if total >= most:
                    return total
        return total

    def _waiting(self, flow: Flow) -> Iterator[Any]:
        """Walk the items of a flow that have a waiting task."""
        waiting = flow.second if self._index else flow.first
        if waiting is not None:
            for item in waiting if type(waiting) is deque else (waiting,):
                if (item.head_due() is not None) if type(item) is Run else item._place is self:
                    yield item

    def _count(self, flow: Flow, most: float) -> int:
        """Count the tasks of a flow, up to ``most``."""
        return sum(1 for _ in islice(self._tasks(flow), math.ceil(most)))

    def _tasks(self, flow: Flow) -> Iterator[tuple[Source | None, Any]]:
        """Walk the tasks of a flow in their order."""
        for item in self._waiting(flow):
            if type(item) is Run:
                yield from item.walk()
            else:
                yield None, item

    def _key_by(self, key: Hashable, name: str, due: float, rank: Rank, cost: int, place: Any) -> Hashable:
        by = self._clock.fair.by
        assert by is not None
        arrival = next(self._clock.arrivals)
        view = view_of(name, rank, self._clock.to_epoch(due), arrival=arrival, key=key, cost=cost, place=place)
        try:
            found = self._clock.keys.held(by(view))
        except BaseException as error:  # noqa: BLE001  # as for weights
            self._clock.report(error)
            return None
        return found


def _leave(heap: list[tuple[float, int, Flow]], flow: Flow) -> None:
    """Remove a flow from a heap of which it was the first: other flows may have resumed before it."""
    if heap[0][2] is flow:
        heapq.heappop(heap)
    else:
        heap.remove(next(entry for entry in heap if entry[2] is flow))
        heapq.heapify(heap)


def _key_of(item: Any) -> Hashable:
    if type(item) is Run:
        return item.source.key
    return item._key  # type: ignore[no-any-return]  # its line, if it needs slots


def _cost_of(item: Any) -> int:
    if type(item) is Run:
        return item.source.cost_of(item.first)
    return 1 if item._options is None else item.cost
