"""A context manager of the user's surrounds each attempt."""

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

import pytest

from ratelimited_executor import RateLimitedExecutor, Retry
from ratelimited_executor.durable import DurableTasks, MemoryStore, current_task

tenant = ContextVar("tenant", default=None)


class Log(list):
    """What happened, in order, with an async and a plain context manager that write into it."""

    @asynccontextmanager
    async def later(self, task):
        """Enter and leave over a suspension."""
        await asyncio.sleep(0.01)
        with self.plain(task):
            yield
        await asyncio.sleep(0.01)

    @contextmanager
    def plain(self, task):
        """Set a context variable, and tell how the attempt ended."""
        assert task == current_task()
        tenant.set(task.lane)
        self.append(("enter", task.name, task.attempt_count))
        try:
            yield
        except BaseException as error:
            self.append(("error", type(error).__name__, threading.current_thread() is threading.main_thread()))
            raise
        self.append("leave")


@pytest.fixture
def log():
    """An empty log."""
    return Log()


async def run(tasks, *new, seconds=5.0):
    """Put tasks and run them; return the statistics."""
    async with RateLimitedExecutor("x") as executor, tasks.running(executor) as runner:
        await tasks.put_many(new)
        await asyncio.sleep(seconds)
        return runner.statistics()


@pytest.mark.parametrize("kind", ["later", "plain"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_each_attempt_is_surrounded(virtual_clock, log, kind, is_async):
    """The context manager gets the task, sees its error, and what it sets is seen by the function; each attempt has its own."""
    tasks = DurableTasks(MemoryStore(), around=getattr(log, kind))
    seen = []

    def work(name):
        seen.append((name, tenant.get()))
        if current_task().attempt_count == 0:
            raise ValueError

    async def later(name):
        work(name)
        await asyncio.sleep(0.1)

    function = tasks.task(name="work", retry=Retry(2, base=0.1, on=ValueError))(later if is_async else work)
    statistics = await run(tasks, function.new("a", lane="red"))
    assert [("a", "red")] * 2 == seen
    assert [("enter", "work", 0), ("error", "ValueError", True), ("enter", "work", 1), "leave"] == log
    assert {"work": {"done": 1, "retried": 1}} == statistics.by_function
    assert tenant.get() is None


async def test_a_direct_call_is_not_surrounded(virtual_clock, log):
    """Only attempts of tasks are."""
    tasks = DurableTasks(MemoryStore(), around=log.plain)
    work = tasks.task(name="work")(lambda: tenant.get() or "plain")
    assert work() == "plain"
    assert [] == log


async def test_result_is_kept_and_cancellation_is_seen(virtual_clock, log):
    """The function's result passes through, and an attempt that is cancelled leaves the context manager."""
    tasks = DurableTasks(MemoryStore(), around=log.later)
    double = tasks.task(name="double", keep=60, keep_result=True)(lambda x: 2 * x)
    slow = tasks.task(name="slow")(lambda: asyncio.sleep(60))
    async with RateLimitedExecutor("x") as executor, tasks.running(executor):
        assert await (await double.put(21)).wait() == 42
        ref = await slow.put()
        await asyncio.sleep(1)
        await ref.cancel()
        await asyncio.sleep(1)
    assert [("enter", "slow", 0), ("error", "CancelledError", True)] == log[-2:]


async def test_what_raises_before_or_after_the_call_fails_the_attempt(virtual_clock):
    """An error of the context manager is that of the attempt, and the function is not called if it comes before."""
    calls = []

    @contextmanager
    def around(task):
        if task.name == "early":
            raise OSError("no database")
        yield
        raise OSError("no commit")

    tasks = DurableTasks(MemoryStore(), around=around)
    early, late = (tasks.task(name=name)(lambda name=name: calls.append(name)) for name in ("early", "late"))
    statistics = await run(tasks, early.new(), late.new())
    assert (["late"], {"early": {"dead": 1}, "late": {"dead": 1}}) == (calls, statistics.by_function)


@pytest.mark.real_time("worker threads take real time")
async def test_function_in_a_thread_is_surrounded_there(log):
    """A plain context manager is entered in the thread; one for coroutines, or none, fails the attempt with a sentence."""
    threads = []

    @contextmanager
    def around(task):
        threads.append(threading.get_ident())
        with log.plain(task):
            yield

    makers = {"plain": around, "later": log.later, "none": lambda _: None}
    tasks = DurableTasks(MemoryStore(), around=lambda task: makers[task.name](task))
    for name in makers:
        tasks.task(name=name, in_thread=True)(lambda: threads.append(threading.get_ident()))
    new = [tasks.functions[name, 1].new() for name in makers]
    async with tasks, RateLimitedExecutor("x") as executor, tasks.running(executor) as runner:
        await tasks.put_many(new)
        async with asyncio.timeout(20):
            while sum((runner.statistics().done, runner.statistics().dead)) < 3:
                await asyncio.sleep(0.005)
        rows = {row.name: row.error for row in await tasks.rows()}
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads
    assert "must return a plain context manager for 'later', which runs in a thread" in rows["later"]
    assert "must return a context manager for 'none', got None" in rows["none"]


def test_what_cannot_be_called_is_refused():
    """The argument is named."""
    with pytest.raises(TypeError, match="around must be a callable"):
        DurableTasks(MemoryStore(), around=5)
