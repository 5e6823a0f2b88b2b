"""The cost of a claim of a hundred tasks, while ten thousand to a million wait for later and as many are ready."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.durable.places import Place
from bench.durable.queues.ours import STORES, make_store
from bench.harness import Chart, Figure, Series, Table, Target, fresh
from ratelimited_executor._core.durable.tasks import Claim, End, NewTask, TaskOutcome
from ratelimited_executor._runtime.time.clock import SystemClock

if TYPE_CHECKING:
    from bench.durable.places import Servers
    from bench.harness import Options
    from ratelimited_executor.abc import TaskStore

__all__ = ["WAITING_VARIABLE", "measure", "table"]

WAITING_VARIABLE: Final = "BENCH_DURABLE_WAITING"
"""Sets the largest number of waiting tasks; the default is a million."""
_LEAST: Final = 10_000
_STEP: Final = 10  # from one size to the next
_CLAIM_COUNT: Final = 100
_CLAIMS: Final = 20  # how many claims a value is the median of
_VALUES: Final = 5
_CHUNK: Final = 1000  # tasks in one put
_LEASE_US: Final = 3_600_000_000
_LATER_US: Final = 86_400_000_000  # a day, so that no claim here reaches them
_FLAT: Final = Target("<= 1.5 x", 1.5)
_SEED_BODY: Final = b"[[123456],{}]"


def table(options: Options, servers: Servers) -> Table:
    """Fill each store that is available step by step, in a process of its own."""
    greatest = int(os.environ.get(WAITING_VARIABLE, "0")) or options.size(1_000_000, 1_000)
    sizes = [_LEAST]
    while sizes[-1] * _STEP <= greatest:
        sizes.append(sizes[-1] * _STEP)
    if greatest < _LEAST:
        sizes = [max(_CLAIM_COUNT, greatest // _STEP), greatest]
    filled = Table(
        f"A claim of {_CLAIM_COUNT} tasks, with many waiting",
        ["a claim", "of that with the fewest", "bytes a task", "put many"],
    )
    series = []
    for kind, server in STORES.items():
        if not servers.has(server):
            filled.notes.append(f"{kind}: left out, as there is no server ({servers.missing[server]})")
            continue
        options.note(f"claims: {kind}, up to {2 * sizes[-1]:,} tasks")
        with servers.place(server) as place:
            measured = fresh("bench.durable.claims:measure", kind=kind, sizes=sizes, place=place._asdict())
        _add(filled, kind, sizes, measured)
        series.append(Series(kind, sizes, [statistics.median(each["claims"]) for each in measured]))
    filled.notes += [
        "as many are ready as wait for later, of which none is due for a day",
        "what is claimed is finished and put again between two claims, untimed",
        f"a value is the median of {_CLAIMS} claims, in milliseconds by the clock",
        "bytes: of the file after a checkpoint, of the database less an empty one, of the server's memory for Redis",
        "put many: tasks a second while it was filled, chunks of 1,000 made beforehand",
    ]
    filled.charts.append(Chart(filled.title, "tasks waiting for later, and ready", "ms", series, log="xy"))
    return filled


def _add(filled: Table, kind: str, sizes: list[int], measured: list[dict[str, Any]]) -> None:
    fewest = statistics.median(measured[0]["claims"])
    for size, each in zip(sizes, measured, strict=True):
        cells: dict[str, Figure | str] = {
            "a claim": Figure(each["claims"], "ms"),
            "of that with the fewest": Figure([value / fewest for value in each["claims"]], "x", target=_FLAT),
            "put many": Figure([each["put"]], "/s", smaller_is_better=False),
        }
        if each["bytes"] is not None:
            cells["bytes a task"] = Figure([each["bytes"]], "B")
        filled.add(f"{kind}, {size:,} ready, {size:,} later", cells)
        filled.check("claims that were not full", each["short"])


def measure(*, kind: str, sizes: list[int], place: dict[str, str]) -> list[dict[str, Any]]:
    """Return for each size the milliseconds of the claims, the bytes per task, and how fast the store was filled."""
    return asyncio.run(_measure(kind, sizes, Place(**place)))


async def _measure(kind: str, sizes: list[int], place: Place) -> list[dict[str, Any]]:
    store = make_store(kind, place)
    await store.open(SystemClock())
    await store.join("bench", _LEASE_US)
    empty = _bytes(kind, place)
    measured = []
    there = 0
    for size in sizes:
        spent = await _fill(store, there, size)
        claims = []
        short = 0
        await _claim(store, _VALUES)  # the first claims after a store was filled are not typical
        for _ in range(_VALUES):
            seconds, missed = await _claim(store, _CLAIMS)
            claims.append(statistics.median(seconds) * 1e3)
            short += missed
        full = _bytes(kind, place)
        measured.append(
            {
                "claims": claims,
                "short": short,
                "bytes": None if full is None or empty is None else (full - empty) / (2 * size),
                "put": 2 * (size - there) / spent,
            }
        )
        there = size
    await store.leave("bench")
    await store.aclose()
    return measured


async def _fill(store: TaskStore, start: int, end: int) -> float:
    """Put tasks of both kinds; return the seconds that the store took."""
    spent = 0.0
    for first in range(start, end, _CHUNK // 2):
        last = min(end, first + _CHUNK // 2)
        tasks = [_task(f"r{number:018}") for number in range(first, last)]
        tasks += [_task(f"l{number:018}", delay_us=_LATER_US + number * 1000) for number in range(first, last)]
        begin = time.perf_counter()
        await store.put(tasks)
        spent += time.perf_counter() - begin
    return spent


def _task(id: str, *, delay_us: int = 0) -> NewTask:
    return NewTask(id=id, name="task", body=_SEED_BODY, delay_us=delay_us)


async def _claim(store: TaskStore, times: int) -> tuple[list[float], int]:
    """Claim a number of times; return the seconds of each claim, and how many claims were not full."""
    seconds: list[float] = []
    short = 0
    for _ in range(times):
        begin = time.perf_counter()
        claims = await store.claim(Claim(owner="bench", count=_CLAIM_COUNT, ahead_us=2_000_000))
        seconds.append(time.perf_counter() - begin)
        assert claims is not None
        short += len(claims.tasks) != _CLAIM_COUNT
        await store.finish([TaskOutcome(each.ref, End.DONE) for each in claims.tasks])
        await store.put([_task(each.id) for each in claims.tasks])
    return seconds, short


def _bytes(kind: str, place: Place) -> int | None:
    """Return the bytes that the store takes in total; None if they cannot be found out."""
    if kind == "SQLite":
        import apsw  # noqa: PLC0415  # an extra, imported on use

        path = Path(place.folder) / "tasks.db"
        file = apsw.Connection(str(path))
        file.execute("pragma wal_checkpoint(truncate)").fetchall()
        file.close()
        return path.stat().st_size
    if kind == "PostgreSQL":
        import psycopg  # noqa: PLC0415  # an extra, imported on use

        with psycopg.connect(place.postgres, autocommit=True) as connection:
            [[size]] = connection.execute("select pg_database_size(current_database())")
        return int(size)
    if kind == "Redis":
        import redis  # noqa: PLC0415  # an extra, imported on use

        with redis.Redis.from_url(place.redis) as client:
            return int(client.info("memory")["used_memory"])
    return None
