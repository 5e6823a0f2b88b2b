"""``call_threadsafe``: every method of the executor from other threads, with a future of its outcome."""

import asyncio
import concurrent.futures
import contextvars
import gc
import threading

import pytest

from ratelimited_executor import (
    BacklogFullError,
    BatchSummary,
    ExecutorStoppedError,
    OnError,
    RateLimitedExecutor,
)
from ratelimited_executor.exceptions import ExecutorNotStartedError
from ratelimited_executor.insight import Statistics

from ...helpers import now

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="nobody's")


async def from_thread(call, *args):
    """Make a call in a new thread, and return its result."""
    return await asyncio.get_running_loop().run_in_executor(None, call, *args)


async def test_bulk_from_a_thread_gives_its_summary(virtual_loop, account):
    """Tasks of a batch run on the loop at their times, and the thread gets the summary."""
    starts, threads = [], set()

    def work(number):
        threads.add(threading.get_ident())
        starts.append((number, now()))

    async with RateLimitedExecutor("x", rate=10) as executor:

        def in_thread():
            future = executor.call_threadsafe(executor.schedule_many, work, range(5), delay=2, name="bulk")
            return virtual_loop.result_in_thread(future)

        summary = await from_thread(in_thread)
        account(executor)
    assert BatchSummary(total=5, done=5, failed=0, cancelled=0, expired=0, dropped=0) == summary
    assert ([0, 1, 2, 3, 4], {threading.get_ident()}) == ([number for number, _ in starts], threads)
    assert all(2 <= time <= 3 for _, time in starts)


async def test_items_of_an_iterator_are_drawn_on_the_loop(virtual_clock):
    """Items are drawn on the loop: a generator that is not thread-safe needs no lock."""
    drawn = set()

    def items():
        for number in range(3):
            drawn.add(threading.get_ident())
            yield number

    async with RateLimitedExecutor("x") as executor:
        future = await from_thread(executor.call_threadsafe, executor.schedule_many, int, items())
        assert 3 == (await asyncio.wrap_future(future)).done
    assert {threading.get_ident()} == drawn


async def test_cancelling_the_future_cancels_what_waits_of_a_batch(virtual_clock, account):
    """Cancelling the future cancels the waiting tasks of its batch, and the accounting closes."""
    done = []
    async with RateLimitedExecutor("x") as executor:
        future = await from_thread(
            lambda: executor.call_threadsafe(executor.schedule_many, done.append, range(9), over=9)
        )
        await asyncio.sleep(3.5)
        assert await from_thread(future.cancel)
        await asyncio.sleep(1)
        account(executor)
        assert (0, 9 - len(done)) == (executor.statistics().waiting, executor.statistics().cancelled)
    assert [0, 1, 2, 3] == done


@pytest.mark.parametrize("kind", ["schedule_at_fixed_rate", "schedule_with_fixed_delay", "schedule_cron"])
async def test_repeating_task_from_a_thread(virtual_clock, kind):
    """The future ends with the last run; cancelling it ends the repetition."""
    runs = []

    def run():
        runs.append(now())

    async with RateLimitedExecutor("x") as executor:

        def repeat(**options):
            if kind == "schedule_cron":
                return executor.call_threadsafe(executor.schedule_cron, "* * * * *", run, **options)
            step = {"period" if "rate" in kind else "delay": 60, "initial_delay": 60}
            return executor.call_threadsafe(getattr(executor, kind), run, **step, **options)

        future = await from_thread(lambda: repeat(max_runs=2))
        assert None is await asyncio.wrap_future(future)
        assert 2 == len(runs)
        future = await from_thread(repeat)
        await asyncio.sleep(90)
        assert await from_thread(future.cancel)
        gc.collect()
        await asyncio.sleep(600)
        assert 3 == len(runs)
        assert 0 == executor.statistics().waiting


async def test_failure_of_a_run_is_that_of_the_future(virtual_clock):
    """With ``OnError.STOP`` the future ends with the exception of the run."""
    async with RateLimitedExecutor("x") as executor:
        future = await from_thread(
            lambda: executor.call_threadsafe(
                executor.schedule_at_fixed_rate, lambda: 1 / 0, period=1, on_error=OnError.STOP
            )
        )
        with pytest.raises(ZeroDivisionError):
            await asyncio.wrap_future(future)


