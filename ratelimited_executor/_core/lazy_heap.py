"""A heap whose entries may become stale in place, and are dropped later.

Removing an entry from the middle of a heap requires a search: O(n). So an entry that was cancelled, superseded or
handled elsewhere stays in place, *stale*, until it is the first, or until too many entries are stale: then the heap is
swept. This is the recipe of ``heapq``'s documentation, and asyncio does the same with its timers.

Law: after each call, at most ``n / 2 + 64`` of n entries are stale, provided that the owner notes each that becomes
stale. Cost: a push O(log n), a note or a pop O(log n) amortised. No call examines more than ``sweep_count_max`` entries,
apart from stale ones at the head: a heap of a million is swept in steps, one with each note or pop. In a sweep the
entries move from the old heap to a new one, the last first, which leaves the rest a heap; the first of all is the lesser
of the first entries of both. A sweep begins when two fifths are stale, and moves eight entries a step, so that it ends
before one half is stale.

Three forms: :class:`LazyHeap`; :class:`WholeHeap`, swept at once; :class:`GuardedHeap`, where comparing runs user code.

Rejected: filtering and heapifying a large heap at once (0.2 s for a hundred thousand entries, in which nothing starts);
an index of positions (each exchange would have to update it, in Python).
Not used by ``_core/order/fair.py`` and ``_core/order/ready_fair.py``: a flow that another calendar has served is put
back there with a later tag, not dropped.
"""

from __future__ import annotations

import heapq
import math
from itertools import chain, filterfalse
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["GuardedHeap", "LazyHeap", "WholeHeap"]

_SPARE_COUNT: Final = 32  # stale entries that are tolerated
_STEP_COUNT: Final = 8  # entries moved with each note or pop during a sweep

Entry = TypeVar("Entry")


class LazyHeap(Generic[Entry]):
    """A heap that drops stale entries.

    Args:
        is_stale: returns True if an entry no longer counts; a stale entry must stay stale.
        entries: the initial entries.

    Attributes:
        sweep_count_max: the maximum number of entries swept at once.
        entries: the entries, in the layout of ``heapq``, except those still to be moved by a sweep.
        stale_count: the number of entries noted as stale.
    """

    sweep_count_max: ClassVar[float] = 4096  # about a millisecond
    __slots__ = ("_found", "_is_stale", "_old", "_walker_count", "entries", "stale_count")

    def __init__(self, is_stale: Callable[[Entry], bool], entries: Iterable[Entry] = ()) -> None:
        self._is_stale = is_stale
        self.entries: list[Any] = list(entries)
        heapq.heapify(self.entries)
        self._old: list[Any] | None = None  # the heap being swept; new entries go to the other
        self._found = self.entries  # the heap whose first entry was returned last
        self._walker_count = 0
        self.stale_count = 0

    def __len__(self) -> int:
        """The number of entries, stale ones included."""
        return len(self.entries) if self._old is None else len(self.entries) + len(self._old)

    @property
    def live_count(self) -> int:
        """The number of valid entries, if each stale entry was noted."""
        return len(self) - self.stale_count

    def push(self, entry: Entry) -> None:
        """Add an entry: O(log n)."""
        heapq.heappush(self.entries, entry)

    def first(self) -> Entry | None:
        """Return the least entry, after dropping stale ones before it; None if there is none."""
        while heap := self.entries if self._old is None else self._lesser(self._old):
            first: Entry = heap[0]
            if not self._is_stale(first):
                self._found = heap
                return first
            heapq.heappop(heap)
            self.stale_count -= self.stale_count > 0
        self.stale_count = 0
        return None

    def pop(self) -> Entry:
        """Remove and return the entry that :meth:`first` found; only right after that."""
        entry: Entry = heapq.heappop(self._found)
        if self.stale_count and self._is_to_sweep():
            self._sweep()
        return entry

    def remove(self, entry: Entry) -> None:
        """Remove an entry that is stale now: at once if :meth:`first` found it, else by a note."""
        if self._found and self._found[0] is entry:
            self.pop()
        else:
            self.note_stale()

    def note_stale(self) -> None:
        """Record that an entry has become stale, or is about to: once for each."""
        self.stale_count += 1
        if self._is_to_sweep():
            self._sweep()

    def compact(self) -> None:
        """Drop every stale entry now, noted or not: O(n)."""
        entries = list(LazyHeap.walk(self))
        self.stale_count = max(0, self.stale_count - (len(self) - len(entries)))
        self.entries[:], self._old = entries, None
        heapq.heapify(self.entries)

    def clear(self) -> None:
        """Drop every entry."""
        self.entries.clear()
        self._old = None
        self.stale_count = 0

    def least(self, count: int) -> list[Entry]:
        """Return the least entries, in order: O(n log count)."""
        return heapq.nsmallest(count, self.walk())  # type: ignore[type-var]  # entries can be compared

    def leading(self, count: int) -> list[Entry]:
        """Return about ``count`` of the least entries: O(count log count); fewer only if stale ones are among them."""
        heaps = [self.entries, *([self._old] if self._old else [])]
        frontier = [(heap[0], place, 0) for place, heap in enumerate(heaps) if heap]
        heapq.heapify(frontier)
        found: list[Entry] = []
        while frontier and len(found) < count:
            entry, place, index = heapq.heappop(frontier)
            if not self._is_stale(entry):
                found.append(entry)
            heap = heaps[place]
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(heap):
                    heapq.heappush(frontier, (heap[child], place, child))
        return found

    def below(self, bound: Any) -> Iterator[Entry]:
        """Walk the entries that are less than a bound, in no order, reading only that part of the heap."""
        for heap in (self.entries, self._old or ()):
            pending = [0]
            while pending:
                index = pending.pop()
                if index < len(heap) and heap[index] < bound:
                    if not self._is_stale(heap[index]):
                        yield heap[index]
                    pending += (2 * index + 1, 2 * index + 2)

    def walk(self) -> Iterator[Entry]:
        """Walk the entries, in no order; meanwhile nothing is swept."""
        self._walker_count += 1
        try:
            for heap in (self.entries, self._old or ()):
                for entry in heap:
                    if not self._is_stale(entry):
                        yield entry
        finally:
            self._walker_count -= 1

    def drain(self, count: int) -> list[Entry]:
        """Drop up to ``count`` entries, in no order, and return the valid ones; does nothing else once none is left."""
        entries: list[Entry] = []
        while count > 0 and (heap := self._old or self.entries):
            count -= 1
            entries.append(heap.pop())
        return list(filterfalse(self._is_stale, entries))

    def _lesser(self, old: list[Any]) -> list[Any]:
        """Return the heap with the lesser first entry, during a sweep."""
        if not old:
            self._old = None
            return self.entries
        return old if not self.entries or old[0] < self.entries[0] else self.entries

    def _is_to_sweep(self) -> bool:
        is_due = self._old is not None or 5 * (self.stale_count - _SPARE_COUNT) > 2 * len(self.entries)
        return is_due and not self._walker_count

    def _sweep(self) -> None:
        """Begin or continue a sweep."""
        old = self._old
        if old is None:
            old = self.entries
            if len(old) <= self.sweep_count_max:
                self.compact()
                return
            self._old, self.entries = old, []
        for _ in range(_STEP_COUNT):
            if not old:
                self._old = None
                return
            entry = old.pop()
            if self._is_stale(entry):
                self.stale_count -= self.stale_count > 0
            else:
                heapq.heappush(self.entries, entry)


