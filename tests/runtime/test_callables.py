"""What can be called, in which context, and what happens to exceptions."""

import asyncio
import contextvars
import functools
import gc
import threading
import time

import pytest

from ratelimited_executor import RateLimitedExecutor, RunTimeoutError, TaskState

var = contextvars.ContextVar("var", default="unset")


class OwnExit(BaseException):
    """An error that no library expects."""


async def double(number):
    await asyncio.sleep(1)
    return 2 * number


class Caller:
    async def __call__(self, number):
        return await double(number)

    async def method(self, number):
        return await double(number)


@pytest.mark.parametrize(
    "fn", [double, functools.partial(double), lambda number: double(number), Caller(), Caller().method, lambda n: 2 * n]
)
async def test_a_callable_is_async_if_calling_it_returns_a_coroutine(virtual_clock, fn):
    """Functions, partials, lambdas, objects and methods give the result of the call, async or not."""
    async with RateLimitedExecutor("x") as executor:
        assert 42 == await executor.submit(fn, 21)


async def test_an_awaitable_that_is_no_coroutine_is_awaited(virtual_clock):
    """A callable may return a future, which is awaited."""
    async with RateLimitedExecutor("x") as executor:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(2, future.set_result, "set")
        assert "set" == await executor.submit(lambda: future)


async def test_nothing_is_called_or_inspected_when_scheduling(virtual_clock):
    """Scheduling only checks that the object can be called."""

    class Hermit:
        def __call__(self):
            return "called"

        def __getattr__(self, name):
            raise AssertionError(name)

    async with RateLimitedExecutor("x") as executor:
        assert "called" == await executor.schedule(Hermit(), delay=1, name="hermit")


async def test_plain_function_runs_inline_on_the_loop(virtual_clock):
    """A plain function runs in the loop's thread with the loop running, as with ``call_later``."""
    async with RateLimitedExecutor("x") as executor:
        assert (threading.get_ident(), asyncio.get_running_loop()) == await executor.submit(
            lambda: (threading.get_ident(), asyncio.get_running_loop())
        )


async def test_thread_runs_beside_the_loop_and_is_bounded(virtual_clock):
    """``in_thread=True`` uses worker threads, at most ``max_threads`` at a time."""
    running, peak, lock = 0, 0, threading.Lock()

    def work():
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return threading.get_ident()

    async with RateLimitedExecutor("x", max_threads=2) as executor:
        idents = await asyncio.gather(*(executor.submit(work, in_thread=True) for _ in range(6)))
    assert threading.get_ident() not in idents
    assert peak <= 2


async def test_thread_raises_into_its_handle(virtual_clock):
    """An exception in a worker thread is the task's exception."""
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(ZeroDivisionError):
            await executor.submit(lambda: 1 / 0, in_thread=True)


