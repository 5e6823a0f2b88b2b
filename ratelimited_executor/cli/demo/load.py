"""The deliveries of one demo: a shop on a busy morning, stretched to the requested duration and rate.

It is scaled down: 400 deliveries are overdue at the start, 100 a second follow for eight seconds, and at second 3 a
campaign adds 1,000 at once. At 200 a second that is eleven seconds of work.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Delivery", "base_load", "due_by_priority", "stretch"]

# The base load is made for this rate: at 200 a second both halves take 20 seconds together.
BASE_RATE: Final = 200
BASE_SECONDS: Final = 20.0

_SEED: Final = 20_240_229
_OVERDUE_COUNT: Final = 400
_STEADY_PER_SECOND: Final = 100
_STEADY_SECONDS: Final = 8
_BURST_COUNT: Final = 1_000
_BURST_AT_S: Final = 3.0
# event, priority (larger is more important), share of the deliveries
_EVENTS: Final = (("payment.failed", 9, 0.1), ("order.paid", 5, 0.3), ("newsletter", 1, 0.6))


@dataclass(frozen=True, slots=True)
class Delivery:
    """One webhook call.

    Attributes:
        index: its number in the load, from 0.
        due: its due time, in seconds after the beginning of a half.
        priority: larger is more important.
        event: the name of the event.
        customer: the customer of the event.
    """

    index: int
    due: float
    priority: int
    event: str
    customer: int


def base_load() -> list[Delivery]:
    """Return the load for ``BASE_RATE`` and ``BASE_SECONDS``, in order of due time; the same every time."""
    source = random.Random(_SEED)  # noqa: S311  # the same load every time is the point
    dues = [0.0] * _OVERDUE_COUNT + [_BURST_AT_S] * _BURST_COUNT
    dues += [round(source.uniform(0, _STEADY_SECONDS), 3) for _ in range(_STEADY_PER_SECOND * _STEADY_SECONDS)]
    weights = [share for _, _, share in _EVENTS]
    load = []
    for index, due in enumerate(sorted(dues)):
        event, priority, _ = source.choices(_EVENTS, weights=weights)[0]
        load.append(Delivery(index, due, priority, event, source.randrange(10_000, 100_000)))
    return load


def stretch(base: Sequence[Delivery], *, seconds: float, rate: int) -> list[Delivery]:
    """Stretch the load to another rate, another duration, or both.

    Rows are repeated or left out evenly, so the shape, the burst and the mix of priorities stay the same.

    Args:
        base: the load for ``BASE_RATE`` and ``BASE_SECONDS``.
        seconds: the total duration of both halves.
        rate: deliveries a second.
    """
    scale = seconds / BASE_SECONDS
    count = max(1, round(len(base) * scale * rate / BASE_RATE))
    rows = (base[index * len(base) // count] for index in range(count))
    return [Delivery(index, row.due * scale, row.priority, row.event, row.customer) for index, row in enumerate(rows)]


def due_by_priority(load: Sequence[Delivery], elapsed: float) -> dict[int, int]:
    """Count the deliveries that are due after ``elapsed`` seconds, the most important priority first."""
    due = load[: bisect_right(load, elapsed, key=lambda delivery: delivery.due)]
    counts = dict.fromkeys(sorted({delivery.priority for delivery in load}, reverse=True), 0)
    for delivery in due:
        counts[delivery.priority] += 1
    return counts
