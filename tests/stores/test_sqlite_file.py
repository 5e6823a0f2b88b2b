"""SQLite files: which releases may share one, and the error without a driver."""

import asyncio
import sys
import threading

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._runtime.time.clock import SystemClock
from ratelimited_executor.cycles import SQLiteProgress
from ratelimited_executor.durable import SQLiteStore
from ratelimited_executor.stores import sqlite_file


@pytest.mark.parametrize(("version", "is_mended"), [
    ("3.51.3", True), ("3.54.1", True), ("3.51.2", False), ("3.50.7", True), ("3.50.6", False), ("3.44.6", True),
    ("3.44.5", False), ("3.45.9", False), ("3.40.1", False), ("4.0.0", True),
])  # fmt: skip
def test_releases_with_the_bug_are_known(version, is_mended):
    """Releases with the bug are told from mended ones, as SQLite's documentation lists them."""
    assert is_mended == sqlite_file.is_mended(version)


@pytest.mark.parametrize("kind", [SQLiteStore, SQLiteProgress])
def test_missing_driver_is_named_at_once(kind, monkeypatch, tmp_path):
    """A missing driver is reported with what to install when the store is made."""
    monkeypatch.setitem(sys.modules, "apsw", None)
    with pytest.raises(ModuleNotFoundError, match=rf"{kind.__name__} needs the package apsw: pip install"):
        kind(tmp_path / "x.db")


@pytest.mark.parametrize("kind", [SQLiteStore, SQLiteProgress])
def test_directory_is_refused_at_once(kind, tmp_path):
    """A directory is refused when the store is made, as by ``FilePeers``."""
    with pytest.raises(
        IsADirectoryError, match="^path must be the path of a file, got the directory .*: name a file in"
    ):
        kind(tmp_path)


async def test_cycle_says_so_at_the_call(monkeypatch, tmp_path):
    """A cycle reports a missing driver when it is scheduled, and not when it first writes."""
    monkeypatch.setitem(sys.modules, "apsw", None)
    async with RateLimitedExecutor("sync", rate="10/s") as executor:
        with pytest.raises(ModuleNotFoundError, match="pip install"):
            executor.every(cycle="8h", keys=lambda slot: [], fn=print, progress=tmp_path / "x.db")


@pytest.mark.parametrize("kind", [SQLiteStore, SQLiteProgress])
async def test_progress_and_tasks_share_a_file_only_where_that_is_safe(kind, monkeypatch, tmp_path):
    """With a release that has the bug, a second store on the same file is refused."""
    import apsw

    from ratelimited_executor._runtime.time.clock import SystemClock
    from ratelimited_executor.exceptions import StoreUnavailableError

    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.45.1")
    monkeypatch.setattr(sqlite_file.SQLiteFile, "_busy_ms", 10)
    first, second = SQLiteProgress(tmp_path / "x.db"), kind(tmp_path / "x.db")
    await first.begin("sync", "8 h", 5)
    with pytest.raises(StoreUnavailableError, match="may not share it"):
        await (second.begin("other", "8 h", 5) if kind is SQLiteProgress else second.open(SystemClock()))
    await first.aclose()
    await second.aclose()


async def test_file_that_is_opened_while_it_is_closed_is_open(monkeypatch, tmp_path):
    """A file opened while it is being closed is open afterwards: a closing connection does not count as open."""
    store = SQLiteStore(tmp_path / "x.db")
    await store.open(SystemClock())
    close, connect, is_connected = store._close, store._connect, threading.Event()
    monkeypatch.setattr(store, "_close", lambda: (is_connected.wait(0.2), close()))
    monkeypatch.setattr(store, "_connect", lambda: (connect(), is_connected.set()))
    await asyncio.gather(store.aclose(), store.open(SystemClock()))
    assert not any((await store.counts()).values())
    await store.aclose()
