"""The futures face: a ``concurrent.futures.Executor`` in worker threads, each start on a permit."""

import asyncio
import concurrent.futures
import threading
import time

import pytest

from ratelimited_executor import RateLimitedExecutor

pytestmark = pytest.mark.real_time("worker threads wait for the loop, as users' threads do")


async def test_calls_run_in_threads_and_do_not_block_the_loop():
    """Calls of ``run_in_executor`` run in threads, and keyword arguments go to the function."""
    async with RateLimitedExecutor("x") as executor:
        face = executor.as_futures_executor()
        loop = asyncio.get_running_loop()
        ident = await loop.run_in_executor(face, threading.get_ident)
        assert ident != threading.get_ident()
        future = face.submit(int, "ff", base=16)
        assert isinstance(future, concurrent.futures.Future)
        assert 255 == await asyncio.wrap_future(future)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(face, lambda: 1 / 0)


async def test_max_workers_bounds_the_threads():
    """At most ``max_workers`` threads run at a time."""
    running, peak, lock = 0, 0, threading.Lock()

    def work():
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    async with RateLimitedExecutor("x") as executor:
        face = executor.as_futures_executor(max_workers=2)
        await asyncio.gather(*(asyncio.wrap_future(face.submit(work)) for _ in range(6)))
    assert peak <= 2


async def test_cancelled_future_cancels_its_task():
    """A waiting future can be cancelled, a running one cannot."""
    release = threading.Event()
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        face = executor.as_futures_executor()
        running, waiting = face.submit(release.wait), face.submit(int)
        while not running.running():
            await asyncio.sleep(0.001)
        assert waiting.cancel()
        assert not running.cancel()
        release.set()
        assert await asyncio.wrap_future(running)
        await asyncio.sleep(0)
        assert (1, 1) == (executor.statistics().done, executor.statistics().cancelled)
