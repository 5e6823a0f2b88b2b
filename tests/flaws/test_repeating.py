"""Repeating tasks (F14, F30, F37, F39)."""

import asyncio

import pytest

from ratelimited_executor import ExecutorManager, MissedTick, OnError, RateLimitedExecutor


@pytest.mark.parametrize("is_async", [False, True])
async def test_fixed_delay_is_not_skipped_at_the_end_of_a_run(virtual_clock, starts, is_async) -> None:
    """F14: a tick between the end of a run and the reckoning of the next due time started the task again at once."""
    ends = []

    async def work() -> None:
        starts()
        await asyncio.sleep(0.999999)
        ends.append(virtual_clock.monotonic())

    def plain() -> None:
        starts()
        virtual_clock.block(0.3)
        ends.append(virtual_clock.monotonic())

    async with ExecutorManager(interval=0.01) as manager:
        executor = manager.executor("one")
        executor.schedule_with_fixed_delay(work if is_async else plain, delay=0.5)
        await asyncio.sleep(60)

    pauses = [start - end for end, start in zip(ends, starts.times[1:], strict=False)]
    assert len(pauses) >= 38
    assert min(pauses) >= 0.5 - 1e-9
    assert max(pauses) <= 0.5 + 0.011


async def test_runs_of_a_fixed_rate_do_not_overlap(virtual_clock) -> None:
    """F37: runs overlapped, 7 at once, against the contract of the interface."""
    running = 0
    most = 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(3.5)
        running -= 1

    async with RateLimitedExecutor("one") as executor:
        every = executor.schedule_at_fixed_rate(work, period=1)
        await asyncio.sleep(30)

    assert 1 == most
    assert 8 == every.run_count


@pytest.mark.parametrize(
    ("missed", "due"),
    [
        (MissedTick.SKIP, [0, 4, 5, 6]),
        (MissedTick.COALESCE, [0, 3.5, 4, 5, 6]),
        (MissedTick.BURST, [0, 3.5, 3.5, 3.5, 4, 5, 6]),
    ],
)
async def test_missed_ticks_are_not_always_made_up(virtual_clock, starts, missed, due) -> None:
    """F39: all missed periods were made up, one an interval, and nothing could limit that."""
    async with ExecutorManager(interval=0.01) as manager:
        executor = manager.executor("one")

        def work() -> None:
            starts()
            if len(starts.times) == 1:
                virtual_clock.block(3.5)

        executor.schedule_at_fixed_rate(work, period=1, missed=missed)
        await asyncio.sleep(6.5)

    expected = [float(time) for time in due]
    assert [pytest.approx(time, abs=0.011) for time in expected] == starts.times


@pytest.mark.parametrize("missed", list(MissedTick))
async def test_runs_do_not_pile_up_while_paused(virtual_clock, starts, missed) -> None:
    """F34 and F39: while paused or over the limit, occurrences piled up in the overflow."""
    async with RateLimitedExecutor("one") as executor:
        executor.schedule_at_fixed_rate(starts, period=0.1, missed=missed)
        executor.pause()
        await asyncio.sleep(100)
        assert (1, 1) == (executor.statistics().accepted, executor.statistics().waiting)
        executor.resume()
        await asyncio.sleep(0)
        executor.shutdown(cancel_pending=True)


async def test_failure_of_a_run_is_not_swallowed(virtual_clock, reported) -> None:
    """F37: exceptions of a repeating task were logged nowhere, and could not end it."""

    def fail() -> None:
        raise RuntimeError("boom")

    async with RateLimitedExecutor("one") as executor:
        going_on = executor.schedule_at_fixed_rate(fail, period=1)
        stopping = executor.schedule_at_fixed_rate(fail, period=1, on_error=OnError.STOP)
        with pytest.raises(RuntimeError, match="boom"):
            await stopping
        await asyncio.sleep(3.5)

    assert (4, 1) == (going_on.run_count, stopping.run_count)
    assert ["boom"] * 4 == [str(context["exception"]) for context in reported]


@pytest.mark.parametrize("interval", [0.01, 1, 60, 3600])
@pytest.mark.parametrize("period", [0.001, 0.25, 0.99, 7])
async def test_period_is_not_bound_by_the_interval(virtual_clock, starts, interval, period) -> None:
    """F39: a fixed rate was at most once an interval, a fixed delay at most once in five."""
    async with ExecutorManager(interval=interval) as manager:
        executor = manager.executor("one")
        rates = [executor.schedule_at_fixed_rate(starts, number, period=period, max_runs=600) for number in range(3)]
        delays = [executor.schedule_with_fixed_delay(starts, "delay", delay=period, max_runs=20) for _ in range(3)]
        await asyncio.gather(*delays)
        assert 60 == len(starts.times_of("delay"))
        await asyncio.gather(*rates)

    if period < interval:
        for number in range(3):
            assert [pytest.approx(tick * period, abs=1e-6) for tick in range(600)] == starts.times_of(number)


async def test_repeating_task_does_not_wait_for_ever_behind_others(virtual_clock, starts) -> None:
    """F30: of the same priority, a repeating task goes before all others, however many immediate ones there are."""
    async with RateLimitedExecutor("one", rate=10) as executor:
        executor.schedule_at_fixed_rate(starts, "every", period=1)
        for _ in range(200):
            executor.submit(starts, "immediate")
        await asyncio.sleep(10.5)
        executor.shutdown(cancel_pending=True)

    assert 11 == len(starts.times_of("every"))
