"""Put, claim, run, acknowledge: tasks per second of ours and of other queues, each round in a process of its own."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import importlib.metadata
import os
import re
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench.durable.places import Place
from bench.durable.queues import ALL, named
from bench.harness import Chart, Figure, Series, Table, Target, fresh, has_module, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.durable.places import Servers
    from bench.durable.queues import Queue
    from bench.harness import Options

__all__ = ["PYTHONS_VARIABLE", "is_installed", "measure", "table"]

PYTHONS_VARIABLE: Final = "BENCH_DURABLE_PYTHONS"
"""Names interpreters, separated as in PATH, for queues that conflict with other packages; each needs anyio as well."""
ROUNDS: Final = 3
_WARM_COUNT: Final = 50  # tasks that pass through everything before the measurement
_QUICK_COUNT: Final = 50
_SECONDS_MAX: Final = 60.0  # for one part of a round; a queue that takes longer has failed
_ROUND_SECONDS_MAX: Final = 180.0
_POLL_SECONDS: Final = 0.002  # between two checks whether all tasks are acknowledged
_COLUMNS: Final = (
    "tasks",
    "put one by one",
    "put many",
    "run",
    "put and run",
    "ours is",
    "a put task is",
    "how a task ends",
)
_BESIDE: Final = {"": "ours, SQLite", "postgres": "ours, PostgreSQL", "redis": "ours, Redis"}


class _Runs:
    """Counts which tasks have run, and reports when all have."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self._left = 0
        self.counts = [0] * count

    def expect(self, count: int) -> asyncio.Event:
        """Return an event that is set after a number of further runs."""
        self._left, self._done = count, asyncio.Event()
        return self._done

    def ran(self, number: int) -> None:
        """Count a run; any thread may call this, but for each queue only one does at a time."""
        self.counts[number] += 1
        self._left -= 1
        if not self._left:
            self._loop.call_soon_threadsafe(self._done.set)


def table(options: Options, servers: Servers) -> Table:
    """Measure all queues that are installed and have their server."""
    filled = Table("Put, claim, run, acknowledge: one worker, trivial tasks", _COLUMNS)
    queues: dict[str, str] = {}
    for queue in ALL:
        python = _python(queue) if servers.has(queue.server) else None
        if not servers.has(queue.server):
            filled.notes.append(f"{queue.name}: left out, as there is no server ({servers.missing[queue.server]})")
        elif python is None:
            filled.notes.append(f"{queue.name}: left out, as {queue.distribution or queue.package} is not installed")
        else:
            queues[queue.name] = python
    if "ours, Redis" not in {queue.name for queue in ALL}:
        filled.notes.append("ours, Redis: left out, as there is no such store yet")
    rounds = options.in_turns(
        {name: partial(_round, options, servers, named(name), python) for name, python in queues.items()},
        rounds=options.rounds(ROUNDS),
        warm_up=0,
        label="throughput",
    )
    for name, results in rounds.items():
        _add(filled, named(name), results, rounds)
    filled.notes += [f"{name}: {settings}" for name in rounds if (settings := named(name).settings)]
    filled.notes.append(
        "ours is: how many times faster, put and run, than the other one on the same kind of server or file"
    )
    filled.charts.append(_chart(filled))
    return filled


def _round(options: Options, servers: Servers, queue: Queue, python: str) -> dict[str, Any]:
    """Measure one round of a queue; an error of another library is a result like any other."""
    count = options.size(queue.count, _QUICK_COUNT)
    with servers.place(queue.server) as place:
        try:
            measured: dict[str, Any] = fresh(
                "bench.durable.throughput:measure",
                python=(python,),
                name=queue.name,
                count=count,
                place=place._asdict(),
            )
        except RuntimeError as error:
            if _is_ours(queue):
                raise
            return {"count": count, "error": str(error).rstrip().rpartition("\n")[2]}
    return measured


