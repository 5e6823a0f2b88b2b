"""Connections of users to PostgreSQL, of each library: tasks are put in their transactions, and exist once these commit."""

import asyncio
import json
import sys
import threading
from contextlib import aclosing, asynccontextmanager, closing, contextmanager, nullcontext

import pytest

if sys.platform == "win32":
    pytest.skip("there is no server to start", allow_module_level=True)

import anyio
import asyncpg
import django
import psycopg
from django.conf import settings
from django.db import transaction
from django.db.utils import ConnectionHandler
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from ratelimited_executor.durable import DurableState, DurableTasks, MemoryStore, PostgresStore, PutSummary, RedisStore
from ratelimited_executor.durable import OnDuplicate, Unique
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.stores.tasks import postgres
from ratelimited_executor.stores.tasks.postgres_connections import taken

KINDS = [
    "psycopg",
    "asyncpg",
    "asyncpg pool",
    *(f"{kind} over {driver}" for kind in ("connection", "session", "scoped") for driver in ("psycopg", "asyncpg")),
]
BLOCKING = ["psycopg", "django", "connection", "session", "scoped"]
BOTH = "select count(*) from durable_tasks"


@asynccontextmanager
async def begun(kind, url):
    """Yield a connection of a kind with a transaction of its own, what runs a statement in it, and what ends it."""
    if kind == "psycopg":
        async with await psycopg.AsyncConnection.connect(url, row_factory=psycopg.rows.dict_row) as connection:
            await connection.execute("select 1")
            yield connection, connection.execute, lambda end: getattr(connection, end)()
    elif kind.startswith("asyncpg"):
        async with asyncpg.create_pool(url, min_size=1, max_size=1, init=encode_json) as pool:
            connection = await asyncpg.connect(url) if kind == "asyncpg" else await pool.acquire()
            block = connection.transaction()
            await block.start()
            try:
                yield connection, connection.execute, lambda end: getattr(block, end)()
            finally:
                await (connection.close() if kind == "asyncpg" else pool.release(connection))
    else:
        kind, _, driver = kind.split()
        engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"), poolclass=NullPool)
        made = {
            "connection": engine.connect,
            "session": lambda: AsyncSession(engine),
            "scoped": lambda: aclosing(async_scoped_session(async_sessionmaker(engine), lambda: None)),
        }[kind]()
        async with made as connection:
            if kind == "connection":
                await connection.begin()  # nothing has been sent yet

            async def execute(statement):
                inner = connection if kind == "connection" else await connection.connection()
                await inner.exec_driver_sql(statement)

            yield connection, execute, lambda end: getattr(connection, end)()
        await engine.dispose()


async def encode_json(connection):
    """Let a connection encode and decode JSON by itself, as many programs do."""
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


@contextmanager
def begun_blocking(kind, url):
    """Yield a blocking connection of a kind, and what ends its transaction."""
    if kind == "psycopg":
        with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
            yield connection, lambda end: getattr(connection, end)()
        return
    if kind == "django":
        with django_on(url) as connection:
            connection.set_autocommit(False)
            yield connection, lambda end: getattr(connection, end)()
        return
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    made = {
        "connection": engine.connect,
        "session": lambda: Session(engine),
        "scoped": lambda: closing(scoped_session(sessionmaker(engine))),
    }
    with made[kind]() as connection:
        yield connection, lambda end: getattr(connection, end)()


@contextmanager
def django_on(url):
    """Yield a connection of Django to a database, closed at the end."""
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    parts = psycopg.conninfo.conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    told = {name: parts.get(part, "") for name, part in names.items()}
    connection = ConnectionHandler({"default": {"ENGINE": "django.db.backends.postgresql", **told}})["default"]
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
async def tasks(database):
    """Open durable tasks of the database, with the functions ``send`` and ``note``."""
    async with DurableTasks(PostgresStore(database.url)) as made:
        made.task(name="send")(print)
        yield made


