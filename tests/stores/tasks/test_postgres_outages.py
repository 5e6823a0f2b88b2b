"""Durable tasks on a PostgreSQL server that fails: nothing is lost, and work continues once it is back."""

import asyncio
import sys
import time

import pytest

if sys.platform == "win32":
    pytest.skip("there is no server to start", allow_module_level=True)

import psycopg

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._core.durable.tasks import Beat, Claim, DurableState, End
from ratelimited_executor._core.durable.tasks import TaskOutcome as Ended
from ratelimited_executor.durable import DurableTasks, PostgresStore
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.stores.tasks import moves, postgres
from tests.peers.proxy import Proxy

from .conftest import task
from .outages import RECOVERY_SECONDS, fault_of, faults
from .postgres_server import END_CONNECTIONS, PostgresServer
from .test_postgres import interrupted

pytestmark = pytest.mark.real_time("a real server that fails, and processes that wait for it")


@pytest.fixture(scope="module")
def server():
    """A server of this module, which may be restarted."""
    with PostgresServer() as made:
        yield made


@pytest.fixture
def clean(server):
    """The server, with an empty database."""
    with server.connect("postgres") as connection:
        connection.execute("drop database durable with (force)")
        connection.execute("create database durable owner app")
    return server


@pytest.fixture
async def store(clean, clock):
    """A store on the server."""
    made = PostgresStore(clean.url)
    await made.open(clock)
    yield made
    await made.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(faults(None)))
async def test_after_a_fault_it_goes_on(clean, name):
    """After each fault a load of puts and runs continues, and loses no task; the module itself measures throughput."""
    outcome = await fault_of(name, clean, faults(clean)[name], 1.0)
    assert [] == outcome.lost
    assert outcome.doubled <= outcome.claimed
    assert 0 == outcome.stuck
    assert outcome.recovery < RECOVERY_SECONDS


async def test_server_that_can_only_be_read_is_left_for_another(clean, store):
    """A connection refused as read-only is not reused: the next one may lead to the server that has taken over."""
    await store.put([task("a")])
    with clean.connect() as connection:
        connection.execute("alter database durable set default_transaction_read_only = on")
        connection.execute(END_CONNECTIONS)
    with pytest.raises(StoreUnavailableError, match="read-only"):
        await store.put([task("b")])
    with pytest.raises(StoreUnavailableError, match="read-only"):
        await store.put([task("b")])
    with clean.connect("postgres") as connection:
        connection.execute("alter database durable reset default_transaction_read_only")
    refused = 0
    while True:  # connections that the pool has opened meanwhile
        try:
            assert [True] == await store.put([task("b")])
            break
        except StoreUnavailableError:
            refused += 1
            assert refused <= 4
    assert 2 == (await store.counts())[DurableState.READY]


async def test_no_connection_is_waited_for_once(clean, store, monkeypatch):
    """Without a connection a call fails after one timeout, and not after one for each attempt."""
    await store.put([task("a")])
    with clean.connect("postgres") as connection:
        connection.execute("alter role app connection limit 0")
        connection.execute(END_CONNECTIONS)
        with monkeypatch.context() as patch:
            patch.setattr(postgres, "_TIMEOUT_SECONDS", 1.0)
            patch.setattr(postgres, "_ATTEMPTS", 1000)  # each attempt may take two seconds
            async with asyncio.timeout(60):  # takes two seconds
                with pytest.raises(StoreUnavailableError):
                    await store.put([task("b")])
        connection.execute("alter role app connection limit -1")
    async with asyncio.timeout(60):
        while True:
            try:
                await store.put([task("c")])
                break
            except StoreUnavailableError:
                await asyncio.sleep(0.1)


def limit(connection, setting, value) -> None:
    """Set a limit of the database, and end the connections, which keep the limits of their start."""
    connection.execute(f"alter database durable set {setting} = {value}")
    connection.execute(END_CONNECTIONS)


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
async def test_limits_of_the_server_undo_a_call_whole(clean, store, setting):
    """A call that runs into a timeout of the server changes nothing, and succeeds once the tables are free."""
    await store.put([task("a", lane="l")])
    await store.join("o", 60_000_000)
    [claimed] = (await store.claim(Claim(owner="o", count=1))).tasks
    calls = [
        lambda: store.put([task("b", lane="l")]),
        lambda: store.finish([Ended(claimed.ref, End.DONE)]),
        lambda: store.claim(Claim(owner="o", count=1)),
        lambda: store.beat("o"),
    ]
    with clean.connect() as connection:
        limit(connection, setting, "'150ms'")
        with connection.transaction():
            connection.execute("lock table durable_tasks")
            for call in calls[:3]:
                with pytest.raises(StoreUnavailableError):
                    await call()
        limit(connection, setting, "default")  # a busy machine may take as long although nobody holds a lock
    assert [True] == await calls[0]()
    assert [True] == await calls[1]()
    assert ["b"] == [each.id for each in (await calls[2]()).tasks]
    assert Beat((), 1) == await calls[3]()


async def test_process_that_stands_still_in_a_transaction_loses_it_whole(clean, store):
    """A transaction that idles too long is ended by the server, undone whole, and repeated."""
    await store.put([task("a")])
    await store.join("o", 60_000_000)
    asked = Claim(owner="o", count=5)
    with clean.connect("postgres") as connection:
        limit(connection, "idle_in_transaction_session_timeout", "'150ms'")
        naps = [1.0]
        claims = await store._run(  # idles when the task is claimed already
            lambda now_us: interrupted(
                moves.claim(now_us, asked), "next_due", lambda: time.sleep(naps.pop() if naps else 0.0)
            )
        )
        limit(connection, "idle_in_transaction_session_timeout", "default")
    assert [] == naps
    assert [("a", 1)] == [(each.id, each.ref.token) for each in claims.tasks]


