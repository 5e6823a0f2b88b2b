"""Closing: drained at due times or cut short, in bounded time, with every task accounted for."""

import asyncio
import gc
import logging
import subprocess
import warnings

import pytest

from ratelimited_executor import ExecutorManager, ExecutorStoppedError, RateLimitedExecutor, Retry, TaskState
from ratelimited_executor._runtime.life import closing
from ratelimited_executor._runtime.life.closing import GRACE_SECONDS
from ratelimited_executor.orders import Ageing, Fair
from ratelimited_executor.testing import VirtualEventLoop

from ...helpers import Flaky, now, run_python, sleep_for, swallow

DONE, CANCELLED = TaskState.DONE, TaskState.CANCELLED
GRACE = 5.0  # seconds for which a coroutine that swallows its cancellation is waited for


@pytest.fixture(autouse=True)
def quiet_log(caplog):
    """Collect what the library logs, from information upwards."""
    caplog.set_level(logging.INFO, "ratelimited_executor")


def warned(caplog) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]


def stamp(log: list) -> None:
    log.append(asyncio.get_running_loop().time())


# Left normally.


async def test_leaving_runs_everything_at_its_due_time(virtual_clock, caplog, account):
    """Leaving runs every accepted task at its due time, and the block ends with the last one."""
    calls, tasks, items = [], [], []
    async with RateLimitedExecutor("x") as executor:
        for seconds in (2, 7.5, 30):
            executor.call_later(seconds, stamp, calls)
        handles = [executor.schedule(stamp, tasks, delay=seconds) for seconds in (0, 4, 12)]
        batch = executor.schedule_many(lambda _: stamp(items), range(3), over=9)
        executor.execute(stamp, tasks)
    assert [2, 7.5, 30] == calls
    assert all(due <= at < due + 1 for due, at in zip((0, 0, 4, 12), tasks, strict=True)), tasks
    assert all(due <= at < due + 1 for due, at in zip((0, 3, 6), items, strict=True)), items
    assert [DONE] * 3 == [handle.state for handle in handles]
    assert batch.summary.done == 3
    assert 30 == virtual_clock.monotonic()
    assert [] == warned(caplog)
    account(executor)


async def test_leaving_keeps_the_rate(virtual_clock, audit):
    """A drain keeps the rate."""
    log = []
    async with RateLimitedExecutor("x", rate=10) as executor:
        for _ in range(95):
            executor.submit(stamp, log)
    assert 95 == len(log)
    assert audit(log, 10).ok
    assert log[-1] == pytest.approx(9.4, abs=0.1)


async def test_leaving_waits_for_what_runs(virtual_clock):
    """A running coroutine is drained like a waiting one."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(sleep_for, 40)
        await asyncio.sleep(1)
    assert ("slept", 40) == (handle.result(), virtual_clock.monotonic())


async def test_leaving_waits_for_a_held_permit(virtual_clock):
    """A drain waits for the body of a permit, which counts as a running task."""
    log = []

    async def body(executor):
        async with executor.permit():
            await asyncio.sleep(10)
            log.append("left")

    async with RateLimitedExecutor("x") as executor:
        task = asyncio.create_task(body(executor))
        await asyncio.sleep(1)
    assert (["left"], 10) == (log, virtual_clock.monotonic())
    await task


async def test_leaving_an_idle_executor_takes_no_time(virtual_clock, caplog):
    """Leaving an idle executor takes no time, and logs nothing."""
    async with RateLimitedExecutor("x", rate=0):
        pass
    assert 0 == virtual_clock.monotonic()
    assert [] == caplog.messages


async def test_leaving_stops_repeating_tasks(virtual_clock, caplog):
    """A repeating task does not delay leaving: it is cancelled, and its run in progress finishes."""
    log = []

    async def run():
        await asyncio.sleep(0.4)
        log.append(asyncio.get_running_loop().time())

    async with RateLimitedExecutor("x") as executor:
        every = executor.schedule_at_fixed_rate(run, period=10)
        await asyncio.sleep(20.1)
    assert [0.4, 10.4, 20.4] == pytest.approx(log)
    assert every.cancelled()
    assert 20.4 == pytest.approx(virtual_clock.monotonic())
    assert [] == warned(caplog)
    with pytest.raises(asyncio.CancelledError):
        await every


@pytest.mark.parametrize("kind", ["fixed rate", "fixed delay", "cron"])
async def test_leaving_does_not_wait_for_a_repetition(virtual_clock, kind):
    """Every kind of repetition ends when closing begins, and leaves no task."""
    async with RateLimitedExecutor("x") as executor:
        if kind == "fixed rate":
            every = executor.schedule_at_fixed_rate(int, period=60, initial_delay=60)
        elif kind == "fixed delay":
            every = executor.schedule_with_fixed_delay(int, delay=60, initial_delay=60)
        else:
            every = executor.schedule_cron("0 0 1 1 *", int)
        await asyncio.sleep(1)
    assert every.cancelled()
    assert 1 == virtual_clock.monotonic()
    assert 1 == executor.statistics().cancelled


async def test_aclose_equals_leaving_normally(virtual_clock):
    """``aclose`` does the same as leaving normally."""
    log = []
    executor = RateLimitedExecutor("x")
    await executor.start()
    executor.call_later(3, stamp, log)
    await executor.aclose()
    assert ([3], True) == (log, executor.is_terminated)


async def test_long_drain_is_announced(virtual_clock, caplog):
    """A drain that will take long is logged at once, with the remedy."""
    async with RateLimitedExecutor("mail") as executor:
        executor.call_later(3600, int)
        asyncio.get_running_loop().call_later(1, lambda: seen.extend(warned(caplog)))
        seen = []
    assert 1 == len(seen)
    assert "mail" in seen[0]
    assert "3600 s" in seen[0]
    assert "drain_timeout" in seen[0]
    assert 3600 == virtual_clock.monotonic()


async def test_leaving_runs_what_was_accepted_at_its_due_times(virtual_clock, caplog):
    """Leaving waits for due times and running coroutines, without a warning."""
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(now, delay=3.25), executor.schedule(asyncio.sleep, 2, "slept", delay=7)]
        executor.call_later(1, int)
    assert 3.25 <= handles[0].result() < 4
    assert "slept" == handles[1].result()
    assert (True, True) == (executor.is_shutdown, executor.is_terminated)
    assert [] == warned(caplog)


async def test_leaving_lets_the_run_of_a_repeating_task_end(virtual_clock):
    """Leaving waits for the run in progress of a repeating task, not for the next one."""
    runs = []

    async def run():
        await asyncio.sleep(3)
        runs.append(now())

    async with RateLimitedExecutor("x") as executor:
        every = executor.schedule_at_fixed_rate(run, period=5)
        await asyncio.sleep(6)
    assert [3, 8] == runs
    assert 8 == virtual_clock.monotonic()
    assert every.cancelled()


# The limit of the drain.


async def test_drain_timeout_cancels_the_rest_with_one_warning_that_counts_it(virtual_clock, caplog, account):
    """Tasks due within the timeout run, the rest is cancelled and counted in one warning."""
    log = []
    async with RateLimitedExecutor("mail", drain_timeout=5) as executor:
        executor.call_later(4, stamp, log)
        late = [executor.schedule(stamp, log, delay=3600) for _ in range(3)]
        executor.call_later(3600, stamp, log)
        batch = executor.schedule_many(stamp, [log] * 4, delay=3600)
        long = executor.schedule(sleep_for, 3600, delay=1)
    assert [4] == log
    assert [CANCELLED] * 3 == [handle.state for handle in late]
    assert CANCELLED is long.state
    assert 4 == (await batch).cancelled
    assert 5 == virtual_clock.monotonic()
    assert ["mail: closed with 8 waiting and 1 running task(s) cancelled"] == warned(caplog)
    account(executor)
    assert 9 == executor.statistics().cancelled


async def test_drain_timeout_that_is_not_needed_is_not_waited_for(virtual_clock, caplog):
    """A drain ends with its last task, not with its timeout."""
    async with RateLimitedExecutor("x", drain_timeout=100) as executor:
        executor.call_later(4, int)
    assert 4 == virtual_clock.monotonic()
    assert [] == caplog.messages


async def test_drain_timeout_of_zero_cancels_at_once(virtual_clock, caplog):
    """A timeout of zero cancels at once, also tasks that are due now."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        handles = [executor.submit(sleep_for, 9), executor.schedule(int, delay=9)]
        await asyncio.sleep(1)
    assert [CANCELLED] * 2 == [handle.state for handle in handles]
    assert 1 == virtual_clock.monotonic()
    assert 1 == len(warned(caplog))


