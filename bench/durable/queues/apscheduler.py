"""APScheduler 4, a pre-release, on PostgreSQL: ``add_job``, and a scheduler in the same loop.

It cannot be installed together with APScheduler 3, with which the section ``peers`` compares our timers.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from bench.durable.queues.queue import CONCURRENCY, Opened, Queue, concurrently

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from bench.durable.places import Place

__all__ = ["QUEUES"]

_call: Callable[[int], None]


async def task(number: int) -> None:
    """Call the function of the current round; jobs name their function by its module, so that it must be at the top."""
    _call(number)


class _APScheduler(Opened):
    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    async def put_each(self, numbers: Sequence[int]) -> None:
        await concurrently(lambda number: self._scheduler.add_job("task", args=[number]), numbers)

    async def put_many(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        await self._scheduler.start_in_background()
        try:
            yield
        finally:
            await self._scheduler.stop()

    async def left(self) -> int:
        return len(await self._scheduler.get_jobs())


@contextlib.asynccontextmanager
async def _open(place: Place, call: Callable[[int], None]) -> AsyncIterator[Opened]:
    from apscheduler import AsyncScheduler  # noqa: PLC0415  # imported on use
    from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore  # noqa: PLC0415  # imported on use
    from apscheduler.eventbrokers.psycopg import PsycopgEventBroker  # noqa: PLC0415  # imported on use
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415  # imported on use

    global _call  # noqa: PLW0603  # the function is found by its name
    _call = call
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    engine = create_async_engine(place.postgres.replace("postgresql://", "postgresql+psycopg://"), pool_size=10)
    broker = PsycopgEventBroker(place.postgres)
    async with AsyncScheduler(SQLAlchemyDataStore(engine), broker, max_concurrent_jobs=CONCURRENCY) as scheduler:
        await scheduler.configure_task("task", func=task, max_running_jobs=None, job_executor="async")
        yield _APScheduler(scheduler)
    await engine.dispose()


QUEUES = [
    Queue(
        name="APScheduler 4",
        package="apscheduler",
        least=(4,),
        needs=("sqlalchemy", "psycopg"),
        server="postgres",
        open=_open,
        count=500,
        has_many=False,
        is_durable="synced to the disk",
        ends="lease, ack by id; if its process is lost, it runs again or is dropped by the clean-up",
        settings=f"SQLAlchemy with psycopg, max_concurrent_jobs={CONCURRENCY} in place of 100",
    )
]
