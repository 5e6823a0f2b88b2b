"""How evenly requests arrived, from the times at which a server read them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Evenness", "evenness_of", "frozen_p99", "held_rate", "most_in"]

_WINDOW_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Evenness:
    """Figures on the arrivals of one load.

    Attributes:
        even_share: the share of gaps between half and one and a half times the even gap.
        variation: the standard deviation of the gaps divided by their mean: 0 if even, 1 if at random.
        crowding: the most requests in any 10 ms, divided by those of an even load.
    """

    even_share: float
    variation: float
    crowding: float


def evenness_of(times: Sequence[float], rate: float) -> Evenness:
    """Return the figures for ascending times, of which there are at least three, at the rate that was asked for."""
    gaps = [after - before for before, after in pairwise(times)]
    return Evenness(
        even_share=sum(0.5 <= gap * rate <= 1.5 for gap in gaps) / len(gaps),
        variation=statistics.pstdev(gaps) / statistics.fmean(gaps),
        crowding=most_in(times, _WINDOW_SECONDS) / max(1.0, rate * _WINDOW_SECONDS),
    )


def held_rate(times: Sequence[float], seconds: float) -> float:
    """Return the requests a second in so many seconds from the first of ascending times on; what came later is late.

    >>> held_rate([0.0, 1.0, 2.0, 3.0, 9.0], 4.0)
    1.0
    """
    return sum(time < times[0] + seconds for time in times) / seconds


def most_in(times: Sequence[float], window: float) -> int:
    """Return the most of ascending times that lie in any window of so many seconds.

    >>> most_in([0.0, 0.5, 0.9, 1.4, 3.0], 1.0)
    3
    """
    most = first = 0
    for last, time in enumerate(times):
        while times[first] <= time - window:
            first += 1
        most = max(most, last - first + 1)
    return most


def frozen_p99(seconds: float, freeze_seconds: float) -> float:
    """Return what 99 of 100 requests of an even load wait at most, if the server stands still once and is quick otherwise.

    Requests are due at any moment of the freeze alike, so that the longest waits are evenly spread below its length; one
    hundredth of all requests are due in a hundredth of the load's time, and wait longer than this.

    >>> frozen_p99(10, 2)
    1.9
    """
    return max(0.0, freeze_seconds - seconds / 100)
