"""Unique puts in every store: races of puts with puts, claims and ends, and rows that are deleted."""

import asyncio
import hashlib
import sys

import apsw
import psycopg
import pytest

from ratelimited_executor._core.durable.table import REMEMBERED_US
from ratelimited_executor.stores.tasks.redis_layout import KEYS
from ratelimited_executor._core.durable.tasks import (
    Claim,
    Duplicate,
    End,
    NewTask,
    OnDuplicate,
    TaskOutcome,
    UniqueKey,
)
from ratelimited_executor.durable import PostgresStore, RedisStore, SQLiteStore
from ratelimited_executor.stores.tasks.redis_layout import KEYS

HOW = {
    "keep": UniqueKey("u"),
    "replace": UniqueKey("u", while_running=False, on_duplicate=OnDuplicate.REPLACE),
    "debounce": UniqueKey("u", while_running=False, on_duplicate=OnDuplicate.DEBOUNCE),
}


def task(id, unique, **options) -> NewTask:
    return NewTask(id=str(id), name="f", body=str(id).encode(), unique=unique, **options)


@pytest.fixture(params=["sqlite", *([] if sys.platform == "win32" else ["postgres", "redis"])])
async def stores(request, tmp_path, clock):
    """Return two open stores at one place, as two processes have them."""
    if request.param == "sqlite":
        made = [SQLiteStore(tmp_path / "tasks.db") for _ in range(2)]
    elif request.param == "redis":
        made = [RedisStore(request.getfixturevalue("redis_server").url) for _ in range(2)]
    else:
        made = [PostgresStore(request.getfixturevalue("database").url) for _ in range(2)]
    for each in made:
        await each.open(clock)
    yield made
    for each in made:
        await each.aclose()


@pytest.mark.parametrize("how", HOW)
async def test_puts_at_once_create_one_task(stores, how):
    """Of many puts of two processes at once, in transactions of one task or several, one creates a task."""
    for turn in range(5):
        unique = HOW[how]._replace(key=f"u{turn}")
        other = unique._replace(key=f"v{turn}")
        puts = [
            store.put(
                [task(f"{turn} {place} {n} {each.key}", each) for each in ((unique, other), (other, unique))[n % 2]]
            )
            for place, store in enumerate(stores)
            for n in range(10)
        ]
        answers = await asyncio.gather(*puts)
        given = [each for answer in answers for each in answer]
        assert 2 == given.count(True)
        assert 2 == len({each.id for each in given if each is not True})
    assert 10 == sum((await stores[0].counts()).values())


@pytest.mark.parametrize("how", ["replace", "debounce"])
async def test_put_beside_a_claim_changes_the_task_or_puts_another(stores, how):
    """A put beside a claim either changes the task before it is claimed, or puts another: its arguments always run."""
    first, second = stores
    await second.join("o", 60_000_000)
    changed = 0
    for turn in range(30):
        unique = HOW[how]._replace(key=f"u{turn}")
        await first.put([task(f"old {turn}", unique)])
        new = task(f"new {turn}", unique)
        [answer], claims = await asyncio.gather(first.put([new]), second.claim(Claim(owner="o", count=9)))
        ran = [each.body for each in claims.tasks]
        ran += [each.body for each in (await second.claim(Claim(owner="o", count=9))).tasks]
        assert new.body in ran
        assert [answer is True] == [len(ran) == 2], (turn, ran)
        assert answer in (True, Duplicate(f"old {turn}", True))
        changed += answer is not True


async def test_put_beside_the_end_is_a_duplicate_or_runs(stores):
    """A put beside the end of its task is a duplicate of it or creates one task."""
    first, second = stores
    await second.join("o", 60_000_000)
    for turn in range(30):
        await first.put([task(f"old {turn}", HOW["keep"])])
        [claimed] = (await second.claim(Claim(owner="o", count=9))).tasks
        [answer], ended = await asyncio.gather(
            first.put([task(f"new {turn}", HOW["keep"])]), second.finish([TaskOutcome(claimed.ref, End.DONE)])
        )
        assert [True] == ended
        assert answer in (True, Duplicate(f"old {turn}", False))
        rows = await first.rows(None)
        assert [answer is True] == [bool(rows)]
        await first.cancel([row.id for row in rows])


async def test_many_puts_with_one_key_are_answered_in_their_order(store):
    """In one call, tasks with one key are answered as in calls of their own, between others."""
    unique = HOW["debounce"]._replace(delay_max_us=50)
    tasks = [task(n, unique if n % 2 else None, delay_us=30 + n, priority=float(n % 3)) for n in range(9)]
    duplicate = Duplicate("1", True)
    assert [True, True, True, duplicate, True, duplicate, True, duplicate, True] == await store.put(tasks)
    [row] = await store.find(["1"])
    assert (b"7", 2.0, row.put_us + 37) == (row.body, row.priority, row.due_us)
    assert [duplicate] == await store.put([task(9, unique, delay_us=90)])
    [row] = await store.find(["1"])
    assert (b"9", 2.0, row.put_us + 50) == (row.body, row.priority, row.due_us)
    assert 6 == sum((await store.counts()).values())


async def test_task_that_a_debounce_lets_expire_counts_no_longer(store, clock):
    """Of two puts in one call that make a task due long ago, the second puts another if the task has so expired."""
    unique = HOW["debounce"]
    assert [True] == await store.put([task("a", unique, delay_us=1000, expires_us=30)])
    past = clock.now_us - 50
    both = await store.put([task(n, unique, due_us=past) for n in "bc"])
    assert [Duplicate("a", is_changed=True), True] == both
    await store.join("o", 60_000_000)
    assert ["c"] == [each.id for each in (await store.claim(Claim(owner="o", count=9))).tasks]


def hashed(n) -> str:
    """Return a key as keys of calls are."""
    return hashlib.md5(str(n).encode()).hexdigest()


async def test_rows_of_keys_are_deleted_some_time_later(store, clock):
    """Beats delete rows of unique keys whose tasks have ended, and a day after their period; those that count stay."""
    await store.join("o", 60_000_000)
    period = UniqueKey("", period_us=1000)
    await store.put([task(n, UniqueKey(hashed(n))) for n in range(3000)])
    await store.put([task(f"p{n}", period._replace(key=hashed(f"p{n}")), is_named=True) for n in range(20)])
    await store.put([task("stays", UniqueKey(hashed("stays")), delay_us=10**14)])
    refs = [each.ref for each in (await store.claim(Claim(owner="o", count=9999))).tasks]
    assert [True] * 3020 == await store.finish([TaskOutcome(ref, End.DONE) for ref in refs])
    now_us = clock.now_us + 2 * REMEMBERED_US
    for turn in range(20):
        clock.set(now_us + 1000 * turn)
        await store.beat("o")
    assert [Duplicate("stays", False)] == await store.put([task("new", UniqueKey(hashed("stays")))])
    assert 1 == await row_count(store)


async def row_count(store) -> int:
    """Return the number of rows of unique keys."""
    if isinstance(store, RedisStore):
        return await store._client.zcard(store._keys[KEYS.index("unique")])
    if isinstance(store, (PostgresStore, SQLiteStore)):
        connection = (
            apsw.Connection(str(store._path)) if isinstance(store, SQLiteStore) else psycopg.connect(store._conninfo)
        )
        try:
            [(count,)] = connection.execute("select count(*) from durable_unique").fetchall()
        finally:
            connection.close()
        return count
    return len(store._table._unique)
