"""The share of a peer among hungry others, and when to ask again beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ratelimited_executor._core.fleet.memory import Queue, Turn

__all__ = ["UNIT", "Share"]

UNIT: Final = 1000  # of what a peer was served: a ticket of cost 1 at weight 1


@dataclass(slots=True)
class Share:
    """How much a peer may be served in one queue beside hungry others."""

    queue: Queue
    place: int  # of the limit by which it is judged
    hungry_count: int
    served: int
    most: float  # what it may have been served at most
    gap_us: int
    cycle_us: int  # of the slowest peer
    others: list[Turn]  # of the hungry peers
    free_us: int  # all is free before

    def again_us(self, unit: int, when_us: int, now_us: int) -> int:
        """Return when to ask again for a ticket: once the others may have caught up, or its time comes and they do not."""
        missing = max(0.3, (self.served + unit - self.most) / UNIT * self.hungry_count)
        level_us = now_us + int(min(self.hungry_count, missing) * self.gap_us) + 1
        # One who was served less is expected, or if late, no longer waited for. All others are refused like this peer.
        behind = [each for each in self.others if each.served < self.served]
        back_us = min(each.until_us if each.back_us < now_us else each.back_us for each in behind) if behind else 0
        return max(min(level_us, max(when_us, now_us + self.cycle_us, back_us)), self.free_us)
