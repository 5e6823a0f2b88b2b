"""Handles: the read side of ``asyncio.Future``, waiting, cancelling, and what they keep alive."""

import asyncio
import gc
import weakref

import pytest

from ratelimited_executor import RateLimitedExecutor, TaskState


async def double(number: int, after: float = 0.0) -> int:
    await asyncio.sleep(after)
    return 2 * number


def fail(error: BaseException) -> None:
    raise error


async def test_gather_collects_results_in_order(virtual_clock):
    """``asyncio.gather`` takes handles as it takes futures."""
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(double, number, 3 - number) for number in range(3)]
        assert [0, 2, 4] == await asyncio.gather(*handles)


async def test_gather_returns_exceptions_where_asked(virtual_clock):
    """A failed handle is a failed future to ``gather``."""
    error = ValueError("no")
    async with RateLimitedExecutor("x") as executor:
        good, bad = executor.submit(double, 1), executor.submit(fail, error)
        assert [2, error] == await asyncio.gather(good, bad, return_exceptions=True)


async def test_gather_sees_a_cancelled_call(virtual_clock):
    """A call that is cancelled fails the gathering, or is in its list where exceptions are returned."""
    async with RateLimitedExecutor("x") as executor:
        for kept in (True, False):
            handle = executor.schedule(double, 1, delay=60)
            asyncio.get_running_loop().call_later(1, handle.cancel, "why")
            gathering = asyncio.gather(executor.submit(double, 1), handle, return_exceptions=kept)
            if kept:
                assert [2, ("why",)] == [one if one == 2 else one.args for one in await gathering]
            else:
                with pytest.raises(asyncio.CancelledError, match="why"):
                    await gathering


async def test_cancelled_gather_cancels_its_calls(virtual_clock):
    """Who cancels the gathering cancels what was gathered, waiting or running."""
    async with RateLimitedExecutor("x") as executor:
        running, waiting = executor.submit(double, 1, 50), executor.schedule(double, 1, delay=60)
        gathering = asyncio.gather(running, waiting)
        await asyncio.sleep(5)
        gathering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gathering
        assert (TaskState.CANCELLED, TaskState.CANCELLED) == (running.state, waiting.state)


async def test_wait_tells_the_done_from_the_pending(virtual_clock):
    """``asyncio.wait`` returns the handles themselves in its sets."""
    async with RateLimitedExecutor("x") as executor:
        early, late = executor.schedule(double, 1, delay=1), executor.schedule(double, 2, delay=9)
        done, pending = await asyncio.wait([early, late], timeout=5)
        assert ({early}, {late}) == (done, pending)
        done, pending = await asyncio.wait([late])
        assert ({late}, set()) == (done, pending)


@pytest.mark.parametrize("mode", [asyncio.FIRST_COMPLETED, asyncio.FIRST_EXCEPTION, asyncio.ALL_COMPLETED])
async def test_wait_ends_as_asked(virtual_clock, mode):
    """The three modes of ``asyncio.wait`` see completion, failure and the end of all."""
    async with RateLimitedExecutor("x") as executor:
        handles = [
            executor.schedule(double, 1, delay=1),
            executor.schedule(fail, ValueError(), delay=3),
            executor.schedule(double, 1, delay=6),
        ]
        done, _ = await asyncio.wait(handles, return_when=mode)
        assert {"FIRST_COMPLETED": 1, "FIRST_EXCEPTION": 2, "ALL_COMPLETED": 3}[mode] == len(done)
        await asyncio.wait(handles)
        assert isinstance(handles[1].exception(), ValueError)


@pytest.mark.parametrize("delay", [0, 60])
async def test_wait_for_cancels_the_call_at_its_timeout(virtual_clock, delay):
    """``asyncio.wait_for`` gives the result in time, and cancels the call otherwise."""
    async with RateLimitedExecutor("x") as executor:
        assert 2 == await asyncio.wait_for(executor.submit(double, 1, 1), 5)
        slow = executor.schedule(double, 1, 50, delay=delay)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow, 5)
        assert slow.cancelled()
        assert virtual_clock.monotonic() == 6


