"""What an adapter of a peer must provide, and what several adapters share."""

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

SLACK_SECONDS = 0.02  # the slack of our default policy; if a peer has a burst to set, it is the permits of this time

Call = Callable[[], Coroutine[Any, Any, None]]
Acquire = Callable[[], Awaitable[object]]


class Cancellable(Protocol):
    """A call that waits: a task, or a handle of ours."""

    def cancel(self) -> bool:
        """Cancel the call; return False if it is too late."""
        ...

    def done(self) -> bool:
        """Return whether the call has run or was cancelled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One library and how it does our workloads, with None for those that it cannot do.

    Attributes:
        name: the name in the tables.
        package: the package that must be installed; "" for the standard library and for ours.
        timers: schedules one call for each delay in seconds, and waits for all of them.
        calls_max: how many calls ``timers`` gets at most, for a slow peer; None for as many as the others.
        uvloop: whether it runs on uvloop; everything else runs on the chosen loop.
        paced: runs a coroutine function a number of times, at a number of starts per second, and waits for all.
        queued: lets a number of calls wait at the same time, at a number of starts per second, and cancels at the end
            those that are left. Provides the waiting calls, or an empty sequence if single calls cannot be cancelled.
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
        """Return whether the package can be imported; this imports it, so that no measurement does."""
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
    """Return the burst with which a token bucket promises what we promise by default.

    A bucket of depth b permits ``rate * w + b`` starts in a window of w seconds; we permit ``rate * (w + slack) + 1``.
    """
    return max(1, round(rate * SLACK_SECONDS))


async def feed(acquire: Acquire, call: Call, count: int) -> None:
    """Run calls with a limiter as cheaply as possible: one task acquires, and starts a task for each call.

    Each call has a task of its own, as it may take longer than the gap between two starts.
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
    await asyncio.sleep(0)  # now each task has begun, and waits
    try:
        yield tasks
    finally:
        for task in tasks:  # in the order in which they wait, which is the cheapest for a limiter with a queue
            task.cancel()
        await asyncio.wait(tasks)
