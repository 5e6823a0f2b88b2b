"""Stores in a file of SQLite, for the processes of one machine.

Of each turn of a cycle a row says whose it is, until when, and whether it is complete; while it is not, a row for each key
says that the key is through.
"""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor._core.cycles import check_shape
from ratelimited_executor.abc import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

__all__ = ["SQLiteProgress"]

_BUSY_SECONDS: Final = 30.0  # for which another process may hold the file
_SCHEMA: Final = """
create table if not exists cycles (
    name text primary key,
    shape text not null,
    since integer not null
) without rowid;
create table if not exists turns (
    name text not null,
    turn integer not null,
    owner text,
    until real not null,
    is_complete integer not null default 0,
    primary key (name, turn)
) without rowid;
create table if not exists keys_done (
    name text not null,
    turn integer not null,
    key blob not null,
    primary key (name, turn, key)
) without rowid;
"""


class SQLiteProgress(Progress):
    """Progress in a file, for one process or several on one machine.

    Every change is a transaction in a worker thread; the file is in WAL mode, so the end of the process undoes nothing.
    The loss of power may undo the last of them: their keys are run again.

    Args:
        path: of the file; it is made if it is not there. Not on a network drive.

    Raises:
        TypeError: if the path is neither a text nor a path.
        ValueError: if it is empty.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        if not isinstance(path, (str, PathLike)):
            raise TypeError(f"path must be the path of a file, got {path!r}")
        if not str(path):
            raise ValueError("path must be the path of a file, got an empty text")
        self._path = Path(path)
        self._connection: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None  # one, so that one transaction comes after the other

    async def begin(self, name: str, shape: str, turn: int) -> int:
        def work(connection: sqlite3.Connection) -> tuple[str, int]:
            connection.execute("insert or ignore into cycles values (?, ?, ?)", (name, shape, turn))
            found: tuple[str, int] = connection.execute(
                "select shape, since from cycles where name = ?", (name,)
            ).fetchone()
            return found

        known, since = await self._run(work)
        check_shape(name, known, shape)
        return since

    async def open_turns(self, name: str, first: int, last: int) -> list[int]:
        def work(connection: sqlite3.Connection) -> list[int]:
            question = "select turn from turns where name = ? and is_complete and turn between ? and ?"
            complete = {turn for (turn,) in connection.execute(question, (name, first, last))}
            return [turn for turn in range(first, last + 1) if turn not in complete]

        return await self._run(work)

    async def claim(self, name: str, turn: int, *, owner: str, now: float, until: float) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            changed = connection.execute(
                """
                insert into turns (name, turn, owner, until) values (?, ?, ?, ?)
                on conflict do update set owner = excluded.owner, until = excluded.until
                where not is_complete and (owner = excluded.owner or until <= ?)
                """,
                (name, turn, owner, until, now),
            ).rowcount
            return changed > 0

        return await self._run(work)

    async def done_keys(self, name: str, turn: int) -> set[bytes]:
        def work(connection: sqlite3.Connection) -> set[bytes]:
            rows = connection.execute("select key from keys_done where name = ? and turn = ?", (name, turn))
            return {key for (key,) in rows}

        return await self._run(work)

    async def note(self, name: str, turn: int, keys: list[bytes]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            rows: Iterable[Any] = ((name, turn, key) for key in keys)
            connection.executemany("insert or ignore into keys_done values (?, ?, ?)", rows)

        await self._run(work)

    async def complete(self, name: str, turn: int, *, keep_from: int) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                """
                insert into turns (name, turn, until, is_complete) values (?, ?, 0, 1)
                on conflict do update set is_complete = 1
                """,
                (name, turn),
            )
            connection.execute("delete from keys_done where name = ? and turn = ?", (name, turn))
            for table in ("turns", "keys_done"):
                connection.execute(f"delete from {table} where name = ? and turn < ?", (name, keep_from))  # noqa: S608  # our own names

        await self._run(work)

    async def aclose(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            closing = asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)
            await asyncio.shield(closing)  # to be cancelled here must not leave the file open

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do work in one transaction, in a worker thread."""

        def transaction() -> T:
            if self._connection is None:
                self._connection = self._open()
            with self._connection as connection:
                connection.execute("begin immediate")
                return work(connection)

        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="progress")
        return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = normal")
            connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection
