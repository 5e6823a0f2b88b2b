"""Managers close their executors side by side, and each executor may be left alone."""

import asyncio
import logging

import anyio
import pytest

from ratelimited_executor import ExecutorManager, ExecutorStoppedError, TaskState
from ratelimited_executor._runtime.insight.observing import Listeners
from ratelimited_executor._runtime.life import assembly

from ...helpers import now, sleep_for, swallow
from ...peers.ticket_group import Link, Server

DONE, CANCELLED = TaskState.DONE, TaskState.CANCELLED
GRACE = 5.0  # seconds for which a coroutine that swallows its cancellation is waited for


@pytest.fixture(autouse=True)
def quiet_log(caplog):
    """Collect what the library logs, from information upwards."""
    caplog.set_level(logging.INFO, "ratelimited_executor")


async def test_leaving_a_manager_closes_all_side_by_side(virtual_clock):
    """Each executor drains up to its own limit, and the manager ends with the last one."""
    log = []
    async with ExecutorManager() as manager:
        for name, seconds in (("a", 2), ("b", None), ("c", 9)):
            executor = manager.executor(name, drain_timeout=seconds)
            executor.call_later(1, log.append, name)
            executor.call_later(6, log.append, name + "6")
    assert ["a", "b", "c", "b6", "c6"] == log
    assert 6 == virtual_clock.monotonic()
    assert {} == manager.executors


async def test_leaving_a_manager_by_an_exception_cancels_in_all(virtual_clock):
    """Leaving a manager by an exception cancels the tasks of all its executors."""
    with pytest.raises(KeyError):
        async with ExecutorManager() as manager:
            handles = [manager.executor(name).submit(sleep_for, 50) for name in "abc"]
            await asyncio.sleep(1)
            raise KeyError
    assert [CANCELLED] * 3 == [handle.state for handle in handles]
    assert 1 == virtual_clock.monotonic()


async def test_manager_cancelled_while_draining_cuts_all_short(virtual_clock):
    """Cancelling a manager's drain cuts the drain of every executor short."""
    handles = []

    async def main():
        async with ExecutorManager() as manager:
            handles.extend(manager.executor(name).schedule(int, delay=60) for name in "abc")

    task = asyncio.create_task(main())
    await asyncio.sleep(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [CANCELLED] * 3 == [handle.state for handle in handles]


async def test_manager_closes_within_one_grace_for_all_who_swallow(virtual_clock):
    """Tasks of many executors that ignore cancellation delay the manager by the grace time of one."""
    with pytest.raises(KeyError):
        async with ExecutorManager() as manager:
            for name in "abcd":
                manager.executor(name).submit(swallow, 60)
            await asyncio.sleep(1)
            raise KeyError
    assert 1 + GRACE == virtual_clock.monotonic()
    await asyncio.sleep(100)


async def test_closed_executor_frees_its_name_and_leaves_the_manager_open(virtual_clock):
    """The name of a closed executor may be used again, and its manager stays open."""
    async with ExecutorManager() as manager:
        async with manager.executor("a") as first:
            first.submit(int)
        second = manager.executor("a")
        assert (True, False) == (first.is_terminated, second.is_shutdown)
        await second.submit(int)
        assert {"a": second} == manager.executors


async def test_manager_is_closed_for_good(virtual_clock):
    """A closed manager neither starts again nor creates executors, and may be closed again."""
    async with ExecutorManager() as manager:
        pass
    with pytest.raises(ExecutorStoppedError):
        await manager.start()
    with pytest.raises(ExecutorStoppedError):
        manager.executor("a")
    await manager.aclose()


async def test_leaving_a_manager_leaves_its_executors(virtual_clock):
    """Every executor drains, side by side, by its own ``drain_timeout``."""
    async with ExecutorManager() as manager:
        first, second = manager.executor("first", drain_timeout=2), manager.executor("second")
        hour, five = first.schedule(int, delay=3600), second.schedule(int, delay=5)
    assert (TaskState.CANCELLED, TaskState.DONE) == (hour.state, five.state)
    assert 5 == int(now())
    with pytest.raises(ValueError):
        async with ExecutorManager() as manager:
            handle = manager.executor("x").schedule(int, delay=5)
            raise ValueError
    assert handle.cancelled()


async def test_executor_of_a_manager_may_be_left_alone(virtual_clock):
    """Leaving one executor does not end its manager."""
    async with ExecutorManager() as manager:
        async with manager.executor("one") as one:
            one.schedule(int, delay=1)
        assert one.is_terminated
        assert 0 == await manager.executor("two").submit(int)


def test_error_about_arguments_speaks_of_the_class_that_users_know():
    """Errors about arguments name the public class, not its internal bases."""
    with pytest.raises(TypeError, match=r"^ExecutorManager\.__init__\(\) got an unexpected"):
        ExecutorManager(intervall=1.0)


@pytest.mark.parametrize("is_group", [False, True])
@pytest.mark.parametrize(
    "part", ["Controls", "TaskQueue", "Engine", "Keys", "Backlog", "Retries", "listeners", "notice"]
)
async def test_executor_that_cannot_be_created_leaves_nothing_behind(virtual_clock, monkeypatch, part, is_group):
    """Whatever a part of a new executor raises, nothing is registered, and the name is free."""

    class PartError(BaseException):
        pass

    def fail(*_, **__):
        raise PartError

    peers = Server().peers(0) if is_group else None
    async with ExecutorManager(peers=peers) as manager:
        with monkeypatch.context() as broken:
            if part == "listeners":
                broken.setattr(Listeners, "open", fail)
            elif part == "notice":
                broken.setattr(manager, "_on_executor", [fail])
            else:
                broken.setattr(assembly, part, fail)
            with pytest.raises(PartError):
                manager.executor("x", rate=5, key_rate=1, max_pending=5)
        assert ({}, set(), []) == (manager.executors, manager._runner.engines, manager._runner._heap)
        assert not is_group or not peers._members
        assert 1 == await manager.executor("x", rate=5).submit(int, "1")


@pytest.mark.parametrize("way", ["scope", "again and again"])
async def test_group_is_left_though_the_goodbye_is_cancelled(virtual_clock, monkeypatch, way):
    """A manager that is cancelled while it leaves has no connection, task or timer open in the end."""
    closed, before, server = [], asyncio.all_tasks(), Server()

    async def aclose(link):
        closed.append(link)

    async def main():
        with anyio.CancelScope() as scope:
            async with manager:
                manager.slots("gpu", limit=1)
                await manager.executor("x", rate=5).submit(int)
                server.is_away = True  # so that each goodbye takes time
                if way == "scope":
                    scope.cancel()
                await asyncio.sleep(60)

    monkeypatch.setattr(Link, "aclose", aclose)
    manager = ExecutorManager(peers=server.peers(0))
    running = asyncio.create_task(main())
    await asyncio.sleep(5)
    while not running.done():
        running.cancel()
        await asyncio.sleep(0.01)
    await asyncio.sleep(60)
    assert (way != "scope", 1) == (running.cancelled(), len(closed))
    assert before == asyncio.all_tasks()
    assert not manager._runner.is_lent


async def test_manager_that_never_started_is_left_by_an_exception():
    """Leaving by an exception closes executors that have not started, however many."""
    manager = ExecutorManager()
    executors = [manager.executor(name) for name in "abc"]
    await manager.__aexit__(KeyError, KeyError(), None)
    assert all(executor.is_terminated for executor in executors)
    assert {} == manager.executors