async def test_as_completed_gives_results_as_they_come(virtual_clock):
    """``asyncio.as_completed`` iterates by the end of the calls."""
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(double, number, 10 - number) for number in (1, 2, 3)]
        assert [6, 4, 2] == [await one for one in asyncio.as_completed(handles)]


async def test_shield_keeps_the_call_from_its_awaiter(virtual_clock):
    """A shielded call goes on when its awaiter is cancelled."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(double, 4, 10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(handle), 1)
        assert not handle.done()
        assert 8 == await handle


@pytest.mark.parametrize("delay", [0, 60])
async def test_cancelling_the_awaiter_cancels_the_call(virtual_clock, delay):
    """As with a task: whether the call waits or runs, it is cancelled with who awaits it."""
    cancelled = []

    async def call():
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            cancelled.append("inside")
            raise

    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(call, delay=delay)

        async def awaiter():
            await handle

        task = asyncio.create_task(awaiter())
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert handle.cancelled()
        assert (["inside"] if delay == 0 else []) == cancelled
        assert (1, 0, 0) == (
            executor.statistics().cancelled,
            executor.statistics().running,
            executor.statistics().waiting,
        )


async def test_cancel_is_like_that_of_a_task(virtual_clock):
    """A waiting call is cancelled at once, a running one soon, an ended one not; the message arrives."""
    async with RateLimitedExecutor("x") as executor:
        waiting = executor.schedule(double, 1, delay=9)
        assert waiting.cancel("why")
        assert waiting.cancelled()
        with pytest.raises(asyncio.CancelledError, match="why"):
            waiting.result()
        with pytest.raises(asyncio.CancelledError):
            waiting.exception()
        assert not waiting.cancel()
        running = executor.submit(double, 1, 9)
        await asyncio.sleep(1)
        assert TaskState.RUNNING is running.state
        assert running.cancel()
        assert not running.cancelled()
        with pytest.raises(asyncio.CancelledError):
            await running
        ended = executor.submit(double, 1)
        await ended
        assert not ended.cancel()


async def test_a_call_that_refuses_its_cancellation_goes_on(virtual_clock):
    """A coroutine that catches its cancellation ends as it ends."""

    async def stubborn():
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return "anyway"

    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(stubborn)
        await asyncio.sleep(1)
        handle.cancel()
        assert "anyway" == await handle
        assert TaskState.DONE is handle.state


async def test_callbacks_run_soon_after_the_end_in_their_context(virtual_clock):
    """``add_done_callback`` is that of a future: later, in order, with the handle; also after the end."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(double, 1, delay=1)
        handle.add_done_callback(lambda h: log.append(("first", h is handle, h.result())))
        removed = lambda h: log.append("removed")  # noqa: E731
        handle.add_done_callback(removed)
        handle.add_done_callback(removed)
        assert 2 == handle.remove_done_callback(removed)
        assert 0 == handle.remove_done_callback(removed)
        handle.add_done_callback(lambda h: log.append("second"))
        await handle
        await asyncio.sleep(0)
        assert [("first", True, 2), "second"] == log
        handle.add_done_callback(lambda h: log.append("late"))
        assert "late" not in log
        await asyncio.sleep(0)
        assert "late" == log[-1]
        assert 0 == handle.remove_done_callback(removed)


async def test_callback_that_raises_reaches_the_handler_and_stops_nothing(handler):
    """A callback's failure is its own: other callbacks and tasks go on."""
    reports = handler()
    log = []
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(double, 1)
        handle.add_done_callback(lambda h: fail(ValueError("callback")))
        handle.add_done_callback(log.append)
        assert 2 == await handle
        assert 4 == await executor.submit(double, 2)
    assert [handle] == log
    assert ["callback"] == [str(report["exception"]) for report in reports]