class WholeHeap(LazyHeap[Entry]):
    """A lazy heap for few entries, or without sweeping in steps: the least entry is always ``entries[0]``."""

    sweep_count_max: ClassVar[float] = math.inf
    __slots__ = ()


class GuardedHeap(LazyHeap[Entry]):
    """A lazy heap whose entries are compared by user code, which may use the heap meanwhile.

    Entries that this code adds are inserted after the current change, entries that it makes stale are counted, and a
    request for the first entry returns any entry.
    """

    sweep_count_max: ClassVar[float] = 64
    __slots__ = ("_added_count", "_held", "_is_busy")

    def __init__(self, is_stale: Callable[[Entry], bool], entries: Iterable[Entry] = ()) -> None:
        super().__init__(is_stale, entries)
        self._is_busy = False  # while entries are compared
        self._held: list[Entry] = []  # entries added meanwhile
        self._added_count = 0  # how many of them were inserted

    def push(self, entry: Entry) -> None:
        """Add an entry: O(log n)."""
        if self._is_busy:
            self._held.append(entry)
        else:
            self._change(heapq.heappush, self.entries, entry)

    def first(self) -> Entry | None:
        """Return the least entry, after dropping stale ones before it; None if there is none."""
        if self._is_busy:
            return next(self.walk(), None)
        first: Entry | None
        while True:
            if self._old is None and (not self.entries or not self._is_stale(self.entries[0])):  # nearly always
                self._found = self.entries
                return self.entries[0] if self.entries else None
            added_count = self._added_count
            first = self._change(super().first)
            if added_count == self._added_count:  # else an added entry may be less
                return first

    def pop(self) -> Entry:
        """Remove and return the entry that :meth:`first` found; only right after that."""
        entry: Entry = self._change(heapq.heappop, self._found)
        if self.stale_count and self._is_to_sweep():
            self._change(self._sweep)
        return entry

    def note_stale(self) -> None:
        """Record that an entry has become stale, or is about to: once for each."""
        self.stale_count += 1
        if not self._is_busy and self._is_to_sweep():
            self._change(self._sweep)

    def clear(self) -> None:
        """Drop every entry."""
        super().clear()
        self._held.clear()

    def walk(self) -> Iterator[Entry]:
        """Walk the entries, in no order; meanwhile nothing is swept."""
        return chain(super().walk(), filterfalse(self._is_stale, self._held))

    def _change(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Change the heap, then insert the entries added meanwhile."""
        self._is_busy = True
        try:
            return operation(*args)
        finally:
            self._is_busy = False
            while self._held:
                self._added_count += 1
                self.push(self._held.pop(0))
