"""What the server's arrivals amount to; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ratelimited_executor import Rate
from ratelimited_executor.testing import audit, worst_window

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ratelimited_executor.cli.demo.load import Delivery

__all__ = ["Half", "Verdict", "judge", "mean_delays", "per_bin"]

# How late a start may use its permit (the executor's slack, 20 ms), plus the way through two busy processes and a
# socket, which varies by some 30 ms on two shared cores. The server sees arrivals, not starts.
ARRIVAL_SLACK_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One half of the demo as the server saw it.

    Attributes:
        name: who sent.
        arrivals: seconds after the beginning and index of the delivery, rising.
        failed: deliveries that were refused or broken off.
    """

    name: str
    arrivals: Sequence[tuple[float, int]]
    failed: int = 0

    @property
    def times(self) -> list[float]:
        """The arrival times alone."""
        return [at for at, _ in self.arrivals]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a half held the rate.

    Attributes:
        busiest_second: most arrivals in any second, wherever it begins.
        excess: by how many arrivals the worst window of any width broke the law; 0 or less is within it.
        is_held: whether it did not.
        missing: deliveries that did not arrive exactly once.
    """

    busiest_second: int
    excess: float
    is_held: bool
    missing: int


def per_bin(times: Iterable[float], *, width: float, end: float) -> list[int]:
    """Count times in bins of ``width`` seconds from 0 to ``end``.

    >>> per_bin([0.0, 0.05, 0.25], width=0.1, end=0.3)
    [2, 0, 1]
    """
    counts = [0] * max(1, round(end / width))
    for time in times:
        counts[min(int(time / width), len(counts) - 1)] += 1
    return counts


def mean_delays(half: Half, load: Sequence[Delivery]) -> dict[int, float]:
    """Return the mean seconds from due time to arrival for each priority, the most important first."""
    delays: dict[int, list[float]] = {}
    for at, index in half.arrivals:
        delays.setdefault(load[index].priority, []).append(at - load[index].due)
    return {priority: sum(delays[priority]) / len(delays[priority]) for priority in sorted(delays, reverse=True)}


def judge(half: Half, *, rate: int, count: int) -> Verdict:
    """Judge a half by the law of the executor, allowing for the way to the server."""
    times = half.times
    if not times:
        return Verdict(busiest_second=0, excess=0.0, is_held=False, missing=count)
    report = audit(times, Rate(rate), slack=ARRIVAL_SLACK_S)
    seen = {index for _, index in half.arrivals}
    missing = count - len(seen) + len(times) - len(seen)
    return Verdict(
        busiest_second=worst_window(times, 1.0)[0],
        excess=float(report.worst_excess),
        is_held=report.ok,
        missing=missing,
    )
