"""asyncio's and uvloop's own ``call_later``: timers without a rate.

``call_later`` of the running loop, call by call: it is the only way that either has, and the fastest timer that a user of
asyncio finds. uvloop's runs on a uvloop of its own; both keep a heap of all that waits.
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
