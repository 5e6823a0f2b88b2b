"""Calls in threads run in the user's own pool, and each begins once or never."""

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from types import SimpleNamespace

import pytest

from ratelimited_executor import Rate, RateLimitedExecutor, RunTimeoutError, TaskState
from ratelimited_executor._runtime.task import deferred
from ratelimited_executor.testing import audit

var: contextvars.ContextVar[str] = contextvars.ContextVar("var")


@pytest.fixture
def pool():
    """A pool of one thread with a name of its own."""
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        yield pool


def thread_name(*_: object) -> str:
    return threading.current_thread().name


async def test_calls_in_threads_run_in_the_pool(virtual_clock, pool, account):
    """Tasks, repetitions and the futures face run calls in threads in the pool; other calls stay on the loop."""
    names = []
    async with RateLimitedExecutor("x", thread_pool=pool) as executor:
        assert "mine_0" == await executor.submit(thread_name, in_thread=True)
        assert "mine_0" == await asyncio.wrap_future(executor.as_futures_executor().submit(thread_name))
        await executor.schedule_at_fixed_rate(lambda: names.append(thread_name()), period=1, max_runs=2, in_thread=True)
        assert "mine" not in await executor.submit(thread_name)
        account(executor)
    assert ["mine_0", "mine_0"] == names
    assert "mine_0" == pool.submit(thread_name).result()  # the pool is not shut down


async def test_workers_of_a_face_are_its_own(virtual_clock, pool):
    """A futures face with ``max_workers`` has threads of its own."""
    async with RateLimitedExecutor("x", thread_pool=pool) as executor:
        assert "mine" not in await asyncio.wrap_future(executor.as_futures_executor(2).submit(thread_name))


async def test_context_is_that_of_the_task(virtual_clock, pool):
    """A call in the pool sees the context variables of its scheduling, or runs in the context given."""
    async with RateLimitedExecutor("x", thread_pool=pool) as executor:
        var.set("mine")
        handle = executor.schedule(var.get, delay=1, in_thread=True)
        var.set("later")
        assert "mine" == await handle
        context = contextvars.copy_context()
        await executor.submit(var.set, "set", context=context, in_thread=True)
        assert ("set", "later") == (context[var], var.get())


@pytest.mark.parametrize("error", [ZeroDivisionError("one"), StopIteration(5)], ids=["error", "StopIteration"])
async def test_failure_goes_to_the_handle(virtual_clock, pool, error):
    """A failure in the pool goes to the handle, even ``StopIteration``, which no future can carry."""

    def fail():
        raise error

    async with RateLimitedExecutor("x", thread_pool=pool) as executor:
        handle = executor.submit(fail, in_thread=True)
        await asyncio.wait([handle])
    found = handle.exception()
    assert error in (found, found.__cause__)
    assert TaskState.FAILED is handle.state


async def test_async_function_is_refused_there_too(virtual_clock, pool):
    """An async function with ``in_thread=`` is refused: in a worker thread nobody would run its coroutine."""
    async with RateLimitedExecutor("x", thread_pool=pool) as executor:
        with pytest.raises(TypeError, match="leave in_thread= out"):
            await executor.submit(asyncio.sleep, 1, in_thread=True)


async def test_pool_that_was_shut_down_fails_the_task(virtual_clock, pool, account):
    """The error of a pool that was shut down fails the task, and the executor continues."""
    async with RateLimitedExecutor("x", thread_pool=pool) as executor:
        pool.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await executor.submit(int, in_thread=True)
        assert 0 == await executor.submit(int)
        account(executor)


