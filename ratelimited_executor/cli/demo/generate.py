"""Writes ``deliveries.jsonl``, the load shipped with the demo: ``python -m ratelimited_executor.cli.demo.generate``.

A shop on a busy morning, scaled down: 400 deliveries are overdue at the start, 100 a second follow for eight
seconds, and at second 3 a campaign adds 1,000 at once. At 200 a second that is eleven seconds of work.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DATA_PATH", "lines"]

DATA_PATH: Final = Path(__file__).with_name("deliveries.jsonl")
SEED: Final = 20_240_229
OVERDUE_COUNT: Final = 400
STEADY_PER_SECOND: Final = 100
STEADY_SECONDS: Final = 8
BURST_COUNT: Final = 1_000
BURST_AT_S: Final = 3.0
# event, priority (larger is more important), share of the deliveries
EVENTS: Final = (("payment.failed", 9, 0.1), ("order.paid", 5, 0.3), ("newsletter", 1, 0.6))


def lines() -> Iterator[str]:
    """Yield the lines of the file by due time; the same every time."""
    source = random.Random(SEED)  # noqa: S311  # the same load every time is the point
    dues = [0.0] * OVERDUE_COUNT + [BURST_AT_S] * BURST_COUNT
    dues += [round(source.uniform(0, STEADY_SECONDS), 3) for _ in range(STEADY_PER_SECOND * STEADY_SECONDS)]
    for due in sorted(dues):
        event, priority, _ = source.choices(EVENTS, weights=[share for _, _, share in EVENTS])[0]
        row = {"at": due, "priority": priority, "event": event, "customer": source.randrange(10_000, 100_000)}
        yield json.dumps(row, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    DATA_PATH.write_text("".join(lines()), encoding="ascii")
