"""The executor for programs without asyncio: an executor of ``concurrent.futures`` under the rules of the one inside."""

import asyncio
import concurrent.futures
import contextvars
import functools
import gc
import inspect
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

import pytest

from ratelimited_executor import (
    BacklogFullError,
    ExecutorStoppedError,
    OnError,
    Rate,
    RateLimitedExecutor,
    Retry,
    RetryLater,
    RunTimeoutError,
    TaskExpiredError,
    TaskState,
)
from ratelimited_executor._runtime.threads import loop_thread, scheduled
from ratelimited_executor.blocking import BlockingManager, ScheduledExecutor, ScheduledFuture
from ratelimited_executor.insight import Hold, observe
from ratelimited_executor.orders import Fair
from ratelimited_executor.peers import FilePeers, StaticPeers
from ratelimited_executor.testing import audit
from ratelimited_executor.typing import BatchOptions

from ...helpers import extras, run_program, run_python, until

pytestmark = [pytest.mark.real_time("threads wait for a loop in another thread"), pytest.mark.timeout(30)]
LOOP_THREAD = "ratelimited_executor"


@pytest.fixture
def executor():
    with ScheduledExecutor("x") as executor:
        yield executor


@pytest.fixture
def loop():
    """An event loop that runs in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def here() -> str:
    return threading.current_thread().name


async def here_async(*_: object) -> str:
    await asyncio.sleep(0)
    return here()


class AsyncCallable:
    async def __call__(self):
        return here()


def fail():
    raise KeyError("mine")


# What runs, where, and when.


def test_functions_run_in_threads_and_coroutine_functions_on_the_loop(executor):
    """Where a call runs is decided by what it is, also within a partial, for each kind of call."""
    for fn in (here, functools.partial(here)):
        assert here() != executor.submit(fn).result() != LOOP_THREAD
        assert LOOP_THREAD != executor.schedule(fn).result() != here()
    for fn in (here_async, functools.partial(here_async, 1), AsyncCallable(), functools.partial(AsyncCallable())):
        assert LOOP_THREAD == executor.submit(fn).result() == executor.schedule(fn, delay=0).result()
    found = []
    executor.schedule_many(lambda item: found.append((item, here())), range(3)).result()
    assert {0, 1, 2} == {item for item, name in found if name != LOOP_THREAD}
    batch = executor.schedule_many(here_async, range(2), results=True)
    batch.result()
    assert [LOOP_THREAD] * 2 == [outcome.value for outcome in batch.handle.results.values()]
    executor.schedule_at_fixed_rate(lambda: found.append((3, here())), period=1, max_runs=1).result()
    assert LOOP_THREAD != found[-1][1]


def test_a_class_is_called_in_a_thread(executor):
    """A class whose instances are called as coroutines is itself a function like others."""
    assert isinstance(executor.submit(AsyncCallable).result(), AsyncCallable)


def test_it_is_an_executor_of_the_standard_library(executor):
    """``submit``, ``map``, ``wait``, ``as_completed`` and keyword arguments work as with each executor."""
    assert isinstance(executor, concurrent.futures.Executor)
    future = executor.submit(int, "ff", base=16)
    assert isinstance(future, concurrent.futures.Future)
    assert 255 == future.result(10)
    assert (None, True, False, False) == (future.exception(), future.done(), future.running(), future.cancelled())
    assert [1, 8, 27] == list(executor.map(pow, [1, 2, 3], [3, 3, 3], timeout=10))
    futures = [executor.submit(pow, 2, number) for number in range(5)]
    assert set(futures) == concurrent.futures.wait(futures, timeout=10).done
    assert {1, 2, 4, 8, 16} == {future.result() for future in concurrent.futures.as_completed(futures)}
    with pytest.raises(
        TimeoutError, match=r"'here' of ScheduledExecutor 'x' has not ended within 0.01 s: it has not started"
    ):
        executor.schedule(here, delay=20).result(0.01)
    with pytest.raises(TimeoutError, match=r"'sleep' of .* has not ended within 0.3 s: it is running"):
        executor.schedule(time.sleep, 1).result(0.3)
    with pytest.raises(TimeoutError, match=r"'sleep' of .* has not ended within 0.3 s: it is running"):
        executor.schedule(asyncio.sleep, 1).exception(0.3)
    with pytest.raises(TimeoutError, match=r"'pow' of .* has not ended within 0.01 s$"):
        executor.schedule_at_fixed_rate(pow, 2, 3, period=5).result(0.01)
    executor.shutdown(cancel_futures=True)


def test_exception_of_a_call_has_its_traceback(executor):
    """An exception is raised as it was, with the lines of the function, for a function and for a coroutine."""

    async def fail_async():
        fail()

    for fn in (fail, fail_async):
        for future in (executor.submit(fn), executor.schedule(fn, delay=0.01)):
            with pytest.raises(KeyError, match="mine") as raised:
                future.result(10)
            assert "fail" == traceback.extract_tb(raised.value.__traceback__)[-1].name
            assert raised.value is future.exception()
    assert 4 == executor.statistics().failed


def test_function_that_hides_a_coroutine_fails_with_the_remedy(executor):
    """A coroutine that a plain function returns has nowhere to run, and its future says what to pass instead."""
    for future in (
        executor.submit(lambda: here_async()),
        executor.schedule_many(lambda _: here_async(), [1], results=True),
    ):
        error = future.exception(10) or future.handle.results[0].error
        assert isinstance(error, TypeError)
        assert "is async and cannot run in a worker thread: pass a function that is declared with async def" in str(
            error
        )


def test_a_generator_is_a_result_like_any_other(executor):
    """A generator function returns its generator, as in ``concurrent.futures``: it is not async."""

    def count():
        yield from range(3)

    assert [0, 1, 2] == list(executor.submit(count).result(10))


def test_nothing_starts_early_and_priority_decides(executor):
    """A delay and a due time by the wall clock are kept, and of what waits the most important starts first."""
    began = time.monotonic()
    futures = [executor.schedule(time.monotonic, delay=0.1), executor.schedule(time.monotonic, at=time.time() + 0.1)]
    assert all(future.result(10) - began >= 0.099 for future in futures)  # two clocks are read for the second

    log, executor.rate = [], 0
    futures = [executor.schedule(log.append, number, priority=number) for number in (1, 3, 2)]
    executor.rate = "100/s"
    concurrent.futures.wait(futures)
    assert [3, 2, 1] == log
    assert Rate(100) == executor.rate


def test_calls_of_many_threads_keep_the_law():
    """Calls that arrive from eight threads by ``submit`` and ``schedule`` start no faster than the rate."""
    starts = []
    with ScheduledExecutor("x", rate="100/s") as executor:

        def ask(number):
            call = executor.submit if number % 2 else executor.schedule
            return [call(lambda: starts.append(time.monotonic())) for _ in range(4)]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))
    assert 32 == len(starts)
    assert audit(starts, 100, slack=0.1).ok


def test_options_are_handed_through(tmp_path):
    """The settings and the options of a call are those of the asyncio executor inside."""
    with ScheduledExecutor(
        "x", peers=StaticPeers(2, 0), order=Fair(), max_pending=3, key_concurrency=1, retry=None, drain_timeout=0.1
    ) as executor:
        assert ("x", 3, 1) == (executor.name, executor.on_loop._max_pending, executor.on_loop.key_concurrency)
        assert 2 == executor.on_loop.manager.peers.count
        executor.pause()
        future = executor.schedule(here, key="tenant", cost=2, name="named", expires=0.05)
        assert ("tenant", 2, "named") == (future.handle.key, future.handle.cost, future.handle.name)
        assert Hold.PAUSE is executor.explain(future).hold
        executor.schedule_many(here_async, range(2))
        with pytest.raises(BacklogFullError):
            executor.schedule(here)
        with pytest.raises(BacklogFullError):
            executor.submit(here).result(10)
        with pytest.raises(TaskExpiredError):
            future.result(10)
        executor.resume()
    with ScheduledExecutor("x", peers=FilePeers(tmp_path / "limits"), rate="50/s") as executor:
        assert [1, 4] == list(executor.map(pow, [1, 2], [2, 2]))


def test_call_is_named_and_shown_as_its_function(executor):
    """A task has the name of its function, or the one given, and orders and lists see the function and its arguments."""
    partial = functools.partial(here_async, 1)
    for future in (
        executor.schedule(partial, delay=30),
        executor.schedule_at_fixed_rate(partial, period=1, initial_delay=30),
        executor.schedule_many(partial, [1], delay=30),
    ):
        assert "here_async" == future.handle.name
        future.cancel()
    for name in ("mine", None):
        futures = [
            executor.schedule(here, name=name, delay=30),
            executor.schedule_with_fixed_delay(here, delay=1, name=name),
            executor.schedule_many(here, [1], name=name, delay=30),
        ]
        assert {name or "here"} == {future.handle.name for future in futures}
        for future in futures:
            future.cancel()
    executor.schedule(pow, 2, 3, delay=20)
    until(lambda: 1 == executor.statistics().waiting)
    (view,) = executor.call(executor.on_loop.waiting_tasks)
    assert (pow, (2, 3), "pow") == (view.fn, view.args, view.name)
    executor.shutdown(cancel_futures=True)


def test_a_failed_call_is_retried():
    """A failed call is tried again by the rules of ``retry=``, and its future has the last outcome."""
    attempts = []

    def twice():
        attempts.append(1)
        if len(attempts) < 2:
            raise OSError("again")
        return "done"

    with ScheduledExecutor("x", retry=Retry(attempts=2, on=OSError, base=0.01)) as executor:
        assert "done" == executor.submit(twice).result(10)
        attempts.clear()
        assert "done" == executor.schedule(twice).result(10)
        assert 2 == executor.statistics().retried


def test_call_sees_the_variables_of_its_caller(executor):
    """Context variables are those of the thread that has asked."""
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(1)

    async def get():
        return variable.get()

    for fn in (variable.get, get):
        assert (1, 1) == (executor.submit(fn).result(), executor.schedule(fn, delay=0.01).result())
    assert 0 == executor.schedule(variable.get, context=contextvars.Context()).result()


# The pool.


def test_threads_are_bounded_and_the_most_important_call_gets_the_next():
    """No more than ``max_threads`` functions run, and while they do, what waits is in order, and may be cancelled."""
    release, log = threading.Event(), []
    with ScheduledExecutor("x", max_threads=2) as executor:
        assert 2 == executor.on_loop.max_concurrency
        running = [executor.submit(release.wait) for _ in range(4)]
        until(lambda: 2 == sum(future.running() for future in running))
        assert (2, 2) == (executor.statistics().waiting, executor.statistics().running)
        release.set()
    release.clear()
    with ScheduledExecutor("x", max_threads=1) as executor:
        until(executor.submit(release.wait).running)
        waiting = [executor.schedule(log.append, number, priority=number) for number in range(4)]
        assert waiting[3].cancel()
        release.set()
    assert [2, 1, 0] == log


def test_pool_of_the_user_is_used_and_left_open():
    """``thread_pool=`` runs the functions; it has its own limit, and is not shut down."""
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        with ScheduledExecutor("x", thread_pool=pool) as executor:
            assert None is executor.on_loop.max_concurrency
            assert "mine_0" == executor.submit(here).result(10)
        assert 1 == pool.submit(int, 1).result(10)


def test_call_may_wait_for_a_call(executor):
    """A function may schedule, and wait for what it has scheduled, as another place is free."""
    assert 8 == executor.submit(lambda: executor.schedule(pow, 2, 3).result()).result(10)


# Batches and repetitions.


def test_batch_counts_and_its_iterator_is_read_by_the_caller(executor):
    """The future of a batch has its summary; an iterator is read in the caller's thread, with its exceptions."""

    def items():
        readers.append(here())
        yield from range(5)

    readers = []
    batch = executor.schedule_many(lambda number: 1 // number, items(), over=0.05, name="divide")
    assert (5, 4, 1) == (batch.result(10).total, batch.result().done, batch.result().failed)
    assert ([here()], "divide") == (readers, batch.handle.name)
    with pytest.raises(ZeroDivisionError):
        executor.schedule_many(here, (1 // number for number in (1, 0)))
    waiting = executor.schedule_many(print, [1, 2, 3], delay=30)
    assert waiting.cancel()
    until(lambda: waiting.handle.open_count == 0)
    assert 3 == waiting.handle.summary.cancelled


def test_repetitions_end_pause_and_are_cancelled(executor):
    """Each kind of repetition has a future, which ends with it; its handle pauses and counts."""
    log = []
    assert None is executor.schedule_at_fixed_rate(log.append, 1, period=0.01, max_runs=2).result(10)
    assert None is executor.schedule_with_fixed_delay(log.append, 2, delay=0.01, max_runs=2).result(10)
    assert [1, 1, 2, 2] == log
    daily = executor.schedule_cron("@daily", log.append, 3, tz="Europe/London")
    assert daily.handle.next_due > time.time()
    assert executor.call(daily.handle.pause)
    assert (True, None) == (daily.handle.is_paused, daily.handle.next_due)
    assert daily.cancel()
    assert daily.cancelled()
    until(daily.handle.cancelled)
    with pytest.raises(concurrent.futures.CancelledError):
        daily.result()


@pytest.mark.parametrize("fn", [fail, sys.exit])
def test_repetition_may_end_with_its_first_failure(executor, fn):
    """With ``OnError.STOP`` the future has the exception of the run, also if that exits."""
    future = executor.schedule_at_fixed_rate(fn, period=1, on_error=OnError.STOP)
    assert isinstance(future.exception(10), (KeyError, SystemExit))
    assert 1 == executor.submit(int, 1).result(10)


# Cancelling, exits, and calls that never end.


def test_what_waits_can_be_cancelled_and_a_function_that_runs_cannot(executor):
    """A running coroutine is cancelled as a task is; ``concurrent.futures.wait`` is told of each."""
    release, is_cancelled = threading.Event(), threading.Event()

    async def wait():
        try:
            await asyncio.sleep(60)
        finally:
            is_cancelled.set()

    function, coroutine, waiting = (
        executor.submit(release.wait),
        executor.submit(wait),
        executor.schedule(int, delay=30),
    )
    until(lambda: function.running() and coroutine.handle is not None and coroutine.handle.state is TaskState.RUNNING)
    assert (False, True, True) == (function.cancel(), coroutine.cancel(), waiting.cancel())
    assert is_cancelled.wait(10)
    release.set()
    assert function.result(10)
    assert not concurrent.futures.wait([function, coroutine, waiting], timeout=10).not_done
    until(lambda: (1, 2) == (executor.statistics().done, executor.statistics().cancelled))


def test_cancelling_at_once_never_runs_the_call(executor):
    """A future that is cancelled before the loop knows of it, or just then, ends as cancelled, and nothing runs."""
    log = []

    async def run():
        log.append("coroutine")

    for fn in (lambda: log.append("function"), run):
        for _ in range(100):
            future = executor.submit(fn)
            if future.cancel():
                assert not concurrent.futures.wait([future], timeout=10).not_done
            else:
                future.result(10)
                log.clear()
            assert future.cancelled() or not log
        executor.submit(int).result(10)
        log.clear()


def test_cancelling_while_the_loop_accepts_the_call_never_runs_it(executor):
    """A future that is cancelled between its last look at it and the task that it places cancels the task."""
    futures, is_known, log = [], threading.Event(), []

    class Observer:
        def accepted(self, _):
            is_known.wait(10)
            futures[0].cancel()

        started = retried = ended = staticmethod(lambda *_: None)

    async def run():
        log.append(1)

    observation = executor.call(observe, executor.on_loop, Observer())
    futures.append(executor.submit(run))
    is_known.set()
    until(lambda: futures[0].handle is not None and futures[0].handle.cancelled())
    executor.call(observation.close)
    executor.submit(int).result(10)
    assert [] == log


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_exit_of_a_call_stays_in_its_future(executor, error):
    """A call that exits, in a thread or on the loop, ends no thread: its future has the exception, as in a pool."""

    def leave(*_):
        raise error("mine")

    async def leave_async(*_):
        raise error("mine")

    for fn in (leave, leave_async):
        for future in (executor.submit(fn), executor.schedule(fn, delay=0.01)):
            with pytest.raises(error, match="mine"):
                future.result(10)
        assert 1 == executor.schedule_many(fn, [1]).result(10).failed
    assert 1 == executor.submit(int, 1).result(10)


def test_call_that_never_ends_is_left_by_its_limits():
    """``run_timeout`` ends a future at once, and ``drain_timeout`` the closing; the thread is left to itself."""
    release = threading.Event()
    with ScheduledExecutor("x", drain_timeout=0.1) as executor:
        with pytest.raises(RunTimeoutError):
            executor.schedule(release.wait, run_timeout=0.05).result(10)
        future = executor.submit(release.wait)
        until(future.running)
    assert isinstance(future.exception(10), concurrent.futures.CancelledError)
    release.set()


def test_future_keeps_nothing_alive(executor):
    """The arguments and the result of a call go with the last reference to its future."""

    class Thing:
        pass

    things, futures = [Thing(), Thing()], []
    futures.append(executor.submit(lambda thing: thing, things[0]))
    futures.append(executor.schedule(lambda thing: thing, things[1], delay=0.01))
    concurrent.futures.wait(futures)
    until(lambda: not executor._futures)
    del things[:], futures[:]
    gc.collect()
    until(lambda: not [one for one in gc.get_objects() if type(one) is Thing])


# Callbacks, and the threads in which it cannot be used.


def test_callbacks_may_block_and_run_in_order(executor):
    """Callbacks run in threads without a loop, in their order, and may wait and schedule; an exception is only logged."""
    log, done = [], threading.Event()

    def first(future):
        log.append((future.result(), asyncio._get_running_loop(), executor.schedule(pow, 2, 2).result(10)))
        raise KeyError("logged")

    future = executor.schedule(here, delay=0.05)
    future.add_done_callback(first)
    future.add_done_callback(lambda _: done.set())
    assert done.wait(10)
    assert [(future.result(), None, 4)] == log
    future.add_done_callback(lambda _: log.append(here()))
    assert here() == log[-1]


def test_shutdown_waits_for_callbacks_and_is_refused_within():
    """The end waits for callbacks that run; a call and a callback cannot wait for the end, which waits for them."""
    log = []

    def end(*_):
        with pytest.raises(RuntimeError, match="would wait for itself: pass wait=False"):
            executor.shutdown()
        time.sleep(0.05)
        log.append(here())

    executor = ScheduledExecutor("x")
    executor.schedule(int, delay=0.05).add_done_callback(end)
    executor.submit(end)
    executor.schedule_many(end, [1])
    until(lambda: len(log) == 3)
    executor.schedule(int, delay=0.05).add_done_callback(end)
    executor.shutdown()
    assert 4 == len(log)


def test_on_its_own_loop_calls_do_not_wait(executor):
    """A coroutine function may schedule and await; what would wait for its own loop raises, and names the remedy."""

    async def use():
        assert 2 == await asyncio.wrap_future(executor.submit(int, 2))
        with pytest.raises(ValueError, match="delay must be >= 0"):
            executor.schedule(int, delay=-1)
        assert 3 == executor.statistics().accepted
        future = executor.schedule(int, 4, delay=0.02)
        for call in (future.result, future.exception):
            with pytest.raises(RuntimeError, match=r"on the thread of the event loop.*await asyncio.wrap_future"):
                call()
        with pytest.raises(RuntimeError, match="would wait for itself"):
            executor.shutdown()
        with pytest.raises(RuntimeError, match="would block the event loop"):
            executor.call(int)
        return await asyncio.wrap_future(future)

    executor.submit(int).result(10)
    assert 4 == executor.submit(use).result(10)


async def test_on_another_loop_only_what_does_not_wait_works():
    """``submit`` and so ``run_in_executor`` never wait; ``schedule`` does, and is refused with the remedy."""
    with ScheduledExecutor("x") as executor:
        loop = asyncio.get_running_loop()
        assert 1024 == await loop.run_in_executor(executor, pow, 2, 10)
        assert LOOP_THREAD == await asyncio.wrap_future(executor.submit(here_async))
        for call in (
            lambda: executor.schedule(int),
            lambda: executor.schedule_many(int, [1]),
            executor.backlog_seconds,
        ):
            with pytest.raises(RuntimeError, match=r"would block the event loop of this thread.*asyncio.to_thread"):
                call()
        assert 2 == (await asyncio.to_thread(executor.schedule, int, 2)).result(10)


def test_call_reaches_whatever_else_there_is(executor):
    """``call`` makes any call on the loop and returns its result, or that of its coroutine; observers are told there."""
    ends = []

    class Observer:
        def accepted(self, _):
            """Not looked at."""

        started = retried = accepted

        def ended(self, state, duration, count):
            ends.append((here(), state, count))

    executor.call(observe, executor.on_loop, Observer())
    assert LOOP_THREAD == executor.call(here)
    assert LOOP_THREAD == executor.call(here_async, 1)
    with pytest.raises(KeyError, match="mine"):
        executor.call(fail)
    executor.call(setattr, executor.on_loop, "max_concurrency", 3)
    assert 3 == executor.on_loop.max_concurrency
    executor.submit(int, 1).result(10)
    assert [(LOOP_THREAD, TaskState.DONE, 1)] == ends
    assert 0 == executor.backlog_seconds()
    executor.penalize(0.01)
    with executor.limiter.permit():
        assert 1 == executor.statistics().running


def test_live_page_and_metrics_are_those_of_the_executor_inside(executor):
    """The live page is served on its loop, and its metrics are collected, as of each executor."""
    with extras():
        import httpx
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        from ratelimited_executor.dashboard import dashboard
        from ratelimited_executor.metrics import instrument

    async def get():
        app = dashboard(executor.on_loop)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://page") as client:
            return (await client.get("/")).text

    reader = InMemoryMetricReader()
    executor.call(instrument, executor.on_loop, meter_provider=MeterProvider([reader]))
    executor.schedule(int, delay=30, name="shown")
    executor.submit(int).result(10)
    assert "<title>" in executor.call(get)
    assert "ratelimited_executor" in reader.get_metrics_data().to_json()
    executor.shutdown(cancel_futures=True)


# How it ends.


def test_shutdown_runs_what_was_accepted_and_stops_repetitions():
    """Calls that are due later run before the end, a repetition stops, and nothing more is accepted."""
    log = []
    executor = ScheduledExecutor("x")
    late = executor.schedule(log.append, "late", delay=0.1)
    every = executor.schedule_at_fixed_rate(time.sleep, 0, period=60)
    many = executor.schedule_many(log.append, ["many"], delay=0.05)
    executor.shutdown()

    assert ["many", "late"] == log
    assert (True, True, 1) == (late.done(), every.cancelled(), many.result().done)
    for call in (
        lambda: executor.submit(int),
        lambda: executor.schedule(int),
        lambda: executor.schedule_many(int, [1]),
        lambda: executor.schedule_at_fixed_rate(int, period=1),
        lambda: executor.map(int, [1]),
        lambda: executor.call(int),
        executor.__enter__,
    ):
        with pytest.raises(RuntimeError, match="closed and accepts nothing more"):
            call()
    executor.shutdown()
    assert "<ScheduledExecutor 'x' closed rate=inf/s>" == repr(executor)
    assert 3 == executor.statistics().accepted - executor.statistics().cancelled
    assert not [thread for thread in threading.enumerate() if thread.name == LOOP_THREAD]


def test_cancel_futures_cancels_what_has_not_started():
    """With ``cancel_futures`` running calls end as they do, and everything that waits is cancelled, also an attempt."""
    release, tried = threading.Event(), threading.Event()

    def again():
        tried.set()
        raise RetryLater(after=60)

    async def run():
        await asyncio.to_thread(release.wait)
        return "run"

    executor = ScheduledExecutor("x", max_threads=8)
    running = [executor.submit(release.wait), executor.submit(run)]
    waiting = [executor.schedule(int, delay=60), executor.schedule_many(int, [1], delay=60)]
    waiting.append(executor.schedule_at_fixed_rate(int, period=60, initial_delay=60))
    retried = executor.submit(again)
    until(lambda: tried.is_set() and retried.handle.state is TaskState.WAITING)
    until(lambda: running[0].running() and running[1].handle.state is TaskState.RUNNING)
    threading.Timer(0.05, release.set).start()
    executor.shutdown(cancel_futures=True)

    assert [True, "run"] == [future.result(0) for future in running]
    assert all(future.cancelled() for future in waiting)
    assert isinstance(retried.exception(0), concurrent.futures.CancelledError)


def test_calls_that_an_exception_or_a_shutdown_cancels_are_counted_in_the_log(caplog):
    """What is lost by an exception is a warning, what was asked for an information, and nothing cancelled no line."""
    caplog.set_level(logging.INFO, "ratelimited_executor")

    def add(executor):
        executor.schedule(int, delay=60)
        executor.schedule_many(int, [1, 2], delay=60)
        executor.schedule_at_fixed_rate(int, period=60, initial_delay=60)

    for make in (lambda: ScheduledExecutor("left"), BlockingManager):
        with pytest.raises(KeyError, match="mine"), make() as face:
            add(face if isinstance(face, ScheduledExecutor) else ScheduledExecutor("managed", manager=face))
            fail()
    asked = ScheduledExecutor("asked")
    add(asked)
    asked.shutdown(cancel_futures=True)
    with pytest.raises(KeyError, match="mine"), ScheduledExecutor("empty") as executor:
        executor.submit(int).result(10)
        fail()

    text = "closed with 3 waiting task(s) cancelled"
    assert [
        ("WARNING", f"left: {text}"),
        ("WARNING", f"managed: {text}"),
        ("INFO", f"asked: {text}"),
    ] == [(record.levelname, record.getMessage()) for record in caplog.records]


def test_shutdown_need_not_wait():
    """``wait=False`` returns at once: what was accepted runs, and then the thread ends; another call waits for that."""
    executor = ScheduledExecutor("x")
    future = executor.schedule(int, 3, delay=0.1)
    executor.shutdown(wait=False)
    assert not future.done()
    with pytest.raises(ExecutorStoppedError):
        executor.submit(int)
    assert 3 == future.result(10)
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == LOOP_THREAD])
    executor.shutdown()
    gc.collect()  # and there is no warning of an unclosed one


def test_leaving_by_an_exception_cancels_what_waits():
    """A ``with`` block that fails does not wait for calls that are due later."""
    with pytest.raises(KeyError, match="mine"), ScheduledExecutor("x") as executor:
        waiting = executor.schedule(int, delay=60)
        fail()
    assert waiting.cancelled()


def test_manager_left_by_an_exception_cancels_what_waits():
    """The same holds for the block of a manager, and for all its executors."""
    with pytest.raises(KeyError, match="mine"), BlockingManager() as manager:
        waiting = ScheduledExecutor("x", manager=manager).schedule(int, delay=60)
        fail()
    assert waiting.cancelled()


def test_closing_meets_threads_that_ask():
    """Each call of a thread is accepted, and then ends, or is refused."""
    for _ in range(5):
        executor, accepted = ScheduledExecutor("x"), []

        def ask(call, accepted=accepted):
            with pytest.raises(RuntimeError, match="closed"):
                while True:
                    accepted.append(call(int))

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            asking = [pool.submit(ask, call) for call in (executor.submit, executor.schedule) * 3]
            until(lambda: len(accepted) > 20)
            executor.shutdown()
            for one in asking:
                one.result(10)
        assert all(0 == future.result(10) for future in accepted)


def test_never_used_has_no_thread():
    """An executor that nobody uses starts no thread; its settings are checked, and may be changed."""
    before = threading.active_count()
    executor = ScheduledExecutor("x", rate=5)
    executor.rate = 6
    assert "<ScheduledExecutor 'x' new rate=6/s>" == repr(executor)
    executor.shutdown()
    executor.shutdown()
    assert before == threading.active_count()
    with pytest.raises(ExecutorStoppedError):
        executor.submit(int)


def test_dropped_runs_what_it_has_accepted_and_then_warns():
    """An executor that is dropped runs its calls, as those of the standard library do; then it warns, and ends."""
    log = []
    executor = ScheduledExecutor("x")
    kept = executor.schedule(log.append, 1, delay=0.1)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == LOOP_THREAD]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del executor
        until(lambda: gc.collect() is not None and not thread.is_alive())
    assert ([1], True) == (log, kept.done())  # its future does not keep it
    assert "unclosed ScheduledExecutor 'x': use with, or shutdown()" in {str(each.message) for each in warned}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # that is how it dies
