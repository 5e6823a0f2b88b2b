"""Wakers: what wakes the event loop, and how often."""

import asyncio
import gc
import math
import os
import select
import sys
import time
from contextvars import Context

import pytest

from ratelimited_executor import ExecutorManager, RateLimitedExecutor
from ratelimited_executor._runtime.time import wakers
from ratelimited_executor._runtime.time.hooks import hooks_of
from ratelimited_executor._runtime.time.clock import is_of_system
from ratelimited_executor._runtime.time.wakers import LoopTimer, TimerDescriptor, waker_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="timer descriptors exist only on Linux")
real_time = pytest.mark.real_time("timers of the system are waited for, 0.2 s at most; tolerances are wide")


def descriptors() -> int:
    """Count the open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(params=["descriptor", "loop"])
async def woken(request):
    """A waker, and the times of its calls."""
    if request.param == "descriptor" and sys.platform != "linux":
        pytest.skip("timer descriptors exist only on Linux")
    times: list[float] = []
    kind = TimerDescriptor if request.param == "descriptor" else LoopTimer
    waker = kind(asyncio.get_running_loop(), lambda: times.append(time.monotonic()), Context())
    yield waker, times
    waker.close()


@real_time
async def test_it_calls_back_once_and_never_early(woken):
    """A waker calls back once its time is reached, and not before."""
    waker, times = woken
    when = time.monotonic() + 0.05
    waker.set(when, time.monotonic())
    await asyncio.sleep(0.15)
    if isinstance(waker, TimerDescriptor):
        waker.set(math.inf, time.monotonic())  # each callback sets the timer anew: until then it stays readable
    assert times
    assert min(times) >= when


@real_time
async def test_what_was_set_last_holds(woken):
    """The time that was set last applies: a later one, an earlier one, or never."""
    waker, times = woken
    begin = time.monotonic()
    waker.set(begin + 0.02, begin)
    waker.set(begin + 60.0, begin)
    await asyncio.sleep(0.06)
    assert [] == times
    now = time.monotonic()
    waker.set(now + 0.02, now)
    async with asyncio.timeout(10.0):
        while not times:
            await asyncio.sleep(0.01)
    waker.set(math.inf, time.monotonic())
    assert now + 0.02 <= min(times) < begin + 60.0
    del times[:]
    await asyncio.sleep(0.05)
    assert [] == times


@real_time
async def test_the_past_is_the_next_turn_of_the_loop(woken):
    """A time in the past calls back once, in the next turn of the loop, and not within ``set()``."""
    waker, times = woken
    waker.set(-math.inf, time.monotonic())
    assert [] == times
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 1 == len(times)
    waker.set(math.inf, time.monotonic())
    await asyncio.sleep(0.02)
    assert 1 == len(times)


@real_time
async def test_callbacks_run_in_the_context_that_was_given():
    """Callbacks run in the waker's context, so that nobody's variables leak into the executor's own work."""
    import contextvars

    variable = contextvars.ContextVar("variable", default="nobody's")
    variable.set("mine")
    for kind in (LoopTimer, *((TimerDescriptor,) if sys.platform == "linux" else ())):
        seen: list[str] = []
        waker = kind(asyncio.get_running_loop(), lambda seen=seen: seen.append(variable.get()), Context())
        waker.set(time.monotonic() + 0.01, time.monotonic())
        await asyncio.sleep(0.05)
        waker.close()
        assert {"nobody's"} == set(seen)


@linux
@real_time
async def test_executors_leave_no_descriptor_behind():
    """Executors close their descriptors, whether they are left normally or by an exception."""
    before = descriptors()
    for _ in range(100):
        async with RateLimitedExecutor("one", rate=1000) as executor:
            await executor.submit(int)
    assert before == descriptors()
    with pytest.raises(ZeroDivisionError):
        async with ExecutorManager() as manager:
            await manager.executor("one").submit(int)
            raise ZeroDivisionError
    assert before == descriptors()


@linux
@real_time
def test_a_loop_closed_before_its_executor_leaves_no_descriptor_behind():
    """An executor that is never closed frees its descriptor once its loop is closed."""
    import gc

    async def leave_open() -> None:
        executor = RateLimitedExecutor("one")
        await executor.start()
        await executor.submit(int)

    asyncio.run(leave_open())
    gc.collect()
    before = descriptors()
    for _ in range(5):
        asyncio.run(leave_open())
    gc.collect()
    assert before == descriptors()


