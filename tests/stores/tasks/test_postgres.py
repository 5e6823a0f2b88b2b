"""Durable tasks in PostgreSQL, on a real server: what was committed is there, whatever becomes of connections and processes."""

import asyncio
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("there is no server to start", allow_module_level=True)

import psycopg

from ratelimited_executor import StoreUnavailableError
from ratelimited_executor._core.durable.tasks import Claim, DurableState, End, NewTask, Outcome
from ratelimited_executor.durable import PostgresStore


def task(id, **options) -> NewTask:
    return NewTask(id=str(id), name="f", **options)


@pytest.fixture
async def opened(database, clock):
    """Open stores on one database; all are closed at the end."""
    stores = []

    async def call():
        stores.append(PostgresStore(database.url))
        await stores[-1].open(clock)
        return stores[-1]

    yield call
    for store in stores:
        await store.aclose()


async def test_processes_share_a_database_and_wake_each_other(opened):
    """By NOTIFY: long before anybody would look."""
    first, second = await opened(), await opened()
    await asyncio.sleep(0.2)  # it listens
    await second.wait(0.01)
    waiting = asyncio.ensure_future(second.wait(30))
    await asyncio.sleep(0.01)
    await first.put([task("x")])
    async with asyncio.timeout(20):
        await waiting
    await second.join("b", 60_000_000)
    [claimed] = (await second.claim(Claim(owner="b", count=1))).tasks
    assert [True] == await first.finish([Outcome(claimed.ref, End.DONE)])


async def test_claims_skip_what_others_are_claiming(opened):
    """Four stores at once, and a thousand tasks in ten lanes and none: each is claimed once, and lanes in order."""
    stores = [await opened() for _ in range(4)]
    await stores[0].put([task(n, lane=f"l{n % 10}" if n % 2 else None) for n in range(1000)])
    order = []

    async def work(store, owner):
        await store.join(owner, 60_000_000)
        idle = 0
        while idle < 5:
            claims = await store.claim(Claim(owner=owner, count=20))
            order.extend(int(each.id) for each in claims.tasks)
            idle = 0 if claims.tasks else idle + 1
            assert all(await store.finish([Outcome(each.ref, End.DONE) for each in claims.tasks]))

    await asyncio.gather(*(work(store, f"o{n}") for n, store in enumerate(stores)))
    assert list(range(1000)) == sorted(order)
    for lane in range(1, 10, 2):
        mine = [n for n in order if n % 10 == lane]
        assert sorted(mine) == mine


async def test_put_in_the_transaction_of_the_user(opened, database):
    """It is there if that commits, and not if it does not; the connection stays the user's."""
    store = await opened()
    async with await psycopg.AsyncConnection.connect(database.url) as connection:
        with pytest.raises(ValueError, match="connection must have an open transaction"):
            await store.put([task("x")], connection=connection)
        with pytest.raises(TypeError, match=r"connection must be a psycopg.AsyncConnection"):
            await store.put([task("x")], connection=object())
        for end, there in ((connection.rollback, None), (connection.commit, DurableState.READY)):
            await connection.execute("create table if not exists orders (id integer)")
            assert [True, True] == await store.put([task("x"), task("y", lane="l")], connection=connection)
            await end()
            [row, _] = await store.find(["x", "y"])
            assert there == (None if row is None else row.state)


async def test_backends_that_are_killed(opened, database):
    """What had returned is there; the store says so, and goes on with new connections."""
    store = await opened()
    await store.put([task("before")])
    kill = (
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'durable' and pid <> pg_backend_pid()"
    )
    put = {"before"}
    for n in range(30):
        if n % 3 == 0:
            database.connection.execute(kill)
        try:
            await store.put([task(n)])
        except StoreUnavailableError as error:
            assert isinstance(error.__cause__, psycopg.Error)
        else:
            put.add(str(n))
    assert len(put) > 10
    assert None not in await store.find(sorted(put))


async def test_servers_that_are_not_there_and_arguments_that_are_none(clock):
    """Each says what to do, and shows no password."""
    with pytest.raises(StoreUnavailableError) as caught:
        store = PostgresStore("postgresql://user:secret@127.0.0.1:1/none?connect_timeout=1")
        await store.open(clock)
    assert "secret" not in str(caught.value) + repr(store)
    with pytest.raises(TypeError, match="conninfo must be a text"):
        PostgresStore(5)
    with pytest.raises(ValueError, match="conninfo must be a text"):
        PostgresStore("")
    with pytest.raises(StoreUnavailableError, match="not open"):
        await PostgresStore("postgresql://127.0.0.1:1/none").counts()


async def test_newer_release_is_refused(opened, database, clock):
    """It may mean something else by the same tables."""
    await opened()
    database.connection.execute("update durable_schema set version = 99")
    with pytest.raises(
        StoreUnavailableError, match=r"newer release has made its tables \(schema 99; this one knows 1\)"
    ):
        await PostgresStore(database.url).open(clock)
