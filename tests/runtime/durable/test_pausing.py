"""Pauses from outside: what processes do with the tasks that they have claimed, and with those that they would claim."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._core.durable.pauses import Pause
from ratelimited_executor._runtime.durable.outcomes import LeaseOverError
from ratelimited_executor._runtime.durable.run import DurableRun
from ratelimited_executor.durable import DurableState, DurableTasks, MemoryStore

from .conftest import Process


async def test_unstarted_tasks_are_released_and_running_ones_go_on(store):
    """A pause in another process releases claimed tasks that have not started, and lets running ones end."""
    process = Process(store, rate="1/s")
    operator = DurableTasks(store)
    async with operator, process.tasks:
        for n in range(6):
            await process.note.put(n, seconds=10 if n == 0 else 0)
        async with process.executor, process.tasks.running(process.executor, ahead=10) as runner:
            await asyncio.sleep(1.5)
            assert [0, 1] == process.names
            assert 4 == runner.statistics().waiting
            await operator.pause(function="note")
            await asyncio.sleep(0.1)
            assert (0, 1) == (runner.statistics().waiting, runner.statistics().running)
            await asyncio.sleep(60)
            counts = await operator.counts()
            assert (4, 0) == (counts[DurableState.PAUSED], counts[DurableState.CLAIMED])
            assert [0, 1] == process.names
            assert (2, 4) == (runner.statistics().done, runner.statistics().released)
            assert await operator.resume(function="note")
            await asyncio.sleep(6)
            assert [0, 1, 2, 3, 4, 5] == process.names


async def test_a_lost_notice_is_made_good_by_the_next_beat(store):
    """A process that misses the notice of a pause releases its unstarted tasks at its next beat."""
    process = Process(store, rate="1/m", lease=15)
    async with process.executor, process.tasks.running(process.executor) as runner:
        for n in range(3):
            await process.note.put(n)
        await asyncio.sleep(1)
        assert 2 == runner.statistics().waiting
        store._table.pause(store._now_us(), Pause(function="note"), None)
        await asyncio.sleep(5)
        assert 0 == runner.statistics().waiting
        assert 2 == (await process.tasks.counts())[DurableState.PAUSED]


async def test_other_tasks_start_meanwhile_and_the_end_is_noticed(store):
    """During a pause of a queue, a lane or a key, others start; after its end, tasks start within seconds without any call."""
    process, other = Process(store), Process(store, queue="other")
    async with process.tasks as tasks:
        until = tasks._clock.wall() + 60
        await tasks.pause(queue="other", until=until)
        await tasks.pause(lane="l")
        await tasks.pause(key=7)
        await other.note.put("queue")
        await process.note.put("lane", lane="l")
        await process.note.put("key", key=7)
        await process.note.put("text", key="7")
        await asyncio.gather(process.run(70), other.run(70))
        assert ["text"] == process.names
        assert ["queue"] == other.names
        assert 60 <= other.ran[0][1] <= 66
        assert {("l", None), (None, 7)} == {(row.lane, row.key) for row in await tasks.paused()}


async def test_pauses_are_refused_without_a_name_and_beyond_the_limit(store):
    """A pause names something; a hundred may be in force, each of which may get another end."""
    async with DurableTasks(store) as tasks:
        for call in (tasks.pause, tasks.resume):
            with pytest.raises(TypeError, match="takes function=, queue=, lane= or key="):
                await call()
        with pytest.raises(TypeError, match="until"):
            await tasks.pause(function="f", until="tomorrow")
        for n in range(100):
            await tasks.pause(key=n)
        with pytest.raises(ValueError, match="at most 100 pauses"):
            await tasks.pause(key="another")
        await tasks.pause(key=99, until=10**9)
        await tasks.resume(key=98)
        await tasks.pause(key="another")
        assert {*range(98), "another"} <= {row.key for row in await tasks.paused()}


@pytest.mark.real_time("a worker thread")
async def test_a_task_that_begins_in_its_thread_is_not_released():
    """A pause leaves a task alone that a thread has begun, although the event loop has not heard of that yet."""
    tasks, ran, late = DurableTasks(MemoryStore()), [], []
    begun, goes_on = threading.Event(), threading.Event()

    @tasks.task(in_thread=True)
    def work():
        ran.append(1)
        begun.set()
        goes_on.wait(10)

    async with RateLimitedExecutor("x") as executor, tasks.running(executor) as runner:
        started, runner._started = runner._started, late.append  # as on a loop that is busy
        await work.put()
        assert await asyncio.to_thread(begun.wait, 10)
        await tasks.pause(function="work")
        await runner._release_paused()
        started(late.pop())
        goes_on.set()
        async with asyncio.timeout(10):
            while runner.statistics().done + runner.statistics().released == 0:
                await asyncio.sleep(0)
        assert (1, 0) == (runner.statistics().done, runner.statistics().released)
        await tasks.resume(function="work")
    assert [1] == ran


def test_a_task_that_is_released_does_not_begin():
    """A thread that comes to a task after that was released runs nothing of it; on the loop there is nothing between."""
    for in_thread in (True, False):
        function = DurableTasks(MemoryStore()).task(in_thread=in_thread)(_never)
        claimed = SimpleNamespace(saved=None)
        run = DurableRun(None, claimed, function, (), {}, "")
        assert run.stop()
        if in_thread:
            assert not run.stop()
            with pytest.raises(LeaseOverError):
                run()


def _never():
    raise AssertionError("it was released")
