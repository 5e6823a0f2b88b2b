"""The contract of stores of progress, checked for every store: :class:`ratelimited_executor.abc.Progress`."""

import asyncio
import inspect
import subprocess
import sys
import time

import pytest
import redis.asyncio

from ratelimited_executor.abc import Progress
from ratelimited_executor.cycles import MemoryProgress, RedisProgress, SQLiteProgress
from ratelimited_executor.simulation.progress import InstantProgress

STORES = [MemoryProgress, SQLiteProgress, RedisProgress, InstantProgress]


@pytest.fixture(params=["memory", "file", "redis", "redis, decoding client", "cluster"])
async def store(request, tmp_path):
    """An empty store of each kind."""
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
        await client.initialize()  # may lose a connection if its first calls are concurrent; a cycle's are not
        made = RedisProgress(client)
    else:
        client = redis.asyncio.Redis.from_url(request.getfixturevalue("redis_server").url, decode_responses=True)
        made = RedisProgress(client)
    yield made
    await made.aclose()
    if request.param in ("redis, decoding client", "cluster"):
        await client.aclose()


async def test_every_store_keeps_what_a_store_promises(store):
    """Every store keeps shapes, open turns, claims and done keys as the contract says."""
    now = time.time()
    assert isinstance(store, Progress)
    assert 100 == await store.begin("sync", "8 h", 100)
    assert 100 == await store.begin("sync", "8 h", 105)
    with pytest.raises(ValueError, match="it was recorded for 8 h, not 4 h"):
        await store.begin("sync", "4 h", 100)
    assert 7 == await store.begin("other {name}", "4 h", 7)

    assert [100, 101, 102] == await store.open_turns("sync", 100, 102)
    assert await store.claim("sync", 100, owner="a", now=now, until=now + 60)
    assert await store.claim("sync", 100, owner="a", now=now, until=now + 60)
    assert not await store.claim("sync", 100, owner="b", now=now, until=now + 60)
    assert await store.claim("other {name}", 100, owner="b", now=now, until=now + 60)
    assert not await store.claim("sync", 100, owner="b", now=now, until=now)  # does not give up another's claim
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
    assert [100, 101] == await store.open_turns("sync", 100, 102)  # turns before ``keep_from`` may be forgotten


async def test_claim_of_a_node_that_is_silent_runs_out(store):
    """The claim of a node that falls silent ends at its time, after which another node may claim the turn."""
    now = time.time()
    assert await store.claim("sync", 5, owner="a", now=now, until=now + 60)
    assert not await store.claim("sync", 5, owner="b", now=now, until=now + 60)
    now = time.time()
    assert await store.claim("sync", 5, owner="a", now=now, until=now + 0.2)
    async with asyncio.timeout(30):
        while not await store.claim("sync", 5, owner="b", now=time.time(), until=time.time() + 60):
            await asyncio.sleep(0.02)
    assert time.time() >= now + 0.199  # Redis counts in milliseconds
    now = time.time()
    assert not await store.claim("sync", 5, owner="a", now=now, until=now + 60)


async def test_one_of_many_gets_a_turn(store):
    """Of ten owners that claim a turn at once, one gets it."""
    now = time.time()
    for turn in range(20):
        answers = await asyncio.gather(
            *(store.claim("sync", turn, owner=str(number), now=now, until=now + 60) for number in range(10))
        )
        assert 1 == sum(answers)


METHODS = sorted(Progress.__abstractmethods__)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("method", METHODS)
def test_every_store_has_the_signatures_and_docstrings_of_the_contract(kind, method):
    """Every store has the signatures and docstrings of the contract; only ``aclose`` may be documented anew."""
    contract, own = getattr(Progress, method), getattr(kind, method)
    assert inspect.signature(contract) == inspect.signature(own)
    assert inspect.getdoc(own)
    assert method == "aclose" or inspect.getdoc(contract) == inspect.getdoc(own)


def test_store_that_lacks_a_method_cannot_be_made():
    """A store based on the contract cannot be made without all of its methods."""

    class Half(Progress):
        async def begin(self, name, shape, turn):
            return turn

    with pytest.raises(TypeError, match=r"abstract.*claim"):
        Half()


def test_store_needs_no_base():
    """A class with the methods of the contract is a store: users' own stores need not import anything."""
    own = type("Own", (), {method: getattr(MemoryProgress, method) for method in METHODS})
    assert isinstance(own(), Progress)
    assert not isinstance(object(), Progress)


@pytest.mark.parametrize("module", ["memory", "sqlite", "redis"])
def test_store_imports_its_driver_on_first_use(module):
    """The module of a store imports neither driver, so that it needs no extra."""
    code = f"import sys, ratelimited_executor.stores.progress.{module}; print(*(name in sys.modules for name in ('redis', 'apsw')))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert ["False", "False"] == printed
