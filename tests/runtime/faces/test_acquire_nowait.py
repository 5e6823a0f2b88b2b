"""``acquire_nowait`` takes the permit that ``acquire`` would get at once, or raises an error."""

import asyncio

import anyio
import pytest

from ratelimited_executor import Burst, ExecutorStoppedError, Pacing, Rate, RateLimitedExecutor, Window
from ratelimited_executor.exceptions import ExecutorNotStartedError, WrongLoopError
from ratelimited_executor.orders import Fair, earliest_due_first
from ratelimited_executor.policies import Quota
from ratelimited_executor.testing import audit

from ...helpers import now


def attempt(executor, **options) -> bool:
    """Return True if there was a permit."""
    try:
        executor.acquire_nowait(**options)
    except anyio.WouldBlock:
        return False
    return True


POLICIES = {
    "paced": {"rate": 10},
    "window": {"rate": Rate(3, per=1), "policy": Window()},
    "burst": {"rate": 10, "policy": Burst(4)},
    "several": {"rate": [10, "50/10s"]},
    "quota": {"rate": [10, Quota(20, per="minute")]},
    "own order": {"rate": 10, "order": earliest_due_first},
    "fair": {"rate": 10, "order": Fair()},
    "keys": {"rate": 10, "key_rate": 100},
}


@pytest.mark.parametrize("what", POLICIES)
async def test_polling_gets_what_waiting_gets(virtual_clock, account, what):
    """Polling every millisecond gets as many permits as waiting does, give or take one, and the law holds for them."""
    got = []
    async with RateLimitedExecutor("x", **POLICIES[what]) as executor:
        for _ in range(4000):
            if attempt(executor):
                got.append(now())
            await asyncio.sleep(0.001)
        account(executor)
        assert len(got) == executor.statistics().done == executor.statistics().accepted
    waited = []
    async with RateLimitedExecutor("y", **POLICIES[what]) as executor:
        begin = now()
        while now() < begin + 3.99:
            await executor.acquire()
            waited.append(now())
    assert abs(len([one for one in waited if one < begin + 3.99]) - len(got)) <= 1
    if what == "paced":
        assert audit(got, 10).ok


async def test_unlimited_rate_has_one_for_everybody(virtual_clock, account):
    """Without a rate every call gets a permit at once, however many tasks are due."""
    async with RateLimitedExecutor("x") as executor:
        for _ in range(5):
            executor.submit(int)
        assert all(attempt(executor) for _ in range(100))
        account(executor)
        await asyncio.sleep(0)
        account(executor)
    assert 105 == executor.statistics().done


async def test_call_that_finds_none_changes_nothing(virtual_clock, account):
    """A call that finds no permit changes no count, and the next task starts as early as without it."""
    async with RateLimitedExecutor("x", rate="1/10s", key_rate=1, order=Fair()) as executor:
        assert attempt(executor, key="a")
        before = executor.statistics()
        for _ in range(100):
            assert not attempt(executor, key="a", priority=5)
            assert not attempt(executor, cost=1, name="b")
        assert before == executor.statistics()
        account(executor)
        handle = executor.submit(now)
        assert 10 == await handle


@pytest.mark.parametrize("why", ["paused", "rate 0", "places", "key rate", "key concurrency", "penalty", "cost"])
async def test_whatever_holds_a_task_refuses(virtual_clock, account, why):
    """A pause, a full executor, a limit of the key, a penalty, or a cost that must be saved up refuses the permit."""
    options = {
        "places": {"max_concurrency": 1},
        "key rate": {"key_rate": "1/10s"},
        "key concurrency": {"key_concurrency": 1},
        "cost": {"rate": Rate(10, per=10), "policy": Burst(10)},
    }.get(why, {})
    async with RateLimitedExecutor("x", drain_timeout=0, **options) as executor:
        key = {"key": "a"} if "key" in why else {}
        if why == "paused":
            executor.pause()
        elif why == "rate 0":
            executor.rate = 0
        elif why in ("places", "key concurrency"):
            executor.submit(asyncio.sleep, 10, **key)
            await asyncio.sleep(1)
        elif why == "penalty":
            executor.penalize(5)
        elif why == "key rate":
            assert attempt(executor, **key)
        else:
            assert attempt(executor, cost=7)
            key = {"cost": 7}
        assert not attempt(executor, **key)
        account(executor)
        if "key" in why:
            assert attempt(executor, key="b")
            assert attempt(executor)
        executor.resume()
        executor.rate = executor.rate if why == "cost" else 10
        await asyncio.sleep(12)
        assert attempt(executor, **key)


async def test_what_is_due_and_more_important_goes_first(virtual_clock):
    """A permit goes to the most important of all that are due, the caller of ``acquire_nowait`` included."""
    async with RateLimitedExecutor("x", rate=1, pacing=Pacing.ON_TIME) as executor:
        assert attempt(executor)
        executor.submit(int, priority=5)
        loop = asyncio.get_running_loop()
        answers = []

        def ask():
            answers.append(
                (attempt(executor, priority=4), attempt(executor, priority=6), attempt(executor, priority=9))
            )

        loop.call_at(0.9999, lambda: loop.block_for(0.01))  # the permit is available, and no task has taken it yet
        loop.call_at(0.99995, ask)
        await asyncio.sleep(1.5)
    assert [(False, True, False)] == answers


async def test_task_may_ask(virtual_clock, account):
    """A task may call it during a burst, even during its own start, and each permit is used once."""
    starts = []

    def ask(*_):
        starts.append(now())
        if attempt(executor):
            starts.append(now())

    async with RateLimitedExecutor("x", rate=Rate(6, per=1), policy=Window()) as executor:
        executor.schedule_many(ask, range(10))
        for _ in range(5):
            executor.call_soon(ask)
            executor.submit(ask)
        await asyncio.sleep(0)
        account(executor)
    assert audit(starts, Rate(6, per=1)).ok
    assert len(starts) == executor.statistics().started
    account(executor)


async def test_place_is_not_kept(virtual_clock):
    """It uses up a permit, as ``acquire`` does, but takes no place of ``max_concurrency``."""
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        assert (True, True) == (attempt(executor), attempt(executor))
        assert 0 == executor.statistics().running


async def test_refused_where_acquire_is(virtual_clock):
    """It is refused before the start, after the end, and in another thread, as ``acquire`` is."""
    executor = RateLimitedExecutor("x", rate=5)
    with pytest.raises(ExecutorNotStartedError):
        executor.acquire_nowait()
    async with executor:
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(executor.acquire_nowait)
    with pytest.raises(ExecutorStoppedError):
        executor.acquire_nowait()
