"""``schedule_many`` in its four forms, beside a loop of ``call_later(delay, fn, item)`` for the same due times."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.throughput.rounds import (
    VERIFIED_COUNT_MAX,
    Counter,
    Measured,
    compare,
    fill_and_wait,
    interval_of,
    new_table,
    random_delays,
)
from ratelimited_executor import ExecutorManager, Pacing, RateLimitedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.harness import Options, Table

_OVER_SECONDS = 10.0
_DELAY_SECONDS = 5.0  # asyncio needs some seconds to schedule a million calls, none of which may be due before


def table(options: Options, runner: asyncio.Runner) -> Table:
    """Measure each form with both kinds of pacing."""
    count = options.size(1_000_000, 2_000)
    over, delay = options.seconds(_OVER_SECONDS, 0.1), options.seconds(_DELAY_SECONDS, 0.1)
    filled = new_table(f"schedule_many, {count:,} items, beside a loop of call_later")
    for pacing in (Pacing.ON_TIME, Pacing.SPREAD):
        for form, delays, target in (
            ("delays=", random_delays(count, over), 9),
            ("over=", [index * over / count for index in range(count)], 12),
            ("at=", [delay] * count, 25),
            ("delay=", [delay] * count, 25),
        ):
            compare(
                filled,
                f"{form} {pacing.value}{' (the default)' if pacing is Pacing.SPREAD else ''}",
                options,
                runner,
                theirs=partial(_theirs, delays),
                ours=partial(_ours, form, delays, over, pacing, interval_of(options)),
                count=count,
                target=target,
            )
    small = min(count, VERIFIED_COUNT_MAX)
    early = runner.run(_verify(random_delays(small, 0.1))) + runner.run(_verify_over(small, 0.1))
    filled.check("items of ours early, looked at one by one", early)
    return filled


async def _theirs(delays: Sequence[float]) -> Measured:
    call_later = asyncio.get_running_loop().call_later
    counter = Counter(len(delays))
    call = counter.call_one

    def fill() -> None:
        for item, delay in enumerate(delays):
            call_later(delay, call, item)

    return await fill_and_wait(fill, counter, last=max(delays))


async def _ours(form: str, delays: Sequence[float], over: float, pacing: Pacing, interval: float) -> Measured:
    counter = Counter(len(delays))
    items = range(len(delays))
    async with ExecutorManager(interval=interval) as manager:
        executor = manager.executor("bench", pacing=pacing)
        many: Callable[..., Any] = partial(executor.schedule_many, counter.call_one, items)
        fill = {
            "delays=": lambda: many(delays=delays),
            "over=": lambda: many(over=over),
            "at=": lambda: many(at=time.time() + delays[0]),
            "delay=": lambda: many(delay=delays[0]),
        }[form]
        # The wall clock may be slewed against the monotonic one, but by less than a millisecond in ten seconds.
        allowed = 1e-3 if form == "at=" else 0.0
        return await fill_and_wait(fill, counter, last=max(delays) - allowed)


async def _verify(delays: Sequence[float]) -> int:
    """Return how many items started before their own delay had passed, or did not start."""
    loop_time = asyncio.get_running_loop().time
    started: list[tuple[int, float]] = []
    async with RateLimitedExecutor("bench") as executor:
        begin = loop_time()
        await executor.schedule_many(
            lambda index: started.append((index, loop_time())), range(len(delays)), delays=delays
        )
    return sum(at - begin < delays[index] for index, at in started) + len(delays) - len(started)


async def _verify_over(count: int, over: float) -> int:
    loop_time = asyncio.get_running_loop().time
    started: list[tuple[int, float]] = []
    async with RateLimitedExecutor("bench", pacing=Pacing.ON_TIME) as executor:
        begin = loop_time()
        await executor.schedule_many(lambda index: started.append((index, loop_time())), range(count), over=over)
    step = over / count
    return sum(at - begin < index * step - 1e-9 for index, at in started) + count - len(started)  # a rounding of 1 ns
