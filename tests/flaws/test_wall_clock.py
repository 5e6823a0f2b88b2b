"""Steps of the wall clock (F21, F22)."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ratelimited_executor import ExecutorManager, RateLimitedExecutor

STEPS = [-30 * 86_400, -3600, -60, -1.5, 1.5, 60, 3600, 30 * 86_400]


@pytest.mark.virtual_time(limit=100)
@pytest.mark.parametrize("step", STEPS)
async def test_clock_step_does_not_delay_or_hasten_a_delay(virtual_clock, starts, step) -> None:
    """F21: after a step of +60 s a task of 1 s ran 60 s late; after -60 s everything stood still for a minute."""
    async with RateLimitedExecutor("one") as executor:
        executor.schedule(starts, "before", delay=5)
        executor.call_later(5, starts, "call before")
        executor.schedule_at_fixed_rate(starts, "every", period=2)
        await asyncio.sleep(1.25)
        virtual_clock.step_wall(step)
        executor.schedule(starts, "after", delay=5)
        await asyncio.sleep(8.25)

    assert [5.0] == starts.times_of("call before")
    assert 5.0 <= starts.times_of("before")[0] < 6.0
    assert 6.25 <= starts.times_of("after")[0] < 7.25
    assert [0.0, 2.0, 4.0, 6.0, 8.0] == starts.times_of("every")


@pytest.mark.parametrize("step", STEPS)
async def test_clock_step_does_not_bunch_the_starts(virtual_clock, starts, audit, step) -> None:
    """F21: after a step back, what had stood still was started all at once."""
    async with RateLimitedExecutor("one", rate=20) as executor:
        for number in range(200):
            executor.schedule(starts, delay=number / 25)
        await asyncio.sleep(2.5)
        virtual_clock.step_wall(step)

    assert 200 == len(starts.times)
    assert audit(starts.times, 20).ok


@pytest.mark.parametrize("step", [60, 86_400])
async def test_executor_made_after_a_clock_step_does_not_stop_the_others(virtual_clock, starts, step) -> None:
    """F21: an executor made after a jump of more than 5 s made every tick raise, for all executors."""
    async with ExecutorManager() as manager:
        old = manager.executor("old", rate=10)
        old.schedule_at_fixed_rate(starts, "old", period=1)
        await asyncio.sleep(1.5)
        virtual_clock.step_wall(step)
        manager.executor("new", rate=10).schedule_at_fixed_rate(starts, "new", period=1)
        await asyncio.sleep(3)
        virtual_clock.step_wall(-2 * step)
        manager.executor("newest", rate=10).submit(starts, "newest")
        await asyncio.sleep(2)

    assert [0, 1, 2, 3, 4, 5, 6] == starts.times_of("old")
    assert [1.5, 2.5, 3.5, 4.5, 5.5, 6.5] == starts.times_of("new")
    assert [4.5] == starts.times_of("newest")


async def test_suspended_machine_does_not_shift_what_follows(virtual_clock, starts) -> None:
    """F21: after a suspended machine had come back, all went on late by the time it had slept."""
    async with RateLimitedExecutor("one") as executor:
        for number in range(10):
            executor.call_later(number, starts, number)
        asyncio.get_running_loop().call_later(2.5, virtual_clock.block, 4)
        await asyncio.sleep(12)

    assert [0.0, 1.0, 2.0, 6.5, 6.5, 6.5, 6.5, 7.0, 8.0, 9.0] == starts.times
    assert list(range(10)) == starts.names


async def test_time_of_the_day_is_not_missed_after_a_clock_step(virtual_clock, starts) -> None:
    """F21: what was asked for at a time of the day was turned into a delay, and never met that time again."""
    async with RateLimitedExecutor("one") as executor:
        noon = virtual_clock.wall() + 100
        executor.schedule(starts, "back", at=noon)
        await asyncio.sleep(10)
        virtual_clock.step_wall(-50)
        await asyncio.sleep(100)
        assert [] == starts.times
        await asyncio.sleep(42)
        assert 150 <= starts.times[0] <= 151

        executor.schedule(starts, "forth", at=virtual_clock.wall() + 1000)
        await asyncio.sleep(10)
        stepped = virtual_clock.monotonic()
        virtual_clock.step_wall(5000)
        await asyncio.sleep(3)
        assert ["back", "forth"] == starts.names
        assert starts.times[1] <= stepped + 2


def _calls_of(function: Callable[[], Any]) -> int:
    """Count the Python functions that a call enters."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


async def test_step_back_does_not_make_scheduling_slow(virtual_clock) -> None:
    """F22: after a step back each call looped over as many intervals as the clock had gone back."""
    async with ExecutorManager(interval=0.01) as manager:
        executor = manager.executor("one", rate=100)
        usual = [
            _calls_of(lambda: executor.schedule(int, delay=2)),
            _calls_of(lambda: executor.schedule(int, at=virtual_clock.wall() + 2)),
            _calls_of(lambda: executor.submit(int)),
            _calls_of(lambda: executor.call_later(2, int)),
        ]
        await asyncio.sleep(1)
        virtual_clock.step_wall(-365 * 86_400)
        stepped = [
            _calls_of(lambda: executor.schedule(int, delay=2)),
            _calls_of(lambda: executor.schedule(int, at=virtual_clock.wall() + 2)),
            _calls_of(lambda: executor.submit(int)),
            _calls_of(lambda: executor.call_later(2, int)),
        ]
        executor.shutdown(cancel_pending=True)

    assert all(after <= before + 50 for before, after in zip(usual, stepped, strict=True)), (usual, stepped)
