"""``key=`` and ``cost=`` of ``map``, ``limited`` and repeating tasks mean the same as for ``schedule``."""

import asyncio
from collections import Counter

import pytest

from ratelimited_executor import BacklogFullError, Rate, RateLimitedExecutor, WhenFull, Window
from ratelimited_executor.orders import Fair

from ..helpers import now_rounded


async def drained(iterator) -> list:
    return [one async for one in iterator]


# map.


@pytest.mark.parametrize("is_async", [False, True])
async def test_map_has_the_limits_of_keys(virtual_clock, account, is_async):
    """``map`` takes one key or a function of the item, and a key's rate delays no other key."""
    starts = []

    def work(item):
        starts.append((item[0], now_rounded()))
        return item

    async def drawn(items):
        for item in items:
            yield item

    items = [f"{key}{number}" for number in range(3) for key in "ab"]
    async with RateLimitedExecutor("x", key_rate=lambda key: 1 if key == "a" else None) as executor:
        source = drawn(items) if is_async else items
        assert items == await drained(executor.map(work, source, key=lambda item: item[0]))
        account(executor)
        assert [0, 1, 2] == [time for key, time in starts if key == "a"]
        assert {0} == {time for key, time in starts if key == "b"}
        begin = now_rounded()
        await drained(executor.map(work, ["c1", "c2"], key="a"))
        assert now_rounded() > begin + 1


async def test_map_costs_what_its_items_cost(virtual_clock):
    """``map`` takes a cost function of the item, in permits and resources."""
    starts = []
    async with RateLimitedExecutor("x", rate=1, resources={"tokens": Rate(10, per=10)}) as executor:
        await drained(executor.map(lambda item: starts.append(now_rounded()), [1, 4, 2, 1], cost=lambda item: item))
        assert [0, 1, 5, 7] == starts
        del starts[:]
        await drained(executor.map(lambda item: starts.append(now_rounded()), [1, 2], cost={"tokens": 10}))
        assert starts[1] - starts[0] >= 10


async def test_map_shares_with_others_by_its_key(virtual_clock):
    """Under ``Fair``, a ``map`` of many items leaves another key its half."""
    log = []
    async with RateLimitedExecutor("x", rate=10, order=Fair()) as executor:
        many = asyncio.ensure_future(drained(executor.map(log.append, ["many"] * 100, key="many")))
        await asyncio.sleep(1)
        del log[:]
        for _ in range(10):
            executor.submit(log.append, "few", key="few")
        await asyncio.sleep(2)
        many.cancel()
    assert Counter(log[:20]) == {"many": 10, "few": 10}


async def test_map_waits_where_its_key_is_full(virtual_clock, account):
    """``map`` waits while its own calls fill its key, and fails if others have filled it."""
    async with RateLimitedExecutor("x", rate=10, key_max_pending=3) as executor:
        assert list(range(12)) == await drained(executor.map(int, range(12), key="a"))
        assert 12 == len(await drained(executor.map(int, range(12), key=lambda item: item % 2, ordered=False)))
        account(executor)
        for _ in range(3):
            executor.schedule(int, delay=5, key="b")
        with pytest.raises(BacklogFullError, match="key 'b'"):
            await drained(executor.map(int, [1], key="b"))
    async with RateLimitedExecutor("x", rate=10, key_max_pending=2, when_full=WhenFull.WAIT) as executor:
        assert list(range(9)) == await drained(executor.map(int, range(9), key="a"))