def test_loop_that_has_died_leaves_nobody_waiting():
    """If an error ends the loop, futures are cancelled, new calls refused, and the end is no error."""
    executor = ScheduledExecutor("x")
    future = executor.schedule(int, delay=60)
    executor._thread.call_soon(sys.exit)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(10)
    executor._thread._thread.join(10)
    for call in (executor.submit, executor.schedule):
        with pytest.raises(ExecutorStoppedError):
            call(int)
    executor.shutdown()


# With others.


def test_executors_of_a_manager_share_slots_and_end_before_it():
    """Executors and slots of one manager share its loop; closing it runs their calls first, which may use its slots."""
    manager = BlockingManager(interval=0.5)
    gpu, limiter = manager.slots("gpu", limit=1), manager.limiter("api")
    first, second = ScheduledExecutor("first", manager=manager), ScheduledExecutor("second", manager=manager)

    def render():
        with limiter.permit():
            return gpu.statistics().held

    held = first.schedule(render, slots=gpu)
    assert 1 == held.result(10)
    assert 1 == second.schedule(render, slots=[gpu], delay=0.05).result(10)
    with pytest.raises(ValueError, match="name 'first' is in use"):
        ScheduledExecutor("first", manager=manager)
    first.shutdown()
    waiting = second.schedule(lambda: gpu.statistics().limit, delay=0.1)
    with pytest.raises(ExecutorStoppedError):
        first.submit(int)
    manager.close()
    assert 1 == waiting.result(0)
    with pytest.raises(ExecutorStoppedError):
        second.submit(int)


