"""Leaving, draining and closing: nothing hangs, nothing is lost without a word."""

import asyncio
import gc
import logging
import warnings

import pytest

from ratelimited_executor import ExecutorManager, RateLimitedExecutor, TaskState
from ratelimited_executor.testing import VirtualEventLoop


def now() -> float:
    return asyncio.get_running_loop().time()


def warned(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_leaving_runs_what_was_accepted_at_its_due_times(virtual_clock, caplog):
    """Normal leaving waits for the due times and for running coroutines, without a warning."""
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(now, delay=3.25), executor.schedule(asyncio.sleep, 2, "slept", delay=7)]
        executor.call_later(1, int)
    assert 3.25 <= handles[0].result() < 4
    assert "slept" == handles[1].result()
    assert (True, True) == (executor.is_shutdown, executor.is_terminated)
    assert [] == warned(caplog)


async def test_leaving_stops_repeating_tasks(virtual_clock):
    """A repeating task does not hold the leaving; its run in progress ends."""
    runs = []

    async def run():
        await asyncio.sleep(3)
        runs.append(now())

    async with RateLimitedExecutor("x") as executor:
        every = executor.schedule_at_fixed_rate(run, period=5)
        await asyncio.sleep(6)
    assert [3, 8] == runs
    assert 8 == virtual_clock.monotonic()
    assert every.cancelled()


async def test_drain_timeout_cancels_the_rest_with_one_warning(virtual_clock, caplog):
    """A task due in an hour does not hold the leaving longer than ``drain_timeout``, and is counted in one warning."""
    async with RateLimitedExecutor("x", drain_timeout=5) as executor:
        waiting = [executor.schedule(int, delay=3600) for _ in range(3)]
        running = executor.submit(asyncio.sleep, 100)
        done = executor.schedule(int, delay=4)
    assert 5 == virtual_clock.monotonic()
    assert {TaskState.CANCELLED} == {handle.state for handle in [*waiting, running]}
    assert TaskState.DONE is done.state
    assert ["x: closed with 3 waiting and 1 running task(s) cancelled"] == warned(caplog)


@pytest.mark.parametrize("how", ["rate 0", "paused", "no place"])
async def test_leaving_does_not_wait_for_what_cannot_progress(virtual_clock, caplog, how):
    """At rate 0, paused or without places, the rest is cancelled at once, with one warning that counts it."""
    async with RateLimitedExecutor("x") as executor:
        if how == "rate 0":
            executor.rate = 0
        elif how == "paused":
            executor.pause()
        else:
            executor.max_concurrency = 0
        handles = [
            executor.submit(int),
            executor.schedule(int, delay=60),
            executor.schedule(int, at=virtual_clock.wall() + 9),
        ]
        batch = executor.schedule_many(int, range(7), over=5)
    assert 0 == virtual_clock.monotonic()
    assert all(handle.cancelled() for handle in handles)
    assert 7 == batch.summary.cancelled
    assert ["x: closed with 10 waiting and 0 running task(s) cancelled"] == warned(caplog)


async def test_leaving_paused_lets_the_running_finish(virtual_clock):
    """Something that runs may resume the executor: the drain waits for it."""
    async with RateLimitedExecutor("x") as executor:

        async def resume():
            await asyncio.sleep(2)
            executor.resume()

        executor.submit(resume)
        await asyncio.sleep(0.5)
        executor.pause()
        handle = executor.submit(int)
    assert TaskState.DONE is handle.state


async def test_leaving_by_an_exception_cancels_what_waits_and_runs(virtual_clock):
    """Running coroutines are cancelled and awaited; the exception goes on."""
    log = []

    async def run():
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            log.append(now())

    with pytest.raises(ValueError, match="mine"):
        async with RateLimitedExecutor("x") as executor:
            running, waiting = executor.submit(run), executor.schedule(int, delay=5)
            await asyncio.sleep(2)
            raise ValueError("mine")
    assert [3] == log
    assert (TaskState.CANCELLED, TaskState.CANCELLED) == (running.state, waiting.state)
    assert executor.is_terminated


async def test_cancelled_while_draining_cuts_the_drain(virtual_clock):
    """A cancelled scope around ``async with`` ends at once, with everything cancelled and awaited."""
    log = []

    async def run():
        try:
            await asyncio.sleep(100)
        finally:
            log.append(now())

    async def main():
        async with RateLimitedExecutor("x") as executor:
            log.append(executor)
            executor.submit(run)
            executor.schedule(int, delay=3600)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(4):
            await main()
    executor, ended = log
    assert 4 == ended == virtual_clock.monotonic()
    assert executor.is_terminated
    assert 2 == executor.statistics().cancelled


