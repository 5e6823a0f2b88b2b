"""Connections to PostgreSQL as functions that run statements: the store's own, and those of users, in their open transactions.

Statements have $1, $2, ... as placeholders, whatever the driver. Libraries that a user has not imported are not looked for.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeAlias

__all__ = ["FAILED", "Runs", "blocking_transaction", "errors_of", "own", "taken", "transaction"]

Runs: TypeAlias = Callable[[str, Sequence[Any]], Awaitable[list[tuple[Any, ...]]]]
"""Runs a statement once for each of some arguments, all in one round trip, and returns the rows."""

FAILED: Final = "25P02"  # in_failed_sql_transaction
_FIRST: Final = "select 1"  # begins the transaction that SQLAlchemy has only noted
_NOT_OPEN: Final = "connection must have an open transaction: put within its transaction block"


@asynccontextmanager
async def taken(pool: Any) -> AsyncIterator[Any]:
    """Take a connection of a pool, unless the task was cancelled meanwhile.

    The pool waits by ``asyncio.wait_for()``, which loses a cancellation that comes together with the connection, up to
    Python 3.11. anyio delivers its own cancellations again, and must: it knows them by what it has raised itself.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    async with pool.connection() as connection:
        if task.cancelling() > before:
            await asyncio.sleep(0)  # anyio raises here
            raise asyncio.CancelledError
        yield connection


def own(connection: Any) -> Runs:
    """Return what runs statements on a connection of the store."""
    return partial(_rows_of, connection.cursor())


async def transaction(driver: Any, connection: Any) -> Runs:
    """Return what runs statements in the open transaction of a user's connection.

    Raises:
        TypeError: if it is of another kind.
        ValueError: if it has no open transaction.
    """
    raw = inner = connection
    if inspect.iscoroutinefunction(getattr(type(connection), "connection", None)):  # an AsyncSession of SQLAlchemy
        inner = await connection.connection()
    if (sync := getattr(inner, "sync_connection", None)) is not None:  # its AsyncConnection
        await inner.exec_driver_sql(_FIRST)
        raw = sync.connection.driver_connection
    if isinstance(raw, driver.AsyncConnection):
        _check_transaction(driver, raw)
        return partial(_rows_of, driver.AsyncRawCursor(raw, row_factory=driver.rows.tuple_row))  # not the connection's
    asyncpg = sys.modules.get("asyncpg")
    if asyncpg is None or not isinstance(raw, asyncpg.Connection):
        raise TypeError(
            "connection must be a psycopg.AsyncConnection, an asyncpg.Connection, or an AsyncConnection or AsyncSession of SQLAlchemy "
            f"over one of these, got {connection!r}"
        )
    if not raw.is_in_transaction():
        raise ValueError(_NOT_OPEN)
    return partial(_rows_of_asyncpg, raw)


def blocking_transaction(driver: Any, connection: Any) -> Runs:
    """Return what runs statements in the transaction of a user's blocking connection; none of its calls waits for a loop.

    Raises:
        TypeError: if it is of another kind.
        ValueError: if it has no open transaction, and begins none by itself.
    """
    raw = _driver_connection(connection)
    if not isinstance(raw, driver.Connection):
        raise TypeError(
            f"connection must be a psycopg.Connection, or one of SQLAlchemy or Django over psycopg 3, got {connection!r}"
        )
    if raw.autocommit or raw.info.transaction_status != driver.pq.TransactionStatus.IDLE:  # else the put begins one
        _check_transaction(driver, raw)
    return partial(_rows_of, _BlockingCursor(driver, raw))


def errors_of(driver: Any) -> tuple[type[Exception], ...]:
    """Return the errors of databases: those of the driver, and of libraries that users' connections may be of."""
    errors = [driver.Error]
    if (asyncpg := sys.modules.get("asyncpg")) is not None:
        errors += [asyncpg.PostgresError, asyncpg.InterfaceError, OSError]
    if (sqlalchemy := sys.modules.get("sqlalchemy.exc")) is not None:
        errors.append(sqlalchemy.DBAPIError)
    return tuple(errors)


async def _rows_of(cursor: Any, statement: str, runs: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run a statement on a cursor of psycopg."""
    if not runs:
        return []
    if len(runs) == 1:
        await cursor.execute(statement, runs[0])
    else:
        await cursor.executemany(statement, runs, returning=True)  # in a pipeline
    rows: list[tuple[Any, ...]] = []
    is_left: bool | None = True
    while is_left:
        if cursor.description is not None:
            rows += await cursor.fetchall()
        is_left = cursor.nextset()
    return rows


async def _rows_of_asyncpg(connection: Any, statement: str, runs: Sequence[Any]) -> list[tuple[Any, ...]]:
    if not runs:
        return []
    if len(runs) == 1:
        rows = await connection.fetch(statement, *runs[0])
    else:
        rows = await connection.fetchmany(statement, runs)
    return [tuple(row) for row in rows]


class _BlockingCursor:
    """A blocking cursor with the methods of an asynchronous one, which never wait for the event loop."""

    def __init__(self, driver: Any, connection: Any) -> None:
        self._cursor = driver.RawCursor(connection, row_factory=driver.rows.tuple_row)
        self.nextset = self._cursor.nextset

    @property
    def description(self) -> Any:
        return self._cursor.description

    async def execute(self, *args: Any) -> _BlockingCursor:
        self._cursor.execute(*args)
        return self

    async def executemany(self, *args: Any, returning: bool) -> None:
        self._cursor.executemany(*args, returning=returning)

    async def fetchall(self) -> list[tuple[Any, ...]]:
        return self._cursor.fetchall()  # type: ignore[no-any-return]  # by its row factory


def _check_transaction(driver: Any, connection: Any) -> None:
    """Refuse a connection of psycopg without an open transaction; the first statement finds one that has failed."""
    states = driver.pq.TransactionStatus
    if connection.info.transaction_status not in (states.INTRANS, states.INERROR):
        raise ValueError(_NOT_OPEN)


def _driver_connection(connection: Any) -> Any:
    """Return the driver's connection that one of SQLAlchemy, its ``Session``, or Django contains, or a connection itself."""
    if hasattr(connection, "ensure_connection"):  # Django's connects with its first statement
        connection.ensure_connection()
    inner = getattr(connection, "connection", None)
    if callable(inner):  # a Session
        connection = inner()
        inner = connection.connection
    if hasattr(connection, "exec_driver_sql"):
        connection.exec_driver_sql(_FIRST)
    return connection if inner is None else getattr(inner, "driver_connection", inner)