def _add(
    filled: Table, queue: Queue, results: Sequence[dict[str, Any]], rounds: dict[str, list[dict[str, Any]]]
) -> None:
    errors = [each["error"] for each in results if "error" in each]
    if errors:
        filled.notes.append(f"{queue.name}: failed in {len(errors)} of {len(results)} rounds, first with {errors[0]}")
        return

    def rate(part: str, of: Sequence[dict[str, Any]] = results) -> list[float]:
        return [each[part] for each in of]

    target = None if queue.target is None else Target(f">= {queue.target:,.0f}/s", queue.target)
    cells: dict[str, Figure | str] = {
        "tasks": f"{results[0]['count']:,}",
        "put one by one": Figure(rate("each"), "/s", smaller_is_better=False),
        "put many": Figure(rate("many"), "/s", smaller_is_better=False) if queue.has_many else "has no such call",
        "run": Figure(rate("run"), "/s", smaller_is_better=False),
        "put and run": Figure(rate("all"), "/s", smaller_is_better=False, target=target),
        "a put task is": queue.is_durable,
        "how a task ends": queue.ends,
    }
    beside = rounds.get(_BESIDE[queue.server])
    if beside is not None and not _is_ours(queue):
        cells["ours is"] = ratio(rate("all", beside), rate("all"))
    filled.add(queue.name, cells)
    lost, doubled = (sum(each[part] for each in results) for part in ("lost", "doubled"))
    if _is_ours(queue):
        filled.check("tasks of ours lost", lost)
        filled.check("tasks of ours run twice", doubled)
    elif lost or doubled:
        filled.notes.append(f"{queue.name}: {lost} tasks lost, {doubled} run twice")


def _is_ours(queue: Queue) -> bool:
    return not queue.package


def _chart(filled: Table) -> Chart:
    medians = {
        name: cell.median for name, cells in filled.rows.items() if isinstance(cell := cells["put and run"], Figure)
    }
    return Chart(
        filled.title, "", "tasks a second", [Series("put and run", list(medians), list(medians.values()))], kind="bar"
    )


def measure(*, name: str, count: int, place: dict[str, str]) -> dict[str, Any]:
    """Put tasks one by one and run them; put as many with the call that takes many, and run those.

    Returns:
        Tasks per second for each part, and how many were lost and run twice; "all" uses the faster way to put.
    """
    faulthandler.dump_traceback_later(_ROUND_SECONDS_MAX, exit=True)  # some queues sometimes cannot be stopped
    measured = asyncio.run(_measure(named(name), count, Place(**place)))
    faulthandler.cancel_dump_traceback_later()
    return measured


async def _measure(queue: Queue, count: int, place: Place) -> dict[str, Any]:
    runs = _Runs(_WARM_COUNT + 2 * count)
    warm = range(_WARM_COUNT)
    first = range(warm.stop, warm.stop + count)
    second = range(first.stop, first.stop + count)
    seconds: dict[str, float] = {}
    async with queue.open(place, runs.ran) as opened:
        await opened.put_each(warm)
        await _run(opened, runs, len(warm))
        gc.collect()
        begin = time.perf_counter()
        async with asyncio.timeout(_SECONDS_MAX):
            await opened.put_each(first)
        seconds["each"] = time.perf_counter() - begin
        seconds["run"] = seconds["last"] = await _run(opened, runs, count)
        if queue.has_many:
            gc.collect()
            begin = time.perf_counter()
            async with asyncio.timeout(_SECONDS_MAX):
                await opened.put_many(second)
            seconds["many"] = time.perf_counter() - begin
            seconds["last"] = await _run(opened, runs, count)
            seconds["run"] = (seconds["run"] + seconds["last"]) / 2
    seconds["all"] = seconds.get("many", seconds["each"]) + seconds.pop("last")
    expected = runs.counts if queue.has_many else runs.counts[: second.start]
    return {
        "count": count,
        **{part: count / spent for part, spent in seconds.items()},
        "lost": expected.count(0),
        "doubled": sum(each > 1 for each in expected),
    }


async def _run(opened: Any, runs: _Runs, count: int) -> float:
    """Run all tasks in the queue with one worker; return the seconds from its start until the last is acknowledged."""
    done = runs.expect(count)
    begin = time.perf_counter()
    async with opened.working(), asyncio.timeout(_SECONDS_MAX):
        await done.wait()
        while await opened.left():  # noqa: ASYNC110  # a store of others tells nobody
            await asyncio.sleep(_POLL_SECONDS)
        return time.perf_counter() - begin


# Which interpreter has which queue


def is_installed(*, name: str) -> bool:
    """Return whether the running interpreter has what a queue needs."""
    queue = named(name)
    if not all(has_module(package) for package in (queue.package, *queue.needs) if package):
        return False
    if not queue.least:
        return True
    version = importlib.metadata.version(queue.distribution or queue.package)
    return tuple(int(part) for part in re.findall(r"\d+", version)[: len(queue.least)]) >= queue.least


def _python(queue: Queue) -> str | None:
    """Return the interpreter that has what a queue needs: this one or one that the user names; None if none has."""
    if is_installed(name=queue.name):
        return sys.executable
    for python in filter(None, os.environ.get(PYTHONS_VARIABLE, "").split(os.pathsep)):
        if fresh("bench.durable.throughput:is_installed", python=(python,), name=queue.name):
            return python
    return None
