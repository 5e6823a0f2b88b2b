"""Schedule and start n trivial calls with random delays: ours beside the event loop's own ``call_later``.

Both run in one process, on one loop, in turns (A B, B A), and are measured in CPU time of the process, so that waiting
for due times does not count. A round schedules n calls in one go and lasts until the last of them has run.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.harness import Figure, Table, Target, ratio
from ratelimited_executor import RateLimitedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.harness import Options

NAME = "throughput"
DESCRIPTION = "CPU time to schedule and start a million calls, beside loop.call_later"
SEED = 1
_VARIABLES = [contextvars.ContextVar[str](f"variable_{index}") for index in range(3)]


@dataclass(frozen=True, slots=True)
class Measured:
    """One round of one side.

    Attributes:
        schedule: CPU seconds to schedule all calls.
        start: CPU seconds from then until the last has run.
        lost: how many calls did not run.
        early: 1 if the last call ran before its due time.
    """

    schedule: float
    start: float
    lost: int
    early: int


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
    return Measured(scheduled - before, after - scheduled, left, int(loop_time() - begin < max(delays)))


async def _ours(delays: Sequence[float], variable_count: int) -> Measured:
    for variable in _VARIABLES[:variable_count]:
        variable.set("value")
    async with RateLimitedExecutor("bench") as executor:
        return await measure(executor.call_later, delays)


async def _theirs(delays: Sequence[float], variable_count: int) -> Measured:
    for variable in _VARIABLES[:variable_count]:
        variable.set("value")
    return await measure(asyncio.get_running_loop().call_later, delays)


def run(options: Options) -> list[Table]:
    """Measure."""
    count = options.size(1_000_000, 2_000)
    table = Table(f"{count:,} trivial calls, CPU a call", ["call_later", "ours", "ratio"])
    with options.runner() as runner:
        for case, spread, variable_count, target in (
            ("delays 0 to 10 s", 10.0, 0, 8.0),
            ("delays 0 to 1 s", 1.0, 0, 4.5),
            ("delays 0 to 10 s, 3 context variables", 10.0, 3, 5.0),
        ):
            chosen = random.Random(SEED)
            delays = [chosen.random() * options.seconds(spread, spread / 50) for _ in range(count)]
            rounds = options.in_turns(
                {
                    "call_later": lambda d=delays, v=variable_count: runner.run(_theirs(d, v)),
                    "ours": lambda d=delays, v=variable_count: runner.run(_ours(d, v)),
                },
                label=case,
            )
            theirs, ours = ([(m.schedule + m.start) * 1e6 / count for m in rounds[side]] for side in rounds)
            gain = ratio(theirs, ours, target=Target(f">= {target:g} x asyncio", target))
            table.add(case, {"call_later": Figure(theirs, "us"), "ours": Figure(ours, "us"), "ratio": gain})
            table.check("calls lost", sum(m.lost for side in rounds.values() for m in side))
            table.check("calls of ours early", sum(m.early for m in rounds["ours"]))
    return [table]
