"""Preview what a policy does, before it is deployed: how long jobs take."""

from __future__ import annotations

from ratelimited_executor.simulation.distributions import (
    Constant,
    Distribution,
    Exponential,
    LogNormal,
    Percentiles,
    Sample,
)

__all__ = ["Constant", "Distribution", "Exponential", "LogNormal", "Percentiles", "Sample"]
