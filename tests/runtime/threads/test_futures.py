"""The exact promises of the futures face: permits, order, closing and threads on a virtual clock."""

import asyncio
import concurrent.futures
import contextvars
import functools
import gc
import threading

import pytest

from ratelimited_executor import BacklogFullError, ExecutorStoppedError, RateLimitedExecutor, Retry

from ...helpers import now

variable = contextvars.ContextVar("variable", default="nobody's")


async def test_starts_of_the_face_are_on_the_permits_of_the_executor(virtual_loop, audit):
    """Calls of the face start at the rate, in the order of submission."""
    starts = []
    async with RateLimitedExecutor("x", rate=4) as executor:
        face = executor.as_futures_executor()
        futures = [face.submit(lambda n=n: starts.append((n, virtual_loop.time()))) for n in range(9)]
        await asyncio.gather(*map(asyncio.wrap_future, futures))
    assert list(range(9)) == [n for n, _ in starts]
    assert audit([time for _, time in starts], 4).ok
    assert 2 == pytest.approx(starts[-1][1])


@pytest.mark.parametrize("kwargs", [{}, {"priority": 1}, {"timeout": 3, "name": "a", "delay": -1, "fn": 5, "self": 6}])
async def test_keyword_arguments_go_to_the_function(virtual_clock, kwargs):
    """All keyword arguments go to the function, also those that are options elsewhere."""

    def work(*args, **given):
        return args, given

    async with RateLimitedExecutor("x") as executor:
        face = executor.as_futures_executor()
        assert ((1, 2), kwargs) == await asyncio.wrap_future(face.submit(work, 1, 2, **kwargs))


async def test_run_in_executor_takes_the_face(virtual_clock):
    """``run_in_executor`` accepts the face, with a partial, too."""
    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x", rate=1) as executor:
        face = executor.as_futures_executor()
        calls = [loop.run_in_executor(face, functools.partial(int, "11", base=n)) for n in (2, 3, 4)]
        assert [3, 4, 5] == await asyncio.gather(*calls)
        assert 2 == pytest.approx(now())
        assert 3 == executor.statistics().done


async def test_loop_that_closes_during_a_submit_leaves_nothing_to_wait_for(virtual_clock, monkeypatch):
    """The call is refused, and a shutdown does not wait for it."""
    loop, refused = asyncio.get_running_loop(), []

    def closed(*_, **__):
        raise RuntimeError("Event loop is closed")

    def work():
        with monkeypatch.context() as patch, pytest.raises(ExecutorStoppedError) as error:
            patch.setattr(loop, "call_soon_threadsafe", closed)
            face.submit(int)
        refused.append(error.value)
        face.shutdown()

    async with RateLimitedExecutor("x") as executor:
        face = executor.as_futures_executor()
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(60)
        assert (False, 1) == (thread.is_alive(), len(refused))


