"""Our own side of the comparisons, with the calls that do what the peers do.

Timers: ``call_later``, which replaces the loop's, and ``schedule_many(delays=)``, which takes all calls at once; both
start each call at its due time (``Pacing.ON_TIME``), as the peers' timers do. Rates: ``schedule_many`` of a coroutine
function, and ``submit`` call by call. Overflow: handles of ``submit``, and tasks that wait for ``acquire()``, as with
the limiters.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from bench.countdown import Countdown, batch_items, schedule_one_by_one
from bench.peers.peer import Call, Cancellable, Peer, waiting_in_line
from ratelimited_executor import Paced, Pacing, RateLimitedExecutor
from ratelimited_executor.policies import Strictness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

__all__ = ["PEERS"]


async def _timers(countdown: Countdown, delays: Sequence[float]) -> None:
    async with RateLimitedExecutor("peers", pacing=Pacing.ON_TIME) as executor:
        schedule_one_by_one(executor.call_later, countdown, delays)
        await countdown.done


async def _timers_batch(countdown: Countdown, delays: Sequence[float]) -> None:
    async with RateLimitedExecutor("peers", pacing=Pacing.ON_TIME) as executor:
        items = batch_items(delays)
        countdown.begin()
        executor.schedule_many(countdown.call_item, items, delays=delays)
        await countdown.done


async def _paced_batch(call: Call, count: int, rate: int) -> None:
    async with RateLimitedExecutor("peers", rate=rate) as executor:
        await executor.schedule_many(lambda _: call(), range(count), delay=0)


async def _paced_nominal(call: Call, count: int, rate: int) -> None:
    async with RateLimitedExecutor("peers", rate=rate, policy=Paced(strictness=Strictness.NOMINAL)) as executor:
        await executor.schedule_many(lambda _: call(), range(count), delay=0)


async def _paced_submit(call: Call, count: int, rate: int) -> None:
    async with RateLimitedExecutor("peers", rate=rate) as executor:
        await asyncio.gather(*[executor.submit(call) for _ in range(count)])


@contextlib.asynccontextmanager
async def _queued_submit(call: Call, count: int, rate: int) -> AsyncIterator[Sequence[Cancellable]]:
    async with RateLimitedExecutor("peers", rate=rate) as executor:
        handles = [executor.submit(call) for _ in range(count)]
        await asyncio.sleep(0)
        try:
            yield handles
        finally:
            for handle in handles:
                handle.cancel()


@contextlib.asynccontextmanager
async def _queued_acquire(call: Call, count: int, rate: int) -> AsyncIterator[Sequence[Cancellable]]:
    async with (
        RateLimitedExecutor("peers", rate=rate) as executor,
        waiting_in_line(executor.acquire, call, count) as tasks,
    ):
        yield tasks


PEERS = [
    Peer(name="ours, call_later", timers=_timers),
    Peer(name="ours, call_later on uvloop", package="uvloop", timers=_timers, uvloop=True),
    Peer(name="ours, schedule_many", timers=_timers_batch, paced=_paced_batch),
    Peer(name="ours, schedule_many, nominal law", paced=_paced_nominal),
    Peer(name="ours, submit", paced=_paced_submit, queued=_queued_submit),
    Peer(name="ours, acquire", queued=_queued_acquire),
]
