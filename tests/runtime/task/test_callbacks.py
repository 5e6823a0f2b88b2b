"""Done callbacks of one loop iteration use one ``call_soon``, in order, each as if the loop had called it itself."""

import asyncio
import contextvars
import gc
import operator
import re
import weakref

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._runtime.task.callbacks import CALL_COUNT_MAX, DoneCallbacks
from ratelimited_executor.simulation.loop import SimulationLoop
from ratelimited_executor.testing import VirtualEventLoop

from ...helpers import turns

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="none")
LOOPS = [asyncio.new_event_loop, VirtualEventLoop, SimulationLoop]


def fail(error: BaseException) -> None:
    raise error


async def test_callbacks_come_in_the_order_of_the_ends(virtual_clock):
    """Callbacks run in the order of the ends, those of one task in the order in which they were added."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(len, "", delay=3 - number) for number in range(3)]
        waiting = executor.schedule(len, "", delay=60)
        for number, handle in enumerate(handles):
            handle.add_done_callback(lambda h, number=number: log.append((number, "first")))
            handle.add_done_callback(lambda h, number=number: log.append((number, "second")))
        waiting.add_done_callback(lambda h: log.append("cancelled"))
        await asyncio.wait(handles)
        waiting.cancel()
        handles[0].add_done_callback(lambda h: log.append("added after its end"))
        await turns(1)
    ends = [(number, which) for number in (2, 1, 0) for which in ("first", "second")]
    assert [*ends, "cancelled", "added after its end"] == log


async def test_callbacks_of_a_turn_take_the_place_of_the_first(virtual_clock):
    """All callbacks of a turn run at the place of the first among the callbacks of the loop."""
    log, loop = [], asyncio.get_running_loop()
    async with RateLimitedExecutor("x") as executor:
        one, other = (executor.schedule(len, "", delay=60) for _ in range(2))
        for number, handle in enumerate((one, other)):
            handle.add_done_callback(lambda h, number=number: log.append(number))
        loop.call_soon(log.append, "before")
        one.cancel()
        loop.call_soon(log.append, "between")
        other.cancel()
        assert [] == log
        await turns(1)
    assert ["before", 0, 1, "between"] == log


async def test_callback_that_is_added_meanwhile_comes_in_the_next_turn(virtual_clock):
    """A callback added while callbacks are called runs in the next turn, as in asyncio."""
    log, loop = [], asyncio.get_running_loop()
    async with RateLimitedExecutor("x") as executor:
        one, other = (executor.schedule(len, "", delay=60) for _ in range(2))

        def first(handle):
            log.append("first")
            handle.add_done_callback(lambda h: log.append("added meanwhile"))
            other.cancel()
            loop.call_soon(log.append, "turn of the first")

        one.add_done_callback(first)
        one.add_done_callback(lambda h: log.append("second"))
        other.add_done_callback(lambda h: log.append("other"))
        one.cancel()
        await turns(1)
        assert ["first", "second"] == log
        await turns(1)
    assert ["first", "second", "added meanwhile", "other", "turn of the first"] == log


@pytest.mark.parametrize("is_debug", [False, True])
async def test_each_callback_has_its_own_context(virtual_clock, is_debug):
    """A callback runs in a copy of its caller's context, or in the given context itself."""
    asyncio.get_running_loop().set_debug(is_debug)
    log, given, empty = [], contextvars.copy_context(), contextvars.Context()

    def look(handle):
        log.append(VARIABLE.get())
        VARIABLE.set("changed")

    async with RateLimitedExecutor("x") as executor:
        bare, with_variables = (executor.schedule(len, "", delay=60) for _ in range(2))
        contextvars.Context().run(bare.add_done_callback, look)
        contextvars.Context().run(bare.add_done_callback, look)
        VARIABLE.set("mine")
        given.run(VARIABLE.set, "given")
        with_variables.add_done_callback(look)
        with_variables.add_done_callback(look, context=given)
        with_variables.add_done_callback(look)
        with_variables.add_done_callback(look, context=empty)
        lone = executor.schedule(len, "", delay=60)
        contextvars.Context().run(lone.add_done_callback, look)
        another = executor.schedule(len, "", delay=60)
        contextvars.Context().run(another.add_done_callback, look)
        VARIABLE.set("mine later")
        for handle in (bare, with_variables, lone, another):
            handle.cancel()
        await turns(1)
    assert ["none", "none", "mine", "given", "mine", "none", "none", "none"] == log
    assert ("changed", "changed") == (given[VARIABLE], empty[VARIABLE])


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.real_time("nothing waits: the order within two turns of each kind of loop is looked at")
def test_failure_is_reported_as_the_loop_reports_those_of_its_own(new_loop):
    """A failing callback is reported like one of the loop, and other callbacks and tasks continue."""
    loop, reports, log = new_loop(), [], []
    loop.set_exception_handler(lambda loop, report: reports.append(report))
    own, ours = ValueError("of the loop"), ValueError("of an executor")

    def failing(handle):
        raise own if type(handle) is asyncio.Future else ours

    async def main():
        async with RateLimitedExecutor("x") as executor:
            future = loop.create_future()
            future.add_done_callback(failing)
            future.set_result(None)
            handle = executor.submit(len, "")
            handle.add_done_callback(failing)
            handle.add_done_callback(log.append)
            await handle
            await turns(2)
            return future, handle

    try:
        future, handle = loop.run_until_complete(main())
    finally:
        loop.close()
    expected, seen = reports
    assert [handle] == log
    assert own is expected.pop("exception")
    assert ours is seen.pop("exception")
    assert expected.keys() == seen.keys()
    assert without_argument(expected["message"]) == without_argument(seen["message"])
    assert without_argument(repr(seen["handle"])) in without_argument(repr(expected["handle"]))


