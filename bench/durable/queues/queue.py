"""What an adapter of a task queue has to give, and what several adapters share."""

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

CONCURRENCY = 50  # calls that wait for their put at the same time, and tasks that a worker may run at the same time
_STOP_SECONDS = 0.2


class Opened(Protocol):
    """A queue that is open, whose one task calls a function with its argument, and does nothing else."""

    async def put_each(self, numbers: Sequence[int]) -> None:
        """Put a task for each number, one by one, as :data:`CONCURRENCY` requests of a service would at once."""
        ...

    async def put_many(self, numbers: Sequence[int]) -> None:
        """Put a task for each number by the call that takes many."""
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
        name: in the tables.
        open: opens an empty queue in a place; the function is to be called by each task with its number.
        server: what it needs: "postgres", "redis", or "" for a folder.
        package: to be imported; "" for us alone.
        least: the least version of it, as a tuple of integers.
        distribution: the name under which it is installed, where it is another one.
        needs: other packages to be imported.
        count: how many tasks a full round has, so that it takes some seconds.
        has_many: whether it has a call that takes many tasks.
        is_durable: what has happened to a task once its put has returned.
        ends: how a task is taken, and what becomes of it if its process is lost.
        settings: which differ from the defaults, and why.
        target: tasks a second, put, run and ended, that the design asks for.
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
    """Put one by one, so many at the same time."""
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
    """Run a worker as a task until the block ends: then ``stop`` is called, or it is cancelled."""
    task = asyncio.ensure_future(worker)
    try:
        yield
    finally:
        if stop is not None:
            stop()
        while not task.done():
            if stop is None:
                task.cancel()  # again and again, as one that comes at an unlucky moment may be swallowed
            await asyncio.wait([task], timeout=_STOP_SECONDS)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
