"""What tasks leave behind: memory and objects over many tasks, in processes of their own.

- Twenty minutes of virtual time at 100 tasks a second, through all calls that schedule, on the test kit's event loop.
- A million cycles of schedule and run on the real loop.

Readings are taken at equal distances, after a garbage collection; the slope is that of the least-squares line through
all but the first quarter of them, which warms up. Resident memory changes in pages, and by what other libraries keep
for later.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from array import array
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness import Chart, Figure, Series, Table, Target, fresh
from bench.resident import resident_bytes
from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.testing import run_virtual

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.harness import Options

NAME = "soak"
DESCRIPTION = "memory and objects left behind by 20 virtual minutes, and by a million tasks"
PER_SECOND = 100
MINUTES, STEPS = 20, 20
CYCLES, BATCH_COUNT = 1_000_000, 1_000
_TRACED, _RESIDENT, _OBJECTS = "traced", "resident", "objects"
_TARGETS = {
    _TRACED: Target("flat: <= 0.1 B a task", 0.1),
    _RESIDENT: Target("flat: <= 1 B a task", 1.0),
    _OBJECTS: Target("flat: <= 1 in 100,000 tasks", 1e-5),
}


def run(options: Options) -> list[Table]:
    """Run both cases, each for three kinds of readings."""
    table = Table("What stays behind a task", ["traced", "resident", "objects", "CPU a task"])
    cases: list[tuple[str, str, dict[str, Any]]] = [
        (
            f"{MINUTES} virtual minutes, {PER_SECOND} tasks a second",
            "bench.soak:virtual_minutes",
            {"seconds": options.size(MINUTES * 60, 40), "steps": STEPS},
        ),
        (
            f"{options.size(CYCLES, 20_000):,} cycles of schedule and run",
            "bench.soak:cycles",
            {"count": options.size(CYCLES, 20_000), "steps": STEPS},
        ),
    ]
    for case, function, sizes in cases:
        rounds = options.in_turns(
            {how: partial(fresh, function, how=how, **sizes) for how in _TARGETS},
            rounds=options.rounds(1),
            warm_up=0,
            label=case,
        )
        table.check("tasks lost or run twice", sum(m["lost"] for side in rounds.values() for m in side))
        _add(table, case, rounds)
    table.notes.append("growth a task: the slope of the readings, the first quarter left out")
    return [table]


def _add(table: Table, case: str, rounds: dict[str, list[dict[str, list[float]]]]) -> None:
    cells: dict[str, Figure | str] = {}
    for how, results in rounds.items():
        slopes = [_slope(m["tasks"], m["readings"]) for m in results]
        cells[how] = Figure(slopes, "" if how == _OBJECTS else "B", target=_TARGETS[how])
        first = results[0]
        label = "objects" if how == _OBJECTS else "MB"
        readings = [value if how == _OBJECTS else value / 1e6 for value in first["readings"]]
        table.charts.append(Chart(f"{how}, {case}", "tasks", label, [Series(how, first["tasks"], readings)]))
    cells["CPU a task"] = Figure([m["cpu"][0] * 1e6 / m["tasks"][-1] for m in rounds[_RESIDENT]], "us")
    table.add(case, cells)


def _slope(tasks: list[float], readings: list[float]) -> float:
    """Return the slope of the least-squares line through all but the first quarter of the readings."""
    x, y = tasks[len(tasks) // 4 :], readings[len(readings) // 4 :]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((value - mean_x) ** 2 for value in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


# In a process of its own.


class _Readings:
    """Readings of what is held after a number of tasks."""

    def __init__(self, how: str, steps: int) -> None:
        # places for all readings are allocated now, so that readings do not measure themselves
        self._tasks, self._values = array("q", bytes(8 * 2 * steps)), array("q", bytes(8 * 2 * steps))
        self._count = 0
        self._read: Callable[[], int] = {
            _TRACED: lambda: tracemalloc.get_traced_memory()[0],
            _RESIDENT: resident_bytes,
            _OBJECTS: lambda: len(gc.get_objects()),
        }[how]
        self._spent = 0.0
        self._before = time.process_time()
        if how == _TRACED:
            tracemalloc.start()

    def take(self, tasks: int) -> None:
        """Take a reading; the time that this takes does not count."""
        self._spent += time.process_time() - self._before
        gc.collect()
        self._tasks[self._count] = tasks
        self._values[self._count] = self._read()
        self._count += 1
        self._before = time.process_time()

    def results(self, *, expected: int, ran: int) -> dict[str, object]:
        """Return all results as JSON can hold them."""
        return {
            "tasks": self._tasks[: self._count].tolist(),
            "readings": self._values[: self._count].tolist(),
            "cpu": [self._spent],
            "lost": abs(expected - ran),
        }


def virtual_minutes(*, how: str, seconds: int, steps: int) -> dict[str, object]:
    """Schedule 100 tasks in each virtual second, through all calls that schedule in turn."""
    return run_virtual(_virtual_seconds(_Readings(how, steps), seconds, steps))


async def _virtual_seconds(readings: _Readings, seconds: int, steps: int) -> dict[str, object]:
    ran = 0

    def plain(*_: object) -> None:
        nonlocal ran
        ran += 1

    async def suspending() -> None:
        nonlocal ran
        await asyncio.sleep(0.01)
        ran += 1

    every = max(1, seconds // steps)
    quarter = PER_SECOND // 4
    async with RateLimitedExecutor("bench", rate=2 * PER_SECOND) as executor:
        for second in range(1, seconds + 1):
            batch = executor.schedule_many(plain, range(quarter), over=0.5)
            for index in range(quarter):
                executor.call_later(index / quarter, plain)
                executor.schedule(plain, delay=1.5 + index / quarter, priority=index % 3, expires=30)
                executor.execute(suspending)
            await batch
            await asyncio.sleep(1 - asyncio.get_running_loop().time() % 1)
            if second % every == 0:
                readings.take(second * PER_SECOND)
    return readings.results(expected=seconds * PER_SECOND, ran=ran)


def cycles(*, how: str, count: int, steps: int) -> dict[str, object]:
    """Schedule and run batches on the real loop."""
    return asyncio.run(_cycles(_Readings(how, steps), count, steps))


async def _cycles(readings: _Readings, count: int, steps: int) -> dict[str, object]:
    ran = 0

    def plain() -> None:
        nonlocal ran
        ran += 1

    half = BATCH_COUNT // 2
    batches = max(steps, count // BATCH_COUNT)
    async with RateLimitedExecutor("bench") as executor:
        for number in range(1, batches + 1):
            for index in range(half):
                executor.call_later(index * 1e-6, plain)
            for handle in [executor.submit(plain) for _ in range(half)]:
                await handle
            if number % (batches // steps) == 0:
                await asyncio.sleep(0.02)  # the last calls are due within half a millisecond
                readings.take(number * BATCH_COUNT)
    return readings.results(expected=batches * BATCH_COUNT, ran=ran)
