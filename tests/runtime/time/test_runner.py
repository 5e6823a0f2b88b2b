"""A blocked event loop is reported, and nothing else is taken for one."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ratelimited_executor import ExecutorManager, RateLimitedExecutor
from ratelimited_executor.testing import VirtualEventLoop


@pytest.fixture(autouse=True)
def warnings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Warnings are logged, whatever level an earlier program in this process has set."""
    caplog.set_level(logging.WARNING, logger="ratelimited_executor")


def blocked(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "blocked" in record.getMessage()]


async def test_a_callback_that_blocks_the_loop_is_reported(
    virtual_loop: VirtualEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that blocks the loop is reported, with the lateness of the timer."""
    async with RateLimitedExecutor("work") as executor:
        executor.call_later(1, str)
        virtual_loop.call_later(0.5, virtual_loop.block_for, 3)
        await asyncio.sleep(5)

    assert ["the event loop was blocked for 2.5 s"] == blocked(caplog)


async def test_a_call_due_in_the_past_is_no_blocked_loop(
    virtual_loop: VirtualEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls due in the past, and tasks held by a pause, are not taken for a blocked loop."""
    async with RateLimitedExecutor("work") as executor:
        await asyncio.sleep(10)
        executor.call_at(virtual_loop.time() - 5, str)
        executor.pause()
        executor.schedule(str, delay=1)
        await asyncio.sleep(10)
        executor.resume()
        await asyncio.sleep(1)

    assert [] == blocked(caplog)


async def test_waiting_long_beside_short_calls_takes_no_memory(virtual_loop: VirtualEventLoop) -> None:
    """Short calls beside a long wait, which is requested again after each, take no memory."""
    async with ExecutorManager() as manager:
        executor = manager.executor("work")
        executor.schedule(str, delay=3600)
        for _ in range(500):
            executor.execute(str)
            await asyncio.sleep(0.001)
        assert len(manager._runner._heap) < 300  # some hundred never matter
