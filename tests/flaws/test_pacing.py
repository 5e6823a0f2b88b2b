"""Even starts, for each executor by itself (F6)."""

import asyncio

import pytest

from ratelimited_executor import ExecutorManager, Pacing
from ratelimited_executor.testing import worst_window


async def test_busy_neighbour_does_not_bunch_the_starts_of_an_executor(virtual_clock, starts, audit) -> None:
    """F6: pacing was the manager's: beside a busy executor, one limited to 100/s sent 100 tasks within 9 ms."""
    async with ExecutorManager() as manager:
        busy = manager.executor("busy")
        modest = manager.executor("modest", rate=100)
        busy.schedule_many(starts, ["busy"] * 10_000, over=4)
        for second in range(1, 4):
            for _ in range(100):
                modest.schedule(starts, "modest", delay=second)
        await asyncio.sleep(5)

    times = starts.times_of("modest")
    assert 300 == len(times)
    assert audit(times, 100).ok
    assert worst_window(times, width=0.0901)[0] <= 11


async def test_interval_border_does_not_double_the_rate(virtual_clock, starts, audit) -> None:
    """F6: late in one interval and early in the next, 200 tasks of an executor limited to 100/s ran in one second."""
    async with ExecutorManager() as manager:
        executor = manager.executor("one", rate=100)
        for number in range(100):
            executor.schedule(starts, delay=1.9 + number / 1000)
            executor.schedule(starts, delay=2 + number / 1000)
        await asyncio.sleep(5)

    assert 200 == len(starts.times)
    assert audit(starts.times, 100).ok
    assert worst_window(starts.times, width=1.0)[0] <= 103  # the law, with a slack of 20 ms


async def test_tasks_of_one_executor_are_not_started_one_after_the_other(virtual_clock, starts) -> None:
    """F6: the list to be shuffled was empty, so that the tasks of one executor ran first, then those of the next."""
    async with ExecutorManager() as manager:
        for name in "abcd":
            executor = manager.executor(name)
            for _ in range(10):
                executor.schedule(starts, name, delay=1.0)
        await asyncio.sleep(2.5)

    expected = [pytest.approx(1 + number / 10, abs=1e-6) for number in range(10)]
    for name in "abcd":
        assert expected == starts.times_of(name), name


async def test_few_tasks_are_not_started_at_the_same_instant(virtual_clock, starts) -> None:
    """F6: the tasks of an interval followed each other without a gap as soon as another executor had many."""
    async with ExecutorManager() as manager:
        quiet, loud = manager.executor("quiet"), manager.executor("loud")
        for _ in range(1000):
            loud.schedule(int, delay=1.5)
        for _ in range(4):
            quiet.schedule(starts, delay=1.001)
        await asyncio.sleep(3)

    assert [pytest.approx(1 + quarter / 4, abs=0.002) for quarter in range(4)] == starts.times


async def test_pacing_on_time_does_not_spread(virtual_clock, starts) -> None:
    """F6 and F24: who wants every task at its own time could not have it."""
    async with ExecutorManager() as manager:
        executor = manager.executor("one", pacing=Pacing.ON_TIME)
        for _ in range(10):
            executor.schedule(starts, delay=1.125)
        await asyncio.sleep(3)

    assert [1.125] * 10 == starts.times
