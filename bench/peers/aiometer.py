"""aiometer: runs a list of coroutine functions at so many a second.

``run_all(max_per_second=)``, for which it is made, has no burst to set. It starts one call after each sleep of its own,
so that a sleep that the loop ends a millisecond late is never made up for. One ``run_all`` is awaited as a whole, and
single calls of it cannot be cancelled. It is given the whole list of calls that wait, which costs a pointer for each.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from bench.peers.peer import Call, Cancellable, Peer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

__all__ = ["PEERS"]


async def _paced(call: Call, count: int, rate: int) -> None:
    import aiometer  # noqa: PLC0415  # an extra, imported on use

    await aiometer.run_all([call] * count, max_per_second=rate)


@contextlib.asynccontextmanager
async def _queued(call: Call, count: int, rate: int) -> AsyncIterator[Sequence[Cancellable]]:
    task = asyncio.create_task(_paced(call, count, rate))
    await asyncio.sleep(0)
    try:
        yield []
    finally:
        task.cancel()
        await asyncio.wait([task])


PEERS = [Peer(name="aiometer run_all", package="aiometer", paced=_paced, queued=_queued)]
