"""APScheduler 3: jobs with a date, in memory; it limits no rate.

``AsyncIOScheduler`` gets a job with a ``date`` trigger for each call. The function is a coroutine function, which it
runs as a task of the loop; a plain function would go to a thread, which costs more. Jobs are added while it is paused,
since each one added to a running scheduler wakes it up, and ``misfire_grace_time=None`` keeps it from dropping jobs
that are late. This is therefore the least that it can cost. It gets fewer jobs than the others, for half a run of CPU
time; the table says how many.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING

from bench.countdown import STRIDE, Countdown
from bench.peers.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PEERS"]

JOBS_MAX = 20_000  # about 1.6 s of CPU time, of the 3 s in which they are due


async def _timers(countdown: Countdown, delays: Sequence[float]) -> None:
    from apscheduler.schedulers.asyncio import AsyncIOScheduler  # noqa: PLC0415  # an extra, imported on use

    async def call() -> None:
        countdown.call()

    async def sample(due: float) -> None:
        countdown.sample(due)

    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    scheduler = AsyncIOScheduler(timezone=UTC, job_defaults={"misfire_grace_time": None})
    scheduler.start(paused=True)
    for index, delay in enumerate(delays):
        is_sampled = index % STRIDE == 0
        scheduler.add_job(
            sample if is_sampled else call,
            "date",
            args=[monotonic() + delay] if is_sampled else None,
            run_date=datetime.now(UTC) + timedelta(seconds=delay),
        )
    scheduler.resume()
    await countdown.done
    scheduler.shutdown(wait=False)


PEERS = [Peer(name="APScheduler date jobs", package="apscheduler", timers=_timers, calls_max=JOBS_MAX)]