def _rate_0(executor):
    executor.rate = 0


def _paused(executor):
    executor.pause()


def _no_place(executor):
    executor.max_concurrency = 0


@pytest.mark.parametrize("halt", [_rate_0, _paused, _no_place])
@pytest.mark.parametrize("when", ["before leaving", "while draining"])
async def test_drain_that_cannot_progress_cancels_with_one_warning(virtual_clock, caplog, account, halt, when):
    """A drain in which nothing can start any more cancels at once, whatever its timeout."""
    async with RateLimitedExecutor("mail", drain_timeout=1000) as executor:
        handle = executor.schedule(int, delay=2)
        call = executor.call_later(30, int)
        batch = executor.schedule_many(int, [1, 2], over=60)
        waiter = asyncio.create_task(executor.acquire(priority=-1))
        await asyncio.sleep(1.5)
        if when == "before leaving":
            halt(executor)
        else:
            asyncio.get_running_loop().call_later(0.25, halt, executor)
    assert [0.25 * (when == "while draining") + 1.5] == [virtual_clock.monotonic()]
    assert CANCELLED is handle.state
    assert (1, 1) == ((await batch).done, batch.summary.cancelled)
    assert not call.cancelled()
    assert ["mail: closed with 3 waiting and 0 running task(s) cancelled"] == warned(caplog)
    await waiter
    account(executor)


async def test_halted_drain_waits_for_what_runs(virtual_clock):
    """A halted drain waits for running tasks, and then cancels the waiting ones."""
    async with RateLimitedExecutor("x") as executor:
        running, waiting = executor.submit(sleep_for, 10), executor.schedule(int, delay=2)
        await asyncio.sleep(1)
        executor.pause()
    assert (DONE, CANCELLED, 10) == (running.state, waiting.state, virtual_clock.monotonic())


async def test_running_task_may_resume_a_halted_drain(virtual_clock):
    """A running task may resume a halted drain."""
    async with RateLimitedExecutor("x") as executor:

        async def resume():
            await asyncio.sleep(5)
            executor.resume()

        executor.submit(resume)
        waiting = executor.schedule(int, delay=2)
        await asyncio.sleep(1)
        executor.pause()
    assert DONE is waiting.state


async def test_task_that_waits_for_a_place_is_drained(virtual_clock):
    """A full ``max_concurrency`` does not halt a drain."""
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        handles = [executor.submit(sleep_for, 3) for _ in range(4)]
    assert [DONE] * 4 == [handle.state for handle in handles]
    assert 12 == virtual_clock.monotonic()


async def test_expiry_goes_on_while_draining(virtual_clock):
    """A task whose deadline passes during a drain ends as expired."""
    async with RateLimitedExecutor("x", rate=1, max_concurrency=1) as executor:
        executor.submit(sleep_for, 20)
        handle = executor.submit(int, expires=5)
        await asyncio.sleep(1)
    assert TaskState.EXPIRED is handle.state
    assert 20 == virtual_clock.monotonic()


async def test_drain_timeout_cancels_the_rest_with_one_warning(virtual_clock, caplog):
    """A task due in an hour delays leaving by ``drain_timeout`` at most, and is counted in one warning."""
    async with RateLimitedExecutor("x", drain_timeout=5) as executor:
        waiting = [executor.schedule(int, delay=3600) for _ in range(3)]
        running = executor.submit(asyncio.sleep, 100)
        done = executor.schedule(int, delay=4)
    assert 5 == virtual_clock.monotonic()
    assert {TaskState.CANCELLED} == {handle.state for handle in [*waiting, running]}
    assert TaskState.DONE is done.state
    assert ["x: closed with 3 waiting and 1 running task(s) cancelled"] == warned(caplog)


@pytest.mark.parametrize("how", ["rate 0", "paused", "no place"])
async def test_leaving_does_not_wait_for_what_cannot_progress(virtual_clock, caplog, how):
    """At rate 0, paused or without places, the rest is cancelled at once, with one warning."""
    async with RateLimitedExecutor("x") as executor:
        if how == "rate 0":
            executor.rate = 0
        elif how == "paused":
            executor.pause()
        else:
            executor.max_concurrency = 0
        handles = [
            executor.submit(int),
            executor.schedule(int, delay=60),
            executor.schedule(int, at=virtual_clock.wall() + 9),
        ]
        batch = executor.schedule_many(int, range(7), over=5)
    assert 0 == virtual_clock.monotonic()
    assert all(handle.cancelled() for handle in handles)
    assert 7 == batch.summary.cancelled
    assert ["x: closed with 10 waiting and 0 running task(s) cancelled"] == warned(caplog)


