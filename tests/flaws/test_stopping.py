"""Closing an executor does not stop its manager, and ends or returns everything it held (F1, F8, F18, F20, F38)."""

import asyncio
import threading

import pytest

from ratelimited_executor import (
    ExecutorManager,
    ExecutorStoppedError,
    RateLimitedExecutor,
    TaskState,
)


async def test_closing_one_executor_does_not_stop_the_others(virtual_clock, starts) -> None:
    """F1: a terminated executor made the manager's tick raise, so that no executor ever ran anything again."""
    async with ExecutorManager() as manager:
        first, second, third = (manager.executor(name) for name in ("first", "second", "third"))
        for second_of_day in range(1, 11):
            first.schedule(starts, "first", delay=second_of_day)
            third.schedule(starts, "third", delay=second_of_day)
        await asyncio.sleep(3.5)
        await second.aclose()
        await third.shutdown(cancel_pending=True)

        await asyncio.sleep(10)

        assert [float(time) for time in range(1, 11)] == starts.times_of("first")
        assert [1.0, 2.0, 3.0] == starts.times_of("third")
        assert ["first"] == list(manager.executors)


async def test_closing_one_executor_does_not_lose_what_others_have_due_in_that_interval(virtual_clock, starts) -> None:
    """F1: tasks that earlier executors had handed over in the failing tick were lost."""
    async with ExecutorManager() as manager:
        closed = manager.executor("closed")
        others = [manager.executor(f"other {number}") for number in range(5)]
        closed.schedule(starts, "closed", delay=2.5)
        handles = [other.schedule(starts, "other", delay=2.5) for other in others]
        await asyncio.sleep(2.25)
        await asyncio.gather(closed.aclose(), *handles)

        assert 6 == len(starts.entries)


async def test_cutting_short_does_not_run_what_it_cancelled(virtual_clock, starts) -> None:
    """F8: an immediate shutdown returned the overflow as never started, and ran it all the same."""
    executor = RateLimitedExecutor("one", rate=1)
    await executor.start()
    overflow = [executor.submit(starts, "overflow") for _ in range(20)]
    future = [executor.schedule(starts, "future", delay=30) for _ in range(20)]
    await asyncio.sleep(2.5)
    begun = [handle for handle in overflow if handle.state is TaskState.DONE]

    await executor.shutdown(cancel_pending=True)
    await asyncio.sleep(120)

    assert len(begun) == len(starts.entries) == 3
    assert {TaskState.CANCELLED} == {handle.state for handle in [*overflow, *future] if handle not in begun}


async def test_cutting_short_does_not_leave_a_future_pending(virtual_clock) -> None:
    """F8: the futures of discarded tasks were never completed, and callables with a result were not even reported."""
    executor = RateLimitedExecutor("one", rate=2)
    await executor.start()

    async def forever() -> None:
        await asyncio.Event().wait()

    handles = [executor.submit(forever), executor.submit(int, 5), executor.schedule(int, 5, delay=3600)]
    handles += [executor.schedule(int, 5, at=virtual_clock.wall() + 3600)]
    batch = executor.schedule_many(int, range(10), delay=60)
    every = executor.schedule_at_fixed_rate(int, period=3)
    waiter = asyncio.ensure_future(executor.acquire())
    await asyncio.sleep(0)

    await executor.shutdown(cancel_pending=True)

    assert all(handle.done() for handle in handles)
    assert every.cancelled()
    assert 10 == (await batch).cancelled
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_cutting_short_does_not_miscount_what_was_cancelled(virtual_clock) -> None:
    """F8: what an immediate shutdown had discarded was reported nowhere, or twice."""
    executor = RateLimitedExecutor("one", rate=5)
    await executor.start()
    for position in range(50):
        executor.submit(int)
        executor.schedule(int, delay=position)
        executor.execute(int)
        executor.call_later(position, int)
    executor.schedule_many(int, range(100), over=100)
    await asyncio.sleep(3.25)

    await executor.shutdown(cancel_pending=True)

    counts = executor.statistics()
    assert (300, 0, 0) == (counts.accepted, counts.waiting, counts.running)
    assert counts.accepted == counts.done + counts.cancelled
    assert counts.started == counts.done


