"""Coroutine functions: ours through ``execute`` and ``submit`` beside ``create_task``, in batches that are awaited.

A batch of 200 is started, and its end awaited, before the next one: a busy service has so many requests at once. The
runs of the garbage collector are counted: what leaves no garbage behind does not make its older generations run.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from bench.harness import Figure, Table, Target, ratio
from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.insight import kernel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.harness import Options

NAME = "coroutines"
DESCRIPTION = "100,000 coroutine functions through execute and submit, beside create_task"
BATCH_COUNT = 200
PARTS = 5  # of a run; the collections of each part are counted
_IS_EAGER = sys.version_info >= (3, 12)


@dataclass(frozen=True, slots=True)
class Measured:
    """One round of one side.

    Attributes:
        cpu: CPU time in seconds.
        lost: how many coroutines did not run, or ran twice.
        collections: how often each generation was collected, for each part of the run.
    """

    cpu: float
    lost: int
    collections: list[list[int]]


def run(options: Options) -> list[Table]:
    """Measure coroutine functions that suspend, and others that do not."""
    count = options.size(100_000, 2_000)
    speeds = Table(f"{count:,} coroutine functions in batches of {BATCH_COUNT}", ["create_task", "ours", "ratio"])
    with options.runner() as runner:
        for is_suspending in (True, False):
            for name, theirs in (("execute", "create_task"), ("submit", "create_task, each awaited")):
                _compare(speeds, options, runner, theirs, name, count, is_suspending=is_suspending)
        return [speeds, _collections(options, runner, count)]


def _compare(
    table: Table, options: Options, runner: asyncio.Runner, theirs: str, ours: str, count: int, *, is_suspending: bool
) -> None:
    case = f"{ours}, {'' if is_suspending else 'not '}suspending"
    sides = {
        "create_task": lambda: runner.run(_measure(theirs, count, is_suspending=is_suspending)),
        "ours": lambda: runner.run(_measure(ours, count, is_suspending=is_suspending)),
    }
    rounds = options.in_turns(sides, label=case)
    costs = {side: [m.cpu * 1e6 / count for m in rounds[side]] for side in sides}
    gain = ratio(costs["create_task"], costs["ours"], target=_target(ours, is_suspending=is_suspending))
    table.add(case, {**{side: Figure(values, "us") for side, values in costs.items()}, "ratio": gain})
    table.check("coroutines lost or run twice", sum(m.lost for side in rounds.values() for m in side))


def _collections(options: Options, runner: asyncio.Runner, count: int) -> Table:
    """Count the collections of each generation in a longer run, for each of its parts."""
    table = Table(f"Garbage collections, by {count:,} suspending coroutines", ["generation 0", "1", "2", "growth"])
    for name in _BATCHES:
        options.note(f"collections: {name}")
        parts = runner.run(_measure(name, count * PARTS, is_suspending=True)).collections
        by_generation = [list(map(float, counts)) for counts in zip(*parts, strict=True)]
        cells: dict[str, Figure | str] = {
            column: Figure(counts, "", smaller_is_better=None)
            for column, counts in zip(("generation 0", "1", "2"), by_generation, strict=False)
        }
        # the first part may still warm up, and counts change in steps
        growth = max(counts[-1] - max(counts[1:-1]) for counts in by_generation)
        cells["growth"] = Figure([growth], "", target=Target("flat: <= 1 more", 1))
        table.add(name, cells)
    table.notes.append("median (least to greatest) of 5 parts of a run; growth: the last part against the 3 before")
    return table


def _target(face: str, *, is_suspending: bool) -> Target | None:
    if not kernel.is_compiled:
        return None
    least = (0.8 if is_suspending else 1.1) if _IS_EAGER else {"execute": 0.85, "submit": 0.65}[face]
    return Target(f">= {least:g} x create_task", least)


async def _measure(name: str, count: int, *, is_suspending: bool) -> Measured:
    tally = _Tally()
    function = tally.suspending if is_suspending else tally.straight
    async with RateLimitedExecutor("bench") as executor:
        batch = _BATCHES[name](executor, function, tally)
        await batch()  # the first is expensive: caches, imports
        tally.ran = 0
        gc.collect()
        collections = []
        batches = -(-count // PARTS // BATCH_COUNT)
        before = time.process_time()
        for _ in range(PARTS):
            runs = [generation["collections"] for generation in gc.get_stats()]
            for _ in range(batches):
                await batch()
            now = [generation["collections"] for generation in gc.get_stats()]
            collections.append([after - earlier for after, earlier in zip(now, runs, strict=True)])
        spent = time.process_time() - before
    expected = PARTS * batches * BATCH_COUNT
    return Measured(spent * count / expected, abs(expected - tally.ran), collections)


class _Tally:
    """The coroutine functions that all sides run, and a future that the last one of a batch sets."""

    def __init__(self) -> None:
        self.ran = 0
        self.left = 0
        self.done: asyncio.Future[None] | None = None

    def expect(self) -> asyncio.Future[None]:
        """Return a future that the last call of the next batch sets."""
        self.left = BATCH_COUNT
        self.done = asyncio.get_running_loop().create_future()
        return self.done

    async def suspending(self) -> None:
        """Count the call, one turn of the loop later."""
        await asyncio.sleep(0)
        self._count()

    async def straight(self) -> None:
        """Count the call."""
        self._count()

    def _count(self) -> None:
        self.ran += 1
        self.left -= 1
        if self.left == 0 and self.done is not None:
            self.done.set_result(None)


_Batch: TypeAlias = "Callable[[], Awaitable[None]]"


def _with_create_task(_: RateLimitedExecutor, function: Callable[[], Any], tally: _Tally) -> _Batch:
    create_task = asyncio.get_running_loop().create_task

    async def batch() -> None:
        done = tally.expect()
        kept = [create_task(function()) for _ in range(BATCH_COUNT)]  # as the documentation of create_task requires
        await done
        del kept

    return batch


def _with_create_task_awaited(_: RateLimitedExecutor, function: Callable[[], Any], __: _Tally) -> _Batch:
    create_task = asyncio.get_running_loop().create_task

    async def batch() -> None:
        for task in [create_task(function()) for _ in range(BATCH_COUNT)]:
            await task

    return batch


def _with_execute(executor: RateLimitedExecutor, function: Callable[[], Any], tally: _Tally) -> _Batch:
    async def batch() -> None:
        done = tally.expect()
        for _ in range(BATCH_COUNT):
            executor.execute(function)
        await done

    return batch


def _with_submit(executor: RateLimitedExecutor, function: Callable[[], Any], __: _Tally) -> _Batch:
    async def batch() -> None:
        for handle in [executor.submit(function) for _ in range(BATCH_COUNT)]:
            await handle

    return batch


_BATCHES = {
    "create_task": _with_create_task,
    "create_task, each awaited": _with_create_task_awaited,
    "execute": _with_execute,
    "submit": _with_submit,
}