async def test_leaving_paused_lets_the_running_finish(virtual_clock):
    """A drain waits for running tasks of a paused executor, since they may resume it."""
    async with RateLimitedExecutor("x") as executor:

        async def resume():
            await asyncio.sleep(2)
            executor.resume()

        executor.submit(resume)
        await asyncio.sleep(0.5)
        executor.pause()
        handle = executor.submit(int)
    assert TaskState.DONE is handle.state


# Left by an exception, cancelled.


async def test_left_by_an_exception_everything_is_cancelled(virtual_clock, caplog, account):
    """Leaving by an exception cancels waiting and running tasks, and the exception propagates."""
    log = []

    async def work():
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            log.append("cleaned up")

    with pytest.raises(ZeroDivisionError):
        async with RateLimitedExecutor("x", drain_timeout=1000) as executor:
            running, waiting = executor.submit(work), executor.schedule(int, delay=9)
            executor.call_later(9, log.append, "never")
            batch = executor.schedule_many(log.append, ["never"] * 3, over=9)
            await asyncio.sleep(0.5)
            raise ZeroDivisionError
    assert ["never", "cleaned up"] == log  # the first item of the batch was due at once
    assert (CANCELLED, CANCELLED) == (running.state, waiting.state)
    assert (1, 2) == ((await batch).done, batch.summary.cancelled)
    assert 1.5 == virtual_clock.monotonic()
    assert [] == warned(caplog)
    account(executor)


