"""Durable tasks in a file: what has returned is on disk, whatever stops the process, and whoever shares the file."""

import asyncio
import random
import shutil
import signal
import sqlite3
from contextlib import closing
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import apsw
import pytest

from ratelimited_executor._core.durable.tasks import (
    Claim,
    Duplicate,
    DurableState,
    End,
    NewTask,
    OnDuplicate,
    TaskOutcome,
    Turns,
    UniqueKey,
)
from ratelimited_executor._runtime.time.clock import SystemClock
from ratelimited_executor.durable import DurableTasks, PutSummary, SQLiteStore
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.stores import sqlite_file
from ratelimited_executor.stores.tasks import moves, sqlite

from .conftest import opening, task

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def opened(tmp_path, clock):
    """Open stores on a file, and close them all at the end."""
    async with opening(lambda path=tmp_path / "tasks.db": SQLiteStore(path), clock) as call:
        yield call


async def test_several_connections_share_a_file(opened):
    """A task put by one store may be claimed by another on the same file, and wakes it while it waits."""
    first, second = await opened(), await opened()
    await second.wait(0.01)
    waiting = asyncio.ensure_future(second.wait(30))
    await asyncio.sleep(0.06)
    await first.put([task("x")])
    async with asyncio.timeout(20):
        await waiting
    await second.join("b", 60_000_000)
    [claimed] = (await second.claim(Claim(owner="b", count=1))).tasks
    assert [True] == await first.finish([TaskOutcome(claimed.ref, End.DONE)])


@pytest.mark.parametrize("is_other", [False, True])
async def test_all_who_wait_on_one_store_hear_of_a_put(opened, is_other):
    """A put wakes all who wait on one store, such as two queues, also if another store has put it."""
    store, other = await opened(), await opened()
    for _ in range(3):
        await store.wait(0.01)
    waiting = [asyncio.ensure_future(store.wait(30)) for _ in range(2)]
    await asyncio.sleep(0.01)
    await (other if is_other else store).put([task("x")])
    async with asyncio.timeout(20):
        await asyncio.wait(waiting)


async def test_put_by_a_connection_into_a_store_that_is_not_open_is_refused(opened, tmp_path):
    """A put by a connection into a store that is not open is refused with a remedy."""
    path = tmp_path / "tasks.db"
    await opened()
    connection = apsw.Connection(str(path))
    connection.execute("begin immediate")
    with pytest.raises(StoreUnavailableError, match="it is not open: enter DurableTasks"):
        await SQLiteStore(path).put([task("x")], connection=connection)
    connection.close()


async def test_put_by_a_connection_to_another_file_is_refused(opened, tmp_path):
    """A put by a connection to another file is refused: the task would be put where nobody looks."""
    store, other = await opened(), await opened(tmp_path / "other.db")
    connection = apsw.Connection(str(tmp_path / "other.db"))
    connection.execute("begin immediate")
    with pytest.raises(ValueError, match=r"connection must be to .*tasks\.db, got one to .*other\.db"):
        await store.put([task("x")], connection=connection)
    connection.close()
    assert [None] == await other.find(["x"])


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be deleted there")
@pytest.mark.parametrize(("gone", "error", "words"), [
    ("tasks.db", StoreUnavailableError, "the file was deleted or replaced while it was open"),
    ("other.db", ValueError, r"connection must be to .*tasks\.db, got one to .*other\.db"),
    (None, ValueError, r"connection must be to .*tasks\.db, got one to no file"),
])  # fmt: skip
async def test_put_by_a_connection_where_a_file_is_gone_is_refused(opened, tmp_path, gone, error, words):
    """A put by a connection is refused if the store's file or the connection's is gone, or was never a file."""
    store = await opened()
    path = ":memory:" if gone is None else str(tmp_path / gone)
    connection = apsw.Connection(path)
    connection.execute("create table if not exists orders (id)")
    connection.execute("begin immediate")
    if gone is not None:
        (tmp_path / gone).unlink()
    with pytest.raises(error, match=words):
        await store.put([task("x")], connection=connection)
    connection.close()