def test_all_futures_have_ended_when_shutdown_returns():
    """So it is, whatever kind of call they are of, also if the manager and its loop go on."""
    with BlockingManager() as manager:
        for number in range(20):
            executor = ScheduledExecutor(f"x{number}", manager=manager)
            futures = [
                executor.schedule_at_fixed_rate(int, period=60, initial_delay=60),
                executor.schedule_many(here_async, range(3)),
                executor.submit(int),
                executor.submit(here_async),
            ]
            executor.shutdown()
            assert all(future.done() for future in futures)
        executor = ScheduledExecutor("many", manager=manager, rate=0)
        futures = [executor.submit(int) for _ in range(8000)]  # whose ends are told in several turns of the loop
        executor.shutdown()
        assert all(future.cancelled() for future in futures)


def test_loop_that_is_given_is_used_and_goes_on(loop):
    """With ``loop=`` calls run on a loop that runs already, which continues after the end."""

    async def its_loop():
        return asyncio.get_running_loop()

    with ScheduledExecutor("x", loop=loop) as executor:
        assert loop is executor.submit(its_loop).result(10)
        assert 4 == executor.schedule(pow, 2, 2, delay=0.05).result(10)
        assert not [thread for thread in threading.enumerate() if thread.name == LOOP_THREAD]
    with BlockingManager(loop=loop) as manager, manager.limiter("api").permit():
        pass

    async def start():
        with pytest.raises(RuntimeError, match="would wait for its own start on the thread of its loop"):
            ScheduledExecutor("x", loop=loop).submit(int)

    asyncio.run_coroutine_threadsafe(start(), loop).result(10)


