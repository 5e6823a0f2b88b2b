"""Durable tasks in a file that is full, broken, locked or deleted, and under clock steps of hours."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import apsw
import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._core.durable.tasks import Claim, DurableState, End, NewTask, TaskOutcome
from ratelimited_executor._runtime.time.clock import SystemClock
from ratelimited_executor.durable import DurableTasks, SQLiteStore
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.stores import sqlite_file

from .conftest import task

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.real_time("a file's store has a thread")


class Limited(apsw.VFS):
    """A file system that allows ``left`` bytes to be written, and no sync while ``is_broken``."""

    left = 1 << 60
    is_broken = False

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name, "")

    def xOpen(self, name, flags):
        vfs = self

        class File(apsw.VFSFile):
            def __init__(self) -> None:
                super().__init__("", name, flags)

            def xWrite(self, data, offset):
                vfs.left -= len(data)
                if vfs.left < 0:
                    raise apsw.FullError("no space left")
                super().xWrite(data, offset)

            def xSync(self, how):
                if vfs.is_broken:
                    raise apsw.IOError("the disk has failed")
                super().xSync(how)

        return File()


@pytest.fixture
async def limited(tmp_path, clock, monkeypatch):
    """A store whose disk may be full or broken, and its file system."""
    vfs = Limited(f"limited-{tmp_path}")
    plain = apsw.Connection
    monkeypatch.setattr(apsw, "Connection", lambda path, flags: plain(path, flags, vfs=vfs.name))
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open(clock)
    yield store, vfs
    vfs.left, vfs.is_broken = 1 << 60, False
    await store.aclose()


def calls_of(store, refs):
    """Return the calls that write, by name."""
    return {
        "put": lambda: store.put([task("new", lane="l", body=bytes(20_000))]),
        "claim": lambda: store.claim(Claim(owner="o", count=1)),
        "finish": lambda: store.finish([TaskOutcome(ref, End.DONE) for ref in refs]),
        "retry": lambda: store.finish([TaskOutcome(ref, End.RETRY, 5, "error") for ref in refs]),
        "beat": lambda: store.beat("o"),
        "leave": lambda: store.leave("o"),
    }


async def _prepared(store):
    await store.put([task("a", lane="l"), task("b", lane="l"), task("c"), task("d")])
    await store.join("o", 60_000_000)
    return [each.ref for each in (await store.claim(Claim(owner="o", count=2))).tasks]


def _kept(store):
    return store._in_thread(lambda: list(store._connection.execute("select * from durable_tasks order by number")))


@pytest.mark.parametrize("name", ["put", "claim", "finish", "retry", "beat", "leave"])
@pytest.mark.parametrize("how", ["full", "broken"])
async def test_disk_that_fails_at_any_byte_undoes_a_call_whole(limited, name, how):
    """On a full or broken disk a call fails without a change, and the same call succeeds afterwards."""
    store, vfs = limited
    refs = await _prepared(store)
    call = calls_of(store, refs)[name]
    if how == "broken":
        if name == "claim":
            return  # a claim does not wait for the disk
        before = await _kept(store)
        vfs.is_broken = True
        with pytest.raises(StoreUnavailableError):
            await call()
        vfs.is_broken = False
        assert before == await _kept(store)
    else:
        for left in (0, 24, 32, 2000, 4120, 4128, 8000, 16_000):
            before = await _kept(store)
            vfs.left = left
            try:
                await call()
                break
            except StoreUnavailableError as error:
                assert "make room on the disk" in str(error)
            vfs.left = 1 << 60
            assert before == await _kept(store)
        else:
            assert before == await _kept(store)
        vfs.left = 1 << 60
    answer = await call()
    if name == "claim":
        assert len(answer.tasks) <= 1
    assert "ok" == (await store._in_thread(lambda: next(store._connection.execute("pragma integrity_check"))))[0]


@pytest.mark.parametrize("name", ["put", "claim", "finish", "beat", "leave"])
async def test_file_that_is_held_for_too_long_fails_any_call_whole(tmp_path, clock, monkeypatch, name):
    """A call fails without a change if another process, such as a backup, holds the file too long; then it succeeds."""
    monkeypatch.setattr(sqlite_file.SQLiteFile, "_busy_ms", 50)
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open(clock)
    refs = await _prepared(store)
    call = calls_of(store, refs)[name]
    other = apsw.Connection(str(tmp_path / "tasks.db"))
    other.execute("begin immediate")
    before = await _kept(store)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="another process has held the file"):
            await call()
    other.execute("rollback")
    other.close()
    assert before == await _kept(store)
    await call()
    await store.aclose()


HOLDER = """
    import apsw, sys, time
    connection = apsw.Connection(sys.argv[1])
    connection.set_busy_timeout(60_000)
    for _ in range(int(sys.argv[2])):
        connection.execute("begin immediate")
        print("held", flush=True)
        time.sleep(float(sys.argv[3]))
        connection.execute("commit")
        print("free", flush=True)
        time.sleep(0.2)
