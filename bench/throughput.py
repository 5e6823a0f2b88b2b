"""Schedule and start n trivial calls with random delays: ours beside the event loop's own ``call_later``.

Both run in one process, on one loop, in turns (A B A B), and are measured in CPU time of the process, so that waiting for
due times does not count. A round schedules n calls in one go and lasts until the last of them has run.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratelimited_executor import RateLimitedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Measured", "Result", "compare"]

SEED = 1
_VARIABLES = [contextvars.ContextVar[str](f"variable_{index}") for index in range(3)]


@dataclass(frozen=True, slots=True)
class Measured:
    """One round of one side.

    Attributes:
        schedule: CPU seconds to schedule all calls.
        start: CPU seconds from then until the last has run.
        run_count: how many calls ran.
        early_count: how many of them ran before their due time.
    """

    schedule: float
    start: float
    run_count: int
    early_count: int

    @property
    def total(self) -> float:
        """CPU seconds of the round."""
        return self.schedule + self.start


@dataclass(frozen=True, slots=True)
class Result:
    """All rounds of one case, in pairs.

    Attributes:
        name: of the case.
        count: calls in a round.
        theirs: the rounds of the event loop.
        ours: the rounds of the executor.
    """

    name: str
    count: int
    theirs: Sequence[Measured]
    ours: Sequence[Measured]

    @property
    def ratios(self) -> list[float]:
        """How many times the CPU time of ours theirs was, pair by pair."""
        return [theirs.total / ours.total for theirs, ours in zip(self.theirs, self.ours, strict=True)]

    def row(self) -> list[str]:
        """Return the figures as text: medians, with the least and greatest ratio."""
        ratios = self.ratios
        return [
            self.name,
            *(f"{statistics.median(side) * 1e6 / self.count:.2f}" for side in (
                [m.schedule for m in self.theirs],
                [m.start for m in self.theirs],
                [m.schedule for m in self.ours],
                [m.start for m in self.ours],
            )),
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        ]  # fmt: skip


async def measure(call_later: Callable[..., Any], delays: Sequence[float]) -> Measured:
    """Run one round."""
    loop_time = asyncio.get_running_loop().time
    left = len(delays)
    done = asyncio.get_running_loop().create_future()

    def call() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set_result(None)

    gc.collect()
    begin = loop_time()
    before = time.process_time()
    for delay in delays:
        call_later(delay, call)
    scheduled = time.process_time()
    await done
    after = time.process_time()
    early = int(loop_time() - begin < max(delays))
    return Measured(scheduled - before, after - scheduled, len(delays) - left, early)


async def compare(name: str, *, count: int, spread: float, rounds: int, variable_count: int = 0) -> Result:
    """Measure one case in turns, after one round of each that is not counted.

    Args:
        name: of the case.
        count: calls in a round.
        spread: the delays are random, from 0 to so many seconds.
        rounds: of each side.
        variable_count: how many context variables are set where the calls are scheduled.
    """
    for variable in _VARIABLES[:variable_count]:
        variable.set("value")
    chosen = random.Random(SEED)
    delays = [chosen.random() * spread for _ in range(count)]
    loop = asyncio.get_running_loop()
    theirs: list[Measured] = []
    ours: list[Measured] = []
    for turn in range(rounds + 1):
        their_round = await measure(loop.call_later, delays)
        async with RateLimitedExecutor("bench") as executor:
            our_round = await measure(executor.call_later, delays)
        if turn:
            theirs.append(their_round)
            ours.append(our_round)
    return Result(name, count, theirs, ours)
