"""The records of a run: counts of lines by final state, lateness, start times, the first errors.

Every line taken ends in exactly one count: one of the final states, or withdrawn (given back unstarted).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from ratelimited_executor._core.histogram import DurationHistogram

__all__ = ["Ledger"]

# The number of errors and late lines kept for display; the results file has all of them.
SHOWN_MAX: Final = 5
# The order in which states are shown.
FINAL_STATES: Final = ("done", "failed", "expired", "cancelled", "dropped")


@dataclass(slots=True)
class Ledger:
    """Counts of one run.

    Attributes:
        states: lines by final state.
        keyed: lines that had a key.
        lateness: the lateness of every started line, in seconds.
        starts: epoch seconds of every start, rising; 8 bytes each, 80 MB for 10 million lines, so that the summary
            can examine every window.
        costs: permits taken by each start; empty while each has taken one.
        errors: the first failures as (line number, error).
        late_count: lines that were read too late to be started in order.
        late_lines: the numbers of the first late lines.
    """

    taken: int = 0
    blank: int = 0
    withdrawn: int = 0
    keyed: int = 0
    states: Counter[str] = field(default_factory=Counter)
    lateness: DurationHistogram = field(default_factory=DurationHistogram)
    starts: array[float] = field(default_factory=lambda: array("d"))
    costs: array[int] = field(default_factory=lambda: array("Q"))
    errors: list[tuple[int, str]] = field(default_factory=list)
    late_count: int = 0
    late_lines: list[int] = field(default_factory=list)

    @property
    def finished(self) -> int:
        """The number of lines in a final state."""
        return self.states.total()

    @property
    def in_flight(self) -> int:
        """The number of waiting and running lines."""
        return self.taken - self.finished - self.withdrawn

    def start(self, at: float, cost: int = 1) -> None:
        """Record a start; one that is reported late (from a thread) is inserted by its time."""
        if cost != 1 and not self.costs:
            self.costs.extend([1] * len(self.starts))
        place = len(self.starts) if not self.starts or at >= self.starts[-1] else bisect_right(self.starts, at)
        self.starts.insert(place, at)
        if self.costs or cost != 1:
            self.costs.insert(place, cost)

    def fail(self, number: int, error: str) -> None:
        """Record a failure if it is among the first, for display."""
        if len(self.errors) < SHOWN_MAX:
            self.errors.append((number, error))

    def late(self, number: int) -> None:
        """Count a line that was read too late."""
        self.late_count += 1
        if len(self.late_lines) < SHOWN_MAX:
            self.late_lines.append(number)

    def rate(self, *, now: float, over: float) -> float:
        """Return starts a second in the last ``over`` seconds before ``now`` (epoch), or since the first start."""
        if not self.starts:
            return 0.0
        since = max(now - over, self.starts[0])
        return (len(self.starts) - bisect_left(self.starts, since)) / max(now - since, 0.1)
