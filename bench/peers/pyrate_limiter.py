"""PyrateLimiter 4: a limiter with a choice of algorithms.

``try_acquire_async`` is used on a ``StateBucket`` in memory, whose algorithm is GCRA, the only one that spreads starts:
the sliding window, its default, keeps the rate exactly but starts a second's permits at once. The burst is the permits
of 20 ms, with which it promises what we do; its clock counts whole milliseconds, so that a burst of 1 would limit it to
1,000 a second. ``buffer_ms=0`` removes the 50 ms that it adds to each wait. One task feeds all calls; in the overflow
tasks wait, for one asyncio lock.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bench.peers.peer import Acquire, Call, Cancellable, Peer, burst_of, feed, waiting_in_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

__all__ = ["PEERS"]


@contextlib.contextmanager
def _acquire(rate: int) -> Iterator[Acquire]:
    from pyrate_limiter import GCRA, Duration, Limiter, Rate, StateBucket  # noqa: PLC0415  # an extra, imported on use

    bucket = StateBucket([Rate(rate, Duration.SECOND, burst=burst_of(rate))], algorithm=GCRA())
    with Limiter(bucket, buffer_ms=0) as limiter:
        yield limiter.try_acquire_async


async def _paced(call: Call, count: int, rate: int) -> None:
    with _acquire(rate) as acquire:
        await feed(acquire, call, count)


@contextlib.asynccontextmanager
async def _queued(call: Call, count: int, rate: int) -> AsyncIterator[Sequence[Cancellable]]:
    with _acquire(rate) as acquire:
        async with waiting_in_line(acquire, call, count) as tasks:
            yield tasks


PEERS = [Peer(name="PyrateLimiter GCRA", package="pyrate_limiter", paced=_paced, queued=_queued)]
