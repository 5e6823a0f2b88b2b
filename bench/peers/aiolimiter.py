"""aiolimiter: a leaky bucket that tasks wait for.

``AsyncLimiter.acquire()`` is used with a bucket as deep as the permits of 20 ms, with which it promises what we do. At
its default depth, all permits of a second, it permits twice the rate in the first second. At a depth of 1 it sleeps for
each permit, and an event loop whose sleeps end up to a millisecond late then keeps it below 900 starts a second,
whatever the rate. One task feeds all calls, which costs less than a task that waits for each; in the overflow, tasks
wait.
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