async def test_file_of_somebody_else_is_left_alone_by_what_only_looks(tmp_path, clock):
    """With ``create=False``, as on the command line, a file without durable tasks is left unchanged."""
    path = tmp_path / "app.db"
    connection = apsw.Connection(str(path))
    connection.execute("create table users (name text)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreUnavailableError, match="has no durable tasks"):
        await SQLiteStore(path, create=False).open(clock)
    assert before == path.read_bytes()
    store = SQLiteStore(path)
    await store.open(clock)
    looking = SQLiteStore(path, create=False)
    await looking.open(clock)
    await looking.aclose()
    await store.aclose()


async def test_file_that_is_not_there_is_not_made_by_what_only_looks(tmp_path, clock):
    """With ``create=False`` a missing file is reported, and not created."""
    with pytest.raises(StoreUnavailableError, match="name a file that is there"):
        await SQLiteStore(tmp_path / "tasks.db", create=False).open(clock)
    assert [] == list(tmp_path.iterdir())


async def test_put_in_the_transaction_of_the_user(opened, tmp_path):
    """A put in the user's transaction is committed or rolled back with it, and the connection stays the user's."""
    store = await opened()
    connection = apsw.Connection(str(tmp_path / "tasks.db"))
    with pytest.raises(ValueError, match="connection must have an open transaction"):
        await store.put([task("x")], connection=connection)
    with pytest.raises(TypeError, match="connection must be an apsw.Connection"):
        await store.put([task("x")], connection=object())
    for end, there in (("rollback", None), ("commit", DurableState.READY)):
        connection.execute("begin immediate")
        connection.execute("create table if not exists orders (id)")
        assert [True, True] == await store.put([task("x"), task("y", lane="l")], connection=connection)
        connection.execute(end)
        [row, _] = await store.find(["x", "y"])
        assert there == (None if row is None else row.state)
    unique = UniqueKey("u", on_duplicate=OnDuplicate.REPLACE)
    for end, id in (("rollback", "u1"), ("commit", "u2"), ("commit", "u3")):
        connection.execute("begin immediate")
        answer = await store.put([task(id, unique=unique, body=id.encode())], connection=connection)
        assert [True if id < "u3" else Duplicate("u2", True)] == answer
        connection.execute(end)
    assert (None, b"u3") == tuple(row and row.body for row in await store.find(["u1", "u2"]))
    connection.execute("begin")
    connection.execute("select * from orders").fetchall()
    await store.put([task("between")])
    with pytest.raises(StoreUnavailableError, match="begin it by BEGIN IMMEDIATE"):
        await store.put([task("z")], connection=connection)
    connection.execute("rollback")
    connection.close()


@pytest.mark.parametrize("is_open", [False, True])
async def test_put_in_the_transaction_of_blocking_code(opened, tmp_path, is_open):
    """A put without asyncio joins the transaction of a connection, whether the store is open or not."""
    store = await opened()
    await store.put([task("w")])
    tasks = DurableTasks(store if is_open else SQLiteStore(tmp_path / "tasks.db"))
    send = tasks.task(name="send")(print)
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("begin immediate")

    def work():
        connection = apsw.Connection(str(tmp_path / "tasks.db"))
        with pytest.raises(ValueError, match="connection must have an open transaction"):
            send.put_sync(1, connection=connection)
        with closing(sqlite3.connect(":memory:")) as alien:
            with pytest.raises(TypeError, match=r"connection must be an apsw.Connection"):
                send.put_sync(1, connection=alien)
        with pytest.raises(ValueError, match="connection must be to"):
            send.put_sync(1, connection=other)
        for end in ("rollback", "commit"):
            connection.execute("begin immediate")
            assert send.put_sync(1, id="x", connection=connection).created
            many = tasks.put_many_sync((send.new(n, id=f"{n}") for n in range(1500)), connection=connection)
            assert PutSummary(1500) == many
            connection.execute(end)
        connection.close()

    await asyncio.to_thread(work)
    assert DurableState.READY is (await store.find(["x"]))[0].state
    assert 1502 == (await store.counts())[DurableState.READY]


async def test_many_are_put_in_one_transaction_of_the_user(opened, tmp_path):
    """All chunks of ``put_many`` are rolled back, or committed, with the user's transaction."""
    tasks = DurableTasks(store := await opened())
    send = tasks.task(name="send")(print)
    connection = apsw.Connection(str(tmp_path / "tasks.db"))
    for end, count in (("rollback", 0), ("commit", 1500)):
        connection.execute("begin immediate")
        assert PutSummary(1500) == await tasks.put_many((send.new(n) for n in range(1500)), connection=connection)
        connection.execute(end)
        assert count == (await store.counts())[DurableState.READY]
    connection.close()


async def test_nothing_is_made_before_it_is_opened_and_use_after_the_end_is_an_error(tmp_path, clock):
    """A store that is not open creates no file and refuses every call with a remedy; it may be opened again."""
    store = SQLiteStore(tmp_path / "tasks.db")
    assert [] == list(tmp_path.iterdir())
    with pytest.raises(StoreUnavailableError, match="it is not open: enter DurableTasks"):
        await store.counts()
    for _ in range(2):
        await store.open(clock)
        await store.put([task("x")])
        await store.aclose()
    with pytest.raises(StoreUnavailableError, match="not open"):
        await store.counts()
    await store.aclose()


@pytest.mark.parametrize(("path", "error", "words"), [
    ("", ValueError, "path must be the path of a file, got an empty str"),
    (":memory:", ValueError, "for tests, use MemoryStore"),
    (5, TypeError, "path must be the path of a file, got 5"),
])  # fmt: skip
def test_paths_that_are_none(path, error, words):
    """A bad path is refused by name when the store is made."""
    with pytest.raises(error, match=words):
        SQLiteStore(path)


async def test_files_that_cannot_be_used(tmp_path, clock):
    """A missing directory, or a file that is no database, is refused with a remedy and left unchanged; only the first may heal."""
    with pytest.raises(StoreUnavailableError, match="make its directory") as caught:
        await SQLiteStore(tmp_path / "none" / "tasks.db").open(clock)
    assert not caught.value.is_permanent
    replaced = SQLiteStore(tmp_path / "replaced")
    (tmp_path / "replaced").mkdir()
    with pytest.raises(StoreUnavailableError, match="unable to open") as caught:
        await replaced.open(clock)
    assert caught.value.is_permanent
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreUnavailableError, match="name another file") as caught:
        await SQLiteStore(garbage).open(clock)
    assert caught.value.is_permanent
    assert garbage.read_bytes() == b"not a database at all" * 100