def test_end_of_a_given_loop_ends_the_calls():
    """When ``asyncio.run`` ends, waiting calls are cancelled; when a loop is only stopped, those who wait are told."""
    found = []

    async def main():
        loop = asyncio.get_running_loop()
        found.append(await asyncio.to_thread(ScheduledExecutor, "x", loop=loop))
        found.append(await asyncio.to_thread(found[0].schedule, int, delay=60))

    asyncio.run(main())
    executor, future = found
    assert future.cancelled()
    with pytest.raises(ExecutorStoppedError):
        executor.submit(int)
    executor.shutdown()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    executor = ScheduledExecutor("x", loop=loop)
    every = executor.schedule(int, delay=60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    for call in (lambda: executor.submit(int), lambda: executor.schedule(int), executor.shutdown):
        with pytest.raises(RuntimeError, match="has lost its event loop, which has been stopped"):
            call()
    again = threading.Thread(target=loop.run_forever)
    again.start()
    executor.shutdown(cancel_futures=True)
    assert every.cancelled()
    loop.call_soon_threadsafe(loop.stop)
    again.join()
    loop.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name must be a str"),
        ({"rate": -1}, "rate"),
        ({"max_threads": 0}, "max_threads must be >= 1"),
        ({"max_workers": 1}, "unknown argument max_workers= of an executor"),
        ({"interval": 1}, r"interval=: it is a setting of the manager, .*BlockingManager\(interval=...\)"),
        ({"retries": 1}, r"retries=: use retry=Retry\(attempts=...\)"),
        ({"thread_pool": 1}, "thread_pool must be"),
        ({"manager": 1}, "manager must be a BlockingManager"),
        ({"manager": BlockingManager(), "peers": StaticPeers(1, 0)}, "peers= and loop= exclude manager="),
        ({"loop": 1}, "loop must be an asyncio event loop that runs in another thread"),
    ],
    ids=str,
)
def test_bad_settings_are_refused_at_the_call(arguments, message):
    """Bad settings are refused when the executor is created, as those of the asyncio executor are."""
    with pytest.raises((TypeError, ValueError), match=message):
        ScheduledExecutor(**{"name": "x", **arguments})


