"""Due tasks by key, for limits of keys under an order that does not itself share by key.

Each key has a ready queue of its own, in the order of the executor, and is in a heap by the importance of its first
task. A key that may start nothing leaves the heap with all its tasks until it may start again, so that none of them
holds back tasks of other keys. O(log keys) a task, in addition to the cost of the key's own queue.
"""

from __future__ import annotations

import math
from functools import partial
from heapq import nsmallest
from itertools import chain, count, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.lazy_heap import GuardedHeap

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from ratelimited_executor._core.keys.gate import KeyGate
    from ratelimited_executor._core.queue.records import TaskRecord
    from ratelimited_executor._kernel.contracts import DueReady, DueRun, Rank, Ready, Source

__all__ = ["ReadyKeyed"]

_NOWHERE: Final = -1  # the number of a lane outside the heap that returns by itself
_AHEAD_KEYS: Final = 2000  # keys examined for the most important ones
_AHEAD: Final = 32  # tasks of a key examined to estimate its needs
_NEW: Final = -2  # the number of a lane that was never in the heap


class _Lane:
    """The tasks of one key.

    Attributes:
        key: the key.
        ready: its ready queue.
        head: the head in its valid heap entry.
        number: the number of that entry; :data:`_NOWHERE` while the lane is parked or being taken from.
    """

    __slots__ = ("head", "key", "number", "ready")

    def __init__(self, key: Hashable, ready: DueReady) -> None:
        self.key = key
        self.ready = ready
        self.head: Any = None
        self.number = _NEW


