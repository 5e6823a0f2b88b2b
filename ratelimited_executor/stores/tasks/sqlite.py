"""Durable tasks in a file of SQLite, for the processes of one machine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor._core.durable.tasks import NOT_OPEN, Durability
from ratelimited_executor._forks import check_process
from ratelimited_executor.abc import TaskStore
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.stores.sqlite_file import SQLiteFile, driver, is_mended, refuse_directory, transaction
from ratelimited_executor.stores.tasks import moves
from ratelimited_executor.stores.tasks.sql import Caller, SQLStore
from ratelimited_executor.stores.tasks.statements import (
    Together,
    numbered,
    read_schema,
    read_statements,
    script,
    upgrade,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from ratelimited_executor._core.durable.tasks import Duplicate, NewTask
    from ratelimited_executor.abc import Clock
    from ratelimited_executor.stores.tasks.sql import Program
    from ratelimited_executor.stores.tasks.statements import Moves

T = TypeVar("T")

__all__ = ["SQLiteStore", "migration_sql"]

_US: Final = 1_000_000
_LOOK_SECONDS: Final = 0.05  # between two checks for changes by other processes
_ROWS: Final = "$rows"  # in a statement
_VALUES_MAX: Final = 32_766  # of one statement, in a default build of SQLite
_BUSY_WITH_USER: Final = (
    ": another connection is writing, or has written since the transaction began to read: begin it by BEGIN IMMEDIATE, and give "
    "the connection a busy timeout"
)
_HAS_CANCELLED: Final = (  # or paused; and when a repetition was changed last
    "select exists (select 1 from durable_tasks where state = 3 and is_cancelled = 1) or exists (select 1 from durable_pauses), "
    "(select max(changed_us) from durable_repetitions where changed_us > 0)"
)
_VERSIONS: Final = "create table if not exists durable_schema (version integer not null, least integer not null) strict"
_SCHEMA: Final = read_schema("sqlite_schema.sql")
_STATEMENTS: Final = {
    name: numbered(text) for name, text in read_statements("statements.sql", "sqlite_statements.sql").items()
}


class SQLiteStore(SQLiteFile, SQLStore, TaskStore):
    """A store in a file, for one process or several on one machine.

    Every change is one transaction, in the store's own thread; when it returns, it is on the disk (WAL,
    ``synchronous=FULL``). Calls that only read have a thread and a connection of their own, and lock nobody out.

    Args:
        path: the path of the file, which is created if it does not exist. Not on a network drive, and not ``":memory:"``.
        create: False to refuse a file that does not exist, has no durable tasks yet, or has those of an older release;
            for programs that only read.

    Raises:
        TypeError: if the path is neither a str nor a path.
        ValueError: if the path is empty or ``":memory:"``.
        IsADirectoryError: if it is the path of a directory.
        ModuleNotFoundError: without the package apsw.
    """

    durability = Durability.FSYNC

    def __init__(self, path: str | PathLike[str], *, create: bool = True) -> None:
        if str(path) == ":memory:":
            raise ValueError("path must be the path of a file, got ':memory:': for tests, use MemoryStore()")
        SQLiteFile.__init__(self, path)
        refuse_directory(self._path)
        SQLStore.__init__(self)
        self._is_creating = create
        self._clock: Clock | None = None
        self._turn = asyncio.Lock()
        self._reader: _Reader | None = None
        self._seen_version: int | None = None
        self._changed_us: int | None = None  # of repetitions, as seen last

    def twin(self) -> SQLiteStore:
        """Return another store over the same file, for another event loop."""
        return SQLiteStore(self._path, create=self._is_creating)

    def put_in(self, connection: Any, tasks: Sequence[NewTask]) -> list[bool | Duplicate]:
        """Put tasks in the open transaction of a connection, without asyncio, whether the store is open or not."""
        self._check_user(connection)
        with self._translated(BusyError=_BUSY_WITH_USER):
            return _play(connection.cursor(), moves.put(self._now_us(), tasks))

    async def open(self, clock: Clock) -> None:
        self._clock = clock
        if not self._user_count:
            self._changed = asyncio.Event()  # of this event loop, which may be a new one
            self._turn = asyncio.Lock()
            self._reader = _Reader(self) if is_mended(driver().sqlite_lib_version()) else None
        self._user_count += 1
        try:
            await self._open_file()
        except BaseException:  # a cancellation here must not leave the file open
            await self.aclose()
            raise

    async def migration(self) -> str:
        """Return the SQL that brings the file to this release, or creates its tables; empty if nothing is missing."""
        with self._translated():
            if not self._path.is_file():
                return migration_sql(repr(self))
            connection = driver().Connection(str(self._path), driver().SQLITE_OPEN_READWRITE)
            try:
                is_there = any(connection.execute("select 1 from sqlite_schema where name = 'durable_schema'"))
                return migration_sql(repr(self), _versions_of(connection) if is_there else None)
            finally:
                connection.close()

    async def wait(self, timeout: float) -> int:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        count = self._change_count
        while not self._changed.is_set() and self._change_count == count:  # another waiter may notice it first
            left = until - loop.time()
            if left <= 0:
                return self._cancel_count
            if await self._in_thread(self._is_changed_by_others):
                self._change_count += 1
                return self._cancel_count
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK_SECONDS, left)):
                    await self._changed.wait()
        self._changed.clear()
        return self._cancel_count

    async def aclose(self) -> None:
        self._user_count = max(0, self._user_count - 1)
        if not self._user_count:
            reader, self._reader = self._reader, None
            try:
                if reader is not None:
                    await reader._close_file()  # noqa: SLF001  # same module
            finally:
                await self._close_file()

    async def _run(self, program: Program[T], *, caller: Caller = Caller.USER, is_durable: bool = True) -> T:
        """Run moves in the store's thread, where a runner's wait for one of a user at most, or in that of the reader."""
        if self._thread is None:
            raise StoreUnavailableError(repr(self), NOT_OPEN)
        check_process(repr(self), self._process)
        if caller is Caller.READER and self._reader is not None:
            return await self._reader.run(program)
        async with contextlib.nullcontext() if caller is Caller.RUNNER else self._turn:
            return await self._in_thread(lambda: self._transaction(program, "full" if is_durable else "normal"))

    def _transaction(self, program: Program[T], synchronous: str) -> T:
        """Run moves in the store's thread; reads the clock there."""
        return self._in_transaction(lambda cursor: _play(cursor, program(self._now_us())), synchronous)

    async def _put_with(self, connection: Any, tasks: Sequence[NewTask]) -> list[bool | Duplicate]:
        """Put tasks through the user's apsw connection, in the caller's thread; others notice its commit soon."""
        if self._connection is None:
            raise StoreUnavailableError(repr(self), NOT_OPEN)
        return self.put_in(connection, tasks)

    def _check_user(self, connection: Any) -> None:
        if not isinstance(connection, driver().Connection):
            raise TypeError(f"connection must be an apsw.Connection to {self._path}, got {connection!r}")
        if not connection.in_transaction:
            raise ValueError("connection must have an open transaction: begin one first, preferably by BEGIN IMMEDIATE")
        if self._connection is not None:
            self._check_file()
        if not self._is_at(connection.filename):
            raise ValueError(f"connection must be to {self._path}, got one to {connection.filename or 'no file'}")

    def _is_changed_by_others(self) -> bool:
        with self._translated():
            [(version,)] = self._connection.execute("pragma data_version")
            is_changed = version != self._seen_version
            if is_changed:  # also while a cancelled task still runs
                [(has_cancelled, changed_us)] = self._connection.execute(_HAS_CANCELLED)
                self._cancel_count += has_cancelled or changed_us != self._changed_us
                self._changed_us = changed_us
        self._seen_version = version
        return bool(is_changed)

    def _now_us(self) -> int:
        return round((time.time() if self._clock is None else self._clock.wall()) * _US)

    def _check(self, connection: Any) -> None:
        if not (
            self._is_creating or any(connection.execute("select 1 from sqlite_schema where name = 'durable_tasks'"))
        ):
            raise StoreUnavailableError(repr(self), "the file has no durable tasks")

    def _prepare(self, connection: Any) -> None:
        with transaction(connection):
            connection.execute(_VERSIONS)
            for statement in upgrade(repr(self), _SCHEMA, _versions_of(connection), create=self._is_creating):
                connection.execute(statement)
        connection.execute("create temp table durable_claiming (number integer primary key, size integer)")


