"""huey, in a file of SQLite with ``fsync`` and on Redis: a consumer with one thread, as it runs no coroutine functions.

It removes a task from its queue before it runs it. Tasks are put by one thread, one after the other: with more threads
the file would be locked most of the time, and the rate would not rise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.durable.queues.queue import Opened, Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from bench.durable.places import Place

__all__ = ["QUEUES"]


class _Huey(Opened):
    def __init__(self, huey: Any, call: Callable[[int], None]) -> None:
        self._huey = huey

        @huey.task(name="task")  # type: ignore[untyped-decorator]  # imported on use
        def task(number: int) -> None:
            call(number)

        self._task = task

    async def put_each(self, numbers: Sequence[int]) -> None:
        def put() -> None:
            for number in numbers:
                self._task(number)

        await asyncio.to_thread(put)

    async def put_many(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        consumer = self._huey.create_consumer(workers=1, periodic=False)
        consumer.start()
        try:
            yield
        finally:
            await asyncio.to_thread(consumer.stop, graceful=True)

    async def left(self) -> int:
        return int(self._huey.storage.queue_size())


@contextlib.asynccontextmanager
async def _open(server: str, place: Place, call: Callable[[int], None]) -> AsyncIterator[Opened]:
    import huey  # noqa: PLC0415  # an extra, imported on use

    logging.getLogger("huey").setLevel(logging.ERROR)
    if server == "redis":
        yield _Huey(huey.RedisHuey("bench", url=place.redis, results=False), call)
    else:
        path = Path(place.folder) / "huey.db"
        yield _Huey(huey.SqliteHuey("bench", filename=str(path), fsync=True, results=False), call)


QUEUES = [
    Queue(
        name=name,
        package="huey",
        server=server,
        open=partial(_open, server),
        count=count,
        has_many=False,
        is_durable=is_durable,
        ends="taken out before it runs, no ack: at most once",
        settings=settings,
    )
    for name, server, count, is_durable, settings in (
        ("huey, SQLite", "", 3_000, "synced to the disk", "fsync=True, results=False, one thread"),
        ("huey, Redis", "redis", 4_000, "synced within 1 s", "results=False, one thread"),
    )
]