def without_argument(text: str) -> str:
    """Return a description of a callback without that of its argument, which is truncated."""
    return re.sub(r"<(Future|TaskHandle) .*>\)", "it)", text)


@pytest.mark.parametrize("error", [asyncio.CancelledError("c"), GeneratorExit("g"), BaseException("b")])
async def test_only_exits_leave_the_loop(handler, error):
    """Only the two exits leave the loop: any other exception is reported, as in asyncio."""
    reports, log = handler(), []
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(len, "")
        handle.add_done_callback(lambda h: fail(error))
        handle.add_done_callback(log.append)
        await handle
    (report,) = reports
    assert (error, [handle]) == (report["exception"], log)
    assert "test_only_exits_leave_the_loop.<locals>.<lambda>" in report["message"]


async def test_debug_mode_tells_where_a_task_ended(handler):
    """In debug mode a report has the stack of the code that ended the task."""
    reports = handler()
    asyncio.get_running_loop().set_debug(True)
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(len, "", delay=60)
        handle.add_done_callback(lambda h: fail(ValueError("no")))
        handle.cancel()
        await turns(1)
    (report,) = reports
    assert report["message"].startswith(
        "Exception in callback test_debug_mode_tells_where_a_task_ended.<locals>.<lambda>"
    )
    assert "test_debug_mode_tells_where_a_task_ended" in [frame.name for frame in report["source_traceback"]]


@pytest.mark.parametrize("new_loop", [VirtualEventLoop, SimulationLoop])
@pytest.mark.parametrize("exit_type", [SystemExit, KeyboardInterrupt])
def test_exit_leaves_the_loop_and_loses_no_callback(new_loop, exit_type):
    """An exit leaves ``run_until_complete``; the loop calls the other callbacks when it is run again."""
    loop, log = new_loop(), []

    async def main():
        async with RateLimitedExecutor("x") as executor:
            handles = [executor.schedule(len, "", delay=60) for _ in range(4)]
            handles[0].add_done_callback(log.append)
            handles[1].add_done_callback(lambda h: handles[3].cancel())
            handles[1].add_done_callback(lambda h: fail(exit_type("on its way")))
            handles[2].add_done_callback(log.append)
            handles[3].add_done_callback(log.append)
            for handle in handles[:3]:
                handle.cancel()
            await turns(5)
            assert [handles[0], handles[2], handles[3]] == log

    try:
        task = loop.create_task(main())
        with pytest.raises(exit_type, match="on its way"):
            loop.run_until_complete(task)
        assert 1 == len(log)
        loop.run_until_complete(task)
    finally:
        loop.close()