async def test_run_timeout_cancels_a_coroutine(virtual_clock):
    """A coroutine beyond its run timeout is cancelled, and fails with an error that says so."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(asyncio.sleep, 10, run_timeout=3, name="slow")
        with pytest.raises(RunTimeoutError, match="slow ran longer than its run_timeout of 3 s|sleep ran longer"):
            await handle
        assert (TaskState.FAILED, 3) == (handle.state, virtual_clock.monotonic())
        assert "in time" == await executor.submit(asyncio.sleep, 1, "in time", run_timeout=3)


async def test_run_timeout_counts_from_the_start(virtual_clock):
    """The run timeout does not include waiting for the due time and for a permit."""
    async with RateLimitedExecutor("x", rate=1) as executor:
        handles = [executor.schedule(asyncio.sleep, 1, "in time", delay=5, run_timeout=1.5) for _ in range(5)]
        assert ["in time"] * 5 == await asyncio.gather(*handles)


async def test_own_timeout_of_a_call_is_its_own(virtual_clock):
    """A TimeoutError raised by the call is not taken for a run timeout."""

    async def own():
        raise TimeoutError("own")

    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(TimeoutError, match="own") as info:
            await executor.submit(own, run_timeout=5)
        assert not isinstance(info.value, RunTimeoutError)


async def test_run_timeout_on_an_inline_function_fails_clearly(virtual_clock):
    """A run timeout of a plain function fails with the remedy: the function cannot be stopped."""
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(TypeError, match="in_thread=True, or an async function"):
            await executor.submit(lambda: 5, run_timeout=5)


# Contexts.


@pytest.mark.parametrize(
    "face", ["schedule", "call_later", "call_at", "call_soon", "execute", "many", "fixed", "thread", "lazy"]
)
async def test_context_is_captured_when_scheduling(virtual_clock, face):
    """A call sees the context variables of the moment of scheduling, whatever is set later."""
    seen = []

    def look(*_):
        seen.append(var.get())
        var.set("changed by a task")

    async with RateLimitedExecutor("x") as executor:
        for value in ("one", "one", "two", None):
            if value:
                var.set(value)
            if face == "schedule":
                executor.schedule(look, delay=1.5)
            elif face == "thread":
                executor.schedule(look, delay=0.5, in_thread=True)
            elif face == "many":
                executor.schedule_many(look, [1], delay=1)
            elif face == "lazy":
                executor.schedule_many(look, iter([1]), delay=1)
            elif face == "fixed":
                executor.schedule_at_fixed_rate(look, period=1, max_runs=1)
            elif face == "call_at":
                executor.call_at(asyncio.get_running_loop().time() + 1, look)
            elif face == "call_later":
                executor.call_later(1, look)
            else:
                getattr(executor, face)(look)
        var.set("three")
        await asyncio.sleep(3)
    assert ["one", "one", "two", "two"] == sorted(seen)


async def test_equal_values_of_two_callers_are_kept_apart(virtual_clock):
    """Calls share a context only if all values are identical: equal values of two requests stay apart."""

    class Request:
        def __eq__(self, other):
            return True

        __hash__ = None

    seen = []
    async with RateLimitedExecutor("x") as executor:
        requests = [Request(), Request()]
        for request in requests:
            var.set(request)
            executor.call_later(1, lambda: seen.append(var.get()))
    assert [True, True] == [one is other for one, other in zip(requests, seen, strict=True)]


async def test_given_context_is_used_itself(virtual_clock):
    """A given context is used itself, also an empty one: variables set by the call are visible in it."""
    async with RateLimitedExecutor("x") as executor:
        for schedule in (
            lambda c: executor.schedule(var.set, "set", context=c),
            lambda c: executor.call_later(0, var.set, "set", context=c),
            lambda c: executor.call_soon(var.set, "set", context=c),
            lambda c: executor.submit(var.set, "set", context=c),
            lambda c: executor.submit(var.set, "set", context=c, in_thread=True),
            lambda c: executor.schedule_many(var.set, ["set"], context=c),
        ):
            context = contextvars.Context()
            schedule(context)
            await asyncio.sleep(0.5)
            assert "set" == context[var]
    assert "unset" == var.get()


async def test_tasks_without_variables_do_not_see_each_other(virtual_clock):
    """A task that sets a variable sets it only for itself, even if it fails."""
    seen = []

    def work(fails):
        seen.append(var.get())
        var.set("changed")
        if fails:
            raise ValueError

    async def work_async():
        seen.append(var.get())
        var.set("changed")
        await asyncio.sleep(0.1)
        seen.append(var.get())

    async def main():
        async with RateLimitedExecutor("x") as executor:
            handles = [executor.schedule(work, fails, delay=0.1) for fails in (False, True, False)]
            executor.call_later(0.1, work, False)
            executor.call_later(0.1, work, False)
            await executor.submit(work_async)
            await executor.submit(work_async)
            await asyncio.wait(handles)
            assert handles[1].exception()

    await asyncio.get_running_loop().create_task(main(), context=contextvars.Context())
    assert {"unset": 7, "changed": 2} == {value: seen.count(value) for value in set(seen)}


async def test_callbacks_of_the_executor_run_in_nobodys_context(virtual_clock):
    """Later tasks do not see a context variable of the first caller."""
    seen = []
    async with RateLimitedExecutor("x") as executor:
        var.set("first")
        executor.call_later(1, int)
        contextvars.Context().run(executor.call_later, 1, lambda: seen.append(var.get()))
        contextvars.Context().run(executor.schedule, lambda: seen.append(var.get()))
    assert ["unset", "unset"] == seen


# Failure stays local.


@pytest.mark.parametrize("error", [ValueError("x"), OwnExit("x"), asyncio.TimeoutError("x"), StopAsyncIteration("x")])
@pytest.mark.parametrize("kind", ["inline", "coroutine", "later", "thread"])
async def test_exception_goes_to_its_handle_and_stops_nothing(virtual_clock, account, error, kind):
    """Any exception goes to the handle of its task, and other tasks continue."""

    def inline():
        raise error

    async def at_once():
        raise error

    async def later():
        await asyncio.sleep(0.1)
        raise error

    fn = {"inline": inline, "thread": inline, "coroutine": at_once, "later": later}[kind]
    async with RateLimitedExecutor("x") as executor:
        bad = executor.submit(fn, in_thread=kind == "thread")
        good = executor.submit(int)
        await asyncio.wait([bad, good])
        assert (TaskState.FAILED, TaskState.DONE) == (bad.state, good.state)
        assert type(error) is type(bad.exception()) or kind != "inline"
        account(executor)


@pytest.mark.parametrize("kind", ["inline", "coroutine", "later"])
@pytest.mark.parametrize("face", ["submit", "call_later", "many"])
async def test_cancelled_error_nobody_asked_for_is_a_cancellation(virtual_clock, account, kind, face):
    """A task that raises ``CancelledError`` ends as cancelled."""

    def inline(*_):
        raise asyncio.CancelledError

    async def at_once(*_):
        raise asyncio.CancelledError

    async def later(*_):
        await asyncio.sleep(0.1)
        raise asyncio.CancelledError

    fn = {"inline": inline, "coroutine": at_once, "later": later}[kind]
    async with RateLimitedExecutor("x") as executor:
        if face == "submit":
            handle = executor.submit(fn)
            with pytest.raises(asyncio.CancelledError):
                await handle
            assert TaskState.CANCELLED is handle.state
        elif face == "many":
            assert 1 == (await executor.schedule_many(fn, [1])).cancelled
        else:
            executor.call_later(0, fn)
            await asyncio.sleep(1)
        assert (1, 0) == (executor.statistics().cancelled, executor.statistics().failed)
        account(executor)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("kind", ["inline", "coroutine", "later", "plain run"])
def test_exit_is_recorded_and_leaves_the_loop(virtual_loop, account, error, kind):
    """SystemExit and KeyboardInterrupt count as failed and leave the loop, and the interval stays intact."""
    log = []

    def inline():
        raise error

    async def at_once():
        raise error

    async def later():
        await asyncio.sleep(0.1)
        raise error

    virtual_loop.set_exception_handler(lambda loop, context: None)
    executor = RateLimitedExecutor("x", rate=float("inf") if kind == "plain run" else 10)

    async def begin():
        await executor.start()
        if kind == "plain run":
            executor.call_later(0.5, inline)
            for index in range(3):
                executor.call_later(0.5, log.append, index)
            return None
        fn = {"inline": inline, "coroutine": at_once, "later": later}[kind]
        handle = executor.schedule(fn, delay=0.5, priority=1)
        for index in range(3):
            executor.schedule(log.append, index, delay=0.5)
        return handle

    handle = virtual_loop.run_until_complete(begin())
    with pytest.raises(type(error)):
        virtual_loop.run_until_complete(asyncio.sleep(5))
    virtual_loop.run_until_complete(asyncio.sleep(5))
    assert [0, 1, 2] == log
    account(executor)
    assert 1 == executor.statistics().failed
    if handle is not None:
        assert TaskState.FAILED is handle.state
        assert type(error) is type(handle.exception())
    virtual_loop.run_until_complete(executor.aclose())
    del handle
    gc.collect()


async def test_observers_of_the_handler_cannot_stop_the_runner(virtual_clock):
    """An exception handler that raises stops no task."""

    def handler(loop, context):
        raise ValueError("handler")

    asyncio.get_running_loop().set_exception_handler(handler)

    def bad():
        raise ValueError

    async with RateLimitedExecutor("x") as executor:
        executor.call_later(0, bad)
        executor.execute(bad)
        await asyncio.sleep(1)
        assert 0 == await executor.submit(int)


async def test_task_that_holds_the_loop_is_named_in_a_warning(virtual_clock, caplog):
    """A task that holds the loop for over 100 ms is named in a warning, once in ten seconds."""

    def hog():
        asyncio.get_running_loop().block_for(0.25)

    async with RateLimitedExecutor("x") as executor:
        for index in range(5):
            executor.schedule(hog, delay=index)
    messages = [record.getMessage() for record in caplog.records if record.name == "ratelimited_executor"]
    assert 1 == len(messages)
    assert "hog held the event loop for 250 ms" in messages[0]


async def test_repeating_task_that_holds_the_loop_is_named_by_its_function(virtual_clock, caplog):
    """The warning names the user's function, not the internal call in its place."""

    def hog():
        asyncio.get_running_loop().block_for(0.25)

    async with RateLimitedExecutor("x") as executor:
        executor.schedule_at_fixed_rate(hog, period=1.0)
        await asyncio.sleep(0.5)
        await executor.shutdown(cancel_pending=True)
    (message,) = [record.getMessage() for record in caplog.records if "held the event loop" in record.getMessage()]
    assert "hog held the event loop for 250 ms" in message


