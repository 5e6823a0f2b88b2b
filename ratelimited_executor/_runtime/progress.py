"""How far cycles have come, kept so that a restart neither repeats nor skips anything, and that nodes share the work.

A *turn* is a slot's time in one cycle: an integer that grows by one with every slot. Of each turn is known whose it is, and
until when; whether it is complete; and, while it is not, which keys are through. The shape is :class:`Progress` in ``abc``.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor._core.cycles import check_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

T = TypeVar("T")

__all__ = ["MemoryProgress", "SQLiteProgress", "open_progress"]

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


class MemoryProgress:
    """Progress that the end of the process forgets: for tests, simulations, and work that may be repeated."""

    def __init__(self) -> None:
        self._cycles: dict[str, tuple[str, int]] = {}
        self._turns: dict[tuple[str, int], tuple[str, float]] = {}
        self._complete: dict[str, set[int]] = defaultdict(set)
        self._keys: dict[tuple[str, int], set[bytes]] = defaultdict(set)

    async def begin(self, name: str, shape: str, turn: int) -> int:
        """As in :class:`~ratelimited_executor.Progress`."""
        known, since = self._cycles.setdefault(name, (shape, turn))
        check_shape(name, known, shape)
        return since

    async def open_turns(self, name: str, first: int, last: int) -> list[int]:
        """As in :class:`~ratelimited_executor.Progress`."""
        complete = self._complete[name]
        return [turn for turn in range(first, last + 1) if turn not in complete]

    async def claim(self, name: str, turn: int, *, owner: str, now: float, until: float) -> bool:
        """As in :class:`~ratelimited_executor.Progress`."""
        holder, held_until = self._turns.get((name, turn), (owner, now))
        if turn in self._complete[name] or (holder != owner and held_until > now):
            return False
        self._turns[name, turn] = owner, until
        return True

    async def done_keys(self, name: str, turn: int) -> set[bytes]:
        """As in :class:`~ratelimited_executor.Progress`."""
        return set(self._keys.get((name, turn), ()))

    async def note(self, name: str, turn: int, keys: list[bytes]) -> None:
        """As in :class:`~ratelimited_executor.Progress`."""
        self._keys[name, turn].update(keys)

    async def complete(self, name: str, turn: int, *, keep_from: int) -> None:
        """As in :class:`~ratelimited_executor.Progress`."""
        self._complete[name].add(turn)
        self._keys.pop((name, turn), None)
        for each in [each for each in self._turns if each[0] == name and each[1] < keep_from]:
            del self._turns[each]
            self._keys.pop(each, None)
        self._complete[name] = {each for each in self._complete[name] if each >= keep_from}

    async def aclose(self) -> None:
        """As in :class:`~ratelimited_executor.Progress`."""


class SQLiteProgress:
    """Progress in a file, for one process or several on one machine.

    Every change is a transaction in a worker thread; the file is in WAL mode, so the end of the process undoes nothing.
    The loss of power may undo the last of them: their keys are run again.

    Args:
        path: of the file; it is made if it is not there. Not on a network drive.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = Path(path)
        self._connection: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None  # one, so that one transaction comes after the other

    async def begin(self, name: str, shape: str, turn: int) -> int:
        """As in :class:`~ratelimited_executor.Progress`."""

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
        """As in :class:`~ratelimited_executor.Progress`."""

        def work(connection: sqlite3.Connection) -> list[int]:
            question = "select turn from turns where name = ? and is_complete and turn between ? and ?"
            complete = {turn for (turn,) in connection.execute(question, (name, first, last))}
            return [turn for turn in range(first, last + 1) if turn not in complete]

        return await self._run(work)

    async def claim(self, name: str, turn: int, *, owner: str, now: float, until: float) -> bool:
        """As in :class:`~ratelimited_executor.Progress`."""

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
        """As in :class:`~ratelimited_executor.Progress`."""

        def work(connection: sqlite3.Connection) -> set[bytes]:
            rows = connection.execute("select key from keys_done where name = ? and turn = ?", (name, turn))
            return {key for (key,) in rows}

        return await self._run(work)

    async def note(self, name: str, turn: int, keys: list[bytes]) -> None:
        """As in :class:`~ratelimited_executor.Progress`."""

        def work(connection: sqlite3.Connection) -> None:
            rows: Iterable[Any] = ((name, turn, key) for key in keys)
            connection.executemany("insert or ignore into keys_done values (?, ?, ?)", rows)

        await self._run(work)

    async def complete(self, name: str, turn: int, *, keep_from: int) -> None:
        """As in :class:`~ratelimited_executor.Progress`."""

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
        """As in :class:`~ratelimited_executor.Progress`."""
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


def open_progress(path: str | PathLike[str]) -> MemoryProgress | SQLiteProgress:
    """Return a store in a file; one in memory in a simulation, which has no threads, and must not find an earlier one's progress."""
    return SQLiteProgress(path) if getattr(asyncio.get_running_loop(), "has_threads", True) else MemoryProgress()
