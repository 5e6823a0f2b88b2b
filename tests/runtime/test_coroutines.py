"""How a coroutine ends, whoever ends it and when: its task is the user's, what is noted of it is ours."""

import asyncio
import gc
import warnings

import pytest

from ratelimited_executor import RateLimitedExecutor, TaskState


@pytest.fixture
def complaints(recwarn):
    """What Python says of coroutines that nobody awaited, at the end of a test."""

    def look():
        gc.collect()
        return [str(warning.message) for warning in recwarn if issubclass(warning.category, RuntimeWarning)]

    return look


@pytest.mark.parametrize("face", ["submit", "schedule_many", "execute"])
async def test_task_that_is_cancelled_before_its_first_step(virtual_clock, account, complaints, face):
    """By whoever finds it in ``asyncio.all_tasks``: asyncio then never enters the coroutine, nor what wraps it."""
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
    """In ``all_tasks``, in logs and in debuggers, it is the user's function that runs."""

    async def sweep():
        task = asyncio.current_task()
        return task.get_name(), task.get_coro().__qualname__

    async with RateLimitedExecutor("x") as executor:
        names = await executor.submit(sweep)
    assert [sweep.__qualname__] * 2 == list(names)


async def test_coroutine_that_two_calls_return(virtual_clock, account, handler):
    """The second cannot run it any more, and says so."""
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
    """As from any task of asyncio; what is left can be closed."""
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
    """No frame of ours keeps the handle alive by way of the traceback."""
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
    """Without a turn of the loop for a callback: who awaits the same thing finds it counted."""
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