"""


async def test_file_that_another_process_holds_again_and_again_stops_nothing(tmp_path, monkeypatch):
    """All tasks run once, in order, while another process repeatedly holds the file beyond the busy timeout."""
    monkeypatch.setattr(sqlite_file.SQLiteFile, "_busy_ms", 100)
    path = tmp_path / "tasks.db"
    tasks = DurableTasks(SQLiteStore(path), lease=1.0)
    ran = []

    @tasks.task
    async def work(n):
        ran.append(n)
        await asyncio.sleep(0.05)

    async with RateLimitedExecutor("x", rate="200/s") as executor, tasks.running(executor) as runner:
        await work.put(0, lane="l0")
        holder = await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(HOLDER), str(path), "3", "0.8"
        )
        for n in range(1, 60):
            while True:
                try:
                    await work.put(n, id=str(n), lane=f"l{n % 3}")
                    break
                except StoreUnavailableError:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.02)
        await holder.wait()
        async with asyncio.timeout(30):
            while runner.statistics().done < 60:
                await asyncio.sleep(0.02)
    assert list(range(60)) == sorted(ran)
    for lane in range(3):
        mine = [n for n in ran if n % 3 == lane]
        assert sorted(mine) == mine


@pytest.mark.skipif(os.name == "nt", reason="there are no such modes")
async def test_file_that_may_only_be_read_is_refused_with_the_remedy(tmp_path, clock, monkeypatch):
    """A read-only file is refused with a remedy; it is opened read-only, since a superuser may write any file."""
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open(clock)
    await store.put([task("a")])
    await store.aclose()
    plain = apsw.Connection
    monkeypatch.setattr(apsw, "Connection", lambda path, flags: plain(path, apsw.SQLITE_OPEN_READONLY))
    await store.open(clock)
    with pytest.raises(StoreUnavailableError, match="this process may not write the file, or its directory"):
        await store.put([task("b")])
    await store.aclose()
    monkeypatch.undo()
    await store.open(clock)
    assert [True] == await store.put([task("b")])
    await store.aclose()


async def test_opening_that_is_cancelled_leaves_nothing_open(tmp_path, clock):
    """Opening that is cancelled leaves neither the file nor a thread open, and may be repeated."""
    store = SQLiteStore(tmp_path / "tasks.db")
    opening = asyncio.ensure_future(store.open(clock))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert (None, None) == (store._thread, store._connection)
    await store.open(clock)
    assert [True] == await store.put([task("a")])
    await store.aclose()
    with pytest.raises(StoreUnavailableError, match="make its directory"):
        await SQLiteStore(tmp_path / "none" / "tasks.db").open(clock)


@pytest.mark.skipif(os.name == "nt", reason="an open file can neither be deleted nor be replaced there")
@pytest.mark.parametrize("how", ["deleted", "replaced", "moved"])
async def test_file_that_is_gone_takes_no_more_puts(tmp_path, clock, how):
    """A deleted, moved or replaced file takes no more puts, which would be lost; a reopened store uses the new file."""
    path = tmp_path / "tasks.db"
    store = SQLiteStore(path)
    await store.open(clock)
    await store.put([task("a")])
    if how == "moved":
        path.rename(tmp_path / "other.db")
    else:
        path.unlink()
    if how == "replaced":
        for end in ("-wal", "-shm"):
            Path(f"{path}{end}").unlink()
        other = SQLiteStore(path)
        await other.open(clock)
        await other.put([task("of the new file")])
    with pytest.raises(StoreUnavailableError, match=r"deleted or replaced.*restart"):
        await store.put([task("b")])
    with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
        await store.claim(Claim(owner="o", count=1))
    await store.aclose()
    if how == "replaced":
        assert [True] == await other.put([task("c")])
        await other.aclose()
        await store.open(clock)
        assert [None, None] == await store.find(["a", "b"])
        assert 2 == (await store.counts())[DurableState.READY]
        await store.aclose()


CHECKPOINTER = """
    import asyncio, sys
    from ratelimited_executor._core.durable.tasks import Claim, End, NewTask, TaskOutcome
    from ratelimited_executor._runtime.time.clock import SystemClock
    from ratelimited_executor.durable import SQLiteStore

    async def main():
        store = SQLiteStore(sys.argv[1])
        await store.open(SystemClock())
        n = int(sys.argv[2])
        while True:
            await store.put([NewTask(id=str(n + i), name="f", body=bytes(3000)) for i in range(5)])
            n += 5
            print(n, flush=True)
            await store._in_thread(lambda: store._connection.execute(f"pragma wal_checkpoint({sys.argv[3]})").fetchall())

    asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
