"""Permits and slots for threads: the law and order of the loop, and nothing is lost however a wait ends."""

import asyncio
import gc
import inspect
import itertools
import os
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait

import anyio
import pytest

from ratelimited_executor import (
    ExecutorManager,
    ExecutorStoppedError,
    Rate,
    RateLimitedExecutor,
    TaskExpiredError,
)
from ratelimited_executor._runtime.threads import loop_thread
from ratelimited_executor.blocking import BlockingLimiter, BlockingManager, BlockingSlots
from ratelimited_executor.exceptions import SlotLostError
from ratelimited_executor.peers import RedisPeers, StaticPeers
from ratelimited_executor.policies import Window
from ratelimited_executor.slots import OnLost, Slots
from ratelimited_executor.testing import audit

from ...helpers import run_program, until

pytestmark = [pytest.mark.real_time("threads wait for a loop in another thread"), pytest.mark.timeout(30)]


@pytest.fixture
def manager():
    with BlockingManager(interval=0.05) as manager:  # within which waits expire
        yield manager


@pytest.fixture
def threads():
    pool = ThreadPoolExecutor(32)
    yield pool
    pool.shutdown(wait=False)  # a thread that waits for ever is a failure to be shown


def use(context, log, item=None, seconds=0.0):
    with context() as held:
        log.append((item, time.monotonic()))
        time.sleep(seconds)
    return held


# What it gives.


def test_waiting_threads_start_under_the_law(manager, threads):
    """Thirty-two threads at once start no faster than the rate."""
    log = []
    limiter = manager.limiter("api", rate="100/s")

    wait([threads.submit(use, limiter.permit, log) for _ in range(32)])

    assert 32 == len(log)
    assert audit([moment for _, moment in log], 100, slack=0.1).ok
    assert log[-1][1] - log[0][1] >= 0.25
    assert (32, 0, 0) == (limiter.statistics().done, limiter.statistics().waiting, limiter.statistics().running)


def test_no_more_threads_hold_slots_than_may(manager, threads):
    """Of thirty-two threads that come repeatedly, three hold a slot at a time, and no slot is lost."""
    gpu, lock = manager.slots("gpu", limit=3), threading.Lock()
    held, most, fences = 0, 0, []

    def work(_):
        nonlocal held, most
        for _ in range(5):
            with gpu.hold() as slot:
                with lock:
                    held += 1
                    most = max(most, held)
                    fences.append(slot.fence)
                with lock:
                    held -= 1

    list(threads.map(work, range(32)))

    assert most <= 3
    assert sorted(fences) == list(range(1, 161))
    assert (0, 0) == (gpu.statistics().held, gpu.statistics().waiting)


def test_larger_priority_goes_first(manager, threads):
    """Threads wait for permits and slots in the order of tasks."""
    gpu, limiter = manager.slots("gpu", limit=0), manager.limiter("api", rate=0)
    slots, permits, futures = [], [], []
    for number, priority in enumerate([0, 2, 1, 2]):
        futures.append(threads.submit(use, lambda p=priority: gpu.hold(priority=p), slots, number))
        until(lambda: gpu.statistics().waiting == number + 1)
        futures.append(threads.submit(use, lambda p=priority: limiter.permit(priority=p), permits, number))
        until(lambda: limiter.statistics().waiting == number + 1)
    gpu.limit = 1
    limiter.rate = "50/s"
    wait(futures)

    assert [1, 3, 2, 0] == [number for number, _ in slots]
    assert [1, 3, 2, 0] == [number for number, _ in permits]
    assert (1, Rate(50)) == (gpu.limit, limiter.rate)


def test_holder_is_named_by_its_thread(manager):
    """A slot has a pool, a fence and a holder: the name of its thread, or the one given."""
    gpu = manager.slots("gpu", limit=2)
    with gpu.hold() as slot, gpu.hold(name="mine") as second:
        names = [holder.name for holder in gpu.statistics().holders]

    assert [("gpu", 1), ("gpu", 2)] == [(one.pool, one.fence) for one in (slot, second)]
    assert [threading.current_thread().name, "mine"] == names
    assert ("gpu", 0) == (manager.slots("gpu").name, manager.slots("gpu").statistics().held)