def some(tasks):
    """Return tasks of each sort: four new ones, and one that is a duplicate of another."""
    [send] = tasks.functions.values()
    replaced = Unique(on_duplicate=OnDuplicate.REPLACE)
    return [
        send.new(1, lane="l", id="first"),
        send.new(2, lane="l", id="named"),
        send.new(3, unique=replaced),
        send.new(3, unique=replaced),
        send.new(4, lane="m", id="later", delay=3600),
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_tasks_exist_once_the_transaction_commits(tasks, database, kind):
    """A rollback leaves nothing; a commit leaves all that was put, which others are notified of, and can claim."""
    other = PostgresStore(database.url)
    await other.open(None)
    await other.wait(30)  # from here on it listens
    for end, count in (("rollback", 0), ("commit", 4)):
        tasks.store._told_by_user = -1e9
        async with begun(kind, database.url) as (connection, execute, finish):
            waiting = asyncio.ensure_future(other.wait(30))
            assert PutSummary(4, 1) == await tasks.put_many(some(tasks), connection=connection)
            assert PutSummary(0, 5) == await tasks.put_many(some(tasks), connection=connection)
            await execute("create table if not exists orders (number integer)")
            assert (0,) == database.connection.execute(BOTH).fetchone()
            await finish(end)
            if end == "commit":
                async with asyncio.timeout(20):
                    await waiting
            else:
                waiting.cancel()
        assert count == len(rows := await tasks.rows())
    assert [DurableState.READY, DurableState.BEHIND, DurableState.READY, DurableState.SCHEDULED] == [
        r.state for r in rows
    ]
    assert (1,) == database.connection.execute("select count(*) from pg_tables where tablename = 'orders'").fetchone()
    await other.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_put_as_the_first_statement_of_a_transaction_belongs_to_it(tasks, database, kind):
    """Nothing is committed by itself, also if the library begins its transaction with the first statement."""
    [send] = tasks.functions.values()
    for end, there in (("rollback", False), ("commit", True)):
        async with begun(kind, database.url) as (connection, _, finish):
            assert (await send.put(1, id="x", connection=connection)).created
            assert (0,) == database.connection.execute(BOTH).fetchone()
            await finish(end)
        assert there == (await tasks.ref("x").row() is not None)


@pytest.mark.parametrize("kind", KINDS)
async def test_transactions_on_one_lane_follow_each_other(tasks, database, kind):
    """A transaction that puts into the lane of another one waits for its commit, and its task is behind the other's."""
    [send] = tasks.functions.values()
    async with begun(kind, database.url) as (first, _, end_first), begun(kind, database.url) as (second, _, end_second):
        await send.put(1, lane="l", id="first", connection=first)
        waiting = asyncio.ensure_future(send.put(2, lane="l", id="second", connection=second))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await end_first("commit")
        assert (await waiting).created
        await end_second("commit")
    assert [DurableState.READY, DurableState.BEHIND] == [row.state for row in await tasks.rows()]


@pytest.mark.parametrize("kind", KINDS)
async def test_errors_are_ours_and_say_what_to_do(tasks, database, kind):
    """A lock that is held too long, a failed transaction and one that was ended raise the same errors with each library."""
    [send] = tasks.functions.values()
    async with begun(kind, database.url) as (first, _, end_first), begun(kind, database.url) as (second, execute, _):
        await execute("set lock_timeout = 100")
        await send.put(1, lane="l", connection=first)
        with pytest.raises(
            StoreUnavailableError, match=r"(?s)LockNotAvailable.* another transaction has long held"
        ) as caught:
            await send.put(2, lane="l", connection=second)
        assert "[SQL:" not in str(caught.value)
        with pytest.raises(ValueError, match="a statement of this one has failed: roll it back"):
            await send.put(2, connection=second)
        await end_first("rollback")
        if kind.startswith(("psycopg", "asyncpg")):
            with pytest.raises(ValueError, match="connection must have an open transaction: put within"):
                await send.put(2, connection=first)
    assert [] == await tasks.rows()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_connection_that_commits_each_statement_is_refused(tasks, database, driver):
    """Under AUTOCOMMIT there is no transaction that a task could be put in."""
    [send] = tasks.functions.values()
    url = database.url.replace("postgresql:", f"postgresql+{driver}:")
    engine = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        with pytest.raises(ValueError, match="connection must have an open transaction: put within"):
            await send.put(2, connection=connection)
    assert [] == await tasks.rows()


async def test_other_kinds_are_refused_by_name(tasks, database):
    """The error names what is taken, for what is no connection, a blocking one, or one of another database."""
    [send] = tasks.functions.values()
    engine, url = create_engine("sqlite://"), "postgresql+psycopg://localhost/never"
    with engine.connect() as other, psycopg.connect(database.url) as blocking:
        for given in (object(), blocking, other, create_async_engine(url).connect()):
            with pytest.raises(
                TypeError, match="psycopg.AsyncConnection, an asyncpg.Connection, or an AsyncConnection or"
            ):
                await send.put(1, connection=given)
        with pytest.raises(TypeError, match=r"connection must be a psycopg.Connection, or one of SQLAlchemy or Django"):
            await asyncio.to_thread(send.put_sync, 1, connection=object())
    for store in (MemoryStore(), RedisStore("redis://localhost")):
        put = DurableTasks(store)
        new = put.task(name="send")(print).new(1)
        with pytest.raises(TypeError, match="connection"):
            await put.put_many([new], connection=object())
        with pytest.raises(TypeError, match="takes none"):
            await asyncio.to_thread(put.put_many_sync, [new], connection=object())


async def test_thousands_are_put_in_one_transaction(tasks, database):
    """The chunks of ``put_many`` share the transaction of the user, and one that fails leaves nothing after the rollback."""
    [send] = tasks.functions.values()
    for end, count in (("rollback", 0), ("commit", 2500)):
        async with begun("asyncpg", database.url) as (connection, _, finish):
            new = (send.new(n) for n in range(2500))
            assert PutSummary(2500) == await tasks.put_many(new, connection=connection)
            with pytest.raises(TypeError, match="what new"):
                await tasks.put_many(["x"], connection=connection)
            await finish(end)
        assert count == (await tasks.counts())[DurableState.READY]


async def test_commits_of_users_notify_ten_times_a_second_at_most(tasks, database, monkeypatch):
    """Of many quick transactions one notifies, and one that puts nothing new does not."""
    statements = []
    run = psycopg.AsyncRawCursor.execute

    async def noted(cursor, statement, *args):
        statements.append(statement)
        return await run(cursor, statement, *args)

    [send] = tasks.functions.values()
    monkeypatch.setattr(postgres, "_NOTIFY_USER_SECONDS", 3600.0)
    await send.put(0, id="x")
    monkeypatch.setattr(psycopg.AsyncRawCursor, "execute", noted)
    for n, id in enumerate(["x", "a", "b"]):
        async with begun("psycopg", database.url) as (connection, _, finish):
            await send.put(n, id=id, connection=connection)
            await finish("commit")
        assert min(n, 1) == sum(each == "notify durable_tasks" for each in statements)


@pytest.mark.parametrize("kind", BLOCKING)
def test_put_in_the_transaction_of_blocking_code(database, kind):
    """A put without asyncio joins the transaction of a blocking connection, also of one inside others, and needs no thread."""
    tasks = DurableTasks(PostgresStore(database.url))
    send = tasks.task(name="send")(print)
    asyncio.run(made(tasks))
    count = threading.active_count()
    with begun_blocking(kind, database.url) as (connection, finish):
        for end, there in (("rollback", 0), ("commit", 5)):
            assert send.put_sync(1, id="x", lane="l", connection=connection).created
            assert PutSummary(4, 1) == tasks.put_many_sync(some(tasks), connection=connection)
            assert (0,) == database.connection.execute(BOTH).fetchone()
            finish(end)
            assert (there,) == database.connection.execute(BOTH).fetchone()
        assert not send.put_sync(1, id="x", lane="l", connection=connection).created
        finish("rollback")
        assert count == threading.active_count()


def test_a_block_of_django_is_the_transaction(database, monkeypatch):
    """Within ``atomic()`` a task exists with the rows beside it; without a block it is refused, connected already or not."""
    tasks = DurableTasks(PostgresStore(database.url))
    send = tasks.task(name="send")(print)
    asyncio.run(made(tasks))
    with django_on(database.url) as connection:
        monkeypatch.setattr(transaction, "get_connection", lambda using=None: connection)
        for _ in range(2):
            with pytest.raises(ValueError, match="connection must have an open transaction"):
                send.put_sync(1, connection=connection)
            connection.ensure_connection()
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("create table orders (number integer)")
            assert send.put_sync(1, id="kept", connection=connection).created
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                send.put_sync(2, id="undone", connection=connection)
                1 / 0  # noqa: B018  # rolls back to a savepoint
            transaction.on_commit(lambda: send.put_sync(3, id="later"))
            assert (0,) == database.connection.execute(BOTH).fetchone()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            send.put_sync(4, id="lost", connection=connection)
            transaction.on_commit(lambda: send.put_sync(5, id="never"))
            1 / 0  # noqa: B018
    assert [("kept",), ("later",)] == database.connection.execute("select id from durable_tasks order by id").fetchall()


async def made(tasks):
    """Make the tables of a store."""
    async with tasks:
        pass


def test_blocking_connections_without_a_transaction_are_refused(database):
    """Without a transaction, or after an error in it, nothing is put."""
    tasks = DurableTasks(PostgresStore(database.url))
    send = tasks.task(name="send")(print)
    asyncio.run(made(tasks))
    with psycopg.connect(database.url, autocommit=True) as connection:
        with pytest.raises(ValueError, match="connection must have an open transaction"):
            send.put_sync(1, connection=connection)
        connection.autocommit = False
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("select * from nothing")
        with pytest.raises(ValueError, match="a statement of this one has failed: roll it back"):
            send.put_sync(2, connection=connection)


class LosingPool:
    """A pool whose connection comes together with a cancellation, which it loses, as psycopg's does on Python 3.11."""

    def __init__(self, cancel):
        self.cancel = cancel

    @asynccontextmanager
    async def connection(self):
        loop = asyncio.get_running_loop()
        given, told = loop.create_future(), loop.create_future()
        given.add_done_callback(lambda _: told.done() or told.set_result(None))  # in the next turn of the loop
        loop.call_soon(lambda: (given.set_result(None), self.cancel()))
        try:
            await told
        except asyncio.CancelledError:
            assert given.done()
        yield self


@pytest.mark.parametrize("is_nested", [False, True])
async def test_scope_of_anyio_catches_a_cancellation_that_came_with_a_connection(is_nested):
    """A scope that was cancelled just when there was a connection catches that, and its task goes on."""
    with anyio.CancelScope() as outer:
        inner = anyio.CancelScope() if is_nested else outer
        with inner if is_nested else nullcontext():
            async with taken(LosingPool(inner.cancel)):
                raise AssertionError("it was cancelled")
        assert is_nested
    assert inner.cancelled_caught
    assert is_nested is not outer.cancelled_caught
    assert not asyncio.current_task().cancelling()


async def test_timeout_that_ends_together_with_a_connection_is_one():
    """A timeout of asyncio that ends just when there is a connection raises TimeoutError."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60) as timeout:
            async with taken(LosingPool(lambda: timeout.reschedule(0))):
                await asyncio.sleep(60)
