"""The futures face: a ``concurrent.futures.Executor`` in worker threads, each start on a permit."""

import asyncio
import concurrent.futures
import threading
import time

import pytest

from ratelimited_executor import ExecutorStoppedError, RateLimitedExecutor

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


async def test_each_start_takes_a_permit():
    """The executor's rate holds for the face."""
    starts = []
    async with RateLimitedExecutor("x", rate=50) as executor:
        face = executor.as_futures_executor()
        futures = [face.submit(lambda: starts.append(time.monotonic())) for _ in range(6)]
        await asyncio.gather(*map(asyncio.wrap_future, futures))
        assert 6 == executor.statistics().started
        assert 6 == executor.statistics().done


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


async def test_other_threads_use_it_as_any_executor():
    """A thread can use ``submit``, ``map``, ``result`` and ``with``."""
    async with RateLimitedExecutor("x") as executor:
        face = executor.as_futures_executor()

        def use():
            with face:
                results = list(face.map(pow, [2, 3], [3, 2]))
                future = face.submit(lambda: "done")
                assert "done" == future.result(timeout=10)
                done, _ = concurrent.futures.wait([face.submit(int), face.submit(str)], timeout=10)
                return results, len(done)

        assert ([8, 9], 2) == await asyncio.to_thread(use)
        with pytest.raises(ExecutorStoppedError):
            face.submit(int)
        assert 0 == await executor.submit(int), "the executor goes on"


async def test_blocking_the_loops_own_thread_is_refused():
    """``result()`` and ``shutdown(wait=True)`` raise in the loop's thread, where they would deadlock."""
    async with RateLimitedExecutor("x") as executor:
        face = executor.as_futures_executor()
        future = face.submit(int)
        for call in (future.result, future.exception, face.shutdown):
            with pytest.raises(RuntimeError, match="would wait for itself"):
                call()
        await asyncio.wrap_future(future)
        assert 0 == future.result()
        face.shutdown()


async def test_shutdown_ends_the_face_and_cancels_where_asked():
    """``shutdown`` cancels waiting calls if asked, their waiters are notified, and the executor lives."""
    async with RateLimitedExecutor("x", rate=1) as executor:
        face = executor.as_futures_executor()

        def use():
            futures = [face.submit(int) for _ in range(3)]
            face.shutdown(wait=True, cancel_futures=True)
            done, unfinished = concurrent.futures.wait(futures, timeout=5)
            return [future.cancelled() for future in futures], len(unfinished)

        cancelled, unfinished = await asyncio.wait_for(asyncio.to_thread(use), 20)
        assert 0 == unfinished
        assert cancelled[1:] == [True, True]
        executor.rate = float("inf")
        assert 0 == await executor.submit(int)


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


async def test_closed_executor_ends_the_futures():
    """A cut cancels the futures of its tasks, and later submissions are refused."""
    async with RateLimitedExecutor("x", rate=0, drain_timeout=0) as executor:
        face = executor.as_futures_executor()
        future = face.submit(int)
        await executor.aclose()
        await asyncio.sleep(0)
        assert future.cancelled()
        late = face.submit(int)
        with pytest.raises(ExecutorStoppedError):
            await asyncio.wrap_future(late)
