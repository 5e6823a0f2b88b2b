"""Insight: what ``statistics()`` and ``explain()`` of an executor return, and which kernel runs."""

from __future__ import annotations

from ratelimited_executor._kernel.choice import Kernel, kernel
from ratelimited_executor._runtime.insight import Explanation, Hold, LimitStatistics, Statistics

__all__ = [
    "Explanation",
    "Hold",
    "Kernel",
    "LimitStatistics",
    "Statistics",
    "kernel",
]
