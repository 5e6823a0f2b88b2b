"""The turns of jobs of several feeds that are due at one instant, as the calendar of an executor has them.

An executor opens its batches interval by interval, and in each in the order in which they came to it: from the hand-over, or
from the interval of their jobs before. So which of two batches comes first changes from interval to interval.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from ratelimited_executor.simulation.feeds import CHUNK_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor._kernel.timeline import Timeline
    from ratelimited_executor.simulation.shortcut.passing import Inflow

__all__ = ["set_turns"]


class _Part:
    """The jobs of a inflow that are handed over together."""

    __slots__ = ("inflow", "next", "stop")

    def __init__(self, inflow: Inflow, first: int, stop: int) -> None:
        self.inflow = inflow
        self.next = first
        self.stop = stop


def set_turns(inflows: Sequence[tuple[Inflow, array[int], bool]], queue: Any) -> None:
    """Set the turns of all jobs.

    Args:
        inflows: each inflow, with the number of its jobs up to the end of each minute, and True if it is a batch; in the order in
            which they were set up.
        queue: the queue of the executor.
    """
    for inflow, _, _ in inflows:
        inflow.turns = array("q", bytes(8 * len(inflow.dues)))
    calendar = _Calendar(queue.ticks)
    firsts = [0] * len(inflows)
    last = max(len(counts) for _, counts, _ in inflows)
    for chunk in range(last):
        begin = chunk * CHUNK_SECONDS
        calendar.enter(queue.ticks.number_at(begin))
        end = queue.timeline.start_of(queue.timeline.number_at(begin) + 1)
        order = sorted(range(len(inflows)), key=lambda number: not inflows[number][2])  # batches come first, in setup()
        for number in order:
            inflow, counts, _ = inflows[number]
            if chunk >= len(counts):
                continue
            first, firsts[number] = firsts[number], counts[chunk]
            joined = bisect_left(inflow.dues, end, first, counts[chunk])
            for start, stop in ((first, joined), (joined, counts[chunk])):
                if start < stop:
                    calendar.add(_Part(inflow, start, stop))
    calendar.enter(None)


class _Calendar:
    """The intervals of an executor, as ``Calendar.add_batch`` and ``Calendar.open_until`` fill and open them."""

    def __init__(self, ticks: Timeline) -> None:
        self._ticks = ticks
        self._number = -1
        self._parcels: dict[int, list[_Part]] = {}
        self._numbers: list[int] = []
        self._turn = 0  # of the next part that is opened in the running interval

    def add(self, part: _Part) -> None:
        number = self._ticks.number_at(part.inflow.dues[part.next])
        if number <= self._number:
            self._open_part(part, self._number)
        else:
            self._put(number, part)

    def enter(self, number: int | None) -> None:
        """Open all intervals up to a number; all of them if None."""
        while self._numbers and (number is None or self._numbers[0] <= number):
            first = heapq.heappop(self._numbers)
            self._turn = 0
            for part in self._parcels.pop(first):
                self._open_part(part, first)
            self._number = first
        if number is not None and number > self._number:
            self._number, self._turn = number, 0

    def _open_part(self, part: _Part, number: int) -> None:
        inflow, end = part.inflow, self._ticks.start_of(number + 1)
        stop = bisect_left(inflow.dues, end, part.next, part.stop)
        if stop > part.next:
            assert inflow.turns is not None
            inflow.turns[part.next : stop] = array("q", [self._turn]) * (stop - part.next)
            part.next = stop
            self._turn += 1
        if stop < part.stop:
            self._put(max(self._ticks.number_at(inflow.dues[stop]), number + 1), part)

    def _put(self, number: int, part: _Part) -> None:
        if number not in self._parcels:
            self._parcels[number] = []
            heapq.heappush(self._numbers, number)
        self._parcels[number].append(part)
