"""Durable tasks on a real PostgreSQL server: committed tasks stay, whatever happens to connections and processes."""

import asyncio
import re
import sys
import traceback

import pytest

if sys.platform == "win32":
    pytest.skip("there is no server to start", allow_module_level=True)

import anyio
import hypothesis
import psycopg
from hypothesis import example, given
from psycopg_pool import AsyncConnectionPool
from psycopg_pool.pool_async import WaitingClient

from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor._core.durable.tasks import (
    Beat,
    Claim,
    Duplicate,
    DurableState,
    End,
    KeptTask,
    OnDuplicate,
    TaskOutcome,
    Turns,
    UniqueKey,
)
from ratelimited_executor.durable import DurableTasks, PostgresStore
from ratelimited_executor.stores.tasks import moves, postgres

from tests.core.test_urls import PASSWORDS, holds

from .conftest import opening, task
from .postgres_server import END_CONNECTIONS


REPLACED = UniqueKey("u", while_running=False, on_duplicate=OnDuplicate.REPLACE)


@pytest.fixture
async def opened(database, clock):
    """Open stores on one database, and close them all at the end."""
    async with opening(lambda: PostgresStore(database.url), clock) as call:
        yield call


@pytest.mark.parametrize("error", [psycopg.OperationalError, asyncio.CancelledError])
async def test_opening_that_fails_leaves_no_pool(database, clock, monkeypatch, error):
    """Pools that were opened are closed again, with their workers, whatever ends the opening."""
    opened, plain = [], AsyncConnectionPool.open

    async def refuse(pool, *args, **options):
        await plain(pool, *args, **options)
        opened.append(pool)
        if len(opened) == 2:
            raise error

    monkeypatch.setattr(AsyncConnectionPool, "open", refuse)
    with pytest.raises((StoreUnavailableError, asyncio.CancelledError)):
        await PostgresStore(database.url).open(clock)
    assert [True, True] == [pool.closed for pool in opened]


@pytest.mark.parametrize("when", ["opening", "open"])
async def test_store_in_a_cancelled_scope_leaves_no_pool(database, monkeypatch, when):
    """A scope of anyio cancels each wait again; pools are closed all the same, with their workers."""
    opened, plain = [], AsyncConnectionPool.open

    async def slow(pool, *args, **options):
        await plain(pool, *args, **options)
        opened.append(pool)
        if when == "opening":
            scope.cancel()
            await asyncio.sleep(1)

    monkeypatch.setattr(AsyncConnectionPool, "open", slow)
    before = asyncio.all_tasks()
    with anyio.CancelScope() as scope:
        async with DurableTasks(PostgresStore(database.url)):
            scope.cancel()
            await asyncio.sleep(1)
    assert scope.cancelled_caught
    assert {True} == {pool.closed for pool in opened}
    assert before == asyncio.all_tasks()


async def test_processes_share_a_database_and_wake_each_other(opened):
    """A put by one process wakes another that waits, by NOTIFY and long before its next look."""
    first, second = await opened(), await opened()
    await second.wait(30)  # from here on it listens
    waiting = asyncio.ensure_future(second.wait(30))
    await asyncio.sleep(0.01)
    await first.put([task("x")])
    async with asyncio.timeout(20):
        await waiting
    await second.join("b", 60_000_000)
    [claimed] = (await second.claim(Claim(owner="b", count=1))).tasks
    assert [True] == await first.finish([TaskOutcome(claimed.ref, End.DONE)])


async def test_claims_skip_what_others_are_claiming(opened):
    """Four stores that claim at once get each of a thousand tasks once, and those of a lane in order."""
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
            assert all(await store.finish([TaskOutcome(each.ref, End.DONE) for each in claims.tasks]))

    await asyncio.gather(*(work(store, f"o{n}") for n, store in enumerate(stores)))
    assert list(range(1000)) == sorted(order)
    for lane in range(1, 10, 2):
        mine = [n for n in order if n % 10 == lane]
        assert sorted(mine) == mine