async def test_unfinished_handle_has_no_result(virtual_clock):
    """Asked too early, a handle raises as a future does."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(double, 1, delay=1)
        for method in (handle.result, handle.exception):
            with pytest.raises(asyncio.InvalidStateError):
                method()
        assert (False, False) == (handle.done(), handle.cancelled())
        assert asyncio.get_running_loop() is handle.get_loop()
        await handle
        assert (True, False, None, 2) == (handle.done(), handle.cancelled(), handle.exception(), handle.result())


async def test_handle_tells_its_times(virtual_clock):
    """Due time, start and lateness are on the manager's timeline, in epoch seconds."""
    async with RateLimitedExecutor("x", rate=1) as executor:
        first, second = executor.schedule(double, 1, delay=0.25), executor.schedule(double, 1, delay=0.25)
        epoch = virtual_clock.wall()
        assert epoch + 0.25 == first.due == second.due
        assert (None, None, TaskState.WAITING) == (first.started_at, first.lateness, first.state)
        await second
        assert (epoch + 0.25, 0.0) == (first.started_at, first.lateness)
        assert (epoch + 1.25, 1.0) == (second.started_at, second.lateness)
        assert "TaskHandle double done" in repr(second)


async def test_failure_nobody_looks_at_reaches_the_handler_once(handler):
    """An exception that was never retrieved goes to the loop's exception handler, once."""
    reports = handler()
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(fail, ValueError("unseen"))
        await asyncio.sleep(1)
        assert [] == reports
        del handle
        gc.collect()
        assert ["unseen"] == [str(report["exception"]) for report in reports]
    gc.collect()
    assert 1 == len(reports)


@pytest.mark.parametrize("look", ["await", "exception", "result", "callback"])
async def test_failure_somebody_looks_at_reaches_no_handler(handler, look):
    """Any look at the exception is enough."""
    reports = handler()
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(fail, ValueError("seen"))
        if look == "callback":
            handle.add_done_callback(lambda h: h.exception())
        elif look == "await":
            with pytest.raises(ValueError):
                await handle
        await asyncio.sleep(1)
        if look == "exception":
            handle.exception()
        elif look == "result":
            with pytest.raises(ValueError):
                handle.result()
        del handle
        gc.collect()
    assert [] == reports


async def test_execute_reports_its_failure_at_once(handler):
    """A call without a handle has nobody to look: its failure goes to the handler."""
    reports = handler()
    async with RateLimitedExecutor("x") as executor:
        executor.execute(fail, ValueError("no handle"))
        executor.call_later(0, fail, ValueError("no handle"))
    assert ["no handle"] * 2 == [str(report["exception"]) for report in reports]


class Big:
    """Something to hold a weak reference to."""


async def test_one_kept_handle_keeps_no_other_result_in_memory(virtual_clock):
    """A result dies with the last reference to its own handle, however many handles of its interval are kept."""
    async with RateLimitedExecutor("x", rate=1000) as executor:
        refs = []

        def work(number):
            big = Big()
            refs.append(weakref.ref(big))
            return big

        handles = [executor.schedule(work, number, delay=0.5) for number in range(100)]
        await asyncio.wait(handles)
        kept = handles[50]
        big = kept.result()
        del handles
        await asyncio.sleep(2)
        gc.collect()
        assert [big] == [ref() for ref in refs if ref() is not None]
        assert kept.result() is big


async def test_ended_handle_keeps_neither_call_nor_arguments(virtual_clock):
    """What the call held is freed at its end, though the handle lives."""
    async with RateLimitedExecutor("x") as executor:
        argument = Big()
        ref = weakref.ref(argument)
        handle = executor.schedule(lambda big: None, argument, delay=1)
        cancelled = executor.schedule(lambda big: None, argument, delay=99)
        del argument
        await handle
        assert ref() is not None
        cancelled.cancel()
        await asyncio.sleep(0)
        gc.collect()
        assert None is ref()
        assert handle.done()


async def test_many_awaiters_get_the_same_result(virtual_clock):
    """A handle can be awaited by many tasks, and again after its end."""

    async def awaiter(handle):
        return await handle

    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(double, 21, delay=1)
        assert [42, 42, 42] == await asyncio.gather(*(awaiter(handle) for _ in range(3)))
        assert 42 == await handle