def test_body_takes_a_place_until_it_is_left(manager):
    """A held permit is a running task until its body ends; an acquired permit is only used up."""
    limiter = manager.limiter("api", max_concurrency=1)
    with limiter.permit():
        assert 1 == limiter.statistics().running
        with pytest.raises(anyio.WouldBlock):
            limiter.acquire_nowait()
        with pytest.raises(TaskExpiredError, match="acquire was not started within"):
            limiter.acquire(expires=0.01)
    limiter.acquire()
    limiter.acquire_nowait()
    with pytest.raises(KeyError, match="mine"), limiter.permit():
        raise KeyError("mine")

    statistics = limiter.statistics()
    assert (3, 1, 1, 0) == (statistics.done, statistics.failed, statistics.expired, statistics.running)


def test_cost_is_settled_in_the_body_and_afterwards(manager):
    """Settling a cost frees the excess at once, in the body and afterwards."""
    limiter = manager.limiter("model", policy=Window(), resources={"tokens": "1000/min"})

    def left():
        return next(limit.left for limit in limiter.statistics().limits if limit.resource == "tokens")

    with limiter.permit(cost={"tokens": 800}) as permit:
        assert 200 == left()
        permit.settle({"tokens": 500})
        assert 500 == left()
    permit.settle({"tokens": 100})
    assert 900 == left()
    with pytest.raises(ValueError, match="without a cost in 'dollars'"):
        permit.settle({"dollars": 1})
    with pytest.raises(RuntimeError, match="before it is entered"):
        limiter.permit().settle(1)


def test_penalty_holds_everybody(manager):
    """During a penalty no thread gets a permit."""
    limiter = manager.limiter("api")
    limiter.penalize("10 s")

    with pytest.raises(TaskExpiredError):
        limiter.acquire(expires=0.02)
    assert limiter.statistics().penalty > 9


def test_held_permit_may_be_left_by_another_thread(manager, threads):
    """Another thread may leave a permit than the one that entered it."""
    limiter = manager.limiter("api", max_concurrency=1)
    permit = limiter.permit()
    threads.submit(permit.__enter__).result()
    permit.__exit__(None, None, None)

    assert 1 == limiter.statistics().done
    with pytest.raises(RuntimeError, match="entered only once"):
        permit.__enter__()


def test_slots_of_several_pools_are_held_at_once(manager, threads):
    """Slots of several pools are taken and given back together: no thread holds one while waiting for another."""
    gpu, disk = manager.slots("gpu", limit=1), manager.slots("disk", limit=1)
    log = []
    wait([threads.submit(use, lambda p=p: p[0].hold(also=p[1:]), log) for p in [(gpu, disk), (disk, gpu)] * 8])
    with gpu.hold(also=[disk]) as slot:
        assert (("gpu", "disk"), 17) == (slot.pools, slot.fence)
    assert 16 == len(log)
    assert 0 == gpu.statistics().held + disk.statistics().held
    with pytest.raises(TypeError, match=r"also must be pools of slots.* got 'disk'"):
        gpu.hold(also=["disk"])
    with pytest.raises(ValueError, match="each pool once"):
        gpu.hold(also=[gpu])
    with pytest.raises(TypeError, match="on_lost must be"):
        gpu.hold(on_lost="cancel")


@pytest.mark.parametrize("on_lost", [*OnLost, "call"])
def test_holder_that_has_lost_its_slot_is_told(manager, on_lost):
    """A thread that lost its slot sees ``is_lost``, and its ``with`` raises unless it chose to continue."""
    gpu, lost = manager.slots("gpu", limit=1), []
    hold = gpu.hold(on_lost=lost.append if on_lost == "call" else on_lost)

    def body():
        with hold as slot:
            manager._thread.call(hold._crossing._context._note_lost)
            assert slot.is_lost
            if on_lost == "call":
                assert [slot] == lost

    if on_lost is OnLost.CANCEL:
        with pytest.raises(SlotLostError, match="fence 1 is lost"):
            body()
    else:
        body()
    with pytest.raises(KeyError), gpu.hold():  # the body's own error goes first
        raise KeyError
    assert 0 == gpu.statistics().held


