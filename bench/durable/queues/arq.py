"""arq on Redis: ``enqueue_job`` one by one, as it has no call for many, and a ``Worker`` in the same loop.

A worker looks at its queue every ``poll_delay``, half a second by default, and starts at most ``queue_read_limit`` jobs
each time; that alone would limit it to some hundred a second. Here it looks every 10 ms.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from bench.durable.queues.queue import CONCURRENCY, Opened, Queue, background, concurrently

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from bench.durable.places import Place

__all__ = ["QUEUES"]

_POLL_SECONDS = 0.01


class _Arq(Opened):
    def __init__(self, pool: Any, settings: Any, call: Callable[[int], None]) -> None:
        self._pool = pool
        self._settings = settings
        self._call = call

    async def put_each(self, numbers: Sequence[int]) -> None:
        await concurrently(lambda number: self._pool.enqueue_job("task", number), numbers)

    async def put_many(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        from arq.worker import Worker, func  # noqa: PLC0415  # imported on use

        async def task(_: dict[str, Any], number: int) -> None:
            self._call(number)

        worker = Worker(
            functions=[func(task, name="task")],
            redis_settings=self._settings,
            handle_signals=False,
            max_jobs=CONCURRENCY,
            poll_delay=_POLL_SECONDS,
            keep_result=0,
            log_results=False,
        )
        async with background(worker.async_run()):
            yield
        await worker.close()

    async def left(self) -> int:
        return int(await self._pool.zcard("arq:queue"))


@contextlib.asynccontextmanager
async def _open(place: Place, call: Callable[[int], None]) -> AsyncIterator[Opened]:
    from arq.connections import RedisSettings, create_pool  # noqa: PLC0415  # imported on use

    logging.getLogger("arq").setLevel(logging.ERROR)
    settings = RedisSettings.from_dsn(place.redis)
    pool = await create_pool(settings)
    try:
        yield _Arq(pool, settings, call)
    finally:
        await pool.aclose()


QUEUES = [
    Queue(
        name="arq",
        package="arq",
        server="redis",
        open=_open,
        count=3_000,
        has_many=False,
        is_durable="synced within 1 s",
        ends="timeout, ack by id: at least once",
        settings=f"poll_delay={_POLL_SECONDS} in place of 0.5, max_jobs={CONCURRENCY}, keep_result=0",
    )
]
