"""Figures of a run, computed from lists of what happened; pure functions of them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ratelimited_executor import Burst, Rate
from ratelimited_executor.testing import audit, worst_window

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Law", "Start", "excess", "gaps_after", "laws_of", "least_over_most", "most_at_once", "quantile", "recovery"]


class Start(NamedTuple):
    """One start, as the resource sees it.

    Attributes:
        time: seconds.
        process: that started it.
        key: of the task; empty if it has none.
        submitted: when it was submitted.
        tokens: that it uses.
    """

    time: float
    process: int
    key: str
    submitted: float
    tokens: int = 0


class Law(NamedTuple):
    """The most that a limit allows.

    Attributes:
        name: the rate as it was set.
        permits: the most starts in any window.
        width: of the window in seconds; 0 for a bucket, which allows ``permits`` and what ``rate`` gives meanwhile.
        rate: permits a second.
    """

    name: str
    permits: int
    width: float
    rate: float


def laws_of(rates: str, policy: object = None) -> list[Law]:
    """Return the laws of the rates of an executor, or of a key, under a policy; the first follows the policy.

    >>> laws_of("100/s, 600/10s")
    [Law(name='100/s', permits=100, width=1.0, rate=100.0), Law(name='600/10s', permits=600, width=10.0, rate=60.0)]
    """
    laws = []
    for number, name in enumerate(text.strip() for text in rates.split(",") if text.strip()):
        rate = Rate.of(name)
        if not number and isinstance(policy, Burst):
            laws.append(Law(name, policy.permits, 0.0, float(rate.permits / rate.per)))
        else:
            laws.append(Law(name, math.ceil(rate.permits), float(rate.per), float(rate.permits / rate.per)))
    return laws


def excess(law: Law, times: Sequence[float], costs: Sequence[int] | None = None) -> tuple[int, int]:
    """Return the starts in the worst window and how many of them are too many; 0 or less if the law was kept.

    With costs, of each start under a limit that has windows, what they add up to counts instead.

    >>> excess(Law("2/s", 2, 1.0, 2.0), [0.0, 0.5, 0.9, 2.0])
    (3, 1)
    """
    if law.width:
        most, _ = worst_window(times, law.width, costs=costs)
        return most, most - law.permits
    found = audit(times, law.rate, burst=law.permits)
    return int(found.count), math.ceil(found.worst_excess - 1e-6) if found.total else 0


def least_over_most(counts: Mapping[int, float], weights: Mapping[int, float]) -> float:
    """Return the least share over the greatest, each divided by its weight; the weights name who takes part.

    >>> least_over_most({0: 10, 1: 40}, {0: 1.0, 1: 2.0})
    0.5
    """
    shares = [counts.get(who, 0) / weight for who, weight in weights.items()]
    return min(shares) / max(shares) if shares and max(shares) else 0.0


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value that a part of all values does not exceed; not a number if there are none.

    >>> quantile([3.0, 1.0, 2.0], 0.5), quantile([3.0, 1.0, 2.0], 0.99)
    (2.0, 3.0)
    """
    return sorted(values)[min(len(values) - 1, math.ceil(part * len(values)) - 1)] if values else math.nan


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return the most spans that have one instant in common; a span's end is not part of it.

    >>> most_at_once([(0.0, 1.0), (0.5, 2.0), (1.0, 3.0)])
    2
    """
    changes = Counter[tuple[float, int]]()
    for begin, end in spans:
        changes[begin, 1] += 1
        changes[end, -1] += 1
    most = running = 0
    for (_, sign), count in sorted(changes.items()):
        running += sign * count
        most = max(most, running)
    return most


def gaps_after(ends: Iterable[float], starts: Iterable[float]) -> list[float]:
    """Return the time from each end to the next start; the hand-offs of a pool that has one slot.

    >>> gaps_after([1.0, 2.0], [0.5, 1.25, 2.5])
    [0.25, 0.5]
    """
    ordered = sorted(starts)
    return [ordered[place] - end for end in ends if (place := bisect_left(ordered, end)) < len(ordered)]


def recovery(times: Iterable[float], since: float, rate: float, until: float, *, part: float = 0.9) -> float:
    """Return the seconds until the first second that has a part of the rate begins; infinity if none ends by ``until``.

    >>> recovery([10.0 + 0.1 * number for number in range(40)], 9.0, 10.0, 14.0)
    1.0
    """
    ordered = sorted(times)
    candidates = [since, *(time for time in ordered if time >= since)]
    for begin in candidates:
        if begin + 1 > until:
            break
        if bisect_left(ordered, begin + 1) - bisect_left(ordered, begin) >= part * rate:
            return round(begin - since, 9)
    return math.inf
