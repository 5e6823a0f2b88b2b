"""What the task that runs a coroutine is to that coroutine, to libraries and to debuggers: a task of asyncio, from end to end."""

import asyncio
import contextvars
import gc
import inspect
import io
import sys
import traceback
import weakref
from types import SimpleNamespace

import anyio
import anyio.to_thread
import pytest

from ratelimited_executor import RateLimitedExecutor, TaskState
from ratelimited_executor._kernel.choice import compiled
from ratelimited_executor._kernel.records import Record
from ratelimited_executor._runtime.task.contexts import SharedContexts
from ratelimited_executor._runtime.task.coroutines import Coroutines

compiled_only = pytest.mark.skipif(compiled is None, reason="in pure Python a frame of ours lies between")


async def run(work, *args):
    """Run a coroutine function through an executor."""
    async with RateLimitedExecutor("x") as executor:
        return await executor.submit(work, *args)


@pytest.fixture
def starter():
    """Return a function that starts a coroutine without an executor, and a log of the ends."""
    log = []
    accounts = SimpleNamespace(
        running={},
        done=lambda owner, result: log.append(result),
        raised=lambda owner, error, origin: log.append(repr(error)),
    )

    def start(coroutine, context):
        coroutines = Coroutines(
            asyncio.get_running_loop(),
            accounts=accounts,
            queue=SimpleNamespace(counts_effects=False),
            contexts=SharedContexts(),
            moments=None,
            on_free=lambda: None,
        )
        record = Record()
        coroutines.start(record, coroutine, context)
        return record

    return start, log


async def test_first_step_is_taken_in_the_turn_of_the_start(virtual_clock):
    """Whatever the interpreter and the kernel: what is called soon by the task before comes later."""
    log = []

    async def work():
        log.append("first step")
        await asyncio.sleep(0)
        log.append("second step")

    async with RateLimitedExecutor("x") as executor:
        executor.call_soon(lambda: asyncio.get_running_loop().call_soon(log.append, "called soon"))
        executor.call_soon(work)
        executor.call_soon(log.append, "next task")
    assert ["first step", "next task", "called soon", "second step"] == log


@pytest.mark.parametrize("suspends", [False, True])
async def test_it_is_a_task_of_asyncio_from_the_first_line_to_the_last(virtual_clock, suspends):
    """By type, among all tasks, and always the same one; when it has ended it is done, and not there any more."""

    async def work():
        first = asyncio.current_task()
        assert isinstance(first, asyncio.Task)
        assert asyncio.isfuture(first)
        assert first is asyncio.ensure_future(first)
        assert first in asyncio.all_tasks()
        if suspends:
            await asyncio.sleep(1)
        assert first is asyncio.current_task()
        assert first in asyncio.all_tasks()
        return first

    task = await run(work)
    assert task.done()
    assert task is task.result()
    assert task not in asyncio.all_tasks()


async def test_task_cannot_wait_for_itself(virtual_clock):
    """As asyncio says, neither by its task nor by its handle."""

    async def work():
        with pytest.raises(RuntimeError, match="cannot await on itself"):
            await asyncio.current_task()
        return "went on"

    assert "went on" == await run(work)


@pytest.mark.parametrize("suspends", [False, True])
async def test_cancelled_in_its_last_step_it_ends_as_cancelled(virtual_clock, suspends):
    """Although it returns; the message is passed on."""

    async def work():
        if suspends:
            await asyncio.sleep(0)
        asyncio.current_task().cancel("too late")

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(work)
        with pytest.raises(asyncio.CancelledError, match="too late"):
            await handle
        assert TaskState.CANCELLED is handle.state


async def test_cancellations_are_counted_and_taken_back(virtual_clock):
    """By ``cancelling`` and ``uncancel``, by whoever cancels the task."""
    seen = []

    async def work():
        task = asyncio.current_task()
        for _ in range(2):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError as error:
                seen.append((error.args, task.cancelling()))
        seen.append((task.uncancel(), task.uncancel()))
        return "survived"

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(work)
        for message in ("one", "two"):
            await asyncio.sleep(1)
            assert handle.cancel(message)
        assert "survived" == await handle
    assert [(("one",), 1), (("two",), 2), (1, 0)] == seen


async def test_bad_yield_is_an_error_in_the_coroutine(virtual_clock):
    """With asyncio's own words."""

    class Bad:
        def __await__(self):
            yield "nonsense"

    async def work():
        await Bad()

    with pytest.raises(RuntimeError, match="Task got bad yield: 'nonsense'"):
        await run(work)


async def test_asyncio_builds_on_it(virtual_clock):
    """Timeouts, groups, shields, gathering and waiting, one within the other."""

    async def slow(seconds):
        await asyncio.sleep(seconds)
        return seconds

    async def work():
        log = []
        try:
            async with asyncio.timeout(1):
                await slow(5)
        except TimeoutError:
            log.append("timeout")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(slow(seconds)) for seconds in (1, 2)]
        log.append([task.result() for task in tasks])
        log.append(await asyncio.gather(slow(1), slow(0)))
        log.append(await asyncio.shield(slow(1)))
        try:
            await asyncio.wait_for(slow(5), 1)
        except TimeoutError:
            log.append("waited")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(slow(9))
                raise KeyError("why")
        except* KeyError:
            log.append("group")
        return log

    assert ["timeout", [1, 2], [1, 0], 1, "waited", "group"] == await run(work)


