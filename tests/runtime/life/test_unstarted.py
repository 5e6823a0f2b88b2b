"""Unstarted tasks of a closed executor are returned by the closing call, and not kept otherwise."""

import asyncio
import gc
import sys
import tracemalloc
import weakref

import pytest

from ratelimited_executor import RateLimitedExecutor, RetryLater, TaskState
from ratelimited_executor.exceptions import WrongLoopError

EPOCH = 1704067200  # where the virtual wall clock begins


def work(*_: object) -> None:
    """Do nothing."""


def numbers(tasks) -> list[int]:
    assert {work} <= {task.fn for task in tasks if task.args}
    return sorted(task.args[0] for task in tasks if task.args)


def fill(executor, seconds: float) -> None:
    """Let tasks of each kind wait for at least ``seconds``."""
    executor.schedule(work, 1, delay=seconds, priority=3, key="a", name="named", cost=2)
    executor.call_later(seconds, work, 2)
    executor.schedule(work, 3, at=EPOCH + seconds)
    executor.schedule_many(work, [4, 5], delay=seconds)
    executor.schedule_many(work, range(6, 9), over=1e6)
    executor.schedule_many(work, [9], at=EPOCH + seconds)
    executor.schedule_at_fixed_rate(work, 10, period=seconds, initial_delay=seconds)


@pytest.mark.parametrize("how", ["drain_timeout", "timeout", "cancel_pending", "aclose", "paused"])
async def test_what_was_cut_is_returned(virtual_clock, account, how):
    """However it is cut, closing returns every waiting task once, without those that have run and those that repeat."""
    async with RateLimitedExecutor("x", drain_timeout=5 if how in ("drain_timeout", "aclose") else None) as executor:
        fill(executor, 100)
        soon = executor.submit(int, 5)
        await soon
        await asyncio.sleep(0.5)
        if how == "paused":
            executor.pause()
        if how == "aclose":
            unstarted = await executor.aclose()
        else:
            options = {"timeout": {"timeout": 3}, "cancel_pending": {"cancel_pending": True}}.get(how, {})
            unstarted = await executor.shutdown(**options)
        account(executor)
    assert [1, 2, 3, 4, 5, 7, 8, 9] == numbers(unstarted)
    assert 8 == len(unstarted) == executor.statistics().cancelled - 1
    assert numbers(unstarted) == numbers(unstarted)
    assert "<Unstarted 8 task(s)>" == repr(unstarted)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
async def test_what_was_cut_is_returned_where_tasks_are_eager(virtual_clock):
    """Closing a paused executor cuts at once, within the making of its task."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    async with RateLimitedExecutor("x") as executor:
        executor.pause()
        for number in range(5):
            executor.schedule(work, number, delay=1)
        assert [0, 1, 2, 3, 4] == numbers(await executor.shutdown())


async def test_drain_that_runs_everything_returns_nothing(virtual_clock):
    """A drain that runs everything returns an empty collection, which is false."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(int, "7", delay=9)
        unstarted = await executor.shutdown()
    assert (7, 0, [], False) == (handle.result(), len(unstarted), list(unstarted), bool(unstarted))


async def test_view_tells_what_is_needed_to_schedule_it_again(virtual_clock):
    """Views of unstarted tasks have what scheduling them again needs: due time, name, priority, key, cost."""
    async with RateLimitedExecutor("x") as executor:
        fill(executor, 100)
        unstarted = await executor.shutdown(cancel_pending=True)
    views = {task.args[0]: task for task in unstarted}
    assert [EPOCH + 100] * 5 == [views[number].due for number in (1, 2, 3, 4, 9)]
    one = views[1]
    assert ("named", 3, "a", 2) == (one.name, one.priority, one.key, one.cost)
    assert ("work[1]", "work") == (views[5].name, views[2].name)
    assert one in unstarted
    assert "x" not in unstarted


async def test_waiters_and_attempts_are_among_them(virtual_clock):
    """Unstarted tasks include waiters for permits, without a callable, and tasks that wait for a retry."""

    def fails(number):
        raise RetryLater(1000)

    async with RateLimitedExecutor("x", rate="1/1000s") as executor:
        executor.submit(fails, 1)
        waiter = asyncio.ensure_future(executor.acquire(name="mine"))
        future = executor.as_futures_executor().submit(work, 2)
        await asyncio.sleep(1)
        unstarted = await executor.shutdown(cancel_pending=True)
        await asyncio.wait([waiter])
    assert {(fails, (1,)), (None, ()), (work, (2,))} == {(task.fn, task.args) for task in unstarted}
    assert (True, True) == (waiter.cancelled(), future.cancelled())


async def test_without_waiting_it_is_complete_when_the_executor_is_closed(virtual_clock):
    """With ``wait=False`` the collection is complete once the executor has terminated."""
    async with RateLimitedExecutor("x") as executor:
        fill(executor, 100)
        unstarted = await executor.shutdown(wait=False, cancel_pending=True)
        await executor.await_termination()
        assert 9 == len(unstarted)
        assert 0 == len(await executor.shutdown())


async def test_all_who_ask_before_the_end_get_all(virtual_clock):
    """Every call that closes returns all unstarted tasks, also one that joins a drain that has already begun."""
    async with RateLimitedExecutor("x", drain_timeout=5) as executor:
        fill(executor, 100)
        executor.shutdown()
        await asyncio.sleep(2)
        first, second = await asyncio.gather(executor.shutdown(), executor.aclose())
    assert 8 == len(first) == len(second)


async def test_executor_that_never_started_has_nothing(virtual_clock):
    """Closing an executor that never started returns an empty collection."""
    executor = RateLimitedExecutor("x")
    assert 0 == len(await executor.shutdown())
    assert 0 == len(await executor.aclose())


async def test_nothing_is_kept_for_nobody(virtual_clock):
    """Arguments are freed with the cut if nobody asked for them, and with the returned collection otherwise."""

    class Argument:
        """An object that can be weakly referenced."""

    argument = Argument()
    watch = weakref.ref(argument)
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        executor.schedule(work, argument, delay=100)
        executor.call_later(100, work, argument)
        executor.schedule_many(work, [argument], delay=100)
        del argument
    gc.collect()
    assert watch() is None
    argument = Argument()
    watch = weakref.ref(argument)
    async with RateLimitedExecutor("x") as executor:
        executor.schedule(work, argument, delay=100)
        del argument
        unstarted = await executor.shutdown(cancel_pending=True)
    assert watch() is not None
    del unstarted
    gc.collect()
    assert watch() is None


async def test_batch_is_kept_as_one_thing(virtual_clock):
    """A cut batch of a million items is kept as one object, and lists its unstarted items."""
    async with RateLimitedExecutor("x") as executor:
        batch = executor.schedule_many(work, range(1_000_000), over=1000)
        await asyncio.sleep(10)
        tracemalloc.start()
        try:
            unstarted = await executor.shutdown(cancel_pending=True)
            size = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert batch.summary.cancelled == len(unstarted) == 1_000_000 - batch.summary.done
    assert size < 100_000
    assert batch.summary.done == next(iter(unstarted)).args[0]


async def test_refused_shutdown_keeps_nothing(virtual_clock):
    """A shutdown refused in another thread changes nothing, and collects nothing."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        handle = executor.schedule(work, delay=5)
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(executor.shutdown)
        assert (False, None) == (executor.is_shutdown, executor._closing._unstarted)
        assert TaskState.WAITING is handle.state