# How a wait ends.


def test_who_expires_has_taken_nothing(manager):
    """A wait that expires takes neither a slot nor a permit."""
    gpu, limiter = manager.slots("gpu", limit=1), manager.limiter("api", max_concurrency=1)
    with gpu.hold(), limiter.permit():
        for wait_in_vain in (gpu.hold(expires=0.01, name="vain"), limiter.permit(expires=0.01, name="vain")):
            with pytest.raises(TaskExpiredError, match="vain was not started within"), wait_in_vain:
                pytest.fail("entered")
    with gpu.hold(expires=0), limiter.permit(expires=1):
        pass


class Interrupted(BaseException):
    """Raised by the signal handler; KeyboardInterrupt would end the tests."""


class Limited(Exception):
    """The same for a task queue whose time limit is an ordinary exception."""


def lines_that_can_be_undone():
    """Return the lines that may be interrupted: of an entry until it returns, and of an exit from its ``try`` on."""
    lines = set()
    for function in (
        loop_thread.Crossing.enter,
        loop_thread.Crossing.leave,
        loop_thread.LoopThread.call,
        loop_thread.LoopThread.wait_for,
        loop_thread.Reply.wait,
        loop_thread._pass,
    ):
        source, first = inspect.getsourcelines(function)
        begin = 0 if function.__name__ in ("call", "wait_for", "wait", "_pass") else source.index("        try:\n") + 1
        # Python handles signals after calls, and so never between a ``with`` and its body: a trace function would.
        lines |= {(function.__code__, first + i) for i in range(begin, len(source)) if " with " not in source[i]}
    return lines


@pytest.mark.parametrize("kind", [Interrupted, Limited])
@pytest.mark.parametrize("face", ["permit", "slot"])
def test_interrupt_at_any_line_loses_nothing(manager, face, kind):
    """An interrupt at any line neither keeps an entered hold nor lets a failed entry come later."""
    limiter, gpu = manager.limiter("api", max_concurrency=1), manager.slots("gpu", limit=1)
    make = limiter.permit if face == "permit" else gpu.hold
    places, reached = lines_that_can_be_undone(), itertools.count()
    numbers = iter(range(1000))
    number = interrupted = 0

    def trace(frame, event, argument):
        if not any(frame.f_code is code for code, _ in places):
            return None
        return trace_line(frame, event, argument) or trace_line

    def trace_line(frame, event, argument):
        if event == "line" and (frame.f_code, frame.f_lineno) in places and next(reached) == number:
            raise kind
        return trace_line

    before = sys.gettrace()
    for number in numbers:
        hold, reached, was_interrupted = make(), itertools.count(), False
        sys.settrace(trace)
        try:
            with hold:
                pass
        except kind:
            was_interrupted = True
        finally:
            sys.settrace(before)
        with make(expires=5):  # the only place is free, or becomes so
            pass
        interrupted += was_interrupted
        if not was_interrupted:
            break

    assert interrupted > 20
    assert 0 == limiter.statistics().running + limiter.statistics().waiting
    assert 0 == gpu.statistics().held + gpu.statistics().waiting


def test_hold_that_is_dropped_is_given_back(manager):
    """A hold that nobody can leave is given back, as after an interrupt between an entry and its block."""
    gpu, limiter = manager.slots("gpu", limit=1), manager.limiter("api", max_concurrency=1)
    for _ in range(3):
        gpu.hold(expires=5).__enter__()
        limiter.permit(expires=5).__enter__()
        gc.collect()
    until(lambda: gpu.statistics().held == limiter.statistics().running == 0)
    assert 3 == limiter.statistics().done