async def test_disk_that_is_full_changes_nothing_and_loses_nothing(opened):
    """On a full disk a put is refused whole, and succeeds once there is room."""
    store = await opened()
    await store.put([task("before")])
    [(pages,)] = store._connection.execute("pragma page_count")
    store._connection.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(StoreUnavailableError, match="make room on the disk") as caught:
        await store.put([task(n, body=bytes(10_000)) for n in range(20)])
    assert isinstance(caught.value.__cause__, apsw.FullError)
    assert 1 == (await store.counts())[DurableState.READY]
    store._connection.execute("pragma max_page_count = 1000000")
    assert [True] * 20 == await store.put([task(n, body=bytes(10_000)) for n in range(20)])


async def test_file_that_another_process_holds(opened, tmp_path, monkeypatch):
    """A file that another process holds is waited for, and after a while an error says so."""
    store = await opened()
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_file.SQLiteFile, "_busy_ms", 200)
        impatient = await opened()
    other = apsw.Connection(str(tmp_path / "tasks.db"))
    other.execute("begin immediate")
    with pytest.raises(StoreUnavailableError, match="another process has held the file"):
        await impatient.put([task("x")])
    putting = asyncio.ensure_future(store.put([task("x")]))
    await asyncio.sleep(0.05)
    other.execute("rollback")
    assert [True] == await putting
    other.close()


async def test_reads_wait_for_no_writer_and_no_writer_waits_for_them(opened, tmp_path, monkeypatch):
    """A read returns while another process writes, and a put returns while a read takes long."""
    store = await opened()
    await store.put([task("x", lane="l"), task("y", lane="l")])
    other = apsw.Connection(str(tmp_path / "tasks.db"))
    other.execute("begin immediate")
    async with asyncio.timeout(20):
        assert 1 == (await store.counts())[DurableState.BEHIND]
        assert ["x"] == [row.id for row in await store.rows(DurableState.READY)]
        assert [1] == [lane.behind_count for lane in await store.lanes()]
        assert ["y"] == [row.id for row in await store.find(["y"])]
    other.execute("rollback")
    is_reading, is_put, play = threading.Event(), threading.Event(), sqlite._play

    def slow(cursor, program):
        if program.gi_code is moves.counts.__code__:
            is_reading.set()
            assert is_put.wait(20)
        return play(cursor, program)

    monkeypatch.setattr(sqlite, "_play", slow)
    reading = asyncio.ensure_future(store.counts())
    await asyncio.to_thread(is_reading.wait, 20)
    assert [True] == await (await opened()).put([task("a")])
    assert [True] == await store.put([task("z")])
    is_put.set()
    await reading
    other.close()


