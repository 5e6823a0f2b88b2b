"""The time from when a task is due until it starts, on an executor that has nothing else to do."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.countdown import percentiles
from bench.durable.places import Place
from bench.durable.queues.ours import STORES, make_store
from bench.harness import Figure, Table, Target, fresh
from ratelimited_executor import Pacing, RateLimitedExecutor
from ratelimited_executor.durable import DurableTasks

if TYPE_CHECKING:
    from bench.durable.places import Servers
    from bench.harness import Options

__all__ = ["CASES", "measure", "table"]

ROUNDS = 3
CASES = ("alone", "among others")
_GAP_SECONDS = 0.02  # from one put to the next, on average
_ALONE_SECONDS = (0.005, 0.05)  # from a put until its task is due; most of the others are put after its start
_AMONG_SECONDS = (0.05, 4.0)  # so that a hundred tasks wait at the same time
_SEED = 1
_P99 = Target("p99 <= 5 ms", 5.0)


def table(options: Options, servers: Servers) -> Table:
    """Measure each store that is available, each round in a process of its own."""
    filled = Table("From due to started, on an idle executor", ["p50", "p99", "greatest", "tasks"])
    kinds = [kind for kind, server in STORES.items() if kind != "memory" and servers.has(server)]
    count = options.size(300, 10)
    rounds = options.in_turns(
        {
            f"{kind}, {case}": partial(_round, servers, kind, case, count)
            for kind in kinds
            for case in CASES
            if case == "alone" or not options.quick
        },
        rounds=options.rounds(ROUNDS),
        warm_up=0,
        label="latency",
    )
    for name, results in rounds.items():
        p50, p99, greatest = ([each[part] for each in results] for part in ("p50", "p99", "greatest"))
        filled.add(
            name,
            {
                "p50": Figure(p50, "ms"),
                "p99": Figure(p99, "ms", target=_P99),
                "greatest": Figure(greatest, "ms"),
                "tasks": f"{count:,}",
            },
        )
        filled.check("tasks lost or run twice", sum(each["lost"] for each in results))
        filled.check("tasks that started early", sum(each["early"] for each in results))
    filled.notes += [
        "by the wall clock, the start less the time that the put named; Pacing.ON_TIME, no rate",
        f"a put every {_GAP_SECONDS * 1e3:g} ms on average, at random moments",
        f"alone: due {_ALONE_SECONDS[0]:g} to {_ALONE_SECONDS[1]:g} s later, so that one or two wait at a time",
        f"among others: due {_AMONG_SECONDS[0]:g} to {_AMONG_SECONDS[1]:g} s later, so that a hundred wait at a time",
        "among others, many a task is put that is due before those that were claimed ahead of their time",
    ]
    return filled


def _round(servers: Servers, kind: str, case: str, count: int) -> dict[str, Any]:
    with servers.place(STORES[kind]) as place:
        measured: dict[str, Any] = fresh(
            "bench.durable.latency:measure", kind=kind, case=case, count=count, place=place._asdict()
        )
    return measured


def measure(*, kind: str, case: str, count: int, place: dict[str, str]) -> dict[str, float]:
    """Put tasks at random times, and return how late they started, in milliseconds."""
    return asyncio.run(_measure(kind, case, count, Place(**place)))


async def _measure(kind: str, case: str, count: int, place: Place) -> dict[str, float]:
    tasks = DurableTasks(make_store(kind, place))
    chosen = random.Random(_SEED)
    least, most = _ALONE_SECONDS if case == "alone" else _AMONG_SECONDS
    late: list[float] = []
    done = asyncio.Event()

    @tasks.task
    async def task(due: float) -> None:
        late.append((time.time() - due) * 1e3)
        if len(late) == count:
            done.set()

    async with RateLimitedExecutor("bench", pacing=Pacing.ON_TIME) as executor, tasks.running(executor):
        for _ in range(count):
            await asyncio.sleep(chosen.expovariate(1 / _GAP_SECONDS))
            due = time.time() + chosen.uniform(least, most)
            await task.put(due, at=due)
        async with asyncio.timeout(60):
            await done.wait()
        await asyncio.sleep(0.05)  # a run too many would come now
    p50, p99, greatest = percentiles(late)
    early = sum(each < -1 for each in late)  # a millisecond, in case the clock is set
    return {"p50": p50, "p99": p99, "greatest": greatest, "lost": abs(count - len(late)), "early": early}
