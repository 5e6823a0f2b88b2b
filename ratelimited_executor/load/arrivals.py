"""The due times of the requests of an open load, computed before anything is sent.

An open load does not wait for answers: the due times depend only on the rate. Let Lambda(t) be the number of requests
that the rate allows from 0 to t. Request k of a regular load is due where Lambda(t) = k, and request k of a Poisson
load where Lambda(t) is the sum of k exponential gaps of mean 1. One inverse of Lambda serves constant rates, steps and
ramps, and no error is carried from one request to the next.

Several classes of requests are several such loads, merged by due time. Regular classes begin at different fractions of
their first gap; otherwise classes with rates in an integer ratio would coincide at each request of the slower one.

Participants that share a load each compute the whole of it and send every n-th request of each class. So an evenly
spaced load stays evenly spaced, and every request is sent exactly once.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["PHASES_MAX", "Arrival", "Phase", "Schedule", "arrivals", "rate_text", "staircase"]

# Each phase has a row in the table and its own durations.
PHASES_MAX: Final = 1_000
# Rounding of Lambda at the end of a phase: without it a phase of 100/s for 10 s could have 1,001 requests.
_ROUNDING: Final = 1e-9
# Class i begins at i times this fraction of its first gap, modulo 1: such multiples stay well apart.
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the load with a rate that is constant or changes linearly.

    Attributes:
        first: requests a second at its beginning, >= 0.
        last: requests a second at its end, >= 0; ``first`` and ``last`` are not both 0.
        seconds: its length, > 0.
        is_measured: False for a warm-up, which is sent and not recorded.
    """

    first: float
    last: float
    seconds: float
    is_measured: bool = True

    @property
    def expected(self) -> float:
        """The number of requests that the rate allows in the phase."""
        return (self.first + self.last) / 2 * self.seconds

    def rate_at(self, seconds: float) -> float:
        """Return the rate at a number of seconds after the beginning of the phase."""
        return self.first + (self.last - self.first) * seconds / self.seconds


