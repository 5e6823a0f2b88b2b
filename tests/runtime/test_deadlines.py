"""``deadline=``: the time by which a task has ended, all attempts included."""

import asyncio
import threading
from datetime import timedelta

import pytest

from ratelimited_executor import (
    RateLimitedExecutor,
    Retry,
    RetryLater,
    RunTimeoutError,
    TaskExpiredError,
    TaskState,
)

from ..helpers import now

OFTEN = Retry(1000, base=1e-6, cap=1e-6, on=Exception)


class Fails:
    """A function that asks for a retry after a number of seconds."""

    def __init__(self, after: float) -> None:
        self.after = after
        self.times: list[float] = []

    def __call__(self) -> None:
        self.times.append(round(now(), 3))
        raise RetryLater(self.after)


@pytest.mark.parametrize("how", ["schedule", "submit", "schedule_wait", "threadsafe", "delay", "at", "timedelta"])
async def test_no_attempt_begins_after_the_deadline(virtual_clock, account, how):
    """A retry due after the deadline fails at once with the last error; it counts from the first due time."""
    call = Fails(3)
    async with RateLimitedExecutor("x", retry=OFTEN) as executor:
        begin = 0
        if how in ("delay", "at"):
            begin = 5
            due = {"delay": 5} if how == "delay" else {"at": virtual_clock.wall() + 5}
            handle = executor.schedule(call, deadline=10, **due)
        elif how == "schedule_wait":
            handle = await executor.schedule_wait(call, deadline=10)
        elif how == "threadsafe":
            handle = asyncio.wrap_future(executor.schedule_threadsafe(call, deadline=10))
        else:
            seconds = timedelta(seconds=10) if how == "timedelta" else 10
            handle = getattr(executor, "submit" if how == "submit" else "schedule")(call, deadline=seconds)
        await asyncio.wait([handle])
        assert isinstance(handle.exception(), RetryLater)
        account(executor)
    first = call.times[0]
    assert begin <= first < begin + 1
    assert [pytest.approx(first + 3 * number, abs=0.01) for number in range(len(call.times))] == call.times
    assert begin + 7 <= call.times[-1] <= begin + 10
    assert now() < begin + 10


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("attempt", [1, 2])
async def test_attempt_that_runs_is_stopped(virtual_clock, account, kind, attempt):
    """A running attempt is stopped at the deadline like by ``run_timeout``, and is not retried."""
    count = 0
    release = threading.Event()

    def block():
        nonlocal count
        count += 1
        if count < attempt:
            raise ZeroDivisionError
        if kind == "coroutine":
            return asyncio.sleep(100)
        asyncio.run_coroutine_threadsafe(pass_time(), loop)
        release.wait(30)

    async def pass_time():
        loop.block_for(20)

    loop = asyncio.get_running_loop()
    async with RateLimitedExecutor("x", retry=OFTEN) as executor:
        handle = executor.submit(block, deadline=10, in_thread=kind == "thread", name="slow")
        await asyncio.wait([handle])
        release.set()
        with pytest.raises(
            RunTimeoutError, match="slow was stopped at its deadline, 10 s after its first due time"
        ) as info:
            handle.result()
        account(executor)
    assert (10, attempt) == (info.value.deadline, count)
    if kind == "coroutine":
        assert pytest.approx(10) == now()


@pytest.mark.parametrize(("run_timeout", "ends", "deadline"), [(3, 3, None), (30, 10, 10)])
async def test_shorter_of_two_limits_holds(virtual_clock, run_timeout, ends, deadline):
    """The shorter of two limits holds, and the error names it."""
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(asyncio.sleep, 100, run_timeout=run_timeout, deadline=10)
        await asyncio.wait([handle])
    assert (pytest.approx(ends), deadline) == (now(), handle.exception().deadline)


async def test_run_timeout_of_each_attempt_and_deadline_of_all(virtual_clock):
    """Attempts of three seconds each run until the deadline, which stops the last one."""
    starts = []

    def call():
        starts.append(now())
        return asyncio.sleep(100)

    async with RateLimitedExecutor("x", retry=OFTEN) as executor:
        handle = executor.submit(call, run_timeout=3, deadline=10)
        await asyncio.wait([handle])
    assert [0, 3, 6, 9] == [round(start) for start in starts]
    assert 10 == pytest.approx(now())
    assert 10 == handle.exception().deadline
    assert 4 == handle.attempts


