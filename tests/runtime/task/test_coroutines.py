"""How a coroutine starts and ends, whoever ends it and when: its asyncio task is the user's, its record is ours."""

import asyncio
import contextvars
import gc
import sys
import warnings

import pytest

from ratelimited_executor import ExecutorStoppedError, RateLimitedExecutor, TaskState


@pytest.fixture
def complaints(recwarn):
    """Python's warnings of coroutines that were never awaited, at the end of a test."""

    def look():
        gc.collect()
        return [str(warning.message) for warning in recwarn if issubclass(warning.category, RuntimeWarning)]

    return look


@pytest.mark.parametrize("face", ["submit", "schedule_many", "execute"])
async def test_task_that_is_cancelled_before_its_first_step(virtual_clock, account, complaints, face):
    """A task cancelled before its first step, found in ``asyncio.all_tasks``, never enters its coroutine."""
    ran = []

    async def work(*_):
        await asyncio.sleep(1)
        ran.append("ended")

    def cancel():
        for task in asyncio.all_tasks():
            if task.get_name() == work.__qualname__:
                task.cancel()

    async with RateLimitedExecutor("x") as executor:
        if face == "schedule_many":
            added = executor.schedule_many(work, [0])
        else:
            added = getattr(executor, face)(work)
        executor.schedule_many(lambda _: cancel(), [0])  # in the same turn
        await asyncio.sleep(0.5)
        account(executor)
        assert 1 == executor.statistics().cancelled
    assert [] == ran
    if face == "submit":
        assert added.state is TaskState.CANCELLED
    if face == "schedule_many":
        assert 1 == added.summary.cancelled
    assert [] == complaints()


async def test_task_is_named_by_its_coroutine(virtual_clock):
    """``all_tasks``, logs and debuggers show the user's function."""

    async def sweep():
        task = asyncio.current_task()
        return task.get_name(), task.get_coro().__qualname__

    async with RateLimitedExecutor("x") as executor:
        names = await executor.submit(sweep)
    assert [sweep.__qualname__] * 2 == list(names)


async def test_coroutine_that_two_calls_return(virtual_clock, account, handler):
    """If two calls return one coroutine, the second fails with an error that says so."""
    reports = handler()

    async def work():
        await asyncio.sleep(1)
        return 5

    one = work()
    async with RateLimitedExecutor("x") as executor:
        first, second = executor.submit(lambda: one), executor.submit(lambda: one)
        await asyncio.sleep(2)
        account(executor)
        assert 5 == first.result()
        assert isinstance(second.exception(), RuntimeError)
    assert [] == reports


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_exit_from_a_coroutine_leaves_the_loop(suspends, error):
    """An exit in a coroutine leaves the loop, as from any asyncio task, and the executor can be closed."""
    executors = []

    async def work():
        if suspends:
            await asyncio.sleep(0)
        raise error

    async def main():
        async with RateLimitedExecutor("x", drain_timeout=0) as executor:
            executors.append(executor)
            executor.submit(work)
            await asyncio.sleep(10)

    with warnings.catch_warnings(), pytest.raises(error):
        warnings.simplefilter("error", RuntimeWarning)
        asyncio.run(main())
    counts = executors[0].statistics()
    assert 0 == counts.running
    assert 1 == counts.failed + counts.cancelled


async def test_error_that_nobody_looks_at_is_reported_when_its_handle_goes(virtual_clock, handler):
    """An error never retrieved is reported when its handle dies: no frame of ours keeps the handle alive."""
    reports = handler()
    gc.disable()  # reference counts alone must do
    try:

        async def work():
            await asyncio.sleep(1)
            raise LookupError("nobody looks")

        async with RateLimitedExecutor("x") as executor:
            executor.submit(work)
            await asyncio.sleep(2)
            assert ["nobody looks"] == [str(report["exception"]) for report in reports]
    finally:
        gc.enable()


async def test_ends_are_counted_in_the_turn_in_which_they_happen(virtual_clock):
    """An end is counted in the turn in which it happens: other waiters of the same event find it counted."""
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        gate = asyncio.get_running_loop().create_future()
        handle = executor.submit(_through, gate)
        await asyncio.sleep(1)
        assert 1 == executor.statistics().running
        gate.set_result(7)
        await asyncio.sleep(0)
        assert 1 == executor.statistics().done
        assert 7 == handle.result()