@pytest.mark.parametrize("own", [True, False], ids=["pool", "threads"])
@pytest.mark.parametrize("how", ["cancel", "run_timeout"])
async def test_call_that_waits_for_a_thread_never_begins_once_it_is_given_up(virtual_clock, pool, own, how):
    """A task given up ends at once: its call in a thread finishes if it has begun, and else never begins."""
    release, begun, held, log = threading.Event(), threading.Event(), threading.Event(), []

    def hold():
        begun.set()
        release.wait(30)
        log.append("held")
        held.set()

    options = {"thread_pool": pool} if own else {"max_threads": 1}
    async with RateLimitedExecutor("x", **options) as executor:
        seconds = {"run_timeout": 1} if how == "run_timeout" else {}
        first = executor.submit(hold, in_thread=True, **seconds)
        second = executor.submit(log.append, "begun", in_thread=True, **seconds)
        while not begun.is_set():
            await asyncio.sleep(0)
        if how == "cancel":
            assert (True, True) == (first.cancel(), second.cancel())
            await asyncio.wait([first, second])
            assert (True, True) == (first.cancelled(), second.cancelled())
        else:
            asyncio.get_running_loop().block_for(2)
            await asyncio.wait([first, second])
            assert {RunTimeoutError} == {type(first.exception()), type(second.exception())}
        release.set()
        last = await executor.submit(thread_name, in_thread=True)
        assert ("mine" in last) == own
    assert held.wait(30)  # without a pool, the last call may run in another thread before this one has ended
    assert ["held"] == log


async def test_each_call_takes_effect_once(virtual_clock, pool):
    """A call takes effect once: when a thread begins with it, or when it is certain that none will."""
    from ratelimited_executor._runtime.task.launch import ThreadCall, Threads

    where, release = [], threading.Event()
    threads = Threads(40, pool)

    def begin(call):
        call = ThreadCall(call, (), contextvars.Context(), threads)
        call.start = SimpleNamespace(
            begin=lambda: not where.append(thread_name()), drop=lambda: where.append("dropped")
        )
        return asyncio.ensure_future(call.run())

    running, waiting = begin(lambda: release.wait(30)), begin(int)
    while not where:
        await asyncio.sleep(0)
    waiting.cancel()
    running.cancel()
    await asyncio.wait([running, waiting])
    release.set()
    await asyncio.get_running_loop().run_in_executor(pool, int)
    assert ["mine_0", "dropped"] == where


@pytest.mark.real_time("threads begin when the machine lets them")
@pytest.mark.parametrize("threads", ["own", "given"])
async def test_calls_count_from_when_a_thread_begins_with_them(pool, threads, monkeypatch):
    """A call that waits for a thread counts in the window from when the thread begins with it, and no sooner."""
    begins: list[tuple[int, int]] = []
    begin = deferred.begin

    def noted_begin(effects, now_ns):
        begins.append((threading.get_ident(), now_ns))
        return begin(effects, now_ns)

    def call(number: int) -> None:
        assert number == len(begins)
        assert threading.get_ident() == begins[-1][0]
        time.sleep(0.25 if number == 3 else 0.001)

    monkeypatch.setattr(deferred, "begin", noted_begin)
    options = {"max_threads": 1} if threads == "own" else {"thread_pool": pool}
    async with RateLimitedExecutor("x", rate=Rate(3, per=0.3), **options) as executor:
        await asyncio.gather(*(executor.submit(call, number, in_thread=True) for number in range(1, 13)))
    first_ns = begins[0][1]
    assert audit([(now_ns - first_ns) / 1e9 for _, now_ns in begins], Rate(3, per=0.3)).ok


def test_pool_of_processes_is_refused():
    """A pool of processes is refused: it could not run calls in their context."""
    with concurrent.futures.ProcessPoolExecutor(1) as processes:
        with pytest.raises(TypeError, match="thread_pool must run calls in threads"):
            RateLimitedExecutor("x", thread_pool=processes)


def test_pool_and_number_of_threads_exclude_each_other(pool):
    """``max_threads`` and ``thread_pool`` together are refused."""
    with pytest.raises(TypeError, match="max_threads and thread_pool exclude each other"):
        RateLimitedExecutor("x", thread_pool=pool, max_threads=3)
