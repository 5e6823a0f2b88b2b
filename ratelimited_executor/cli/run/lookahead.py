"""The look-ahead: a limit on lines waiting in the executor, and a check that their order could be kept.

The executor orders its waiting tasks, so a line is in order if it was read before its turn came. Waiting lines are
limited by number and by bytes, and order holds within that limit. A line whose turn had passed when it was read is
*out of order*: a line that should have started after it had already started.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Final

__all__ = ["Gate", "OrderWatch"]

# Bytes of raw text that may wait at once: 100,000 lines of 2.6 kB. Longer lines shorten the look-ahead, to save memory.
WAITING_BYTES_MAX: Final = 256 * 1024 * 1024
# Distinct priorities that are checked; for further ones the order still holds, but is not checked.
PRIORITIES_MAX: Final = 10_000


class Gate:
    """Admits lines while fewer than ``lines_max`` of them wait; a single line is admitted whatever its size.

    Args:
        lines_max: the maximum number of waiting lines, >= 1.
        bytes_max: the maximum number of bytes of waiting raw text.
    """

    def __init__(self, lines_max: int, *, bytes_max: int = WAITING_BYTES_MAX) -> None:
        assert lines_max >= 1, lines_max
        self.lines_max = lines_max
        self._bytes_max = bytes_max
        self._lines = 0
        self._bytes = 0
        self._peak = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def peak(self) -> int:
        """The largest number of lines that ever waited at once."""
        return self._peak

    @property
    def has_room(self) -> bool:
        """True if one more line may wait."""
        return self._lines == 0 or (self._lines < self.lines_max and self._bytes < self._bytes_max)

    def enter(self, size: int) -> None:
        """Count one waiting line of ``size`` bytes."""
        self._lines += 1
        self._bytes += size
        self._peak = max(self._peak, self._lines)

    def leave(self, size: int) -> None:
        """Remove a line from the count: it has started, or never will."""
        self._lines -= 1
        self._bytes -= size
        assert self._lines >= 0, self._lines
        if self._waiter is not None and self.has_room:
            self.wake()

    async def wait(self) -> None:
        """Return once there is room, or :meth:`wake` was called. One waiter at a time."""
        assert self._waiter is None, "one reader feeds the executor"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Let the waiter continue, to check for a stop of the run."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class OrderWatch:
    """Detects lines that were read too late to be started in order; pure, all times on one scale.

    The order is the executor's default: the most important of the due lines first, then the earliest due. So a line
    came too late if a less important one started while this one was due, or an equally important one with a later due
    time started. Cost: O(log p) for p distinct priorities.
    """

    def __init__(self) -> None:
        # Priorities and the times of their last starts; both rise, as a start removes all entries of its own priority
        # and above: any line that those would show to be late, the newer and less important start shows, too.
        self._priorities: list[int] = []
        self._started: list[float] = []
        self._due_max: dict[int, float] = {}

    def on_start(self, *, priority: int, due: float, started: float) -> None:
        """Record a start; calls come in the order of ``started``."""
        index = bisect_left(self._priorities, priority)
        del self._priorities[index:], self._started[index:]
        if index < PRIORITIES_MAX:
            self._priorities.append(priority)
            self._started.append(started)
        if len(self._due_max) < PRIORITIES_MAX or priority in self._due_max:
            self._due_max[priority] = max(due, self._due_max.get(priority, due))

    def is_late(self, *, priority: int, due: float) -> bool:
        """Return True if a line read now should have started before one that already has."""
        index = bisect_left(self._priorities, priority)
        if index and self._started[index - 1] >= due:
            return True
        return self._due_max.get(priority, due) > due
