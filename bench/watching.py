"""The cost of being watched: calls with metrics, with the live page and with an observer, beside the same without.

A reader in another thread collects once a second, as an exporter would at most; its CPU counts, too. The sample starts
anew with each collection, so that fewer collections cost less. What is watched is a million trivial calls that fall due
within some seconds, and coroutine functions that suspend once. The page is recorded but not looked at: a look costs the
same whatever runs, and is measured separately, with a million tasks that wait in a thousand executors.
"""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bench.harness import Figure, Table, Target
from ratelimited_executor import ExecutorManager, Pacing, RateLimitedExecutor
from ratelimited_executor.insight import observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.harness import Options
    from ratelimited_executor.handles import BatchHandle

NAME = "watching"
DESCRIPTION = "a million calls with metrics on and off, the live page, an observer"
COLUMNS = ("off", "counts", "sampled", "all", "page", "observer")
BATCH_COUNT = 200
_LOOKS = 20
MORE_MAX = 5.0  # percent


def run(options: Options) -> list[Table]:
    """Measure each way to schedule, with each way to watch."""
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
    return [table, _looks(options)]


def _looks(options: Options) -> Table:
    """Measure what the live page itself costs."""
    executors, waiting = options.size(1_000, 20), options.size(1_000_000, 2_000)
    table = Table(f"A look at the live page: {waiting:,} tasks wait in {executors:,} executors", ["CPU", "answer"])
    with options.runner() as runner:
        seconds, size = runner.run(_look(executors, waiting // executors))
    for name, spent in seconds.items():
        answer = f"{size[name] / 1000:,.0f} KB" if name in size else ""
        table.add(name, {"CPU": Figure([each * 1e3 for each in spent], "ms"), "answer": answer})
    table.notes.append(
        "a page is rendered on the event loop, every two seconds while it is seen; a point of each executor is"
    )
    table.notes.append("recorded every five seconds, in groups of 20 executors")
    return table


async def _look(executor_count: int, waiting: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the CPU seconds of several looks, and the bytes of their answers."""
    from ratelimited_executor.dashboard import dashboard  # noqa: PLC0415  # an extra, imported on use

    seconds: dict[str, list[float]] = {}
    size: dict[str, int] = {}
    batches: list[BatchHandle[Any]] = []
    async with ExecutorManager() as manager:
        for number in range(executor_count):
            executor = manager.executor(f"tenant {number:04}", rate=1, drain_timeout=0)
            batches.append(
                executor.schedule_many(str, range(waiting), delays=[3600.0 + each for each in range(waiting)])
            )
        app: Any = dashboard(manager)
        for name, path, query in (
            ("list, a page of it", "/", ""),
            ("list, sorted", "/", "sort=waiting"),
            ("one executor", "/executor", "name=tenant 0007"),
        ):
            for _ in range(_LOOKS + 1):
                before = time.process_time()
                size[name] = await _ask(app, path, query)
                seconds.setdefault(name, []).append(time.process_time() - before)
            del seconds[name][0]  # the first look compiles the template
        for _ in range(_LOOKS):
            before = time.process_time()
            for executor in manager.executors.values():
                executor.statistics()
            seconds.setdefault("a point of each executor", []).append(time.process_time() - before)
        for batch in batches:
            batch.cancel()
    return seconds, size


async def _ask(app: Any, path: str, query: str) -> int:
    """Request a page from an application, and return how many bytes it has."""
    size = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal size
        assert message.get("status", 200) == 200
        size += len(message.get("body", b""))

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": quote(query, safe="=&").encode(),
        "headers": [],
    }
    await app(scope, receive, send)
    return size


class _Nothing:
    """An observer that does nothing."""

    def accepted(self, count: int) -> None: ...

    def started(self, lateness: float) -> None: ...

    def retried(self, duration: float) -> None: ...

    def ended(self, state: Any, duration: float | None, count: int) -> None: ...


def _watch(stack: ExitStack, executor: RateLimitedExecutor, how: str) -> Callable[[], Any]:
    """Watch an executor, and return a function that must be called once a second."""
    if how == "observer":
        stack.enter_context(observe(executor, _Nothing()))
    if how == "page":
        from ratelimited_executor.dashboard import dashboard  # noqa: PLC0415  # an extra, imported on use

        dashboard(executor)
    if how in ("off", "page", "observer"):
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
    """Return the CPU seconds to schedule and run the calls, and how many were lost."""
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