class ReadyKeyed:
    """A ready queue made of one ready queue for each key.

    Args:
        gate: the limits of keys.
        make: creates an empty ready queue.
    """

    __slots__ = (
        "_first",
        "_gate",
        "_heap",
        "_lanes",
        "_make",
        "_numbers",
        "_successor",
        "_taken",
        "_unasked",
        "active",
    )

    def __init__(self, gate: KeyGate, make: Callable[[], DueReady]) -> None:
        self._gate: KeyGate | None = gate
        self._make = make
        self._lanes: dict[Hashable, _Lane] = {}
        self.active = self._lanes  # parked ones as well
        self._unasked: dict[Hashable, _Lane] = {}  # parked lanes with no known event that will resume them
        self._heap: GuardedHeap[tuple[Any, int, _Lane]] = GuardedHeap(_is_stale)  # (head of the lane, number, lane)
        self._numbers = count()
        self._first: Any = None  # the entry of the heap that head() found
        self._successor: Ready | None = None  # the queue of another order that replaces this one
        self._taken: _Lane | None = None  # the lane of the taken task; its new head is not examined yet

    def push_record(self, record: TaskRecord) -> None:
        """Add a record whose due time has come."""
        lane = self._lane(record._key)
        lane.ready.push_record(record)
        self._look(lane)

    def return_record(self, record: TaskRecord) -> None:
        """Add a record that was taken and has not begun."""
        lane = self._lane(record._key)
        lane.ready.return_record(record)
        self._look(lane)

    def push_records(self, records: list[TaskRecord], rank: Rank) -> None:
        """Add records of one rank, in due order; none has a key, because none has options."""
        lane = self._lane(None)
        lane.ready.push_records(records, rank)
        self._look(lane)

    def push_run(self, source: Source, positions: Sequence[int], rank: Rank) -> None:
        """Add tasks of one source and rank, in due order."""
        lane = self._lane(source.key)
        lane.ready.push_run(source, positions, rank)
        self._look(lane)

    def push_position(self, source: Source, position: int, rank: Rank) -> None:
        """Add one task of a source."""
        lane = self._lane(source.key)
        lane.ready.push_position(source, position, rank)
        self._look(lane)

    def head(self) -> Any:
        """Return the importance of the first task of keys not held back, for comparison; None if none waits."""
        if self._taken is not None:
            lane, self._taken = self._taken, None
            self._enter(lane)
        while (first := self._heap.first()) is not None:
            head, _, lane = first
            now = lane.ready.head()
            if now is None:
                self._forget(lane)
            elif now != head:  # the first one was cancelled
                self._enter(lane)
            else:
                self._first = first
                return head
        return None

    def head_at(self, now_ns: int) -> Any:
        """Return what :meth:`head` does for the first task that may start at a time; None if none may."""
        while (head := self.head()) is not None:
            gate, lane = self._gate, self._first[2]
            if gate is None or lane.key is None:
                return head
            if not gate.knows(lane.key):
                gate.meet(lane.key, now_ns)
                if self._successor is not None:
                    return None
            elif gate.admits(lane.key, cost := self._cost(lane), now_ns) or gate.is_over(lane.ready.peek(), now_ns):
                return head
            elif gate.is_put_off:
                if gate.is_asking:
                    return None
                self._leave(lane)
                self._unasked[lane.key] = lane
                gate.put_off(lane.key, head, cost, partial(self._enter, lane), partial(_count, lane))
            else:
                self._leave(lane)
                self._park(gate, lane, cost, now_ns)
        return None

    def head_rank(self) -> Rank:
        """Return the rank of the first task; only right after :meth:`head` found one."""
        rank: Rank = self._first[2].ready.head_rank()
        return rank

    def peek(self) -> tuple[Source | None, Any]:
        """Return the first task, as (source, position) or (None, record); only right after :meth:`head` found one."""
        first: tuple[Source | None, Any] = self._first[2].ready.peek()
        return first

    def pop(self) -> DueRun:
        """Return a run from which to take the first task, and that alone; only right after :meth:`head` found one."""
        self._taken = lane = self._first[2]
        lane.number = _NOWHERE
        self._heap.remove(self._first)
        run: DueRun = lane.ready.pop()
        return run

    def served(self) -> None:
        """Do nothing: the order does not depend on started tasks."""

    def release(self) -> None:
        """Stop holding back keys: all tasks move to another order."""
        if self._gate is not None:
            gate, self._gate = self._gate, None
            gate.open_all()

    def succeed(self, successor: Ready) -> None:
        """Pass tasks to another queue that are added while the order computes their key."""
        self._successor = successor
        for lane in self._lanes.values():
            lane.ready.succeed(successor)

    def walk(self) -> Iterator[tuple[Source | None, Any]]:
        """Walk the waiting tasks, key by key."""
        for lane in self._lanes.values():
            yield from lane.ready.walk()

    def drain(self, count: int) -> list[Any] | None:
        """Forget about ``count`` tasks, key by key, and return the waiting records among them; None if none was left."""
        if not self._lanes:
            return None
        records: list[Any] = []
        while self._lanes and count > 0:
            _, lane = self._lanes.popitem()  # quicker than the first, once many have gone
            found = lane.ready.drain(count)
            if found is None:
                self._forget(lane)
                count -= 1
            else:
                self._lanes[lane.key] = lane
                records += found
                count -= len(found) or count
        return records

    def clear(self) -> None:
        """Forget everything."""
        for lane in self._lanes.values():
            lane.ready.clear()
        self._lanes.clear()
        self._unasked.clear()
        self._heap.clear()
        self._first = self._taken = None

    def keyed(self) -> Iterator[tuple[Any, Source | None, Any]]:
        """Walk the waiting tasks as (rank, source, position) or (rank, None, record), as if no key were held back."""
        for lane in self._lanes.values():
            yield from lane.ready.keyed()

    def upcoming(self, most: int) -> Iterator[tuple[Hashable, list[tuple[Source | None, Any]]]]:
        """Walk at most ``most`` keys that wait for nothing known, each with a bounded number of its tasks in their order.

        If many keys are parked without a known event to resume them, only those parked first are examined.
        """
        unasked = islice(self._unasked.values(), max(most, _AHEAD_KEYS))
        heads = [(lane.head, lane.number, lane) for lane in unasked if lane.ready.head() == lane.head]
        found = nsmallest(most, [*self._heap.leading(most), *heads], key=itemgetter(0))
        lanes = [lane for head, _, lane in found if lane.ready.head() == head]
        return ((lane.key, lane.ready.leading(max(_AHEAD, most // len(lanes)))) for lane in lanes)

    def count_startable(self, allowance: Callable[[Hashable, int], float], most: float) -> float:
        """Estimate how many tasks of keys that are not parked could start.

        Args:
            allowance: returns how many tasks of a key and a cost could start.
            most: stop counting at this number.
        """
        total = 0.0
        lanes = (lane for *_, lane in self._heap.walk())
        for lane in lanes if self._taken is None else chain(lanes, (self._taken,)):
            if lane.ready.head() is not None:
                count = min(allowance(lane.key, self._cost(lane)), most)
                total += min(count, _count(lane, count))
            if total >= most:
                break
        return total

    def _lane(self, key: Hashable) -> _Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key, self._make())
        return lane

    def _look(self, lane: _Lane) -> None:
        """Record that a lane may have a new head."""
        if lane.number == _NEW:
            self._enter(lane)
        elif lane.number != _NOWHERE:
            if lane.ready.head() != lane.head:
                self._enter(lane)
        elif lane is not self._taken and self._gate is not None and lane.ready.head() != lane.head:
            self._gate.look_again(lane.key)  # the new first task may cost less than the one that parked the key

    def _enter(self, lane: _Lane) -> None:
        """Put a lane into the heap by its present head."""
        self._unasked.pop(lane.key, None)
        lane.head = lane.ready.head()
        if lane.head is None:
            self._forget(lane)
            return
        self._leave(lane)
        lane.number = next(self._numbers)
        self._heap.push((lane.head, lane.number, lane))

    def _leave(self, lane: _Lane) -> None:
        """Remove a lane from the heap, if it is there."""
        is_inside = lane.number >= 0
        lane.number = _NOWHERE
        if is_inside:
            self._heap.note_stale()

    def _forget(self, lane: _Lane) -> None:
        self._unasked.pop(lane.key, None)
        if self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]
        self._leave(lane)

    def _park(self, gate: KeyGate, lane: _Lane, cost: int, now_ns: int) -> None:
        """Keep a lane out of the heap until its key may start a task of a cost."""
        if not gate.park(lane.key, cost, now_ns, lambda: self._enter(lane), lambda most: _count(lane, most)):
            self._unasked[lane.key] = lane

    def _cost(self, lane: _Lane) -> int:
        source, item = lane.ready.peek()
        cost: int = item.cost if source is None else source.cost_of(item)
        return cost


def _is_stale(entry: tuple[Any, int, _Lane]) -> bool:
    return entry[1] != entry[2].number


def _count(lane: _Lane, most: float) -> int:
    """Count the tasks of a lane, up to ``most``."""
    return sum(1 for _ in islice(lane.ready.walk(), math.ceil(most)))
