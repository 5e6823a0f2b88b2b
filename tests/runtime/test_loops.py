"""The kernel on event loops with real timers: asyncio's own, and uvloop.

Tested here is what may differ between loops: timers and their rounding, callbacks and their order, tasks and their
cancellation, other threads, and the end of a loop. Everything else is tested in virtual time, the same on every loop.

uvloop has no virtual time, so these tests use the real one, a second altogether. They are exact in which tasks start,
in which order, and never early; only the lateness has a wide margin, for busy machines (``LATE``).
"""

import asyncio
import contextvars
import threading
import time

import pytest

from ratelimited_executor import (
    ExecutorManager,
    ExecutorStoppedError,
    Pacing,
    RateLimitedExecutor,
    TaskState,
)
from ratelimited_executor.testing import audit

from ..helpers import check_accounting, now

pytestmark = pytest.mark.real_time("uvloop has no virtual time")
RESOLUTION = time.get_clock_info("monotonic").resolution  # seconds: asyncio's own timers count as due this much before
LATE = 5.0  # seconds that a busy machine may be late, and a test still passes: what it takes too long is no error here
variable = contextvars.ContextVar("variable", default="nobody's")


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Run a coroutine on a loop of a kind, with nothing left over and nothing reported."""
    factory = pytest.importorskip("uvloop").new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    reports = []

    def run_on_loop(main, *, reported: int = 0):
        async def body():
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
            return await asyncio.wait_for(main, 4 * LATE)

        with asyncio.Runner(loop_factory=factory) as runner:
            assert ("uvloop" in type(runner.get_loop()).__module__) is (request.param == "uvloop")
            result = runner.run(body())
        assert reported == len(reports), reports
        return result

    return run_on_loop


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts its turns."""

    count = 0

    def _run_once(self) -> None:
        self.count += 1
        super()._run_once()


@pytest.mark.parametrize("ahead", [15.0, -15.0, 1000.0, -1000.0])
def test_loop_with_a_time_of_its_own_is_woken_by_its_own_timers(ahead):
    """A loop with its own time is woken on time and not all the time: no timer descriptor knows its time."""

    class ShiftedLoop(CountingLoop):
        def time(self) -> float:
            return super().time() + ahead

    check_wake_ups(ShiftedLoop, ExecutorManager)


@pytest.mark.parametrize("ahead", [1.0, -1.0, 1000.0, -1000.0])
def test_clock_with_another_zero_than_the_loop_is_woken_by_the_loop(ahead):
    """Executors start on time even if their clock has another zero than the loop."""

    class ShiftedClock:
        def monotonic(self) -> float:
            return time.monotonic() + ahead

        def wall(self) -> float:
            return time.time() + ahead

    check_wake_ups(CountingLoop, lambda: ExecutorManager(clock=ShiftedClock()))


def check_wake_ups(loop_factory, make_manager) -> None:
    """Assert that tasks due in tenths of a second start then, and that the loop sleeps in between."""

    async def main() -> list[float]:
        begin = now()
        async with make_manager() as manager, manager.executor("x", rate=10) as executor:
            handles = [executor.schedule(now, delay=0.1 * number) for number in range(1, 4)]
            return [await asyncio.wait_for(handle, LATE) - begin for handle in handles]

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        starts = runner.run(main())
        assert runner.get_loop().count < 200
    assert all(start >= due for start, due in zip(starts, [0.1, 0.2, 0.3], strict=True))


# Starts.


@pytest.mark.parametrize("rate", [float("inf"), 100_000])
def test_bulk_calls_run_once_each_in_order(run, rate):
    """Calls of a batch, many timers and many immediate calls run once each in order, side by side."""

    async def main():
        items, timers, calls = [], [], []
        async with RateLimitedExecutor("x", rate=rate, pacing=Pacing.ON_TIME) as executor:
            batch = executor.schedule_many(items.append, range(3000))
            for number in range(500):
                executor.call_later(0.02, timers.append, number)
                executor.call_soon(calls.append, number)
            summary = await batch
            assert (3000, 0) == (summary.done, summary.failed)
            check_accounting(executor)
        assert [*range(3000)] == items
        assert [*range(500)] == timers == calls
        assert 4000 == executor.statistics().done
        check_accounting(executor)

    run(main())


