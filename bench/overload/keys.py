"""The bytes that keys cost, per task that waits for its key's turn and per key, traced and resident.

As in ``bench/memory.py`` each figure comes from a process of its own. Keys are created before the first reading, as
they belong to the caller; handles are kept, and count. All tasks are due, and the executor has queued them before the
second reading; its rate is 0, so that none starts.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench.harness import Figure, Table, Target, fresh
from bench.resident import resident_bytes
from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.orders import Fair

if TYPE_CHECKING:
    from bench.harness import Options

__all__ = ["measure", "measure_keys"]

ROUNDS = 3
SETTLED_CPU_SECONDS = 0.002  # the CPU time of a tenth of a second on the loop when nothing is left to do is below this
_BASE = "no keys, default order"
_TASK, _KEY = Target("<= 200 B a task", 200), Target("<= 300 B a key, in all", 300)

# Side -> (its keys: "none", "many", "each"; whether the order is Fair(); whether keys have limits).
_SIDES: Final = {
    _BASE: ("none", False, False),
    "no keys, Fair()": ("none", True, False),
    "many keys": ("many", True, False),
    "many keys with limits": ("many", True, True),
    "a key for each task": ("each", True, False),
    "a key for each task, with limits": ("each", True, True),
}


def measure(options: Options) -> Table:
    """Measure every side, each round in fresh processes."""
    count, key_count = options.size(1_000_000, 2_000), options.size(10_000, 50)
    sides = list(_SIDES)[::2] if options.quick else list(_SIDES)  # a process for each side takes seconds
    rounds = options.in_turns(
        {
            f"{side}|{how}": partial(
                fresh, "bench.overload.keys:measure_keys", side=side, how=how, count=count, key_count=key_count
            )
            for side in sides
            for how in ("traced", "resident")
        },
        rounds=options.rounds(ROUNDS),
        warm_up=0,
        label="memory of keys",
    )
    table = Table(
        f"Memory: {count:,} tasks wait, 'many' keys are {key_count:,}",
        ["traced a task", "resident a task", "traced, for the keys", "resident, for the keys"],
    )
    bases = {how: [each["bytes"] for each in rounds[f"{_BASE}|{how}"]] for how in ("traced", "resident")}
    for side in sides:
        target = {"many": _TASK, "each": _KEY}.get(_SIDES[side][0])
        cells: dict[str, Figure | str] = {}
        for how, base in bases.items():
            values = [each["bytes"] for each in rounds[f"{side}|{how}"]]
            cells[f"{how} a task"] = Figure([value / count for value in values], "B", target=target)
            if side != _BASE:
                extra = [(value - other) / count for value, other in zip(values, base, strict=True)]
                cells[f"{how}, for the keys"] = Figure(extra, "B")
        table.add(side, cells)
    table.check("tasks not waiting at the reading", sum(abs(m["missing"]) for side in rounds.values() for m in side))
    table.notes.append("Handles are kept, and count.")
    table.notes.append(f"'For the keys': beyond what the same tasks take as '{_BASE}', for each task.")
    table.notes.append("With a key for each task, bytes a task are bytes a key. The keys themselves are the caller's.")
    table.notes.append("Limits are a rate and a concurrency for each key; nothing has started, so none is used up.")
    return table


# In a process of its own.


def measure_keys(*, side: str, how: str, count: int, key_count: int) -> dict[str, float]:
    """Submit tasks in this process; return the bytes that this adds, and how many of the tasks do not wait.

    Args:
        side: a key of the table of sides.
        how: "traced" or "resident".
        count: how many tasks.
        key_count: how many keys, if they are "many".
    """
    return asyncio.run(_measure(side, how, count, key_count))


async def _measure(side: str, how: str, count: int, key_count: int) -> dict[str, float]:
    which, is_fair, is_limited = _SIDES[side]
    tenants = [f"tenant {number}" for number in range({"none": 0, "many": key_count, "each": count}[which])]
    keys = [tenants[number % len(tenants)] if tenants else None for number in range(count)]
    settings: dict[str, Any] = {"order": Fair()} if is_fair else {}
    if is_limited:
        settings |= {"key_rate": "1/s", "key_concurrency": 1}
    async with RateLimitedExecutor("bench", rate=0, drain_timeout=0, **settings) as executor:
        if how == "traced":
            tracemalloc.start()
        before = _reading(how)
        kept = [executor.submit(_work) if key is None else executor.submit(_work, key=key) for key in keys]
        await _settle()
        after = _reading(how)
        missing = count - executor.statistics().overdue
        tracemalloc.stop()  # the rest only cleans up
        gc.freeze()
        del kept
    return {"bytes": after - before, "missing": missing}


async def _settle() -> None:
    """Wait until the executor has queued all tasks."""
    spent = float("inf")
    while spent > SETTLED_CPU_SECONDS:
        before = time.process_time()
        await asyncio.sleep(0.1)
        spent = time.process_time() - before


def _work() -> None:
    """Do nothing."""


def _reading(how: str) -> int:
    """Return the bytes in use, after a garbage collection."""
    gc.collect()
    if how == "traced":
        return tracemalloc.get_traced_memory()[0]
    return resident_bytes()