async def test_scopes_of_anyio_hold_in_it():
    """Cancel scopes, deadlines, task groups and threads, from the first step on."""

    async def work():
        log = []
        with anyio.move_on_after(0.001) as scope:
            await anyio.sleep(30)
        log.append(scope.cancelled_caught)
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.001):
                await anyio.sleep(30)
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 30)
            group.cancel_scope.cancel()
        with anyio.CancelScope() as scope:
            scope.cancel()
            with anyio.CancelScope(shield=True):
                log.append(await anyio.to_thread.run_sync(lambda: "thread"))
            await anyio.sleep(30)
        log.append(asyncio.current_task().cancelling())
        log.append(anyio.get_current_task().name.rpartition(".")[2])
        return log

    assert [True, "thread", 0, "work"] == await run(work)


@compiled_only
async def test_debuggers_find_the_coroutine_itself(virtual_clock):
    """By its stack, its frame, its state, and what it waits for."""

    async def work():
        await inner()

    async def inner():
        await asyncio.sleep(5)

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(work)
        await asyncio.sleep(1)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name().endswith("work")]
        coroutine, text = task.get_coro(), io.StringIO()
        task.print_stack(file=text)
        assert "in work" in text.getvalue()
        assert "await inner()" in text.getvalue()
        assert ["work"] == [frame.f_code.co_name for frame in task.get_stack()]
        assert inspect.CORO_SUSPENDED == inspect.getcoroutinestate(coroutine)
        assert inner.__qualname__ == coroutine.cr_await.__qualname__
        assert asyncio.iscoroutine(coroutine)
        assert inspect.isawaitable(coroutine)
        assert f"coro=<{work.__qualname__}() running at {__file__}" in repr(task)
        await handle
    assert inspect.CORO_CLOSED == inspect.getcoroutinestate(coroutine)


@compiled_only
@pytest.mark.parametrize("suspends", [False, True])
async def test_traceback_of_a_failure_is_that_of_the_coroutine(virtual_clock, suspends):
    """No line of ours lies in it."""

    async def work():
        if suspends:
            await asyncio.sleep(0)
        raise LookupError

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(work)
        await asyncio.wait([handle])
    assert ["work"] == [entry.name for entry in traceback.extract_tb(handle.exception().__traceback__)]


async def test_debug_mode_knows_where_a_task_was_made(virtual_clock):
    """asyncio keeps the stack of its making then."""
    asyncio.get_running_loop().set_debug(True)

    async def work():
        return asyncio.current_task()._source_traceback

    assert await run(work)


async def test_within_a_step_of_another_task_the_first_step_comes_when_asyncio_allows_it(starter):
    """From 3.12 on at once, as a step within the step; before that in the next turn."""
    start, log = starter

    async def work():
        log.append(asyncio.current_task())

    outer = asyncio.current_task()
    record = start(work(), contextvars.Context())
    at_once = sys.version_info >= (3, 12)
    assert at_once is bool(log)
    await asyncio.sleep(0)
    assert [record._place, None] == log
    assert outer is asyncio.current_task()


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="asyncio's own eager start does not bear it: the task stays current"
)
async def test_context_that_is_entered_already_fails_the_task(starter):
    """With Python's own error, and without a complaint about the coroutine."""
    start, log = starter

    async def work():
        log.append("ran")

    context = contextvars.Context()
    ended = asyncio.get_running_loop().create_future()

    def in_context():
        start(work(), context)
        ended.set_result(None)

    asyncio.get_running_loop().call_soon(in_context, context=context)
    await ended
    assert 1 == len(log)
    assert "RuntimeError('cannot enter context" in log[0]


async def test_nothing_is_left_of_tasks_that_have_ended():
    """Neither objects for the collector to find, nor memory: by reference counts alone."""

    async def good(suspends):
        if suspends:
            await asyncio.sleep(0)

    async def bad(suspends):
        await good(suspends)
        raise LookupError

    async def batch(executor, count):
        handles = [executor.submit(function, suspends) for function in (good, bad) for suspends in (False, True)]
        await asyncio.wait(handles)
        assert [LookupError] * 2 == [type(handle.exception()) for handle in handles[2:]]
        for _ in range(count):
            executor.execute(good, True)
            executor.execute(good, False)
            handle = executor.submit(good, True)
            await handle
        return [weakref.ref(one) for one in (*handles, handle)]

    async with RateLimitedExecutor("x") as executor:
        await batch(executor, 200)
        gc.collect()
        gc.disable()
        try:
            before = sys.getallocatedblocks()
            left = await batch(executor, 3000)
            await asyncio.sleep(0)
            assert [None] * 5 == [reference() for reference in left]
            del left
            assert sys.getallocatedblocks() - before < 500
        finally:
            gc.enable()
