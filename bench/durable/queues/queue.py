"""What an adapter of a task queue has to provide, and what several adapters share."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager

    from bench.durable.places import Place

__all__ = ["CONCURRENCY", "Opened", "Queue", "background", "concurrently"]

CONCURRENCY = 50  # how many puts are awaited at the same time, and how many tasks a worker may run at the same time
_STOP_SECONDS = 0.2


class Opened(Protocol):
    """An open queue with one task, which calls a function with its argument and does nothing else."""

    async def put_each(self, numbers: Sequence[int]) -> None:
        """Put a task for each number, one by one, with :data:`CONCURRENCY` puts at once, as in a service."""
        ...

    async def put_many(self, numbers: Sequence[int]) -> None:
        """Put a task for each number with the call that takes many."""
        ...

    def working(self) -> AbstractAsyncContextManager[None]:
        """Run one worker in this process."""
        ...

    async def left(self) -> int:
        """Count the tasks that are waiting, running, or not acknowledged."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One library with one place for its tasks.

    Attributes:
        name: the name in the tables.
        open: opens an empty queue in a place; each task calls the given function with its number.
        server: what the queue needs: "postgres", "redis", or "" for a folder.
        package: the package to import; "" for ours.
        least: the lowest version of it, as a tuple of integers.
        distribution: the name under which it is installed, if that is different.
        needs: other packages to import.
        count: how many tasks a full round has, so that it takes some seconds.
        has_many: whether it has a call that takes many tasks.
        is_durable: what is true of a task once its put has returned.
        ends: how a task is taken, and what happens to it if its process is lost.
        settings: those that differ from the defaults, and why.
        target: the tasks per second, put, run and ended, that the design asks for.
    """

    name: str
    open: Callable[[Place, Callable[[int], None]], AbstractAsyncContextManager[Opened]]
    server: str = ""
    package: str = ""
    least: tuple[int, ...] = ()
    distribution: str = ""
    needs: tuple[str, ...] = ()
    count: int = 20_000
    has_many: bool = True
    is_durable: str
    ends: str
    settings: str = ""
    target: float | None = None


async def concurrently(put: Callable[[int], Awaitable[object]], numbers: Sequence[int]) -> None:
    """Put numbers one by one, :data:`CONCURRENCY` of them at the same time."""
    waiting = iter(numbers)

    async def some() -> None:
        for number in waiting:
            await put(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(some())


@contextlib.asynccontextmanager
async def background(
    worker: Coroutine[object, object, object], stop: Callable[[], object] | None = None
) -> AsyncIterator[None]:
    """Run a worker as a task until the block ends; then call ``stop``, or cancel the task."""
    task = asyncio.ensure_future(worker)
    try:
        yield
    finally:
        if stop is not None:
            stop()
        while not task.done():
            if stop is None:
                task.cancel()  # repeatedly, since a cancellation at the wrong moment may be lost
            await asyncio.wait([task], timeout=_STOP_SECONDS)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
