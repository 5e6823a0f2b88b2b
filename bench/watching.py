"""What it costs to be watched: calls with metrics, and with an observer, beside the same without.

A reader in another thread collects once a second, as an exporter would at most; its CPU counts, too. The sample starts anew with
each collection, so that rarer ones cost less. What is watched is a million trivial calls that fall due within some seconds, and
coroutine functions that suspend once.
"""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from bench.harness import Figure, Table, Target
from ratelimited_executor import Pacing, RateLimitedExecutor, observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.harness import Options

NAME = "watching"
DESCRIPTION = "a million calls with metrics on and off, and with an observer"
COLUMNS = ("off", "counts", "sampled", "all", "observer")
BATCH_COUNT = 200
MORE_MAX = 5.0  # percent


def run(options: Options) -> list[Table]:
    """Measure each way of scheduling, watched in each way."""
    table = Table("CPU a task, and what is added to it", [*COLUMNS, "added by the sample"])
    count, span = options.size(1_000_000, 2_000), options.seconds(2.0, 0.2)
    with options.runner() as runner:
        for name, schedule in _WAYS.items():
            cases = count if name != "coroutines" else count // 5 // BATCH_COUNT * BATCH_COUNT
            sides = {
                how: lambda how=how, schedule=schedule, cases=cases: runner.run(_measure(how, schedule, cases, span))  # type: ignore[misc]  # mypy knows no such defaults
                for how in COLUMNS
            }
            rounds = options.in_turns(sides, label=name)
            costs = {how: [spent * 1e6 / cases for spent, _ in rounds[how]] for how in COLUMNS}
            added = [(on / off - 1) * 100 for off, on in zip(costs["off"], costs["sampled"], strict=True)]
            cells: dict[str, Figure | str] = {how: Figure(values, "us") for how, values in costs.items()}
            cells["added by the sample"] = Figure(added, "%", target=Target(f"<= {MORE_MAX:g} %", MORE_MAX))
            table.add(f"{name}, {cases:,}", cells)
            table.check("calls lost", sum(lost for side in rounds.values() for _, lost in side))
    table.notes.append("counts: metrics with durations=None; collected once a second in another thread")
    return [table]


class _Nothing:
    """An observer that does nothing with what it is told."""

    def accepted(self, count: int) -> None: ...

    def started(self, lateness: float) -> None: ...

    def retried(self, duration: float) -> None: ...

    def ended(self, state: Any, duration: float | None, count: int) -> None: ...


def _watch(stack: ExitStack, executor: RateLimitedExecutor, how: str) -> Callable[[], Any]:
    """Watch an executor, and return what is to be called once a second."""
    if how == "observer":
        stack.enter_context(observe(executor, _Nothing()))
    if how in ("off", "observer"):
        return bool
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415  # an extra, imported on use
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415  # as above

    from ratelimited_executor.metrics import instrument  # noqa: PLC0415  # as above

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    stack.callback(provider.shutdown)
    durations: Any = None if how == "counts" else how
    stack.enter_context(instrument(executor, meter_provider=provider, durations=durations))
    return reader.get_metrics_data


async def _measure(how: str, schedule: Callable[..., Any], count: int, span: float) -> tuple[float, int]:
    """Return the CPU seconds of scheduling and running, and how many calls were lost."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    ran = 0

    def call(*_: object) -> None:
        nonlocal ran
        ran += 1
        if ran == count:
            done.set_result(None)

    async def suspend() -> None:
        await asyncio.sleep(0)
        call()

    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        async with RateLimitedExecutor("bench", pacing=Pacing.ON_TIME) as executor:
            collect = _watch(stack, executor, how)

            async def collect_often() -> None:
                while True:
                    await asyncio.sleep(1)
                    await loop.run_in_executor(pool, collect)

            collecting = asyncio.ensure_future(collect_often())
            before = time.process_time()
            await schedule(executor, suspend if schedule is _coroutines else call, count, span)
            await done
            await loop.run_in_executor(pool, collect)
            spent = time.process_time() - before
            collecting.cancel()
    return spent, abs(count - ran)


def _delays(count: int, span: float) -> list[float]:
    drawn = random.Random(1)
    return [drawn.random() * span for _ in range(count)]


async def _call_later(executor: RateLimitedExecutor, call: Any, count: int, span: float) -> None:
    for delay in _delays(count, span):
        executor.call_later(delay, call)


async def _schedule(executor: RateLimitedExecutor, call: Any, count: int, span: float) -> None:
    for delay in _delays(count, span):
        executor.schedule(call, delay=delay)


async def _schedule_many(executor: RateLimitedExecutor, call: Any, count: int, span: float) -> None:
    await executor.schedule_many(call, range(count), delays=_delays(count, span))


async def _coroutines(executor: RateLimitedExecutor, suspend: Any, count: int, _: float) -> None:
    for _batch in range(count // BATCH_COUNT):
        await asyncio.wait([executor.submit(suspend) for _ in range(BATCH_COUNT)])


_WAYS = {
    "call_later": _call_later,
    "schedule": _schedule,
    "schedule_many(delays=)": _schedule_many,
    "coroutines": _coroutines,
}
