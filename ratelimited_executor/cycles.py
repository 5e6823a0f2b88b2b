"""Cycles: the handle of ``every``, and the stores that keep its progress."""

from __future__ import annotations

from ratelimited_executor._runtime.repeat.cycle import CycleHandle, CycleStatistics
from ratelimited_executor.stores.progress.memory import MemoryProgress
from ratelimited_executor.stores.progress.redis import RedisProgress
from ratelimited_executor.stores.progress.sqlite import SQLiteProgress

__all__ = [
    "CycleHandle",
    "CycleStatistics",
    "MemoryProgress",
    "RedisProgress",
    "SQLiteProgress",
]