@pytest.mark.slow
@pytest.mark.xfail(
    sys.version_info[:2] == (3, 14),
    reason="an interrupt may leave a with statement without its end: https://github.com/python/cpython/issues/148874",
    strict=False,
)
def test_storm_of_interrupts_leaves_nothing_behind():
    """A thousand interrupts at any point leave nothing held, while two other threads continue."""
    program = """
        import random, signal, sys, threading, time
        from ratelimited_executor.blocking import BlockingManager

        class Interrupted(BaseException):
            pass

        def handler(*_):
            if is_armed:
                raise Interrupted

        is_armed, is_over, count, randomness = False, False, 0, random.Random(1)
        sys.unraisablehook = lambda _: None  # where it strikes a finalizer
        signal.signal(signal.SIGALRM, handler)
        with BlockingManager() as manager:
            limiter, gpu = manager.limiter("api", max_concurrency=1), manager.slots("gpu", limit=1)

            def go_on():
                while not is_over:
                    with limiter.permit(), gpu.hold():
                        pass

            threads = [threading.Thread(target=go_on) for _ in range(2)]
            for thread in threads:
                thread.start()
            end = time.monotonic() + 2
            while time.monotonic() < end:
                signal.setitimer(signal.ITIMER_REAL, randomness.uniform(0.00005, 0.002))
                is_armed = True
                try:
                    try:
                        with limiter.permit(), gpu.hold():
                            pass
                    finally:
                        is_armed = False
                except Interrupted:
                    count += 1
            is_over = True
            for thread in threads:
                thread.join()
            with limiter.permit(expires=5), gpu.hold(expires=5):
                pass
            print(count > 50, limiter.statistics().running, gpu.statistics().held)
    """
    assert ("True 0 0\n", "") == run_program(program)


def test_interrupted_wait_ends_at_once_and_takes_nothing():
    """Ctrl-C ends a wait for a permit and a slot at once, and nothing is taken."""
    program = """
        import os, signal, threading, time
        from ratelimited_executor.blocking import BlockingManager

        with BlockingManager() as manager:
            gpu, limiter = manager.slots("gpu", limit=0), manager.limiter("api", rate=0)

            def interrupt(waits):
                while not waits():
                    time.sleep(0.001)
                os.kill(os.getpid(), signal.SIGINT)

            for hold, count in ((gpu.hold, gpu), (limiter.permit, limiter)):
                threading.Thread(target=interrupt, args=[lambda: count.statistics().waiting]).start()
                try:
                    with hold():
                        print("entered")
                except KeyboardInterrupt:
                    while count.statistics().waiting:
                        time.sleep(0.001)
                    print("interrupted")
            gpu.limit, limiter.rate = 1, 10
            with gpu.hold() as slot, limiter.permit():
                print(slot.fence)
    """
    assert ("interrupted\ninterrupted\n1\n", "") == run_program(program)


def test_cancelled_waiter_is_told_so(manager, threads):
    """A waiter cancelled on the loop ends its wait as cancelled, like that of a future."""
    limiter = manager.limiter("api", rate=0)
    future = threads.submit(use, limiter.permit, [])
    until(lambda: limiter.statistics().waiting)
    (waiter,) = limiter._thread.call(
        lambda: [one for one in asyncio.all_tasks() if one.get_coro().__name__ == "_enter"]
    )
    limiter._thread.call(waiter.cancel)

    with pytest.raises(CancelledError):
        future.result()


# How it ends.


def test_closing_refuses_who_waits_and_lets_holders_go_on(threads):
    """Closing fails waiting threads at once; leaving a held permit or slot afterwards does nothing."""
    manager = BlockingManager()
    gpu, limiter, full = (
        manager.slots("gpu", limit=1),
        manager.limiter("api", rate=0),
        manager.limiter("full", max_concurrency=1, drain_timeout=None),
    )
    with gpu.hold(), full.permit(cost={"permits": 1}) as permit:
        futures = [threads.submit(use, one, []) for one in (gpu.hold, limiter.permit, full.permit) for _ in range(5)]
        until(lambda: gpu.statistics().waiting == limiter.statistics().waiting == full.statistics().waiting == 5)
        began = time.monotonic()
        closings = [threads.submit(manager.close) for _ in range(3)]
        for future in futures:
            with pytest.raises(ExecutorStoppedError, match="is closed and accepts nothing more"):
                future.result()
        wait(closings)
        assert time.monotonic() - began < 3
        permit.settle(0)

    assert "<BlockingManager closed limiters=0>" == repr(manager)
    assert not [thread for thread in threading.enumerate() if thread.name == "ratelimited_executor"]
    for call in (
        gpu.hold,
        limiter.permit,
        limiter.acquire_nowait,
        gpu.statistics,
        lambda: manager.limiter("new"),
        manager.__enter__,
    ):
        with pytest.raises(ExecutorStoppedError):
            call()
    with pytest.raises(ExecutorStoppedError):
        gpu.limit = 2


