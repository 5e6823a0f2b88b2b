"""PgQueuer on PostgreSQL with asyncpg: ``enqueue`` of one and of lists, and one ``PgQueuer`` in the same loop.

Its own benchmark runs five of them with batches of ten; one with batches of a hundred is faster in one process.
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

_POOL = 10  # connections
_CHUNK = 1_000  # tasks in one statement


class _PgQueuer(Opened):
    def __init__(self, pool: Any, queries: Any, call: Callable[[int], None]) -> None:
        self._pool = pool
        self._queries = queries
        self._call = call

    async def put_each(self, numbers: Sequence[int]) -> None:
        await concurrently(lambda number: self._queries.enqueue("task", b"%d" % number), numbers)

    async def put_many(self, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), _CHUNK):
            chunk = numbers[start : start + _CHUNK]
            await self._queries.enqueue(["task"] * len(chunk), [b"%d" % number for number in chunk], [0] * len(chunk))

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        from pgqueuer import AsyncpgPoolDriver, PgQueuer  # noqa: PLC0415  # imported on use

        queuer = PgQueuer(AsyncpgPoolDriver(self._pool))

        @queuer.entrypoint("task")
        async def task(job: Any) -> None:
            self._call(int(job.payload))

        async with background(queuer.run(batch_size=CONCURRENCY), queuer.shutdown.set):
            yield

    async def left(self) -> int:
        return sum(each.count for each in await self._queries.queue_size())


@contextlib.asynccontextmanager
async def _open(place: Place, call: Callable[[int], None]) -> AsyncIterator[Opened]:
    import asyncpg  # noqa: PLC0415  # imported on use
    from pgqueuer import AsyncpgPoolDriver, Queries  # noqa: PLC0415  # imported on use

    logging.getLogger("pgqueuer").setLevel(logging.ERROR)
    async with asyncpg.create_pool(place.postgres, min_size=_POOL, max_size=_POOL) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        yield _PgQueuer(pool, queries, call)


QUEUES = [
    Queue(
        name="PgQueuer",
        package="pgqueuer",
        needs=("asyncpg",),
        server="postgres",
        open=_open,
        count=6_000,
        is_durable="synced to the disk",
        ends="heartbeat, ack by id: at least once",
        settings=f"asyncpg, a pool of {_POOL} connections, batch_size={CONCURRENCY} in place of 10",
    )
]
