"""Virtual time together with threads: which are waited for in real time, ignored or named in errors.

Some of these tests wait in real time, because the kit must; each says for what.
"""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Iterator
from typing import cast

import anyio.to_thread
import pytest

from ratelimited_executor.testing import (
    RealIOError,
    RealIOPolicy,
    VirtualEventLoop,
    run_virtual,
)

# Long enough that a clock which runs ahead of a thread would be noticed, short enough for every test run.
REAL_SECONDS = 0.02
PATIENCE = 0.05


def _loop() -> VirtualEventLoop:
    return cast("VirtualEventLoop", asyncio.get_running_loop())


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that a worker thread waits for, set at the end so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


async def _in_asyncio_thread(seconds: float) -> None:
    await asyncio.to_thread(time.sleep, seconds)


async def _in_anyio_thread(seconds: float) -> None:
    await anyio.to_thread.run_sync(time.sleep, seconds)


async def _in_own_pool(seconds: float) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, time.sleep, seconds)


@pytest.mark.real_time("a worker thread takes real time, which is what must not move the clock")
@pytest.mark.parametrize("in_thread", [_in_asyncio_thread, _in_anyio_thread, _in_own_pool])
@pytest.mark.parametrize("policy", ["raise", "wait"])
def test_time_stands_still_while_a_worker_thread_runs(in_thread, policy: RealIOPolicy) -> None:  # type: ignore[no-untyped-def]  # a coroutine function
    """A thread ends at the virtual instant at which it began, however many timers wait, under both policies."""

    async def main() -> tuple[list[float], float]:
        instants: list[float] = []
        sleeper = asyncio.create_task(asyncio.sleep(1))
        for _ in range(3):
            await in_thread(REAL_SECONDS)
            instants.append(_loop().time())
        await sleeper
        return instants, _loop().time()

    assert ([0.0, 0.0, 0.0], 1.0) == run_virtual(main(), real_io=policy)


@pytest.mark.real_time("a worker thread takes real time")
def test_timeout_does_not_fire_over_a_thread_that_ends_by_itself() -> None:
    """A virtual timeout cannot expire while the thread that it guards is awaited in real time."""

    def work() -> str:
        time.sleep(REAL_SECONDS)
        return "done"

    assert "done" == run_virtual(asyncio.wait_for(asyncio.to_thread(work), 1e-6))


def test_idle_worker_threads_do_not_count() -> None:
    """Idle threads of a pool, whose calls have ended, do not hold the time."""

    async def main() -> float:
        await asyncio.gather(*(asyncio.to_thread(int) for _ in range(3)))
        await asyncio.gather(*(anyio.to_thread.run_sync(int) for _ in range(3)))
        await asyncio.sleep(100)
        return _loop().time()

    assert 100.0 == run_virtual(main())


@pytest.mark.real_time("the patience with a thread that does not end is real")
@pytest.mark.parametrize("library", ["asyncio", "anyio"])
def test_a_thread_that_does_not_end_is_named(library: str, gate: threading.Event) -> None:
    """When patience runs out, the error names the function that the thread runs, and the seconds waited."""

    def never_ends() -> None:
        gate.wait()

    async def main() -> None:
        if library == "asyncio":
            await asyncio.to_thread(never_ends)
        else:
            await anyio.to_thread.run_sync(never_ends)

    loop = VirtualEventLoop(patience=PATIENCE)
    task = loop.create_task(main())
    with pytest.raises(RealIOError) as caught:
        loop.run_until_complete(task)
    gate.set()
    loop.run_until_complete(task)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()

    assert (0.0, PATIENCE) == (caught.value.now, caught.value.waited)
    assert 1 == len(caught.value.outstanding)
    assert "never_ends" in caught.value.outstanding[0]
    assert "within 0.05 s of real time" in str(caught.value)


@pytest.mark.real_time("the thread is released only after the clock has moved")
def test_a_cancelled_call_no_longer_holds_time(gate: threading.Event) -> None:
    """Nobody waits for the thread of a cancelled call, so time passes over it."""

    async def main() -> float:
        call = _loop().run_in_executor(None, gate.wait)
        call.cancel()
        await asyncio.sleep(5)
        gate.set()
        return _loop().time()

    assert 5.0 == run_virtual(main())


@pytest.mark.real_time("the thread is released only after the clock has moved")
def test_ignore_lets_time_pass_over_a_thread(gate: threading.Event) -> None:
    """Under ``ignore`` a timeout does fire over a thread that blocks, as the caller has asked for."""

    async def main() -> float:
        call = asyncio.create_task(asyncio.to_thread(gate.wait))
        done, _ = await asyncio.wait([call], timeout=60)
        assert not done
        gate.set()
        await call
        return _loop().time()

    assert 60.0 == run_virtual(main(), real_io="ignore")


