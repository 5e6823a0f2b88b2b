"""Figures and verdict from the starts of a half and the server's arrivals; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ratelimited_executor import Rate
from ratelimited_executor.testing import audit, worst_window

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ratelimited_executor.cli.demo.load import Delivery

__all__ = ["DemoVerdict", "Half", "judge", "mean_delays", "per_bin"]

# The executor's slack, by which a start may use its permit late (20 ms), plus the way through two busy processes and a
# socket, which varies by some 30 ms on two shared cores. The server sees arrivals, not starts.
ARRIVAL_SLACK_S: Final = 0.05
# "In any second": a second's end belongs to the next one. Starts are in epoch seconds, whose floats are exact to a
# quarter of a microsecond.
SECOND_S: Final = 1.0 - 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One half of the demo, with the times of the sender and of the server.

    Attributes:
        name: the name of the sender.
        starts: the start times of deliveries, in seconds of the sender's clock, in any order.
        arrivals: (seconds after the beginning, index of the delivery), rising; recorded by the server.
        failed: the number of deliveries that were refused or broken off.
    """

    name: str
    starts: Sequence[float] = ()
    arrivals: Sequence[tuple[float, int]]
    failed: int = 0

    @property
    def times(self) -> list[float]:
        """The arrival times."""
        return [at for at, _ in self.arrivals]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoVerdict:
    """The verdict on a half; :attr:`is_held` is True if it kept the rate.

    Attributes:
        most_started: the most starts in any second, wherever the second begins.
        most_arrived: the most arrivals in any second, wherever the second begins.
        is_held: True if no second had more starts than the rate, and the arrivals agree: no window of any width has
            more of them than the rate and the way to the server explain.
        missing: the number of deliveries that did not arrive exactly once.
    """

    most_started: int
    most_arrived: int
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


def judge(half: Half, *, rate: int, count: int) -> DemoVerdict:
    """Judge a half: its starts by the rate, its arrivals with an allowance for the way to the server."""
    times = half.times
    most_started = worst_window(half.starts, SECOND_S)[0]
    if not times:
        return DemoVerdict(most_started=most_started, most_arrived=0, is_held=False, missing=count)
    report = audit(times, Rate(rate), slack=ARRIVAL_SLACK_S)
    seen = {index for _, index in half.arrivals}
    missing = count - len(seen) + len(times) - len(seen)
    return DemoVerdict(
        most_started=most_started,
        most_arrived=worst_window(times, SECOND_S)[0],
        is_held=0 < most_started <= rate and report.ok,
        missing=missing,
    )