def test_bad_input_is_refused_at_the_call_and_changes_nothing(executor):
    """Bad arguments are refused in the caller's thread, and name the parameter and the remedy."""
    coroutine = here_async()
    for call, message in (
        (lambda: executor.submit(1), "fn must be a callable"),
        (lambda: executor.submit(coroutine), "pass the function and its arguments, uncalled"),
        (lambda: executor.schedule(None), "fn must be a callable"),
        (lambda: executor.schedule(int, delay=-1), "delay must be >= 0"),
        (lambda: executor.schedule(int, delay=1, at=1), "delay= or at=, not both"),
        (lambda: executor.schedule(int, at="now"), "at must be"),
        (lambda: executor.schedule(int, timeout=1), "run_timeout=.*functools.partial"),
        (lambda: executor.schedule(int, base=1), "functools.partial"),
        (lambda: executor.schedule(int, in_thread=True), "in_thread=: functions run in worker threads"),
        (lambda: executor.schedule(int, slots="gpu"), "slots must be"),
        (lambda: executor.schedule_many(1, [1]), "fn must be a callable"),
        (lambda: executor.schedule_many(int, 1), "items must be an iterable"),
        (lambda: executor.schedule_many(int, [1], delays=[1, 2]), "delays must have one entry"),
        (lambda: executor.schedule_at_fixed_rate(int, period=0), "period must be > 0"),
        (lambda: executor.schedule_at_fixed_rate(1, period=1), "fn must be a callable"),
        (lambda: executor.schedule_at_fixed_rate(int, period=1, in_thread=False), "in_thread="),
        (lambda: executor.schedule_with_fixed_delay(int, delay=-1), "delay must be >= 0"),
        (lambda: executor.schedule_cron("61 * * * *", int), "expression"),
        (lambda: executor.call(1), "fn must be a callable"),
        (lambda: executor.explain(1), "future must be that of one call of x"),
        (lambda: executor.explain(executor.schedule_many(int, [])), "future must be that of one call of x"),
        (lambda: executor.shutdown(wait=1), "wait must be True or False"),
        (lambda: setattr(executor, "rate", -1), "rate"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    assert 0 == executor.statistics().accepted
    with ScheduledExecutor("other") as other, pytest.raises(ValueError, match="handle must be a task of x"):
        executor.explain(other.submit(int))


def test_arguments_are_those_of_the_asyncio_executor():
    """Each method takes the options of its counterpart: all of them, but for ``in_thread``."""
    runs = set(inspect.signature(RateLimitedExecutor.schedule).parameters)
    assert set(inspect.get_annotations(scheduled.CallOptions)) | set(
        inspect.get_annotations(scheduled.SharedOptions)
    ) == (runs - {"self", "fn", "args", "in_thread"})
    ours = {*inspect.get_annotations(scheduled.RepeatOptions), *inspect.get_annotations(scheduled.SharedOptions)}
    for name in ("schedule_at_fixed_rate", "schedule_with_fixed_delay", "schedule_cron"):
        model, mine = (
            inspect.signature(getattr(owner, name)).parameters for owner in (RateLimitedExecutor, ScheduledExecutor)
        )
        own = {*mine} - {"options"}
        assert {*model} - {"in_thread"} <= own | ours
        assert own <= {*model}
        assert ours - {"initial_delay", "missed", "allow_overlap"} <= {*model}
    assert set(inspect.get_annotations(BatchOptions)) == (
        set(inspect.signature(RateLimitedExecutor.schedule_many).parameters) - {"self", "fn", "items"}
    )


# Programs.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_fork_may_come_before_the_first_use_and_not_after():
    """An executor works in a fork made before its start; after it, each call and each wait in the child is an error."""
    program = """
        import os, warnings
        from ratelimited_executor.blocking import ScheduledExecutor

        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: that is the point

        def forked(call):
            if child := os.fork():
                assert os.waitpid(child, 0)[1] == 0
                return
            try:
                print("child:", call(), flush=True)
            except RuntimeError as error:
                print("child:", str(error).partition(" in process")[0], flush=True)
            finally:
                executor.shutdown()
                os._exit(0)

        executor = ScheduledExecutor("x")
        forked(lambda: executor.submit(pow, 2, 2).result())
        future = executor.schedule(pow, 2, 3, delay=0.5)
        ended = executor.submit(pow, 2, 1)
        assert ended.result() == 2
        for call in (lambda: executor.submit(int), lambda: executor.schedule(int), executor.statistics):
            forked(call)
        for call in (future.result, future.exception, future.cancel, ended.result, ended.cancel):
            forked(call)
        for lock in (executor._lock, executor._thread._lock):  # as another thread of the parent may hold it
            with lock:
                forked(executor.shutdown)
        print("parent:", future.result())
        executor.shutdown()
    """
    refused = "child: ScheduledExecutor 'x' was started\n"
    assert (f"child: 4\n{refused * 6}child: 2\nchild: False\nchild: None\nchild: None\nparent: 8\n", "") == run_program(
        program
    )


def test_exit_runs_what_was_accepted():
    """The interpreter waits for accepted calls, refuses new ones of other threads, and stops repetitions."""
    program = """
        import threading, time
        from ratelimited_executor.blocking import BlockingManager, ScheduledExecutor

        managers = [BlockingManager() for _ in range(8)]  # all are open until the calls have ended
        executor = ScheduledExecutor("x", manager=managers[0])
        limiters = [manager.limiter("api") for manager in managers]

        def run(text):
            for limiter in limiters:
                limiter.acquire()
            print(text, flush=True)
            return text

        def run_later():
            ended.wait()
            return run("later")

        ended = threading.Event()
        run("first")

        def refused():
            threading.main_thread().join()
            while True:
                try:
                    executor.submit(int)
                except RuntimeError:
                    break
            print("refused", future.result(), flush=True)

        executor.schedule_at_fixed_rate(time.sleep, 0, period=60)
        future = executor.schedule(run_later, delay=0.1)
        threading.Thread(target=refused).start()
        print("end", flush=True)
        ended.set()
    """
    assert ("first\nend\nlater\nrefused later\n", "") == run_program(program)


def test_exit_runs_what_was_accepted_after_a_shutdown_that_did_not_wait():
    """``shutdown(wait=False)`` and the end of the program lose nothing; with ``cancel_futures`` it does not wait."""
    program = """
        from ratelimited_executor.blocking import ScheduledExecutor

        kept, cut = ScheduledExecutor("kept"), ScheduledExecutor("cut")
        kept.schedule(print, "later", delay=0.3)
        cut.schedule(print, "never", delay=60)
        kept.shutdown(wait=False)
        cut.shutdown(wait=False, cancel_futures=True)
    """
    assert ("later\n", "") == run_program(program)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_long_exit_says_what_it_waits_for_and_sigterm_may_lead_to_it():
    """The lines of the documentation let accepted calls run after SIGTERM, and an exit of over a second says so."""
    page = Path(__file__).parents[3] / "docs" / "howto" / "threads.md"
    lines = page.read_text("utf-8").partition("### End by SIGTERM")[2].partition("```python\n")[2].partition("```")[0]
    use = """
executor.schedule(print, "later", delay=3)
signal.raise_signal(signal.SIGTERM)
print("never")
"""
    output, errors = run_program(lines + use)
    assert "later\n" == output
    assert "mail: the exit of the program waits for 1 waiting and 0 running call(s); Ctrl-C ends it at once\n" == errors


def test_exit_runs_what_a_given_loop_has_accepted():
    """The same holds for calls on a loop that is given, whose thread is a daemon."""
    program = """
        import asyncio, threading
        from ratelimited_executor.blocking import ScheduledExecutor

        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        ScheduledExecutor("x", loop=loop).schedule(print, "later", delay=0.3)
    """
    assert "later\n" == run_program(program)[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_child_of_multiprocessing_runs_its_own_calls_before_its_end():
    """A forked child runs what it has accepted, and does not wait for what its parent has."""
    program = """
        import multiprocessing, warnings
        from ratelimited_executor.blocking import ScheduledExecutor

        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: that is the point

        def child():
            own.schedule(print, "later", delay=0.2)

        own, used = ScheduledExecutor("own"), ScheduledExecutor("used")
        future = used.schedule(int, delay=60)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(20)
        print(process.exitcode, future.cancel())
    """
    assert ("later\n0 True\n", "") == run_program(program)


def test_exit_is_not_held_by_a_pause():
    """What can never start does not keep a program from ending."""
    program = """
        from ratelimited_executor.blocking import ScheduledExecutor

        executor = ScheduledExecutor("x", rate=0)
        future = executor.schedule(print, "never")
        future.add_done_callback(lambda future: print(future.cancelled()))
    """
    assert "True\n" == run_program(program)[0]


INTERRUPT = """
        import os, signal, sys, threading, time

        def interrupt(function):  # once the main thread waits in a function of that name
            main = threading.main_thread().ident

            def watch():
                while sys._current_frames()[main].f_code.co_name != function:
                    time.sleep(0.005)
                os.kill(os.getpid(), signal.SIGINT)

            threading.Thread(target=watch, daemon=True).start()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_interrupt_ends_a_wait_and_not_the_executor():
    """Ctrl-C ends ``result`` at once, and a ``with`` block without waiting for later calls; a second one ends the exit."""
    program = """
        from ratelimited_executor.blocking import ScheduledExecutor

        kept = ScheduledExecutor("kept")
        future = kept.schedule(print, "never", delay=60)
        interrupt("_wait")
        try:
            future.result()
        except KeyboardInterrupt:
            print("interrupted", future.done(), kept.submit(pow, 2, 2).result())
        try:
            with ScheduledExecutor("left") as executor:
                future = executor.schedule(print, "never", delay=60)
                interrupt("_wait")
                future.result()
        except KeyboardInterrupt:
            print("left", future.cancelled(), flush=True)
        interrupt("_pass")
    """
    output, errors = run_program(INTERRUPT + program)
    assert "interrupted False 4\nleft True\n" == output
    assert "KeyboardInterrupt" in errors


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize("end", ["with", "exit"])
def test_interrupt_of_a_drain_ends_the_program(end):
    """One Ctrl-C while accepted calls are waited for is enough, and is said in one line; what runs ends as it would."""
    program = f"""
        from ratelimited_executor.blocking import ScheduledExecutor

        def say(word):  # in one piece: print() writes the end of its line apart, and other threads come between
            sys.stdout.write(f"{{word}}\\n")

        executor = ScheduledExecutor("x")
        for _ in range(3):
            executor.schedule(print, "never", delay=3600).add_done_callback(lambda future: say(future.cancelled()))
        if {end == "with"}:
            with executor:
                future = executor.submit(time.sleep, 0.6)
                future.add_done_callback(lambda future: say("ran"))
                while not future.running():
                    time.sleep(0.001)
                interrupt("_pass")
        else:
            interrupt("_pass")
    """
    run = run_python(INTERRUPT + program)
    is_with = end == "with"
    assert run.returncode == (-signal.SIGINT if is_with else 0)  # as Python ends after Ctrl-C at its exit
    assert sorted(run.stdout.split()) == (["True", "True", "True", "ran"] if is_with else [])
    assert run.stderr.count("x: interrupted while closing: 3 waiting call(s)") == 1
    assert run.stderr.count("KeyboardInterrupt") == 1


def test_an_interrupted_shutdown_goes_on(executor, monkeypatch):
    """If the program continues after the interrupt, so do the accepted calls."""
    future = executor.schedule(pow, 2, 3, delay=0.3)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop_thread, "_pass", interrupted)
        executor.shutdown()
    assert 8 == future.result()


def interrupted(gate, look):
    """Raise as a signal handler does while a thread waits."""
    raise KeyboardInterrupt


def test_interrupted_schedule_leaves_no_call_behind(executor, monkeypatch):
    """If a signal handler raises while a call is being accepted, nobody has its future, and so it is cancelled."""
    call = executor._thread.call

    def interrupted(request):
        call(request)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(executor._thread, "call", interrupted)
        executor.schedule(int, delay=60)
    until(lambda: (1, 0) == (executor.statistics().cancelled, executor.statistics().waiting))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_storm_of_interrupts_locks_nothing():
    """A thousand interrupts of waits for results leave the executor working, for other threads as well."""
    program = """
        import random, signal, sys, threading, time
        from ratelimited_executor.blocking import ScheduledExecutor

        class Interrupted(BaseException):
            pass

        def handler(*_):
            if is_armed:
                raise Interrupted

        is_armed, is_over, count, randomness = False, False, 0, random.Random(1)
        sys.unraisablehook = lambda _: None  # where it strikes a finalizer
        signal.signal(signal.SIGALRM, handler)
        with ScheduledExecutor("x") as executor:

            def go_on():
                while not is_over:
                    assert executor.submit(pow, 2, 2).result() == 4

            threads = [threading.Thread(target=go_on) for _ in range(2)]
            for thread in threads:
                thread.start()
            end = time.monotonic() + 2
            while time.monotonic() < end:
                future = executor.submit(time.sleep, 0.0005)
                signal.setitimer(signal.ITIMER_REAL, randomness.uniform(0.00005, 0.002))
                is_armed = True
                try:
                    try:
                        future.result()
                    finally:
                        is_armed = False
                except Interrupted:
                    count += 1
            is_over = True
            for thread in threads:
                thread.join()
            print(count > 50, executor.submit(pow, 2, 3).result())
    """
    assert ("True 8\n", "") == run_program(program)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="there are no sub-interpreters")
def test_sub_interpreter_is_refused_with_a_sentence():
    """Where the interpreter allows no thread of its own, the first call says so, and where to use it."""
    program = """
        import sys
        try:
            import _interpreters as interpreters
            run = interpreters.exec
        except ImportError:
            import _xxsubinterpreters as interpreters
            run = interpreters.run_string
        run(interpreters.create(), f'''if True:
            import sys
            sys.path[:0] = {sys.path!r}
            from ratelimited_executor.blocking import ScheduledExecutor
            try:
                ScheduledExecutor("x").submit(int)
            except RuntimeError as error:
                print(error, flush=True)
        ''')
    """
    output, _ = run_program(program)
    assert output.startswith("ScheduledExecutor 'x' could not start: ")
    assert output.endswith("so use it in the main interpreter\n")


def test_future_is_the_public_class(executor):
    """Each method returns a :class:`ScheduledFuture`."""
    futures = [
        executor.submit(int),
        executor.schedule(int),
        executor.schedule_many(int, [1]),
        executor.schedule_at_fixed_rate(int, period=1, max_runs=1),
    ]
    assert {ScheduledFuture} == {type(future) for future in futures}
