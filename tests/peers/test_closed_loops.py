"""Workers that take a permit, work, and take the next: a group gives them what a process alone does."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from ratelimited_executor import ExecutorManager, Window
from tests.peers.ticket_group import Server

pytestmark = pytest.mark.virtual_time

WARM, SECONDS = 7.0, 10.0  # a new group has begun, and found its pace


async def starts_a_second(processes: int, workers: int, *, work: float = 0.0, **settings):
    """Return how many permits the workers of each process take in a second."""
    server, loop, starts = Server(1), asyncio.get_running_loop(), []
    async with AsyncExitStack() as stack:
        users = []
        for number in range(processes):
            manager = await stack.enter_async_context(ExecutorManager(peers=server.peers(number)))
            executor = manager.executor("x", drain_timeout=0, **settings)

            async def user(executor=executor) -> None:
                while True:
                    async with executor.permit():
                        starts.append(loop.time())
                    await asyncio.sleep(work)

            users += [asyncio.ensure_future(user()) for _ in range(workers)]
        await asyncio.sleep(WARM)
        begin = loop.time()
        await asyncio.sleep(SECONDS)
        end = loop.time()
        for each in users:
            each.cancel()
        await asyncio.gather(*users, return_exceptions=True)
    return sum(begin < time <= end for time in starts) / (end - begin)


@pytest.mark.parametrize("settings", [{"rate": "200/s"}, {"rate": "200/s", "policy": Window()}], ids=["pace", "window"])
async def test_workers_that_work_use_the_limit(settings) -> None:
    """Workers that work between permits, for less than the limit allows, use nearly all of it."""
    assert await starts_a_second(2, 4, work=0.01, **settings) >= 0.9 * 200