async def test_cancelled_inside_cuts_too(virtual_clock):
    """A cancellation in the body is leaving by an exception."""

    async def main():
        async with RateLimitedExecutor("x") as executor:
            handles.append(executor.schedule(int, delay=3600))
            await asyncio.sleep(100)

    handles = []
    task = asyncio.ensure_future(main())
    await asyncio.sleep(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert handles[0].cancelled()
    assert 3 == virtual_clock.monotonic()


async def test_shutdown_twice_and_from_two_tasks_is_one_shutdown(virtual_clock, caplog):
    """Whoever waits sees the same end; nothing is cancelled twice."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(int, delay=3)
        first = executor.shutdown()
        second = executor.shutdown(wait=True)
        closing = [asyncio.ensure_future(executor.aclose()) for _ in range(2)]
        assert executor.is_shutdown
        assert not executor.is_terminated
        await first
        assert 3 <= now() < 4
        await second
        await asyncio.gather(*closing)
        await executor.aclose()
        assert executor.is_terminated
    assert TaskState.DONE is handle.state
    assert [] == warned(caplog)


async def test_one_of_two_waiters_may_be_cancelled_and_cuts(virtual_clock):
    """To be cancelled while closing cuts the drain, and the other waiter sees its end."""
    async with RateLimitedExecutor("x") as executor:
        executor.schedule(int, delay=3600)
        one, other = (asyncio.ensure_future(executor.aclose()) for _ in range(2))
        await asyncio.sleep(1)
        one.cancel()
        await asyncio.wait([one, other])
        assert one.cancelled()
        assert 1 == len(other.result())
        assert 1 == now()


async def test_second_shutdown_may_shorten_the_first(virtual_clock):
    """A timeout given later counts from then."""
    async with RateLimitedExecutor("x") as executor:
        executor.schedule(int, delay=3600)
        executor.shutdown()
        await asyncio.sleep(2)
        await executor.shutdown(timeout=3)
        assert 5 == now()


async def test_shutdown_can_cancel_what_is_pending(virtual_clock):
    """``cancel_pending=True`` ends at once."""
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(int, delay=60), executor.submit(asyncio.sleep, 60)]
        await asyncio.sleep(0)
        await executor.shutdown(cancel_pending=True)
        assert all(handle.cancelled() for handle in handles)
        assert 0 == now()


async def test_shutdown_need_not_be_awaited(virtual_clock):
    """Called alone, it begins to close, without warnings about what was not awaited."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with RateLimitedExecutor("x") as executor:
            executor.schedule(int, delay=2)
            executor.shutdown(wait=False)
            gc.collect()
            await executor.shutdown(wait=False)
            assert 0 == now()
            assert await executor.await_termination(10)
            assert 2 == int(now())


async def test_await_termination_tells_whether_it_came(virtual_clock):
    """It waits for somebody else's closing, for so long at most."""
    async with RateLimitedExecutor("x") as executor:
        executor.schedule(int, delay=5)
        assert not await executor.await_termination(timeout=2)
        asyncio.get_running_loop().call_later(1, executor.shutdown)
        assert await executor.await_termination()
        assert 5 <= now() < 6
        assert await executor.await_termination(timeout=0)


async def test_a_task_may_shut_its_executor_down(virtual_clock):
    """From inside, shutdown begins; waiting for one's own end is refused."""
    async with RateLimitedExecutor("x") as executor:

        async def last():
            executor.shutdown()
            with pytest.raises(RuntimeError, match="it would wait for itself"):
                await executor.aclose()
            return "last"

        handle = executor.submit(last)
        assert "last" == await handle
        assert await executor.await_termination(1)


async def test_a_coroutine_that_swallows_its_cancellation_holds_nobody(virtual_clock, caplog):
    """Closing gives up on it after a while, and names it."""
    stop = asyncio.Event()

    async def stubborn():
        while not stop.is_set():
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass

    with pytest.raises(ValueError):
        async with RateLimitedExecutor("x") as executor:
            handle = executor.submit(stubborn)
            await asyncio.sleep(1)
            raise ValueError
    assert now() <= 10
    assert any("went on after their cancellation" in message for message in warned(caplog))
    stop.set()
    handle.cancel()
    await handle


async def test_leaving_a_manager_leaves_its_executors(virtual_clock):
    """Every executor drains, side by side, by its own ``drain_timeout``."""
    async with ExecutorManager() as manager:
        first, second = manager.executor("first", drain_timeout=2), manager.executor("second")
        hour, five = first.schedule(int, delay=3600), second.schedule(int, delay=5)
    assert (TaskState.CANCELLED, TaskState.DONE) == (hour.state, five.state)
    assert 5 == int(now())
    with pytest.raises(ValueError):
        async with ExecutorManager() as manager:
            handle = manager.executor("x").schedule(int, delay=5)
            raise ValueError
    assert handle.cancelled()


async def test_executor_of_a_manager_may_be_left_alone(virtual_clock):
    """Its end is not the manager's."""
    async with ExecutorManager() as manager:
        async with manager.executor("one") as one:
            one.schedule(int, delay=1)
        assert one.is_terminated
        assert 0 == await manager.executor("two").submit(int)


def test_a_loop_closed_under_us_is_survived():
    """A loop that ends without leaving the executor gives no error, and handles can still be looked at."""
    loop = VirtualEventLoop()
    box = []

    async def main():
        executor = RateLimitedExecutor("x", rate=1)
        await executor.start()
        box.append(executor)
        box.append([executor.schedule(int, delay=delay) for delay in (0, 1, 100)])
        box.append(executor.call_later(5, int))
        await asyncio.sleep(2)

    loop.run_until_complete(main())
    loop.close()
    executor, handles, call = box
    assert [True, True, False] == [handle.done() for handle in handles]
    assert 4 == executor.statistics().accepted
    call.cancel()
    repr(executor), repr(handles[2])
    handles[2].cancel()
    del executor, handles, call
    box.clear()
    gc.collect()


def test_asyncio_run_that_is_interrupted_ends(virtual_loop):
    """What ``asyncio.run`` does at its end, cancelling every task, closes the executor too."""
    seen = []

    async def main():
        executor = RateLimitedExecutor("x")
        seen.append(executor)
        async with executor:
            executor.submit(asyncio.sleep, 1000)
            executor.schedule(int, delay=1000)
            await asyncio.sleep(1000)

    task = virtual_loop.create_task(main())
    virtual_loop.run_until_complete(asyncio.sleep(1))
    for each in asyncio.all_tasks(virtual_loop):
        each.cancel()
    virtual_loop.run_until_complete(asyncio.wait([task]))
    assert task.cancelled()
    assert seen[0].is_terminated
    assert 2 == seen[0].statistics().cancelled


async def test_lazy_batch_is_drawn_to_its_end_when_left(virtual_clock):
    """Items of an accepted batch are drawn and run while draining; with ``drain_timeout`` no longer than that."""

    async def draw():
        number = 0
        while True:
            await asyncio.sleep(1)
            yield number
            number += 1

    async with RateLimitedExecutor("x", drain_timeout=5.5) as executor:
        batch = executor.schedule_many(int, draw())
        finite = executor.schedule_many(int, iter(range(5000)))
    assert 5.5 == now()
    assert batch.done()
    assert (5000, 5) == (finite.summary.done, batch.summary.done)


async def test_closing_in_the_middle_of_everything_accounts_for_all(virtual_clock, account):
    """With tasks of all kinds in all states, cutting short leaves none out."""
    async with RateLimitedExecutor("x", rate=50, max_concurrency=5) as executor:
        handles = [executor.schedule(asyncio.sleep, 1, delay=index / 10) for index in range(50)]
        executor.schedule_many(int, range(100), over=10)
        executor.schedule_many(asyncio.sleep, [1.0] * 100, delays=[index / 7 for index in range(100)])
        lazy = executor.schedule_many(int, iter(range(3000)))
        executor.schedule_at_fixed_rate(asyncio.sleep, 0.3, period=0.5)
        executor.schedule(int, at=virtual_clock.wall() + 3)

        async def hold():
            async with executor.permit():
                await asyncio.sleep(100)

        holders = [asyncio.ensure_future(hold()) for _ in range(3)]
        await asyncio.sleep(2.7)
        account(executor)
        executor.shutdown(cancel_pending=True)
        await asyncio.sleep(0)
        for holder in holders:
            holder.cancel()
        await executor.aclose()
        account(executor)
        assert (0, 0) == (executor.statistics().waiting, executor.statistics().running)
        assert all(handle.done() for handle in handles)
        assert lazy.done()