async def test_cancelled_while_draining_everything_is_cancelled_and_awaited(virtual_clock, account):
    """Cancelling a drain cuts it short, and the cancellation propagates."""
    log, made = [], []

    async def work():
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            log.append("cleaned up")

    async def main():
        async with RateLimitedExecutor("x") as executor:
            made.extend((executor, executor.submit(work), executor.schedule(int, delay=90)))

    task = asyncio.create_task(main())
    await asyncio.sleep(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    executor, running, waiting = made
    assert (["cleaned up"], 4) == (log, virtual_clock.monotonic())
    assert (CANCELLED, CANCELLED, True) == (running.state, waiting.state, executor.is_terminated)
    account(executor)


async def test_cancelled_twice_while_draining_everything_is_still_awaited(virtual_clock):
    """Cancelling a drain twice still awaits every task."""

    async def work():
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(2)
            log.append("cleaned up")

    async def main():
        async with RateLimitedExecutor("x") as executor:
            executor.submit(work)

    log = []
    task = asyncio.create_task(main())
    for _ in range(3):
        await asyncio.sleep(0.5)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ["cleaned up"] == log


async def test_timeout_around_the_block_bounds_the_drain(virtual_clock):
    """``asyncio.timeout`` around the block limits the drain."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(7), RateLimitedExecutor("x") as executor:
            handle = executor.schedule(int, delay=3600)
    assert (CANCELLED, 7) == (handle.state, virtual_clock.monotonic())


async def test_coroutine_that_swallows_its_cancellation_is_waited_for_in_bounds(virtual_clock, caplog):
    """A coroutine that ignores cancellation is named after five seconds, and counted when it ends."""
    async with RateLimitedExecutor("mail", drain_timeout=2) as executor:
        handle = executor.submit(swallow, 60, name="stubborn")
        await asyncio.sleep(1)
    assert 1 + 2 + GRACE == virtual_clock.monotonic()
    assert executor.is_terminated
    text = warned(caplog)
    assert ["mail: closed with 0 waiting and 1 running task(s) cancelled"] == text[:1]
    assert 2 == len(text)
    assert "1 task(s) ignored their cancellation" in text[1]
    assert "unmoved" == await handle
    assert 1 == executor.statistics().done


async def test_thread_does_not_hold_the_shutdown(virtual_clock):
    """A thread does not delay closing: its task is cancelled, and the thread is left alone."""
    import threading

    release = threading.Event()
    executor = RateLimitedExecutor("x")
    await executor.start()
    handle = executor.submit(release.wait, 10, in_thread=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await executor.shutdown(cancel_pending=True)
    assert CANCELLED is handle.state
    assert 0 == virtual_clock.monotonic()
    release.set()
    await asyncio.sleep(0)


async def test_leaving_by_an_exception_cancels_what_waits_and_runs(virtual_clock):
    """Running coroutines are cancelled and awaited, and the exception propagates."""
    log = []

    async def run():
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            log.append(now())

    with pytest.raises(ValueError, match="mine"):
        async with RateLimitedExecutor("x") as executor:
            running, waiting = executor.submit(run), executor.schedule(int, delay=5)
            await asyncio.sleep(2)
            raise ValueError("mine")
    assert [3] == log
    assert (TaskState.CANCELLED, TaskState.CANCELLED) == (running.state, waiting.state)
    assert executor.is_terminated


async def test_cancelled_while_draining_cuts_the_drain(virtual_clock):
    """Cancelling a scope around ``async with`` ends the drain at once, with all tasks cancelled and awaited."""
    log = []

    async def run():
        try:
            await asyncio.sleep(100)
        finally:
            log.append(now())

    async def main():
        async with RateLimitedExecutor("x") as executor:
            log.append(executor)
            executor.submit(run)
            executor.schedule(int, delay=3600)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(4):
            await main()
    executor, ended = log
    assert 4 == ended == virtual_clock.monotonic()
    assert executor.is_terminated
    assert 2 == executor.statistics().cancelled


async def test_cancelled_inside_cuts_too(virtual_clock):
    """A cancellation in the body is leaving by an exception."""

    async def main():
        async with RateLimitedExecutor("x") as executor:
            handles.append(executor.schedule(int, delay=3600))
            await asyncio.sleep(100)

    handles = []
    task = asyncio.ensure_future(main())
    await asyncio.sleep(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert handles[0].cancelled()
    assert 3 == virtual_clock.monotonic()


async def test_a_coroutine_that_swallows_its_cancellation_holds_nobody(virtual_clock, caplog):
    """Closing gives up on a coroutine that ignores cancellation after a while, and names it."""
    stop = asyncio.Event()

    async def stubborn():
        while not stop.is_set():
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass

    with pytest.raises(ValueError):
        async with RateLimitedExecutor("x") as executor:
            handle = executor.submit(stubborn)
            await asyncio.sleep(1)
            raise ValueError
    assert now() <= 10
    assert any("ignored their cancellation" in message for message in warned(caplog))
    stop.set()
    handle.cancel()
    await handle


# shutdown, await_termination.


async def test_shutdown_refuses_at_once_and_drains(virtual_clock):
    """``shutdown`` begins without an await; awaiting its result waits for the end."""
    log = []
    executor = RateLimitedExecutor("x")
    await executor.start()
    executor.call_later(3, stamp, log)
    ending = executor.shutdown()
    assert (True, False) == (executor.is_shutdown, executor.is_terminated)
    with pytest.raises(ExecutorStoppedError):
        executor.submit(int)
    await ending
    assert (True, [3]) == (executor.is_terminated, log)


async def test_shutdown_goes_on_unawaited(virtual_clock):
    """An unawaited ``shutdown`` continues, without a warning."""
    log = []
    executor = RateLimitedExecutor("x")
    await executor.start()
    executor.call_later(3, stamp, log)
    executor.shutdown()
    await asyncio.sleep(3.5)
    assert (True, [3]) == (executor.is_terminated, log)


async def test_shutdown_without_wait_is_awaited_at_once(virtual_clock):
    """The result of ``shutdown(wait=False)`` can be awaited without waiting."""
    executor = RateLimitedExecutor("x")
    await executor.start()
    handle = executor.schedule(int, delay=3)
    await executor.shutdown(wait=False)
    assert (0, False) == (virtual_clock.monotonic(), executor.is_terminated)
    assert await executor.await_termination()
    assert DONE is handle.state


async def test_shutdown_with_cancel_pending_cancels_what_waits_and_runs(virtual_clock, caplog):
    """``cancel_pending`` cancels waiting and running tasks, and is logged once, as information."""
    executor = RateLimitedExecutor("mail")
    await executor.start()
    handles = [executor.submit(sleep_for, 9), executor.schedule(int, delay=9)]
    await asyncio.sleep(1)
    await executor.shutdown(cancel_pending=True)
    assert [CANCELLED] * 2 == [handle.state for handle in handles]
    assert 1 == virtual_clock.monotonic()
    assert ["mail: closed with 1 waiting and 1 running task(s) cancelled"] == caplog.messages
    assert [] == warned(caplog)


@pytest.mark.parametrize("own", [None, 1, 100])
async def test_shutdown_timeout_stands_in_place_of_the_drain_timeout(virtual_clock, own):
    """The timeout of ``shutdown`` replaces ``drain_timeout``, longer or shorter."""
    executor = RateLimitedExecutor("x", drain_timeout=own)
    await executor.start()
    handle = executor.schedule(int, delay=3600)
    await executor.shutdown(timeout=7)
    assert (CANCELLED, 7) == (handle.state, virtual_clock.monotonic())


async def test_second_shutdown_may_only_shorten_the_first(virtual_clock):
    """The earlier of two limits ends the drain."""
    executor = RateLimitedExecutor("x")
    await executor.start()
    executor.schedule(int, delay=3600)
    first = executor.shutdown(timeout=20)
    await asyncio.sleep(1)
    await executor.shutdown(timeout=4)
    assert 5 == virtual_clock.monotonic()
    await first
    await executor.shutdown(timeout=100)
    await executor.aclose()
    assert 5 == virtual_clock.monotonic()


async def test_later_limit_of_a_second_shutdown_does_not_lengthen_the_first(virtual_clock):
    """A longer second limit does not extend the drain."""
    executor = RateLimitedExecutor("x")
    await executor.start()
    executor.schedule(int, delay=3600)
    executor.shutdown(timeout=5)
    await executor.shutdown(timeout=50)
    assert 5 == virtual_clock.monotonic()


async def test_second_shutdown_may_cancel_what_the_first_drains(virtual_clock):
    """A second ``shutdown`` with ``cancel_pending`` cuts a drain short."""
    executor = RateLimitedExecutor("x")
    await executor.start()
    executor.schedule(int, delay=3600)
    first = executor.shutdown()
    await asyncio.sleep(1)
    await asyncio.gather(executor.shutdown(cancel_pending=True), asyncio.ensure_future(executor.aclose()))
    await first
    assert 1 == virtual_clock.monotonic()


async def test_closing_from_many_tasks_at_once_ends_all_at_the_same_time(virtual_clock):
    """All tasks that close the executor continue at the same time."""
    ends = []
    executor = RateLimitedExecutor("x")
    await executor.start()
    executor.call_later(3, int)

    async def close(way):
        await way()
        ends.append(asyncio.get_running_loop().time())

    await asyncio.gather(
        close(executor.aclose), close(executor.aclose), close(executor.shutdown), close(executor.await_termination)
    )
    assert [3.0] * 4 == ends


async def test_cancelling_one_of_two_closers_cuts_short_for_both(virtual_clock):
    """Cancelling one of two closers cuts the drain; the other one sees its end, not the cancellation."""
    executor = RateLimitedExecutor("x")
    await executor.start()
    handle = executor.schedule(int, delay=3600)
    first, second = (asyncio.create_task(executor.aclose()) for _ in range(2))
    await asyncio.sleep(1)
    first.cancel()
    await second
    assert (CANCELLED, 1) == (handle.state, virtual_clock.monotonic())
    assert first.cancelled() or first.cancelling()
    await asyncio.wait([first])


async def test_await_termination_tells_whether_it_has_come(virtual_clock):
    """``await_termination`` returns False at its timeout, and does not begin to close."""
    executor = RateLimitedExecutor("x")
    await executor.start()
    executor.call_later(10, int)
    assert not await executor.await_termination(2)
    assert not executor.is_shutdown
    executor.shutdown()
    assert not await executor.await_termination(3)
    assert 5 == virtual_clock.monotonic()
    assert await executor.await_termination(100)
    assert 10 == virtual_clock.monotonic()
    assert await executor.await_termination(0)


async def test_cancelled_await_termination_cuts_nothing_short(virtual_clock):
    """Cancelling ``await_termination`` does not cut the drain short."""
    executor = RateLimitedExecutor("x")
    await executor.start()
    handle = executor.schedule(int, delay=10)
    executor.shutdown()
    looker = asyncio.create_task(executor.await_termination())
    await asyncio.sleep(1)
    looker.cancel()
    assert await executor.await_termination()
    assert DONE is handle.state


async def test_shutdown_twice_and_from_two_tasks_is_one_shutdown(virtual_clock, caplog):
    """Two shutdowns have one end, and no task is cancelled twice."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(int, delay=3)
        first = executor.shutdown()
        second = executor.shutdown(wait=True)
        closing = [asyncio.ensure_future(executor.aclose()) for _ in range(2)]
        assert executor.is_shutdown
        assert not executor.is_terminated
        await first
        assert 3 <= now() < 4
        await second
        await asyncio.gather(*closing)
        await executor.aclose()
        assert executor.is_terminated
    assert TaskState.DONE is handle.state
    assert [] == warned(caplog)


async def test_one_of_two_waiters_may_be_cancelled_and_cuts(virtual_clock):
    """Cancelling one of two waiters cuts the drain, and the other one sees its end."""
    async with RateLimitedExecutor("x") as executor:
        executor.schedule(int, delay=3600)
        one, other = (asyncio.ensure_future(executor.aclose()) for _ in range(2))
        await asyncio.sleep(1)
        one.cancel()
        await asyncio.wait([one, other])
        assert one.cancelled()
        assert 1 == len(other.result())
        assert 1 == now()


async def test_second_shutdown_may_shorten_the_first(virtual_clock):
    """The timeout of a later shutdown counts from that call."""
    async with RateLimitedExecutor("x") as executor:
        executor.schedule(int, delay=3600)
        executor.shutdown()
        await asyncio.sleep(2)
        await executor.shutdown(timeout=3)
        assert 5 == now()


async def test_shutdown_can_cancel_what_is_pending(virtual_clock):
    """``cancel_pending=True`` ends at once."""
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.schedule(int, delay=60), executor.submit(asyncio.sleep, 60)]
        await asyncio.sleep(0)
        await executor.shutdown(cancel_pending=True)
        assert all(handle.cancelled() for handle in handles)
        assert 0 == now()