async def test_error_of_a_key_function_ends_the_map(virtual_clock):
    """An error of a key function ends ``map``, is raised by its iteration, and cancels the rest."""
    async with RateLimitedExecutor("x", rate=1) as executor:
        with pytest.raises(ZeroDivisionError):
            await drained(executor.map(int, [1, 2, 0], key=lambda item: 1 // item))
        with pytest.raises(TypeError, match="key must be hashable"):
            await drained(executor.map(int, [1], key=lambda item: []))
        with pytest.raises(ValueError, match="cost must be >= 1"):
            await drained(executor.map(int, [1], cost=lambda item: 0))
        assert 0 == executor.statistics().waiting


# limited.


async def test_limited_has_key_and_cost(virtual_clock):
    """``limited`` takes key and cost of the function, or functions of each call's arguments."""
    starts = []
    executor = RateLimitedExecutor("x", rate=10, key_rate=lambda key: 1 if key == "slow" else None)

    @executor.limited(key=lambda tenant, **_: tenant, cost=lambda tenant, *, size=1: size)
    async def call(tenant, *, size=1):
        """Do it."""
        starts.append((tenant, now_rounded()))
        return size

    assert ("call", "Do it.") == (call.__name__, call.__doc__)
    async with executor:
        assert [1, 1, 1] == await asyncio.gather(call("slow"), call("slow"), call("fast"))
        assert 1 == now_rounded()
        begin = now_rounded()
        assert [5, 1] == await asyncio.gather(call("fast", size=5), call("fast"))
        assert now_rounded() >= begin + 0.5


async def test_limited_with_arguments_decorates_as_without(virtual_clock):
    """Priority, expiry and name of ``limited`` apply to each call's permit."""
    executor = RateLimitedExecutor("x", rate="1/10s", drain_timeout=0)

    @executor.limited(priority=5, expires=3, name="mine")
    async def important():
        return now_rounded()

    @executor.limited()
    async def plain():
        return now_rounded()

    async with executor:
        assert 0 == await plain()
        waiting = asyncio.ensure_future(important())
        await asyncio.sleep(1)
        (task,) = executor.waiting_tasks()
        assert ("mine", 5) == (task.name, task.priority)
        with pytest.raises(TimeoutError, match="mine was not started within 3 s"):
            await waiting


# Repeating tasks.


@pytest.mark.parametrize("kind", ["rate", "delay", "cron"])
async def test_runs_have_key_and_cost(virtual_clock, account, kind):
    """Each run of a repeating task uses its cost, and counts for its key."""
    async with RateLimitedExecutor("x", rate=Rate(10, per=10), policy=Window(), key_concurrency=1) as executor:
        terms = {"key": "a", "cost": 6, "max_runs": 3}
        if kind == "rate":
            every = executor.schedule_at_fixed_rate(int, period=1, **terms)
        elif kind == "delay":
            every = executor.schedule_with_fixed_delay(int, delay=1, **terms)
        else:
            every = executor.schedule_cron("* * * * *", int, **terms)
        (task,) = executor.waiting_tasks()
        assert ("a", 6, True) == (task.key, task.cost, task.is_repeating)
        begin = now_rounded()
        await every
        account(executor)
        if kind != "cron":  # two do not fit one window
            assert 20 <= now_rounded() - begin < 22
        assert 3 == every.run_count


async def test_runs_share_the_concurrency_of_their_key(virtual_clock):
    """A run waits while another task of its key runs."""
    starts = []
    async with RateLimitedExecutor("x", key_concurrency=1) as executor:
        executor.submit(asyncio.sleep, 5, key="a")
        await asyncio.sleep(0.5)
        executor.schedule_at_fixed_rate(lambda: starts.append(now_rounded()), period=1, key="a", max_runs=1)
        executor.schedule_at_fixed_rate(lambda: starts.append(now_rounded()), period=1, key="b", max_runs=1)
        await asyncio.sleep(10)
    assert [0.5, 5] == starts


async def test_first_run_needs_room_of_its_key(virtual_clock):
    """The first run needs room in its key's backlog, like any scheduled task."""
    async with RateLimitedExecutor("x", key_max_pending=1, drain_timeout=0) as executor:
        executor.schedule(int, delay=5, key="a")
        with pytest.raises(BacklogFullError, match="key 'a'"):
            executor.schedule_at_fixed_rate(int, period=1, key="a")
        executor.schedule_at_fixed_rate(int, period=1, key="b").cancel()
        assert 1 == executor.statistics().waiting
