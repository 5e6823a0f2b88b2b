"""Durable tasks in PostgreSQL, for processes on many machines.

Every call is a READ COMMITTED transaction. Tasks are claimed with ``FOR UPDATE SKIP LOCKED``, so processes do not wait
for each other. Committed puts notify other processes by NOTIFY, outside their transactions and many puts at once:
NOTIFY in a transaction takes a lock on the whole server during the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from ratelimited_executor._core.durable.tasks import NOT_OPEN, Durability
from ratelimited_executor._forks import check_process
from ratelimited_executor.abc import TaskStore
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.stores.postgres_driver import (
    check_conninfo,
    check_text,
    driver_for,
    is_permanent,
    versions_of,
)
from ratelimited_executor.stores.tasks import moves
from ratelimited_executor.stores.tasks.looks import Looks
from ratelimited_executor.stores.tasks.postgres_connections import (
    FAILED,
    Runs,
    blocking_transaction,
    errors_of,
    own,
    taken,
    transaction,
)
from ratelimited_executor.stores.tasks.sql import Caller, SQLStore
from ratelimited_executor.stores.tasks.statements import Together, read_schema, read_statements, script, upgrade

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from ratelimited_executor._core.durable.tasks import Claim, Claims, Duplicate, NewTask, TaskOutcome
    from ratelimited_executor.abc import Clock
    from ratelimited_executor.stores.tasks.sql import Program
    from ratelimited_executor.stores.tasks.statements import Moves

T = TypeVar("T")

__all__ = ["PostgresStore", "migration_sql"]

_LOCK: Final = 7_261_833_405  # an advisory lock: one process at a time changes the schema
_ATTEMPTS: Final = 5  # of a transaction that the server aborts, as in a deadlock
_USER_CONNECTIONS_MAX: Final = 4  # of one process, for the calls of users: these may all wait for a lane ...
_OWN_CONNECTIONS_MAX: Final = 3  # ... and for those of runners: claiming, finishing, beating
_TIMEOUT_SECONDS: Final = 30.0  # for a connection ...
_CONNECT_SECONDS: Final = 2.0  # ... and for one attempt of the pool: its own pauses would outlast an outage
_NOTIFY_SECONDS: Final = 0.01  # between two NOTIFY of one process
_NOTIFY_USER_SECONDS: Final = 0.1  # between two of them in transactions of users, whose commits take the lock
_RECONNECT_SECONDS: Final = 1.0  # between two attempts to listen
_US: Final = 1_000_000
_CHANNEL: Final = "durable_tasks"
_CANCELLED: Final = "cancelled"  # the payload of a notification that a claimed task was cancelled
_GIVEN_UP: Final = ("40001", "40P01")  # serialization_failure, deadlock_detected
_LOCK_NOT_AVAILABLE: Final = "55P03"
_FAILED: Final = "connection must have an open transaction, and a statement of this one has failed: roll it back"
_LOCK_SECONDS: Final = 3  # for locks of other transactions, unless the server sets a limit
_IDLE_SECONDS: Final = 5  # within a transaction, as after its process has died; our own are repeated
_VERSION_TABLE: Final = "durable_schema"
_VERSIONS: Final = f"create table if not exists {_VERSION_TABLE} (version integer not null, least integer not null)"
_SCHEMA: Final = read_schema("postgres_schema.sql")
_STATEMENTS: Final = read_statements("statements.sql", "postgres_statements.sql")
_RANGE: Final = "priority >= $3 and (priority > $3 or due_us < $8)"
assert _STATEMENTS["claim"].count(_RANGE) == 1
# A claim of one priority from a place on: an index can begin there only if the priority is equal.
_STATEMENTS["claim_on"] = _STATEMENTS["claim"].replace(
    _RANGE, "priority = $3 and due_us < $8 and (due_us, number) >= ($10::bigint, $11::bigint)"
)


class PostgresStore(SQLStore, TaskStore):
    """A store in PostgreSQL (13 or later), for any number of processes.

    The names of its tables begin with ``durable_``. They are in the first schema of the connections' ``search_path``,
    and are created if they do not exist. Times are those of the server.

    Args:
        conninfo: the connection string, as libpq reads it: a URL ``postgresql://...`` or a text of ``name=value``.
        create: False to refuse a database that has no durable tasks yet, or those of an older release; for programs
            that only read.

    Raises:
        TypeError: if ``conninfo`` is not a str.
        ValueError: if ``conninfo`` is neither a URL of PostgreSQL nor ``name=value``.
    """

    durability = Durability.FSYNC

    def __init__(self, conninfo: str, *, create: bool = True) -> None:
        check_text(conninfo)
        super().__init__()
        self._conninfo = conninfo
        self._is_creating = create
        self._pool: Any = None  # for the calls of users
        self._own_pool: Any = None  # for those of runners
        self._process = 0  # that has opened it
        self._finishing = asyncio.Lock()
        self._listener: asyncio.Task[None] | None = None
        self._notifier: asyncio.Task[None] | None = None
        self._told_by_user = -math.inf  # monotonic time of the last NOTIFY in a transaction of a user
        self._is_telling_cancel = False  # True if the next notification is of a claimed task that was cancelled
        self._looks: defaultdict[str, Looks] = defaultdict(Looks)  # by queue

    def __repr__(self) -> str:
        return "PostgresStore(...)"  # conninfo may hold a password

    def twin(self) -> PostgresStore:
        """Return another store over the same database, for another event loop."""
        return PostgresStore(self._conninfo, create=self._is_creating)

    def put_in(self, connection: Any, tasks: Sequence[NewTask]) -> list[bool | Duplicate]:
        """Put tasks in the open transaction of a connection, without asyncio, whether the store is open or not.

        Args:
            connection: a ``psycopg.Connection``; or one of SQLAlchemy or Django over psycopg 3.
            tasks: the tasks.
        """
        with self._translated():
            runs = blocking_transaction(driver_for(type(self).__name__), connection)
            putting = self._put_on(runs, tasks)
            try:
                putting.send(None)  # none of its calls waits for the loop
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the coroutine's own type says it
        raise AssertionError("a blocking cursor has waited for an event loop")

    async def open(self, clock: Clock) -> None:  # noqa: ARG002  # the server's clock counts
        check_process(repr(self), self._process)
        if self._pool is None:
            driver = driver_for(type(self).__name__)
            from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415  # comes with the extra

            with self._translated():
                check_conninfo(repr(self), driver, self._conninfo)
                await self._make_schema(driver)
                pools = [
                    AsyncConnectionPool(
                        self._conninfo, min_size=1, max_size=size, timeout=_CONNECT_SECONDS,
                        reconnect_timeout=_CONNECT_SECONDS, open=False,
                        configure=_limit, kwargs={"cursor_factory": driver.AsyncRawCursor, "autocommit": True},
                    )
                    for size in (_USER_CONNECTIONS_MAX, _OWN_CONNECTIONS_MAX)
                ]  # fmt: skip
                try:
                    await asyncio.gather(*(pool.open() for pool in pools))
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await asyncio.gather(*(pool.close() for pool in pools))
                    raise
            if self._listener is not None:  # another user has opened it meanwhile
                await asyncio.gather(*(pool.close() for pool in pools))
            else:
                self._pool, self._own_pool = pools
                self._process = os.getpid()
                self._finishing = asyncio.Lock()
                self._looks.clear()  # they have times of an earlier loop
                self._changed = asyncio.Event()  # of this event loop, which may be a new one
                self._listener = asyncio.get_running_loop().create_task(self._listen(), name="durable tasks: listen")
        self._user_count += 1

    async def wait(self, timeout: float) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        self._changed.clear()
        return self._cancel_count

    async def aclose(self) -> None:
        check_process(repr(self), self._process)
        self._user_count = max(0, self._user_count - 1)
        if self._user_count or self._pool is None:
            return
        pools = self._pool, self._own_pool
        self._pool = self._own_pool = None
        self._process = 0
        listener, self._listener = self._listener, None
        try:
            if self._notifier is not None:
                await asyncio.wait([self._notifier])
        finally:  # also on cancellation, and on another one meanwhile
            try:
                if listener is not None:
                    listener.cancel()
                    await asyncio.wait([listener])
            finally:
                await asyncio.gather(*(pool.close() for pool in pools))

    async def claim(self, claim: Claim) -> Claims | None:
        looks = self._looks[claim.queue]
        loop = asyncio.get_running_loop()
        look = looks.begin(claim, loop.time())

        def program(now_us: int) -> Moves[Claims | None]:
            look.now_us = now_us
            return moves.claim(now_us, claim, look)

        found = await self._run(program, caller=Caller.RUNNER, is_durable=False)
        if found is None:
            return None
        looks.end(claim, look, found, loop.time())
        if look.places is None:
            return found
        times = [max(0, round((looks.next_full - loop.time()) * _US))]  # until it is seen what was not looked at
        return replace(found, next_in_us=min(times if found.next_in_us is None else [*times, found.next_in_us]))

    async def finish(self, outcomes: Sequence[TaskOutcome]) -> list[bool]:
        async with self._finishing:  # it may wait for a lane, and the runners' other calls need the other connections
            return await super().finish(outcomes)

    async def migration(self) -> str:
        """Return the SQL that brings the database to this release, for an owner to run; empty if nothing is missing."""
        driver = driver_for(type(self).__name__)
        with self._translated():
            check_conninfo(repr(self), driver, self._conninfo)
            async with await driver.AsyncConnection.connect(self._conninfo) as connection:
                return migration_sql(repr(self), await versions_of(connection, _VERSION_TABLE))

    # Running moves

    def _tell(self, *, is_cancel: bool = False) -> None:
        self._is_telling_cancel = self._is_telling_cancel or is_cancel
        if self._notifier is None:
            notifying = self._notify(self._own_pool)
            self._notifier = asyncio.get_running_loop().create_task(notifying, name="durable tasks: notify")

    async def _run(
        self,
        program: Program[T],
        *,
        caller: Caller = Caller.USER,
        is_durable: bool = True,  # noqa: ARG002  # every commit is
    ) -> T:
        """Run moves as one transaction.

        Repeats it if the server aborts it, or the connection is lost before the commit was sent: it then had no effect.
        The result of a commit without an answer is unknown, so that raises.
        """
        pool = self._own_pool if caller is Caller.RUNNER else self._pool
        if pool is None:
            raise StoreUnavailableError(repr(self), NOT_OPEN)
        check_process(repr(self), self._process)
        driver = driver_for(type(self).__name__)
        loop = asyncio.get_running_loop()
        until, left = loop.time() + _TIMEOUT_SECONDS, _ATTEMPTS
        while True:
            is_connected = is_committing = False
            with self._translated():
                try:
                    async with taken(pool) as connection:
                        is_connected = True
                        async with _replaced_if_read_only(driver, connection), connection.transaction():
                            result = await self._play(own(connection), program)
                            is_committing = True
                except (driver.OperationalError, driver.errors.IdleInTransactionSessionTimeout) as error:
                    left -= is_connected
                    is_lost = not is_committing and error.sqlstate != _LOCK_NOT_AVAILABLE
                    is_again = left > 0 and (error.sqlstate in _GIVEN_UP or is_lost)
                    if not (is_again if is_connected else loop.time() < until):
                        raise
                else:
                    return result

    async def _play(self, runs: Runs, program: Program[T]) -> T:
        """Run moves, statement by statement."""
        [(now_us,)] = await runs(_STATEMENTS["now"], [()])
        running = program(now_us)
        try:
            name, arguments = next(running)
            while True:
                each = [_as_json(arguments)] if isinstance(arguments, Together) else arguments
                name, arguments = running.send(await runs(_STATEMENTS[name], each))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the generator's own type says it

    async def _put_with(self, connection: Any, tasks: Sequence[NewTask]) -> list[bool | Duplicate]:
        """Put tasks in the open transaction of a user's connection, whose kinds ``postgres_connections.py`` knows."""
        with self._translated():
            return await self._put_on(await transaction(driver_for(type(self).__name__), connection), tasks)

    async def _put_on(self, runs: Runs, tasks: Sequence[NewTask]) -> list[bool | Duplicate]:
        """Put tasks in a transaction of a user, whose commit notifies other processes, unless another one just has."""
        answers = await self._play(runs, lambda now_us: moves.put(now_us, tasks))
        if True in answers and (now := time.monotonic()) >= self._told_by_user + _NOTIFY_USER_SECONDS:
            self._told_by_user = now
            await runs(f"notify {_CHANNEL}", [()])
        return answers

    async def _make_schema(self, driver: Any) -> None:
        async with await driver.AsyncConnection.connect(self._conninfo) as connection:
            await connection.execute(f"select pg_advisory_xact_lock({_LOCK})")
            versions = await versions_of(connection, _VERSION_TABLE)
            if versions is None:
                if not self._is_creating:
                    raise StoreUnavailableError(repr(self), "the database has no durable tasks")
                await connection.execute(_VERSIONS)
            for statement in upgrade(repr(self), _SCHEMA, versions, create=self._is_creating):
                await connection.execute(statement)

    async def _notify(self, pool: Any) -> None:
        """Notify other processes once for several quick changes; also if the store closes meanwhile."""
        try:
            await asyncio.sleep(_NOTIFY_SECONDS)
        finally:
            self._notifier = None
            payload = f", '{_CANCELLED}'" if self._is_telling_cancel else ""
            self._is_telling_cancel = False
        with contextlib.suppress(StoreUnavailableError), self._translated():  # they poll as well
            async with taken(pool) as connection:
                await connection.execute(f"notify {_CHANNEL}{payload}")

    async def _listen(self) -> None:
        """Wake waiters when another process has made a change."""
        driver = driver_for(type(self).__name__)
        while True:
            with contextlib.suppress(driver.Error):
                async with await driver.AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
                    await connection.execute(f"listen {_CHANNEL}")
                    self._told(is_cancel=True)  # for changes made before
                    async for notice in connection.notifies():
                        self._told(is_cancel=notice.payload == _CANCELLED)
            await asyncio.sleep(_RECONNECT_SECONDS)

    def _told(self, *, is_cancel: bool) -> None:
        self._cancel_count += is_cancel
        self._changed.set()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise the driver's errors as one of ours."""
        driver = driver_for(type(self).__name__)
        try:
            yield
        except errors_of(driver) as error:
            cause = getattr(error, "orig", None) or error  # SQLAlchemy's contains the driver's
            state = getattr(cause, "sqlstate", None)
            if state == FAILED:
                raise ValueError(_FAILED) from error
            remedy = (
                ": another transaction has long held what this one needs, as after a put into the same lane; end it"
                if state == _LOCK_NOT_AVAILABLE
                else ""
            )
            reason = f"{type(cause).__name__}: {cause}".strip() + remedy
            raise StoreUnavailableError(repr(self), reason, is_permanent=is_permanent(cause)) from error