async def test_shutdown_need_not_be_awaited(virtual_clock):
    """An unawaited ``shutdown`` begins to close, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with RateLimitedExecutor("x") as executor:
            executor.schedule(int, delay=2)
            executor.shutdown(wait=False)
            gc.collect()
            await executor.shutdown(wait=False)
            assert 0 == now()
            assert await executor.await_termination(10)
            assert 2 == int(now())


async def test_await_termination_tells_whether_it_came(virtual_clock):
    """``await_termination`` waits for another caller's closing, at most for its timeout."""
    async with RateLimitedExecutor("x") as executor:
        executor.schedule(int, delay=5)
        assert not await executor.await_termination(timeout=2)
        asyncio.get_running_loop().call_later(1, executor.shutdown)
        assert await executor.await_termination()
        assert 5 <= now() < 6
        assert await executor.await_termination(timeout=0)


# Before and after.


async def test_start_is_refused_a_second_time(virtual_clock):
    """An executor starts once, and refuses a second start, open or closed."""
    executor = RateLimitedExecutor("x")
    async with executor:
        with pytest.raises(ExecutorStoppedError):
            await executor.start()
    with pytest.raises(ExecutorStoppedError):
        await executor.start()
    with pytest.raises(ExecutorStoppedError):
        async with executor:
            pass


async def test_executor_closed_before_its_start_stays_closed(virtual_clock):
    """Closing an executor before its start is done at once, and final."""
    executor = RateLimitedExecutor("x")
    await executor.aclose()
    assert (True, True) == (executor.is_shutdown, executor.is_terminated)
    with pytest.raises(ExecutorStoppedError):
        await executor.start()
    with pytest.raises(ExecutorStoppedError):
        executor.submit(int)


async def test_task_may_begin_the_shutdown_but_not_wait_for_it(virtual_clock):
    """A task may begin the shutdown; waiting for it is refused: it would wait for its own end."""

    async def close_and_wait(executor):
        await executor.aclose()

    async def close(executor):
        executor.shutdown()

    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(RuntimeError, match="itself"):
            await executor.submit(close_and_wait, executor)
        assert executor.is_shutdown
    assert executor.is_terminated
    async with RateLimitedExecutor("x") as executor:
        await executor.submit(close, executor)
    assert executor.is_terminated


@pytest.mark.parametrize("way", ["shutdown", "manager", "async with permit"])
async def test_waiting_for_ones_own_end_raises_in_other_ways_too(virtual_clock, way):
    """Awaiting ``shutdown()`` or the manager's end in a task raises, and so does ``aclose()`` in a permit's body."""
    async with ExecutorManager() as manager:
        executor = manager.executor("x")
        if way != "async with permit":

            async def close():
                await (executor.shutdown() if way == "shutdown" else manager.aclose())

            with pytest.raises(RuntimeError, match="itself"):
                await executor.submit(close)
        else:
            with pytest.raises(RuntimeError, match="itself"):
                async with executor.permit():
                    await executor.aclose()


async def test_settings_of_a_closed_executor_can_be_set(virtual_clock):
    """Settings of a closed executor can be set without an error, and wake nothing."""
    async with RateLimitedExecutor("x") as executor:
        pass
    executor.rate = 5
    executor.max_concurrency = 3
    executor.pause()
    executor.resume()
    assert 0 == executor.statistics().waiting
    assert "closed" in repr(executor)
    await asyncio.sleep(100)


async def test_a_task_may_shut_its_executor_down(virtual_clock):
    """A task may begin the shutdown of its executor; awaiting its own end is refused."""
    async with RateLimitedExecutor("x") as executor:

        async def last():
            executor.shutdown()
            with pytest.raises(RuntimeError, match="it would wait for itself"):
                await executor.aclose()
            return "last"

        handle = executor.submit(last)
        assert "last" == await handle
        assert await executor.await_termination(1)


# In the middle of other things.


@pytest.mark.parametrize("is_async", [False, True])
async def test_drain_draws_the_items_of_a_lazy_batch_to_their_end(virtual_clock, is_async):
    """A drain draws all items of a lazy batch, which were promised with the call."""
    log = []

    async def source():
        for number in range(20):
            await asyncio.sleep(0.5)
            yield number

    async with RateLimitedExecutor("x", rate=4) as executor:
        batch = executor.schedule_many(log.append, source() if is_async else iter(range(20)))
        await asyncio.sleep(1.1)
    assert list(range(20)) == log
    assert 20 == (await batch).done


