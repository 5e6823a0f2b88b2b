"""No task is lost, whatever raises and whenever the task arrives (F7, F9, F11, F12)."""

import asyncio
import random
import threading

import pytest

from ratelimited_executor import ExecutorManager, RateLimitedExecutor, TaskState
from ratelimited_executor.orders import latest_due_first


class Moody:
    """A sort key whose comparison is inconsistent, and raises sometimes."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def __lt__(self, other: object) -> bool:
        if self._generator.random() < 0.2:
            raise ValueError("Comparison method violates its general contract")
        return self._generator.random() < 0.5


def _raising(task: object) -> int:
    raise RuntimeError("no order today")


def _sometimes_raising(task: object) -> int:
    if task.arrival % 3 == 0:
        raise RuntimeError("not this one")
    return task.arrival


@pytest.mark.parametrize(
    "order",
    [
        _raising,
        _sometimes_raising,
        lambda task, generator=random.Random(1): Moody(generator),
        lambda task: None,
        lambda task: object(),
        lambda task: task.arrival if task.arrival % 2 else "text",
        lambda task: float("nan"),
    ],
    ids=["raises", "raises at times", "contradicts itself", "None", "no order", "mixed types", "NaN"],
)
async def test_order_that_raises_does_not_lose_a_task(virtual_clock, starts, order) -> None:
    """F7: tasks were taken out before they were sorted, and were gone if the comparator raised."""
    async with RateLimitedExecutor("one", rate=10, order=order) as executor:
        handles = [executor.submit(starts, number) for number in range(40)]
        handles += [executor.schedule(starts, 40 + number, delay=1.5) for number in range(40)]
        for number in range(20):
            executor.call_later(0.5, starts, 80 + number)
        executor.schedule_many(starts, range(100, 120), delay=1)
        await asyncio.sleep(30)
        counts = executor.statistics()

    assert (120, 120, 0) == (counts.accepted, counts.done, counts.waiting)
    assert list(range(120)) == sorted(starts.names)
    assert {TaskState.DONE} == {handle.state for handle in handles}


async def test_order_that_raises_does_not_stop_other_executors(virtual_clock, starts) -> None:
    """F7: an inconsistent comparator of one executor lost the tasks of all executors in that tick."""
    async with ExecutorManager() as manager:
        bad = manager.executor("bad", rate=5, order=_raising)
        good = manager.executor("good", rate=5, order=latest_due_first)
        for number in range(20):
            bad.submit(starts, "bad")
            good.submit(starts, "good")
        await asyncio.sleep(6)

    assert 20 == len(starts.times_of("bad")) == len(starts.times_of("good"))


async def test_order_that_reads_a_clock_does_not_contradict_itself(virtual_clock, starts) -> None:
    """F7: the documented sample comparator read the live clock, and so broke the sort."""
    calls = []

    def by_remaining_time(task) -> float:
        calls.append(task.name)
        return task.due - virtual_clock.wall()

    async with RateLimitedExecutor("one", rate=10, order=by_remaining_time) as executor:
        for number in range(50):
            executor.schedule(starts, number, delay=1, name=str(number))
        await asyncio.sleep(10)

    assert sorted(calls) == sorted(str(number) for number in range(50))
    assert list(range(50)) == sorted(starts.names)


async def test_start_that_fails_does_not_lose_the_rest_of_the_interval(virtual_clock, starts, reported) -> None:
    """F9: when one hand-off was refused, the rest of the interval of all executors was lost."""

    class Own(BaseException):
        pass

    def fail(error: BaseException) -> None:
        raise error

    async with ExecutorManager() as manager:
        first, second = manager.executor("first", rate=50), manager.executor("second")
        failing = [first.schedule(fail, error(), delay=1) for error in (RuntimeError, Own, asyncio.CancelledError)]
        for _ in range(20):
            first.schedule(starts, "first", delay=1)
            second.schedule(starts, "second", delay=1)
        second.execute(fail, Own())
        first.call_later(1, fail, Own())
        await asyncio.sleep(3)

    assert 20 == len(starts.times_of("first")) == len(starts.times_of("second"))
    assert ["FAILED", "FAILED", "CANCELLED"] == [handle.state.name for handle in failing]
    assert 2 == len(reported)
    assert all(isinstance(handle.exception(), (RuntimeError, Own)) for handle in failing[:2])


async def test_loop_that_refuses_a_task_does_not_lose_the_rest(virtual_clock, starts, reported) -> None:
    """F9: a worker pool that refused one task ended the dispatch loop; here, a task factory that raises."""
    loop = asyncio.get_running_loop()
    refusals = iter([True, False])

    def factory(loop, coroutine, **options):
        if coroutine.__qualname__.endswith("work") and next(refusals, False):
            coroutine.close()
            raise RuntimeError("no more tasks")
        return asyncio.Task(coroutine, loop=loop, **options)

    async def work() -> None:
        starts("work")

    async with RateLimitedExecutor("one", rate=50) as executor:
        loop.set_task_factory(factory)
        try:
            handles = [executor.schedule(work, delay=1) for _ in range(10)]
            executor.schedule(starts, "plain", delay=1)
            await asyncio.sleep(3)
        finally:
            loop.set_task_factory(None)
        counts = executor.statistics()

    assert 9 == len(starts.times_of("work"))
    assert 1 == len(starts.times_of("plain"))
    assert [TaskState.FAILED] + [TaskState.DONE] * 9 == [handle.state for handle in handles]
    assert (11, 0, 0, 10, 1) == (counts.accepted, counts.waiting, counts.running, counts.done, counts.failed)
    assert "no more tasks" == str(handles[0].exception())


async def test_task_that_arrives_at_the_border_of_an_interval_is_not_lost(virtual_clock, starts) -> None:
    """F11: a task scheduled while the tick emptied its interval fell into a list that nobody looked at again."""
    loop = asyncio.get_running_loop()
    generator = random.Random(11)
    async with ExecutorManager(interval=0.1) as manager:
        executor = manager.executor("one")
        handles = []

        def arrive(delay: float) -> None:
            handles.append(executor.schedule(starts, delay=delay))
            executor.call_later(delay, starts)
            handles.append(executor.schedule(starts, at=virtual_clock.wall() + delay))

        for border in range(1, 200):
            for offset in (-1e-6, -1e-9, 0.0, 1e-9, 1e-6):
                loop.call_at(border / 10 + offset, arrive, generator.choice([0.0, 1e-9, 1e-6, 0.1, 0.1 - 1e-9, 0.3]))
        await asyncio.sleep(25)
        counts = executor.statistics()

    assert 199 * 5 * 3 == len(starts.times) == counts.done
    assert all(handle.lateness <= 0.1 + 1e-6 for handle in handles)


async def test_task_that_arrives_after_a_stall_is_not_lost(virtual_clock, starts) -> None:
    """F11: a late tick found past intervals gone; a task that was just being added to one of them was lost."""
    generator = random.Random(12)
    async with ExecutorManager(interval=0.1) as manager:
        executor = manager.executor("one", rate=500)
        for _ in range(300):
            virtual_clock.block(generator.choice([0.0, 0.05, 0.1, 0.35, 2.0]))
            for _ in range(5):
                executor.schedule(starts, delay=generator.choice([0.0, 0.01, 0.1, 0.2, 0.5]))
                executor.call_later(generator.choice([0.0, 0.01, 0.1, 0.2, 0.5]), starts)
            await asyncio.sleep(generator.choice([0.0, 0.02, 0.1]))
        await asyncio.sleep(12)
        counts = executor.statistics()

    assert 3000 == counts.done == len(starts.times)


async def test_task_from_another_thread_is_not_lost() -> None:
    """F11: in 9 of 72 runs of a benchmark with 16 threads, a task or two were never run."""
    ran = []
    async with ExecutorManager(interval=0.01) as manager:
        executor = manager.executor("one")

        def produce(thread: int) -> None:
            for number in range(250):
                executor.schedule_threadsafe(ran.append, (thread, number), delay=number / 5000)

        threads = [threading.Thread(target=produce, args=(thread,)) for thread in range(16)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            await asyncio.sleep(0.001)
        while executor.statistics().accepted < 4000:
            await asyncio.sleep(0.001)

    assert sorted((thread, number) for thread in range(16) for number in range(250)) == sorted(ran)


async def test_idle_intervals_do_not_leak(virtual_clock) -> None:
    """F12: every idle interval left a runner in a map for ever: 1456 of 2000."""
    async with ExecutorManager(interval=0.01) as manager:
        executors = [manager.executor(str(number), rate=100) for number in range(3)]
        executors[0].schedule_at_fixed_rate(int, period=0.5)
        await asyncio.sleep(1)
        before = _held(manager, executors)
        await asyncio.sleep(60)
        assert before == _held(manager, executors)


def _held(manager, executors) -> list[int]:
    """Count the objects that the runner and the calendars hold."""
    counts = [len(manager._runner._heap)]
    for executor in executors:
        queue = executor._engine.queue
        for calendar in (queue.on_time, queue.spread):
            counts += [len(calendar.future), len(calendar.numbers), len(calendar.groups), len(calendar.opened)]
        counts += [len(queue.chores), len(queue.expiry._numbers), len(queue.wall._numbers)]
    return counts


async def test_submission_does_not_burn_a_permit(virtual_clock, starts) -> None:
    """F12: a submission that came between two steps of the tick used up a slot, and landed in the overflow."""
    async with RateLimitedExecutor("one", rate=100) as executor:
        await asyncio.sleep(0.5)
        for _ in range(400):
            executor.submit(starts)
            await asyncio.sleep(0.005)
        await asyncio.sleep(5)

    assert 400 == len(starts.times)
    assert starts.times[-1] - starts.times[0] == pytest.approx(3.99, abs=0.03)
