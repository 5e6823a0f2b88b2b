"""The waiting task to drop when there is no room: the least important, or the one that has waited longest.

An index of the tasks with a record, kept only by executors that drop: a heap whose entries are emptied when their task
leaves. O(log n) a task.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.lazy_heap import LazyHeap

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ratelimited_executor._kernel.records import Record

__all__ = ["DropIndex"]


class DropIndex:
    """The waiting tasks of an executor in the order in which they are dropped, in total and by key.

    Args:
        is_lowest_first: True if the least important task is dropped first, the one due last among equals; False if the
            task due first is.
        is_by_key: True if keys have limits of their own.
    """

    __slots__ = ("_all", "_by_key", "_is_lowest_first", "_numbers")

    def __init__(self, *, is_lowest_first: bool, is_by_key: bool) -> None:
        self._is_lowest_first = is_lowest_first
        self._numbers = count()
        self._all: LazyHeap[list[Any]] = LazyHeap(_is_empty)
        self._by_key: dict[Hashable, LazyHeap[list[Any]]] | None = {} if is_by_key else None

    def add(self, record: Record) -> None:
        """Add a waiting task with options."""
        options: Any = record._options
        if options.entry is not None:  # added before: a task due by the wall clock is added again at hand-over
            return
        number = next(self._numbers)
        entry: list[Any]  # the task to be dropped first compares smallest
        if self._is_lowest_first:
            entry = [record.priority, -record._due, -number, record]
        else:
            entry = [record._due, 0.0, number, record]
        options.entry = entry
        self._all.push(entry)
        if self._by_key is not None and options.key is not None:
            heap = self._by_key.get(options.key)
            if heap is None:
                heap = self._by_key[options.key] = LazyHeap(_is_empty)
            heap.push(entry)

    def discard(self, record: Record) -> None:
        """Forget a task that starts or ends."""
        options: Any = record._options
        if options is None or options.entry is None:
            return
        options.entry[3] = None
        options.entry = None
        self._all.note_stale()
        if self._by_key is not None and options.key is not None:
            heap = self._by_key[options.key]
            heap.note_stale()
            if not heap.live_count:
                del self._by_key[options.key]

    def first(self, key: Hashable = None) -> Record | None:
        """Return the task to drop first, of all tasks or of one key; None if there is none."""
        found = self.first_n(1, key)
        return found[0] if found else None

    def first_n(self, count: int, key: Hashable = None) -> list[Record]:
        """Return the ``count`` tasks to drop first, of all tasks or of one key; fewer if there are not enough."""
        heap = self._all if key is None or self._by_key is None else self._by_key.get(key)
        if heap is None or count <= 0:
            return []
        first = heap.first()
        if first is None or count == 1:
            return [] if first is None else [first[3]]
        return [entry[3] for entry in heap.least(count)]

    def protects(self, record: Record, priority: float) -> bool:
        """True if a task is too important to be dropped for a task of ``priority``."""
        return self._is_lowest_first and record.priority > priority

    def key_count(self, key: Hashable) -> int:
        """Count the waiting tasks of a key."""
        heap = None if self._by_key is None else self._by_key.get(key)
        return 0 if heap is None else heap.live_count


def _is_empty(entry: list[Any]) -> bool:
    """True if the task of an entry has left."""
    return entry[3] is None