async def test_a_call_may_cancel_itself(virtual_clock, account):
    """A coroutine that cancels its own handle ends cancelled at its next suspension."""
    async with RateLimitedExecutor("x") as executor:
        box = []

        async def suicidal():
            await asyncio.sleep(0)
            box[0].cancel()
            await asyncio.sleep(10)

        box.append(executor.submit(suicidal))
        with pytest.raises(asyncio.CancelledError):
            await box[0]
        assert virtual_clock.monotonic() == 0
        account(executor)


@pytest.mark.parametrize("suspends", [False, True])
async def test_a_task_cannot_await_itself(virtual_clock, account, suspends):
    """It would never end, and cancelling it would go round in circles: refused, as asyncio does."""
    box = []

    async def work():
        if suspends:
            await asyncio.sleep(1)
        await box[0]

    async with RateLimitedExecutor("x") as executor:
        box.append(executor.submit(work))
        with pytest.raises(RuntimeError, match="Task cannot await on itself"):
            await box[0]
        assert TaskState.FAILED is box[0].state
        account(executor)


async def test_a_task_may_await_the_handle_that_runs_another(virtual_clock):
    """Only its own is refused: not that of a task that it has started in its first step, nor of one that awaits it."""

    async def outer():
        child = asyncio.create_task(awaiter(box[0]))
        await asyncio.sleep(0)
        assert not child.done()
        child.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.shield(asyncio.sleep(9))
        return "outer"

    async def awaiter(handle):
        return await handle

    box = []
    async with RateLimitedExecutor("x") as executor:
        box.append(executor.submit(outer))
        assert "outer" == await box[0]


async def test_the_holder_of_a_permit_cannot_await_its_handle(virtual_clock):
    """It ends with the body that would wait for it; another task may wait, and be cancelled alone."""

    async def awaiter(handle):
        async with asyncio.timeout(3):
            await handle

    async with RateLimitedExecutor("x") as executor:
        async with executor.permit() as handle:
            with pytest.raises(RuntimeError, match="Task cannot await on itself"):
                await handle
            with pytest.raises(TimeoutError):
                await executor.submit(awaiter, handle)
            assert 3 == virtual_clock.monotonic()
            assert TaskState.RUNNING is handle.state
        assert await handle is None


@pytest.mark.parametrize("face", ["submit", "schedule_many", "execute"])
async def test_cancellation_in_the_last_step_counts(virtual_clock, account, face):
    """``cancel()`` said True: a coroutine that then returns has been cancelled, as an asyncio task has."""
    answers = []

    async def work(*_):
        await asyncio.sleep(1)
        answers.append(asyncio.current_task().cancel("last"))
        return "never seen"

    async with RateLimitedExecutor("x") as executor:
        if face == "schedule_many":
            assert 1 == (await executor.schedule_many(work, [0])).cancelled
        elif face == "submit":
            with pytest.raises(asyncio.CancelledError, match="last"):
                await executor.submit(work)
        else:
            executor.execute(work)
        await asyncio.sleep(2)
        account(executor)
        assert (1, 0) == (executor.statistics().cancelled, executor.statistics().done)
    assert [True] == answers


async def test_call_that_cannot_be_cancelled_keeps_no_other_from_it(handler):
    """An error of its ``cancel()`` is reported, and the others are cancelled."""
    reports = handler()

    async def good():
        await asyncio.sleep(0)
        return "first"

    class Uncancellable(asyncio.Future):
        def cancel(self, msg=None):
            raise LookupError("no cancelling")

    future = Uncancellable()

    async def bad():
        await future

    async def other():
        await asyncio.sleep(100)

    async with RateLimitedExecutor("x") as executor:
        assert "first" == await executor.invoke_any([bad, other, good])
        await asyncio.sleep(0)
        assert 1 == executor.statistics().running
        assert ["no cancelling"] == [str(report["exception"]) for report in reports]
        future.set_result(None)
