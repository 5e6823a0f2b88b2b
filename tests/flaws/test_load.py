"""Many tasks, long overflows and none at all (F10, F30, F31, F34, F35, F36)."""

import asyncio
import sys
import threading
from collections import Counter

import pytest

from ratelimited_executor import (
    BacklogFullError,
    ExecutorManager,
    Pacing,
    RateLimitedExecutor,
    RunTimeoutError,
)
from ratelimited_executor.orders import earliest_due_first
from ratelimited_executor.testing import DeadlockError, run_virtual


async def test_tasks_do_not_take_a_thread_each(virtual_clock) -> None:
    """F10: with two processors every task was given a thread of its own: 12,000 tasks a second, and no more."""
    before = threading.active_count()
    seen: set[tuple[int, int]] = set()

    def work() -> None:
        seen.add((threading.get_ident(), threading.active_count()))

    async def async_work() -> None:
        work()

    async with RateLimitedExecutor("one") as executor:
        for _ in range(1000):
            executor.submit(work)
            executor.submit(async_work)
            executor.call_soon(work)

    assert {(threading.get_ident(), before)} == seen


async def test_blocking_tasks_do_not_take_more_threads_than_allowed() -> None:
    """F10: the number of threads had no limit."""
    gate = threading.Event()
    lock = threading.Lock()
    now = most = 0

    def work() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        gate.wait(0.002)
        with lock:
            now -= 1

    async with RateLimitedExecutor("one", max_threads=3) as executor:
        handles = [executor.submit(work, in_thread=True) for _ in range(60)]
        await asyncio.gather(*handles)

    assert 1 <= most <= 3


@pytest.mark.parametrize("remedy", ["priority", "order"])
async def test_delayed_tasks_need_not_starve(virtual_clock, starts, remedy) -> None:
    """F30: immediate load above the limit starved all delayed tasks, and nothing could be done about it."""
    options = {"order": earliest_due_first} if remedy == "order" else {}
    async with RateLimitedExecutor("one", rate=10, **options) as executor:
        for number in range(10):
            executor.schedule(starts, "delayed", delay=1 + number, priority=1 if remedy == "priority" else 0)
        for _ in range(100):
            for _ in range(3):
                executor.submit(starts, "immediate")
            await asyncio.sleep(0.2)
        executor.shutdown(cancel_pending=True)

    times = starts.times_of("delayed")
    assert 10 == len(times)
    assert times[-1] <= (11.5 if remedy == "priority" else 16)


async def test_older_tasks_do_not_run_after_newer_ones(virtual_clock, starts) -> None:
    """F30: without overload the overflow, which is older, went to the end of the interval."""
    async with RateLimitedExecutor("one", rate=10) as executor:
        for number in range(15):
            executor.schedule(starts, number, delay=1)
        for number in range(15, 20):
            executor.schedule(starts, number, delay=2.001)
        await asyncio.sleep(5)

    assert list(range(20)) == starts.names


