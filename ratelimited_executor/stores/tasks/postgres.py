"""Durable tasks in PostgreSQL, for processes on many machines.

Every call is a transaction of READ COMMITTED. Tasks are claimed with ``FOR UPDATE SKIP LOCKED``, so processes do not wait for
each other. A put that was committed tells the others by NOTIFY, outside of its transaction and for many puts at once: NOTIFY
in a transaction takes a lock over the whole server until that commits.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor._core.durable.tasks import Durability
from ratelimited_executor.abc import TaskStore
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.stores.tasks import moves
from ratelimited_executor.stores.tasks.statements import read_statements, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ratelimited_executor._core.durable.tasks import (
        Claim,
        Claims,
        DurableState,
        LaneRow,
        NewTask,
        Outcome,
        Ref,
        TaskRow,
    )
    from ratelimited_executor.abc import Clock
    from ratelimited_executor.stores.tasks.moves import Moves

T = TypeVar("T")

__all__ = ["PostgresStore"]

_VERSION: Final = 1  # of the schema, as in durable_schema
_LOCK: Final = 7_261_833_405  # an advisory lock: one process at a time makes the schema
_ATTEMPTS: Final = 5  # of a transaction that the server gives up, as in a deadlock
_CONNECTIONS_MAX: Final = 4  # of one process: putting, claiming, finishing, beating
_TIMEOUT_SECONDS: Final = 30.0  # for a connection
_NOTIFY_SECONDS: Final = 0.01  # between two NOTIFY of one process
_RECONNECT_SECONDS: Final = 1.0  # between two attempts to listen
_CHANNEL: Final = "durable_tasks"
_GIVEN_UP: Final = ("40001", "40P01")  # serialization_failure, deadlock_detected
_STATEMENTS: Final = read_statements("statements.sql", "postgres_statements.sql")


class PostgresStore(TaskStore):
    """A store in PostgreSQL (13 or later), for any number of processes.

    Its tables begin with ``durable_``, in the first schema of the connections' ``search_path``; they are made if they are not
    there. Times are those of the server.

    Args:
        conninfo: where the database is: a URL ``postgresql://...`` or a text of ``name=value``, as libpq reads them.

    Raises:
        TypeError: if it is no text.
        ValueError: if it is empty.
    """

    durability = Durability.FSYNC

    def __init__(self, conninfo: str) -> None:
        if not isinstance(conninfo, str):
            raise TypeError(
                f"conninfo must be a text such as 'postgresql://host/database', got {type(conninfo).__name__}"
            )
        if not conninfo:
            raise ValueError("conninfo must be a text such as 'postgresql://host/database', got an empty one")
        self._conninfo = conninfo
        self._pool: Any = None
        self._user_count = 0
        self._changed = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._notifier: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return "PostgresStore(...)"  # conninfo may hold a password

    async def open(self, clock: Clock) -> None:  # noqa: ARG002  # the server's counts
        if self._pool is None:
            driver = _psycopg(self)
            from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415  # comes with the extra

            with self._translated():
                await self._make_schema(driver)
                pool = AsyncConnectionPool(
                    self._conninfo, min_size=1, max_size=_CONNECTIONS_MAX, timeout=_TIMEOUT_SECONDS, open=False,
                    kwargs={"cursor_factory": driver.AsyncRawCursor, "autocommit": True},
                )  # fmt: skip
                await pool.open()
            self._pool = pool
            self._listener = asyncio.get_running_loop().create_task(self._listen(), name="durable tasks: listen")
        self._user_count += 1

    async def put(self, tasks: Sequence[NewTask], *, connection: Any = None) -> list[bool]:
        """Add tasks; ``connection`` is a ``psycopg.AsyncConnection`` to the same database, with a transaction that is open."""
        if connection is not None:
            return await self._put_with(connection, tasks)
        return await self._change(lambda now_us: moves.put(now_us, tasks))

    async def join(self, owner: str, lease_us: int) -> None:
        await self._run(lambda _: moves.join(owner, lease_us))

    async def beat(self, owner: str) -> tuple[Ref, ...] | None:
        return await self._change(lambda now_us: moves.beat(now_us, owner), is_told=False)

    async def leave(self, owner: str) -> None:
        await self._change(lambda now_us: moves.leave(now_us, owner))

    async def claim(self, claim: Claim) -> Claims | None:
        return await self._run(lambda now_us: moves.claim(now_us, claim))

    async def finish(self, outcomes: Sequence[Outcome]) -> list[bool]:
        return await self._change(lambda now_us: moves.finish(now_us, outcomes), is_told=False)

    async def cancel(self, ids: Sequence[str]) -> list[DurableState | None]:
        return await self._change(lambda now_us: moves.cancel(now_us, ids))

    async def requeue(self, ids: Sequence[str]) -> list[DurableState | None]:
        return await self._change(lambda now_us: moves.requeue(now_us, ids))

    async def revive(self, queue: str, functions: Sequence[tuple[str, int]]) -> int:
        return await self._change(lambda _: moves.revive(queue, functions))

    async def find(self, ids: Sequence[str]) -> list[TaskRow | None]:
        return await self._run(lambda _: moves.find(ids))

    async def rows(self, state: DurableState | None = None, *, after: int = 0, limit: int = 100) -> list[TaskRow]:
        return await self._run(lambda _: moves.rows(state, after, limit))

    async def counts(self) -> dict[DurableState, int]:
        return await self._run(lambda _: moves.counts())

    async def lanes(self, *, limit: int = 100) -> list[LaneRow]:
        return await self._run(lambda _: moves.lanes(limit))

    async def wait(self, timeout: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        self._changed.clear()

    async def aclose(self) -> None:
        self._user_count = max(0, self._user_count - 1)
        if self._user_count or self._pool is None:
            return
        pool, self._pool = self._pool, None
        if self._notifier is not None:
            await asyncio.wait([self._notifier])
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
        await pool.close()

    # How moves are run

    async def _change(self, program: Callable[[int], Moves[T]], *, is_told: bool = True) -> T:
        """Run moves after which something may be claimable, for others as well if they are told."""
        result = await self._run(program)
        self._changed.set()
        if is_told and self._notifier is None:
            self._notifier = asyncio.get_running_loop().create_task(self._notify(), name="durable tasks: notify")
        return result

    async def _run(self, program: Callable[[int], Moves[T]]) -> T:
        """Run moves as one transaction.

        Again, if the server gives it up for another one, or its connection is lost before the commit was sent: nothing has
        happened then. What became of a commit without an answer is not known, and said.
        """
        if self._pool is None:
            raise StoreUnavailableError(repr(self), "it is not open: enter DurableTasks with 'async with' first")
        driver = _psycopg(self)
        for left in reversed(range(_ATTEMPTS)):
            is_committing = False
            with self._translated():
                try:
                    async with self._pool.connection() as connection, connection.transaction():
                        result = await self._play(connection, program)
                        is_committing = True
                except driver.OperationalError as error:
                    is_again = error.sqlstate in _GIVEN_UP or not is_committing
                    if not is_again or not left:
                        raise
                else:
                    return result
        raise AssertionError("unreachable")

    async def _play(self, connection: Any, program: Callable[[int], Moves[T]]) -> T:
        """Run moves, statement by statement."""
        cursor = connection.cursor()
        [(now_us,)] = await (await cursor.execute(_STATEMENTS["now"])).fetchall()
        running = program(now_us)
        try:
            name, arguments = next(running)
            while True:
                rows: list[tuple[Any, ...]] = []
                for each in arguments:
                    await cursor.execute(_STATEMENTS[name], each)
                    if cursor.description is not None:
                        rows += await cursor.fetchall()
                name, arguments = running.send(rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the generator's own type says it

    async def _put_with(self, connection: Any, tasks: Sequence[NewTask]) -> list[bool]:
        """Put tasks in a transaction of the user; others find them with their next look, or sooner."""
        driver = _psycopg(self)
        if not isinstance(connection, driver.AsyncConnection):
            raise TypeError(f"connection must be a psycopg.AsyncConnection, got {connection!r}")
        if connection.info.transaction_status != driver.pq.TransactionStatus.INTRANS:
            raise ValueError("connection must have an open transaction: put within its transaction block")
        raw = _RawConnection(connection, driver.AsyncRawCursor)
        with self._translated():
            return await self._play(raw, lambda now_us: moves.put(now_us, tasks))

    async def _make_schema(self, driver: Any) -> None:
        async with await driver.AsyncConnection.connect(self._conninfo) as connection:
            await connection.execute(f"select pg_advisory_xact_lock({_LOCK})")
            found = await (await connection.execute("select to_regclass('durable_schema')")).fetchone()
            if found == (None,):
                for text in read_text("postgres_schema.sql").split(";\n"):
                    if text.strip():
                        await connection.execute(text)
            (version,) = await (await connection.execute("select version from durable_schema")).fetchone()
        if version > _VERSION:
            raise StoreUnavailableError(
                repr(self),
                f"a newer release has made its tables (schema {version}; this one knows {_VERSION}): update this process",
            )

    async def _notify(self) -> None:
        """Tell the other processes, once for all that has come in a moment."""
        try:
            await asyncio.sleep(_NOTIFY_SECONDS)
        finally:
            self._notifier = None
        with contextlib.suppress(StoreUnavailableError), self._translated():  # they look by themselves after a while
            async with self._pool.connection() as connection:
                await connection.execute(f"notify {_CHANNEL}")

    async def _listen(self) -> None:
        """Wake who waits whenever another process has changed something."""
        driver = _psycopg(self)
        while True:
            with contextlib.suppress(driver.Error):
                async with await driver.AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
                    await connection.execute(f"listen {_CHANNEL}")
                    self._changed.set()  # what was changed before
                    async for _ in connection.notifies():
                        self._changed.set()
            await asyncio.sleep(_RECONNECT_SECONDS)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise what the driver raises as an error of ours."""
        driver = _psycopg(self)
        try:
            yield
        except driver.Error as error:
            raise StoreUnavailableError(repr(self), f"{type(error).__name__}: {error}".strip()) from error


class _RawConnection:
    """A connection of the user, with cursors that take $1, $2, ..."""

    def __init__(self, connection: Any, cursor: Any) -> None:
        self._connection = connection
        self._cursor = cursor

    def cursor(self) -> Any:
        return self._cursor(self._connection)


def _psycopg(store: PostgresStore) -> Any:
    try:
        import psycopg  # noqa: PLC0415  # the extra `postgres`
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{type(store).__name__} needs the package psycopg: pip install 'ratelimited-executor[postgres]'",
            name=error.name,
        ) from error
    return psycopg
