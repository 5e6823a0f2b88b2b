"""aiolimiter: a leaky bucket that tasks wait for.

``AsyncLimiter.acquire()``, with a bucket as deep as the permits of 20 ms, which makes it promise what we do: at its default
depth, all permits of a second, it lets twice the rate into the first second; at a depth of 1 it sleeps for each permit, and
a loop whose sleeps end up to a millisecond late then keeps it below 900 starts a second, whatever the rate. Calls are fed by
one task, which costs less than a task waiting for each; the overflow is tasks that wait.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bench.peers.peer import Acquire, Call, Cancellable, Peer, burst_of, feed, waiting_in_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

__all__ = ["PEERS"]


def _acquire(rate: int) -> Acquire:
    from aiolimiter import AsyncLimiter  # noqa: PLC0415  # an extra, imported on use

    return AsyncLimiter(burst_of(rate), burst_of(rate) / rate).acquire


async def _paced(call: Call, count: int, rate: int) -> None:
    await feed(_acquire(rate), call, count)


@contextlib.asynccontextmanager
async def _queued(call: Call, count: int, rate: int) -> AsyncIterator[Sequence[Cancellable]]:
    async with waiting_in_line(_acquire(rate), call, count) as tasks:
        yield tasks


PEERS = [Peer(name="aiolimiter", package="aiolimiter", paced=_paced, queued=_queued)]
