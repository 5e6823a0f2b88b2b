"""Puts from code without asyncio: durable when they return, in any thread, and on both sides of a fork."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ratelimited_executor.durable import DurableTasks, MemoryStore, PutSummary, RedisStore, SQLiteStore
from ratelimited_executor.exceptions import StoreUnavailableError

from ...helpers import skip_without_apsw

pytestmark = pytest.mark.real_time("threads of their own")


@pytest.fixture
def path(tmp_path):
    """Return the path of a store."""
    skip_without_apsw()
    return str(tmp_path / "tasks.db")


def counted(path) -> int:
    """Return the number of the tasks in a store."""

    async def count() -> int:
        async with DurableTasks(SQLiteStore(path)) as tasks:
            return sum((await tasks.counts()).values())

    return asyncio.run(count())


def program(path, text) -> list[str]:
    """Run a program, and return the lines that it prints."""
    code = f"""
        import os, threading
        from ratelimited_executor.durable import DurableTasks, SQLiteStore

        tasks = DurableTasks(SQLiteStore({path!r}))

        @tasks.task
        def send(x): ...
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code) + textwrap.dedent(text)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout.split()


def test_what_was_put_without_a_loop_is_in_the_store(path):
    """A put returns once its task is in the file, and says if it is new; the options are those of put()."""
    tasks = DurableTasks(SQLiteStore(path))
    send = tasks.task(name="send")(print)
    first, again = send.put_sync("x", id="a", priority=2), send.put_sync("y", id="a")
    assert ("a", True, False) == (first.id, first.created, again.created)
    assert tasks.put_sync(send.new("z")).created
    assert PutSummary(1999, 1) == tasks.put_many_sync(send.new(n, id=f"{n or 'a'}") for n in range(2000))
    assert 2001 == counted(path)


def test_puts_of_many_threads_all_arrive(path):
    """Threads that put at once, the first of them included, lose no task, and generated ids differ."""
    tasks = DurableTasks(SQLiteStore(path))
    send = tasks.task(name="send")(print)
    with ThreadPoolExecutor(8) as pool:
        refs = list(pool.map(send.put_sync, range(500)))
    assert all(ref.created for ref in refs)
    assert 500 == len({ref.id for ref in refs}) == counted(path)


async def test_beside_a_loop_on_which_the_tasks_are_open(path):
    """A worker thread puts while the tasks are open on an event loop, which sees them; on the loop itself it is refused."""
    tasks = DurableTasks(SQLiteStore(path))
    send = tasks.task(name="send")(print)
    async with tasks:
        ref = await asyncio.to_thread(send.put_sync, "x")
        assert await ref.state()
        with pytest.raises(
            RuntimeError, match=r"put_sync\(\) would block the event loop of this thread: use await put\("
        ):
            send.put_sync("x")
        with pytest.raises(RuntimeError, match=r"use await put_many\("):
            tasks.put_many_sync([])


async def test_a_store_of_one_loop_is_used_there_or_refused(monkeypatch):
    """A MemoryStore takes puts of threads while it is open, and the error says what to do if it is not."""
    tasks = DurableTasks(MemoryStore())
    send = tasks.task(name="send")(print)
    with pytest.raises(RuntimeError, match=r"MemoryStore.* cannot be opened in another thread: .* 'async with tasks:'"):
        await asyncio.to_thread(send.put_sync, 1)
    async with tasks:
        assert (await asyncio.to_thread(send.put_sync, 1)).created
        assert PutSummary(2) == await asyncio.to_thread(tasks.put_many_sync, [send.new(1), send.new(2)])
        monkeypatch.setattr(tasks.store, "put", _unavailable)
        with pytest.raises(StoreUnavailableError):
            await asyncio.to_thread(send.put_sync, 1)


async def _unavailable(tasks, *, connection=None):
    raise StoreUnavailableError("the store", "it is away")


def test_a_loop_that_ends_during_a_put_is_reported():
    """The put of a thread on a loop that ends does not wait forever."""
    tasks = DurableTasks(MemoryStore())
    send = tasks.task(name="send")(print)
    errors: list[BaseException] = []

    async def never(tasks, *, connection=None):
        stopped.set()
        await asyncio.Event().wait()

    def put() -> None:
        try:
            send.put_sync(1)
        except RuntimeError as error:
            errors.append(error)

    async def main() -> None:
        await tasks.__aenter__()
        tasks.store.put = never
        thread.start()
        await stopped.wait()

    stopped = asyncio.Event()
    thread = threading.Thread(target=put)
    asyncio.run(main())
    thread.join(30)
    assert ["the event loop ended during the put: the task may have been put, or not"] == [*map(str, errors)]


