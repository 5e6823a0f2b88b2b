"""The bytes that a pending task holds, by two measures in different processes.

They are tracemalloc, which counts what Python asked for, and resident memory, which the operating system counts. The
records of tracemalloc are resident memory, too; each figure therefore comes from a process of its own.

What the caller has anyway (items, delays, arguments) is created before the first reading and does not count; the tuple
that holds the arguments of a call counts. Garbage is collected before both readings. No task is due before the second
reading.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness import Chart, Figure, Series, Table, Target, fresh
from bench.resident import resident_bytes
from ratelimited_executor import RateLimitedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.harness import Options

NAME = "memory"
DESCRIPTION = "bytes per pending task, by tracemalloc and by resident memory"
ROUNDS = 3
SEED = 1
FIRST_SECONDS, LAST_SECONDS = 600.0, 660.0  # when tasks are due: long after the last reading
_MB = 1e6

_CALL = Target("<= 48 B", 48)
_KEPT = Target("<= 80 B", 80)
_KEPT_ARGUMENT = Target("<= 140 B", 140)
_DELAYS = Target("<= 24 B", 24)
_RECORD = Target("<= 160 B", 160)
_WHOLE = Target("<= 1 MB in all", 1)

# Side -> (target for each task, target for all of them).
_SIDES: dict[str, tuple[Target | None, Target | None]] = {
    "loop.call_later": (None, None),
    "loop.call_later, handle kept": (None, None),
    "loop.call_later, own argument": (None, None),
    "loop.call_later, own argument and handle kept": (None, None),
    "loop.call_later plus a future": (None, None),
    "call_later": (_CALL, None),
    "call_later, handle kept": (_KEPT, None),
    "call_later, own argument": (None, None),
    "call_later, own argument and handle kept": (_KEPT_ARGUMENT, None),
    "schedule, handle kept": (_RECORD, None),
    "schedule_many delays=": (_DELAYS, None),
    "schedule_many over=": (None, _WHOLE),
    "schedule_many at=": (None, _WHOLE),
    "schedule_many delay=": (None, _WHOLE),
}


def run(options: Options) -> list[Table]:
    """Measure every side, each round in fresh processes."""
    count = options.size(1_000_000, 2_000)
    rounds = options.in_turns(
        {
            f"{side}|{how}": partial(fresh, "bench.memory:measure", side=side, how=how, count=count)
            for side in (list(_SIDES)[::4] if options.quick else _SIDES)  # a process for each side takes seconds
            for how in ("traced", "resident")
        },
        rounds=options.rounds(ROUNDS),
        warm_up=0,
        label=f"{count:,} pending",
    )
    table = Table(f"{count:,} pending tasks", ["traced a task", "resident a task", "resident in all"])
    for side in dict.fromkeys(name.partition("|")[0] for name in rounds):
        for_task, for_all = _SIDES[side]
        resident = [m["bytes"] for m in rounds[f"{side}|resident"]]
        table.add(
            side,
            {
                "traced a task": Figure([m["bytes"] / count for m in rounds[f"{side}|traced"]], "B", target=for_task),
                "resident a task": Figure([value / count for value in resident], "B", target=for_task),
                "resident in all": Figure([value / _MB for value in resident], "MB", target=for_all),
            },
        )
    table.check("tasks not pending at the reading", sum(abs(m["missing"]) for side in rounds.values() for m in side))
    table.charts.append(_chart(table))
    return [table]


def _chart(table: Table) -> Chart:
    columns = ["traced a task", "resident a task"]
    cells = [[row[column] for row in table.rows.values()] for column in columns]
    medians = [[cell.median for cell in column if isinstance(cell, Figure)] for column in cells]
    series = [Series(name, list(table.rows), values) for name, values in zip(columns, medians, strict=True)]
    return Chart("Memory of a pending task", "", "bytes", series, kind="bar")


def measure(*, side: str, how: str, count: int) -> dict[str, float]:
    """Schedule tasks in this process; return the bytes that this adds, and how many of the tasks are not pending.

    Args:
        side: a key of the table of sides.
        how: "traced" or "resident".
        count: how many tasks.
    """
    return asyncio.run(_measure(side, how, count))


async def _measure(side: str, how: str, count: int) -> dict[str, float]:
    loop: Any = asyncio.get_running_loop()
    chosen = random.Random(SEED)
    delays = [chosen.uniform(FIRST_SECONDS, LAST_SECONDS) for _ in range(count)]
    items = list(range(count))
    async with RateLimitedExecutor("bench", drain_timeout=0) as executor:
        fill, pending = _filling(side, loop, executor, delays, items)
        if how == "traced":
            tracemalloc.start()
        before = _reading(how)
        kept = fill()
        after = _reading(how)
        missing = count - pending()
        del kept
    return {"bytes": after - before, "missing": missing}


def _filling(
    side: str, loop: Any, executor: RateLimitedExecutor, delays: Sequence[float], items: Sequence[int]
) -> tuple[Callable[[], Any], Callable[[], int]]:
    """Return a function that schedules the tasks, and one that counts those that are pending."""
    if side.startswith("loop."):
        owner, before = loop, len(loop._scheduled)
        return _calls(side, owner, delays, items, loop), lambda: len(loop._scheduled) - before
    if side.startswith("call_later"):
        return _calls(side, executor, delays, items, loop), lambda: executor.statistics().waiting
    many: dict[str, Any] = {
        "delays=": {"delays": delays},
        "over=": {"over": LAST_SECONDS},
        "at=": {"at": time.time() + FIRST_SECONDS},
        "delay=": {"delay": FIRST_SECONDS},
    }
    if side.startswith("schedule_many"):
        times = many[side.split()[1]]
        return lambda: executor.schedule_many(_work_one, items, **times), lambda: executor.statistics().waiting
    return (
        lambda: [executor.schedule(_work, delay=delay) for delay in delays],
        lambda: executor.statistics().waiting,
    )


def _calls(side: str, owner: Any, delays: Sequence[float], items: Sequence[int], loop: Any) -> Callable[[], Any]:
    def dropped() -> None:
        for delay in delays:
            owner.call_later(delay, _work)

    def kept() -> list[Any]:
        return [owner.call_later(delay, _work) for delay in delays]

    def with_argument() -> None:
        for delay, item in zip(delays, items, strict=True):
            owner.call_later(delay, _work_one, item)

    def with_future() -> list[Any]:
        futures = [loop.create_future() for _ in delays]
        for delay, future in zip(delays, futures, strict=True):
            owner.call_later(delay, future.set_result, None)
        return futures

    def with_argument_kept() -> list[Any]:
        return [owner.call_later(delay, _work_one, item) for delay, item in zip(delays, items, strict=True)]

    forms = {"handle kept": kept, "own argument": with_argument, "own argument and handle kept": with_argument_kept}
    return with_future if side.endswith("future") else forms.get(side.partition(", ")[2], dropped)


def _work() -> None:
    """Do nothing."""


def _work_one(_: object) -> None:
    """Do nothing."""


def _reading(how: str) -> int:
    """Return the bytes in use, after a garbage collection."""
    gc.collect()
    if how == "traced":
        return tracemalloc.get_traced_memory()[0]
    return resident_bytes()
