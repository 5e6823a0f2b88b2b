"""Policies: how fast tasks start, and what a rate means for starts that are close together."""

from __future__ import annotations

from ratelimited_executor._core.fleet.policies import Strictness
from ratelimited_executor._core.permits.adaptive import Adaptive
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._runtime.limits.policy import Burst, Paced, Window
from ratelimited_executor._runtime.limits.quota import Quota

__all__ = [
    "Adaptive",
    "Burst",
    "Paced",
    "Pacing",
    "Quota",
    "Rate",
    "Strictness",
    "Window",
]
