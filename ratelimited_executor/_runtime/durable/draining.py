"""Running the durable tasks of a test until none is left."""

# ruff: noqa: SLF001  # it runs the parts of durable tasks as their running() does

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durable.tasks import DurableState
from ratelimited_executor._runtime.durable.repairs import Selection
from ratelimited_executor._runtime.durable.repeating import Repetitions
from ratelimited_executor._runtime.life.executor import RateLimitedExecutor

if TYPE_CHECKING:
    from ratelimited_executor._core.durable.tasks import TaskRow
    from ratelimited_executor._runtime.durable.counting import DurableStatistics
    from ratelimited_executor._runtime.durable.running import DurableRunner
    from ratelimited_executor._runtime.durable.tasks import DurableTasks
    from ratelimited_executor.abc import Clock

__all__ = ["drain"]

_US: Final = 1_000_000
_LOOK_SECONDS: Final = 0.001  # between two looks at the store
_WAITING: Final = (DurableState.READY, DurableState.PAUSED)


async def drain(tasks: DurableTasks, *, scheduled: bool = False, limit: int = 10_000) -> DurableStatistics:
    """Run the durable tasks that are due, and those that become due meanwhile, until none is left.

    They run on an executor without limits, on the loop of the test. Repetitions are not placed, and what is paused stays.

    Args:
        tasks: the durable tasks, open or not.
        scheduled: True to run also those that are due later, retried and snoozed ones among them, in the order of their due
            times and without waiting: the clock of the store is set forward meanwhile. Only with a ``MemoryStore``.
        limit: the largest number of runs.

    Returns:
        How they ended: done, dead, and so on.

    Raises:
        RuntimeError: if :meth:`DurableTasks.running` runs them already, or more than ``limit`` are run.
        TypeError: if ``scheduled`` is True for another store.
    """
    store: Any = tasks.store
    if scheduled and type(store).__name__ != "MemoryStore":
        raise TypeError(f"drain(scheduled=True) needs a MemoryStore, whose clock it sets, got {store!r}")
    if tasks._runners:
        raise RuntimeError("drain() runs the tasks itself: call it outside of running()")
    async with RateLimitedExecutor("drain") as executor, tasks:
        clock = _LaterClock(tasks._clock)
        if scheduled:
            before, store._clock = store._clock, clock  # the test kit sets its clock
        runner = tasks._runner(executor, Repetitions(), ahead=1e-6)  # what is not due stays
        tasks._runners.append(runner)
        try:
            await runner._open()
            try:
                await _run_all(tasks, runner, clock, scheduled=scheduled, limit=limit)
            finally:
                await runner._close(None)
        finally:
            tasks._runners.remove(runner)
            if scheduled:
                store._clock = before
    return runner.statistics()


class _LaterClock:
    """A clock that is set forward.

    Attributes:
        ahead: by how many seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ahead = 0.0

    def wall(self) -> float:
        return self._clock.wall() + self.ahead

    def monotonic(self) -> float:
        return self._clock.monotonic() + self.ahead


async def _run_all(
    tasks: DurableTasks, runner: DurableRunner, clock: _LaterClock, *, scheduled: bool, limit: int
) -> None:
    while True:
        paused = [
            Selection(function=pause.function, queue=pause.queue, lane=pause.lane, key=pause.key)
            for pause in await tasks.store.pauses()
        ]
        rows = [row for row in await tasks.store.rows(limit=2**31) if row.queue == tasks.queue]
        dues = [row.due_us / _US for row in rows if row.state is DurableState.SCHEDULED]
        is_due = any(_is_open(row, paused) for row in rows) or (dues and min(dues) <= clock.wall())
        if not is_due:
            if not (dues and scheduled):
                return
            clock.ahead += min(dues) - clock.wall() + _LOOK_SECONDS
            runner._wake.set()  # the time has come
        if runner._start_count > limit:
            raise RuntimeError(f"drain() has run {limit:,} tasks, and more are left: do they put or snooze each other?")
        await asyncio.sleep(_LOOK_SECONDS)


def _is_open(row: TaskRow, paused: list[Selection]) -> bool:
    """True if a task is running, or may run now."""
    return row.state is DurableState.CLAIMED or (row.state in _WAITING and not any(each.fits(row) for each in paused))