async def test_loop_has_its_turn_between_very_many_callbacks(virtual_clock):
    """Thousands of callbacks are called over several turns, in order, and none is lost."""
    log, turn_ends = [], []
    count = 2 * CALL_COUNT_MAX + 10
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(len, "", delay=60) for _ in range(count)]
        for handle in handles:
            handle.add_done_callback(log.append)
        for handle in handles:
            handle.cancel()
        for _ in range(5):
            await turns(1)
            turn_ends.append(len(log))
    assert [CALL_COUNT_MAX, 2 * CALL_COUNT_MAX, count, count, count] == turn_ends
    assert handles == log


@pytest.mark.parametrize("count", [3, CALL_COUNT_MAX - 1, CALL_COUNT_MAX, CALL_COUNT_MAX + 1, 3 * CALL_COUNT_MAX])
async def test_awaiter_goes_on_after_the_callbacks_that_were_added_before(virtual_clock, count):
    """An awaiter of the last of many handles continues after all their callbacks."""
    log = []
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(len, "", delay=60) for _ in range(count)]
        for handle in handles:
            handle.add_done_callback(log.append)

        async def wait_for(handle):
            with pytest.raises(asyncio.CancelledError):
                await handle
            return len(log)

        waiting = asyncio.ensure_future(wait_for(handles[-1]))
        await turns(1)
        for handle in handles:
            handle.cancel()
        assert count == await waiting


async def test_awaiter_that_is_cancelled_behind_many_callbacks_ends_once(virtual_clock):
    """An awaiter cancelled while many callbacks are pending ends once, by its own cancellation."""
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(len, "", delay=60) for _ in range(2 * CALL_COUNT_MAX)]
        for handle in handles:
            handle.add_done_callback(id)

        async def wait_for(handle):
            await handle

        waiting = asyncio.ensure_future(wait_for(handles[-1]))
        await turns(1)
        for handle in handles:
            handle.cancel()
        waiting.cancel("of the awaiter")
        with pytest.raises(asyncio.CancelledError, match="of the awaiter"):
            await waiting
        await turns(3)


def test_closed_loop_refuses_a_callback():
    """A closed loop refuses a callback each time, as ``call_soon`` does, and calls none."""
    loop, log = VirtualEventLoop(), []
    callbacks = DoneCallbacks(loop)
    loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            callbacks.add(log.append, None, None)
    assert [] == log
    assert not callbacks.is_crowded


def test_callbacks_outlive_a_loop_that_stops():
    """A loop stopped by a callback still calls the others of that turn; once closed it calls none."""
    loop, log = VirtualEventLoop(), []
    callbacks = DoneCallbacks(loop)

    def stop(handle):
        loop.stop()
        callbacks.add(log.append, "next turn", None)

    for callback, argument in ((stop, None), (log.append, "same turn")):
        callbacks.add(callback, argument, None)
    loop.run_forever()
    assert ["same turn"] == log
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert ["same turn", "next turn"] == log
    callbacks.add(log.append, "never", None)
    loop.close()
    assert ["same turn", "next turn"] == log


@pytest.mark.parametrize("callback", [id, operator.itemgetter(0)])
async def test_called_handles_are_freed(handler, callback):
    """Nothing keeps a handle once its callback was called, not even the traceback of an error."""
    reports = handler()
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(len, "")
        handle.add_done_callback(callback)
        await handle
        was = weakref.ref(handle)
        del handle
        await turns(2)
        errors = [report.pop("exception") for report in reports]  # it lives on, with its frames
        assert [TypeError][callback is id :] == [type(error) for error in errors]
        reports.clear()
        gc.collect()
        assert was() is None