async def test_calls_of_users_that_wait_hold_up_no_runner(opened):
    """A beat waits for at most one call of a user, however many are waiting."""
    store = await opened()
    await store.join("o", 60_000_000)
    await store.put([task(n) for n in range(100)])
    waiting = [asyncio.ensure_future(store.cancel([str(n)])) for n in range(100)]
    await asyncio.sleep(0)
    await store.beat("o")
    assert sum(each.done() for each in waiting) <= 3
    assert [[DurableState.READY]] * 100 == await asyncio.gather(*waiting)


@pytest.mark.parametrize("order", ["", "newest_"])
@pytest.mark.parametrize("name", ["rows_claimed", "rows_behind", "rows_unknown", "rows_paused", "rows_dead"])
async def test_rows_of_a_state_that_may_be_rare_are_found_by_its_index(opened, name, order):
    """A list of tasks in a state that may be rare does not read the others; of dead letters, it reads and sorts no others."""
    store = await opened()
    [(text, numbers)] = sqlite._STATEMENTS[f"{order}{name}"]
    plan = [detail for *_, detail in store._connection.execute(f"explain query plan {text}", [100] * len(numbers))]
    assert any(f"INDEX durable_{name.removeprefix('rows_')}" in detail for detail in plan), plan
    assert not any("rowid>" in detail or "rowid<" in detail for detail in plan), plan
    assert name != "rows_dead" or not any("ORDER BY" in detail for detail in plan), plan


async def test_latencies_are_by_indexes(opened):
    """The latency of queues is read from one to the next by indexes: no statement goes through a backlog."""
    store = await opened()
    [(text, numbers)] = sqlite._STATEMENTS["latencies"]
    plan = [detail for *_, detail in store._connection.execute(f"explain query plan {text}", [0] * len(numbers))]
    tables = [detail for detail in plan if "durable_tasks" in detail]
    assert len(tables) > 10, plan
    assert all(detail.startswith("SEARCH") for detail in tables), plan


@pytest.mark.parametrize(("name", "index"), [
    ("level", "durable_ready"), ("turn_keys", "durable_turns"), ("turn_tasks", "durable_turns"), ("claim", "durable_ready"),
])  # fmt: skip
async def test_claims_are_by_an_index(opened, name, index):
    """No statement of a claim reads the backlog: each goes by an index, or to tasks by their numbers."""
    store = await opened()
    for text, numbers in sqlite._STATEMENTS[name]:
        plan = [detail for *_, detail in store._connection.execute(f"explain query plan {text}", [None] * len(numbers))]
        tables = [detail for detail in plan if "durable_tasks" in detail]
        assert not any(detail.startswith("SCAN") for detail in tables), plan
        assert all(f"INDEX {index} " in detail or "PRIMARY KEY" in detail for detail in tables), plan
        assert name == "claim" or not any("ORDER BY" in detail and "json" not in detail for detail in plan), plan


async def test_claim_in_turn_steps_over_a_backlog(opened):
    """A claim in turn takes as many steps in the database behind a backlog as behind a tenth of it."""
    store = await opened()
    await store.join("o", 60_000_000)
    counts = []
    for size in (1000, 10_000):
        for first in range(0, size, 1000):
            await store.put([task(f"{size}-{first + n}", key='"a"') for n in range(1000)])
        await store.put([task(f"{size}-{key}", key=key) for key in ('"b"', '"c"')])
        steps = []
        store._connection.set_progress_handler(lambda steps=steps: bool(steps.append(1)), 10)
        claims = await store.claim(Claim(owner="o", count=9, turns=Turns(each=2)))
        store._connection.set_progress_handler(None)
        assert ['"a"', '"a"', '"b"', '"c"'] == [each.key for each in claims.tasks]
        counts.append(len(steps))
    assert counts[1] <= 2 * counts[0]  # a scan would take ten times as many


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be deleted there")
@pytest.mark.parametrize("end", ["-wal", "-shm"])
async def test_file_beside_the_file_that_is_gone_takes_no_more_puts(opened, tmp_path, end):
    """After its log or the log's index was deleted a store takes no more puts, and closing keeps what was put before."""
    store = await opened()
    await store.put([task("before")])
    await store.counts()
    (tmp_path / f"tasks.db{end}").unlink()
    for call in (store.put([task("after")]), store.counts(), store.claim(Claim(owner="o", count=1))):
        with pytest.raises(StoreUnavailableError, match=f"{end} beside the file was deleted or replaced.*restart"):
            await call
    await store.aclose()
    await store.open(SystemClock())
    assert 1 == (await store.counts())[DurableState.READY]


