"""docket (``pydocket``) on Redis: ``add``, ``add_many``, and a ``Worker`` in the same loop.

A worker whose places are all taken sleeps for ``minimum_check_interval``, a quarter of a second by default, even if its
tasks end sooner; that alone would limit it to four times its concurrency a second. Here it sleeps for 10 ms.
"""

from __future__ import annotations

import contextlib
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from bench.durable.queues.queue import CONCURRENCY, Opened, Queue, background, concurrently

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from bench.durable.places import Place

__all__ = ["QUEUES"]


_CHECK_SECONDS = 0.01


class _Docket(Opened):
    def __init__(self, docket: Any, call: Callable[[int], None]) -> None:
        self._docket = docket

        async def task(number: int) -> None:
            call(number)

        docket.register(task)
        self._task = task

    async def put_each(self, numbers: Sequence[int]) -> None:
        await concurrently(lambda number: self._docket.add(self._task)(number), numbers)  # noqa: PLW0108  # add() draws a key

    async def put_many(self, numbers: Sequence[int]) -> None:
        await self._docket.add_many([self._docket.call(self._task)(number) for number in numbers])

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        from docket import Worker  # noqa: PLC0415  # imported on use

        interval = timedelta(seconds=_CHECK_SECONDS)
        async with (
            Worker(self._docket, concurrency=CONCURRENCY, minimum_check_interval=interval) as worker,
            background(worker.run_forever()),
        ):
            yield

    async def left(self) -> int:
        async with self._docket.redis() as redis:
            return int(await redis.xlen(self._docket.stream_key)) + int(await redis.zcard(self._docket.queue_key))


@contextlib.asynccontextmanager
async def _open(place: Place, call: Callable[[int], None]) -> AsyncIterator[Opened]:
    from docket import Docket  # noqa: PLC0415  # imported on use

    logging.getLogger("docket").setLevel(logging.ERROR)
    async with Docket(url=place.redis, execution_ttl=timedelta(0)) as docket:
        yield _Docket(docket, call)


QUEUES = [
    Queue(
        name="docket",
        package="docket",
        distribution="pydocket",
        server="redis",
        open=_open,
        count=6_000,
        is_durable="synced within 1 s",
        ends="lease, ack by id: at least once",
        settings=f"concurrency={CONCURRENCY} in place of 10, minimum_check_interval={_CHECK_SECONDS} in place of 0.25, "
        "execution_ttl=0: no state is kept of what has ended",
    )
]
