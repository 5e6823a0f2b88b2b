"""A scheduled executor, permits and slots for threads that have no event loop."""

from __future__ import annotations

from ratelimited_executor._runtime.threads.blocking import (
    BlockingHold,
    BlockingLimiter,
    BlockingManager,
    BlockingPermit,
    BlockingSlots,
)
from ratelimited_executor._runtime.threads.scheduled import ScheduledExecutor, ScheduledFuture

__all__ = [
    "BlockingHold",
    "BlockingLimiter",
    "BlockingManager",
    "BlockingPermit",
    "BlockingSlots",
    "ScheduledExecutor",
    "ScheduledFuture",
]