async def test_termination_is_not_reported_while_a_task_waits_or_runs(virtual_clock) -> None:
    """F18 and F37: `isTerminated` ignored what had been handed over, and was true before the last body had started."""
    executor = RateLimitedExecutor("one")
    await executor.start()
    log: list[str] = []

    async def work() -> None:
        log.append("began")
        await asyncio.sleep(5)
        log.append("ended")

    executor.schedule(work, delay=2.5)
    executor.schedule(int, delay=5.5)  # this one ends while the other runs
    executor.shutdown()
    seen: list[tuple[bool, list[str]]] = []
    while not executor.is_terminated:
        seen.append((executor.is_terminated, list(log)))
        await asyncio.sleep(0.05)

    assert ["began", "ended"] == log
    assert all(not terminated for terminated, _ in seen)
    assert await executor.await_termination(0)


async def test_asking_for_termination_does_not_raise_while_tasks_come_and_go(virtual_clock) -> None:
    """F18: `isTerminated` raised when it met a list that a tick had just emptied, and left another locked."""
    executor = RateLimitedExecutor("one", rate=50)
    await executor.start()
    handles = [executor.schedule(int, delay=number / 25) for number in range(250)]
    executor.shutdown(wait=False)

    answers = []
    while not (answers and answers[-1]):
        answers.append(executor.is_terminated)
        if len(answers) % 7 == 0:
            handles.pop().cancel()
        await asyncio.sleep(0.03)

    assert all(handle.done() for handle in handles)


async def test_closing_the_manager_does_not_leave_executors_accepting(virtual_clock) -> None:
    """F20: after `manager.shutdown` executors accepted tasks that never ran and never ended."""
    async with ExecutorManager() as manager:
        executor = manager.executor("one")
        handle = executor.schedule(int, delay=3)

    assert handle.done()
    assert executor.is_terminated
    with pytest.raises(ExecutorStoppedError):
        executor.submit(int)
    with pytest.raises(ExecutorStoppedError):
        executor.call_soon(int)
    with pytest.raises(ExecutorStoppedError):
        executor.schedule_many(int, [1])
    with pytest.raises(ExecutorStoppedError):
        manager.executor("two")


async def test_closing_the_manager_does_not_leave_a_future_pending(virtual_clock) -> None:
    """F20: nothing was completed or cancelled when the manager was shut down."""
    with pytest.raises(RuntimeError, match="boom"):
        async with ExecutorManager() as manager:
            handles = [manager.executor(str(number)).schedule(int, delay=3600) for number in range(3)]
            raise RuntimeError("boom")

    assert [TaskState.CANCELLED] * 3 == [handle.state for handle in handles]
    assert 0 == virtual_clock.monotonic()


async def test_executor_of_its_own_manager_does_not_leave_repeating_tasks_unfired(virtual_clock, starts) -> None:
    """F38: wired as documented, factory and manager disagreed on the interval, and repeating tasks never fired."""
    async with RateLimitedExecutor("alone") as alone, ExecutorManager(interval=0.25) as manager:
        alone.schedule_at_fixed_rate(starts, "alone", period=1)
        manager.executor("managed").schedule_at_fixed_rate(starts, "managed", period=1)
        await asyncio.sleep(4.5)

    assert [0.0, 1.0, 2.0, 3.0, 4.0] == starts.times_of("alone") == starts.times_of("managed")


async def test_closing_does_not_leave_threads_timers_or_tasks_behind(virtual_clock) -> None:
    """F38: a manager wired as documented left a pool of four threads alive after its shutdown."""
    threads, tasks = threading.active_count(), asyncio.all_tasks()
    async with RateLimitedExecutor("alone", rate=10) as executor:
        executor.schedule_at_fixed_rate(int, period=1)
        executor.schedule(int, delay=3)
        executor.schedule_many(int, iter(range(5)))
        await asyncio.sleep(1)
    await asyncio.sleep(0)

    assert threads == threading.active_count()
    assert tasks == asyncio.all_tasks()
    loop = asyncio.get_running_loop()
    assert [] == [timer for timer in loop._scheduled if not timer.cancelled()]
