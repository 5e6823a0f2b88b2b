"""The choices that an executor is made with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ratelimited_executor._runtime.arguments import delay_of

__all__ = ["Paced", "WhenFull"]


@dataclass(frozen=True, slots=True)
class Paced:
    """Start tasks on a grid of permits: one permit every ``1 / rate`` seconds.

    In any window [a, b], at most ``rate x (b - a + slack) + 1`` tasks start.

    Args:
        slack: seconds for which a permit may still be used, >= 0: what a late timer catches up with. A quarter of it,
            5 ms at most, is kept for the way from the decision to the first line of the task.
    """

    slack: float = 0.02

    def __post_init__(self) -> None:
        delay_of("slack", self.slack)


class WhenFull(Enum):
    """What becomes of a task when ``max_pending`` tasks wait already."""

    RAISE = "raise"
    """The call raises ``BacklogFullError``, and nothing changes."""
