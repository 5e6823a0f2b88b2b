"""Waiters for room in the backlog are served in order, key by key, and never wait in vain."""

import asyncio
import random

import pytest

from ratelimited_executor import (
    BacklogFullError,
    ExecutorStoppedError,
    RateLimitedExecutor,
    RetryLater,
    TaskState,
    WhenFull,
)

from ...helpers import now, seen, turns

# Waited for.


async def test_waiters_get_the_room_in_the_order_in_which_they_came(virtual_clock, account):
    """Waiters get room in order of arrival, each as soon as a task has started."""
    order = []
    async with RateLimitedExecutor("x", rate=10, max_pending=2, when_full=WhenFull.WAIT) as executor:

        async def producer(number):
            await executor.schedule_wait(order.append, number)
            got.append((number, now()))

        got = []
        tasks = [asyncio.create_task(producer(number)) for number in range(20)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.05)
            account(executor)
            assert executor.statistics().waiting <= 2
            assert executor.statistics().waiters == sum(not task.done() for task in tasks)
    assert list(range(20)) == [number for number, _ in got] == order
    assert [0.0] * 3 == pytest.approx([time for _, time in got[:3]], abs=0.001)
    assert got[-1][1] == pytest.approx(1.7, abs=0.1)


async def test_who_comes_later_does_not_pass_those_who_wait(virtual_clock):
    """A later call does not pass the waiters, even if it finds room: it is refused, or waits at the end."""
    async with RateLimitedExecutor("x", rate=10, max_pending=1, when_full=WhenFull.WAIT) as executor:
        executor.submit(int)
        first = await executor.schedule_wait(int)
        waiting = asyncio.create_task(executor.schedule_wait(int))
        await turns()
        first.cancel()
        with pytest.raises(BacklogFullError):
            executor.submit(int)  # the place is promised
        assert 1 == executor.statistics().waiters
        await waiting
        assert 0 == executor.statistics().waiters


async def test_waiter_that_gives_up_takes_no_place(virtual_clock, account):
    """A waiter that gives up, before or after its reservation, leaves the place to the next one."""
    async with RateLimitedExecutor("x", rate=1, max_pending=1, when_full=WhenFull.WAIT, drain_timeout=0) as executor:
        executor.submit(int)
        await asyncio.sleep(0.1)
        blocking = executor.submit(int)
        waiters = [asyncio.create_task(executor.schedule_wait(int, name=str(number))) for number in range(4)]
        await turns()
        waiters[0].cancel()  # it has not been promised anything
        await turns()
        assert 3 == executor.statistics().waiters
        blocking.cancel()  # in this turn the second one is promised the place,
        waiters[1].cancel()  # and gives up before it can take it
        await turns(5)
        assert waiters[1].cancelled()
        assert "2" == waiters[2].result().name
        assert (1, 1) == (executor.statistics().waiting, executor.statistics().waiters)
        account(executor)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(executor.schedule_wait(int), 0.3)
        assert 1 == executor.statistics().waiters
        await asyncio.sleep(1)
        assert waiters[3].done()
        account(executor)


async def test_place_that_could_not_be_taken_goes_to_the_next(virtual_clock):
    """A call that fails once it gets room leaves the room to the next waiter."""
    async with RateLimitedExecutor("x", rate=1, max_pending=1, when_full=WhenFull.WAIT, drain_timeout=0) as executor:
        executor.submit(int)
        await asyncio.sleep(0.1)
        executor.submit(int)
        wrong = asyncio.create_task(executor.schedule_wait(int, delay=-1))
        right = asyncio.create_task(executor.schedule_wait(int))
        await asyncio.sleep(1.2)
        assert isinstance(wrong.exception(), ValueError)
        assert right.done()
        assert (1, 0) == (executor.statistics().waiting, executor.statistics().waiters)


async def test_waiter_of_a_full_key_holds_up_no_other_key(virtual_clock, account):
    """A waiter of a full key waits for its own key only, and others pass it."""
    async with RateLimitedExecutor(
        "x", rate=1, max_pending=50, key_max_pending=1, when_full=WhenFull.WAIT, drain_timeout=0
    ) as executor:
        executor.submit(int)
        blocking = executor.schedule(int, delay=50, key="a")
        waiting = [asyncio.create_task(executor.schedule_wait(int, delay=50, key="a")) for _ in range(3)]
        await turns()
        for key in ("b", "c"):
            await asyncio.wait_for(executor.schedule_wait(int, delay=50, key=key), 0.01)
        account(executor)
        assert 3 == executor.statistics().waiters
        blocking.cancel()
        await turns()
        assert [True, False, False] == [one.done() for one in waiting]
        account(executor)
        for one in waiting:
            one.cancel()


async def test_waiter_of_a_full_key_holds_up_nobody_without_a_key(virtual_clock):
    """A waiter of a full key delays no call without a key, waiting or not."""
    async with RateLimitedExecutor(
        "x", max_pending=50, key_max_pending=1, when_full=WhenFull.WAIT, drain_timeout=0
    ) as executor:
        executor.schedule(int, delay=50, key="a")
        waiting = asyncio.create_task(executor.schedule_wait(int, key="a"))
        await turns()
        try:
            executor.submit(int)
            await asyncio.wait_for(executor.schedule_wait(int), 5)
        finally:
            waiting.cancel()