@pytest.mark.parametrize("locks", ["durable_clock", "durable_owners where owner = 'gone'"])
async def test_process_that_is_gone_in_a_transaction_stops_no_beats(clean, clock, monkeypatch, locks):
    """A process that vanishes within a transaction, like a machine without power, stops no beats for long."""
    monkeypatch.setattr(postgres, "_IDLE_SECONDS", 1)
    store = PostgresStore(clean.url)
    await store.open(clock)
    await store.join("gone", 1)
    await store.join("o", 60_000_000)
    connection = await store._pool.getconn()
    await connection.execute("begin")
    await connection.execute(f"select 1 from {locks} for update")
    async with asyncio.timeout(60):
        for _ in range(3):
            assert Beat((), 0) == await store.beat("o")
    await store._pool.putconn(connection)
    await store.aclose()


async def test_answer_of_a_commit_that_is_lost_is_said_and_the_call_can_be_made_again(clean, clock):
    """A call whose commit gets no answer reports so, and its repetition neither puts nor ends a task twice."""
    lost = 0
    with Proxy(clean.port) as proxy:
        proxy.silence = 0.05
        store = PostgresStore(clean.url.replace(str(clean.port), str(proxy.port)))
        await store.open(clock)
        await store.join("o", 60_000_000)
        ended = 0
        for n in range(40):
            made = task(n, lane=f"l{n % 3}", is_named=True)
            proxy.drop_replies = 0.1
            try:
                created = await store.put([made])
            except StoreUnavailableError:
                lost += 1
                proxy.drop_replies = 0.0
                created = await store.put([made])  # False if the first put was committed
            proxy.drop_replies = 0.0
            assert len(created) == 1
            claims = await store.claim(Claim(owner="o", count=1))
            proxy.drop_replies = 0.1
            outcomes = [Ended(each.ref, End.DONE) for each in claims.tasks]
            try:
                await store.finish(outcomes)
            except StoreUnavailableError:
                lost += 1
                proxy.drop_replies = 0.0
                await store.finish(outcomes)
            proxy.drop_replies = 0.0
            assert [False] * len(outcomes) == await store.finish(outcomes)
            ended += len(outcomes)
        assert (40 - ended) == sum((await store.counts()).values())
        await store.aclose()
    assert lost


async def test_put_of_a_user_who_rolls_back_leaves_nothing_though_his_connection_dies(clean, store):
    """A put in a user's transaction that is rolled back, killed or never ended leaves nothing, and frees its lane."""
    for how in ("rollback", "kill", "close"):
        connection = await psycopg.AsyncConnection.connect(clean.url)
        await connection.execute("select 1")
        assert [True, True] == await store.put([task("x", is_named=True), task("y", lane="l")], connection=connection)
        waiting = asyncio.ensure_future(store.put([task("z", lane="l")]))  # in the same lane, behind its lock
        await asyncio.sleep(0.05)
        if how == "rollback":
            await connection.rollback()
        elif how == "kill":
            with clean.connect("postgres") as admin:
                admin.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
        await connection.close()
        await waiting
        assert [None, None] == await store.find(["x", "y"])
        assert [DurableState.READY] == await store.cancel(["z"])


async def test_last_put_before_the_end_is_told_to_others(clean, clock, store):
    """Other processes are notified of a put even if its store is closed right after it."""
    listens = asyncio.Event()
    changed = asyncio.ensure_future(_notified(clean, listens))
    await listens.wait()
    other = PostgresStore(clean.url)
    await other.open(clock)
    await other.put([task("a")])
    await other.aclose()
    async with asyncio.timeout(20):
        await changed


async def _notified(server, listens) -> None:
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        await connection.execute("listen durable_tasks")
        listens.set()
        async for _ in connection.notifies():
            return


async def test_clock_of_the_server_that_is_set_by_hours_takes_nobodys_claims(clean):
    """Server clock steps of hours while tasks run cause no second run, and hold up no task that was due."""
    tasks = DurableTasks(PostgresStore(clean.url), lease=1.5)
    ran = []

    @tasks.task
    async def work(n):
        ran.append(n)
        await asyncio.sleep(1.2)

    async with RateLimitedExecutor("x") as executor, tasks.running(executor) as runner:
        with clean.connect() as connection:
            for n, hours in enumerate((5, -5, 48, 0, -48)):
                await work.put(n, lane=f"l{n % 2}")
                connection.execute(
                    "create or replace function durable_now() returns bigint language sql volatile as "
                    f"'select (extract(epoch from clock_timestamp()) * 1000000)::bigint + {hours * 3_600_000_000}'"
                )
                await work.put(n + 100)
                await asyncio.sleep(0.6)
        async with asyncio.timeout(30):
            while sum((await tasks.counts()).values()):
                await asyncio.sleep(0.05)
        assert (10, 0) == (runner.statistics().done, runner.statistics().lost)
    assert sorted([*range(5), *range(100, 105)]) == sorted(ran)
    assert [n for n in ran if n < 100 and n % 2 == 0] == [0, 2, 4]
