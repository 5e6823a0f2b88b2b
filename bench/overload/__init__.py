"""More work than the rate permits: what limiters promise and keep, and what keys cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.overload import decision, keys, scenarios

if TYPE_CHECKING:
    from bench.harness import Options, Table

__all__ = ["DESCRIPTION", "NAME", "run"]

NAME = "overload"
DESCRIPTION = "windows, heavy tasks, tenants and keys beside other limiters; what a decision among keys costs"


def run(options: Options) -> list[Table]:
    """Measure the scenarios, and then the time and memory that keys cost."""
    return [*scenarios.measure(options), decision.measure(options), keys.measure(options)]