async def test_nothing_is_dropped_where_callers_wait(virtual_clock, account):
    """A retried task and a waiter with a reservation in one turn are both kept."""
    event = asyncio.Event()

    async def fail_once():
        if not event.is_set():
            await event.wait()
            raise RetryLater(after=5)

    async with RateLimitedExecutor("x", max_pending=10, key_max_pending=1, when_full=WhenFull.WAIT) as executor:
        retried = executor.submit(fail_once, key="a")
        retried.add_done_callback(seen)
        await asyncio.sleep(0.1)
        executor.schedule(event.set, delay=1, key="a")
        await asyncio.create_task(executor.schedule_wait(int, delay=30, key="a"))
        account(executor)
        assert 0 == executor.statistics().dropped
        assert TaskState.DROPPED is not retried.state


@pytest.mark.parametrize("how", ["aclose", "cut", "error"])
async def test_waiters_hear_that_the_executor_closes(virtual_clock, how):
    """Waiters fail at once when the executor closes, in ``schedule_wait`` and ``permit``."""
    waiting = []

    async def hold(executor):
        async with executor.permit():
            pass

    try:
        async with RateLimitedExecutor(
            "x", rate=1, max_pending=1, when_full=WhenFull.WAIT, drain_timeout=3
        ) as executor:
            executor.submit(int)
            await asyncio.sleep(0.1)
            executor.submit(int)
            waiting = [
                asyncio.create_task(executor.schedule_wait(int)),
                asyncio.create_task(hold(executor)),
                asyncio.create_task(executor.acquire()),
            ]
            await turns()
            if how == "cut":
                executor.shutdown(cancel_pending=True)
            elif how == "error":
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [ExecutorStoppedError] * 3 == [type(result) for result in results]
    assert 0 == executor.statistics().waiters
    with pytest.raises(ExecutorStoppedError):
        await executor.schedule_wait(int)


async def test_permits_wait_for_room_like_tasks(virtual_clock, account):
    """``async with permit()``, ``acquire`` and a limited function wait in the same queue."""
    got = []
    async with RateLimitedExecutor("x", rate=10, max_pending=1, when_full=WhenFull.WAIT) as executor:

        @executor.limited
        async def work(number):
            got.append(number)

        async def hold(number):
            async with executor.permit():
                got.append(number)

        async def acquire(number):
            await executor.acquire()
            got.append(number)

        tasks = [asyncio.create_task((work, hold, acquire)[number % 3](number)) for number in range(12)]
        for _ in range(13):
            await asyncio.sleep(0.1)
            account(executor)
            assert executor.statistics().waiting <= 1
        await asyncio.gather(*tasks)
    assert list(range(12)) == got


@pytest.mark.parametrize("when_full", [WhenFull.RAISE, WhenFull.DROP_LOWEST, WhenFull.DROP_OLDEST])
async def test_waiting_for_room_is_scheduling_where_nobody_waits(virtual_clock, when_full):
    """Under another policy ``schedule_wait`` does what ``schedule`` does, at once."""
    async with RateLimitedExecutor("x", rate=0, max_pending=1, when_full=when_full, drain_timeout=0) as executor:
        first = await executor.schedule_wait(int)
        first.add_done_callback(seen)
        if when_full is WhenFull.RAISE:
            with pytest.raises(BacklogFullError):
                await executor.schedule_wait(int)
        else:
            (await executor.schedule_wait(int, priority=1)).add_done_callback(seen)
            assert TaskState.DROPPED is first.state


async def test_nothing_is_lost_by_waiting(virtual_clock, account):
    """With a hundred producers, some giving up at random, each scheduled task runs once."""
    rng = random.Random(11)
    done, scheduled, given_up = [], [], []
    async with RateLimitedExecutor(
        "x", rate=100, max_pending=10, key_max_pending=4, when_full=WhenFull.WAIT, key_concurrency=3
    ) as executor:

        async def producer(number):
            for step in range(5):
                item = (number, step)
                try:
                    await executor.schedule_wait(done.append, item, key=number % 7 or None)
                except asyncio.CancelledError:
                    given_up.append(item)
                    return
                scheduled.append(item)
                await asyncio.sleep(rng.choice([0, 0.01]))

        tasks = [asyncio.create_task(producer(number)) for number in range(100)]
        for _ in range(60):
            await asyncio.sleep(0.05)
            rng.choice(tasks).cancel()
            account(executor)
            assert executor.statistics().waiting <= 10
        await asyncio.gather(*tasks, return_exceptions=True)
        assert 0 == executor.statistics().waiters
        assert 0 == executor._parts.backlog.room._promised_count
    assert sorted(scheduled) == sorted(done)
    assert len(done) == len(set(done))
    assert given_up
