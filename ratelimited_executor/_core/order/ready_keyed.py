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
    from ratelimited_executor._kernel.contracts import DueReady, DueRun, Rank, Source

__all__ = ["ReadyKeyed"]

_NOWHERE: Final = -1  # the number of a queue outside the heap that returns by itself
_AHEAD_KEYS: Final = 2000  # keys examined for the most important ones
_AHEAD: Final = 32  # tasks of a key examined to estimate its needs
_NEW: Final = -2  # the number of a queue that was never in the heap


class _KeyQueue:
    """The tasks of one key.

    Attributes:
        key: the key.
        ready: its ready queue.
        head: the head in its valid heap entry.
        number: the number of that entry; :data:`_NOWHERE` while the queue is parked or being taken from.
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
        "_is_replaced",
        "_make",
        "_numbers",
        "_queues",
        "_taken",
        "_unasked",
        "active",
    )

    def __init__(self, gate: KeyGate, make: Callable[[], DueReady]) -> None:
        self._gate: KeyGate | None = gate
        self._make = make
        self._queues: dict[Hashable, _KeyQueue] = {}
        self.active = self._queues  # parked ones as well
        self._unasked: dict[Hashable, _KeyQueue] = {}  # parked queues with no known event that will resume them
        # By (head of the queue, number, queue).
        self._heap: GuardedHeap[tuple[Any, int, _KeyQueue]] = GuardedHeap(_is_stale)
        self._numbers = count()
        self._first: Any = None  # the entry of the heap that head() found
        self._is_replaced = False  # True once the calendar has a queue of another order
        self._taken: _KeyQueue | None = None  # the queue of the taken task; its new head is not examined yet

    def push_record(self, record: TaskRecord) -> None:
        """Add a record whose due time has come."""
        queue = self._queue(record._key)
        queue.ready.push_record(record)
        self._look(queue)

    def return_record(self, record: TaskRecord) -> None:
        """Add a record that was taken and has not begun."""
        queue = self._queue(record._key)
        queue.ready.return_record(record)
        self._look(queue)

    def push_records(self, records: list[TaskRecord], rank: Rank) -> None:
        """Add records of one rank, in due order; none has a key, because none has options."""
        queue = self._queue(None)
        queue.ready.push_records(records, rank)
        self._look(queue)

    def push_run(self, source: Source, positions: Sequence[int], rank: Rank) -> None:
        """Add tasks of one source and rank, in due order."""
        queue = self._queue(source.key)
        queue.ready.push_run(source, positions, rank)
        self._look(queue)

    def push_position(self, source: Source, position: int, rank: Rank) -> None:
        """Add one task of a source."""
        queue = self._queue(source.key)
        queue.ready.push_position(source, position, rank)
        self._look(queue)

    def head(self) -> Any:
        """Return the importance of the first task of keys not held back, for comparison; None if none waits."""
        if self._taken is not None:
            queue, self._taken = self._taken, None
            self._enter(queue)
        while (first := self._heap.first()) is not None:
            head, _, queue = first
            now = queue.ready.head()
            if now is None:
                self._forget(queue)
            elif now != head:  # the first one was cancelled
                self._enter(queue)
            else:
                self._first = first
                return head
        return None

    def head_at(self, now_ns: int) -> Any:
        """Return what :meth:`head` does for the first task that may start at a time; None if none may."""
        while (head := self.head()) is not None:
            gate, queue = self._gate, self._first[2]
            if gate is None or queue.key is None:
                return head
            if not gate.knows(queue.key):
                gate.meet(queue.key, now_ns)
                if self._is_replaced:
                    return None
            elif gate.admits(queue.key, cost := self._cost(queue), now_ns) or gate.is_over(queue.ready.peek(), now_ns):
                return head
            elif gate.is_put_off:
                if gate.is_asking:
                    return None
                self._leave(queue)
                self._unasked[queue.key] = queue
                gate.put_off(queue.key, head, cost, partial(self._enter, queue), partial(_count, queue))
            else:
                self._leave(queue)
                self._park(gate, queue, cost, now_ns)
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
        self._taken = queue = self._first[2]
        queue.number = _NOWHERE
        self._heap.remove(self._first)
        run: DueRun = queue.ready.pop()
        return run

    def release(self) -> None:
        """Stop holding back keys: all tasks move to another order."""
        if self._gate is not None:
            gate, self._gate = self._gate, None
            gate.open_all()

    def note_replaced(self) -> None:
        """Pass tasks to another queue that are added while the order computes their key."""
        self._is_replaced = True
        for queue in self._queues.values():
            queue.ready.note_replaced()

    def walk(self) -> Iterator[tuple[Source | None, Any]]:
        """Walk the waiting tasks, key by key."""
        for queue in self._queues.values():
            yield from queue.ready.walk()

    def drain(self, count: int) -> list[Any] | None:
        """Forget about ``count`` tasks, key by key, and return the waiting records among them; None if none was left."""
        if not self._queues:
            return None
        records: list[Any] = []
        while self._queues and count > 0:
            _, queue = self._queues.popitem()  # quicker than the first, once many have gone
            found = queue.ready.drain(count)
            if found is None:
                self._forget(queue)
                count -= 1
            else:
                self._queues[queue.key] = queue
                records += found
                count -= len(found) or count
        return records

    def clear(self) -> None:
        """Forget everything."""
        for queue in self._queues.values():
            queue.ready.clear()
        self._queues.clear()
        self._unasked.clear()
        self._heap.clear()
        self._first = self._taken = None

    def keyed(self) -> Iterator[tuple[Any, Source | None, Any]]:
        """Walk the waiting tasks as (rank, source, position) or (rank, None, record), as if no key were held back."""
        for queue in self._queues.values():
            yield from queue.ready.keyed()

    def upcoming(self, most: int) -> Iterator[tuple[Hashable, list[tuple[Source | None, Any]]]]:
        """Walk at most ``most`` keys that wait for nothing known, each with a bounded number of its tasks in their order.

        If many keys are parked without a known event to resume them, only those parked first are examined.
        """
        unasked = islice(self._unasked.values(), max(most, _AHEAD_KEYS))
        heads = [(queue.head, queue.number, queue) for queue in unasked if queue.ready.head() == queue.head]
        found = nsmallest(most, [*self._heap.leading(most), *heads], key=itemgetter(0))
        queues = [queue for head, _, queue in found if queue.ready.head() == head]
        return ((queue.key, queue.ready.leading(max(_AHEAD, most // len(queues)))) for queue in queues)

    def count_startable(self, allowance: Callable[[Hashable, int], float], most: float) -> float:
        """Estimate how many tasks of keys that are not parked could start.

        Args:
            allowance: returns how many tasks of a key and a cost could start.
            most: stop counting at this number.
        """
        total = 0.0
        queues = (queue for *_, queue in self._heap.walk())
        for queue in queues if self._taken is None else chain(queues, (self._taken,)):
            if queue.ready.head() is not None:
                count = min(allowance(queue.key, self._cost(queue)), most)
                total += min(count, _count(queue, count))
            if total >= most:
                break
        return total

    def _queue(self, key: Hashable) -> _KeyQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _KeyQueue(key, self._make())
        return queue

    def _look(self, queue: _KeyQueue) -> None:
        """Record that a queue may have a new head."""
        if queue.number == _NEW:
            self._enter(queue)
        elif queue.number != _NOWHERE:
            if queue.ready.head() != queue.head:
                self._enter(queue)
        elif queue is not self._taken and self._gate is not None and queue.ready.head() != queue.head:
            self._gate.look_again(queue.key)  # the new first task may cost less than the one that parked the key

    def _enter(self, queue: _KeyQueue) -> None:
        """Put a queue into the heap by its present head."""
        self._unasked.pop(queue.key, None)
        queue.head = queue.ready.head()
        if queue.head is None:
            self._forget(queue)
            return
        self._leave(queue)
        queue.number = next(self._numbers)
        self._heap.push((queue.head, queue.number, queue))

    def _leave(self, queue: _KeyQueue) -> None:
        """Remove a queue from the heap, if it is there."""
        is_inside = queue.number >= 0
        queue.number = _NOWHERE
        if is_inside:
            self._heap.note_stale()

    def _forget(self, queue: _KeyQueue) -> None:
        self._unasked.pop(queue.key, None)
        if self._queues.get(queue.key) is queue:
            del self._queues[queue.key]
        self._leave(queue)

    def _park(self, gate: KeyGate, queue: _KeyQueue, cost: int, now_ns: int) -> None:
        """Keep a queue out of the heap until its key may start a task of a cost."""
        if not gate.park(queue.key, cost, now_ns, lambda: self._enter(queue), lambda most: _count(queue, most)):
            self._unasked[queue.key] = queue

    def _cost(self, queue: _KeyQueue) -> int:
        source, item = queue.ready.peek()
        cost: int = item.cost if source is None else source.cost_of(item)
        return cost


def _is_stale(entry: tuple[Any, int, _KeyQueue]) -> bool:
    return entry[1] != entry[2].number


def _count(queue: _KeyQueue, most: float) -> int:
    """Count the tasks of a queue, up to ``most``."""
    return sum(1 for _ in islice(queue.ready.walk(), math.ceil(most)))
