"""taskiq on Redis streams, with its broker that acknowledges: ``kiq`` one by one, and its receiver in the same loop.

By default its stream has no limit, and keeps what was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from bench.durable.queues.queue import CONCURRENCY, Opened, Queue, background, concurrently

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from bench.durable.places import Place

__all__ = ["QUEUES"]


_IDLE_SECONDS = 0.3  # after the last task: while it looks for tasks that others have lost, it cannot be stopped


class _Taskiq(Opened):
    def __init__(self, broker: Any, redis: Any, call: Callable[[int], None]) -> None:
        self._broker = broker
        self._redis = redis

        @broker.task(task_name="task")  # type: ignore[untyped-decorator]  # imported on use
        async def task(number: int) -> None:
            call(number)

        self._task = task

    async def put_each(self, numbers: Sequence[int]) -> None:
        await concurrently(self._task.kiq, numbers)

    async def put_many(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        from taskiq.receiver import Receiver  # noqa: PLC0415  # imported on use

        receiver = Receiver(self._broker, run_startup=False, max_async_tasks=CONCURRENCY, max_prefetch=CONCURRENCY)
        finished = asyncio.Event()
        async with background(receiver.listen(finished), finished.set):
            yield
            await asyncio.sleep(_IDLE_SECONDS)

    async def left(self) -> int:
        [group] = await self._redis.xinfo_groups("taskiq")
        return int(group["lag"]) + int(group["pending"])


@contextlib.asynccontextmanager
async def _open(place: Place, call: Callable[[int], None]) -> AsyncIterator[Opened]:
    from redis.asyncio import Redis  # noqa: PLC0415  # imported on use
    from taskiq_redis import RedisStreamBroker  # noqa: PLC0415  # imported on use

    logging.getLogger("taskiq").setLevel(logging.ERROR)
    broker = RedisStreamBroker(place.redis)
    await broker.startup()
    async with Redis.from_url(place.redis) as redis:
        yield _Taskiq(broker, redis, call)
    await broker.shutdown()


QUEUES = [
    Queue(
        name="taskiq, streams",
        package="taskiq",
        needs=("taskiq_redis",),
        server="redis",
        open=_open,
        count=6_000,
        has_many=False,
        is_durable="synced within 1 s",
        ends="idle time, ack by id: at least once",
        settings=f"max_async_tasks={CONCURRENCY} in place of 100, max_prefetch={CONCURRENCY}; no results",
    )
]