async def test_task_factory_of_the_loop_is_used(virtual_clock):
    """Coroutines run in tasks of the loop's task factory, if it has one."""
    made = []

    def factory(loop, coroutine, **options):
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(factory)
    async with RateLimitedExecutor("x") as executor:
        assert 4 == await executor.submit(double, 2)
    assert made


async def test_many_running_coroutines_are_referenced(virtual_clock):
    """The garbage collector takes no running task, with or without its handle."""
    done = []

    async def work(number):
        await asyncio.sleep(1)
        done.append(number)

    async with RateLimitedExecutor("x") as executor:
        for number in range(100):
            executor.call_later(0.1, work, number)
        await asyncio.sleep(0.5)
        gc.collect()
    assert [*range(100)] == sorted(done)


async def test_an_async_function_in_a_thread_is_refused_and_not_counted_as_done(virtual_clock):
    """An async function in a worker thread fails with the remedy: nobody would run the coroutine."""

    async def work():
        raise AssertionError("it must not run")

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(work, in_thread=True)
        with pytest.raises(TypeError, match="leave in_thread= out"):
            await handle
        assert (0, 1) == (executor.statistics().done, executor.statistics().failed)


async def test_a_setting_that_is_none_is_an_error(virtual_clock):
    """Setting an unknown or read-only attribute is an error."""
    async with RateLimitedExecutor("x") as executor:
        for name in ("max_pending", "drain_timeout", "max_pendin"):
            with pytest.raises(AttributeError, match=name):
                setattr(executor, name, 3)
