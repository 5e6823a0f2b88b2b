"""Insight: what ``statistics()`` and ``explain()`` of an executor return."""

from __future__ import annotations

from ratelimited_executor._runtime.insight import Explanation, Hold, LimitStatistics, Statistics

__all__ = [
    "Explanation",
    "Hold",
    "LimitStatistics",
    "Statistics",
]
