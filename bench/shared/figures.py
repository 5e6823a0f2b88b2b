"""Figures of what was counted."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter as Tally
from typing import TYPE_CHECKING

from bench.shared.counter import LEAVE, START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.shared.counter import Row
    from bench.shared.rounds import Round

__all__ = ["extrapolated", "hand_offs", "most_in", "most_of_a_key", "overlaps", "percentile", "share"]


def most_in(times: Sequence[float], seconds: float) -> int:
    """Return the most of the sorted times in any interval of this length, its end left out.

    >>> most_in([0.0, 0.5, 1.0, 1.2], 1.0)
    3
    """
    return max((index + 1 - bisect.bisect_right(times, at - seconds) for index, at in enumerate(times)), default=0)


def most_of_a_key(starts: Sequence[Row], seconds: float) -> int:
    """Return the most starts of one key in any interval of this length."""
    by_key: dict[int, list[float]] = {}
    for row in starts:
        by_key.setdefault(row.key, []).append(row.at)
    return max((most_in(times, seconds) for times in by_key.values()), default=0)


def percentile(values: Sequence[float], part: float) -> float | None:
    """Return the value that this part of the values does not exceed; None if there are no values.

    >>> percentile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None


def share(measured: Round) -> float | None:
    """Return the starts of the process that got the fewest, divided by those of the one that got the most."""
    tally = Tally(row.process for row in measured.starts if row.kind == START)
    if not tally:
        return None
    return min(tally[number] for number in range(measured.processes)) / max(tally.values())


def hand_offs(rows: Sequence[Row]) -> list[float]:
    """Return the milliseconds from each end of a hold to the next begin of one, where another process holds it then.

    A process that takes what it has just given back hands nothing over.
    """
    return [
        1000 * (row.at - previous.at)
        for previous, row in itertools.pairwise(rows)
        if (previous.kind, row.kind) == (LEAVE, START) and previous.process != row.process
    ]


def overlaps(rows: Sequence[Row], slots: int) -> int:
    """Return how many holds began while as many as allowed were held; what was held at the begin is not known."""
    held = over = 0
    for row in rows:
        if row.kind == LEAVE:
            held = max(0, held - 1)
        elif row.kind == START:
            over += held >= slots
            held += 1
    return over


def extrapolated(values: dict[int, float], at: int) -> float:
    """Return the value of the least-squares line through the points at another place; never less than 0.

    >>> extrapolated({2: 4.0, 10: 20.0, 40: 80.0}, 1000)
    2000.0
    """
    count = len(values)
    mean_x, mean_y = sum(values) / count, sum(values.values()) / count
    spread = sum((x - mean_x) ** 2 for x in values)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in values.items()) / spread if spread else 0.0
    return max(0.0, mean_y + slope * (at - mean_x))