async def test_closing_cancels_what_a_thread_waits_for(virtual_clock):
    """Closing ends every future: a batch with its summary, the others as cancelled."""
    async with RateLimitedExecutor("x", drain_timeout=1) as executor:
        futures = [
            executor.call_threadsafe(executor.schedule_many, int, range(3), delay=100),
            executor.call_threadsafe(executor.schedule_at_fixed_rate, int, period=10),
            executor.call_threadsafe(executor.schedule, int, delay=100),
        ]
        await asyncio.sleep(0.5)
        gc.collect()
    await asyncio.sleep(0)
    assert 3 == futures[0].result().cancelled
    assert [True, True] == [future.cancelled() for future in futures[1:]]


async def test_every_other_method(virtual_clock):
    """Every other method returns its result through the future, awaited if it is awaitable."""
    async with RateLimitedExecutor("x", rate=5) as executor:
        future = await from_thread(executor.call_threadsafe, executor.statistics)
        assert isinstance(await asyncio.wrap_future(future), Statistics)
        await asyncio.wrap_future(await from_thread(executor.call_threadsafe, executor.pause))
        assert executor.is_paused
        await asyncio.wrap_future(await from_thread(executor.call_threadsafe, setattr, executor, "rate", 7))
        assert 7 == float(executor.rate)
        executor.resume()
        future = await from_thread(executor.call_threadsafe, executor.invoke_any, [lambda: "first"])
        assert "first" == await asyncio.wrap_future(future)
        future = await from_thread(lambda: executor.call_threadsafe(executor.submit, int, "11", name="task"))
        assert 11 == await asyncio.wrap_future(future)
        future = await from_thread(executor.call_threadsafe, executor.acquire)
        assert None is await asyncio.wrap_future(future)


async def test_context_is_that_of_the_thread(virtual_clock):
    """Tasks see the context variables of the calling thread, as with ``call_soon_threadsafe``."""
    seen = []
    async with RateLimitedExecutor("x") as executor:

        def in_thread():
            var.set("the thread's")
            return executor.call_threadsafe(executor.schedule_many, lambda _: seen.append(var.get()), [1])

        await asyncio.wrap_future(await from_thread(in_thread))
    assert (["the thread's"], "nobody's") == (seen, var.get())


async def test_mistakes_are_in_the_future(virtual_clock):
    """An error raised by the method on the loop is raised by the future; nothing is scheduled."""
    async with RateLimitedExecutor("x", drain_timeout=0, max_pending=3) as executor:
        for error, words, call in (
            (ValueError, "delay", lambda: executor.call_threadsafe(executor.schedule_many, int, [1], delay=-1)),
            (ValueError, "period", lambda: executor.call_threadsafe(executor.schedule_at_fixed_rate, int, period="x")),
            (BacklogFullError, "refused 9", lambda: executor.call_threadsafe(executor.schedule_many, int, [*range(9)])),
            (TypeError, r"as_futures_executor\(\)\.map", lambda: executor.call_threadsafe(executor.map, int, [1])),
        ):
            with pytest.raises(error, match=words):
                await asyncio.wrap_future(await from_thread(call))
        assert 0 == executor.statistics().accepted


async def test_future_cancelled_before_the_loop_has_seen_it_calls_nothing(virtual_clock):
    """A future cancelled before the loop handles it calls nothing, and its waiters are notified."""
    async with RateLimitedExecutor("x") as executor:
        future = executor.call_threadsafe(executor.schedule_many, int, range(5))
        assert future.cancel()
        await asyncio.sleep(1)
        assert 0 == executor.statistics().accepted
    assert {future} == concurrent.futures.wait([future], timeout=0).done


async def test_refused_before_the_start_and_after_the_end(virtual_clock):
    """Before the start the call raises, after the end the future does."""
    executor = RateLimitedExecutor("x")
    with pytest.raises(ExecutorNotStartedError):
        executor.call_threadsafe(executor.schedule_many, int, [1])
    async with executor:
        pass
    with pytest.raises(ExecutorStoppedError):
        await asyncio.wrap_future(executor.call_threadsafe(executor.schedule_many, int, [1]))
