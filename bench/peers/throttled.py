"""throttled-py: a limiter that answers at once, with the time until a retry may succeed.

``throttled.asyncio.Throttled`` in memory is used with GCRA, its only algorithm whose answers are finer than a
burst, and with a burst of the permits of 20 ms, with which it promises what we do. For a rate, one task asks without
waiting and sleeps for ``retry_after``: its own waiting (``timeout=``) sleeps at least 0.2 s each time, and so starts at
most one burst in 0.2 s. In the overflow, tasks wait by its own ``timeout=``, as a user would write it, with a burst of
the permits of 0.2 s, the least that can keep the rate: each task asks again every 0.2 s, and is served if it comes
first.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from bench.peers.peer import Call, Cancellable, Peer, burst_of, feed, waiting_in_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

__all__ = ["PEERS"]

RETRY_SECONDS_MIN = 0.2  # its own waiting sleeps at least this long
WAIT_SECONDS_MAX = 3600.0


def _throttled(rate: int, burst: int) -> Any:
    from throttled.asyncio import MemoryStore, Throttled, per_sec  # noqa: PLC0415  # an extra, imported on use

    return Throttled(
        key="peers", using="gcra", quota=per_sec(rate, burst=burst), store=MemoryStore(), timeout=WAIT_SECONDS_MAX
    )


async def _paced(call: Call, count: int, rate: int) -> None:
    limit = _throttled(rate, burst_of(rate)).limit

    async def acquire() -> None:
        while (answer := await limit(timeout=-1)).limited:  # noqa: ASYNC110  # it has no event to wait for
            await asyncio.sleep(answer.state.retry_after)

    await feed(acquire, call, count)


@contextlib.asynccontextmanager
async def _queued(call: Call, count: int, rate: int) -> AsyncIterator[Sequence[Cancellable]]:
    limit = _throttled(rate, max(1, round(rate * RETRY_SECONDS_MIN))).limit
    async with waiting_in_line(limit, call, count) as tasks:
        yield tasks


PEERS = [Peer(name="throttled-py GCRA", package="throttled", paced=_paced, queued=_queued)]
