"""The timers of a simulation's loop, and the wakers of its executors."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.lazy_heap import WholeHeap
from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import WakerFields
from ratelimited_executor.simulation.lasting import Lasting

if TYPE_CHECKING:
    import asyncio
    from collections import deque
    from collections.abc import Callable
    from typing import TypeAlias

    from ratelimited_executor.testing.clock import VirtualClock

__all__ = ["Timers", "VirtualWaker"]


_Timer: TypeAlias = "tuple[float, int, Callable[[Any], object] | None, Any]"
"""Time, number among equal times, callback and its argument; or a handle and None, when the handle itself is called."""


@two_bodies
class Timers:
    """What a loop will call, by time; at equal times in the order in which it was added.

    Args:
        clock: the clock of the loop.
    """

    __slots__ = ("_clock", "_heap", "_numbers")

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._heap: WholeHeap[_Timer] = WholeHeap(_is_stale)
        self._numbers = count()

    def __len__(self) -> int:
        """The number of timers, stale ones included."""
        return len(self._heap)

    @property
    def stale_count(self) -> int:
        """The number of timers that are known to be stale, and are still held."""
        return self._heap.stale_count

    def push(self, when: float, call: Callable[[Any], object], argument: Any) -> None:
        """Add the call ``call(argument)`` at loop time ``when``."""
        self._heap.push((when, next(self._numbers), call, argument))

    def push_handle(self, when: float, handle: asyncio.TimerHandle) -> None:
        """Add a handle at loop time ``when``; it becomes ready then."""
        self._heap.push((when, next(self._numbers), None, handle))

    def next_at(self) -> float:
        """Return the time of the first timer that is not stale; infinity if there is none. Time moves for no other."""
        heap = self._heap
        if heap.stale_count:  # drop stale timers at the front
            heap.first()
        entries = heap.entries
        return entries[0][0] if entries else math.inf

    def run_next(self, ready: deque[Any]) -> None:
        """Call the first timer; a handle becomes ready, and all handles due with it, before the first of them runs."""
        heap = self._heap
        _, _, call, argument = heap.pop()
        if call is not None:
            call(argument)
            return
        while True:
            argument._scheduled = False  # noqa: SLF001  # of a handle of asyncio, as its own loops do
            if argument._cancelled:  # noqa: SLF001  # as above
                heap.stale_count -= 1
            else:
                ready.append(argument)
            entries = heap.entries
            if not entries or entries[0][0] > self._clock._monotonic or entries[0][2] is not None:
                return
            argument = heap.pop()[3]

    def note_stale(self) -> None:
        """Record that a timer is stale: nothing is left to do when it fires."""
        self._heap.note_stale()

    def clear(self) -> None:
        """Drop all timers."""
        self._heap.clear()


def _is_stale(timer: _Timer) -> bool:
    """True if nothing is left to do for a timer: its handle was cancelled, or its job has already ended."""
    _, _, call, argument = timer
    if call is None:
        return bool(argument.cancelled())
    return isinstance(argument, Lasting) and not argument.is_running


class VirtualWaker(WakerFields):
    """The time of the next run of a manager's executors; needs no entry among the timers.

    Args:
        wakers: all wakers of the loop.
        run_due: runs the executors.

    Attributes:
        at: loop time of the next run.
    """

    __slots__ = ("_wakers",)

    def __init__(self, wakers: list[VirtualWaker], run_due: Callable[[float], float]) -> None:
        self._wakers = wakers
        self.run_due = run_due
        self.at = math.inf

    def set(self, when: float, now: float) -> None:  # noqa: ARG002  # the shape of a waker
        """Run at loop time ``when``."""
        self.at = when

    def close(self) -> None:
        """Never run again."""
        self.at = math.inf
        if self in self._wakers:
            self._wakers.remove(self)
