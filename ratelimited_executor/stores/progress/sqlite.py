"""Stores in a file of SQLite, for the processes of one machine.

Each turn of a cycle has a row with its owner, the end of its lease, and a flag for completion. Until it is complete,
each completed key has a row as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor._core.repeat.cycles import check_shape
from ratelimited_executor.abc import Progress
from ratelimited_executor.stores.sqlite_file import SQLiteFile, refuse_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

T = TypeVar("T")

__all__ = ["SQLiteProgress"]

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


class SQLiteProgress(SQLiteFile, Progress):
    """Progress in a file, for one process or several on one machine.

    Every change is a transaction in a worker thread. The file is in WAL mode, so no change is lost when the process
    ends. A loss of power may undo the last changes: their keys are run again.

    Args:
        path: the path of the file, which is created on first use if it does not exist. Not on a network drive.

    Raises:
        TypeError: if the path is neither a str nor a path.
        ValueError: if the path is empty.
        IsADirectoryError: if it is the path of a directory.
        ModuleNotFoundError: without the package apsw.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(path)
        refuse_directory(self._path)

    async def begin(self, name: str, shape: str, turn: int) -> int:
        def work(cursor: Any) -> tuple[str, int]:
            cursor.execute("insert or ignore into cycles values (?, ?, ?)", (name, shape, turn))
            found: tuple[str, int] = cursor.execute(
                "select shape, since from cycles where name = ?", (name,)
            ).fetchone()
            return found

        known, since = await self._run(work)
        check_shape(name, known, shape)
        return since

    async def open_turns(self, name: str, first: int, last: int) -> list[int]:
        def work(cursor: Any) -> list[int]:
            question = "select turn from turns where name = ? and is_complete and turn between ? and ?"
            complete = {turn for (turn,) in cursor.execute(question, (name, first, last))}
            return [turn for turn in range(first, last + 1) if turn not in complete]

        return await self._run(work)

    async def claim(self, name: str, turn: int, *, owner: str, now: float, until: float) -> bool:
        def work(cursor: Any) -> bool:
            changed = cursor.execute(
                """
                insert into turns (name, turn, owner, until) values (?, ?, ?, ?)
                on conflict do update set owner = excluded.owner, until = excluded.until
                where not is_complete and (owner = excluded.owner or until <= ?)
                returning turn
                """,
                (name, turn, owner, until, now),
            )
            return bool(changed.fetchall())

        return await self._run(work)

    async def done_keys(self, name: str, turn: int) -> set[bytes]:
        def work(cursor: Any) -> set[bytes]:
            rows = cursor.execute("select key from keys_done where name = ? and turn = ?", (name, turn))
            return {key for (key,) in rows}

        return await self._run(work)

    async def note(self, name: str, turn: int, keys: list[bytes]) -> None:
        def work(cursor: Any) -> None:
            rows = [(name, turn, key) for key in keys]
            cursor.executemany("insert or ignore into keys_done values (?, ?, ?)", rows)

        await self._run(work)

    async def complete(self, name: str, turn: int, *, keep_from: int) -> None:
        def work(cursor: Any) -> None:
            cursor.execute(
                """
                insert into turns (name, turn, until, is_complete) values (?, ?, 0, 1)
                on conflict do update set is_complete = 1
                """,
                (name, turn),
            )
            cursor.execute("delete from keys_done where name = ? and turn = ?", (name, turn))
            for table in ("turns", "keys_done"):
                cursor.execute(f"delete from {table} where name = ? and turn < ?", (name, keep_from))  # noqa: S608  # our own names

        await self._run(work)

    async def aclose(self) -> None:
        await self._close_file()

    async def _run(self, work: Callable[[Any], T]) -> T:
        """Do work as one transaction in the thread."""
        await self._open_file()
        return await self._in_thread(lambda: self._in_transaction(work, "normal"))

    def _prepare(self, connection: Any) -> None:
        connection.execute(_SCHEMA)