class Arrival(NamedTuple):
    """One request of the load.

    Attributes:
        number: 0, 1, 2, ... over all phases and classes.
        due: seconds after the beginning of the load.
        phase: the index of its phase.
        class_index: the index of its class.
        turn: its number within its class: 0, 1, 2, ...
    """

    number: int
    due: float
    phase: int
    class_index: int = 0
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The requests that one participant of a load has to send.

    Attributes:
        classes: the phases of each class by its name, warm-up first; phase i has the same length in all classes. A load
            without classes has one class with an empty name.
        draws: a function from the name of a class to its source of random numbers, as ``arrivals`` takes it; None for
            regular arrivals.
        rank: the rank of this participant, from 0 on.
        participants: the number of participants that share the load.
    """

    classes: Mapping[str, Sequence[Phase]]
    draws: Callable[[str], Callable[[], float]] | None = None
    rank: int = 0
    participants: int = 1

    @property
    def names(self) -> list[str]:
        """The names of the classes; empty if the load has none."""
        return [name for name in self.classes if name]

    @property
    def phases(self) -> list[Phase]:
        """The phases of all classes together: their rates are added."""
        return [
            replace(together[0], first=sum(each.first for each in together), last=sum(each.last for each in together))
            for together in zip(*self.classes.values(), strict=True)
        ]

    @property
    def warm_up(self) -> float:
        """The length of the warm-up, which is not measured, in seconds."""
        return sum(phase.seconds for phase in self.phases if not phase.is_measured)

    @property
    def seconds(self) -> float:
        """The length of the measured part in seconds."""
        return sum(phase.seconds for phase in self.phases if phase.is_measured)

    @property
    def expected(self) -> float:
        """The number of measured requests that the rate allows this participant."""
        return sum(phase.expected for phase in self.phases if phase.is_measured) / self.participants

    def expected_until(self, seconds: float) -> float:
        """Return how many requests the rate allows this participant in so many seconds, from the warm-up on."""
        left, count = max(0.0, seconds), 0.0
        for phase in self.phases:
            within = min(left, phase.seconds)
            count += (phase.first + phase.rate_at(within)) / 2 * within
            left -= within
        return count / self.participants

    def part_due(self, seconds: float) -> float:
        """Return the fraction of the measured requests due in so many seconds after the warm-up, 0 to 1."""
        if seconds >= self.seconds * (1 - _ROUNDING):
            return 1.0
        warm_up = self.warm_up
        due = self.expected_until(warm_up + max(0.0, seconds)) - self.expected_until(warm_up)
        return min(1.0, due / self.expected)

    def arrivals(self) -> Iterator[Arrival]:
        """Yield the requests in order of due time; their numbers are those in the whole load."""
        each = [self._arrivals_of(index, name) for index, name in enumerate(self.classes)]
        if len(each) == self.participants == 1:  # the numbers in the class are those in the load
            yield from each[0]
            return
        merged = each[0] if len(each) == 1 else heapq.merge(*each, key=lambda arrival: arrival.due)
        for number, (_, due, phase, class_index, turn) in enumerate(merged):
            if (turn + class_index) % self.participants == self.rank:
                yield Arrival(number, due, phase, class_index, turn)

    def _arrivals_of(self, index: int, name: str) -> Iterator[Arrival]:
        draw = None if self.draws is None else self.draws(name)
        return arrivals(self.classes[name], draw, index=index, offset=index * _GOLDEN % 1)


def staircase(first: float, last: float, *, step: float, seconds: float) -> list[Phase]:
    """Return phases of constant rates from ``first`` to ``last``, inclusive, up or down.

    Raises:
        ValueError: if ``step`` is not > 0, or there would be too many phases.

    >>> [phase.first for phase in staircase(100, 220, step=50, seconds=10)]
    [100, 150, 200, 220]
    """
    if not step > 0:
        raise ValueError(f"step must be > 0, got {step!r}")
    whole = math.floor(abs(last - first) / step + _ROUNDING)
    if whole + 2 > PHASES_MAX:
        raise ValueError(f"step: {whole + 1:,} phases are too many, at most {PHASES_MAX:,}: give a larger step")
    sign = 1 if last >= first else -1
    rates = [first + sign * step * index for index in range(whole + 1)]
    if abs(last - rates[-1]) > step * _ROUNDING:
        rates.append(last)
    return [Phase(first=rate, last=rate, seconds=seconds) for rate in rates]


def rate_text(first: float, last: float) -> str:
    """Format a rate, or a range of rates.

    >>> rate_text(1000, 1000), rate_text(0.5, 20)
    ('1,000/s', '0.5/s to 20/s')
    """
    return f"{first:,g}/s" if first == last else f"{first:,g}/s to {last:,g}/s"


def arrivals(
    phases: Sequence[Phase], draw: Callable[[], float] | None = None, *, index: int = 0, offset: float = 0.0
) -> Iterator[Arrival]:
    """Yield every request of one class in order of due time. Takes about a microsecond for each.

    Args:
        phases: consecutive phases, without gaps.
        draw: returns random numbers >= 0 and < 1, for Poisson arrivals; None for regular arrivals.
        index: the index of the class.
        offset: the fraction of a gap before the first regular arrival, >= 0 and < 1.

    >>> [arrival.due for arrival in arrivals([Phase(first=4, last=4, seconds=1)])]
    [0.0, 0.25, 0.5, 0.75]
    """
    position = offset if draw is None else -math.log1p(-draw())
    begin, before, number = 0.0, 0.0, 0  # seconds and requests before the phase
    for phase_index, phase in enumerate(phases):
        expected, rate, is_constant = phase.expected, phase.first, phase.first == phase.last
        end = before + expected - _ROUNDING
        while position < end:
            requests = max(0.0, position - before)
            seconds = min(phase.seconds, requests / rate) if is_constant else _time_of(phase, requests)
            yield Arrival(number, begin + seconds, phase_index, index, number)
            number += 1
            position = number + offset if draw is None else position - math.log1p(-draw())
        before += expected
        begin += phase.seconds


def _time_of(phase: Phase, requests: float) -> float:
    """Return the number of seconds into a ramp at which its rate has allowed a number of requests."""
    if requests == 0:
        return 0.0
    slope = (phase.last - phase.first) / phase.seconds
    # The root of first*t + slope*t*t/2 = requests, in the form that does not divide by a small difference.
    root = math.sqrt(max(0.0, phase.first**2 + 2 * slope * requests))
    return min(phase.seconds, 2 * requests / (phase.first + root))