async def test_cut_in_the_middle_of_a_lazy_batch_ends_batch_and_source(virtual_clock, account):
    """A cut draws no more items, cancels waiting ones, closes the source and ends the batch."""
    log = []

    async def source():
        try:
            for number in range(1000):
                yield number
                await asyncio.sleep(0.1)
        finally:
            log.append("closed")

    executor = RateLimitedExecutor("x", rate=1)
    await executor.start()
    batch = executor.schedule_many(int, source())
    await asyncio.sleep(2.05)
    await executor.shutdown(cancel_pending=True)
    summary = await batch
    assert (21, 3, 18) == (summary.total, summary.done, summary.cancelled)
    account(executor)
    await asyncio.sleep(0)
    assert ["closed"] == log


async def test_endless_lazy_batch_ends_with_the_drain_timeout(virtual_clock, account):
    """An endless source ends with the drain timeout."""
    import itertools

    async with RateLimitedExecutor("x", rate=100, drain_timeout=3) as executor:
        batch = executor.schedule_many(int, itertools.count())
    assert 3 == virtual_clock.monotonic()
    assert batch.done()
    assert batch.summary.total == batch.summary.done + batch.summary.cancelled
    account(executor)


async def test_halted_executor_ends_a_lazy_batch(virtual_clock):
    """A halted executor ends a lazy batch: drawing items while none can start is not progress."""
    async with RateLimitedExecutor("x", rate=0) as executor:
        batch = executor.schedule_many(int, iter(range(5000)))
        await asyncio.sleep(1)
    assert 1 == virtual_clock.monotonic()
    assert batch.done()
    assert 0 == batch.summary.done


async def test_drain_lets_map_go_on_with_what_it_has_submitted_only(virtual_clock):
    """During a drain ``map`` completes submitted calls, and further ones are refused."""
    got = []

    async def iterate(executor):
        async for result in executor.map(sleep_for, [1] * 10, limit=2):
            got.append(result)

    async with RateLimitedExecutor("x") as executor:
        task = asyncio.create_task(iterate(executor))
        await asyncio.sleep(2.5)
    with pytest.raises(ExecutorStoppedError):
        await task
    assert ["slept"] * len(got) == got
    assert executor.statistics().accepted == executor.statistics().done + executor.statistics().cancelled


async def test_cut_ends_map_with_the_cancellation_of_its_call(virtual_clock):
    """A cut ends ``map`` with the cancellation of its call."""

    async def iterate(executor):
        async for _ in executor.map(sleep_for, [50] * 10, limit=2):
            pass

    executor = RateLimitedExecutor("x")
    await executor.start()
    task = asyncio.create_task(iterate(executor))
    await asyncio.sleep(1)
    await executor.shutdown(cancel_pending=True)
    with pytest.raises((asyncio.CancelledError, ExecutorStoppedError)):
        await task
    assert 1 == virtual_clock.monotonic()


async def test_permit_waiters_are_drained(virtual_clock):
    """Waiters for a permit when closing begins get it in turn."""
    log = []

    async def wait(executor):
        await executor.acquire()
        stamp(log)

    async with RateLimitedExecutor("x", rate=1) as executor:
        tasks = [asyncio.create_task(wait(executor)) for _ in range(4)]
        await asyncio.sleep(0.5)
    assert [0, 1, 2, 3] == pytest.approx(log)
    await asyncio.gather(*tasks)


async def test_cut_cancels_permit_waiters(virtual_clock):
    """A cut ends waiters for a permit with a cancellation."""
    executor = RateLimitedExecutor("x", rate=1)
    await executor.start()
    tasks = [asyncio.create_task(executor.acquire()) for _ in range(4)]
    await asyncio.sleep(0.5)
    await executor.shutdown(cancel_pending=True)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [None] + [asyncio.CancelledError] * 3 == [None if one is None else type(one) for one in done]
    assert 0.5 == virtual_clock.monotonic()


async def test_cut_waits_for_the_holder_of_a_permit_in_bounds(virtual_clock):
    """Closing waits for a permit's holder in bounded time, does not cancel it, and its exit is harmless."""
    executor = RateLimitedExecutor("x")
    await executor.start()

    async def hold():
        async with executor.permit():
            await asyncio.sleep(60)
        return "left"

    holder = asyncio.create_task(hold())
    await asyncio.sleep(1)
    await executor.shutdown(cancel_pending=True)
    assert virtual_clock.monotonic() <= 1 + GRACE
    assert "left" == await holder
    counts = executor.statistics()
    assert 0 == counts.running
    assert 1 == counts.done + counts.cancelled


async def test_invoke_all_survives_a_cut(virtual_clock):
    """A cut leaves all handles of ``invoke_all`` done, as promised."""
    executor = RateLimitedExecutor("x", rate=1)
    await executor.start()
    task = asyncio.create_task(executor.invoke_all([int] * 5))
    await asyncio.sleep(1.5)
    await executor.shutdown(cancel_pending=True)
    assert [DONE, DONE, CANCELLED, CANCELLED, CANCELLED] == [handle.state for handle in await task]


async def test_task_that_ends_in_a_drain_cannot_schedule_another(virtual_clock):
    """A task that schedules another during a drain gets the refusal."""
    async with RateLimitedExecutor("x") as executor:

        async def chain():
            executor.submit(chain)

        handle = executor.schedule(chain, delay=1)
    assert isinstance(handle.exception(), ExecutorStoppedError)


async def test_call_soon_threadsafe_in_a_drain_is_reported(virtual_clock, handler):
    """A call from another thread that comes too late is reported."""
    reports = handler()
    executor = RateLimitedExecutor("x")
    await executor.start()
    executor.call_soon_threadsafe(int)
    executor.shutdown()
    await asyncio.sleep(0.1)
    assert [ExecutorStoppedError] == [type(report["exception"]) for report in reports]


async def test_lazy_batch_is_drawn_to_its_end_when_left(virtual_clock):
    """A drain draws and runs the items of a lazy batch, within ``drain_timeout``."""

    async def draw():
        number = 0
        while True:
            await asyncio.sleep(1)
            yield number
            number += 1

    async with RateLimitedExecutor("x", drain_timeout=5.5) as executor:
        batch = executor.schedule_many(int, draw())
        finite = executor.schedule_many(int, iter(range(5000)))
    assert 5.5 == now()
    assert batch.done()
    assert (5000, 5) == (finite.summary.done, batch.summary.done)