@linux
async def test_without_descriptors_the_loop_s_own_timers_are_used(monkeypatch):
    """The loop's own timers are used if no descriptor can be opened, or the system has none."""

    class Empty:
        def create(self) -> int:
            raise OSError(24, "too many open files")

    monkeypatch.setattr(wakers, "_system", Empty())
    assert isinstance(waker_for(asyncio.get_running_loop(), int, Context()), LoopTimer)
    monkeypatch.setattr(wakers, "_system", None)
    assert isinstance(waker_for(asyncio.get_running_loop(), int, Context()), LoopTimer)


@linux
async def test_a_loop_that_watches_no_descriptors_is_woken_by_its_own_timers(monkeypatch):
    """The loop's own timers are used if it cannot watch a descriptor, and the unused descriptor is closed."""

    def refuse(*_: object) -> None:
        raise NotImplementedError

    before = descriptors()
    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
    assert isinstance(waker_for(asyncio.get_running_loop(), int, Context()), LoopTimer)
    assert before == descriptors()


async def test_a_virtual_loop_is_woken_by_its_own_timers(virtual_clock):
    """A virtual loop uses its own timers: no descriptor follows its time."""
    loop = asyncio.get_running_loop()
    assert not is_of_system(hooks_of(loop).clock)
    assert isinstance(waker_for(loop, int, Context(), is_foreign=True), LoopTimer)


@linux
@pytest.mark.parametrize("kind", ["_SystemLibrary", "_StandardLibrary"])
def test_both_ways_to_the_system_set_and_disarm(kind):
    """A descriptor is readable at its time and not after it is disarmed, and raises once it is closed."""
    if kind == "_StandardLibrary" and sys.version_info < (3, 13):
        pytest.skip("the standard library has timer descriptors from 3.13 on")
    import select

    system = getattr(wakers, kind)()
    fd = system.create()
    try:
        assert ([], [], []) == select.select([fd], [], [], 0)
        system.set(fd, 1)
        assert [fd] == select.select([fd], [], [], 1)[0]
        system.set(fd, 0)
        assert ([], [], []) == select.select([fd], [], [], 0)
    finally:
        os.close(fd)
    with pytest.raises(OSError):
        system.set(fd, 1)


@pytest.mark.parametrize("precision", [-0.001, math.nan, math.inf, 1.5, "0.1x", "2s", None.__class__])
def test_bad_precision_is_refused_by_name(precision):
    """A bad precision is refused by name at the call."""
    with pytest.raises((TypeError, ValueError), match="precision"):
        ExecutorManager(precision=precision)


@pytest.mark.parametrize("precision", [0, 0.0005, 1])
def test_precision_is_told(precision):
    """A manager returns its precision as it was given, or None."""
    assert precision == ExecutorManager(precision=precision).precision
    assert ExecutorManager().precision is None


@pytest.mark.parametrize(("precision", "starts_together"), [(None, 1), (0, 1), (0.01, 10)])
async def test_what_falls_due_within_the_precision_starts_together(virtual_clock, precision, starts_together):
    """With 1,000 permits a second and a precision of 10 ms, ten tasks start together; by default none do."""
    loop = asyncio.get_running_loop()
    times: list[float] = []
    async with ExecutorManager(precision=precision) as manager:
        executor = manager.executor("one", rate=1000)
        await executor.schedule_many(lambda _: times.append(loop.time()), range(200))
    instants = sorted(set(times))
    assert starts_together == pytest.approx(200 / len(instants), rel=0.1)


async def test_unlimited_calls_due_within_the_precision_start_together(virtual_clock):
    """Without a rate, calls start late by no more than the precision, and never early."""
    loop = asyncio.get_running_loop()
    late: list[float] = []
    async with ExecutorManager(precision=0.05) as manager:
        executor = manager.executor("one")
        for number in range(1000):
            executor.call_at(
                loop.time() + number * 0.001, lambda due: late.append(loop.time() - due), loop.time() + number * 0.001
            )
        await asyncio.sleep(1.2)
    assert 1000 == len(late)
    assert min(late) >= 0
    assert max(late) <= 0.051