async def test_release_that_may_damage_a_shared_file_has_it_alone(tmp_path, clock, monkeypatch):
    """With a release of SQLite that may damage a shared file, a second process is refused with the reason."""
    monkeypatch.setattr(sqlite_file.SQLiteFile, "_busy_ms", 100)
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.45.1")
    first, second = SQLiteStore(tmp_path / "tasks.db"), SQLiteStore(tmp_path / "tasks.db")
    await first.open(clock)
    await first.put([task("x")])
    with pytest.raises(StoreUnavailableError, match="may not share it"):
        await second.open(clock)
    await first.aclose()
    await second.aclose()


# What stops a process


class Shadow(apsw.VFS):
    """A file system that keeps, beside each file, what a loss of power would leave: the state of its last sync."""

    def __init__(self, shadow: Path) -> None:
        self.name = f"shadow-{shadow}"
        super().__init__(self.name, "")
        self.shadow = shadow

    def xDelete(self, name, sync_directory):
        super().xDelete(name, sync_directory)
        (self.shadow / Path(name).name).unlink(missing_ok=True)

    def xOpen(self, name, flags):
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        shadow = self.shadow

        class File(apsw.VFSFile):
            def __init__(self) -> None:
                super().__init__("", name, flags)

            def xSync(self, how):
                super().xSync(how)
                if path is not None:
                    shutil.copy(path, shadow / Path(path).name)

        return File()


@pytest.mark.parametrize("is_durable", [True, False])
async def test_loss_of_power_loses_no_put_that_has_returned(tmp_path, clock, monkeypatch, is_durable):
    """A loss of power loses no returned put; without waiting for the disk one is lost, so the test can fail."""
    (tmp_path / "shadow").mkdir()
    vfs = Shadow(tmp_path / "shadow")
    plain = apsw.Connection
    monkeypatch.setattr(apsw, "Connection", lambda path, flags: plain(path, flags, vfs=vfs.name))
    if not is_durable:
        transaction = SQLiteStore._transaction
        monkeypatch.setattr(SQLiteStore, "_transaction", lambda self, moves, _: transaction(self, moves, "normal"))
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open(clock)
    await store.join("a", 60_000_000)
    lost = 0
    ended = set()
    for n in range(30):
        await store.put([task(n, lane="l" if n % 3 else None)])
        if n % 4 == 3:
            claimed = (await store.claim(Claim(owner="a", count=2))).tasks
            await store.finish([TaskOutcome(each.ref, End.DONE) for each in claimed])
            ended |= {each.id for each in claimed}
        left = tmp_path / f"left{n}"
        shutil.copytree(tmp_path / "shadow", left)
        found = plain(str(left / "tasks.db"))
        try:
            ids = {id for (id,) in found.execute("select id from durable_tasks")}
        except apsw.SQLError:
            ids = set()
        found.close()
        lost += ids != {str(each) for each in range(n + 1)} - ended
    await store.aclose()
    assert (lost == 0) is is_durable


async def test_failure_at_any_statement_changes_nothing(opened, monkeypatch):
    """If any statement of a call fails, the store is unchanged, and the call can be repeated."""
    store = await opened()
    await store.join("a", 60_000_000)
    await store.join("b", 60_000_000)
    await store.put([task("x", lane="l", is_named=True), task("y", lane="l"), task("z", expires_us=1), task("v")])
    store._clock.now_us += 5
    first, second = (await store.claim(Claim(owner="a", count=2))).tasks
    calls = [
        lambda: store.put([task("n", lane="l", is_named=True), task("m", lane="k", delay_us=9)]),
        lambda: store.claim(Claim(owner="b", count=5, ahead_us=10)),
        lambda: store.finish([TaskOutcome(first.ref, End.DONE), TaskOutcome(second.ref, End.RETRY, 5, "error")]),
        lambda: store.cancel(["y", "v", "m"]),
        lambda: store.requeue(["x"]),
        lambda: store.revive("default", [("f", 1)]),
        lambda: store.beat("a"),
        lambda: store.leave("b"),
    ]
    play, statements = sqlite._play, 0

    def failing_at(count):
        def failing(cursor, program):
            class Cursor:
                left = count

                def execute(self, text, arguments):
                    self.left -= 1
                    if self.left < 0:
                        raise apsw.IOError("the disk has failed")
                    return cursor.execute(text, arguments)

            return play(Cursor(), program)

        return failing

    for call in calls:
        for count in range(100):
            before = await _everything(store)
            monkeypatch.setattr(sqlite, "_play", failing_at(count))
            try:
                await call()
            except StoreUnavailableError:
                statements += 1
                monkeypatch.setattr(sqlite, "_play", play)
                assert before == await _everything(store)
            else:
                break
        monkeypatch.setattr(sqlite, "_play", play)
    assert statements > 40


