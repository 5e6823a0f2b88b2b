"""What was cancelled does not run, is not another task, and holds nothing (F13, F15, F33)."""

import asyncio
import functools
import gc
import tracemalloc

import pytest

from ratelimited_executor import RateLimitedExecutor, TaskState


async def test_cancelled_task_does_not_run(virtual_clock, starts) -> None:
    """F13: a cancel between the check and the hand-off returned true, and the body ran all the same."""
    async with RateLimitedExecutor("one", rate=1000) as executor:
        handles = []

        def cancel_next(number: int) -> None:
            starts(number)
            handles[number + 1].cancel()

        for number in range(20):
            handles.append(executor.schedule(cancel_next if number % 2 == 0 else starts, number, delay=1))
        await asyncio.sleep(3)

    assert list(range(0, 20, 2)) == starts.names
    assert [TaskState.DONE, TaskState.CANCELLED] * 10 == [handle.state for handle in handles]


async def test_cancelled_call_does_not_run(virtual_clock, starts) -> None:
    """F13: the same for callbacks, those of the same instant included."""
    async with RateLimitedExecutor("one") as executor:
        handles = []

        def cancel_next(number: int) -> None:
            starts(number)
            handles[number + 1].cancel()

        for number in range(20):
            handles.append(executor.call_later(1, cancel_next if number % 2 == 0 else starts, number))
        await asyncio.sleep(3)
        counts = executor.statistics()

    assert list(range(0, 20, 2)) == starts.names
    assert (20, 10, 10) == (counts.accepted, counts.done, counts.cancelled)


async def test_running_plain_function_does_not_claim_to_be_cancelled(virtual_clock) -> None:
    """F13 and F37: `cancel` returned true for a body that went on, and its result was thrown away."""
    async with RateLimitedExecutor("one") as executor:
        answers = []

        def work() -> str:
            answers.append(handle.cancel())
            return "result"

        handle = executor.submit(work)
        assert "result" == await handle
        answers.append(handle.cancel())

    assert [False, False] == answers
    assert not handle.cancelled()


async def test_cancelled_coroutine_does_not_go_on(virtual_clock, starts) -> None:
    """F13 and F37: a running body was never interrupted by a cancel that said it had worked."""

    async def work() -> None:
        starts("began")
        await asyncio.sleep(1)
        starts("went on")

    async with RateLimitedExecutor("one") as executor:
        handle = executor.submit(work)
        await asyncio.sleep(0.5)
        assert handle.cancel()
        await asyncio.sleep(1)

    assert ["began"] == starts.names
    assert handle.cancelled()


async def test_cancelling_one_of_two_equal_tasks_does_not_cancel_the_other(virtual_clock, starts) -> None:
    """F15: tasks were removed by equality, so that cancelling one of two equal repeating tasks ended the other."""
    one, other = functools.partial(starts, "tick"), functools.partial(starts, "tick")
    async with RateLimitedExecutor("one") as executor:
        first = executor.schedule_at_fixed_rate(one, period=1)
        second = executor.schedule_at_fixed_rate(one, period=1)
        third = executor.schedule_at_fixed_rate(other, period=1)
        await asyncio.sleep(0.5)
        second.cancel()
        await asyncio.sleep(2)
        assert [False, True, False] == [handle.cancelled() for handle in (first, second, third)]
        assert 3 + 2 + 2 == len(starts.entries)
        first.cancel()
        third.cancel()
        await asyncio.sleep(2)

    assert (3, 1, 3) == (first.run_count, second.run_count, third.run_count)


async def test_equal_tasks_are_not_one_task(virtual_clock, starts) -> None:
    """F15: equality by value; here a handle is equal to itself only."""
    async with RateLimitedExecutor("one") as executor:
        handles = [executor.schedule(starts, "same", delay=1) for _ in range(3)]
        calls = [executor.call_later(1, starts, "same") for _ in range(3)]
        handles[1].cancel()
        calls[1].cancel()
        await asyncio.sleep(3)

    assert 3 == len(set(handles))
    assert 4 == len(starts.entries)


@pytest.mark.parametrize("way", ["schedule", "call_later", "at"])
async def test_cancelled_tasks_do_not_stay_in_memory(virtual_clock, way) -> None:
    """F33: 500,000 tasks due in an hour and cancelled at once held 434 MB for that hour."""
    count = 12_000  # more than one compaction handles
    async with RateLimitedExecutor("one", drain_timeout=0) as executor:
        hour = virtual_clock.wall() + 3600
        make = {
            "schedule": lambda: executor.schedule(int, delay=3600),
            "call_later": lambda: executor.call_later(3600, int),
            "at": lambda: executor.schedule(int, at=hour),
        }[way]
        make().cancel()
        gc.collect()
        tracemalloc.start()
        handles = [make() for _ in range(count)]
        peak = tracemalloc.get_traced_memory()[0]
        kept = handles[::10]
        for number, handle in enumerate(handles):
            if number % 10:
                handle.cancel()
        del handles, handle
        await asyncio.sleep(1.01)
        left = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()

        assert left <= 0.25 * peak
        counts = executor.statistics()
        assert (len(kept), count - len(kept) + 1) == (counts.waiting, counts.cancelled)
        for handle in kept:
            handle.cancel()
        assert 0 == executor.statistics().waiting


async def test_cancelled_tasks_do_not_count_as_waiting_or_backlog(virtual_clock) -> None:
    """F33: cancelled tasks counted as awaiting execution and as backlog until their interval came."""
    async with RateLimitedExecutor("one", rate=1) as executor:
        handles = [executor.submit(int) for _ in range(10)]
        handles += [executor.schedule(int, delay=100) for _ in range(10)]
        await asyncio.sleep(0.5)
        assert executor.backlog_seconds() > 5
        for handle in handles:
            handle.cancel()

        assert 0 == executor.statistics().waiting == executor.statistics().overdue
        assert 0 == executor.backlog_seconds()


async def test_cancelled_tasks_do_not_use_permits(virtual_clock, starts) -> None:
    """F33: a task cancelled after its interval had been collected used its slot up."""
    async with RateLimitedExecutor("one", rate=10) as executor:
        handles = [executor.submit(starts, number) for number in range(100)]
        for handle in handles[:90]:
            handle.cancel()
        await asyncio.sleep(2)

    assert list(range(90, 100)) == starts.names
    assert starts.times[-1] <= 1.0