def test_nothing_is_early_and_due_times_are_the_order(run):
    """No start is early by the clock of the loop or executor, and due times are the order.

    A sum of floats may exceed the intended tick of uvloop by a last digit; asyncio allows a clock's resolution, too.
    The order is that of the executor's clock: uvloop's clock stands still during a turn, and cannot tell times within
    it apart.
    """

    async def main():
        ahead, order = [], []
        async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
            begin = now()
            handles = []
            for number in range(100):
                due = begin + 0.001 * (number * 37 % 101)
                executor.call_at(due, lambda due=due: ahead.append(now() - due))
                handles.append(executor.schedule(order.append, number, delay=0.0013 * (number * 37 % 101)))
        assert 100 == len(ahead)
        assert all(-RESOLUTION <= seconds < LATE for seconds in ahead), sorted(ahead)
        assert sorted(range(100), key=lambda number: handles[number].due) == order
        assert all(handle.started_at >= handle.due for handle in handles)

    run(main())


@pytest.mark.parametrize("rate", [50, 400])
def test_the_rate_is_kept_and_used(run, rate):
    """The law holds exactly on any machine, and permits are used within a wide margin.

    The margin serves the same purpose as ``LATE``: on a busy machine timers are late by many permits, which are lost by
    design.
    """

    async def main():
        async with RateLimitedExecutor("x", rate=rate) as executor:
            begin = executor._engine.monotonic()
            handles = [executor.submit(int) for _ in range(rate // 10)]
            batch = executor.schedule_many(int, range(rate // 10))
            asyncio.get_running_loop().call_later(0.05, time.sleep, 0.05)
            await batch
            took = executor._engine.monotonic() - begin
        report = audit([handle._started for handle in handles], [(begin, executor.rate)])
        assert report.ok, str(report)
        assert (rate // 10 * 2 - 2) / rate - 0.02 <= took < LATE

    run(main())


def test_tasks_of_coroutines_keep_context_and_order(run):
    """Coroutines begin in order, each in the context of its call."""

    async def work(number):
        order.append(number)
        assert f"that of {number}" == variable.get()
        variable.set("changed")
        await asyncio.sleep(0)
        return variable.get()

    order: list[int] = []

    async def main():
        async with RateLimitedExecutor("x") as executor:
            handles = []
            for number in range(50):
                variable.set(f"that of {number}")
                handles.append(executor.submit(work, number))
            assert ["changed"] * 50 == await asyncio.gather(*handles)
            assert [*range(50)] == order
            assert "that of 49" == variable.get()

    run(main())


# Ends.


def test_handles_end_as_their_calls_do(run):
    """Handles end like their calls: returned, raised or timed out, with the callbacks of each called once."""

    async def fails():
        await asyncio.sleep(0)
        raise KeyError("async")

    async def main():
        told = []
        async with RateLimitedExecutor("x", drain_timeout=0) as executor:
            handles = [
                executor.submit(int, "5"),
                executor.submit(int, "x"),
                executor.submit(asyncio.sleep, 0, "slept"),
                executor.submit(fails),
                executor.submit(asyncio.sleep, 60, run_timeout=0.01),
            ]
            for handle in handles:
                handle.add_done_callback(told.append)
            results = await asyncio.gather(*handles, return_exceptions=True)
            await asyncio.sleep(0)
            assert (5, "slept") == (results[0], results[2])
            assert [ValueError, KeyError] == [type(results[1]), type(results[3])]
            assert isinstance(results[4], TimeoutError)
            assert sorted(map(id, handles)) == sorted(map(id, told))
            check_accounting(executor)

    run(main())


def test_a_failure_that_nobody_can_ask_for_reaches_the_loop(run):
    """The failure of a call without a handle reaches the loop once, and the next call runs."""

    async def main():
        ran = []
        async with RateLimitedExecutor("x") as executor:
            executor.call_soon(int, "x")
            executor.call_soon(ran.append, 1)
        assert [1] == ran

    run(main(), reported=1)


def test_what_is_cancelled_does_not_run(run):
    """A task cancelled by its handle, a timeout or its batch does not run on, waiting or running."""

    async def main():
        ran = []

        async def long():
            try:
                await asyncio.sleep(60)
            finally:
                ran.append("cleaned up")

        async with RateLimitedExecutor("x", drain_timeout=0) as executor:
            waiting = executor.schedule(ran.append, "never", delay=60)
            timer = executor.call_later(60, ran.append, "never")
            batch = executor.schedule_many(ran.append, range(100), over=60)
            running = executor.submit(long)
            bounded = executor.submit(long)
            await asyncio.sleep(0.005)
            assert waiting.cancel()
            timer.cancel()
            batch.cancel()
            assert running.cancel()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await bounded
            with pytest.raises(asyncio.CancelledError):
                await running
            await asyncio.sleep(0.02)
            assert (True, True) == (waiting.cancelled(), running.cancelled())
            assert "never" not in ran
            assert ran.count("cleaned up") >= 1
            assert 0 == executor.statistics().waiting
            check_accounting(executor)

    run(main())


# Other threads.


def test_other_threads_add_calls_and_calls_run_in_other_threads(run):
    """Calls added by other threads wake the loop and run once; results of worker threads come back."""

    async def main():
        ran, threads = [], []
        loop_thread = threading.get_ident()
        async with RateLimitedExecutor("x") as executor:

            def add(start):
                for number in range(start, start + 50):
                    executor.call_soon_threadsafe(ran.append, number)

            for start in (0, 50, 100):
                threads.append(threading.Thread(target=add, args=(start,)))
                threads[-1].start()
            idents = await asyncio.gather(*(executor.submit(threading.get_ident, in_thread=True) for _ in range(5)))
            assert loop_thread not in idents
            end = now() + LATE
            while len(ran) < 150 and now() < end:
                await asyncio.sleep(0.001)
        assert [*range(150)] == sorted(ran)
        for thread in threads:
            thread.join()

    run(main())


# Closing.


def test_leaving_runs_what_was_accepted(run):
    """Leaving runs accepted tasks at their due times, awaits coroutines, and then refuses all calls."""

    async def main():
        ran = []
        async with RateLimitedExecutor("x", rate=500) as executor:
            for number in range(20):
                executor.call_later(0.002 * number, ran.append, number)
            handle = executor.schedule(asyncio.sleep, 0.02, "slept", delay=0.03)
        assert ([*range(20)], "slept") == (ran, handle.result())
        assert executor.is_terminated
        with pytest.raises(ExecutorStoppedError):
            executor.submit(int)

    run(main())


@pytest.mark.parametrize("how", ["timeout", "exception", "cancelled", "shutdown"])
def test_what_is_cut_short_is_cancelled_and_accounted_for(run, how):
    """However the executor is cut short, every task is counted in bounded time, and no waiter hangs."""

    async def main():
        handles = []

        async def leave():
            async with RateLimitedExecutor("x", drain_timeout=0.01 if how == "timeout" else None) as executor:
                handles.append(executor)
                handles.append(executor.schedule(int, delay=60))
                handles.append(executor.submit(asyncio.sleep, 60))
                executor.schedule_many(int, range(1000), over=60)
                await asyncio.sleep(0.005)
                if how == "exception":
                    raise LookupError
                if how == "shutdown":
                    await executor.shutdown(cancel_pending=True)
                if how == "cancelled":
                    await asyncio.sleep(60)

        begin = now()
        task = asyncio.create_task(leave())
        if how == "cancelled":
            asyncio.get_running_loop().call_later(0.01, task.cancel)
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert {"exception": LookupError, "cancelled": asyncio.CancelledError}.get(how, type(None)) is type(outcome)
        assert now() - begin < LATE
        executor, *rest = handles
        assert [TaskState.CANCELLED] * 2 == [handle.state for handle in rest]
        counts = executor.statistics()
        assert (1002, 0, 0) == (
            counts.cancelled + counts.done,
            counts.waiting,
            counts.running,
        )  # one item is due at once
        assert executor.is_terminated
        check_accounting(executor)

    run(main())


def test_a_loop_that_ends_first_leaves_no_task_behind(run):
    """An unclosed executor loses its waiting tasks, and the loop still ends."""
    kept = []

    async def main():
        executor = RateLimitedExecutor("x")
        await executor.start()
        kept.extend([executor, executor.schedule(int, delay=60), executor.submit(asyncio.sleep, 60)])
        await asyncio.sleep(0.005)

    run(main())
    assert kept[2].done()
    assert not kept[1].done()
