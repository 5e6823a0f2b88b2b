"""Handles: the read side of ``asyncio.Future``, waiting, cancelling, and the objects that they keep alive."""

import asyncio
import contextvars
import gc
import weakref

import pytest

from ratelimited_executor import ExecutorManager, OnError, RateLimitedExecutor, TaskState
from ratelimited_executor.cycles import MemoryProgress


async def double(number: int, after: float = 0.0) -> int:
    await asyncio.sleep(after)
    return 2 * number


def fail(error: BaseException) -> None:
    raise error


async def test_gather_collects_results_in_order(virtual_clock):
    """``asyncio.gather`` takes handles like futures."""
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(double, number, 3 - number) for number in range(3)]
        assert [0, 2, 4] == await asyncio.gather(*handles)


async def test_gather_returns_exceptions_where_asked(virtual_clock):
    """``gather`` treats a failed handle like a failed future."""
    error = ValueError("no")
    async with RateLimitedExecutor("x") as executor:
        good, bad = executor.submit(double, 1), executor.submit(fail, error)
        assert [2, error] == await asyncio.gather(good, bad, return_exceptions=True)


async def test_gather_sees_a_cancelled_call(virtual_clock):
    """A cancelled call fails ``gather``, or is in its list where exceptions are returned."""
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
    """Cancelling ``gather`` cancels its calls, waiting or running."""
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
    """All three modes of ``asyncio.wait`` work with handles."""
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
    """``asyncio.wait_for`` returns the result in time, and cancels the call otherwise."""
    async with RateLimitedExecutor("x") as executor:
        assert 2 == await asyncio.wait_for(executor.submit(double, 1, 1), 5)
        slow = executor.schedule(double, 1, 50, delay=delay)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow, 5)
        assert slow.cancelled()
        assert virtual_clock.monotonic() == 6


async def test_as_completed_gives_results_as_they_come(virtual_clock):
    """``asyncio.as_completed`` iterates in the order in which calls end."""
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(double, number, 10 - number) for number in (1, 2, 3)]
        assert [6, 4, 2] == [await one for one in asyncio.as_completed(handles)]


async def test_shield_keeps_the_call_from_its_awaiter(virtual_clock):
    """A shielded call continues when its awaiter is cancelled."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(double, 4, 10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(handle), 1)
        assert not handle.done()
        assert 8 == await handle


@pytest.mark.parametrize("delay", [0, 60])
async def test_cancelling_the_awaiter_cancels_the_call(virtual_clock, delay):
    """Cancelling the awaiter cancels the call, waiting or running, as with a task."""
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
    """A waiting call is cancelled at once, a running one soon, an ended one not; the message is passed on."""
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
    """A coroutine that catches its cancellation ends in its own way."""

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
    """Done callbacks run later, in order, with the handle, also if added after the end."""
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
    """A failing callback is reported, and other callbacks and tasks continue."""
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
    """An unfinished handle raises like an unfinished future."""
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
    """An exception never retrieved goes to the loop's exception handler, once."""
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
    """An exception retrieved in any way is not reported."""
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
    """The failure of a call without a handle is reported at once."""
    reports = handler()
    async with RateLimitedExecutor("x") as executor:
        executor.execute(fail, ValueError("no handle"))
        executor.call_later(0, fail, ValueError("no handle"))
    assert ["no handle"] * 2 == [str(report["exception"]) for report in reports]


@pytest.mark.parametrize("way", ["submit", "repeat", "every"])
async def test_cancelling_what_has_failed_retrieves_its_failure(handler, way):
    """As with ``asyncio.Future``, ``cancel()`` after a failure changes nothing, and the failure is not reported."""
    reports = handler()
    async with RateLimitedExecutor("x") as executor:
        if way == "submit":
            handle = executor.submit(fail, ValueError("lost"))
        elif way == "repeat":
            handle = executor.schedule_at_fixed_rate(fail, ValueError("lost"), period=1, on_error=OnError.STOP)
        else:
            handle = executor.every(cycle=60, fn=fail, keys=lambda _: [], progress=Broken())
        await asyncio.sleep(1)
        reports.clear()  # a cycle reports at once
        assert handle.cancel() is False
        assert not handle.cancelled()
        del handle
        gc.collect()
        await asyncio.sleep(1)
    assert [] == reports


class Broken(MemoryProgress):
    """Progress that cannot be read."""

    async def begin(self, *_):
        """Raise."""
        raise OSError


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("way", ["submit", "options", "thread", "slots", "call_later", "execute", "batch", "repeat"])
async def test_failure_is_reported_in_the_context_of_the_call(virtual_loop, way, is_async):
    """The loop's exception handler sees the context variables of the failed call, as with asyncio from Python 3.12 on."""
    request = contextvars.ContextVar("request", default="none")
    seen = []
    virtual_loop.set_exception_handler(lambda _, report: seen.append((request.get(), repr(report["exception"]))))

    def boom(*_):
        if way not in ("thread", "slots"):  # a thread has a copy
            request.set("set by the call")
        raise ValueError

    async def boom_later(*_):
        await asyncio.sleep(0.1)
        boom()

    call = boom_later if is_async else boom
    async with ExecutorManager() as manager:
        executor = manager.executor("x")
        pool = manager.slots("a", limit=1)
        request.set("r-17")
        options = {"options": {"name": "n"}, "thread": {"in_thread": True}, "slots": {"in_thread": True, "slots": pool}}
        if way in ("submit", *options):
            handle = executor.submit(boom if way in ("thread", "slots") else call, **options.get(way, {}))
            expected = 1
        elif way == "batch":
            handle, expected = executor.schedule_many(call, range(3)), 1  # only the first is reported
        elif way == "repeat":
            handle, expected = executor.schedule_at_fixed_rate(call, period=0.3, max_runs=3), 3
        else:
            handle, expected = None, 3
            for _ in range(3):
                executor.execute(call) if way == "execute" else executor.call_later(0.2, call)
        request.set("another")
        await asyncio.sleep(2)
        del handle
        gc.collect()
        await asyncio.sleep(0)
    told = "r-17" if way in ("thread", "slots") else "set by the call"
    assert [(told, "ValueError()")] * expected == seen


class Big:
    """An object to hold a weak reference to."""


async def test_one_kept_handle_keeps_no_other_result_in_memory(virtual_clock):
    """A result dies with its own handle, however many other handles are kept."""
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
    """The references of a call are freed at its end, even if the handle lives."""
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
    """Many tasks can await a handle, also after its end."""

    async def awaiter(handle):
        return await handle

    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(double, 21, delay=1)
        assert [42, 42, 42] == await asyncio.gather(*(awaiter(handle) for _ in range(3)))
        assert 42 == await handle


async def test_a_call_may_cancel_itself(virtual_clock, account):
    """A coroutine that cancels its own handle ends as cancelled at its next suspension."""
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
    """A task that awaits its own handle gets an error, as in asyncio: it would never end."""
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
    """A task may await another's handle: one started in its first step, or one that awaits it."""

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
    """The holder of a permit cannot await its handle; another task can, and can be cancelled alone."""

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
    """A coroutine cancelled in its last step ends as cancelled, although it returns, as in asyncio."""
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
    """An error in one ``cancel()`` is reported, and the others are cancelled."""
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
