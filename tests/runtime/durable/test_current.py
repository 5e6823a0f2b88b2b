"""A function can read which durable task it runs as; only that function, and what it calls, can."""

import asyncio
import threading
from contextvars import ContextVar

import pytest

from ratelimited_executor import Retry
from ratelimited_executor.durable import CurrentTask, MemoryStore, current_task

from .conftest import Process


async def test_task_knows_itself_in_every_attempt(process):
    """The id stays, earlier attempts are counted, and an asyncio task that the function starts sees both, too."""
    seen = []

    async def look():
        seen.append(current_task())

    @process.tasks.task(name="work", version=3, retry=Retry(3, base=0.1, on=ValueError))
    async def work():
        await look()
        await asyncio.sleep(0.1)
        await asyncio.create_task(look())
        if len(seen) < 6:
            raise ValueError

    async with process.tasks:
        ref = await work.put(lane="a", priority=2)
    await process.run(5)
    assert [
        CurrentTask(id=ref.id, name="work", version=3, priority=2.0, lane="a", attempt_count=count, lost_count=0)
        for count in (0, 0, 1, 1, 2, 2)
    ] == seen


@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_tasks_that_run_at_once_see_each_its_own(process, is_async, is_set):
    """Each of several running tasks sees itself, and also the context variables with which ``running`` was entered."""
    variable = ContextVar("variable", default=None)
    if is_set:
        variable.set("mine")
    seen = []

    def plain(what):
        seen.append((what, current_task().id, variable.get()))

    async def late(what):
        await asyncio.sleep(0.1)
        plain(what)

    work = process.tasks.task(late if is_async else plain)
    async with process.executor, process.tasks.running(process.executor):
        for n in range(20):
            await work.put(n, id=f"id {n}")
        await asyncio.sleep(1)
        assert [(n, f"id {n}", "mine" if is_set else None) for n in range(20)] == sorted(seen)
        assert await process.executor.schedule(current_task) is None
    assert current_task() is None


@pytest.mark.real_time("worker threads take real time")
async def test_function_in_a_thread_knows_its_task():
    """A function in a worker thread sees its task, and other work in that thread sees none."""
    process = Process(MemoryStore())
    seen = []

    @process.tasks.task(in_thread=True)
    def work():
        assert threading.current_thread() is not threading.main_thread()
        seen.append(current_task().id)

    async with process.executor, process.tasks.running(process.executor):
        for id in "ab":
            await work.put(id=id)
        async with asyncio.timeout(20):
            while len(seen) < 2:
                await asyncio.sleep(0.01)
        assert await process.executor.schedule(current_task, in_thread=True) is None
    assert ["a", "b"] == sorted(seen)