@pytest.mark.parametrize("is_closed", [True, False], ids=["executor is closed", "executor is left open"])
def test_calls_that_a_loop_takes_over_after_its_last_turn_are_not_waited_for(is_closed):
    """After the end of its executor a call is refused; one that was accepted by a loop that ends without it is cancelled."""
    loop, executor, found = asyncio.new_event_loop(), RateLimitedExecutor("x", rate=100), []

    async def main():
        await executor.start()
        face = executor.as_futures_executor()
        if is_closed:
            await executor.aclose()
        return face

    def submit():
        try:
            found.append(face.submit(int, "3"))
        except ExecutorStoppedError as error:
            found.append(error)

    face = loop.run_until_complete(main())
    thread = threading.Thread(target=submit)
    thread.start()
    thread.join()
    loop.close()
    ending = threading.Thread(target=face.shutdown, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
    assert isinstance(found[0], ExecutorStoppedError) if is_closed else found[0].cancelled()


async def test_thread_submits_waits_and_maps(virtual_loop):
    """A thread can use the face like any executor of ``concurrent.futures``."""
    async with RateLimitedExecutor("x", rate=2) as executor:
        face = executor.as_futures_executor()

        def work():
            first = face.submit(pow, 2, 8)
            values = [virtual_loop.result_in_thread(first)]
            futures = [face.submit(pow, 2, n) for n in range(3)]
            values += [virtual_loop.result_in_thread(future) for future in concurrent.futures.as_completed(futures[:0])]
            values += [virtual_loop.result_in_thread(future) for future in futures]
            return values

        assert [256, 1, 2, 4] == await asyncio.to_thread(work)
        assert 1.5 == pytest.approx(now())


@pytest.mark.parametrize("error", [ValueError, KeyError, concurrent.futures.CancelledError])
async def test_exception_of_the_call_is_that_of_the_future(virtual_clock, handler, error):
    """The future gets the exception, the loop's handler does not, and the task counts as failed."""
    reports = handler()

    def work():
        raise error("no")

    async with RateLimitedExecutor("x") as executor:
        future = executor.as_futures_executor().submit(work)
        await asyncio.wait([asyncio.wrap_future(future)])
        assert future.done()
        assert future.cancelled() or type(future.exception()) is error
        gc.collect()
        await asyncio.sleep(0)
        assert [] == reports
        assert 1 == executor.statistics().failed + executor.statistics().cancelled


@pytest.mark.parametrize("method", ["result", "exception", "shutdown", "leave"])
async def test_waiting_on_the_loops_thread_is_refused_with_the_remedy(virtual_clock, method):
    """Waiting in the loop's thread is refused, and everything continues as before."""
    async with RateLimitedExecutor("x", rate=1) as executor:
        face = executor.as_futures_executor()
        face.submit(int)
        future = face.submit(int)
        with pytest.raises(RuntimeError, match="wait for itself"):
            if method == "shutdown":
                face.shutdown()
            elif method == "leave":
                with face:
                    pass
            else:
                getattr(future, method)(timeout=5)
        assert 0 == await asyncio.wrap_future(future)
        assert 0 == future.result()
        assert future.exception() is None
        assert 0 == await asyncio.wrap_future(face.submit(int))
        face.shutdown()


async def test_shutdown_ends_the_face_and_not_the_executor(virtual_clock):
    """A face that was shut down runs submitted calls and refuses new ones; other faces continue."""
    async with RateLimitedExecutor("x", rate=1) as executor:
        face, other = executor.as_futures_executor(), executor.as_futures_executor()
        futures = [face.submit(int) for _ in range(3)]
        face.shutdown(wait=False)
        face.shutdown(wait=False)
        with pytest.raises(ExecutorStoppedError):
            face.submit(int)
        with pytest.raises(RuntimeError):
            face.submit(int)
        assert [0] * 3 == await asyncio.gather(*map(asyncio.wrap_future, futures))
        assert 0 == await asyncio.wrap_future(other.submit(int))
        assert 0 == await executor.submit(int)
        assert not executor.is_shutdown


async def test_shutdown_may_cancel_what_waits(virtual_clock, account):
    """``shutdown`` may cancel waiting calls at once, without permits; running calls continue."""
    release = threading.Event()
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        face = executor.as_futures_executor()
        running, *waiting = [face.submit(release.wait, 20)] + [face.submit(int) for _ in range(3)]
        while not running.running():
            await asyncio.sleep(0)
        face.shutdown(wait=False, cancel_futures=True)
        assert [True] * 3 == [future.cancelled() for future in waiting]
        await asyncio.sleep(0)
        account(executor)
        assert (3, 1) == (executor.statistics().cancelled, executor.statistics().running)
        release.set()
        assert await asyncio.wrap_future(running)
    assert 1 == executor.statistics().started


async def test_shutdown_in_a_thread_waits_for_all(virtual_loop):
    """``shutdown`` in a thread returns when the last call has ended."""
    async with RateLimitedExecutor("x", rate=2) as executor:
        face = executor.as_futures_executor()
        futures = [face.submit(int) for _ in range(4)]

        def leave():
            for future in futures:
                virtual_loop.result_in_thread(future)
            face.shutdown()
            return [future.done() for future in futures]

        assert [True] * 4 == await asyncio.to_thread(leave)


@pytest.mark.parametrize("how", ["drained", "cut", "left by an exception"])
async def test_closing_the_executor_ends_every_future(virtual_clock, account, how):
    """A drain gives futures their results, a cut cancels them, and none stays pending."""
    futures = []
    try:
        async with RateLimitedExecutor("x", rate=1) as executor:
            face = executor.as_futures_executor()
            futures += [face.submit(int) for _ in range(3)]
            await asyncio.sleep(0.5)
            if how == "cut":
                await executor.shutdown(cancel_pending=True)
            elif how != "drained":
                raise KeyError
    except KeyError:
        pass
    await asyncio.sleep(0)
    assert all(future.done() for future in futures)
    assert [how != "drained"] * 2 == [future.cancelled() for future in futures[1:]]
    assert [] == list(concurrent.futures.wait(futures, timeout=0).not_done)
    account(executor)


async def test_full_executor_fails_the_future(virtual_clock):
    """A full executor fails the future, not the call: its owner may be in another thread."""
    async with RateLimitedExecutor("x", rate="1/min", max_pending=1, drain_timeout=0) as executor:
        face = executor.as_futures_executor()
        futures = [face.submit(int) for _ in range(4)]
        await asyncio.sleep(0)
        assert [BacklogFullError] * 3 == [type(future.exception()) for future in futures[1:]]


async def test_cancelled_await_of_a_wrapped_future_cancels_the_task(virtual_clock, account):
    """Cancelling the await of a wrapped future cancels a call that has not started."""
    async with RateLimitedExecutor("x", rate="1/min") as executor:
        face = executor.as_futures_executor()
        face.submit(int)
        waiting = face.submit(int)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(waiting), 5)
        await asyncio.sleep(0)
        assert waiting.cancelled()
        assert (1, 1, 0) == (executor.statistics().done, executor.statistics().cancelled, executor.statistics().waiting)
        account(executor)


