"""What an adapter of a peer has to give, and what several adapters share."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bench.harness import Chart, Figure, Series, has_module

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from bench.countdown import Countdown
    from bench.harness import Table

__all__ = ["SLACK_SECONDS", "Acquire", "Call", "Cancellable", "Peer", "bars", "burst_of", "feed", "waiting_in_line"]

SLACK_SECONDS = 0.02  # the slack of our default policy: peers with a burst to set get as many permits as come up in it

Call = Callable[[], Coroutine[Any, Any, None]]
Acquire = Callable[[], Awaitable[object]]


class Cancellable(Protocol):
    """A call that waits: a task, or a handle of ours."""

    def cancel(self) -> bool:
        """Take it back; False if it is too late."""
        ...

    def done(self) -> bool:
        """Whether it has run or was cancelled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One library, and how it does our workloads; None for what it has nothing for.

    Attributes:
        name: in the tables.
        package: to be installed; "" for the standard library and for us.
        timers: schedules one call for each delay in seconds, and waits for all of them.
        calls_max: how many calls ``timers`` is given at most, for a peer that is slow; None for as many as the others.
        uvloop: whether it runs on uvloop; everything else runs on the loop that was chosen.
        paced: runs a coroutine function so many times, at so many starts a second, and waits for all.
        queued: lets as many calls wait at once, at so many starts a second; what is left at the end is cancelled. Gives
            what waits, call by call, or an empty sequence where single calls cannot be cancelled.
    """

    name: str
    package: str = ""
    timers: Callable[[Countdown, Sequence[float]], Awaitable[None]] | None = None
    calls_max: int | None = None
    uvloop: bool = False
    paced: Callable[[Call, int, int], Awaitable[None]] | None = None
    queued: Callable[[Call, int, int], AbstractAsyncContextManager[Sequence[Cancellable]]] | None = None

    @property
    def is_installed(self) -> bool:
        """Whether its package can be imported; imports it, so that no measurement does."""
        if self.package and has_module(self.package):
            importlib.import_module(self.package)
            return True
        return not self.package


def bars(table: Table, column: str, unit: str) -> Chart:
    """Draw the medians of one column of a table."""
    medians = {case: cell.median for case, cells in table.rows.items() if isinstance(cell := cells[column], Figure)}
    series = Series(column, list(medians), list(medians.values()))
    return Chart(table.title, "", f"{column}, {unit}", [series], kind="bar")


def burst_of(rate: int) -> int:
    """Return the burst that makes a token bucket promise what we promise by default.

    A bucket of depth b lets ``rate * w + b`` starts into a window of w seconds; we let in ``rate * (w + slack) + 1``.
    """
    return max(1, round(rate * SLACK_SECONDS))


async def feed(acquire: Acquire, call: Call, count: int) -> None:
    """Run calls by a limiter as cheaply as it can: one task acquires, and starts a task for each call.

    Each call has a task of its own, as it may last longer than the gap between two starts.
    """
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            await acquire()
            group.create_task(call())


@contextlib.asynccontextmanager
async def waiting_in_line(acquire: Acquire, call: Call, count: int) -> AsyncIterator[Sequence[Cancellable]]:
    """Let many tasks wait for a limiter, as the requests of a server do."""

    async def one() -> None:
        await acquire()
        await call()

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    await asyncio.sleep(0)  # each task has begun, and waits
    try:
        yield tasks
    finally:
        for task in tasks:  # in the order in which they wait, which is the cheapest for those with a queue
            task.cancel()
        await asyncio.wait(tasks)