async def test_closing_in_the_middle_of_everything_accounts_for_all(virtual_clock, account):
    """A cut accounts for tasks of all kinds in all states."""
    async with RateLimitedExecutor("x", rate=50, max_concurrency=5) as executor:
        handles = [executor.schedule(asyncio.sleep, 1, delay=index / 10) for index in range(50)]
        executor.schedule_many(int, range(100), over=10)
        executor.schedule_many(asyncio.sleep, [1.0] * 100, delays=[index / 7 for index in range(100)])
        lazy = executor.schedule_many(int, iter(range(3000)))
        executor.schedule_at_fixed_rate(asyncio.sleep, 0.3, period=0.5)
        executor.schedule(int, at=virtual_clock.wall() + 3)

        async def hold():
            async with executor.permit():
                await asyncio.sleep(100)

        holders = [asyncio.ensure_future(hold()) for _ in range(3)]
        await asyncio.sleep(2.7)
        account(executor)
        executor.shutdown(cancel_pending=True)
        await asyncio.sleep(0)
        for holder in holders:
            holder.cancel()
        await executor.aclose()
        account(executor)
        assert (0, 0) == (executor.statistics().waiting, executor.statistics().running)
        assert all(handle.done() for handle in handles)
        assert lazy.done()


# The loop ends under us.


def run_loudly(program: str) -> subprocess.CompletedProcess:
    """Run a program in an interpreter of its own, showing every warning except those of a slow machine."""
    ended = run_python(program, warnings="always")
    lines = [
        line for line in ended.stderr.splitlines() if "held the event loop" not in line and "was blocked" not in line
    ]
    ended.stderr = "\n".join(lines)
    return ended