async def _everything(store):
    def read():
        tables = ("tasks", "lanes", "owners", "ended", "clock")
        return [list(store._connection.execute(f"select * from durable_{table}")) for table in tables]

    return await store._in_thread(read)


PUTTER = """
    import asyncio, sys
    from ratelimited_executor.durable import DurableTasks, SQLiteStore

    tasks = DurableTasks(SQLiteStore(sys.argv[1]))

    @tasks.task
    def work(n): ...

    async def main():
        async with tasks:
            n = int(sys.argv[2])
            while True:
                await asyncio.gather(*(work.put(n + i, id=str(n + i), lane=f"l{i % 3}") for i in range(5)))
                n += 5
                print(n, flush=True)

    asyncio.run(main())
"""


@pytest.mark.timeout(600)  # each of ten processes takes its time on a busy machine
@pytest.mark.real_time("processes are killed")
async def test_killed_while_it_puts_loses_nothing_that_had_returned(tmp_path, opened):
    """A process killed ten times while it puts loses no task whose put had returned."""
    path = tmp_path / "killed.db"
    draw = random.Random(5)
    put = 0
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PUTTER), str(path), str(put)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as child:
            for _ in range(draw.randrange(1, 40)):
                put = int(child.stdout.readline())
            await asyncio.sleep(draw.random() / 200)
            child.send_signal(signal.SIGKILL)
            put = max([put, *map(int, child.stdout.read().split())])
    store = await opened(path)
    there = sum((await store.counts()).values())
    assert put <= there <= put + 50
    found = await store.find([str(n) for n in range(put)])
    assert None not in found
    assert "ok" == next(store._connection.execute("pragma integrity_check"))[0]


RUNNER = """
    import asyncio, os, sys
    from ratelimited_executor import RateLimitedExecutor
    from ratelimited_executor.durable import DurableTasks, SQLiteStore

    tasks = DurableTasks(SQLiteStore(sys.argv[1]), lease=1)
    log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @tasks.task
    async def work(n):
        os.write(log, f"{n} begin\\n".encode())
        await asyncio.sleep(0.002)
        os.write(log, f"{n} end\\n".encode())

    async def main():
        async with RateLimitedExecutor("x", rate="2000/s") as executor, tasks.running(executor):
            while sum((await tasks.counts()).values()):
                await asyncio.sleep(0.05)

    asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)  # each of twelve processes takes its time on a busy machine
@pytest.mark.real_time("processes are killed")
async def test_processes_that_are_killed_lose_no_task_and_keep_the_order_of_lanes(tmp_path, opened):
    """Of two processes one is killed ten times: every task runs, lanes stay in order, and few tasks run twice."""
    path, log = tmp_path / "killed.db", tmp_path / "log"
    store = await opened(path)
    count, lanes = 1500, 50
    await store.put(
        [NewTask(id=str(n), name="work", body=b"[[%d],{}]" % n, lane=f"l{n % lanes}") for n in range(count)]
    )
    command = [sys.executable, "-c", textwrap.dedent(RUNNER), str(path), str(log)]
    draw = random.Random(7)
    children = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    for _ in range(10):
        await asyncio.sleep(0.3 + draw.random() / 2)
        victim = children.pop(draw.randrange(2))
        victim.kill()
        victim.wait()
        children.append(subprocess.Popen(command, cwd=ROOT))
    for child in children:
        assert 0 == await asyncio.to_thread(child.wait, 300)
    began, running = {}, set()
    last = {}
    for line in log.read_text().splitlines():
        n, what = line.split()
        n = int(n)
        if what == "begin":
            began[n] = began.get(n, 0) + 1
            running.add(n)
            assert n >= last.get(n % lanes, -1), line  # never out of order; twice only if it ran at the kill
            last[n % lanes] = n
    assert set(range(count)) == set(began)
    twice = sum(times - 1 for times in began.values())
    assert twice <= 10 * lanes
