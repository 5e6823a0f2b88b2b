"""Expiry: from the due time to the start, and nowhere else (F23, F32)."""

import asyncio

import pytest

from ratelimited_executor import ExecutorManager, RateLimitedExecutor, TaskExpiredError, TaskState


@pytest.mark.parametrize("expires", [0.05, 0.5, 1, 1.5])
@pytest.mark.parametrize("interval", [0.01, 1, 5])
async def test_task_that_is_not_late_does_not_expire(virtual_clock, starts, expires, interval) -> None:
    """F23: the timeout was measured to the end of the interval: below one interval it ended tasks never late."""
    async with ExecutorManager(interval=interval) as manager:
        executor = manager.executor("one")
        handles = [executor.schedule(starts, delay=number / 10, expires=expires) for number in range(100)]
        await asyncio.sleep(20)

    assert {TaskState.DONE} == {handle.state for handle in handles}
    assert max(handle.lateness for handle in handles) <= expires


async def test_task_does_not_expire_before_its_deadline(virtual_clock, starts) -> None:
    """F23: the future failed up to three intervals before the deadline had come."""
    async with RateLimitedExecutor("one", rate=0) as executor:
        handles = [executor.schedule(starts, delay=number / 7, expires=1.5) for number in range(30)]
        ended: dict[int, float] = {}
        for number, handle in enumerate(handles):
            handle.add_done_callback(lambda _, number=number: ended.setdefault(number, virtual_clock.monotonic()))
        await asyncio.sleep(10)

    for number, handle in enumerate(handles):
        deadline = number / 7 + 1.5
        assert deadline <= ended[number] <= deadline + 1.000001
        assert isinstance(handle.exception(), TaskExpiredError)


async def test_task_does_not_start_after_its_deadline(virtual_clock, starts) -> None:
    """F23: a task that had been handed over, or lay in the worker pool's queue, was never timed out."""
    async with RateLimitedExecutor("one", rate=10, max_concurrency=1) as executor:

        async def work() -> None:
            starts()
            await asyncio.sleep(0.7)

        handles = [executor.submit(work, expires=2) for _ in range(10)]
        await asyncio.sleep(10)

    assert max(starts.times) <= 2
    assert [TaskState.DONE] * 3 + [TaskState.EXPIRED] * 7 == [handle.state for handle in handles]


async def test_expired_task_does_not_use_a_permit(virtual_clock, starts) -> None:
    """F23: of an overflow, half of which expires, the other half gets all permits."""
    async with RateLimitedExecutor("one", rate=10) as executor:
        expiring = [executor.submit(starts, "expiring", expires=0.25, priority=1) for _ in range(100)]
        for _ in range(20):
            executor.submit(starts, "lasting")
        await asyncio.sleep(3.5)

    assert 97 == sum(handle.state is TaskState.EXPIRED for handle in expiring)
    assert [pytest.approx(number / 10, abs=1e-6) for number in range(23)] == starts.times
    assert ["expiring"] * 3 + ["lasting"] * 20 == starts.names


async def test_callback_of_an_expired_task_does_not_block_the_executor(virtual_clock, starts) -> None:
    """F32: such a callback ran on the timer thread under both locks: it could block or deadlock the scheduler."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with RateLimitedExecutor("one", rate=100) as executor:
        executor.pause()
        others = [executor.schedule(starts, "other", delay=5) for _ in range(2)]
        expiring = [executor.submit(starts, "expired", expires=0.5) for _ in range(3)]

        def call_back(handle) -> None:
            assert [handle.state for handle in expiring] == [TaskState.EXPIRED] * 3, "the others had not expired yet"
            others[0].cancel()
            executor.submit(starts, "from the callback")
            executor.rate = 50
            executor.resume()
            raise RuntimeError("and it raises")

        for handle in expiring:
            handle.add_done_callback(call_back)
        await asyncio.sleep(10)

    assert ["from the callback"] * 3 + ["other"] == starts.names


async def test_blocking_task_does_not_run_on_the_timer(virtual_clock, starts) -> None:
    """F32: blocking work shared four threads with ticks and dispatch loops; here it has worker threads of its own."""
    import threading

    loop_thread = threading.get_ident()
    async with RateLimitedExecutor("one") as executor:
        idents = [await executor.submit(threading.get_ident, in_thread=True) for _ in range(3)]

    assert loop_thread not in idents
