"""Progress in an SQLite file: bad paths, several connections, closing."""

import asyncio
import threading
from pathlib import Path

import apsw
import pytest

from ratelimited_executor.cycles import SQLiteProgress
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.stores import sqlite_file


@pytest.mark.parametrize(("path", "error"), [(5, TypeError), (None, TypeError), (b"x", TypeError), ("", ValueError)])
def test_bad_path_is_refused_by_name(path, error):
    """A bad path is refused by name when the store is made."""
    with pytest.raises(error, match="path must be the path of a file"):
        SQLiteProgress(path)


async def test_file_is_made_on_first_use(tmp_path):
    """The file is created by the first call, and its directory is not created."""
    path = tmp_path / "progress.sqlite3"
    store = SQLiteProgress(str(path))
    assert not path.exists()
    assert 5 == await store.begin("sync", "8 h", 5)
    assert path.exists()
    await store.aclose()
    lost = SQLiteProgress(Path(tmp_path / "missing" / "progress.sqlite3"))
    with pytest.raises(StoreUnavailableError, match="make its directory"):
        await lost.begin("sync", "8 h", 5)
    await lost.aclose()


async def test_two_stores_of_one_file_know_the_same(tmp_path):
    """Two stores of one file, as in two processes, share claims and done keys: one of them gets a turn."""
    stores = [SQLiteProgress(tmp_path / "progress.sqlite3") for _ in range(2)]
    for turn in range(10):
        answers = await asyncio.gather(
            *(store.claim("sync", turn, owner=str(number), now=0, until=60) for number, store in enumerate(stores))
        )
        assert [False, True] == sorted(answers)
    await stores[0].note("sync", 3, [b"a"])
    assert {b"a"} == await stores[1].done_keys("sync", 3)
    for store in stores:
        await store.aclose()


async def test_new_file_that_another_process_prepares_is_waited_for(tmp_path):
    """A new file that another process prepares is waited for, though SQLite refuses at once to change its mode."""
    other = apsw.Connection(str(tmp_path / "progress.sqlite3"))
    other.execute("begin immediate")
    store = SQLiteProgress(tmp_path / "progress.sqlite3")
    beginning = asyncio.ensure_future(store.begin("sync", "8 h", 5))
    await asyncio.sleep(0.05)
    assert not beginning.done()
    other.execute("commit")
    assert 5 == await beginning
    other.close()
    await store.aclose()


async def test_new_file_that_another_process_does_not_let_go_of(tmp_path, monkeypatch):
    """A new file held too long by another process raises an error, and the store works once it is free."""
    monkeypatch.setattr(sqlite_file.SQLiteFile, "_busy_ms", 50)
    other = apsw.Connection(str(tmp_path / "progress.sqlite3"))
    other.execute("begin immediate")
    store = SQLiteProgress(tmp_path / "progress.sqlite3")
    with pytest.raises(StoreUnavailableError, match="another process has held the file"):
        await store.begin("sync", "8 h", 5)
    other.close()
    assert 5 == await store.begin("sync", "8 h", 5)
    await store.aclose()


async def test_closed_store_leaves_no_thread_and_may_be_used_again(tmp_path):
    """A closed store has no thread, may be closed again, and may be used again."""
    store = SQLiteProgress(tmp_path / "progress.sqlite3")
    await store.begin("sync", "8 h", 5)
    await store.aclose()
    await store.aclose()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("SQLiteProgress")]
    for thread in threads:  # one may be about to end
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert 5 == await store.begin("sync", "8 h", 9)
    await store.aclose()