async def test_call_of_the_face_sees_the_variables_of_its_submitter(virtual_clock):
    """A call sees its submitter's context variables; variables that it sets stay in the call."""
    async with RateLimitedExecutor("x") as executor:
        face = executor.as_futures_executor()
        token = variable.set("mine")
        futures = [face.submit(lambda: (variable.get(), variable.set("other"))[0]) for _ in range(2)]
        variable.reset(token)
        assert ["mine", "mine"] == await asyncio.gather(*map(asyncio.wrap_future, futures))
        assert "nobody's" == variable.get()


async def test_schedule_threadsafe_from_a_thread(virtual_loop):
    """``schedule_threadsafe`` takes delays and coroutine functions, and returns results and failures."""

    async def work(value):
        await asyncio.sleep(2)
        return value, threading.get_ident()

    async with RateLimitedExecutor("x") as executor:
        home = threading.get_ident()

        def use():
            first = executor.schedule_threadsafe(work, 1, delay=3)
            second = executor.schedule_threadsafe(int, "x")
            third = executor.schedule_threadsafe(threading.get_ident, priority=3, name="third")
            value = virtual_loop.result_in_thread(first)
            with pytest.raises(ValueError, match="invalid literal"):
                virtual_loop.result_in_thread(second)
            return value, virtual_loop.result_in_thread(third), threading.get_ident()

        value, third, own = await asyncio.to_thread(use)
        assert ((1, home), home) == (value, third)
        assert own != home
        assert 5 <= now() < 6


@pytest.mark.parametrize("state", ["waiting", "running", "ended"])
async def test_cancelling_a_threadsafe_future_cancels_its_task(virtual_loop, account, state):
    """A thread can cancel a task in any state, except one that has ended."""
    async with RateLimitedExecutor("x") as executor:
        future = executor.schedule_threadsafe(asyncio.sleep, 10, delay=5)
        await asyncio.sleep({"waiting": 1, "running": 8, "ended": 20}[state])
        assert (state != "ended") is await asyncio.to_thread(future.cancel)
        for _ in range(4):
            await asyncio.sleep(0)
        counts = executor.statistics()
        assert (state == "ended", state != "ended") == (counts.done, counts.cancelled)
        account(executor)


async def test_cancelling_at_once_places_no_task(virtual_clock):
    """A future cancelled before the loop handles it never becomes a task."""
    async with RateLimitedExecutor("x") as executor:
        future = executor.schedule_threadsafe(int)
        assert future.cancel()
        await asyncio.sleep(0)
        assert 0 == executor.statistics().accepted
        assert [] == list(concurrent.futures.wait([future], timeout=0).not_done)


@pytest.mark.parametrize("retry", [None, Retry(attempts=3, on=(BaseException,))])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_exit_of_a_call_stays_in_its_future(virtual_clock, handler, account, error, retry):
    """An exit stays in the future: the loop continues, and the call is not retried."""
    reports = handler()
    count = []

    def leave():
        count.append(1)
        raise error

    async with RateLimitedExecutor("x", retry=retry) as executor:
        future = executor.as_futures_executor().submit(leave)
        while not future.done():
            await asyncio.sleep(0.1)
        assert future.exception() is error
        assert 1 == len(count) == executor.statistics().failed
        account(executor)
        assert 5 == await executor.submit(int, 5)
    assert [] == reports
