"""Claims on PostgreSQL while another transaction is held open, so that ended tasks cannot be cleaned up."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from typing import TYPE_CHECKING, Any, Final

from bench.countdown import percentiles
from bench.durable.places import Place
from bench.durable.queues.ours import make_store
from bench.harness import Figure, Table, Target, fresh
from ratelimited_executor._core.durable.tasks import Claim, End, NewTask, TaskOutcome
from ratelimited_executor._runtime.time.clock import SystemClock

if TYPE_CHECKING:
    from bench.durable.places import Servers
    from bench.harness import Options
    from ratelimited_executor.abc import TaskStore

__all__ = ["MINUTES_VARIABLE", "measure", "table"]

MINUTES_VARIABLE: Final = "BENCH_DURABLE_HELD_MINUTES"
"""Sets for how many minutes the transaction is held open; the default is one, and the target is meant for ten."""
JUDGED_SECONDS: Final = 600.0
_PER_TURN: Final = 5  # tasks that are put, claimed and finished in a turn
_TURN_SECONDS: Final = 0.01  # from one turn to the next
_CLAIM_COUNT: Final = 100  # at most
_WARM_SECONDS: Final = 2.0
_WINDOW_SECONDS: Final = 20.0  # the time over which percentiles are taken
_LEASE_US: Final = 7_200_000_000
_TWICE: Final = Target("<= 2 x", 2.0)


def table(options: Options, servers: Servers) -> Table:
    """Measure PostgreSQL if it is available."""
    minutes = float(os.environ.get(MINUTES_VARIABLE, "0"))
    held = minutes * 60 or options.seconds(60.0, 0.6)
    window = min(_WINDOW_SECONDS, held / 2)
    filled = Table(
        f"A claim on PostgreSQL while a transaction is held open for {held:g} s",
        ["p50", "p99", "p99 of that before", "put, claimed and finished"],
    )
    if not servers.has("postgres"):
        filled.notes.append(f"left out, as there is no server ({servers.missing['postgres']})")
        return filled
    options.note(f"held open: {held:g} s")
    with servers.place("postgres") as place:
        measured = fresh("bench.durable.held:measure", held=held, window=window, place=place._asdict())
    before = measured["before, the last"]["p99"]
    for name, each in measured.items():
        is_judged = name == "held open, the last" and held >= JUDGED_SECONDS
        filled.add(
            f"{name} {window:g} s",
            {
                "p50": Figure([each["p50"]], "ms"),
                "p99": Figure([each["p99"]], "ms"),
                "p99 of that before": Figure([each["p99"] / before], "x", target=_TWICE if is_judged else None),
                "put, claimed and finished": Figure([each["rate"]], "/s", smaller_is_better=False),
            },
        )
        filled.check("claims that missed a task", each["missed"])
    filled.notes += [
        f"{_PER_TURN / _TURN_SECONDS:g} tasks a second are put, claimed and finished, {_PER_TURN} in a turn",
        "the claims are timed, in milliseconds by the clock",
        f"the target, <= 2 x, is judged if the transaction is held for {JUDGED_SECONDS:g} s",
    ]
    return filled


def measure(*, held: float, window: float, place: dict[str, str]) -> dict[str, dict[str, float]]:
    """Return percentiles of claims in milliseconds: before, while and after the transaction is held open."""
    return asyncio.run(_measure(held, window, Place(**place)))


async def _measure(held: float, window: float, place: Place) -> dict[str, dict[str, float]]:
    import psycopg  # noqa: PLC0415  # an extra, imported on use

    store = make_store("PostgreSQL", place)
    await store.open(SystemClock())
    await store.join("bench", _LEASE_US)
    numbers = itertools.count()
    await _work(store, numbers, min(_WARM_SECONDS, window))
    measured = {"before, the last": await _work(store, numbers, window)}
    async with await psycopg.AsyncConnection.connect(place.postgres) as other:
        await other.execute("set transaction isolation level repeatable read")
        await other.execute("select pg_current_xact_id(), count(*) from durable_tasks")
        measured["held open, the first"] = await _work(store, numbers, window)
        await _work(store, numbers, max(0.0, held - 2 * window))
        measured["held open, the last"] = await _work(store, numbers, window)
        await other.rollback()
    await _work(store, numbers, min(_WARM_SECONDS, window))
    measured["after, the first"] = await _work(store, numbers, window)
    await store.leave("bench")
    await store.aclose()
    return measured


async def _work(store: TaskStore, numbers: Any, seconds: float) -> dict[str, float]:
    """Put, claim and finish tasks for a number of seconds."""
    begin = turn = time.perf_counter()
    spent: list[float] = []
    missed = done = 0
    while turn < begin + seconds or not spent:
        await store.put([NewTask(id=f"{next(numbers):018}", name="task", body=b"[[1],{}]") for _ in range(_PER_TURN)])
        before = time.perf_counter()
        claims = await store.claim(Claim(owner="bench", count=_CLAIM_COUNT, ahead_us=2_000_000))
        spent.append((time.perf_counter() - before) * 1e3)
        assert claims is not None
        missed += len(claims.tasks) != _PER_TURN
        done += sum(await store.finish([TaskOutcome(each.ref, End.DONE) for each in claims.tasks]))
        turn = max(turn + _TURN_SECONDS, time.perf_counter())  # a turn that is late is not made up for
        await asyncio.sleep(turn - time.perf_counter())
    p50, p99, _ = percentiles(spent)
    return {"p50": p50, "p99": p99, "rate": done / (time.perf_counter() - begin), "missed": missed}
