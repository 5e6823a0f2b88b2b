"""The virtual event loop without sockets or threads: how time passes, ends and stands still."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import cast

import pytest

from ratelimited_executor.testing import (
    DeadlockError,
    RealIOPolicy,
    TimeLimitError,
    VirtualEventLoop,
    run_virtual,
)


def _loop() -> VirtualEventLoop:
    return cast("VirtualEventLoop", asyncio.get_running_loop())


def test_sleep_takes_its_virtual_time_exactly() -> None:
    """Sleeps add up to the float sum of their delays, with no rounding to milliseconds."""

    async def main() -> list[float]:
        instants = []
        for delay in (0.25, 1e-9, 86_400.0, 0.0004):
            await asyncio.sleep(delay)
            instants.append(_loop().time())
        return instants

    assert [0.25, 0.25 + 1e-9, 0.25 + 1e-9 + 86_400.0, 0.25 + 1e-9 + 86_400.0 + 0.0004] == run_virtual(main())


@pytest.mark.parametrize("origin", [0.0, 1.0, 1e6, 1e9, 1e12])
def test_timer_fires_at_its_due_time_and_not_one_unit_in_the_last_place_earlier(origin: float) -> None:
    """Of three timers at neighbouring floats, each sees its own due time, however far the clock has come."""
    whens = [origin + 1, math.nextafter(origin + 1, math.inf), math.nextafter(origin + 1, math.inf) + 1]
    fired: list[float] = []

    async def main() -> None:
        loop = _loop()
        loop.clock.block(origin)
        for when in whens:
            loop.call_at(when, lambda: fired.append(loop.time()))
        await asyncio.sleep(5)

    run_virtual(main())

    assert whens == fired


def test_equal_timers_share_an_instant_and_callbacks_run_before_time_moves() -> None:
    """What a timer makes ready runs at the timer's instant, before the next timer's."""
    log: list[str] = []

    async def main() -> None:
        loop = _loop()

        def tell(name: str) -> None:
            log.append(f"{loop.time():g} {name}")

        loop.call_later(1, tell, "first")
        loop.call_later(1, lambda: loop.call_soon(tell, "soon"))
        loop.call_later(1.5, tell, "later")
        await asyncio.sleep(2)

    run_virtual(main())

    assert ["1 first", "1 soon", "1.5 later"] == log


def test_timer_in_the_past_fires_now() -> None:
    """A timer in the past fires at once, without a move of time."""

    async def main() -> float:
        await asyncio.sleep(10)
        fired = _loop().create_future()
        _loop().call_at(3, fired.set_result, None)
        await fired
        return _loop().time()

    assert 10.0 == run_virtual(main())


def test_asyncio_timeouts_run_in_virtual_time() -> None:
    """``asyncio.timeout`` and ``wait_for`` cut an endless sleep at their own instants."""

    async def main() -> list[float]:
        instants = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.sleep(math.inf)
        instants.append(_loop().time())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(100), 0.125)
        instants.append(_loop().time())
        return instants

    assert [3600.0, 3600.125] == run_virtual(main())


def test_cancelled_timer_does_not_hold_time_at_its_instant() -> None:
    """Time passes over a cancelled timer as if it had never been set."""

    async def main() -> float:
        _loop().call_later(1, lambda: None).cancel()
        await asyncio.sleep(2)
        return _loop().time()

    assert 2.0 == run_virtual(main())


def test_a_blocking_callback_makes_timers_late_and_keeps_their_order() -> None:
    """Timers that fall due while a callback blocks the loop fire when it returns, in the order of their due times."""
    log: list[str] = []

    async def main() -> None:
        loop = _loop()

        def tell(due: int) -> None:
            log.append(f"due {due} at {loop.time():g}")

        loop.call_later(1, loop.block_for, 5)
        for due in (4, 2, 3, 7):
            loop.call_later(due, tell, due)
        await asyncio.sleep(10)

    run_virtual(main())

    assert ["due 2 at 6", "due 3 at 6", "due 4 at 6", "due 7 at 7"] == log


def test_a_day_of_sleeps_takes_seconds() -> None:
    """A day of 86,400 sleeps takes seconds of real time; the generous bound finds an accidental real wait."""

    async def main() -> float:
        for _ in range(86_400):
            await asyncio.sleep(1)
        return _loop().time()

    began = time.perf_counter()

    assert 86_400.0 == run_virtual(main())
    assert time.perf_counter() - began < 30, "it takes about 0.7 s on the slowest machine that we know"


def test_deadlock_is_an_error_that_names_the_tasks() -> None:
    """When nothing can ever happen, the error says which tasks wait, and where."""

    async def stuck() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.sleep(2)
        await asyncio.create_task(stuck(), name="waiter")

    with pytest.raises(DeadlockError) as caught:
        run_virtual(main())

    assert 2.0 == caught.value.now
    assert ["Task-1", "waiter"] == [task.split(":")[0] for task in caught.value.tasks]
    assert "stuck at test_virtual_loop.py" in str(caught.value)


@pytest.mark.parametrize("policy", ["raise", "wait", "ignore"])
def test_deadlock_is_found_under_every_policy(policy: RealIOPolicy) -> None:
    """With nothing real to wait for, the policy makes no difference."""

    async def main() -> None:
        await _loop().create_future()

    with pytest.raises(DeadlockError):
        run_virtual(main(), real_io=policy)


def test_a_timer_at_infinity_never_comes() -> None:
    """A lone timer at infinity is a deadlock, not a jump of the clock to infinity."""

    async def main() -> None:
        _loop().call_at(math.inf, lambda: None)
        await _loop().create_future()

    with pytest.raises(DeadlockError):
        run_virtual(main())


def test_loop_without_work_is_a_deadlock() -> None:
    """A loop that runs for ever with nothing to do raises the error, too."""
    loop = VirtualEventLoop()
    try:
        with pytest.raises(DeadlockError, match="none: the loop runs for ever"):
            loop.run_forever()
    finally:
        loop.close()


def test_limit_ends_the_run_at_the_limit() -> None:
    """A run that needs more virtual time than its limit ends there, and names the tasks that were not done."""
    instants: list[float] = []

    async def main() -> None:
        try:
            while True:
                await asyncio.sleep(7)
                instants.append(_loop().time())
        finally:
            instants.append(_loop().time())

    with pytest.raises(TimeLimitError, match=r"limit=20 s(.|\n)*Task-1: .*main") as caught:
        run_virtual(main(), limit=20)

    assert ([7.0, 14.0, 20.0], 20.0) == (instants, caught.value.limit)


def test_limit_is_reached_by_blocking_too() -> None:
    """A program that only ever blocks, and never waits, cannot pass the limit either."""

    async def main() -> None:
        while True:
            _loop().block_for(1)
            await asyncio.sleep(0)

    with pytest.raises(TimeLimitError):
        run_virtual(main(), limit=20)


def test_timer_at_the_limit_still_fires() -> None:
    """A timer exactly at the limit still fires."""
    assert "in time" == run_virtual(asyncio.sleep(20, "in time"), limit=20)


def test_cleanup_after_the_limit_may_use_timers() -> None:
    """A task that sleeps in its ``finally`` is given the limit once more to do so."""
    log: list[str] = []

    async def main() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(5)
            log.append(f"clean at {_loop().time():g}")

    with pytest.raises(TimeLimitError):
        run_virtual(main(), limit=20)

    assert ["clean at 25"] == log


def test_loop_goes_on_after_an_error() -> None:
    """After an error the loop is usable: what was missing can be supplied, and the same task awaited again."""
    loop = VirtualEventLoop()
    try:
        future = loop.create_future()
        with pytest.raises(DeadlockError):
            loop.run_until_complete(future)
        loop.call_later(1, future.set_result, "done")

        assert "done" == loop.run_until_complete(future)
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"limit": 0}, ValueError, "limit must be > 0"),
        ({"limit": math.nan}, ValueError, "limit must be finite"),
        ({"limit": b"1"}, TypeError, "limit must be a number"),
        ({"limit": "soon"}, ValueError, "limit: a duration looks like"),
        ({"patience": -1}, ValueError, "patience must be > 0"),
        ({"real_io": "hope"}, ValueError, "real_io must be 'raise', 'wait' or 'ignore'"),
        ({"start_wall": math.nan}, ValueError, "start_wall must be finite"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, object], error: type[Exception], message: str) -> None:
    """A bad argument raises at once, names itself, and leaves no half-made loop behind."""
    make = cast("Callable[..., VirtualEventLoop]", VirtualEventLoop)

    with pytest.raises(error, match=message):
        make(**settings)


def test_closed_loop_refuses_tasks() -> None:
    """A closed virtual loop refuses work as a real one does."""
    loop = VirtualEventLoop()
    loop.close()
    coroutine = asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.create_task(coroutine)

    coroutine.close()


def test_debug_mode_reports_a_blocking_callback_in_virtual_time(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio's own warning about slow callbacks sees the virtual time that a callback blocked for."""

    async def main() -> None:
        _loop().call_soon(_loop().block_for, 2)
        await asyncio.sleep(1)

    run_virtual(main(), debug=True)

    assert any("took 2.000 seconds" in record.message for record in caplog.records)


def test_repr_tells_state_and_time() -> None:
    """The representation shows whether the loop is idle, running or closed, and its time."""
    loop = VirtualEventLoop()
    states = [repr(loop)]

    async def main() -> None:
        await asyncio.sleep(1.5)
        states.append(repr(loop))

    loop.run_until_complete(main())
    loop.close()
    states.append(repr(loop))

    assert [
        "<VirtualEventLoop idle time=0>",
        "<VirtualEventLoop running time=1.5>",
        "<VirtualEventLoop closed time=1.5>",
    ] == states
