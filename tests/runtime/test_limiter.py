"""The limiter face: permits in the same order and under the same law as tasks."""

import asyncio

import pytest

from ratelimited_executor import Hold, RateLimitedExecutor, TaskExpiredError, TaskState
from ratelimited_executor.testing import audit


def now() -> float:
    return round(asyncio.get_running_loop().time(), 6)


async def test_permits_come_at_the_rate(virtual_clock, account):
    """Each ``async with`` takes one permit; the law holds over permits and tasks together."""
    starts = []

    async def use(executor):
        async with executor.permit():
            starts.append(now())

    async with RateLimitedExecutor("x", rate=10) as executor:
        waiters = [asyncio.ensure_future(use(executor)) for _ in range(10)]
        for _ in range(10):
            executor.call_later(0.05, lambda: starts.append(now()))
        await asyncio.sleep(0.5)
        account(executor)
        await asyncio.gather(*waiters)
    assert 20 == len(starts)
    assert [index / 10 for index in range(20)] == sorted(starts)
    assert audit(starts, 10).ok


async def test_permit_and_task_share_one_order(virtual_clock):
    """A waiter of higher priority goes before tasks, and behind those more important."""
    log = []

    async def use(executor, name, priority):
        async with executor.permit(priority=priority):
            log.append(name)

    async with RateLimitedExecutor("x", rate=1) as executor:
        executor.pause()
        executor.submit(log.append, "task 0")
        executor.submit(log.append, "task 2", priority=2)
        waiters = [asyncio.ensure_future(use(executor, f"permit {p}", p)) for p in (0, 1, 3)]
        await asyncio.sleep(1)
        executor.resume()
        await asyncio.gather(*waiters)
    assert ["permit 3", "task 2", "permit 1", "task 0", "permit 0"] == log


async def test_held_permit_counts_as_running_until_it_is_left(virtual_clock, account):
    """The body is a running task and takes a place; its end is that of the task."""
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        permit = executor.permit(name="mine")
        assert None is permit.handle
        async with permit as handle:
            assert handle is permit.handle
            assert (TaskState.RUNNING, 1, 0) == (
                handle.state,
                executor.statistics().running,
                executor.statistics().waiting,
            )
            account(executor)
            task = executor.submit(int)
            await asyncio.sleep(1)
            assert Hold.CONCURRENCY is executor.explain(task).hold
        assert TaskState.DONE is handle.state
        await task
        with pytest.raises(ValueError, match="body"):
            async with executor.permit() as handle:
                raise ValueError("body")
        assert TaskState.FAILED is handle.state
        assert 1 == executor.statistics().failed
        account(executor)


async def test_permit_is_entered_once(virtual_clock):
    """For another, ask the executor again."""
    async with RateLimitedExecutor("x") as executor:
        permit = executor.permit()
        async with permit:
            pass
        with pytest.raises(RuntimeError, match="can be entered once"):
            async with permit:
                pass


async def test_acquire_takes_no_place_afterwards(virtual_clock):
    """``await acquire()`` uses up a permit, and nothing runs after it."""
    async with RateLimitedExecutor("x", rate=2, max_concurrency=1) as executor:
        for expected in (0.0, 0.5, 1.0):
            await executor.acquire()
            assert expected == now()
        assert (3, 0) == (executor.statistics().done, executor.statistics().running)


async def test_limited_calls_wait_for_a_permit_each(virtual_clock):
    """``@executor.limited`` keeps name, arguments and result of the function."""
    async with RateLimitedExecutor("x", rate=1) as executor:

        @executor.limited
        async def fetch(number, *, factor=2):
            """Fetch."""
            return number * factor, now()

        assert ("fetch", "Fetch.") == (fetch.__name__, fetch.__doc__)
        assert [(2, 0.0), (6, 1.0), (12, 2.0)] == await asyncio.gather(fetch(1), fetch(2, factor=3), fetch(6))


async def test_cancelled_waiter_uses_no_permit(virtual_clock, account):
    """Its permit is the next one's."""

    async def use(executor):
        async with executor.permit():
            return now()

    async with RateLimitedExecutor("x", rate=1) as executor:
        waiters = [asyncio.ensure_future(use(executor)) for _ in range(4)]
        await asyncio.sleep(0.5)
        waiters[1].cancel()
        await asyncio.sleep(0)
        account(executor)
        assert 1 == executor.statistics().cancelled
        assert [0.0, 1.0, 2.0] == [await waiters[index] for index in (0, 2, 3)]


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
async def test_cancellation_that_races_with_the_grant_loses_no_place(virtual_clock, account, before):
    """Whether the cancel comes before, with or after the grant, the place is free again and the counts close."""
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:

        async def use():
            async with executor.permit():
                await asyncio.sleep(100)

        waiter = asyncio.ensure_future(use())
        for _ in range(before):
            await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await asyncio.sleep(0)
        account(executor)
        assert 0 == executor.statistics().running
        async with asyncio.timeout(1):
            await executor.acquire()


async def test_cancelled_in_the_turn_of_the_grant(virtual_clock, account):
    """A waiter cancelled at the very instant of its permit, from either side of it, ends cancelled once."""
    async with RateLimitedExecutor("x", rate=1, max_concurrency=1) as executor:
        await executor.acquire()
        loop = asyncio.get_running_loop()
        for offset in (-1e-9, 0.0, 1e-9):
            waiter = asyncio.ensure_future(executor.acquire())
            await asyncio.sleep(0)
            base = asyncio.get_running_loop().time()
            when = float(int(base) + 1)
            loop.call_at(when + offset, waiter.cancel)
            await asyncio.wait([waiter])
            await asyncio.sleep(0.2)
            account(executor)
            assert 0 == executor.statistics().running + executor.statistics().waiting


async def test_permit_that_expires_raises(virtual_clock, account):
    """After ``expires`` seconds of waiting, entering raises, within an interval."""
    async with RateLimitedExecutor("x", rate=0.1) as executor:
        await executor.acquire()
        with pytest.raises(TaskExpiredError, match="within 2 s"):
            await executor.acquire(expires=2)
        assert 2 <= now() <= 3
        assert 1 == executor.statistics().expired
        account(executor)
        await executor.acquire(expires=30)


async def test_waiter_sees_the_executor_close(virtual_clock):
    """Closing cuts waiters off: they are cancelled; a held permit ends with its body."""
    async with RateLimitedExecutor("x", rate=1, drain_timeout=0) as executor:
        async with executor.permit():

            async def use():
                async with executor.permit():
                    pass

            waiter = asyncio.ensure_future(use())
            await asyncio.sleep(0.1)
            executor.shutdown(cancel_pending=True)
            await asyncio.sleep(0.1)
            assert waiter.cancelled()
        assert await executor.await_termination(20)
        assert (0, 0) == (executor.statistics().waiting, executor.statistics().running)


async def test_drain_waits_for_a_held_permit(virtual_clock):
    """Normal leaving lets the holder finish."""

    async def use(executor):
        async with executor.permit():
            await asyncio.sleep(5)
            return now()

    async with RateLimitedExecutor("x") as executor:
        holder = asyncio.ensure_future(use(executor))
        await asyncio.sleep(1)
    assert 5.0 == now() == await holder
