"""Cycles: the handle of ``every``, and the stores that keep its progress."""

from __future__ import annotations

from ratelimited_executor._runtime.cycle import CycleHandle, CycleStatistics
from ratelimited_executor.stores.memory import MemoryProgress
from ratelimited_executor.stores.redis import RedisProgress
from ratelimited_executor.stores.sqlite import SQLiteProgress

__all__ = [
    "CycleHandle",
    "CycleStatistics",
    "MemoryProgress",
    "RedisProgress",
    "SQLiteProgress",
]
