"""Our own side with each of our stores: ``put``, ``put_many``, and an executor without a rate that runs the tasks."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.durable.queues.queue import Opened, Queue, concurrently
from ratelimited_executor import RateLimitedExecutor, durable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from bench.durable.places import Place
    from ratelimited_executor.abc import TaskStore

__all__ = ["QUEUES", "STORES", "make_store"]

STORES = {"memory": "", "SQLite": "", "PostgreSQL": "postgres", "Redis": "redis"}
"""The server that each of our stores needs."""


def make_store(kind: str, place: Place) -> TaskStore:
    """Return an empty store."""
    if kind == "memory":
        return durable.MemoryStore()
    if kind == "SQLite":
        return durable.SQLiteStore(Path(place.folder) / "tasks.db")
    if kind == "PostgreSQL":
        return durable.PostgresStore(place.postgres)
    return durable.RedisStore(place.redis)


class _Ours(Opened):
    def __init__(self, tasks: durable.DurableTasks, call: Callable[[int], None]) -> None:
        self._tasks = tasks

        @tasks.task
        async def task(number: int) -> None:
            call(number)

        self._task: durable.DurableFunction[..., Any] = task

    async def put_each(self, numbers: Sequence[int]) -> None:
        await concurrently(self._task.put, numbers)

    async def put_many(self, numbers: Sequence[int]) -> None:
        await self._tasks.put_many(self._task.new(number) for number in numbers)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with RateLimitedExecutor("bench") as executor, self._tasks.running(executor):
            yield

    async def left(self) -> int:
        return sum((await self._tasks.counts()).values())


@contextlib.asynccontextmanager
async def _open(kind: str, place: Place, call: Callable[[int], None]) -> AsyncIterator[Opened]:
    async with durable.DurableTasks(make_store(kind, place)) as tasks:
        yield _Ours(tasks, call)


_DURABLE = {
    "memory": "nothing: in memory",
    "SQLite": "synced to the disk",
    "PostgreSQL": "synced to the disk",
    "Redis": "synced within 1 s",
}
_TARGETS = {"SQLite": 30_000.0, "PostgreSQL": 10_000.0, "Redis": 20_000.0}

QUEUES = [
    Queue(
        name=f"ours, {kind}",
        open=partial(_open, kind),
        server=server,
        count=20_000 if kind == "PostgreSQL" else 40_000,
        is_durable=_DURABLE[kind],
        ends="lease, fenced ack: at least once",
        target=_TARGETS.get(kind),
    )
    for kind, server in STORES.items()
]
