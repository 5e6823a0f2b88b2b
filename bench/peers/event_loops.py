"""The ``call_later`` of asyncio and uvloop: timers without a rate.

Calls are scheduled one by one, which is the only way that either loop has, and the fastest timer of asyncio. uvloop's
runs on a uvloop of its own; both keep a heap of all timers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bench.countdown import Countdown, schedule_one_by_one
from bench.peers.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PEERS"]


async def _timers(countdown: Countdown, delays: Sequence[float]) -> None:
    schedule_one_by_one(asyncio.get_running_loop().call_later, countdown, delays)
    await countdown.done


PEERS = [
    Peer(name="loop.call_later", timers=_timers),
    Peer(name="uvloop call_later", package="uvloop", timers=_timers, uvloop=True),
]
