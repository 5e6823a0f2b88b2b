"""What becomes of ticks whose time passed before their run could start."""

import asyncio

import pytest

from ratelimited_executor import ExecutorManager, MissedTick, Pacing, RateLimitedExecutor


@pytest.mark.parametrize(
    ("missed", "starts"),
    [
        (MissedTick.SKIP, [0.0, 35.0, 40.0]),
        (MissedTick.COALESCE, [0.0, 35.0, 40.0]),
        (MissedTick.BURST, [0.0, 35.0, 35.0, 35.0, 40.0]),
    ],
)
async def test_a_run_held_back_by_a_pause_stands_for_what_the_policy_says(virtual_clock, missed, starts):
    """A run that waited through a pause is the one that COALESCE makes of all that were due, and the first of BURST."""
    seen = []
    async with RateLimitedExecutor("pause", pacing=Pacing.ON_TIME) as executor:
        begin = virtual_clock.monotonic()
        repeating = executor.schedule_at_fixed_rate(
            lambda: seen.append(round(virtual_clock.monotonic() - begin, 6)), period=10, missed=missed
        )
        await asyncio.sleep(5)
        executor.pause()
        await asyncio.sleep(30)
        executor.resume()
        await asyncio.sleep(9)
        repeating.cancel()

    assert starts == seen


@pytest.mark.parametrize("interval", [1.0, 0.6])
async def test_spreading_costs_no_tick_of_a_period_near_the_interval(virtual_clock, interval):
    """Ten tasks that repeat about once an interval, each run of which takes a while, run at every tick."""
    counts = [0] * 10

    async def run(index):
        counts[index] += 1
        await asyncio.sleep(0.3)

    async with ExecutorManager(interval=interval) as manager:
        executor = manager.executor("spread")
        repeating = [executor.schedule_at_fixed_rate(run, index, period=1) for index in range(10)]
        await asyncio.sleep(20.5)
        for handle in repeating:
            handle.cancel(running=True)

    assert [21] * 10 == counts


async def test_spreading_costs_no_time_of_a_cron_expression(virtual_clock):
    """With an interval of an hour, a task that is due every five minutes runs every five minutes."""
    count = 0

    def run():
        nonlocal count
        count += 1

    async with ExecutorManager(interval=3600) as manager:
        executor = manager.executor("cron")
        repeating = executor.schedule_cron("*/5 * * * *", run)
        await asyncio.sleep(6 * 3600 + 10)
        repeating.cancel()

    assert 72 == count
