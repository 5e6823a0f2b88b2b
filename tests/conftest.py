"""What tests of several parts share: servers, a browser, reports of the event loop, the check of the accounting."""

from __future__ import annotations

import asyncio
import gc
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from ratelimited_executor import kernel
from ratelimited_executor.stores.tasks import looks

from .core.world import CoreRecord, CountingCalendar
from .helpers import check_accounting, extras
from .peers.binaries import KINDS, find_binary
from .postgresql import find_programs, new_server
from .sampled import left_out

if TYPE_CHECKING:
    from .peers.servers import RedisCluster, RedisServer

# Examples have no deadline: how long one takes depends on the machine, which may run all tests twice at a time.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """In the quick part, try a quarter of the examples."""
    if config.getoption("markexpr") == "not slow":
        hypothesis.settings.load_profile("quick")


def pytest_report_header() -> list[str]:
    """Say in the header on which kernel and which servers the tests run."""
    return [f"kernel: {kernel}", f"servers: {', '.join(_servers()) or 'none'}"]


def _servers() -> Iterator[str]:
    """Yield name, version and path of each server's program."""
    kinds = [partial(find_binary, kind) for kind in KINDS]
    for find in (*kinds, lambda: find_programs() / "postgres"):
        try:
            program = find()
            run = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        except (ImportError, OSError, subprocess.CalledProcessError):
            continue
        number = re.search(r"\d+(\.\d+)+", run.stdout)
        yield f"{program.name} {number[0] if number else run.stdout.strip()} ({program})"


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collect no garbage while thousands of tests are made, a third of the time of each worker's start."""
    gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out most of the many cases of costly tests, unless a test is named."""
    if any("::" in each for each in config.args):
        return
    if others := left_out(items):
        config.hook.pytest_deselected(items=list(others))
        items[:] = [each for each in items if each not in others]


def pytest_collection_finish() -> None:
    """Exclude the session's own objects, among them thousands of tests, from all garbage collections."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Exclude what each module leaves behind, too: libraries that it has imported, reports of its tests.

    Otherwise a collection, of which some tests make dozens, takes half a second towards the end of the session.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def record_class():
    """The class of records without a shell."""
    return CoreRecord


@pytest.fixture(scope="session")
def calendar_class():
    """The class that stands in for the owner of a bucket."""
    return CountingCalendar


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """A PostgreSQL server of our own, by the URL of its database; on a slow machine as well, each claim looks at all tasks."""
    looks.LONG_US = 10**12
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))  # not below pytest's: another run closes that to other users
    server = new_server(folder / "data")
    server.start()
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_redis_server() -> Iterator[RedisServer]:
    """The process behind ``redis_server``; tests do not use it directly."""
    pytest.importorskip("redis", reason="the extra redis is not installed")
    from .peers.servers import RedisServer  # not at the top: there is no Redis server for Windows

    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server(shared_redis_server: RedisServer) -> RedisServer:
    """A Redis server without keys and scripts, which all tests share one after the other.

    A test may kill or stop it. A test that needs other settings uses ``with RedisServer(password=...) as server``.
    """
    from .peers.servers import as_new

    return as_new(shared_redis_server)


@pytest.fixture(scope="session")
def redis_cluster_server() -> Iterator[RedisCluster]:
    """Three masters that share the slots, for all tests; ``flush`` first. To kill one, use ``redis_cluster()``."""
    from .peers.servers import redis_cluster

    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def browser():
    """One Chromium for all tests of a module; while it runs, no event loop can run in this thread."""
    with extras():
        from playwright.sync_api import sync_playwright
    from .browser import ARGUMENTS, find_chromium  # not at the top: it locks a file in a way that Windows does not have

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def reports(virtual_clock, request):
    """A list that ``handler`` fills with what reaches the event loop's exception handler."""
    return []


@pytest.fixture
def handler(reports):
    """Return a function that a test calls to collect what reaches the loop's exception handler."""

    def install() -> list:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
        return reports

    return install


@pytest.fixture(scope="session")
def account():
    """The function that checks the accounting of an executor."""
    return check_accounting