class _Reader(SQLiteFile):
    """A connection for users who only read: they wait for no writer, and no writer waits for them.

    Args:
        store: the store whose file it reads, on first use.
    """

    _is_creating = False
    _begin = "begin"  # takes no lock

    def __init__(self, store: SQLiteStore) -> None:
        super().__init__(store._path)  # noqa: SLF001  # same module
        self._store = store

    def __repr__(self) -> str:
        return repr(self._store)

    async def run(self, program: Program[T]) -> T:
        """Run moves that only read."""
        await self._open_file()
        now_us = self._store._now_us()  # noqa: SLF001  # same module
        return await self._in_thread(
            lambda: self._in_transaction(lambda cursor: _play(cursor, program(now_us)), "normal")
        )

    def _check(self, connection: Any) -> None:  # noqa: ARG002  # it is checked by its path
        self._store._check_file()  # noqa: SLF001  # same module

    def _prepare(self, connection: Any) -> None:
        connection.execute("pragma query_only = on")


def migration_sql(store: str = "the store", versions: tuple[int, int] | None = None) -> str:
    """Return the SQL that brings a file from some versions, or from nothing, to this release."""
    statements = upgrade(store, _SCHEMA, versions)
    begin = ("pragma journal_mode = wal", "begin immediate")
    return script(*begin, _VERSIONS, *statements, "commit") if statements else ""


def _versions_of(connection: Any) -> tuple[int, int] | None:
    found = connection.execute("select version, least from durable_schema").fetchall()
    return found[0] if found else None


def _play(cursor: Any, program: Moves[T]) -> T:
    """Run moves, statement by statement."""
    try:
        name, arguments = next(program)
        while True:
            rows: list[tuple[Any, ...]] = []
            for each in (arguments.rest,) if isinstance(arguments, Together) else arguments:
                for text, numbers in _STATEMENTS[name]:
                    if isinstance(arguments, Together) and _ROWS in text:
                        _insert(cursor, text, arguments.rows)
                    else:
                        rows += cursor.execute(text, [each[number - 1] for number in numbers])
            name, arguments = program.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the generator's own type says it


def _insert(cursor: Any, text: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows, as many at once as the limit on values in a statement allows."""
    size = _VALUES_MAX // len(rows[0]) if rows else 1
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        marks = ", ".join(["(" + ", ".join("?" * len(part[0])) + ")"] * len(part))
        cursor.execute(text.replace(_ROWS, marks), list(chain.from_iterable(part)))