def test_closing_meets_threads_that_come_and_go(threads):
    """Threads that arrive during closing are served or refused, and none is left waiting."""
    for _ in range(10):
        manager = BlockingManager()
        gpu, limiter = manager.slots("gpu", limit=2), manager.limiter("api", rate="1000/s")

        def come_and_go():
            with pytest.raises(ExecutorStoppedError):
                while True:
                    with gpu.hold(), limiter.permit():
                        pass

        futures = [threads.submit(come_and_go) for _ in range(8)]
        until(lambda: limiter.statistics().done > 3)
        manager.close()
        done, not_done = wait(futures, timeout=10)
        assert not not_done
        for future in done:
            future.result()


def test_never_used_has_no_thread():
    """An unused manager starts no thread, and closing it twice does nothing."""
    manager = BlockingManager(interval=0.5)
    limiter, gpu = manager.limiter("api", rate=5), manager.slots("gpu", limit=1)
    gpu.limit, limiter.rate = 2, 6
    assert "<BlockingManager new limiters=1>" == repr(manager)
    assert "<BlockingLimiter 'api' rate=6/s>" == repr(limiter)
    assert ("<BlockingSlots 'gpu'>", 2) == (repr(gpu), gpu.limit)
    manager.close()
    manager.close()
    assert "closed" in repr(manager)
    with pytest.raises(ExecutorStoppedError):
        limiter.acquire()


def test_dropped_without_closing_warns_and_ends():
    """A manager dropped without closing warns and ends, like an executor."""
    limiter = BlockingManager().limiter("api")
    limiter.acquire()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "ratelimited_executor"]
    gc.collect()
    limiter.acquire()  # the limiter keeps it
    with pytest.warns(ResourceWarning, match="unclosed BlockingManager"):
        del limiter
        gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_failed_start_is_an_error_of_each_use():
    """A failed start is raised by each use."""

    class Clock:
        def monotonic(self):
            raise OSError("no clock")

        wall = monotonic

    manager = BlockingManager(clock=Clock())
    limiter = manager.limiter("api", rate=1)
    for _ in range(2):
        with pytest.raises(OSError, match="no clock"):
            limiter.acquire()
    manager.close()


def test_exit_in_a_function_of_ours_is_raised_where_it_was_asked_for(manager):
    """An exit ends the thread that asked, and not the loop of all."""
    limiter = manager.limiter("api", key_rate=lambda key: sys.exit(key))
    with pytest.raises(SystemExit, match="leave"):
        limiter.acquire(key="leave")
    limiter.acquire()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # that is how it dies
def test_loop_that_has_died_leaves_nobody_waiting(threads):
    """If the loop dies, waiting and new callers get an error, and closing ends."""
    manager = BlockingManager()
    limiter = manager.limiter("api", rate=0)
    future = threads.submit(use, limiter.permit, [])
    until(lambda: limiter.statistics().waiting)
    limiter._thread.call_soon(sys.exit)
    with pytest.raises(CancelledError):
        future.result(10)
    limiter._thread._thread.join(10)
    with pytest.raises(RuntimeError, match="closed"):
        limiter.acquire()
    manager.close()


# Where it cannot be used.


async def test_thread_of_an_event_loop_is_refused(manager):
    """Waiting in the thread of an event loop is refused; in one of its worker threads it works."""
    limiter, gpu = manager.limiter, manager.slots
    with pytest.raises(RuntimeError, match=r"would block the event loop of this thread.*asyncio.to_thread"):
        limiter("api")
    limiter, gpu = await asyncio.to_thread(lambda: (limiter("api"), gpu("gpu", limit=1)))
    for call in (limiter.permit, limiter.acquire, limiter.acquire_nowait, gpu.hold, gpu.statistics):
        with pytest.raises(RuntimeError, match="would block the event loop"):
            call()
    hold = await asyncio.to_thread(gpu.hold)
    with pytest.raises(RuntimeError, match="would block the event loop"), hold:
        pytest.fail("entered")
    assert 1 == (await asyncio.to_thread(use, gpu.hold, [])).fence


