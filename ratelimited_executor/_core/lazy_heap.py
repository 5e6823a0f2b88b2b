"""A heap whose entries may become stale where they lie, and are dropped later.

To remove an entry from the middle of a heap means to look for it first: O(n). So what is cancelled, superseded or done
otherwise stays where it is, *stale*, until it is the first, or until too many are: then the heap is swept. This is the
recipe of ``heapq``'s documentation, and what asyncio does with its timers.

Law: after each call, of n entries at most ``n / 2 + 64`` are stale, as far as the owner notes each that becomes stale.
Cost: a push O(log n), a note or a pop O(log n) amortised; and no call looks at more entries than a stretch, apart from
stale ones at the head: a heap of a million is swept in steps, one with each note or pop. In a sweep the entries move
from the old heap to a new one, the last first, which leaves the others a heap; the first of all is the lesser of the
first of both. A sweep begins at two fifths, and moves eight entries a step, so that it ends before one half is stale.

Three forms: :class:`LazyHeap`; :class:`WholeHeap`, swept at once; :class:`GuardedHeap`, where comparing runs user code.

Rejected: to filter and heapify a large heap at once (0.2 s for a hundred thousand entries, in which nothing starts); an
index of positions (each exchange would have to keep it up to date, in Python).
Not used by ``fair.py`` and ``ready_fair.py``: what another calendar has served is put back there with a later tag, not
dropped.
"""

from __future__ import annotations

import heapq
import math
from itertools import chain, filterfalse
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["GuardedHeap", "LazyHeap", "WholeHeap"]

_SPARE_COUNT: Final = 32  # stale entries that never matter
_STEP_COUNT: Final = 8  # entries moved with each note or pop while a sweep lasts

Entry = TypeVar("Entry")


class LazyHeap(Generic[Entry]):
    """A heap that drops stale entries.

    Args:
        is_stale: True if an entry does not count any more; one that is stale stays so.
        entries: what it begins with.

    Attributes:
        stretch: how many entries are swept at once at most.
        entries: all of them, as ``heapq`` has them, but for those of a sweep that lasts.
        stale_count: entries that are stale, as far as noted.
    """

    stretch: ClassVar[float] = 4096  # about a millisecond
    __slots__ = ("_found", "_is_stale", "_old", "_walker_count", "entries", "stale_count")

    def __init__(self, is_stale: Callable[[Entry], bool], entries: Iterable[Entry] = ()) -> None:
        self._is_stale = is_stale
        self.entries: list[Any] = list(entries)
        heapq.heapify(self.entries)
        self._old: list[Any] | None = None  # what is being swept; new entries go to the other
        self._found = self.entries  # the one of them whose first entry was returned last
        self._walker_count = 0
        self.stale_count = 0

    def __len__(self) -> int:
        """The number of entries, stale ones included."""
        return len(self.entries) if self._old is None else len(self.entries) + len(self._old)

    @property
    def live_count(self) -> int:
        """How many entries count, if each that is stale was noted."""
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
        """Remove an entry that is stale now: at once if it is what :meth:`first` found, else by a note."""
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
        """Walk the entries that are less than a bound, in no order: of the heap only as much as that."""
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

    def drain(self) -> Iterator[Entry]:
        """Walk the entries, in no order, and drop them on the way: to free a million at once holds the loop."""
        self._walker_count += 1
        try:
            while heap := self._old or self.entries:
                entry: Entry = heap.pop()
                if not self._is_stale(entry):
                    yield entry
        finally:
            self._walker_count -= 1

    def _lesser(self, old: list[Any]) -> list[Any]:
        """Return the heap whose first entry is the lesser while one is being swept."""
        if not old:
            self._old = None
            return self.entries
        return old if not self.entries or old[0] < self.entries[0] else self.entries

    def _is_to_sweep(self) -> bool:
        is_due = self._old is not None or 5 * (self.stale_count - _SPARE_COUNT) > 2 * len(self.entries)
        return is_due and not self._walker_count

    def _sweep(self) -> None:
        """Begin a sweep, or continue with it."""
        old = self._old
        if old is None:
            old = self.entries
            if len(old) <= self.stretch:
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
    """A lazy heap for few entries, or without steps: the least of all is always ``entries[0]``."""

    stretch: ClassVar[float] = math.inf
    __slots__ = ()


class GuardedHeap(LazyHeap[Entry]):
    """A lazy heap whose entries are compared by the user's code, which may use the heap meanwhile.

    What that code adds is put in after the change that is under way; what it makes stale is counted; and where it asks
    for the first entry, it is given any.
    """

    stretch: ClassVar[float] = 64
    __slots__ = ("_added_count", "_held", "_is_busy")

    def __init__(self, is_stale: Callable[[Entry], bool], entries: Iterable[Entry] = ()) -> None:
        super().__init__(is_stale, entries)
        self._is_busy = False  # while entries are compared
        self._held: list[Entry] = []  # what was added meanwhile
        self._added_count = 0  # of which so many have been put in

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
            if added_count == self._added_count:  # else what has been added may be less
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

    def drain(self) -> Iterator[Entry]:
        """Walk the entries, in no order, and drop them on the way."""
        return chain(super().drain(), filterfalse(self._is_stale, self._held))

    def _change(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Change the heap, then put in what was added meanwhile."""
        self._is_busy = True
        try:
            return operation(*args)
        finally:
            self._is_busy = False
            while self._held:
                self._added_count += 1
                self.push(self._held.pop(0))