def _calls_while_starting(backlog: int) -> int:
    """Count the Python functions entered while an executor at 10/s works for 10 s on a backlog."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    async def main() -> None:
        async with RateLimitedExecutor("one", rate=10, drain_timeout=0) as executor:
            executor.schedule_many(int, range(backlog))
            for _ in range(backlog // 10):
                executor.submit(int)
                executor.call_soon(int)
            await asyncio.sleep(1)
            sys.setprofile(note)
            await asyncio.sleep(10)
            sys.setprofile(None)

    run_virtual(main())
    return count


def test_long_overflow_does_not_cost_anything_per_tick() -> None:
    """F31: each tick sorted the whole backlog under a lock: 500,000 tasks took 37 % of a core to start none."""
    short, long = _calls_while_starting(500), _calls_while_starting(5_000)

    assert long <= short * 1.5


async def test_long_overflow_does_not_block_a_submission(virtual_clock) -> None:
    """F31: `submit` waited up to 88 ms for the sort of the backlog."""
    async with RateLimitedExecutor("one", rate=10, drain_timeout=0) as executor:
        executor.schedule_many(int, range(200_000))
        await asyncio.sleep(1)
        counts = []
        for _ in range(3):
            entered: Counter[str] = Counter()

            def note(frame, event, argument, entered=entered) -> None:
                entered[event] += 1

            sys.setprofile(note)
            executor.submit(int)
            sys.setprofile(None)
            counts.append(entered["call"])

    assert max(counts) <= 40


async def test_pending_tasks_are_not_unbounded(virtual_clock) -> None:
    """F34: no bound on buckets, overflow or queues, and no way to push back."""
    async with RateLimitedExecutor("one", max_pending=10) as executor:
        handles = [executor.schedule(int, delay=5 + number) for number in range(10)]
        before = executor.statistics()
        for refused in (
            lambda: executor.schedule(int, delay=1),
            lambda: executor.submit(int),
            lambda: executor.execute(int),
            lambda: executor.call_soon(int),
            lambda: executor.call_later(1, int),
            lambda: executor.schedule_many(int, [1]),
            lambda: executor.schedule_at_fixed_rate(int, period=1),
            lambda: executor.permit(),
        ):
            with pytest.raises(BacklogFullError):
                refused()
        assert before == executor.statistics()
        handles[3].cancel()
        executor.call_later(1, int)


async def test_running_tasks_are_not_unbounded(virtual_clock) -> None:
    """F34: there was no limit on concurrency."""
    now = most = 0

    async def work() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(1)
        now -= 1

    async with RateLimitedExecutor("one", max_concurrency=4) as executor:
        executor.schedule_many(lambda _: work(), range(50))
        for _ in range(10):
            executor.submit(work)
        assert executor.statistics().running == 0

    assert 4 == most


async def test_running_time_is_not_unbounded(virtual_clock) -> None:
    """F34: a task could have no time limit of its own, and no priority."""
    async with RateLimitedExecutor("one") as executor:
        handle = executor.submit(asyncio.sleep, 1000, run_timeout=2)
        with pytest.raises(RunTimeoutError):
            await handle
        assert 2 == virtual_clock.monotonic()


def test_idle_executor_does_not_wake_the_loop() -> None:
    """F35: ticks ran for ever, one by one for each executor; here nothing is left that could wake the loop."""

    async def main() -> None:
        async with ExecutorManager(interval=0.01) as manager:
            executors = [manager.executor(str(number), rate=number) for number in range(5)]
            for executor in executors[1:]:
                await executor.submit(int)
                executor.schedule(int, delay=5).cancel()
            await asyncio.sleep(10)
            await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run_virtual(main(), limit=15)


async def test_closed_executor_does_not_stay_with_the_manager(virtual_clock) -> None:
    """F35: there was no way to be rid of an executor (F1), so that each one ever made cost time in every tick."""
    async with ExecutorManager() as manager:
        for number in range(300):
            async with manager.executor(f"tenant {number}", rate=5) as executor:
                await executor.submit(int)
        assert {} == manager.executors
        assert len(manager._runner._heap) <= 1


async def test_start_does_not_take_a_timer_each(virtual_clock, monkeypatch) -> None:
    """F36: a timer was put into a queue, under a lock and with a wake-up, for each task."""
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_at, call_soon = loop.call_at, loop.call_soon
    monkeypatch.setattr(
        loop, "call_at", lambda when, *args, **options: (timers.append(when), call_at(when, *args, **options))[1]
    )
    monkeypatch.setattr(loop, "call_soon", lambda *args, **options: (timers.append(0), call_soon(*args, **options))[1])
    async with RateLimitedExecutor("one", pacing=Pacing.ON_TIME) as executor:
        for _ in range(20_000):
            executor.call_later(1.5, int)
        executor.schedule_many(int, range(20_000), delay=1.5)
        assert len(timers) < 10
        await asyncio.sleep(1.75)
        assert 40_000 == executor.statistics().done

    assert len(timers) < 200