async def test_held_slot_may_be_left_on_an_event_loop(manager):
    """A held slot may be left in the thread of an event loop: leaving does not wait there."""
    gpu = await asyncio.to_thread(manager.slots, "gpu", limit=1)
    hold = await asyncio.to_thread(gpu.hold)
    await asyncio.to_thread(hold.__enter__)
    hold.__exit__(None, None, None)
    assert 2 == (await asyncio.to_thread(use, gpu.hold, [])).fence


def test_own_thread_cannot_close_it(manager):
    """The manager's own thread cannot close it: it would wait for itself."""
    limiter = manager.limiter("api")
    with pytest.raises(RuntimeError, match="cannot be closed on its own thread"):
        limiter._thread.call(manager.close)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_fork_may_come_before_the_first_use_and_not_after():
    """A manager works in a fork made before its start; after it, the fork gets an error, the parent continues."""
    program = """
        import os, warnings
        from ratelimited_executor.blocking import BlockingManager

        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: that is the point

        def forked(call):
            if child := os.fork():
                assert os.waitpid(child, 0)[1] == 0
                return
            try:
                print("child:", call(), flush=True)
            except RuntimeError as error:
                print("child:", str(error).replace(str(os.getppid()), "PARENT"), flush=True)
            finally:
                manager.close()
                os._exit(0)

        manager = BlockingManager()
        limiter, gpu = manager.limiter("api", rate=10), manager.slots("gpu", limit=1)
        forked(limiter.acquire)
        with gpu.hold():
            forked(limiter.acquire)
            forked(lambda: gpu.hold())
            forked(lambda: manager.limiter("new"))
        with gpu.hold() as slot:
            print("parent:", slot.fence)
    """
    refused = (
        "child: BlockingManager was started in process PARENT, and this process is a fork of it, without its threads: "
        "create it, or use it for the first time, after the fork\n"
    )
    assert (f"child: None\n{refused * 3}parent: 2\n", "") == run_program(program)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_fork_of_a_holder_leaves_nothing():
    """Only the process that holds a slot gives it back."""
    program = """
        import os, warnings
        from ratelimited_executor.blocking import BlockingManager

        warnings.simplefilter("ignore", DeprecationWarning)
        with BlockingManager() as manager:
            gpu = manager.slots("gpu", limit=1)
            with gpu.hold():
                child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
            print(gpu.statistics().handed, gpu.statistics().held)
    """
    assert ("1 0\n", "") == run_program(program)


def test_program_that_never_closes_ends_in_silence():
    """The interpreter's exit closes the manager, with holders and waiters, and without output."""
    program = """
        import threading, time
        from ratelimited_executor import ExecutorStoppedError
        from ratelimited_executor.blocking import BlockingManager

        manager = BlockingManager()
        gpu, limiter = manager.slots("gpu", limit=1), manager.limiter("api", rate=0)

        def in_vain():
            try:
                limiter.acquire()
            except ExecutorStoppedError:
                pass

        threading.Thread(target=in_vain, daemon=True).start()
        while not limiter.statistics().waiting:
            time.sleep(0.001)
        kept = gpu.hold()
        kept.__enter__()
        print("end")
    """
    assert ("end\n", "") == run_program(program)


@pytest.mark.slow
@pytest.mark.parametrize("wait", ["pool.hold()", "limiter.permit()"])
@pytest.mark.parametrize("kind", ["thread", "pool", "late"])
def test_exit_does_not_wait_for_threads_that_wait(wait, kind):
    """Threads that are no daemons, and wait in vain, learn of the interpreter's exit, which waits for them."""
    code = f"""
        import threading, time
        from concurrent.futures import ThreadPoolExecutor
        from ratelimited_executor.blocking import BlockingManager

        manager = BlockingManager()
        pool, limiter = manager.slots("a", limit=0), manager.limiter("b", rate=0)

        def wait():
            if {kind == "late"}:
                threading.main_thread().join()
            try:
                with {wait}:
                    pass
            except Exception as error:
                print(type(error).__name__)

        if {kind == "pool"}:
            ThreadPoolExecutor(1).submit(wait)
        else:
            threading.Thread(target=wait).start()
        while {kind != "late"} and manager.slots("a").statistics().waiting + limiter.statistics().waiting == 0:
            time.sleep(0.01)
    """
    assert ("ExecutorStoppedError\n", "") == run_program(code)


