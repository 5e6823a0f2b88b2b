"""Insight: what ``statistics()`` and ``explain()`` of an executor return, observers, and the type of ``kernel``."""

from __future__ import annotations

from ratelimited_executor._kernel.choice import Kernel
from ratelimited_executor._runtime.insight.insight import Explanation, Hold, LimitStatistics, Statistics
from ratelimited_executor._runtime.insight.observers import Observation, observe

__all__ = [
    "Explanation",
    "Hold",
    "Kernel",
    "LimitStatistics",
    "Observation",
    "Statistics",
    "observe",
]