def test_executor_of_another_kind_may_need_virtual_time() -> None:
    """A call handed to an executor that itself waits on the loop's timers does not hold time."""

    class OnTheLoop(concurrent.futures.Executor):
        def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]  # as in the base class
            future: concurrent.futures.Future[object] = concurrent.futures.Future()
            _loop().call_later(3, lambda: future.set_result(fn(*args, **kwargs)))
            return future

    async def main() -> tuple[int, float]:
        return await _loop().run_in_executor(OnTheLoop(), int, "7"), _loop().time()

    assert (7, 3.0) == run_virtual(main())


@pytest.mark.real_time("a thread of our own takes real time")
def test_hold_makes_time_wait_for_a_thread_of_ones_own() -> None:
    """A thread announced by a hold is awaited; what it called in runs before time moves on."""

    async def main() -> tuple[str, float, float]:
        loop = _loop()
        answer = loop.create_future()
        hold = loop.hold("my thread")

        def work() -> None:
            with hold:
                time.sleep(REAL_SECONDS)
                loop.call_soon_threadsafe(answer.set_result, "from my thread")

        threading.Thread(target=work).start()
        sleeper = asyncio.create_task(asyncio.sleep(1))
        text = await answer
        answered = loop.time()
        await sleeper
        hold.release()  # a second release does nothing
        return text, answered, loop.time()

    assert ("from my thread", 0.0, 1.0) == run_virtual(main())


@pytest.mark.real_time("a thread of our own takes real time")
def test_a_hold_counts_under_ignore_too() -> None:
    """A hold is an explicit request, so that not even ``ignore`` lets time pass over it."""

    async def main() -> float:
        loop = _loop()
        answer: asyncio.Future[float] = loop.create_future()
        hold = loop.hold("my thread")

        def work() -> None:
            with hold:
                time.sleep(REAL_SECONDS)
                loop.call_soon_threadsafe(lambda: answer.set_result(loop.time()))

        threading.Thread(target=work).start()
        await asyncio.sleep(1)
        return await answer

    assert 0.0 == run_virtual(main(), real_io="ignore")


@pytest.mark.real_time("the patience with a hold is real")
def test_a_hold_not_released_is_named() -> None:
    """A forgotten hold ends the run with an error that names it."""

    async def main() -> None:
        assert "<TimeHold 'forgotten' held>" == repr(_loop().hold("forgotten"))
        await asyncio.sleep(1)

    with pytest.raises(RealIOError, match="hold 'forgotten'"):
        run_virtual(main(), patience=PATIENCE)


def test_releasing_a_hold_after_the_loop_is_closed_is_harmless() -> None:
    """A thread that outlives its loop may still release its hold."""
    loop = VirtualEventLoop()
    hold = loop.hold("late")
    loop.close()

    hold.release()


@pytest.mark.real_time("a worker thread and the loop hand over in real time")
def test_thread_may_wait_for_the_loop_in_virtual_time() -> None:
    """A worker thread that waits for a coroutine of the loop lets time advance by exactly what the coroutine needs."""

    async def main() -> list[float]:
        loop = _loop()
        instants = []

        def work() -> None:
            for delay in (3, 4):
                future = asyncio.run_coroutine_threadsafe(asyncio.sleep(delay), loop)
                loop.result_in_thread(future)
                time.sleep(REAL_SECONDS / 4)  # the thread goes on, so that time must stand still again
                instants.append(loop.time())

        ticker = asyncio.create_task(asyncio.sleep(5.5))
        await asyncio.to_thread(work)
        await ticker
        return instants

    assert [3.0, 7.0] == run_virtual(main())


def test_result_in_thread_refuses_the_loop_itself() -> None:
    """On the loop's own thread the call would wait for ever, so that it raises an error."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match="is for worker threads"):
            _loop().result_in_thread(concurrent.futures.Future[None]())

    run_virtual(main())


def test_a_call_that_arrives_while_the_loop_is_about_to_block_keeps_time_still() -> None:
    """A thread may call in after asyncio has seen nothing ready: the selector looks again before it moves time."""
    loop = VirtualEventLoop()
    loop.call_later(5, int)
    selector = loop._selector  # type: ignore[attr-defined]  # asyncio's; there is no other way between its two steps
    loop.call_soon_threadsafe(int)

    assert [] == selector.select(5.0)
    assert 0.0 == loop.time()
    loop.close()


def test_a_call_from_a_thread_that_has_ended_runs_before_time_moves() -> None:
    """What a joined thread called in is ready, and so runs at the instant at which it was called."""

    async def main() -> float:
        loop = _loop()
        instants: list[float] = []
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(lambda: instants.append(loop.time()),))
        thread.start()
        thread.join()
        await asyncio.sleep(1)
        return instants[0]

    assert 0.0 == run_virtual(main())


def test_the_old_name_of_a_hold_goes_on_with_a_warning() -> None:
    """``testing.Hold`` is ``testing.TimeHold``, with a DeprecationWarning."""
    from ratelimited_executor import testing

    with pytest.warns(DeprecationWarning, match="TimeHold"):
        assert testing.Hold is testing.TimeHold  # type: ignore[attr-defined]  # no longer listed
