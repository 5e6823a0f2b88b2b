"""Random programs for an executor: what they are made of, and how one is drawn from a seed.

A program is a list of timed calls. All its times are whole microseconds, counted from the program's beginning; an
operation is ``(at, what, name, arguments)``. It prints as Python that can be pasted into ``replay``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields
from typing import Any

MS = 1_000
SECOND = 1_000_000
EIGHTH = 125_000  # of a second: a float holds it exactly, also of seconds since the epoch

# Operations happen at whole milliseconds and these few microseconds, where no interval begins and no permit comes up:
# what an operation and a start at the same instant mean for each other is not what these programs ask.
OFFSET = 37

Op = tuple[int, str, str, dict[str, Any]]


@dataclass(frozen=True)
class Program:
    """An executor's settings, and what is asked of it."""

    ops: list[Op]
    until: int = 20 * SECOND
    begin: int = 0  # microseconds of the loop's time, and of a whole day, at which the executor starts
    interval: int = SECOND
    rate: str = "inf/s"
    pacing: str = "SPREAD"
    order: str = "default"
    early: bool = False
    peers: tuple[int, int] = (1, 0)  # how many, and which of them: StaticPeers(n, rank)
    strictness: str | None = None  # the executor's own default if None
    key_rate: str | None = None
    key_concurrency: int | None = None

    def __repr__(self) -> str:
        """Return Python that makes the program, without what is as it is by default."""
        lines = ["Program("]
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "ops" and value != item.default:
                lines.append(f"    {item.name}={value!r},")
        lines.append("    ops=[")
        lines += [f"        {op!r}," for op in self.ops]
        return "\n".join([*lines, "    ],", ")"])


RATES = ["inf/s", "1/s", "2/s", "3/s", "10/s", "10/s", "40/s", "100/s", "7/3s", "1/2s", "50/60s", "1000/s"]
INTERVALS = [100 * MS, 500 * MS, SECOND, SECOND, SECOND, 3 * SECOND, 60 * SECOND]


class Draw:
    """Draws one program."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.interval = self.rng.choice(INTERVALS)
        self.begin = self.rng.choice([0, self.rng.randint(0, 800) * EIGHTH])
        self.span = self.rng.choice([MS, SECOND, 2 * SECOND, 2 * self.interval, 5 * self.interval])

    def program(self) -> Program:
        """Draw settings and operations."""
        rng = self.rng
        ops = [op for number in range(rng.randint(3, 30)) for op in self.op(f"t{number}")]
        return Program(
            ops=sorted(ops, key=lambda op: op[0]),
            until=self.span + 4 * self.interval + 5 * SECOND + 2 * OFFSET,
            begin=self.begin,
            interval=self.interval,
            rate=rng.choice(RATES),
            pacing=rng.choice(["SPREAD", "ON_TIME"]),
        )

    def instant(self) -> int:
        """Draw when an operation is; several at one instant are frequent."""
        return self.rng.choice([0, self.rng.randint(0, self.span // MS), self.rng.randint(0, 5) * (self.span // MS // 5)]) * MS + OFFSET

    def due(self, at: int) -> int:
        """Draw a due time after this: any whole millisecond, or often one that others have, or where an interval begins."""
        rng, interval = self.rng, self.interval
        later = at - OFFSET + rng.randint(1, max(2, 3 * interval // MS)) * MS
        boundary = ((self.begin + at) // interval + rng.randint(1, 3)) * interval - self.begin
        return rng.choice([later, later, boundary, boundary + interval // 4, boundary + interval // 2])

    def op(self, name: str) -> list[Op]:
        """Draw an operation."""
        at = self.instant()
        return [(at, "schedule", name, {"delay": self.due(at) - at})]


def draw(seed: int) -> Program:
    """Draw the program of a seed."""
    return Draw(seed).program()