# Executors that are dropped.


@linux
@real_time
@pytest.mark.parametrize("is_shared", [False, True], ids=["its own manager", "a shared manager"])
async def test_executor_that_is_dropped_unclosed_is_closed_with_a_warning(is_shared):
    """An executor dropped unclosed warns, runs what it has accepted, and then closes its descriptor."""
    before, ran = descriptors(), []

    async def drop():
        if is_shared:
            manager = ExecutorManager()
            await manager.start()
            executor = manager.executor("mail")
        else:
            executor = RateLimitedExecutor("mail")
            await executor.start()
        executor.schedule(ran.append, "later", delay=0.1)
        executor.execute(ran.append, "now")

    await drop()
    assert before + 1 == descriptors()
    with pytest.warns(ResourceWarning, match="unclosed ExecutorManager of 'mail': use async with"):
        gc.collect()
    async with asyncio.timeout(5):
        while before != descriptors():
            await asyncio.sleep(0.01)
    assert ["now", "later"] == ran
    gc.collect()  # without a second warning


@linux
@real_time
def test_a_time_that_another_thread_sets_meanwhile_is_not_taken():
    """A time set by another thread during a call of the C library, without the lock, does not replace its own."""
    library = wakers._SystemLibrary()
    mine, theirs = library.create(), library.create()
    set_time = library._set

    def interrupted(fd, *arguments):
        if fd == mine:
            library.set(theirs, time.monotonic_ns() + 3600 * 10**9)
        return set_time(fd, *arguments)

    library._set = interrupted
    try:
        library.set(mine, time.monotonic_ns() + 1000)
        assert [mine] == select.select([mine, theirs], [], [], 5.0)[0]
    finally:
        os.close(mine)
        os.close(theirs)


class FakedClock:
    """Timer descriptors of a process whose clock is not the system's: they count a time as another one."""

    def __init__(self, *, ahead_seconds: float = 0, error: OSError | None = None) -> None:
        self._ahead_ns = round(ahead_seconds * 1e9)
        self._error = error

    def create(self) -> int:
        return wakers._system.create()

    def set(self, fd: int, time_ns: int) -> None:
        if self._error is not None:
            raise self._error
        wakers._system.set(fd, time_ns + self._ahead_ns if time_ns else 0)


@linux
@real_time
@pytest.mark.parametrize(
    ("faked", "is_right"),
    [({}, True), ({"ahead_seconds": 7200}, False), ({"ahead_seconds": -7200}, False), ({"error": OSError(22)}, False)],
)
def test_descriptor_is_used_only_under_the_clock_of_the_system(monkeypatch, faked, is_right):
    """Under a faked clock, where a descriptor never fires, fires at once or fails, the loop's own timers are used."""
    before = descriptors()
    system = FakedClock(**faked)
    assert is_right == wakers._keeps_time(system)
    assert before == descriptors()
    monkeypatch.setattr(wakers, "_keeps_time", lambda _: is_right)
    loop = asyncio.new_event_loop()
    waker = waker_for(loop, int, Context())
    assert isinstance(waker, TimerDescriptor) == is_right
    waker.close()
    loop.close()
    assert before == descriptors()


@linux
@real_time
@pytest.mark.parametrize("delays", [[0.01, 0.05, 0.1], [0.0, 0.05]])
async def test_descriptor_that_fails_is_replaced_by_timers_of_the_loop(delays):
    """If the system refuses a descriptor later, calls still come, at their times."""
    loop, calls = asyncio.get_running_loop(), []
    begin = loop.time()
    async with RateLimitedExecutor("x") as executor:
        waker = executor._manager._runner._waker
        other = os.open(os.devnull, os.O_RDONLY)
        os.dup2(other, waker._fd)  # the system refuses to set it as a timer
        os.close(other)
        for delay in delays:
            executor.call_later(delay, lambda delay=delay: calls.append((delay, loop.time() - begin)))
        executor.submit(asyncio.sleep, 0.01)
        await asyncio.sleep(0.2)
        executor.call_later(0.02, lambda: calls.append((0.22, loop.time() - begin)))
        assert -1 == waker._fd
    assert [*delays, 0.22] == [delay for delay, _ in calls]
    assert all(delay <= at < delay + 5 for delay, at in calls)
