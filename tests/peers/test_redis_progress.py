"""Progress in a real Redis: what a store promises, and nodes that share the turns of a cycle."""

import asyncio
import time
from collections import Counter, defaultdict

import pytest
import redis.asyncio

from ratelimited_executor import MemoryProgress, Progress, RateLimitedExecutor, RedisProgress, SQLiteProgress
from ratelimited_executor.spread import CycleSlots


@pytest.fixture(params=["memory", "file", "redis", "redis, decoding client", "cluster"])
async def store(request, tmp_path):
    """A store of each kind, empty."""
    if request.param == "memory":
        made = MemoryProgress()
    elif request.param == "file":
        made = SQLiteProgress(tmp_path / "progress.sqlite3")
    elif request.param == "redis":
        made = RedisProgress(request.getfixturevalue("redis_server").url)
    elif request.param == "cluster":
        cluster = request.getfixturevalue("redis_cluster_server")
        cluster.flush()
        client = redis.asyncio.RedisCluster.from_url(cluster.url)
        made = RedisProgress(client)
    else:
        client = redis.asyncio.Redis.from_url(request.getfixturevalue("redis_server").url, decode_responses=True)
        made = RedisProgress(client)
    yield made
    await made.aclose()
    if request.param in ("redis, decoding client", "cluster"):
        await client.aclose()


async def test_every_store_keeps_what_a_store_promises(store):
    """The same for all of them."""
    now = time.time()
    assert isinstance(store, Progress)
    assert 100 == await store.begin("sync", "8 h", 100)
    assert 100 == await store.begin("sync", "8 h", 105)
    with pytest.raises(ValueError, match="it was kept for 8 h, not 4 h"):
        await store.begin("sync", "4 h", 100)
    assert 7 == await store.begin("other {name}", "4 h", 7)

    assert [100, 101, 102] == await store.open_turns("sync", 100, 102)
    assert await store.claim("sync", 100, owner="a", now=now, until=now + 60)
    assert await store.claim("sync", 100, owner="a", now=now, until=now + 60)
    assert not await store.claim("sync", 100, owner="b", now=now, until=now + 60)
    assert await store.claim("other {name}", 100, owner="b", now=now, until=now + 60)
    assert not await store.claim("sync", 100, owner="b", now=now, until=now)  # gives up nothing of another
    assert not await store.claim("sync", 100, owner="b", now=now, until=now + 60)
    assert await store.claim("sync", 100, owner="a", now=now, until=now)
    assert await store.claim("sync", 100, owner="b", now=now, until=now + 60)
    assert set() == await store.done_keys("sync", 100)
    await store.note("sync", 100, [b"ia\x00\xff", b"sb c"])
    await store.note("sync", 100, [b"sb c", b""])
    assert {b"ia\x00\xff", b"sb c", b""} == await store.done_keys("sync", 100)
    assert set() == await store.done_keys("sync", 101)

    await store.complete("sync", 100, keep_from=90)
    assert [101, 102] == await store.open_turns("sync", 100, 102)
    assert not await store.claim("sync", 100, owner="a", now=now, until=now + 60)
    assert set() == await store.done_keys("sync", 100)
    await store.complete("sync", 102, keep_from=101)
    assert [100, 101] == await store.open_turns("sync", 100, 102)  # what lies before may be forgotten


async def test_claim_of_a_node_that_is_silent_runs_out(store):
    """In real time, since Redis goes by its own clock."""
    now = time.time()
    assert await store.claim("sync", 5, owner="a", now=now, until=now + 0.2)
    assert not await store.claim("sync", 5, owner="b", now=now, until=now + 0.2)
    await asyncio.sleep(0.4)
    now = time.time()
    assert await store.claim("sync", 5, owner="b", now=now, until=now + 60)
    assert not await store.claim("sync", 5, owner="a", now=now, until=now + 60)


async def test_one_of_many_gets_a_turn(store):
    """However many ask at once."""
    now = time.time()
    for turn in range(20):
        answers = await asyncio.gather(
            *(store.claim("sync", turn, owner=str(number), now=now, until=now + 60) for number in range(10))
        )
        assert 1 == sum(answers)


@pytest.mark.slow
async def test_nodes_share_the_turns_of_a_cycle(redis_server):
    """In real time, a cycle of 8 s with three nodes: each key runs once in it, on one of them.

    Wide enough for a slow machine: a key may be late, but not early, and not twice in a cycle.
    """
    slots, runs, shares = CycleSlots(8, 256), defaultdict(list), Counter()
    by_slot = defaultdict(list)
    for key in range(300):
        by_slot[slots.slot_of(key)].append(key)

    async def node(number):
        def sync(key):
            runs[key].append(time.time())
            shares[number] += 1

        progress = RedisProgress(redis_server.url)
        async with RateLimitedExecutor(f"node {number}") as executor:
            handle = executor.every(
                cycle=8, buckets=256, keys=by_slot.__getitem__, fn=sync, name="sync",
                progress=progress, lease=3,
            )  # fmt: skip
            await asyncio.sleep(20)
            counts = handle.statistics
            assert (0, 0, 0) == (counts.loader_errors, counts.lost, counts.skipped_turns)
            handle.cancel()
        await progress.aclose()  # not before: a turn that was cut says so to the store

    await asyncio.gather(*(node(number) for number in range(3)))
    assert 300 == len(runs)
    assert all(2 <= len(times) <= 3 for times in runs.values())
    for times in runs.values():
        assert all(later - earlier > 5 for earlier, later in zip(times, times[1:], strict=False)), times


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        (({},), TypeError, "redis"),
        (("no url",), ValueError, "redis"),
        (("redis://localhost", 5), TypeError, "prefix"),
        (("redis://localhost", ""), ValueError, "prefix"),
        (("redis://localhost", "a{b}"), ValueError, "prefix"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, error, name):
    """When it is made."""
    with pytest.raises(error, match=f"{name} must"):
        RedisProgress(arguments[0], **({"prefix": arguments[1]} if len(arguments) > 1 else {}))
