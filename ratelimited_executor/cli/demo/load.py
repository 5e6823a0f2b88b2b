"""The deliveries of one demo: the shipped file, stretched to the requested duration and rate."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ratelimited_executor.cli.demo.generate import DATA_PATH

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Delivery", "due_by_priority", "load_deliveries", "stretch"]

# The shipped file is made for this rate: at 200 a second both halves take 20 seconds together.
BASE_RATE: Final = 200
BASE_SECONDS: Final = 20.0


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


def load_deliveries() -> list[Delivery]:
    """Read the shipped file, in order of due time."""
    with DATA_PATH.open(encoding="ascii") as file:
        rows = [json.loads(line) for line in file]
    return [
        Delivery(index, float(row["at"]), int(row["priority"]), str(row["event"]), int(row["customer"]))
        for index, row in enumerate(rows)
    ]


def stretch(base: Sequence[Delivery], *, seconds: float, rate: int) -> list[Delivery]:
    """Stretch the load to another rate, another duration, or both.

    Rows are repeated or left out evenly, so the shape, the burst and the mix of priorities stay the same.

    Args:
        base: the shipped load, for ``BASE_RATE`` and ``BASE_SECONDS``.
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
