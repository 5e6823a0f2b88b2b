"""Schedule calls with delays up to a minute, keep every handle, and cancel all; no call ever runs."""

from __future__ import annotations

import asyncio
import gc
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.throughput.rounds import Measured, compare, new_table, random_delays
from ratelimited_executor import RateLimitedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.harness import Options, Table

_SPREAD_SECONDS = 60.0
_FIRST_SECONDS = 5.0  # no call is due before, however long the scheduling takes


def table(options: Options, runner: asyncio.Runner) -> Table:
    """Measure handles of ``call_later`` and of ``schedule``, both against those of the loop's ``call_later``."""
    count = options.size(1_000_000, 2_000)
    delays = [_FIRST_SECONDS + delay for delay in random_delays(count, _SPREAD_SECONDS - _FIRST_SECONDS)]
    filled = new_table(f"schedule {count:,}, keep all handles, cancel all, beside loop.call_later")
    filled.notes.append('"start" is the cancelling, with the clean-up that follows: two turns of the loop, and closing')
    for name, side in (("call_later", _ours), ("schedule", _ours_scheduled)):
        compare(
            filled,
            name,
            options,
            runner,
            theirs=lambda: _theirs(delays),
            ours=partial(side, delays),
            count=count,
            target=2.2 if side is _ours else None,
        )
    return filled


async def _theirs(delays: Sequence[float]) -> Measured:
    loop = asyncio.get_running_loop()
    ran: list[int] = []

    def fill() -> list[Any]:
        return [loop.call_later(delay, ran.append, 1) for delay in delays]

    measured, before = await _cancel_all(fill)
    return Measured(measured.schedule, time.process_time() - before, len(ran))


async def _ours(delays: Sequence[float]) -> Measured:
    ran: list[int] = []
    async with RateLimitedExecutor("bench") as executor:
        measured, before = await _cancel_all(lambda: [executor.call_later(delay, ran.append, 1) for delay in delays])
    spent = time.process_time() - before
    return Measured(measured.schedule, spent, len(ran) + len(delays) - executor.statistics().cancelled)


async def _ours_scheduled(delays: Sequence[float]) -> Measured:
    ran: list[int] = []
    async with RateLimitedExecutor("bench") as executor:
        measured, before = await _cancel_all(
            lambda: [executor.schedule(ran.append, 1, delay=delay) for delay in delays]
        )
    spent = time.process_time() - before
    return Measured(measured.schedule, spent, len(ran) + len(delays) - executor.statistics().cancelled)


async def _cancel_all(fill: Callable[[], list[Any]]) -> tuple[Measured, float]:
    """Schedule and cancel; return the cost of the scheduling, and the CPU time at which the cancelling began."""
    gc.collect()
    before = time.process_time()
    handles = fill()
    filled = time.process_time()
    for handle in handles:
        handle.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return Measured(filled - before, 0.0), filled
