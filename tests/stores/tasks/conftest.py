"""Stores of durable tasks whose clock is set by the tests."""

import sys
from contextlib import asynccontextmanager

import pytest

from ratelimited_executor._core.durable.tasks import NewTask
from ratelimited_executor.durable import MemoryStore, PostgresStore, RedisStore, SQLiteStore
from ratelimited_executor.stores.tasks.redis_layout import SCRIPTS

KINDS = ["memory", "sqlite", *([] if sys.platform == "win32" else ["postgres", "redis"])]


def task(id, **options) -> NewTask:
    """Return a task of the function ``f``."""
    return NewTask(id=str(id), name="f", **options)


@asynccontextmanager
async def opening(make, clock):
    """Yield a function that makes stores and opens them, and close them all at the end."""
    stores = []

    async def call(*arguments, **options):
        stores.append(make(*arguments, **options))
        await stores[-1].open(clock)
        return stores[-1]

    yield call
    for store in stores:
        await store.aclose()


class HandClock:
    """A clock that stands still until it is set."""

    now_us = 10_000_000_000

    def set(self, now_us: int) -> None:
        """Set the time, also a server's where the test has one."""
        self.now_us = now_us

    def wall(self) -> float:
        return self.now_us / 1_000_000

    def monotonic(self) -> float:
        return self.now_us / 1_000_000


class Database:
    """A database of the test's own in a PostgreSQL server, whose clock stands still until it is set.

    Attributes:
        url: URL of the database.
        connection: the tests' own connection, with autocommit.
    """

    def __init__(self, server: str) -> None:
        import psycopg

        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("drop database if exists durable with (force)")
            connection.execute("create database durable")
        self.url = server.replace("/postgres?", "/durable?")
        assert self.url != server
        self.connection = psycopg.connect(self.url, autocommit=True)

    def stop_clock(self) -> None:
        """Replace the server's clock by one that is set by tests; the schema must exist."""
        self.connection.execute("create table hand_clock (now_us bigint)")
        self.connection.execute("insert into hand_clock values (10000000000)")
        self.connection.execute(
            "create or replace function durable_now() returns bigint language sql volatile as 'select now_us from hand_clock'"
        )

    def set_clock(self, now_us: int) -> None:
        """Set the server's time."""
        self.connection.execute("update hand_clock set now_us = %s", [now_us])


class RedisClock:
    """A Redis server whose clock, for the scripts of durable tasks, stands still until it is set.

    Attributes:
        client: the tests' own client.
    """

    def __init__(self, server, monkeypatch) -> None:
        self.client = server.client()
        for script in SCRIPTS.values():
            text = script.text.replace("redis.call('TIME')", "redis.call('LRANGE', 'hand_clock', 0, 1)")
            assert text != script.text
            monkeypatch.setattr(script, "text", text)
        self.set(HandClock.now_us)

    def set(self, now_us: int) -> None:
        """Set the server's time."""
        self.client.pipeline().delete("hand_clock").rpush("hand_clock", 0, now_us).execute()


@pytest.fixture
def clock():
    """A clock that stands still until it is set."""
    return HandClock()


@pytest.fixture
def database(postgresql):
    """A database of the test's own."""
    made = Database(postgresql)
    yield made
    made.connection.close()


@pytest.fixture
def redis_clock(redis_server, monkeypatch):
    """The clock of ``redis_server``, which stands still until it is set."""
    made = RedisClock(redis_server, monkeypatch)
    yield made
    made.client.close()


@pytest.fixture(params=KINDS)
async def store(request, tmp_path, clock):
    """An open, empty store of each kind, on the clock of the test."""
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "sqlite":
        made = SQLiteStore(tmp_path / "tasks.db")
    elif request.param == "redis":
        clock.set = request.getfixturevalue("redis_clock").set
        made = RedisStore(request.getfixturevalue("redis_server").url)
    else:
        database = request.getfixturevalue("database")
        made = PostgresStore(database.url)
    await made.open(clock)
    if request.param == "postgres":
        database.stop_clock()
        clock.set = database.set_clock  # the store goes by its server's clock
    yield made
    await made.aclose()