async def _through(gate):
    return await gate


# Coroutines that start eagerly (CPython 3.12 and later) keep every promise that those of 3.11 keep.


variable = contextvars.ContextVar("variable", default="nobody's")
eager_only = pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio starts tasks eagerly from 3.12 on")


@eager_only
async def test_coroutine_that_does_not_suspend_ends_in_the_turn_of_its_start(virtual_clock):
    """A coroutine that does not suspend ends in the turn of its start, and leaves no task to schedule."""
    log = []

    async def work():
        log.append("ran")
        return 5

    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(work, delay=1.0)
        executor.call_later(1.0, lambda: asyncio.get_running_loop().call_soon(log.append, "next turn"))
        await handle
    assert ["ran", "next turn"] == sorted(log, reverse=True)
    assert 5 == handle.result()


@pytest.mark.parametrize("suspends", [False, True])
async def test_own_task_is_the_current_one(virtual_clock, suspends):
    """``current_task``, ``timeout`` and self-cancellation work from the first line on."""

    async def work():
        assert asyncio.current_task() is not outer
        if suspends:
            await asyncio.sleep(1)
        try:
            async with asyncio.timeout(2):
                await asyncio.sleep(10)
        except TimeoutError:
            return "timed out"

    outer = asyncio.current_task()
    async with RateLimitedExecutor("x") as executor:
        assert "timed out" == await executor.submit(work)
        assert asyncio.current_task() is outer


@pytest.mark.parametrize("suspends", [False, True])
async def test_what_a_task_sets_is_its_own(virtual_clock, suspends):
    """Neither the caller nor the next task sees a variable set by a task, whether it suspends or not."""
    seen = []

    async def work(value):
        seen.append(variable.get())
        variable.set(value)
        if suspends:
            await asyncio.sleep(0)
        assert value == variable.get()

    async with RateLimitedExecutor("x") as executor:
        for value in range(3):
            executor.submit(work, value)
        executor.call_soon(lambda: seen.append(variable.get()))
        await asyncio.sleep(1)
    assert ["nobody's"] * 4 == seen
    assert "nobody's" == variable.get()


@pytest.mark.parametrize("suspends", [False, True])
async def test_given_context_is_used_itself(virtual_clock, suspends):
    """A coroutine uses a given context itself, too."""
    context = contextvars.Context()

    async def work():
        variable.set("set")
        if suspends:
            await asyncio.sleep(0)

    async with RateLimitedExecutor("x") as executor:
        await executor.submit(work, context=context)
    assert "set" == context.get(variable)


async def test_first_step_may_use_the_executor(virtual_clock, account):
    """Before its first await a coroutine may schedule, cancel itself and others, and read and set settings."""
    log = []

    async def work(executor):
        log.append(executor.statistics().running)
        account(executor)
        inner = executor.submit(log.append, "inner")
        other = executor.schedule(log.append, "never", delay=5)
        other.cancel()
        executor.rate = 1000
        executor.explain(inner)
        account(executor)
        return await inner

    async with RateLimitedExecutor("x") as executor:
        await executor.submit(work, executor)
        account(executor)
    assert [1, "inner"] == log


async def test_first_step_counts_as_running_and_takes_its_place(virtual_clock):
    """The first step counts for ``max_concurrency``: no other task starts beside it."""
    peak = running = 0

    async def work():
        nonlocal peak, running
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(1)
        running -= 1

    async with RateLimitedExecutor("x", max_concurrency=2) as executor:
        for _ in range(8):
            executor.submit(work)
        executor.schedule_many(lambda _: work(), range(8))
    assert 2 == peak


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_failure_of_the_first_step_is_the_tasks(virtual_clock, account, suspends, error):
    """A failure in the first step is the task's failure, and disturbs nothing else."""

    async def work():
        if suspends:
            await asyncio.sleep(0)
        raise error("why")

    async with RateLimitedExecutor("x") as executor:
        handle, next_one = executor.submit(work), executor.submit(int)
        await asyncio.wait([handle, next_one])
        assert (TaskState.CANCELLED if error is asyncio.CancelledError else TaskState.FAILED) is handle.state
        if error is ValueError:
            assert "why" == str(handle.exception())
        account(executor)


