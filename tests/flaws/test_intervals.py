"""Intervals of every width, begun at any moment, and due times to the nanosecond (F4, F5, F24)."""

import asyncio

import pytest

from ratelimited_executor import ExecutorManager, Pacing, RateLimitedExecutor


@pytest.mark.parametrize("interval", [0.01, 1, 2.147, 2.148, 3, 5, 60, 3600])
async def test_wide_interval_does_not_squeeze_or_lose_its_tasks(virtual_clock, starts, interval) -> None:
    """F4: `millisPerInterval * 1_000_000` overflowed: of 3 s no task ever ran, of 5 s all ran within 0.7 s."""
    async with ExecutorManager(interval=interval) as manager:
        executor = manager.executor("one")
        width_ns = round(interval * 1e9)
        begin = (width_ns - int(virtual_clock.wall()) * 10**9 % width_ns) / 1e9 + interval / 1000
        for number in range(100):
            executor.schedule(starts, delay=begin + interval * number / 1000)
        await asyncio.sleep(begin + interval * 1.01)

    gaps = [after - before for before, after in zip(starts.times, starts.times[1:], strict=False)]
    assert [pytest.approx(interval / 100, rel=2e-3)] * 99 == gaps
    assert starts.times[0] == pytest.approx(begin, abs=1e-6)


async def test_very_many_tasks_do_not_make_the_spread_vanish(virtual_clock, starts) -> None:
    """F4: with more tasks than nanoseconds to divide, the period became 0, and the tasks were lost."""
    async with ExecutorManager(interval=0.01) as manager:
        executor = manager.executor("one")
        batch = executor.schedule_many(starts, range(20_000), delay=0.01)
        summary = await batch

    assert 20_000 == summary.done
    assert 0.01 <= min(starts.times) <= max(starts.times) < 0.02 + 1e-6


@pytest.mark.parametrize("phase", [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.999])
async def test_starting_in_mid_interval_does_not_shift_the_intervals(virtual_clock, starts, phase) -> None:
    """F5: the first tick waited for the elapsed part of the interval; started late in it, every interval came late."""
    await asyncio.sleep(phase)
    async with ExecutorManager() as manager:
        executor = manager.executor("one")
        for number in range(4):
            for _ in range(4):
                executor.schedule(starts, delay=number + 1.001 - phase)  # clear of rounding at the border
        await asyncio.sleep(6)

    assert [pytest.approx(1 + quarter / 4, abs=2e-3) for quarter in range(16)] == starts.times


async def test_submission_does_not_wait_for_the_next_interval(virtual_clock, starts) -> None:
    """F24: on an idle executor an immediate task took 0.1 to 1.1 s."""
    async with RateLimitedExecutor("one", rate=10) as executor:
        for pause in (0.3, 0.45, 1.2, 0.05 + 0.1, 3.999):
            await asyncio.sleep(pause)
            asked = virtual_clock.monotonic()
            await executor.submit(starts)
            assert asked == starts.times[-1]


@pytest.mark.parametrize("delay", [0.0000001, 0.0004, 0.0005, 0.9994, 0.99951, 1.0004, 2.7182818])
async def test_due_time_is_not_truncated_to_a_millisecond(virtual_clock, starts, delay) -> None:
    """F24: due times were cut down to milliseconds, so that a task could start before its time."""
    async with RateLimitedExecutor("one", pacing=Pacing.ON_TIME) as executor:
        await asyncio.sleep(0.1234567)
        due = virtual_clock.monotonic() + delay
        handle = executor.schedule(starts, delay=delay)
        executor.call_later(delay, starts)
        await handle
        await asyncio.sleep(0)

    assert [pytest.approx(due, abs=2e-9)] * 2 == starts.times
    assert min(starts.times) >= due


async def test_no_task_starts_early_by_default(virtual_clock, starts) -> None:
    """F24: by default a task ran anywhere in the interval of its due time, up to a second early."""
    async with RateLimitedExecutor("one", rate=100) as executor:
        handles = [executor.schedule(starts, delay=(number * 0.137) % 7) for number in range(500)]
        handles += [executor.schedule(starts, at=virtual_clock.wall() + (number * 0.137) % 7) for number in range(50)]
        await asyncio.gather(*handles)

    assert min(handle.lateness for handle in handles) >= 0
    assert max(handle.lateness for handle in handles) <= 1.01
