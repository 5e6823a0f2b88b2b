"""What the interface and its words promise (F17, F19, F24, F37, F40)."""

import asyncio
import inspect
import re
import threading

import pytest

import ratelimited_executor
from ratelimited_executor import (
    ExecutorManager,
    RateLimitedExecutor,
    TaskState,
    abc,
    cycles,
    handles,
    insight,
    orders,
    peers,
    policies,
    retries,
)
from ratelimited_executor.exceptions import WrongLoopError

HOMES = [ratelimited_executor, abc, cycles, handles, insight, orders, peers, policies, retries]
PUBLIC = {name: getattr(home, name) for home in HOMES for name in home.__all__}


@pytest.mark.parametrize("rate", ["1/min", "0.5/s", "5/s", "1/h"])
@pytest.mark.parametrize("interval", [0.01, 0.1, 1])
async def test_backlog_of_an_idle_executor_is_not_infinite(virtual_clock, rate, interval) -> None:
    """F17: whenever an interval had less than one slot, an idle executor reported an infinite backlog."""
    async with ExecutorManager(interval=interval) as manager:
        executor = manager.executor("one", rate=rate)
        for _ in range(20):
            assert 0 == executor.backlog_seconds()
            await asyncio.sleep(0.137)
        executor.rate = 0
        assert 0 == executor.backlog_seconds()


async def test_backlog_is_not_reckoned_in_whole_intervals(virtual_clock) -> None:
    """F17: the backlog is the seconds until the last task that is due can start; infinite only if that is never."""
    async with RateLimitedExecutor("one", rate=0.5, drain_timeout=0) as executor:
        await asyncio.sleep(0.1)
        for _ in range(4):
            executor.submit(int)
        # The first permit is taken 0.1 s late, and the others come up every 2 s from there: 0.1, 2.1, 4.1, 6.1.
        assert executor.backlog_seconds() == pytest.approx(6.0, abs=1e-6)
        await asyncio.sleep(1)
        assert executor.backlog_seconds() == pytest.approx(5.0, abs=1e-6)
        executor.rate = 0
        assert float("inf") == executor.backlog_seconds()


async def test_state_is_not_shared_between_threads(virtual_clock) -> None:
    """F19: plain fields were read and written by many threads without a lock; here another thread is refused."""
    async with RateLimitedExecutor("one") as executor:
        before = executor.statistics()

        def intrude() -> list[type]:
            errors = []
            for call in (
                lambda: executor.schedule(int, delay=1),
                lambda: executor.submit(int),
                lambda: executor.execute(int),
                lambda: executor.call_soon(int),
                lambda: executor.call_later(1, int),
                lambda: executor.call_at(1, int),
                lambda: executor.schedule_many(int, [1]),
                lambda: executor.schedule_at_fixed_rate(int, period=1),
                lambda: executor.permit(),
            ):
                try:
                    call()
                except Exception as error:
                    errors.append(type(error))
            return errors

        assert [WrongLoopError] * 9 == await asyncio.to_thread(intrude)
        assert before == executor.statistics()


async def test_call_from_another_thread_does_not_run_in_it() -> None:
    """F19: the ways in from other threads only hand over to the loop."""
    async with RateLimitedExecutor("one") as executor:
        idents: list[int] = []

        def intrude() -> None:
            executor.call_soon_threadsafe(lambda: idents.append(threading.get_ident()))
            future = executor.schedule_threadsafe(threading.get_ident)
            idents.append(future.result(5))

        await asyncio.to_thread(intrude)

    assert [threading.get_ident()] * 2 == idents


async def test_invoke_all_does_not_return_before_the_end(virtual_clock) -> None:
    """F37: `invokeAll` returned at once, and with a timeout polled, waited 100 ms too long and cancelled nothing."""
    async with RateLimitedExecutor("one") as executor:
        handles = await executor.invoke_all([lambda: asyncio.sleep(3, "three"), lambda: asyncio.sleep(1, "one")])
        assert ["three", "one"] == [handle.result() for handle in handles]
        assert 3 == virtual_clock.monotonic()

        handles = await executor.invoke_all([lambda: asyncio.sleep(1), lambda: asyncio.sleep(9)], timeout=2)
        assert [TaskState.DONE, TaskState.CANCELLED] == [handle.state for handle in handles]
        assert 5 == virtual_clock.monotonic()


async def test_invoke_any_does_not_take_none_for_a_failure(virtual_clock) -> None:
    """F37: a result of null counted as failed, and the others were not interrupted."""

    async def fail() -> None:
        raise RuntimeError("boom")

    async with RateLimitedExecutor("one") as executor:
        assert await executor.invoke_any([fail, lambda: asyncio.sleep(1), lambda: asyncio.sleep(2, "late")]) is None
        assert 1 == virtual_clock.monotonic()
        await asyncio.sleep(0.1)
        assert 0 == executor.statistics().running
        with pytest.raises(ExceptionGroup) as caught:
            await executor.invoke_any([fail, fail])
        assert 2 == len(caught.value.exceptions)
        with pytest.raises(ValueError, match="calls"):
            await executor.invoke_any([])


async def test_waiting_does_not_poll(virtual_clock) -> None:
    """F37: results, termination and bulk calls were polled every 100 ms."""
    executor = RateLimitedExecutor("one")
    await executor.start()
    executor.schedule(asyncio.sleep, 0.033, delay=1.2345)
    executor.shutdown()
    assert await executor.await_termination(100)

    assert virtual_clock.monotonic() == pytest.approx(1.2345 + 0.033, abs=1e-6)


async def test_rate_of_zero_does_not_lift_the_limit(virtual_clock, starts) -> None:
    """F40: the manual said that zero removes the limit; it pauses, and infinity lifts it, as is written."""
    async with RateLimitedExecutor("one", rate=0) as executor:
        executor.submit(starts)
        await asyncio.sleep(100)
        assert [] == starts.times
        executor.rate = float("inf")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [100] == starts.times

    words = inspect.getdoc(RateLimitedExecutor) + RateLimitedExecutor.rate.__doc__
    assert "0 pauses" in words


@pytest.mark.parametrize("public", PUBLIC.values(), ids=PUBLIC)
def test_documentation_does_not_promise_a_parameter_that_is_not_there(public) -> None:
    """F40: the manual described settings that nothing read; here every described argument exists, and the reverse."""
    if not inspect.isclass(public):
        return
    for member_name, member in [("__init__", public), *vars(public).items()]:
        if member_name.startswith("_") and member_name != "__init__":
            continue
        function = inspect.unwrap(member) if inspect.isfunction(member) else public if member is public else None
        text = inspect.getdoc(function) if function is not None else None
        match = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text or "", re.MULTILINE)
        if match is None:
            continue
        described = re.findall(r"^    (\w+):", match[1], re.MULTILINE)
        taken = [key for key in inspect.signature(function).parameters if key not in ("self", "refused")]
        assert set(described) <= set(taken), (member_name, described, taken)
        if member is not public and "and so are the rest" not in text:
            assert set(taken) <= set(described), (member_name, described, taken)


async def test_tasks_of_a_closed_executor_do_not_belie_the_manual(virtual_clock) -> None:
    """F40: "when the executor terminates, tasks are cancelled" was not so; here leaving drains, a failure cancels."""
    async with RateLimitedExecutor("one") as executor:
        drained = executor.schedule(int, delay=5)
    with pytest.raises(KeyError):
        async with RateLimitedExecutor("two") as executor:
            cut = executor.schedule(int, delay=5)
            raise KeyError("left by an exception")

    assert (TaskState.DONE, TaskState.CANCELLED) == (drained.state, cut.state)
