"""Weighted fair queueing between keys, inside a priority.

Theory: start-time fair queueing. A task of key k with cost c gets, when it comes to the head of its key's queue, a *start
tag* S; F_k, the *finish tag* of its key, becomes S + c / w_k once it has started. The smallest start tag starts first.
While a key has tasks that wait, S = F_k. The first task of a key that had none gets

    S = max(F_k, min(v, s + c / w_k))

with s the smallest start tag of all that wait, and v the *virtual time*, which advances by c / W with each start, W the
weights of all keys that have tasks, and never stays behind the start tag of what has started.

Law: over any stretch in which keys f and g both have tasks that wait,

    | cost(f) / w_f  -  cost(g) / w_g |  <=  c_f / w_f  +  c_g / w_g

with c the largest cost of a task of each: the shares are right within one task of each. A key that a limit of its own has
held back competes as if it had waited, but for what it has lost beyond two of its tasks: one whose rate is less than its
share gets its rate, one whose rate is more gets its share, and a long penalty saves nothing up. A key that has been away
comes back at v: it has saved up nothing, and owes nothing but what it was given ahead. So the first task of a key waits for one
task of every other key at most (by weight), and not for their queues. And a key that has a queue is not starved by a
stream of keys that are new: v passes its start tag after as many starts as there are keys.

Each priority has a virtual time of its own, in which the two calendars of an executor (those that start on time, those
that are spread) share. Keys without tasks are forgotten as soon as v has passed their finish tag. Keys that come back at v
do so in order of their tags, mostly, and then wait in a plain queue and not in a heap.
Cost: O(log keys) a task, nothing per waiting task beyond its place in its key's queue.

Rejected: deficit round robin (O(1), but a heavy key waits for whole rounds), stochastic fairness (keys that share a hash
share a fate), tags of the finish (a light key's next task waits for a heavy task that has not started), v as the start tag
in service alone (it stands still while one new key after the other is served, and all others starve).
Sources: P. Goyal, H. Vin, H. Cheng, "Start-time fair queueing", IEEE/ACM Transactions on Networking 5(5), 1997; for v:
J. Bennett, H. Zhang, "Hierarchical packet fair queueing algorithms", the same, 1997.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ratelimited_executor._core.ordering import TaskClass, TaskView
from ratelimited_executor._core.ready import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from ratelimited_executor._core.key_gate import KeyGate
    from ratelimited_executor._core.ready import Rank, Ready, RecordRun, Source
    from ratelimited_executor._core.records import Record

__all__ = ["Fair", "FairClock", "ReadyFair"]

Item: TypeAlias = "Record | Run"
_PURGE_COUNT: Final = 2  # idle keys looked at for each start: twice as many as can become idle
_PURGE_STEP_COUNT: Final = 1024  # the same as a chore, when nothing waits any more
_COMPACT_STEP_COUNT: Final = 1024  # keys whose queues are freed of cancelled tasks at a stretch
_SPARE_COUNT: Final = 64  # cancelled tasks that never matter
_CREDIT_COUNT: Final = 2  # tasks that a key may catch up with when its own limit has held it back


class Fair:
    """An order: priority first, and among tasks of equal priority each key its share, by weight.

    Inside a key tasks start in the order in which they become due. Tasks without a key share one.

    Args:
        by: what tells a task's key from its :class:`TaskView`; the ``key=`` that it was scheduled with by default.
        weights: of the keys, > 0, as a mapping or a function of the key; 1 where it has nothing to say.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if a weight is not a finite number > 0.
    """

    __slots__ = ("_by", "_weights")

    def __init__(
        self,
        by: Callable[[TaskView], Hashable] | None = None,
        *,
        weights: Mapping[Any, float] | Callable[[Any], float] | None = None,
    ) -> None:
        if by is not None and not callable(by):
            raise TypeError(f"by must be a function of a task, or None for the key it was scheduled with, got {by!r}")
        if weights is not None and not callable(weights):
            if not hasattr(weights, "items"):
                raise TypeError(
                    f"weights must be a mapping from key to weight, or a function of the key, got {weights!r}"
                )
            weights = {key: _weight_of(key, weight) for key, weight in weights.items()}
        self._by = by
        self._weights = weights

    @property
    def by(self) -> Callable[[TaskView], Hashable] | None:
        """What tells a task's key; None for the key it was scheduled with."""
        return self._by

    @property
    def is_even(self) -> bool:
        """Whether all keys have the same weight."""
        return self._weights is None

    def weight(self, key: Hashable) -> float:
        """Return the weight of a key.

        Raises:
            ValueError: if the function of the key returns no finite number > 0.
        """
        weights = self._weights
        if weights is None:
            return 1.0
        if isinstance(weights, dict):
            return weights.get(key, 1.0)
        return _weight_of(key, weights(key))

    def wrapped(self, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Fair:
        """Return the same with each function in a wrapper."""
        weights = self._weights
        fair = Fair(None if self._by is None else wrap(self._by))
        fair._weights = wrap(weights) if callable(weights) else weights
        return fair

    def __repr__(self) -> str:
        by = "" if self._by is None else f"by={self._by!r}"
        weights = "" if self._weights is None else f"weights={self._weights!r}"
        return f"Fair({', '.join(filter(None, (by, weights)))})"


class _Flow:
    """The tasks of one key and priority, of weight 1.

    Attributes:
        key: whose they are.
        weight: its part of the rate.
        finish: the finish tag of the last one that started, or the start tag of the next if that is larger.
        first: what waits in the first calendar: None, an item, or a deque of items.
        second: the same of the second.
        tag: its start tag in a plain queue; it stands in one of them at most.
    """

    __slots__ = ("finish", "first", "key", "second", "tag")

    weight: float = 1.0

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.finish = 0.0
        self.first: Any = None
        self.second: Any = None
        self.tag = 0.0


class _WeightedFlow(_Flow):
    """The same, of any weight."""

    __slots__ = ("weight",)

    def __init__(self, key: Hashable, weight: float) -> None:
        super().__init__(key)
        self.weight = weight


class _Level:
    """The flows of one priority, and their virtual time.

    Attributes:
        now: the virtual time.
        latest: the largest finish tag.
        flows: by key.
        heaps: of each calendar, the flows of which tasks wait, as (start tag, number, flow).
        fresh: the same of flows that have come in order of their start tags.
        is_active: whether a calendar looks here.
        ghosts: a heap of (finish tag, number, flow): idle, not forgotten.
        waiting_count: how many entries there are, the one being taken from included.
        weight_sum: the weights of their flows.
    """

    __slots__ = (
        "flows", "fresh", "ghosts", "heaps", "is_active", "latest", "now", "waiting_count", "weight_sum"
    )  # fmt: skip

    def __init__(self) -> None:
        self.now = 0.0
        self.latest = 0.0
        self.flows: dict[Hashable, _Flow] = {}
        self.heaps: tuple[list[tuple[float, int, _Flow]], ...] = ([], [])
        self.fresh: tuple[deque[_Flow], ...] = (deque(), deque())
        self.is_active = [False, False]
        self.ghosts: list[tuple[float, int, _Flow]] = []
        self.waiting_count = 0
        self.weight_sum = 0.0

    def least_tag(self) -> float:
        """Return the smallest start tag of all that wait, as far as is known; infinity if nothing does."""
        least = math.inf
        for heap in self.heaps:
            if heap and heap[0][0] < least:
                least = heap[0][0]
        for fresh in self.fresh:
            if fresh and fresh[0].tag < least:
                least = fresh[0].tag
        return least


class FairClock:
    """The virtual times of an executor.

    Args:
        fair: the order.
        gate: the limits of keys; None if there are none.
        chores: where work that may wait is put, as iterators whose steps take about a millisecond.
        report: is told of keys and weights that raise.
        to_epoch: turns a due time into epoch seconds.
    """

    __slots__ = ("arrivals", "chores", "fair", "gate", "is_even", "levels", "numbers", "report", "to_epoch")

    def __init__(
        self,
        fair: Fair,
        *,
        gate: KeyGate | None,
        chores: deque[Iterator[None]],
        report: Callable[[BaseException], None],
        to_epoch: Callable[[float], float],
    ) -> None:
        self.fair = fair
        self.gate = gate
        self.is_even = fair.is_even
        self.chores = chores
        self.report = report
        self.to_epoch = to_epoch
        self.levels: dict[float, _Level] = {}  # by minus priority
        self.numbers = count()
        self.arrivals = count(1)

    def flow(self, minus_priority: float, key: Hashable) -> tuple[_Level, _Flow]:
        """Return the flow of a priority and key."""
        level = self.levels.get(minus_priority)
        if level is None:
            level = self.levels[minus_priority] = _Level()
        flow = level.flows.get(key)
        if flow is None:
            weight = self._weight(key)
            flow = level.flows.get(key)  # the function may have scheduled something of the key
            if flow is None:
                flow = level.flows[key] = _Flow(key) if weight == 1.0 else _WeightedFlow(key, weight)
        return level, flow

    def _weight(self, key: Hashable) -> float:
        """Return the weight of a key; 1 if it cannot be told."""
        if self.is_even:
            return 1.0
        try:
            return self.fair.weight(key)
        except BaseException as error:  # noqa: BLE001  # weights are user code: nothing of it may lose a task
            self.report(error)
            return 1.0

    def serve(self, level: _Level, flow: _Flow, tag: float, cost: int) -> None:
        """Note that a task has started."""
        now = level.now + cost / max(level.weight_sum, flow.weight)
        level.now = now if now > tag else tag  # noqa: FURB136  # this is the path of every start
        flow.finish = finish = tag + cost / flow.weight
        if finish > level.latest:  # noqa: PLR1730  # as above
            level.latest = finish
        if level.ghosts:
            self._purge(level, _PURGE_COUNT)

    def rest(self, minus_priority: float, level: _Level, flow: _Flow) -> None:
        """Note that nothing of a flow waits in a calendar; forget it, or remember its finish tag as long as that matters."""
        level.waiting_count -= 1
        level.weight_sum -= flow.weight
        if flow.first is not None or flow.second is not None:
            return
        if flow.finish <= level.now:
            if level.flows.get(flow.key) is flow:
                del level.flows[flow.key]
        else:
            heapq.heappush(level.ghosts, (flow.finish, next(self.numbers), flow))
        if level.waiting_count == 0:  # nobody competes: all tags are as good as past
            level.now = max(level.now, level.latest)
            level.weight_sum = 0.0
            self.chores.append(self._purge_steps(minus_priority, level))

    def _purge(self, level: _Level, limit: int) -> None:
        """Forget idle flows whose finish tag has passed."""
        ghosts = level.ghosts
        while limit and ghosts and ghosts[0][0] <= level.now:
            limit -= 1
            finish, _, flow = heapq.heappop(ghosts)
            if flow.finish == finish and flow.first is None is flow.second and level.flows.get(flow.key) is flow:
                del level.flows[flow.key]

    def _purge_steps(self, minus_priority: float, level: _Level) -> Iterator[None]:
        while level.ghosts and level.ghosts[0][0] <= level.now:
            self._purge(level, _PURGE_STEP_COUNT)
            yield
        if not level.flows and not level.waiting_count and self.levels.get(minus_priority) is level:
            del self.levels[minus_priority]


class ReadyFair:
    """What is due in one calendar of an executor whose order is :class:`Fair`: the shape of a ready queue.

    Args:
        calendar: told to the places of records.
        clock: the virtual times, shared with the other calendar.
        index: 0 or 1: which of the two calendars this is.
    """

    __slots__ = (
        "_active", "_clock", "_head", "_index", "_is_compacting", "_is_fresh", "_record", "_stale_count", "_taken",
        "_taken_at", "calendar", "count", "successor",
    )  # fmt: skip

    opened: Final = True
    source: Final = None  # as a run of which one record is taken

    def __init__(self, calendar: Any, clock: FairClock, index: int) -> None:
        self.calendar = calendar
        self.count = 0  # items, cancelled ones included
        self._clock = clock
        self._index = index
        self._active: list[float] = []  # a heap of the levels whose heaps hold something
        self._taken: _Flow | None = None  # of which a task was taken, and whose next one is to be looked at
        self._taken_at: tuple[float, _Level, float, int] = (
            0.0,
            _Level(),
            0.0,
            0,
        )  # priority, level, tag and cost of that
        self._record: Any = None  # that is being taken
        self._stale_count = 0
        self._is_compacting = False
        self.successor: Ready | None = None  # what another order has put in its place
        self._head: Any = None  # the item that head() found
        self._is_fresh = False  # and whether its flow is a fresh one

    # Taking in.

    def push_record(self, record: Record) -> None:
        """Take in a record whose due time has come: O(log keys) if its key had none waiting, else O(1)."""
        record._place = self
        rank = (-record.priority, record._class)
        options = record._options
        key = None if options is None else options.key
        if self._clock.fair.by is not None:
            key = self._key_by(key, record.name, record._due, rank, record.cost)
            if record._place is not self:  # the function has cancelled it
                return
            if self.successor is not None:  # the function has set another order
                self.successor.push_record(record)
                return
        self._append(rank, key, record)

    def push_records(self, records: list[Record], rank: Rank) -> None:  # noqa: ARG002  # each tells its own
        """Take in records."""
        for record in records:
            record._place = self
        for record in records:
            if record._place is self:  # a function of the user may have cancelled it meanwhile
                self.push_record(record)

    def push_run(self, source: Source, positions: Sequence[int], rank: Rank) -> None:
        """Take in tasks of one source and rank: as one item, unless each has to be asked for its key."""
        if self._clock.fair.by is None:
            self._append(rank, source.key, Run(source, positions))
            return
        for position in positions:
            if source.is_waiting(position):
                due, name = source.due_of(position), source.name_of(position)
                key = self._key_by(source.key, name, due, rank, source.cost_of(position))
                if self.successor is not None:  # as above
                    self.successor.push_position(source, position, rank)
                else:
                    self._append(rank, key, Run(source, (position,)))

    def push_position(self, source: Source, position: int, rank: Rank) -> None:
        """Take in one task of a source."""
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
        if self.successor is not None:  # the weights have set another order
            if type(item) is Run:
                self.successor.push_run(item.source, list(item.positions()), rank)
            else:
                self.successor.push_record(item)  # type: ignore[arg-type]  # what is no run is a record
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
        if waiting is None and self._taken is not flow:  # else it is put back anyway
            level.waiting_count += 1
            level.weight_sum += flow.weight
            self._enter(minus_priority, level, flow, _cost_of(item))

    def _enter(self, minus_priority: float, level: _Level, flow: _Flow, cost: int, *, credit: float = 0.0) -> None:
        """Let a flow wait of which nothing has waited in this calendar, with some virtual time that it has lost."""
        tag = min(level.now, level.least_tag() + cost / flow.weight) - credit
        tag = max(tag, flow.finish)
        fresh = level.fresh[self._index]
        is_elsewhere = flow.first is not None if self._index else flow.second is not None
        if not is_elsewhere and (not fresh or fresh[-1].tag <= tag):
            flow.finish = flow.tag = tag
            fresh.append(flow)
        else:
            heapq.heappush(level.heaps[self._index], (tag, next(self._clock.numbers), flow))
        self._activate(minus_priority, level)

    def _activate(self, minus_priority: float, level: _Level) -> None:
        if not level.is_active[self._index]:
            level.is_active[self._index] = True
            heapq.heappush(self._active, minus_priority)

    # Taking out.

    def head(self) -> tuple[float, float] | None:  # noqa: PLR0912  # this is the path of every start
        """Return priority and start tag of the first task that waits and may start; None if none does."""
        if self._taken is not None:
            self._put_back(self._taken)
        index, gate = self._index, self._clock.gate
        while self._active:
            minus_priority = self._active[0]
            level = self._clock.levels.get(minus_priority)
            if level is None:  # nothing waited there, and it was forgotten
                heapq.heappop(self._active)
                continue
            heap, fresh = level.heaps[index], level.fresh[index]
            while heap or fresh:
                is_fresh = bool(fresh) and (not heap or fresh[0].tag <= heap[0][0])
                if is_fresh:
                    flow = fresh[0]
                    tag = flow.tag
                    if tag < flow.finish:  # as below
                        heapq.heappush(heap, (flow.finish, next(self._clock.numbers), fresh.popleft()))
                        continue
                else:
                    tag, _, flow = heap[0]
                    if tag < flow.finish:  # the other calendar has served it meanwhile
                        heapq.heapreplace(heap, (flow.finish, next(self._clock.numbers), flow))
                        continue
                item = self._first(flow)
                if item is None or (
                    gate is not None and flow.key is not None and not gate.admits(flow.key, _cost_of(item))
                ):
                    if is_fresh:
                        fresh.popleft()
                    else:
                        heapq.heappop(heap)
                    if item is None:
                        self._clock.rest(minus_priority, level, flow)
                    else:
                        self._park(minus_priority, level, flow, _cost_of(item))
                    continue
                self._head = item
                self._is_fresh = is_fresh
                return minus_priority, tag
            heapq.heappop(self._active)
            level.is_active[index] = False
        return None

    def head_rank(self) -> Rank:
        """Return the rank of the first task; only right after :meth:`head` found one."""
        item: Any = self._head
        kind = item.source.rank[1] if type(item) is Run and hasattr(item.source, "rank") else TaskClass.OTHER
        return self._active[0], kind

    def peek(self) -> tuple[Source | None, Any]:
        """Return the first task, as (source, position) or (None, record); only right after :meth:`head` found one."""
        item: Any = self._head
        return item.peek() if type(item) is Run else (None, item)

    def pop(self) -> Run | RecordRun:
        """Return a run from which to take the first task, and that alone; only right after :meth:`head` found one."""
        minus_priority = self._active[0]
        level = self._clock.levels[minus_priority]
        if self._is_fresh:  # it stays where it is until it is known what comes next of it
            flow = level.fresh[self._index][0]
            tag = flow.tag
        else:
            tag, _, flow = level.heaps[self._index][0]
        item: Any = self._head
        self._taken = flow
        self._taken_at = minus_priority, level, tag, _cost_of(item)
        if type(item) is Run:
            return item
        self._drop_first(flow)
        self._record = item
        return self  # type: ignore[return-value]  # of a record run it has what is used

    def take(self) -> Record:
        """Return the record that :meth:`pop` was about."""
        record: Record = self._record
        self._record = None
        record._place = None
        return record

    def served(self) -> None:
        """Note that the task that was taken starts: a key is charged for what starts, and not for what has expired."""
        if self._taken is not None:
            _, level, tag, cost = self._taken_at
            self._clock.serve(level, self._taken, tag, cost)

    def release(self) -> None:
        """Forget the limits of keys: everything is to be moved to another order."""
        if self._clock.gate is not None:
            gate, self._clock.gate = self._clock.gate, None
            gate.open_all()

    def succeed(self, successor: Ready) -> None:
        """Hand on to another what is taken in while a function of the user is asked for its key."""
        self.successor = successor

    def _put_back(self, flow: _Flow) -> None:
        """Let a flow of which a task was taken wait for its next one, or rest."""
        minus_priority, level, tag, _ = self._taken_at
        self._taken = None
        heap = level.heaps[self._index]
        waits = (flow.second if self._index else flow.first) is not None
        if not self._is_fresh:
            if heap[0][2] is not flow:  # a function of the user has put something before it
                heap.remove(next(entry for entry in heap if entry[2] is flow))
                heapq.heapify(heap)
                if waits:
                    heapq.heappush(heap, (max(tag, flow.finish), next(self._clock.numbers), flow))
            elif waits:
                heapq.heapreplace(heap, (max(tag, flow.finish), next(self._clock.numbers), flow))
            else:
                heapq.heappop(heap)
        else:
            level.fresh[self._index].popleft()
            if waits:
                heapq.heappush(heap, (flow.finish, next(self._clock.numbers), flow))
        if not waits:
            self._clock.rest(minus_priority, level, flow)

    def _park(self, minus_priority: float, level: _Level, flow: _Flow, cost: int) -> None:
        """Let a flow wait elsewhere until its key may start a task."""

        def resume() -> None:
            self._enter(minus_priority, level, flow, cost, credit=_CREDIT_COUNT * cost / flow.weight)

        gate = self._clock.gate
        assert gate is not None
        gate.park(flow.key, cost, resume)

    def _first(self, flow: _Flow) -> Any:
        """Return the first item of a flow of which a task waits; None if none does."""
        while True:
            waiting = flow.second if self._index else flow.first
            if waiting is None:
                return None
            item = waiting[0] if type(waiting) is deque else waiting
            if (item.head_due() is not None) if type(item) is Run else item._place is self:
                return item
            self._stale_count -= type(item) is not Run
            self._drop_first(flow)

    def _drop_first(self, flow: _Flow) -> None:
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
        """Note that a record here does not wait any more; places are freed, as a chore, when half of them are stale."""
        self._stale_count += 1
        if self._stale_count * 2 > self.count + _SPARE_COUNT and not self._is_compacting:
            self._is_compacting = True
            self._clock.chores.append(self._compact())

    def _compact(self) -> Iterator[None]:
        """Free the places of records that have gone."""
        for level in list(self._clock.levels.values()):
            flows = list(level.flows.values())
            for number, flow in enumerate(flows):
                if number % _COMPACT_STEP_COUNT == 0:
                    yield
                waiting = flow.second if self._index else flow.first
                if type(waiting) is deque:
                    kept = [item for item in waiting if type(item) is Run or item._place is self]
                    kept = kept or [waiting[0]]  # a flow that is in the heap is never empty: the heap finds that out
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
        self._taken = None
        self.count = self._stale_count = 0

    # Looking.

    def _flows(self) -> Iterator[tuple[float, _Level, _Flow, list[Any]]]:
        for minus_priority in sorted(self._clock.levels):
            level = self._clock.levels[minus_priority]
            for flow in level.flows.values():
                waiting = flow.second if self._index else flow.first
                if waiting is not None:
                    yield minus_priority, level, flow, list(waiting) if type(waiting) is deque else [waiting]

    def walk(self) -> Iterator[tuple[Source | None, Any]]:
        """Walk what waits, key by key."""
        for *_, items in self._flows():
            for item in items:
                if isinstance(item, Run):
                    yield from item.walk()
                elif item._place is self:
                    yield None, item

    def keyed(self) -> Iterator[tuple[Any, Source | None, Any]]:
        """Walk what waits as (rank, source, position) or (rank, None, record), as if no key were held back.

        The rank is the tag that a task will get if nothing else comes. Keys with equal tags take turns as they do now.
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

    def _key_by(self, key: Hashable, name: str, due: float, rank: Rank, cost: int) -> Hashable:
        by = self._clock.fair.by
        assert by is not None
        view = TaskView(
            name=name,
            priority=-rank[0],
            due=self._clock.to_epoch(due),
            is_repeating=rank[1] is TaskClass.REPEATING,
            is_immediate=rank[1] is TaskClass.IMMEDIATE,
            arrival=next(self._clock.arrivals),
            key=key,
            cost=cost,
        )
        try:
            found = by(view)
            hash(found)
        except BaseException as error:  # noqa: BLE001  # as for weights
            self._clock.report(error)
            return None
        return found


def _cost_of(item: Any) -> int:
    if type(item) is Run:
        return item.source.cost_of(item.first)
    return 1 if item._options is None else item.cost


def _weight_of(key: object, weight: Any) -> float:
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
        raise ValueError(f"weights must be finite numbers > 0, got {weight!r} for {key!r}")
    return float(weight)