@pytest.mark.slow
@pytest.mark.real_time("an interpreter of its own ends")
@pytest.mark.parametrize(
    "use",
    [
        "pass",
        "executor.schedule(int, delay=3600)",
        "executor.submit(asyncio.sleep, 3600)",
        "executor.call_later(3600, int); executor.rate = 0",
        "executor.schedule_at_fixed_rate(int, period=0.01)",
        "executor.schedule_many(int, iter(range(10**6)), over=1000, count=10**6)",
        "executor.submit(int, in_thread=True)",
        "kept.append(asyncio.ensure_future(executor.acquire()))",
        "kept.append(executor.shutdown())",
        "face = executor.as_futures_executor(); kept.append(face); face.submit(int)",
    ],
)
def test_program_that_never_closes_ends_in_silence(use):
    """A program that never closes ends without a hang, an exception or a warning."""
    program = f"""
        import asyncio
        from ratelimited_executor import RateLimitedExecutor

        kept = []

        async def main():
            executor = RateLimitedExecutor("x")
            kept.append(executor)
            await executor.start()
            {use}
            await asyncio.sleep(0.05)

        asyncio.run(main())
        print("end")
    """
    ended = run_loudly(program)
    assert (0, "end\n", "") == (ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.real_time("an interpreter of its own ends")
def test_program_that_ends_in_a_drain_says_what_is_lost():
    """``asyncio.run`` cancels a drain at its end, and the warning counts the cancelled tasks."""
    program = """
        import asyncio
        from ratelimited_executor import RateLimitedExecutor

        async def main():
            executor = RateLimitedExecutor("x")
            await executor.start()
            executor.schedule(int, delay=30)
            executor.shutdown(wait=False)
            await asyncio.sleep(0.05)

        asyncio.run(main())
        print("end")
    """
    ended = run_loudly(program)
    expected = "x: closed with 1 waiting and 0 running task(s) cancelled"
    assert (0, "end\n", expected) == (ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.real_time("an interpreter of its own ends")
def test_handles_outlive_their_loop():
    """Handles of a closed loop can be read, cancelled and closed without an error."""
    program = """
        import asyncio
        from ratelimited_executor import RateLimitedExecutor

        async def main():
            executor = RateLimitedExecutor("x")
            await executor.start()
            return (executor, executor.schedule(int, delay=3600), executor.call_later(3600, int),
                    executor.schedule_many(int, [1, 2], delay=3600), executor.schedule_at_fixed_rate(int, period=9))

        executor, handle, call, batch, every = asyncio.run(main())
        print(executor.statistics().waiting, executor.is_shutdown)
        handle.cancel(); call.cancel(); batch.cancel(); executor.shutdown()
        print(executor.is_terminated)
        assert all(map(repr, (handle, call, batch, every)))
        del executor, handle, call, batch, every
        print("end")
    """
    ended = run_loudly(program)
    assert (0, "") == (ended.returncode, ended.stderr)
    assert ended.stdout.endswith("end\n")


@pytest.mark.real_time("an interpreter of its own ends")
def test_keyboard_interrupt_in_the_block_ends_the_program():
    """Ctrl-C makes ``asyncio.run`` cancel the main task, which cuts the executor short."""
    program = """
        import asyncio, os, signal
        from ratelimited_executor import RateLimitedExecutor

        async def main():
            async with RateLimitedExecutor("x") as executor:
                executor.schedule(int, delay=3600)
                executor.call_later(0.1, os.kill, os.getpid(), signal.SIGINT)

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("interrupted")
    """
    ended = run_loudly(program)
    assert (0, "interrupted\n") == (ended.returncode, ended.stdout), ended.stderr


def test_a_loop_closed_under_us_is_survived():
    """A loop closed before its executor causes no error, and handles can still be read."""
    loop = VirtualEventLoop()
    box = []

    async def main():
        executor = RateLimitedExecutor("x", rate=1)
        await executor.start()
        box.append(executor)
        box.append([executor.schedule(int, delay=delay) for delay in (0, 1, 100)])
        box.append(executor.call_later(5, int))
        await asyncio.sleep(2)

    loop.run_until_complete(main())
    loop.close()
    executor, handles, call = box
    assert [True, True, False] == [handle.done() for handle in handles]
    assert 4 == executor.statistics().accepted
    call.cancel()
    repr(executor), repr(handles[2])
    handles[2].cancel()
    del executor, handles, call
    box.clear()
    gc.collect()


def test_asyncio_run_that_is_interrupted_ends(virtual_loop):
    """``asyncio.run`` cancels every task at its end, which closes the executor too."""
    seen = []

    async def main():
        executor = RateLimitedExecutor("x")
        seen.append(executor)
        async with executor:
            executor.submit(asyncio.sleep, 1000)
            executor.schedule(int, delay=1000)
            await asyncio.sleep(1000)

    task = virtual_loop.create_task(main())
    virtual_loop.run_until_complete(asyncio.sleep(1))
    for each in asyncio.all_tasks(virtual_loop):
        each.cancel()
    virtual_loop.run_until_complete(asyncio.wait([task]))
    assert task.cancelled()
    assert seen[0].is_terminated
    assert 2 == seen[0].statistics().cancelled


# A good guest, also at its end.


def _call_laters(executor, count):
    return [executor.call_later(number / 1000, int) for number in range(count)]


def _handles(executor, count):
    return [executor.schedule(int, delay=number / 1000) for number in range(count)]


def _wall_handles(executor, count):
    now = executor._parts.runner.clock.wall()
    return [executor.schedule(int, at=now + 5 + number / 1000) for number in range(count)]


def _watched_batch(executor, count):
    return [executor.schedule_many(int, range(count), delay=5, results=True)]


@pytest.mark.parametrize("add", [_call_laters, _handles, _wall_handles, _watched_batch])
async def test_the_loop_has_its_turns_while_many_are_cancelled(virtual_clock, account, add):
    """The loop gets its turns while many tasks are cancelled, and each task is counted once."""
    turns = []
    executor = RateLimitedExecutor("x", rate=1, drain_timeout=0)
    await executor.start()
    handles = add(executor, 20_000)

    async def watch():
        while not executor._closing.is_closed:
            turns.append(executor.statistics().waiting)
            if add is not _watched_batch:
                handles[-1].cancel()
            executor.max_concurrency = None  # in vain: what closes starts nothing any more
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await executor.aclose()
    await watcher
    statistics = executor.statistics()
    assert 20_000 == statistics.accepted == statistics.cancelled + statistics.done
    assert statistics.done <= 1
    if add is not _watched_batch:
        assert len({*turns}) >= 9
    assert sorted(turns, reverse=True) == turns
    assert len(turns) >= 9
    account(executor)


async def test_to_be_cancelled_while_many_are_cancelled(virtual_clock, account):
    """Cancelling the closing itself, as ``asyncio.run`` does, finishes it at once."""
    executor = RateLimitedExecutor("x", drain_timeout=0)
    await executor.start()
    handles = _handles(executor, 20_000)
    closing = asyncio.create_task(executor.aclose())
    while not executor.statistics().cancelled:
        await asyncio.sleep(0)
    assert 10_000 < executor.statistics().waiting
    executor._closing.task.cancel()
    await asyncio.sleep(0)
    assert 0 == executor.statistics().waiting
    assert all(handle.done() for handle in handles)
    account(executor)
    await asyncio.wait([closing])


@pytest.mark.parametrize("kind", ["cancel raises", "waits for itself"])
@pytest.mark.parametrize("way", ["aclose", "abort"])
async def test_task_that_cannot_be_cancelled_does_not_break_the_end(virtual_clock, handler, account, caplog, kind, way):
    """An error in a task's ``cancel()`` is reported, the others are cancelled, and the executor ends in time."""
    reports = handler()

    class Uncancellable(asyncio.Future):
        def cancel(self, msg=None):
            raise LookupError("no cancelling")

    async def bad():
        await asyncio.sleep(0)
        await (Uncancellable() if kind == "cancel raises" else asyncio.gather(box[0]))

    executor = RateLimitedExecutor("x", drain_timeout=1)
    await executor.start()
    box = [executor.submit(bad)]
    running = [executor.submit(asyncio.sleep, 100) for _ in range(3)]
    waiting = [executor.schedule(asyncio.sleep, 0, delay=100) for _ in range(5)]
    await asyncio.sleep(1)
    await (executor.aclose() if way == "aclose" else executor.shutdown(cancel_pending=True))
    assert executor.is_terminated
    assert 8 == sum(handle.cancelled() for handle in running + waiting)
    assert [LookupError if kind == "cancel raises" else RecursionError] == [type(one["exception"]) for one in reports]
    assert "ignored their cancellation" in caplog.text
    account(executor)
    assert 1 + (way == "aclose") + GRACE_SECONDS == virtual_clock.monotonic()
    (task,) = executor._engine.accounts.running.values()
    task._fut_waiter.set_result(None)  # let it go
    await asyncio.wait([task])


async def linger(turns: int) -> None:
    """Sleep; if cancelled, end some turns of the loop later."""
    try:
        await asyncio.sleep(60)
    finally:
        for _ in range(turns):
            await asyncio.sleep(0)


@pytest.mark.parametrize("during", ["run", "batch", "order"])
@pytest.mark.parametrize("limit", ["keys", "slots", "fair"])
async def test_tasks_are_cancelled_in_steps_while_others_end(virtual_clock, account, monkeypatch, limit, during):
    """While waiting tasks are cancelled in steps, running ones end, which frees keys and slots, and code goes on."""
    monkeypatch.setattr(closing, "_CUT_COUNT", 5)
    order = {"fair": Fair()}.get(limit, Ageing(2))
    async with ExecutorManager() as manager:
        executor = manager.executor("x", order=order, key_concurrency=1, max_concurrency=40)
        pools = [manager.slots(str(number), limit=1) for number in range(20)] if limit == "slots" else [None] * 20
        running = [executor.submit(linger, 50 - 2 * number, key=number) for number in range(20)]
        handles = [
            executor.submit(sleep_for, 1, key=number, cost=2, slots=pools[number])
            for number in range(20)
            for _ in range(5)
        ]
        flaky = executor.schedule_many(Flaky(9), range(3), results=True, retry=Retry(5, base=60))
        await asyncio.sleep(0.005)
        batch = executor.schedule_many(sleep_for, range(30), delay=60, results=True)
        ended = executor.shutdown(cancel_pending=True)
        for _ in range(60):  # turns of the loop, in which no time passes
            await asyncio.sleep(0)
            if during == "batch":
                batch.cancel(), flaky.cancel()
            elif during == "order":
                executor.order = Fair() if isinstance(executor.order, Ageing) else Ageing(2)
        unstarted = await ended
        assert len(unstarted) == len(list(unstarted))
        account(executor)
        assert all(handle.done() for handle in [*running, *handles, batch, flaky])
        assert 0 == executor.statistics().waiting
        assert [0] * 20 == [pool.statistics().held if pool else 0 for pool in pools]
