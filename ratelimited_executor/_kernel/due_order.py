"""The positions of an open bucket in due order, with O(1) additions and no sort that blocks the loop.

Theory. A second level of the hashed and hierarchical timing wheel (Varghese and Lauck, 1987): the bucket's width is cut
into :data:`SLOT_COUNT` slots, a task's position is appended to the slot of its due time, and a slot is sorted only when
its time comes. At one second that is a millisecond a slot. A million tasks in one bucket are thus a thousand sorts of a
thousand elements, spread over the second, instead of one sort of a million, which would block the loop for a second.

A bucket with few tasks is kept as one sorted list and cut only when it grows beyond :data:`OPEN_COUNT_MAX`. A slot with
very many tasks (all due at the same instant, say) is sorted in runs of 2048, which are merged as they are read; where
they do not overlap, as with equal due times, that is mere concatenation. Placing and sorting go in steps of about a
millisecond, which the caller paces (:meth:`DueOrder.prepare`).

Equal due times keep the order of arrival: sorts are stable, positions are added in order, insertion goes to the right.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_right, insort_right
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Final

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.sizes import OPEN_COUNT_MAX as OPEN_COUNT_MAX
from ratelimited_executor._kernel.sizes import PLACE_COUNT, ROUNDING_SECONDS, RUN_COUNT
from ratelimited_executor._kernel.sizes import SLOT_COUNT as SLOT_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["OPEN_COUNT_MAX", "SLOT_COUNT", "DueOrder", "in_due_order"]

_SORT_COUNT: Final = 2048  # positions of a fuller slot sorted in one step
_MERGE_COUNT: Final = 512  # positions merged in one step: up to a millisecond


@two_bodies
class DueOrder:
    """Positions of a growing column of due times, read in due order.

    Args:
        dues: the column.
        start: loop time before which few tasks are due.
        end: loop time after which none is.

    Attributes:
        left_count: the number of positions not taken yet.
    """

    __slots__ = (
        "_cursor", "_dues", "_merge", "_open", "_open_until", "_scale", "_slot", "_slots", "_start", "_steps",
        "left_count",
    )  # fmt: skip

    def __init__(self, dues: Sequence[float], start: float, end: float) -> None:
        assert start < end, (start, end)
        self._dues = dues
        self._open: list[int] = []  # sorted by due time; those before the cursor have been read
        self._cursor = 0
        self._open_until = math.inf  # tasks due before it belong to _open
        self._slots: list[array[int]] | None = None
        self._slot = -1  # the slot that is open
        self._start = start
        self._scale = SLOT_COUNT / (end - start)
        self._merge: Iterator[int] | None = None  # the rest of a very full slot, in due order
        self._steps: Iterator[None] | None = None  # work that must be done before the next reading
        self.left_count = 0
        self.extend(range(len(dues)))

    @property
    def is_busy(self) -> bool:
        """True if an addition may cost much work at once, so that another order should take it.

        While slots are being filled none is open, and an addition only goes to its slot.
        """
        return self._slot >= 0 and self._has_work

    @property
    def _has_work(self) -> bool:
        return self._steps is not None or self._merge is not None

    def prepare(self) -> bool:
        """Do one step of the preparation for the next reading; return True if none was left to do."""
        if self._steps is None:
            return True
        if next(self._steps, self) is self:
            self._steps = None
        return False

    def add(self, position: int) -> None:
        """Add a position that was appended to the column."""
        self.left_count += 1
        due = self._dues[position]
        if due >= self._open_until:
            self._slots[self._slot_of(due)].append(position)  # type: ignore[index]  # there are slots, or it is infinite
            return
        if self._merge is not None or self._steps is not None:
            self._flatten()
        insort_right(self._open, position, lo=self._cursor, key=self._dues.__getitem__)
        if self._slots is None and len(self._open) - self._cursor > OPEN_COUNT_MAX:
            self._cut()

    def extend(self, positions: Sequence[int]) -> None:
        """Add many positions that were appended to the column, in steps."""
        if self._slots is None and not self._open and len(positions) <= OPEN_COUNT_MAX:
            self.left_count += len(positions)
            self._open = sorted(positions, key=self._dues.__getitem__)
        elif self._slots is None and len(positions) <= OPEN_COUNT_MAX:
            for position in positions:
                self.add(position)
        else:
            self.left_count += len(positions)
            if self._slots is None:
                self._cut()
            self._steps = chain(self._steps or (), self._place(positions))

    def head(self) -> float:
        """Return the earliest due time left, or a lower bound while preparation is left; infinity if none is."""
        while self._cursor == len(self._open):
            if self._steps is not None:
                return self._start + self._slot / self._scale
            if not self._advance():
                return math.inf
        return self._dues[self._open[self._cursor]]

    def take(self, now: float, limit: int = RUN_COUNT) -> Sequence[int]:
        """Remove and return at most ``limit`` positions due at or before ``now``, in due order.

        There may be more: call again until :meth:`head` is later than ``now``. Empty while preparation is left.
        """
        taken: list[int] = []
        while len(taken) < limit and self.head() <= now and self._steps is None:
            cursor, positions = self._cursor, self._open
            stop = len(positions)
            if self._dues[positions[-1]] > now:
                stop = bisect_right(positions, now, lo=cursor, key=self._dues.__getitem__)
            stop = min(stop, cursor + limit - len(taken))
            taken += positions[cursor:stop]
            self.left_count -= stop - cursor
            self._cursor = stop
            if stop < len(positions):
                break
            self._open, self._cursor = [], 0
        return taken

    def take_lone(self, now: float) -> int | None:
        """Remove and return the first position if it is due at ``now`` and the next one is not; None if not, or unknown."""
        cursor, positions = self._cursor, self._open
        if cursor >= len(positions) or self._dues[positions[cursor]] > now:
            return None
        if cursor + 1 < len(positions):
            if self._dues[positions[cursor + 1]] <= now:
                return None
        elif self._slots is not None and (self._has_work or now >= self._open_until - ROUNDING_SECONDS):
            return None  # later slots may hold another
        self._cursor = cursor + 1
        self.left_count -= 1
        return positions[cursor]

    def take_first(self, now: float) -> int | None:
        """Remove and return the first position, if it is due at ``now``; None if not, or while preparation is left."""
        if self.head() > now or self._steps is not None:
            return None
        position = self._open[self._cursor]
        self._cursor += 1
        self.left_count -= 1
        return position

    def count_until(self, when: float) -> int:
        """Count the positions left that are due at or before a time; an estimate where they are not in order yet."""
        if self._slots is None:
            return bisect_right(self._open, when, lo=self._cursor, key=self._dues.__getitem__) - self._cursor
        end = self._start + SLOT_COUNT / self._scale
        if when >= end:
            return self.left_count
        if self._has_work:
            return int(self.left_count * max(0.0, when - self._start) / (end - self._start))
        last = max(self._slot, int((when - self._start) * self._scale))
        slotted = sum(map(len, self._slots[self._slot + 1 : last + 1]))
        return slotted + bisect_right(self._open, when, lo=self._cursor, key=self._dues.__getitem__) - self._cursor

    def _slot_of(self, due: float) -> int:
        """Return the slot of a due time; never one that has been opened, whatever the rounding."""
        return max(self._slot + 1, min(int((due - self._start) * self._scale), SLOT_COUNT - 1))

    def _cut(self) -> None:
        """Begin to use slots, and distribute the open positions among them."""
        moved = self._open[self._cursor :]
        self._open, self._cursor = [], 0
        self._open_until = -math.inf
        self._slots = [array("I") for _ in range(SLOT_COUNT)]
        for position in moved:
            self._slots[self._slot_of(self._dues[position])].append(position)

    def _place(self, todo: Sequence[int]) -> Iterator[None]:
        """Distribute positions among the slots, in steps."""
        assert self._slots is not None
        dues, slots, start, scale = self._dues, self._slots, self._start, self._scale
        for first in range(0, len(todo), PLACE_COUNT):
            if first:  # only between parts, so that the last ends the work: an extra step might leave something unready
                yield
            least = self._slot + 1
            part = todo[first : first + PLACE_COUNT]
            part_dues = (
                dues[part[0] : part[-1] + 1] if type(part) is range and part.step == 1 else map(dues.__getitem__, part)
            )
            for position, due in zip(part, part_dues, strict=True):
                slot = int((due - start) * scale)  # _slot_of(), inlined
                slots[slot if least <= slot < SLOT_COUNT else least if slot < least else -1].append(position)

    def _advance(self) -> bool:
        """Open more of the open slot, or the next non-empty one; False if there is none."""
        if self._merge is not None:
            self._steps = self._read_merge(self._merge)
            return True
        self._open, self._cursor = [], 0
        while self._slots is not None and self._slot + 1 < SLOT_COUNT:
            self._slot += 1
            last = self._slot + 1 == SLOT_COUNT
            self._open_until = math.inf if last else self._start + (self._slot + 1) / self._scale
            slot = self._slots[self._slot]
            if slot:
                self._slots[self._slot] = array("I")
                if len(slot) > RUN_COUNT:
                    self._steps = self._sort_runs(slot)
                else:
                    # By position first: tasks may have joined while earlier ones were still being distributed.
                    self._open = sorted(sorted(slot), key=self._dues.__getitem__)
                return True
        return False

    def _sort_runs(self, slot: array[int]) -> Iterator[None]:
        """Sort a very full slot run by run, in steps."""
        dues = self._dues

        def due_and_position(position: int) -> tuple[float, int]:
            return dues[position], position

        runs: list[list[int]] = []
        for first in range(0, len(slot), _SORT_COUNT):
            runs.append(sorted(sorted(slot[first : first + _SORT_COUNT]), key=dues.__getitem__))
            yield
        overlap = any(due_and_position(after[0]) < due_and_position(before[-1]) for before, after in pairwise(runs))
        # Each run is freed once it has been read: freeing a million positions at once would block the loop for 6 ms.
        if overlap:
            self._merge = heapq.merge(*map(iter, runs), key=due_and_position)
        else:
            runs.reverse()
            self._merge = chain.from_iterable(runs.pop() for _ in range(len(runs)))

    def _read_merge(self, merge: Iterator[int]) -> Iterator[None]:
        """Open more of a very full slot, in one step."""
        self._open, self._cursor = list(islice(merge, _MERGE_COUNT)), 0
        if not self._open:
            self._merge = None
        yield

    def _flatten(self) -> None:
        """Finish the open slot at once, because a task joins it."""
        while not self.prepare():
            pass
        if self._merge is not None:
            self._open, self._cursor = [*self._open[self._cursor :], *self._merge], 0
            self._merge = None


@two_bodies
def in_due_order(offsets: array[float], begin: float) -> tuple[array[int], array[float]]:
    """Return the positions of offsets in rising order, equal ones as they come, and ``begin`` plus each offset."""
    order = array("I", sorted(range(len(offsets)), key=offsets.__getitem__))
    return order, array("d", [begin + offsets[position] for position in order])
