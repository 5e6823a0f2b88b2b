"""One put alone: ours beside a bare insert of one row in a transaction of its own, through the same driver."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.durable.queues.ours import STORES, make_store
from bench.harness import Figure, Table, Target, ratio
from ratelimited_executor.durable import DurableTasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from bench.durable.places import Place, Servers
    from bench.harness import Options

__all__ = ["table"]

ROUNDS = 15  # short rounds, so that a short disturbance affects both sides
_INSERT = "insert into bare (id, body) values ({}, {})"
_BODY = b"[[123456], {}]"
_KINDS = {"SQLite": Target(">= 0.8 x", 0.8), "SQLite, bare in a thread": None, "PostgreSQL": None}


def table(options: Options, servers: Servers) -> Table:
    """Measure SQLite, and PostgreSQL if it is available."""
    filled = Table("One put alone, beside a bare insert", ["bare", "ours", "of the bare speed"])
    for kind in _KINDS:
        server = STORES[kind.partition(",")[0]]
        if servers.has(server):
            with servers.place(server) as place, options.runner(uvloop=False) as runner:
                _compare(filled, kind, options, place, runner)
        else:
            filled.notes.append(f"{kind}: left out, as there is no server ({servers.missing[server]})")
    filled.notes += [
        f"to write a page of 4 KiB to a file there and to sync it takes {servers.sync_us:.0f} us",
        "microseconds by the clock for one put after the other, each awaited; the bare side makes one row of an id and a body",
        "SQLite: apsw, WAL, synchronous=FULL, on the event loop's thread, which is held meanwhile",
        "bare in a thread: the same through asyncio.to_thread, which a store that does not hold the loop needs, too",
        "PostgreSQL: an AsyncConnection of psycopg with autocommit",
    ]
    return filled


def _compare(filled: Table, kind: str, options: Options, place: Place, runner: asyncio.Runner) -> None:
    count = options.size(200, 5)

    async def both() -> dict[str, list[float]]:
        rounds: dict[str, list[float]] = {"bare": [], "ours": []}
        async with _bare(kind, place) as bare, _ours(kind, place) as ours:
            sides = {"bare": bare, "ours": ours}
            for turn in range(1 + options.rounds(ROUNDS)):  # the first round does not count
                for side in list(sides)[:: 1 if turn % 2 == 0 else -1]:
                    spent = await _time(sides[side], count)
                    rounds[side] += [spent] * bool(turn)
        return rounds

    options.note(f"one put: {kind}")
    rounds = runner.run(both())
    share = ratio(rounds["bare"], rounds["ours"], target=_KINDS[kind])
    cells: dict[str, Figure | str] = {side: Figure(values, "us") for side, values in rounds.items()}
    filled.add(kind, {**cells, "of the bare speed": share})


async def _time(put: Callable[[int], Awaitable[object]], count: int) -> float:
    """Return the microseconds of one put."""
    await asyncio.sleep(0.02)  # until then the other side has finished its work in the background
    begin = time.perf_counter()
    for number in range(count):
        await put(number)
    return (time.perf_counter() - begin) * 1e6 / count


@contextlib.asynccontextmanager
async def _ours(kind: str, place: Place) -> AsyncIterator[Callable[[int], Awaitable[object]]]:
    async with DurableTasks(make_store(kind.partition(",")[0], place)) as tasks:

        @tasks.task
        async def task(number: int) -> None:
            del number

        yield task.put


@contextlib.asynccontextmanager
async def _bare(kind: str, place: Place) -> AsyncIterator[Callable[[int], Awaitable[object]]]:
    if kind == "PostgreSQL":
        import psycopg  # noqa: PLC0415  # an extra, imported on use

        async with await psycopg.AsyncConnection.connect(place.postgres, autocommit=True) as connection:
            await connection.execute("create table bare (number bigserial primary key, id text unique, body bytea)")
            yield lambda _: connection.execute(_INSERT.format("%s", "%s"), [_new_id(), _BODY])
        return
    file = _bare_file(place)
    insert = partial(_insert, file)
    if kind == "SQLite":

        async def put(_: int) -> None:
            insert()
    else:

        async def put(_: int) -> None:
            await asyncio.to_thread(insert)

    yield put
    file.close()


def _bare_file(place: Place) -> Any:
    import apsw  # noqa: PLC0415  # an extra, imported on use

    file = apsw.Connection(str(Path(place.folder) / "bare.db"))
    file.execute("pragma journal_mode = wal")
    file.execute("pragma synchronous = full")
    file.execute("create table bare (number integer primary key, id text not null unique, body blob not null) strict")
    return file


def _insert(file: Any) -> None:
    file.execute(_INSERT.format("?", "?"), [_new_id(), _BODY])


def _new_id() -> str:
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(8).hex()}"
