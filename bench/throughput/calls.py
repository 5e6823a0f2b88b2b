"""``call_later``: random delays, with and without context variables, arguments and kept handles."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.throughput.rounds import (
    VERIFIED_COUNT_MAX,
    Counter,
    Measured,
    compare,
    fill_and_wait,
    new_table,
    random_delays,
    set_variables,
)
from ratelimited_executor import RateLimitedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.harness import Options, Table


@dataclass(frozen=True, slots=True)
class _Case:
    """A case: what is scheduled, and how.

    Attributes:
        spread: delays are between 0 and this number of seconds.
        variable_count: how many context variables are set where the calls are scheduled.
        has_arguments: whether two arguments are passed, the first of which differs from call to call.
        is_kept: whether the handles are kept until all calls have run.
        target: the least ratio with the compiled kernel; None for no target.
    """

    spread: float
    variable_count: int = 0
    has_arguments: bool = False
    is_kept: bool = False
    target: float | None = None


_CASES = {
    "delays 0 to 10 s": _Case(10, target=8),
    "delays 0 to 1 s": _Case(1, target=8),
    "0 to 10 s, 3 context variables": _Case(10, variable_count=3, target=7),
    "0 to 1 s, 3 context variables": _Case(1, variable_count=3, target=7),
    "0 to 10 s, two arguments": _Case(10, has_arguments=True, target=5.5),
    "0 to 10 s, handles kept": _Case(10, is_kept=True, target=7),
}


def table(options: Options, runner: asyncio.Runner) -> Table:
    """Measure all cases; check the order and the due time of each call in a round that is not measured."""
    count = options.size(1_000_000, 2_000)
    filled = new_table(f"call_later, {count:,} calls, beside loop.call_later{' of uvloop' * options.uvloop}")
    for name, case in _CASES.items():
        delays = random_delays(count, options.seconds(case.spread, case.spread / 50))
        compare(
            filled,
            name,
            options,
            runner,
            theirs=partial(_theirs, delays, case),
            ours=partial(_ours, delays, case),
            count=count,
            target=case.target,
        )
    early, disordered = runner.run(_verify(random_delays(min(count, VERIFIED_COUNT_MAX), 0.2)))
    filled.check("calls of ours early, looked at one by one", early)
    filled.check("calls of ours out of due order", disordered)
    return filled


async def _theirs(delays: Sequence[float], case: _Case) -> Measured:
    return await _measure(asyncio.get_running_loop().call_later, delays, case)


async def _ours(delays: Sequence[float], case: _Case) -> Measured:
    async with RateLimitedExecutor("bench") as executor:
        return await _measure(executor.call_later, delays, case)


async def _measure(call_later: Callable[..., Any], delays: Sequence[float], case: _Case) -> Measured:
    set_variables(case.variable_count)
    counter = Counter(len(delays))

    def plain() -> None:
        call = counter.call
        for delay in delays:
            call_later(delay, call)

    def with_arguments() -> None:
        call = counter.call_two
        for delay in delays:
            call_later(delay, call, delay, "second")

    def kept() -> list[Any]:
        call = counter.call
        return [call_later(delay, call) for delay in delays]

    fill = with_arguments if case.has_arguments else kept if case.is_kept else plain
    return await fill_and_wait(fill, counter, last=max(delays))


async def _verify(delays: Sequence[float]) -> tuple[int, int]:
    """Return how many calls started before their due time, and how many before one that was due earlier."""
    loop_time = asyncio.get_running_loop().time
    started: list[tuple[int, float]] = []

    def start(index: int) -> None:
        started.append((index, loop_time()))

    async with RateLimitedExecutor("bench") as executor:
        handles = [executor.call_later(delay, start, index) for index, delay in enumerate(delays)]
        dues = [handle.when() for handle in handles]
    early = sum(at < dues[index] for index, at in started)
    return early, sum(dues[first] > dues[second] for (first, _), (second, _) in pairwise(started))