def test_errors_are_those_of_put(path, tmp_path):
    """Wrong arguments are refused before the store is opened, and a store that cannot be opened is tried again."""
    tasks = DurableTasks(SQLiteStore(tmp_path / "none" / "tasks.db"))
    send = tasks.task(name="send")(print)
    with pytest.raises(TypeError, match="JSON"):
        send.put_sync(object())
    with pytest.raises(TypeError, match="what new"):
        tasks.put_sync("x")
    with pytest.raises(TypeError, match="what new"):
        tasks.put_many_sync(["x"])
    with pytest.raises(StoreUnavailableError):
        send.put_sync(1)
    (tmp_path / "none").mkdir()
    assert send.put_sync(1).created


def test_stores_that_take_no_connection_say_so():
    """Without transactions there is nothing to join."""
    pytest.importorskip("redis", reason="the extra redis is not installed")
    for store in (MemoryStore(), RedisStore("redis://localhost")):
        send = DurableTasks(store).task(name="send")(print)
        with pytest.raises(TypeError, match="takes none"):
            send.put_sync(1, connection=object())


def test_the_store_is_closed_at_the_exit_of_the_interpreter(path):
    """Nothing is printed at the exit, after which the file has no companions, and later puts are refused."""
    lines = program(path, """
        import atexit

        def late():
            try:
                send.put_sync(2)
            except RuntimeError as error:
                print(error, flush=True)

        send.put_sync(1)
        atexit.register(late)
    """)  # fmt: skip
    assert "closed" in lines
    assert not Path(path + "-wal").exists()
    assert 1 == counted(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_both_sides_of_a_fork_put(path):
    """A parent that has put, and its child, put on, each on a connection of its own; also a child of that child."""
    lines = program(path, """
        import warnings

        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        for n in range(20):
            send.put_sync(n)
            if not os.fork():
                send.put_sync(n)
                if not os.fork():
                    send.put_sync(n)
                    os._exit(0)
                assert os.wait()[1] == 0
                os._exit(0)
            send.put_sync(n)
            assert os.wait()[1] == 0
        print("done")
    """)  # fmt: skip
    assert ["done"] == lines
    assert 80 == counted(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_fork_during_the_puts_of_others_loses_none(path):
    """Threads put while the process forks again and again: each put happens once."""
    lines = program(path, """
        import warnings

        warnings.simplefilter("ignore", DeprecationWarning)
        refs = []
        threads = [threading.Thread(target=lambda: refs.extend([send.put_sync(n) for n in range(100)])) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            if not os.fork():
                os._exit(0)
            assert os.wait()[1] == 0
        for thread in threads:
            thread.join()
        print(len(refs), all(ref.created for ref in refs))
    """)  # fmt: skip
    assert ["400", "True"] == lines
    assert 400 == counted(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_fork_does_not_wait_for_a_store_that_is_away(tmp_path):
    """A process forks while one of its threads waits for the store: both sides put once it is there."""
    skip_without_apsw()
    folder = tmp_path / "mounted"
    lines = program(str(folder / "tasks.db"), f"""
        import logging, warnings

        class Notice(logging.Handler):
            def emit(self, record):
                tried.set()

        warnings.simplefilter("ignore", DeprecationWarning)
        tried = threading.Event()
        logger = logging.getLogger("ratelimited_executor")
        logger.addHandler(Notice())
        logger.propagate = False
        waiting = DurableTasks(tasks.store, open_timeout="10m")
        late = waiting.task(name="late")(print)
        thread = threading.Thread(target=lambda: print(late.put_sync(1).created))
        thread.start()
        tried.wait()
        if not os.fork():
            os.mkdir({str(folder)!r})
            print(late.put_sync(2).created, flush=True)
            os._exit(0)
        assert os.wait()[1] == 0
        thread.join()
    """)  # fmt: skip
    assert ["True", "True"] == lines
    assert 2 == counted(folder / "tasks.db")


def test_every_put_without_await_is_warned_of(path):
    """Python's warning comes each time, and not once for each line."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(f"""
            from ratelimited_executor.durable import DurableTasks, SQLiteStore
            tasks = DurableTasks(SQLiteStore({path!r}))
            send = tasks.task(name="send")(print)
            for n in range(3):
                send.put(n)
                tasks.put(send.new(n))
        """)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert 3 == done.stderr.count("coroutine 'DurableFunction.put' was never awaited")
    assert 3 == done.stderr.count("coroutine 'DurableTasks.put' was never awaited")