async def test_plain_function_runs_to_its_end(virtual_clock):
    """A plain function may have a deadline: it runs to its end, and is not retried after it."""
    async with RateLimitedExecutor("x", retry=OFTEN) as executor:
        assert "done" == await executor.submit(lambda: "done", deadline=1)
        loop = asyncio.get_running_loop()

        def slow():
            loop.block_for(5)
            raise ZeroDivisionError

        handle = executor.submit(slow, deadline=1)
        await asyncio.wait([handle])
    assert (1, ZeroDivisionError) == (handle.attempts, type(handle.exception()))


async def test_first_attempt_that_never_starts_expires(virtual_clock, account):
    """A task that never starts expires at its deadline, or by ``expires`` if that comes first."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        executor.pause()
        handles = [executor.submit(int, deadline=5), executor.submit(int, deadline=5, expires=2)]
        await asyncio.sleep(4)
        assert [TaskState.WAITING, TaskState.EXPIRED] == [handle.state for handle in handles]
        await asyncio.sleep(3)
        assert TaskState.EXPIRED is handles[0].state
        account(executor)
    assert [5, 2] == [handle.exception().expires for handle in handles]


async def test_attempt_that_waits_for_its_permit_expires_at_the_deadline(virtual_clock, account):
    """A retry that waits for a permit expires at the deadline, even if ``expires`` would allow more."""
    call = Fails(2)
    async with RateLimitedExecutor("x", rate=10) as executor:
        handle = executor.submit(call, deadline=10, expires=6, retry=OFTEN)
        await asyncio.sleep(5)
        executor.pause()  # the attempt that is due at 6 waits
        await asyncio.wait([handle])
        assert 10 <= now() <= 11.001
        executor.resume()
        account(executor)
    assert isinstance(handle.exception(), TaskExpiredError)
    assert [0, 2, 4] == [round(time) for time in call.times]


async def test_expires_of_the_executor_holds_for_each_attempt(virtual_clock):
    """Each attempt has the seconds of ``expires`` to start in, until the deadline."""
    call = Fails(2)
    async with RateLimitedExecutor("x", rate=10, expires=1) as executor:
        handle = executor.submit(call, deadline=60, retry=OFTEN)
        await asyncio.sleep(5)
        executor.pause()
        await asyncio.wait([handle])
        assert 7 <= now() <= 8.001
        executor.resume()
    assert 1 == handle.exception().expires


async def test_task_that_is_not_tried_again_may_have_a_deadline(virtual_clock):
    """A deadline of a task without retries covers waiting and running."""
    async with RateLimitedExecutor("x", retry=None) as executor:
        handle = executor.submit(asyncio.sleep, 100, deadline=7)
        with pytest.raises(RunTimeoutError):
            await handle
        assert 7 == now()
        with pytest.raises(ZeroDivisionError):
            await executor.submit(lambda: 1 / 0, deadline=7)


async def test_policies_of_tenacity_keep_it(virtual_clock):
    """Policies of tenacity keep the deadline."""
    import tenacity

    call = Fails(0)
    policy = tenacity.AsyncRetrying(wait=tenacity.wait_fixed(3), stop=tenacity.stop_never)
    async with RateLimitedExecutor("x") as executor:
        handle = executor.submit(call, retry=policy, deadline=10)
        await asyncio.wait([handle])
    assert [0, 3, 6, 9] == [round(time) for time in call.times]


async def test_key_and_cost_go_with_it(virtual_clock):
    """A deadline combines with key, cost, priority and name."""
    async with RateLimitedExecutor("x", rate=10) as executor:
        handle = executor.submit(int, deadline=5, key="a", cost=3, priority=2, name="all")
        assert ("a", 3, 2, "all") == (handle.key, handle.cost, handle.priority, handle.name)
        assert 0 == await handle
