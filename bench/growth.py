"""The cost of a task by how many are pending: 10 thousand to 20 million, each number in a process of its own.

If adding or taking a task compares it with others, as in a heap or a sorted list, the cost grows with the logarithm of
the number; if the garbage collector visits all of them, it grows faster. Here it should not grow.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from array import array
from functools import partial
from typing import TYPE_CHECKING

from bench.harness import Chart, Figure, Series, Table, Target, fresh
from bench.resident import peak_resident_bytes
from ratelimited_executor import Pacing, RateLimitedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.harness import Options

NAME = "growth"
DESCRIPTION = "CPU a task and peak memory, from 10 thousand to 20 million pending"
COUNTS = (10_000, 100_000, 1_000_000, 5_000_000, 20_000_000)
QUICK_COUNTS = (500, 5_000)
THEIR_COUNT_MAX = 5_000_000  # with more, asyncio's own timers need more memory than build machines have
ROUNDS = 3
SEED = 1
FACTOR_MAX = 2.0
# How many calls are timed at least. Small numbers are repeated in one process, since 10 thousand take hardly a moment.
CALLS_MIN = 100_000
_MB = 1e6


def run(options: Options) -> list[Table]:
    """Measure each number, one by one and in bulk, with the event loop's own timers for comparison."""
    counts = QUICK_COUNTS if options.quick else tuple(options.size(count, count) for count in COUNTS)
    cells: dict[str, dict[int, Mapping[str, list[float]]]] = {side: {} for side in _MEASURES}
    table = Table(
        "Schedule and start, by how many are pending", ["CPU a task", "peak memory", "CPU against the cheapest"]
    )
    for count in counts:
        sides = [side for side in _MEASURES if not side.startswith("loop.") or count <= THEIR_COUNT_MAX]
        rounds = options.in_turns(
            {
                side: partial(
                    fresh, "bench.growth:measure", side=side, count=count, calls_min=0 if options.quick else CALLS_MIN
                )
                for side in sides
            },
            rounds=options.rounds(ROUNDS),
            warm_up=0,
            label=f"{count:,} pending",
        )
        for side, results in rounds.items():
            cells[side][count] = {key: [m[key] for m in results] for key in ("cpu_us", "peak")}
            table.check("tasks lost or run twice", sum(m["lost"] for m in results))
            table.check("tasks early", sum(m["early"] for m in results) if not side.startswith("loop.") else 0)
    for side, by_count in cells.items():
        cheapest = min(by_count.values(), key=lambda values: Figure(values["cpu_us"], "us").median)
        for count, values in by_count.items():
            table.add(f"{side}, {count:,}", _row(side, values, cheapest))
    table.notes.append(
        f"the span of the delays grows with the number: {_PER_SECOND:,} fall due in a second; "
        "peak memory is that of the whole process, lists of delays included"
    )
    table.charts += [_chart(cells, "cpu_us", "CPU microseconds a task"), _chart(cells, "peak", "peak MB")]
    return [table]


def _row(side: str, values: Mapping[str, list[float]], cheapest: Mapping[str, list[float]]) -> dict[str, Figure | str]:
    target = None if side.startswith("loop.") else Target(f"<= {FACTOR_MAX:g} x", FACTOR_MAX)
    growth = [mine / least for mine, least in zip(values["cpu_us"], cheapest["cpu_us"], strict=True)]
    return {
        "CPU a task": Figure(values["cpu_us"], "us"),
        "peak memory": Figure([value / _MB for value in values["peak"]], "MB"),
        "CPU against the cheapest": Figure(growth, "x", target=target),
    }


def _chart(cells: Mapping[str, Mapping[int, Mapping[str, list[float]]]], key: str, label: str) -> Chart:
    scale = _MB if key == "peak" else 1.0
    series = [
        Series(side, list(by_count), [Figure(values[key], "").median / scale for values in by_count.values()])
        for side, by_count in cells.items()
    ]
    return Chart(f"{label} by number pending", "tasks pending", label, series, log="xy" if key == "peak" else "x")


# In a process of its own.

_PER_SECOND = 1_000_000
_FIRST_SECONDS = 1.1  # until the first task is due: in an interval that has not begun, as with large numbers
_FILL_SECONDS = 3e-6  # at most, to schedule a task: the first one is due when all of them are scheduled


def measure(*, side: str, count: int, calls_min: int) -> dict[str, float]:
    """Schedule and start ``count`` tasks, repeatedly if they are few.

    Returns:
        CPU microseconds per task, peak resident bytes, and how many tasks were lost and early.
    """
    repeats = max(1, -(-calls_min // count))
    chosen = random.Random(SEED)
    first, spread = max(_FIRST_SECONDS if calls_min else 0.0, count * _FILL_SECONDS), count / _PER_SECOND
    delays = array("d", (first + chosen.random() * spread for _ in range(count)))
    cpu, lost, early = 0.0, 0, 0
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        for _ in range(repeats):
            gc.collect()
            spent, more_lost, more_early = runner.run(_MEASURES[side](delays))
            cpu, lost, early = cpu + spent, lost + more_lost, early + more_early
    return {"cpu_us": cpu * 1e6 / (count * repeats), "peak": peak_resident_bytes(), "lost": lost, "early": early}


async def _one_by_one(delays: Sequence[float]) -> tuple[float, int, int]:
    async with RateLimitedExecutor("bench") as executor:
        return await _calls(executor.call_later, delays)


async def _theirs(delays: Sequence[float]) -> tuple[float, int, int]:
    return await _calls(asyncio.get_running_loop().call_later, delays)


async def _calls(call_later: Callable[..., object], delays: Sequence[float]) -> tuple[float, int, int]:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    left = len(delays)

    def call() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set_result(None)

    last = max(delays)
    begin, before = loop.time(), time.process_time()
    for delay in delays:
        call_later(delay, call)
    await done
    spent, end = time.process_time() - before, loop.time()
    await asyncio.sleep(0)
    return spent, abs(left), int(end - begin < last)


async def _bulk(delays: Sequence[float]) -> tuple[float, int, int]:
    loop = asyncio.get_running_loop()
    ran = 0

    def call(_: int) -> None:
        nonlocal ran
        ran += 1

    items, last = range(len(delays)), max(delays)
    async with RateLimitedExecutor("bench", pacing=Pacing.ON_TIME) as executor:
        begin, before = loop.time(), time.process_time()
        await executor.schedule_many(call, items, delays=delays)
        spent, end = time.process_time() - before, loop.time()
    return spent, abs(len(delays) - ran), int(end - begin < last)


_MEASURES = {
    "call_later, one by one": _one_by_one,
    "schedule_many delays=": _bulk,
    "loop.call_later": _theirs,
}