def migration_sql(store: str = "the store", versions: tuple[int, int] | None = None) -> str:
    """Return the SQL that brings a database from some versions, or from nothing, to this release."""
    statements = upgrade(store, _SCHEMA, versions)
    lock = f"select pg_advisory_xact_lock({_LOCK})"
    return script("begin", lock, _VERSIONS, *statements, "commit") if statements else ""


def _as_json(arguments: Together) -> tuple[Any, ...]:
    """Return the arguments of a statement that takes rows as a JSON list, with bytes in hex."""
    return json.dumps(arguments.rows, default=bytes.hex), *arguments.rest


async def _limit(connection: Any) -> None:
    """Prevent other transactions from blocking all of ours, and plans for a small table from being used for a large one.

    The plan of a prepared statement is made after a few runs, and kept while the table grows. A user's transaction that has put a task into a lane holds the lane's lock. A transaction of a process that died
    keeps its locks until the server ends it.
    """
    await connection.execute("set enable_seqscan = off")  # as every statement here has an index
    limits = {"lock_timeout": _LOCK_SECONDS, "idle_in_transaction_session_timeout": _IDLE_SECONDS}
    for name, seconds in limits.items():
        await connection.execute(
            "select set_config($1, $2, false) where current_setting($1) = '0'", (name, f"{seconds}s")
        )


@asynccontextmanager
async def _replaced_if_read_only(driver: Any, connection: Any) -> AsyncIterator[None]:
    """Close a connection whose server has become a standby: a new one may reach its successor."""
    try:
        yield
    except driver.errors.ReadOnlySqlTransaction:
        await connection.close()
        raise