@pytest.mark.parametrize("mode", ["passive", "truncate"])
async def test_killed_while_it_writes_back_its_log_loses_nothing(tmp_path, clock, mode):
    """A process killed at random moments, while it writes its log back to the file, loses no put that returned."""
    path, draw, put = tmp_path / "tasks.db", random.Random(2), 0
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHECKPOINTER), str(path), str(put), mode],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        ) as child:  # fmt: skip
            for _ in range(draw.randrange(1, 25)):
                put = int(child.stdout.readline())
            await asyncio.sleep(draw.random() / 300)
            child.send_signal(signal.SIGKILL)
            put = max([put, *map(int, child.stdout.read().split())])
    store = SQLiteStore(path)
    await store.open(clock)
    assert "ok" == (await store._in_thread(lambda: next(store._connection.execute("pragma integrity_check"))))[0]
    there = {row.id for row in await store.rows(limit=100_000)}
    assert {str(n) for n in range(put)} <= there
    await store.aclose()


class SetClock(SystemClock):
    """The system's clock, set ahead by ``ahead`` seconds."""

    ahead = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead


async def test_clock_that_is_set_by_hours_takes_nobodys_claims(tmp_path):
    """Under clock steps of hours two processes run each task once, lanes in order, and none is held up."""
    clock = SetClock()
    stores = [SQLiteStore(tmp_path / "tasks.db") for _ in range(2)]
    ran: list[int] = []
    runners = []
    over = asyncio.Event()

    async def live(store) -> None:
        tasks = DurableTasks(store, lease=1.0)
        tasks.task(name="work")(work)
        opened = store.open
        store.open = lambda _: opened(clock)
        async with RateLimitedExecutor("x") as executor, tasks.running(executor) as runner:
            runners.append(runner)
            await over.wait()

    async def work(n):
        ran.append(n)
        await asyncio.sleep(1.1)

    putter = SQLiteStore(tmp_path / "tasks.db")
    await putter.open(clock)
    async with asyncio.TaskGroup() as group:
        for store in stores:
            group.create_task(live(store))
        count = 0
        for hours in (5, -5, 48, 0, -48, 1):
            body = [b"[[%d],{}]" % (count + n) for n in range(4)]
            await putter.put(
                [NewTask(id=str(count + n), name="work", body=body[n], lane=f"l{n}" if n else None) for n in range(4)]
            )
            count += 4
            clock.ahead = hours * 3600
            await asyncio.sleep(0.4)
        async with asyncio.timeout(40):
            while sum((await putter.counts()).values()):
                await asyncio.sleep(0.05)
        over.set()
    await putter.aclose()
    assert sorted(range(count)) == sorted(ran)
    assert 0 == sum(runner.statistics().lost for runner in runners)
    for lane in range(1, 4):
        mine = [n for n in ran if n % 4 == lane]
        assert sorted(mine) == mine