# Bad input.


def test_bad_input_is_refused_at_the_call_and_changes_nothing(manager):
    """Bad arguments are refused at the call, as on the loop, before and after the start."""
    for one in (BlockingManager(), manager):
        limiter, gpu = one.limiter("api", rate=5), one.slots("gpu", limit=1)
        with pytest.raises(TypeError, match="unknown"):
            one.limiter("other", unknown=1)
        with pytest.raises(ValueError, match="name 'api' is in use"):
            one.limiter("api")
        with pytest.raises(ValueError, match="limit must be given"):
            one.slots("other")
        with pytest.raises(ValueError, match="limit"):
            gpu.limit = -1
        with pytest.raises(ValueError, match="rate"):
            limiter.rate = -1
        with pytest.raises(AttributeError):
            limiter.rates = 1
        with pytest.raises(AttributeError):
            one.limitter = 1
        assert (1, Rate(5)) == (gpu.limit, limiter.rate)
    with pytest.raises(ValueError, match="cost"):
        limiter.permit(cost=-1)
    with pytest.raises(ValueError, match="expires"):
        limiter.permit(expires=-1)
    with pytest.raises(TypeError, match="priority"):
        gpu.hold(priority="high")
    with pytest.raises(ValueError, match="expires"):
        gpu.hold(expires=-1)
    with pytest.raises(ValueError, match="interval"):
        BlockingManager(interval=0)
    with pytest.raises(TypeError, match="peers"):
        BlockingManager(peers="redis://")
    assert 0 == limiter.statistics().accepted


def test_rate_is_shared_as_that_of_executors(threads):
    """Peers share the rate as those of any manager: each of two processes has half."""
    with BlockingManager(peers=StaticPeers(2, 0)) as manager:
        limiter = manager.limiter("api", rate="40/s")
        began = time.monotonic()
        for _ in range(6):
            limiter.acquire()
        assert time.monotonic() - began > 0.2


@pytest.mark.skipif(sys.platform == "win32", reason="there is no Redis for Windows")
def test_slots_of_a_group_are_held_by_threads_of_all_its_processes(redis_server, threads):
    """Threads of two managers with peers hold one slot in turn, and closing gives back no slot held by others."""
    held, most, lock = 0, 0, threading.Lock()
    with (
        BlockingManager(peers=RedisPeers(redis_server.url, "group", lease=1)) as first,
        BlockingManager(peers=RedisPeers(redis_server.url, "group", lease=1)) as second,
    ):
        pools = [one.slots("gpu", limit=1) for one in (first, second)]

        def work(number):
            nonlocal held, most
            with pools[number % 2].hold(expires=20) as slot:
                with lock:
                    held += 1
                    most = max(most, held)
                time.sleep(0.005)
                with lock:
                    held -= 1
            return slot.fence

        fences = list(threads.map(work, range(12)))

    assert 1 == most
    assert 12 == len(set(fences))


def test_arguments_are_those_of_the_loop():
    """Each method takes the arguments and defaults of its counterpart on the loop."""
    for name in ("permit", "acquire", "acquire_nowait", "penalize"):
        ours, model = getattr(BlockingLimiter, name), getattr(RateLimitedExecutor, name)
        assert inspect.signature(ours).parameters == inspect.signature(model).parameters, name
    ours, model = inspect.signature(BlockingSlots.hold).parameters, inspect.signature(Slots.hold).parameters
    assert [(one.name, one.kind, one.default) for one in ours.values()] == [
        (one.name, one.kind, one.default) for one in model.values()
    ]
    ours, model = inspect.signature(BlockingManager).parameters, inspect.signature(ExecutorManager).parameters
    assert {name: each for name, each in ours.items() if name != "loop"} == dict(model)