async def test_put_in_the_transaction_of_the_user(opened, database):
    """A put in the user's transaction is committed or rolled back with it, and the connection stays the user's."""
    store = await opened()
    async with await psycopg.AsyncConnection.connect(database.url, row_factory=psycopg.rows.dict_row) as connection:
        with pytest.raises(ValueError, match="connection must have an open transaction"):
            await store.put([task("x")], connection=connection)
        with pytest.raises(TypeError, match=r"connection must be a psycopg.AsyncConnection"):
            await store.put([task("x")], connection=object())
        with pytest.raises(psycopg.errors.UndefinedTable):
            await connection.execute("select * from nothing")
        with pytest.raises(ValueError, match="a statement of this one has failed: roll it back"):
            await store.put([task("x")], connection=connection)
        await connection.rollback()
        for end, there in ((connection.rollback, None), (connection.commit, DurableState.READY)):
            await connection.execute("create table if not exists orders (id integer)")
            assert [True, True] == await store.put([task("x"), task("y", lane="l")], connection=connection)
            await end()
            [row, _] = await store.find(["x", "y"])
            assert there == (None if row is None else row.state)


def interrupted(program, before, work):
    """Play moves, and call ``work`` once, before the statement ``before``."""
    name, arguments = next(program)
    try:
        while True:
            if name == before and work is not None:
                work()
                work = None
            name, arguments = program.send((yield name, arguments))
    except StopIteration as end:
        return end.value


async def test_lane_goes_on_whose_head_is_cancelled_while_its_claims_are_given_back(opened, database):
    """A lane continues if another transaction cancels its head while its claim is given back."""
    store = await opened()
    await store.put([task("head", lane="l"), task("next", lane="l")])
    await store.join("a", 60_000_000)
    await store.claim(Claim(owner="a", count=1))
    cancel = "update durable_tasks set is_cancelled = 1 where state = 3"
    await store._run(
        lambda now_us: interrupted(moves.leave(now_us, "a"), "give_back", lambda: database.connection.execute(cancel))
    )
    assert [None] == await store.find(["head"])
    [row] = await store.find(["next"])
    assert DurableState.READY is row.state


async def test_task_that_is_due_again_is_not_deleted_as_expired(opened, database):
    """A task found expired is not deleted if another transaction has moved its expiry meanwhile."""
    store = await opened()
    await store.put([task("x", expires_us=1)])
    await store.join("a", 60_000_000)
    renew = "update durable_tasks set expires_us = expires_us + 3600000000"
    asked = Claim(owner="a", count=1)
    claims = await store._run(
        lambda now_us: interrupted(
            moves.claim(now_us, asked), "delete_expired", lambda: database.connection.execute(renew)
        )
    )
    assert (0, ["x"]) == (claims.expired_count, [each.id for each in claims.tasks])


@pytest.mark.parametrize(
    "move", ["update durable_tasks set state = 3, owner = 'a'", "delete from durable_tasks", "update durable_tasks set due_us = 0"]
)  # fmt: skip
async def test_task_that_moves_while_it_is_to_be_changed(opened, database, move):
    """A put that finds a waiting task puts its own, if another transaction has claimed or ended that one meanwhile."""
    store = await opened()
    await store.put([task("old", unique=REPLACED, lane="l")])
    new = task("new", unique=REPLACED, body=b"new")
    answers = await store._run(
        lambda now_us: interrupted(moves.put(now_us, [new]), "change", lambda: database.connection.execute(move))
    )
    assert [Duplicate("old", True) if "due_us" in move else True] == answers
    assert b"new" in [row.body for row in await store.rows()]
    assert [Duplicate(answers[0].id if "due_us" in move else "new", True)] == await store.put(
        [task("x", unique=REPLACED)]
    )


async def test_transaction_of_the_user_that_changes_a_task_holds_up_no_runner(opened, database, monkeypatch):
    """A changed task is neither claimed nor expired before the commit, and other puts with its key wait for that."""
    monkeypatch.setattr(postgres, "_LOCK_SECONDS", 60)
    store = await opened()
    await store.join("o", 60_000_000)
    await store.put([task("x", unique=REPLACED, expires_us=60_000_000)])
    asked = Claim(owner="o", count=9)
    for end, body in (("rollback", b""), ("commit", b"changed")):
        async with await psycopg.AsyncConnection.connect(database.url) as connection:
            await connection.execute("select 1")
            changed = task("y", unique=REPLACED, body=b"changed")
            assert [Duplicate("x", True)] == await store.put([changed], connection=connection)
            async with asyncio.timeout(20):
                assert Beat((), 0) == await store.beat("o")
                later = await store._run(lambda now_us: moves.claim(now_us + 120_000_000, asked))
                assert ((), 0) == (later.tasks, later.expired_count)
                assert [True] == await store.put([task(end, unique=UniqueKey("other"), delay_us=10**12)])
                await store.cancel([end])
            waiting = asyncio.ensure_future(store.put([task("z", unique=UniqueKey("u"))]))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await getattr(connection, end)()
            assert [Duplicate("x", False)] == await waiting
        [row] = await store.rows()
        assert body == row.body


