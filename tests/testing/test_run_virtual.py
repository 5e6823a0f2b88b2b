"""``run_virtual`` works like ``asyncio.run``, with a new virtual loop each time."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import cast

import pytest

from ratelimited_executor.testing import DeadlockError, VirtualEventLoop, VirtualLoopFactory, run_virtual


def _loop() -> VirtualEventLoop:
    return cast("VirtualEventLoop", asyncio.get_running_loop())


def test_returns_the_result() -> None:
    """The result of the coroutine is returned."""
    assert "result" == run_virtual(asyncio.sleep(10, "result"))


def test_raises_what_the_coroutine_raises() -> None:
    """An exception of the coroutine is raised by the run."""

    async def main() -> None:
        await asyncio.sleep(1)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run_virtual(main())


def test_settings_reach_the_loop() -> None:
    """The wall clock's start, the policy, the limit and the patience are settings of the loop."""

    async def main() -> tuple[float, str, float, float]:
        loop = _loop()
        return loop.clock.wall(), loop.real_io, loop.limit, loop.patience

    assert (5.0, "ignore", 60.0, 2.0) == run_virtual(main(), start_wall=5, real_io="ignore", limit=60, patience=2)


def test_leftover_tasks_are_cancelled_and_awaited() -> None:
    """A task still running at the end is cancelled, and may still sleep in its clean-up."""
    log: list[str] = []

    async def leftover() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(2)
            log.append(f"cleaned at {_loop().time():g}")
            raise

    async def main() -> None:
        asyncio.get_running_loop().create_task(leftover())
        await asyncio.sleep(1)

    run_virtual(main())

    assert ["cleaned at 3"] == log


def test_asynchronous_generators_are_closed() -> None:
    """A generator left in the middle is closed before the run returns."""
    log: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    kept = numbers()

    async def main() -> int:
        return await anext(kept)

    assert (1, ["closed"]) == (run_virtual(main()), log)


def test_each_run_starts_from_zero_and_closes_its_loop() -> None:
    """Runs share nothing: the second starts at 0 again, and neither leaves a current loop behind."""

    async def main() -> tuple[float, VirtualEventLoop]:
        began = _loop().time()
        await asyncio.sleep(5)
        return began, _loop()

    runs = [run_virtual(main()) for _ in range(2)]

    assert [0.0, 0.0] == [began for began, _ in runs]
    assert [True, True] == [loop.is_closed() for _, loop in runs]


def test_refuses_to_run_inside_a_loop() -> None:
    """A run inside a running loop is refused, as by ``asyncio.run``, and the outer loop goes on."""

    async def main() -> str:
        inner = asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="running event loop"):
            run_virtual(inner)
        inner.close()
        return "outer goes on"

    assert "outer goes on" == run_virtual(main())


def test_refuses_what_is_no_coroutine() -> None:
    """A function in place of a coroutine is refused, and the fresh loop is closed."""
    with pytest.raises((TypeError, ValueError), match="coroutine"):
        run_virtual(asyncio.sleep)  # type: ignore[arg-type]  # what the test is about


def test_first_error_survives_a_cleanup_that_deadlocks(caplog: pytest.LogCaptureFixture) -> None:
    """When the clean-up deadlocks as the run did, the error raised is that of the run; asyncio logs the lost task."""

    async def main() -> None:
        try:
            await _loop().create_future()
        finally:
            await _loop().create_future()

    with pytest.raises(DeadlockError) as caught:
        run_virtual(main())
    text = str(caught.value)
    del caught
    gc.collect()

    assert "Task-1" in text
    assert ["Task was destroyed but it is pending!"] == [record.message.split("\n")[0] for record in caplog.records]


def test_factory_makes_a_fresh_loop_each_time() -> None:
    """A factory serves as ``loop_factory=`` of ``asyncio.Runner`` any number of times."""
    factory = VirtualLoopFactory(start_wall=7)

    loops = []
    for _ in range(2):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.sleep(1))
            loops.append(cast("VirtualEventLoop", runner.get_loop()))

    assert loops[0] is not loops[1]
    assert [8.0, 8.0] == [loop.clock.wall() for loop in loops]


def test_factory_hands_out_the_reserved_loop_once() -> None:
    """A loop reserved beforehand is the next one made, and stays the current one while it is open."""
    factory = VirtualLoopFactory()
    reserved = factory.reserve()

    assert reserved is factory()
    assert reserved is factory.reserve()
    reserved.close()
    following = factory.reserve()
    assert following is not reserved
    factory.discard()
    assert following.is_closed()


def test_factory_refuses_bad_settings_when_made() -> None:
    """A bad setting is reported where it was written, not when the first loop is made."""
    with pytest.raises(ValueError, match="limit must be > 0"):
        VirtualLoopFactory(limit=-1)
