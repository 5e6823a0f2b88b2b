"""procrastinate on PostgreSQL with psycopg: ``defer_async``, ``batch_defer_async``, and a worker in the same loop."""

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
_LEFT = "select count(*) as count from procrastinate_jobs where status in ('todo', 'doing')"


class _Procrastinate(Opened):
    def __init__(self, app: Any, call: Callable[[int], None]) -> None:
        self._app = app

        @app.task(name="task")  # type: ignore[untyped-decorator]  # imported on use
        async def task(number: int) -> None:
            call(number)

        self._task = task

    async def put_each(self, numbers: Sequence[int]) -> None:
        await concurrently(lambda number: self._task.defer_async(number=number), numbers)

    async def put_many(self, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), _CHUNK):
            chunk = numbers[start : start + _CHUNK]
            await self._task.batch_defer_async(*({"number": number} for number in chunk))

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        worker = self._app.run_worker_async(
            concurrency=CONCURRENCY, delete_jobs="always", install_signal_handlers=False
        )
        async with background(worker):
            yield

    async def left(self) -> int:
        row = await self._app.connector.execute_query_one_async(_LEFT)
        return int(row["count"])


@contextlib.asynccontextmanager
async def _open(place: Place, call: Callable[[int], None]) -> AsyncIterator[Opened]:
    from procrastinate import App, PsycopgConnector  # noqa: PLC0415  # imported on use

    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    app = App(connector=PsycopgConnector(conninfo=place.postgres, min_size=_POOL, max_size=_POOL))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        yield _Procrastinate(app, call)


QUEUES = [
    Queue(
        name="procrastinate",
        package="procrastinate",
        server="postgres",
        open=_open,
        count=1_000,
        is_durable="synced to the disk",
        ends="heartbeat of the worker, ack by id; a retry of stalled jobs is the user's to write",
        settings=f"concurrency={CONCURRENCY} in place of 1, a pool of {_POOL} connections, delete_jobs=always",
    )
]
