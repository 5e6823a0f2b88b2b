"""What holds the event loop, and for how long.

This is measured in two ways. A *probe* makes round trips through ``call_soon`` all the time; the longest gap between
two of them is the time that any other task of the program would have to wait, whatever the cause. And every callback
that the loop runs is timed, by the clock and in CPU time of the thread; callbacks of ours are recognised by the module
of their code. A pause that the operating system makes therefore shows in gaps and by the clock, but not in CPU time.
Garbage collections are timed as well: they happen in the callback that creates one object too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import ratelimited_executor

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Holds", "Probe", "accounting"]

_OURS = ratelimited_executor.__name__
_LONG = 5e-3  # seconds; this is what the library promises


@dataclass(slots=True)
class Holds:
    """The longest times for which the loop was held, in seconds.

    Attributes:
        ours_cpu: CPU time of the longest callback of ours, without collections.
        ours_all: CPU time of the longest callback of ours, with collections.
        ours_wall: time by the clock of the longest callback of ours.
        ours_gc: the longest time that collections took within one callback of ours.
        ours_total: CPU time of all callbacks of ours.
        ours_long_count: how many callbacks of ours took more than 5 ms of CPU time without collections.
        gap_cpu: the longest CPU time between two turns of the probe.
        gap_wall: the longest time between two turns of the probe.
        turns: how many turns the probe made.
    """

    ours_cpu: float = 0.0
    ours_all: float = 0.0
    ours_wall: float = 0.0
    ours_gc: float = 0.0
    ours_total: float = 0.0
    ours_long_count: int = 0
    gap_cpu: float = 0.0
    gap_wall: float = 0.0
    turns: int = 0

    def as_dict(self) -> dict[str, float]:
        """Return all values as JSON holds them."""
        return asdict(self)


class Probe:
    """Makes round trips through ``call_soon`` until it is stopped."""

    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self._loop = asyncio.get_running_loop()
        self._is_stopped = False
        self._last_wall, self._last_cpu = time.perf_counter(), time.thread_time()
        self._loop.call_soon(self._turn)

    def stop(self) -> None:
        """Stop the round trips."""
        self._is_stopped = True

    def _turn(self) -> None:
        if self._is_stopped:
            return
        wall, cpu = time.perf_counter(), time.thread_time()
        holds = self._holds
        holds.turns += 1
        holds.gap_wall = max(holds.gap_wall, wall - self._last_wall)
        holds.gap_cpu = max(holds.gap_cpu, cpu - self._last_cpu)
        self._last_wall, self._last_cpu = wall, cpu
        self._loop.call_soon(self._turn)


@contextlib.contextmanager
def accounting(holds: Holds) -> Iterator[None]:
    """Time every callback of asyncio's own loop, and every collection.

    asyncio runs all callbacks through one method; the timing is added to it and costs some microseconds a callback.
    """
    run = asyncio.Handle._run
    collecting = _Collecting()

    def timed(handle: Any) -> None:
        wall, cpu, paused = time.perf_counter(), time.thread_time(), collecting.total
        is_ours = _is_ours(handle._callback)  # taken first, since a callback that cancels its own handle clears it
        try:
            run(handle)
        finally:
            if is_ours:
                spent = time.thread_time() - cpu
                collections = collecting.total - paused
                holds.ours_total += spent
                holds.ours_all = max(holds.ours_all, spent)
                holds.ours_cpu = max(holds.ours_cpu, spent - collections)
                holds.ours_wall = max(holds.ours_wall, time.perf_counter() - wall)
                holds.ours_gc = max(holds.ours_gc, collections)
                holds.ours_long_count += spent - collections > _LONG

    asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]  # there is no other way to see every callback
    gc.callbacks.append(collecting)
    try:
        yield
    finally:
        gc.callbacks.remove(collecting)
        asyncio.Handle._run = run  # type: ignore[method-assign]  # as above


class _Collecting:
    """Adds up the CPU time of garbage collections."""

    def __init__(self) -> None:
        self.total = 0.0
        self._begin = 0.0

    def __call__(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._begin = time.thread_time()
        else:
            self.total += time.thread_time() - self._begin


def _is_ours(callback: Any) -> bool:
    """Return whether a callback is a function of the library, or a step of a task that runs one."""
    function = getattr(callback, "func", callback)
    function = getattr(function, "__func__", function)
    module = getattr(function, "__module__", None)
    if isinstance(module, str) and module.partition(".")[0] == _OURS:
        return True
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return False
    frame = getattr(task.get_coro(), "cr_frame", None)
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _OURS
