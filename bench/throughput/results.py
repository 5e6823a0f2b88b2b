"""Results that are awaited: ``schedule`` beside ``call_later`` plus a future, each with a done callback."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.throughput.rounds import Counter, Measured, compare, fill_and_wait, interval_of, new_table, random_delays
from ratelimited_executor import ExecutorManager, Pacing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.harness import Options, Table

_SPREAD_SECONDS = 10.0


def table(options: Options, runner: asyncio.Runner) -> Table:
    """Measure tasks that start on time, and tasks that are spread over their second."""
    count = options.size(1_000_000, 2_000)
    delays = random_delays(count, options.seconds(_SPREAD_SECONDS, 0.2))
    filled = new_table(f"schedule, {count:,} results kept, beside call_later plus a future")
    for name, pacing, target in (("on time", Pacing.ON_TIME, 6), ("spread (the default)", Pacing.SPREAD, 4)):
        compare(
            filled,
            f"delays 0 to 10 s, {name}",
            options,
            runner,
            theirs=lambda: _theirs(delays),
            ours=partial(_ours, delays, pacing, interval_of(options)),
            count=count,
            target=target,
        )
    return filled


def _work() -> int:
    return 1


def _work_into(future: asyncio.Future[int]) -> None:
    future.set_result(_work())


async def _theirs(delays: Sequence[float]) -> Measured:
    loop = asyncio.get_running_loop()
    counter = Counter(len(delays))

    def fill() -> list[Any]:
        kept = []
        done = counter.call_one
        for delay in delays:
            future: asyncio.Future[int] = loop.create_future()
            future.add_done_callback(done)
            loop.call_later(delay, _work_into, future)
            kept.append(future)
        return kept

    return await _with_results(fill, counter, delays)


async def _ours(delays: Sequence[float], pacing: Pacing, interval: float) -> Measured:
    async with ExecutorManager(interval=interval) as manager:
        executor = manager.executor("bench", pacing=pacing)
        counter = Counter(len(delays))

        def fill() -> list[Any]:
            kept = []
            done = counter.call_one
            for delay in delays:
                handle = executor.schedule(_work, delay=delay)
                handle.add_done_callback(done)
                kept.append(handle)
            return kept

        return await _with_results(fill, counter, delays)


async def _with_results(fill: Any, counter: Counter, delays: Sequence[float]) -> Measured:
    """Measure, and count every handle without its result as lost."""
    kept: list[Any] = []

    def fill_and_keep() -> list[Any]:
        kept.extend(fill())
        return kept

    measured = await fill_and_wait(fill_and_keep, counter, last=max(delays))
    lost = sum(handle.result() != 1 for handle in kept)
    return Measured(measured.schedule, measured.start, measured.lost + lost, measured.early)