async def test_cancellation_that_comes_with_a_connection_is_not_lost(opened, monkeypatch):
    """A call that is cancelled just when the pool gives it a connection is cancelled, and gives the connection back."""
    store = await opened()
    busy = [await store._pool.getconn() for _ in range(store._pool.max_size)]
    call = asyncio.ensure_future(store.put([task("x")]))
    while not store._pool._waiting:
        await asyncio.sleep(0.01)
    give = WaitingClient.set

    async def give_and_cancel(client, connection):
        is_taken = await give(client, connection)
        call.cancel()
        return is_taken

    with monkeypatch.context() as patch:
        patch.setattr(WaitingClient, "set", give_and_cancel)
        for connection in busy:
            await store._pool.putconn(connection)
        with pytest.raises(asyncio.CancelledError):
            await call
    async with asyncio.timeout(60):
        assert len(busy) == len([await store._pool.getconn() for _ in busy])


async def test_closing_that_is_cancelled_leaves_nothing_open(opened):
    """Closing that is cancelled while it waits for the last notice leaves no task of the loop."""
    before = asyncio.all_tasks()
    store = await opened()
    await store.put([task("x")])
    closing = asyncio.ensure_future(store.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    if left := asyncio.all_tasks() - before - {closing}:  # the notice may still be under way
        await asyncio.wait(left, timeout=30)
    assert before == asyncio.all_tasks()


async def test_backends_that_are_killed(opened, database):
    """After connections are killed the store reports it and continues with new ones; returned puts are kept."""
    store = await opened()
    await store.put([task("before")])
    put = {"before"}
    for n in range(30):
        if n % 3 == 0:
            database.connection.execute(END_CONNECTIONS)
        try:
            await store.put([task(n)])
        except StoreUnavailableError as error:
            assert isinstance(error.__cause__, psycopg.Error)
        else:
            put.add(str(n))
    assert len(put) > 10
    assert None not in await store.find(sorted(put))


async def test_servers_that_are_not_there_and_arguments_that_are_none(clock):
    """An unreachable server and bad arguments are refused with a remedy, and without showing a password."""
    with pytest.raises(StoreUnavailableError) as caught:
        store = PostgresStore("postgresql://user:secret@127.0.0.1:1/none?connect_timeout=1")
        await store.open(clock)
    assert "secret" not in str(caught.value) + repr(store)
    assert not caught.value.is_permanent
    with pytest.raises(TypeError, match="conninfo must be a str"):
        PostgresStore(5)
    for other, found in (
        ("", "an empty one"),
        ("localhost", "neither"),
        ("user:secret@host", "neither"),
        ("mysql://u:secret@host/db?a=b", "a URL of the scheme 'mysql'"),
        ("postgresql+psycopg://u:secret@host/db", "a URL of the scheme 'postgresql+psycopg'"),
    ):
        with pytest.raises(ValueError, match=f"conninfo must be a str .*, got {re.escape(found)}$") as refused:
            PostgresStore(other)
        assert "secret" not in str(refused.value)
    with pytest.raises(StoreUnavailableError, match="not open"):
        await PostgresStore("postgresql://127.0.0.1:1/none").counts()


async def test_refusals_that_last_are_known(database, clock):
    """A wrong database, role, setting or right is refused for good; a server that is full is not."""
    database.connection.execute("drop role if exists poor")
    database.connection.execute("create role poor login connection limit 0")
    url = database.url
    for other, words, is_permanent in (
        (url.replace("/durable?", "/none?"), "does not exist", True),
        (f"{url}&user=nobody", 'role "nobody" does not exist', True),
        (f"{url}&sslmode=perhaps", "invalid sslmode value", True),
        (f"{url}&color=red", "conninfo cannot be read", True),
        (f"{url}&user=poor", "too many connections", False),
    ):
        with pytest.raises(StoreUnavailableError, match=words) as caught:
            await PostgresStore(other).open(clock)
        assert is_permanent == caught.value.is_permanent, words
    database.connection.execute("alter role poor connection limit -1")
    database.connection.execute("revoke create on schema public from public")
    with pytest.raises(StoreUnavailableError, match="permission denied") as caught:
        await PostgresStore(f"{url}&user=poor").open(clock)
    assert caught.value.is_permanent


async def test_transaction_that_holds_a_lane_for_ever_holds_up_nobody_for_ever(opened, database, monkeypatch):
    """A put behind a transaction that holds its lane fails after a while, says why, and changes nothing."""
    monkeypatch.setattr(postgres, "_LOCK_SECONDS", 1)
    store = await opened()
    async with await psycopg.AsyncConnection.connect(database.url) as connection, connection.transaction():
        assert [True] == await store.put([task("x", lane="l")], connection=connection)
        async with asyncio.timeout(30):  # takes a second
            with pytest.raises(
                StoreUnavailableError, match=r"(?s)LockNotAvailable.* another transaction has long held"
            ):
                await store.put([task("y", lane="l")])
        assert [True] == await store.put([task("z", lane="other")])
    assert [True] == await store.put([task("y", lane="l")])
    assert {"x", "y", "z"} == {row.id for row in await store.rows()}


async def test_calls_of_users_that_wait_for_a_lane_hold_up_no_runner(opened, database, monkeypatch):
    """While the calls of many users wait for a lane, a runner renews its lease, claims tasks and ends claims."""
    monkeypatch.setattr(postgres, "_LOCK_SECONDS", 60)
    store = await opened()
    await store.join("o", 60_000_000)
    await store.put([*(task(f"s{n}", lane="l", delay_us=60_000_000) for n in range(12)), task("free")])
    async with await psycopg.AsyncConnection.connect(database.url) as connection:
        await connection.execute("select 1")
        await store.put([task("held", lane="l", delay_us=60_000_000)], connection=connection)
        waiting = [asyncio.ensure_future(store.cancel([f"s{n}"])) for n in range(12)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(20):
            assert Beat((), 0) == await store.beat("o")
            [claimed] = (await store.claim(Claim(owner="o", count=1))).tasks
            assert [True] == await store.finish([TaskOutcome(claimed.ref, End.DONE)])
        assert not any(each.done() for each in waiting)
        await connection.rollback()
    assert [None] not in await asyncio.gather(*waiting)


async def test_ends_that_wait_for_a_lane_hold_up_no_other_runner(opened, database, monkeypatch):
    """While the ends of several runners wait for a lane, the others renew their leases and claim tasks."""
    monkeypatch.setattr(postgres, "_LOCK_SECONDS", 60)
    store = await opened()
    await store.join("o", 60_000_000)
    await store.put([*(task(f"l{n}", lane=f"l{n}") for n in range(5)), task("free", queue="other")])
    claimed = (await store.claim(Claim(owner="o", count=5))).tasks
    async with await psycopg.AsyncConnection.connect(database.url) as connection:
        await connection.execute("select 1")
        await store.put([task(f"held{n}", lane=f"l{n}") for n in range(5)], connection=connection)
        waiting = [asyncio.ensure_future(store.finish([TaskOutcome(each.ref, End.DONE)])) for each in claimed]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(20):
            assert Beat((), 5) == await store.beat("o")
            assert ["free"] == [each.id for each in (await store.claim(Claim(owner="o", queue="other", count=9))).tasks]
        assert not any(each.done() for each in waiting)
        await connection.rollback()
    assert [[True]] * 5 == [await each for each in waiting]


@pytest.mark.parametrize("is_late", [True, False])
async def test_lane_that_a_user_holds_holds_up_neither_beats_nor_claims(opened, database, monkeypatch, is_late):
    """Beats and claims skip what needs a lane that a user's transaction holds, and make up for it later."""
    monkeypatch.setattr(postgres, "_LOCK_SECONDS", 60)
    store = await opened()
    database.stop_clock()
    await store.join("o", 60_000_000)
    await store.put([task("x", lane="l", expires_us=None if is_late else 5), task("y", lane="l"), task("z")])
    if is_late:  # a process that is lost has claimed a task that was cancelled, and one more
        await store.join("lost", 3_000_000)
        await store.claim(Claim(owner="lost", count=2))
        await store.cancel(["x"])
    async with await psycopg.AsyncConnection.connect(database.url) as connection:
        await connection.execute("select 1")
        await store.put([task("held", lane="l")], connection=connection)
        async with asyncio.timeout(30):  # less than the store waits for a lock
            for second in range(6):
                database.set_clock(10_000_000_000 + second * 1_000_000)
                assert Beat((), 0) == await store.beat("o")
            claims = await store.claim(Claim(owner="o", count=9))
        assert ([] if is_late else ["z"]) == [each.id for each in claims.tasks]
        await connection.rollback()
    await store.beat("o")
    claims = await store.claim(Claim(owner="o", count=9))
    assert ({"y", "z"} if is_late else {"y"}) == {each.id for each in claims.tasks}
    assert [None] == await store.find(["x"])


async def test_address_that_cannot_be_read_is_not_repeated(clock):
    """An address that cannot be parsed is not repeated in the error: it may contain a password."""
    with pytest.raises(StoreUnavailableError, match="conninfo cannot be read") as caught:
        await PostgresStore("host=h user:secret").open(clock)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@hypothesis.settings(max_examples=60)
@given(PASSWORDS)
@example("hunter@zebra")
@example("hunter/zebra")
@example("80/hunter")
@example("hunter\0zebra")
@example("hunter zebra")
@example("%ZZhunter")
def test_nothing_of_a_password_is_in_an_error(password):
    """Nothing of a password of any characters is in an error or its causes, even if they should have been encoded."""

    async def opening():
        await PostgresStore(f"postgresql://user:{password}@127.0.0.1:1/db?connect_timeout=1").open(None)

    for attempt in (opening(), PostgresStore(f"host=127.0.0.1 port=1 password={password}").open(None)):
        with pytest.raises(StoreUnavailableError) as caught:
            asyncio.run(attempt)
        assert [] == holds("".join(traceback.format_exception(caught.value)))


async def test_database_of_somebody_else_is_left_alone_by_what_only_looks(opened, database, clock):
    """With ``create=False``, as on the command line, a database without durable tasks is left unchanged."""
    looking = PostgresStore(database.url, create=False)
    with pytest.raises(StoreUnavailableError, match="has no durable tasks"):
        await looking.open(clock)
    tables = "select count(*) from pg_tables where tablename like 'durable%'"
    assert (0,) == database.connection.execute(tables).fetchone()
    await opened()
    await looking.open(clock)
    await looking.aclose()


async def test_claims_in_turn_are_by_an_index(opened, database):
    """No statement of a claim in turn reads the backlog."""
    store = await opened()
    for n in range(20):
        await store.put([task(f"{n}-{i}", key=f'"k{i % 5}"') for i in range(1000)])
    database.connection.execute("analyze durable_tasks")
    arguments = {
        "level": ("default", 1.0),
        "turn_keys": ("default", 0.0, "", 100),
        "turn_tasks": ("default", 0.0, '["\\"k1\\"", " "]', 0, 2**62, 0, "[]", 5),
    }
    cursor = psycopg.RawCursor(database.connection)
    for name, values in arguments.items():
        cursor.execute(f"explain (analyze, buffers) {postgres._STATEMENTS[name]}", values)
        plan = "\n".join(line for (line,) in cursor.fetchall())
        assert "Seq Scan on durable_tasks" not in plan, plan
        assert ("durable_ready" if name == "level" else "durable_turns") in plan, plan
        assert not re.search(r"Rows Removed by Filter: (\d\d|[2-9])", plan), plan
        assert "Sort Key: durable_tasks.due_us" not in plan, plan


async def test_latencies_are_by_indexes(opened, database):
    """The latency of queues is read from one queue and priority to the next: it takes as many pages as these, not as the tasks."""
    store = await opened()
    for n in range(10):
        await store.put([task(f"{n}-{i}", priority=float(i % 3), queue=f"q{i % 2}") for i in range(1000)])
    await store.put([task(f"later {i}", delay_us=10**9) for i in range(1000)])
    database.connection.execute("analyze durable_tasks")
    cursor = psycopg.RawCursor(database.connection)
    cursor.execute(f"explain (analyze, buffers) {postgres._STATEMENTS['latencies']}", (2**62, 1000))
    plan, _, _ = "\n".join(line for (line,) in cursor.fetchall()).partition("Planning:")
    assert "Seq Scan on durable_tasks" not in plan, plan
    assert max(map(int, re.findall(r"shared hit=(\d+)", plan))) < 200, plan


@pytest.mark.parametrize(("name", "first"), [("rows_dead", 0), ("newest_rows_dead", 2**62)])
async def test_dead_letters_are_listed_by_their_index(opened, database, name, first):
    """A page of dead letters reads these alone, whichever come first, and none of the tasks that wait."""
    store = await opened()
    await store.put([task(f"ready {n}") for n in range(5000)])
    database.connection.execute("update durable_tasks set state = 5 where number % 50 = 0")
    database.connection.execute("analyze durable_tasks")
    cursor = psycopg.RawCursor(database.connection)
    cursor.execute(f"explain (analyze, buffers) {postgres._STATEMENTS[name]}", (first, 100, 10))
    plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "durable_dead" in plan, plan
    assert "Sort" not in plan, plan
    assert "Rows Removed" not in plan, plan


async def test_claims_in_turn_skip_what_others_are_claiming(opened):
    """Four stores that claim in turn at once get each of a thousand tasks once."""
    stores = [await opened() for _ in range(4)]
    await stores[0].put([task(n, key=f'"k{n % 7}"') for n in range(1000)])
    for store in stores:
        await store.join(repr(id(store)), 60_000_000)

    async def work(store):
        mine = []
        while True:
            claims = await store.claim(Claim(owner=repr(id(store)), count=20, turns=Turns(each=3)))
            mine += [each.id for each in claims.tasks]
            if not claims.tasks and claims.next_in_us != 0:
                return mine

    claimed = [id for mine in await asyncio.gather(*map(work, stores)) for id in mine]
    assert sorted(map(str, range(1000))) == sorted(claimed)


async def test_a_call_of_many_tasks_takes_few_round_trips(opened, monkeypatch):
    """The round trips of a call depend on its kinds of statements, not on the number of its tasks, lanes or functions."""
    trips = []  # of calls, and not of connections that the pool opens meanwhile, nor notices to other processes
    statements = frozenset(postgres._STATEMENTS.values())
    for name in ("execute", "executemany"):

        async def counted(cursor, *args, _run=getattr(psycopg.AsyncRawCursor, name), **options):
            if args[0] in statements:
                trips.append(args[0])
            return await _run(cursor, *args, **options)

        monkeypatch.setattr(psycopg.AsyncRawCursor, name, counted)

    async def count(call):
        trips.clear()
        answer = await call
        return len(trips), answer

    def ends(claims, end):
        return store.finish([TaskOutcome(each.ref, end, error="e") for each in claims.tasks])

    store = await opened()
    await store.join("o", 60_000_000)
    few, _ = await count(store.put([task("first", lane="first", is_named=True)]))
    many, _ = await count(store.put([task(n, lane=f"l{n}", is_named=True) for n in range(100)]))
    assert few == many
    claims = await store.claim(Claim(owner="o", count=101))
    assert 101 == len(claims.tasks)
    assert all(await ends(claims, End.RETRY))
    claims = await store.claim(Claim(owner="o", count=101))
    retried, answers = await count(ends(claims, End.RETRY))
    assert (101, True) == (len(answers), all(answers))
    claims = await store.claim(Claim(owner="o", count=101))
    done, _ = await count(ends(claims, End.DONE))
    revived, _ = await count(store.revive("default", [(f"f{n}", 1) for n in range(200)]))
    assert {} == {state: count for state, count in (await store.counts()).items() if count}
    assert (8, 7, 8, 2) == (many, retried, done, revived)
    await store.put([task(n) for n in range(100)])
    claims = await store.claim(Claim(owner="o", count=100))
    saved, _ = await count(store.save([(each.ref, b"state") for each in claims.tasks]))
    kept = [TaskOutcome(each.ref, End.DONE, kept=KeptTask(each.id, "q", "f", 1, 0, 0, 9)) for each in claims.tasks]
    ended, _ = await count(store.finish(kept))
    looked, _ = await count(store.ended([f"{n}" for n in range(100)]))
    assert (2, 5, 2) == (saved, ended, looked)
    few, _ = await count(store.put([task("u", unique=REPLACED)]))
    many, answers = await count(
        store.put([task(f"u{n}", unique=REPLACED._replace(key=f"{n % 50}")) for n in range(100)])
    )
    again, _ = await count(store.put([task(f"v{n}", unique=REPLACED._replace(key=f"{n % 50}")) for n in range(100)]))
    assert (50, 6, 6, 4) == (answers.count(True), few, many, again)