@pytest.mark.parametrize("suspends", [False, True])
async def test_task_that_closes_its_executor_in_its_first_step_lives_to_its_end(virtual_clock, suspends):
    """A task that calls ``shutdown()`` in its first step is drained."""

    async def work(executor):
        if suspends:
            await asyncio.sleep(0)
        executor.shutdown()
        with pytest.raises(ExecutorStoppedError):
            executor.submit(int)
        await asyncio.sleep(3)
        return "lived"

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(work, executor)
        await asyncio.sleep(0.5)
    assert "lived" == handle.result()


@pytest.mark.parametrize("suspends", [False, True])
async def test_cut_in_the_first_step_cancels_the_task_itself(virtual_clock, account, suspends):
    """A task that cuts its executor in its first step is cancelled at its next await."""

    async def work(executor):
        if suspends:
            await asyncio.sleep(0)
        executor.shutdown(cancel_pending=True)
        await asyncio.sleep(30)

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(work, executor)
        waiting = executor.schedule(int, delay=20)
        await asyncio.sleep(0.5)
    assert (TaskState.CANCELLED, TaskState.CANCELLED) == (handle.state, waiting.state)
    assert 0.5 == virtual_clock.monotonic()
    account(executor)


@pytest.mark.parametrize("kind", ["plain", "eager"])
async def test_task_factory_of_the_user_makes_the_tasks(virtual_clock, account, kind):
    """The user's task factory creates the tasks, also eager ones, and gets the context."""
    made = []
    loop = asyncio.get_running_loop()
    if kind == "eager":
        if sys.version_info < (3, 12):
            pytest.skip("asyncio has an eager task factory from 3.12 on")
        inner = asyncio.eager_task_factory
    else:
        inner = lambda loop, coroutine, **options: asyncio.Task(coroutine, loop=loop, **options)  # noqa: E731

    def factory(loop, coroutine, **options):
        made.append(coroutine.__qualname__)
        return inner(loop, coroutine, **options)

    async def work(value):
        variable.set(value)
        await asyncio.sleep(value)
        return value

    async def at_once():
        return "at once"

    loop.set_task_factory(factory)
    try:
        async with RateLimitedExecutor("x") as executor:
            handles = [executor.submit(work, 1), executor.submit(at_once), executor.submit(work, 2)]
            assert [1, "at once", 2] == await asyncio.gather(*handles)
            account(executor)
    finally:
        loop.set_task_factory(None)
    assert 3 == len([name for name in made if name.endswith(("work", "at_once"))])


@pytest.mark.parametrize("face", ["schedule", "call_later", "schedule_many", "repeating", "in_thread"])
async def test_coroutines_of_every_face_run_to_their_end(virtual_clock, account, face):
    """Coroutines of every face run to their end, are counted and drained."""
    log = []

    async def work(*_):
        log.append("first")
        await asyncio.sleep(1)
        log.append("last")

    async with RateLimitedExecutor("x") as executor:
        if face == "schedule":
            executor.schedule(work)
        elif face == "call_later":
            executor.call_later(0.5, work)
        elif face == "schedule_many":
            executor.schedule_many(work, [1])
        elif face == "repeating":
            await executor.schedule_at_fixed_rate(work, period=5, max_runs=1)
        else:
            await executor.submit(log.append, "first", in_thread=True)
            executor.submit(work)
            log.pop()
    assert ["first", "last"] == log[-2:]
    account(executor)


@pytest.mark.parametrize("timeout", [0.5, 2])
async def test_run_timeout_covers_the_first_step(virtual_clock, timeout):
    """The run timeout counts from the start, includes the first step, and cancels at its end."""

    async def work():
        await asyncio.sleep(1)
        return "in time"

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(work, run_timeout=timeout)
        if timeout > 1:
            assert "in time" == await handle
        else:
            with pytest.raises(TimeoutError, match="run_timeout of 0.5 s"):
                await handle
        assert min(1, timeout) == virtual_clock.monotonic()


async def test_a_coroutine_can_cancel_its_own_handle_before_its_first_await(virtual_clock):
    """A coroutine that cancels its own handle in the first step is cancelled at its first await."""
    box = []

    async def work():
        assert box[0].cancel()
        await asyncio.sleep(1)

    async with RateLimitedExecutor("x") as executor:
        box.append(executor.submit(work))
        with pytest.raises(asyncio.CancelledError):
            await box[0]
        assert 1 == executor.statistics().cancelled
