"""Listeners are notified of an executor's tasks as it happens, and cost nothing where there are none."""

from __future__ import annotations

import asyncio

import pytest

from ratelimited_executor import ExecutorManager, Pacing, RateLimitedExecutor, Retry
from ratelimited_executor._runtime.insight.observing import Listener, Observed, started_at

from ...helpers import now

pytestmark = pytest.mark.usefixtures("virtual_clock")


def observe(executor: RateLimitedExecutor, log: "Log"):
    return executor._listen(Listener(opened=log.opened, started=log.started, freed=log.ended))


class Log:
    """A listener that records its notifications and their times."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []
        self.observed: Observed | None = None

    def opened(self, observed: Observed) -> None:
        self.observed = observed

    def started(self, due: float, at: float) -> None:
        assert at == now()
        self.lines.append((now(), "started", at - due))

    def ended(self) -> None:
        self.lines.append((now(), "ended"))


async def test_starts_and_ends_are_told_as_they_happen():
    """Functions, coroutines, callbacks and items are notified as they start, and coroutines as they end."""
    log = Log()
    async with RateLimitedExecutor("x", rate=1, pacing=Pacing.ON_TIME) as executor:
        observe(executor, log)
        executor.submit(str)
        executor.schedule(asyncio.sleep, 1.5, delay=1)
        executor.call_later(1.5, str)
        executor.schedule_many(str, range(2), delay=3)

    assert [
        (0.0, "started", 0.0),
        (1.0, "started", 0.0),
        (2.0, "started", 0.5),
        (2.5, "ended"),
        (3.0, "started", 0.0),
        (4.0, "started", 1.0),
    ] == log.lines


@pytest.mark.parametrize("how", ["returns", "raises", "is cancelled"])
async def test_a_coroutine_ends_in_whatever_way(how):
    """Any end of a coroutine is notified once, before the next start takes its place."""

    async def run() -> None:
        await asyncio.sleep(2)
        if how == "raises":
            raise ValueError

    log = Log()
    async with RateLimitedExecutor("x", max_concurrency=1) as executor:
        observe(executor, log)
        handle = executor.submit(run)
        executor.submit(str)
        if how == "is cancelled":
            asyncio.get_running_loop().call_later(2, handle.cancel)
        await asyncio.wait([handle])

    assert [(0.0, "started", 0.0), (2.0, "ended"), (2.0, "started", 2.0)] == log.lines


async def test_who_never_starts_is_not_told_of():
    """A task cancelled or expired before its start is not notified."""
    log = Log()
    async with RateLimitedExecutor("x") as executor:
        observe(executor, log)
        executor.schedule(asyncio.sleep, 1, delay=1).cancel()
        executor.pause()
        expired = executor.submit(asyncio.sleep, 1, expires=1)
        await asyncio.wait([expired])

    assert [] == log.lines


async def test_an_executor_may_be_observed_before_its_start():
    """A listener added before the start is notified of it, and gets the object to query."""
    log = Log()
    manager = ExecutorManager()
    executor = manager.executor("x")
    observe(executor, log)
    assert log.observed is None
    async with manager:
        assert log.observed is not None
        await executor.submit(asyncio.sleep, 1)

    assert [(0.0, "started", 0.0), (1.0, "ended")] == log.lines


async def test_several_may_listen_each_for_as_long_as_it_likes():
    """A listener that left is no longer notified, others are; the hooks go with the last one."""
    first, second = Log(), Log()
    async with RateLimitedExecutor("x") as executor:
        ignore = observe(executor, first)
        handle = executor.submit(asyncio.sleep, 1)
        await asyncio.sleep(0.5)
        ignore_second = observe(executor, second)
        ignore()
        ignore()
        await handle
        ignore_second()
        assert executor._engine.queue.on_start is None
        await executor.submit(asyncio.sleep, 1)

    assert [(0.0, "started", 0.0)] == first.lines
    assert [(1.0, "ended")] == second.lines


@pytest.mark.parametrize("add", ["call_later", "schedule", "schedule_many"])
async def test_samples_are_every_so_manieth_start(add):
    """Every n-th start is sampled, as the listener says; those between start in stretches, and none is lost."""
    seen: list[tuple[float, int]] = []
    ran: list[int] = []

    def sampled(due: float, at: float) -> int:
        seen.append((at - due, len(ran)))
        return 99

    async with RateLimitedExecutor("x", pacing=Pacing.ON_TIME) as executor:
        executor._listen(Listener(sampled=sampled))
        if add == "schedule_many":
            executor.schedule_many(ran.append, range(1000), delay=1.0)
        else:
            for number in range(1000):
                if add == "call_later":
                    executor.call_later(1.0, ran.append, number)
                else:
                    executor.schedule(ran.append, number, delay=1.0)

    assert sorted(ran) == list(range(1000))
    assert [number for _, number in seen] == list(range(0, 1000, 100))


@pytest.mark.parametrize("rate", [50, 5000])
async def test_samples_are_taken_under_a_rate_as_well(rate):
    """Under a rate starts are sampled likewise, one at a time or many at once."""
    seen: list[int] = []
    ran: list[int] = []

    def sampled(due: float, at: float) -> int:
        seen.append(len(ran))
        return 9

    async with RateLimitedExecutor("x", rate=rate) as executor:
        executor._listen(Listener(sampled=sampled))
        executor.schedule_many(ran.append, range(200), delay=1.0)
        for number in range(100):
            executor.submit(ran.append, number)

    assert seen == list(range(0, 300, 10))


async def test_a_mark_is_of_the_start_that_was_sampled_alone():
    """Of the running calls without a handle, only the sampled ones have a start time."""
    ended: list[object] = []
    async with RateLimitedExecutor("x") as executor:
        executor._listen(
            Listener(sampled=lambda due, at: 9, ended=lambda owner, state: ended.append(started_at(owner)))
        )
        for _ in range(20):
            executor.call_later(1.0, asyncio.sleep, 5)
        executor.schedule_many(asyncio.sleep, [3] * 5, delay=2.5)

    assert [at for at in ended if at is not None] == [2.5, 1.0, 1.0]
    assert len(ended) == 25


async def test_how_it_stands_can_be_asked_at_any_time():
    """Due, held, drawing and running tasks, and a halt, can be queried at any time."""
    log = Log()
    async with RateLimitedExecutor("x", rate=10, drain_timeout=0) as executor:
        observe(executor, log)
        observed = log.observed
        assert observed is not None
        coroutines = observed.coroutines
        async with executor.permit():
            assert 1 == observed.held_count
            executor.submit(asyncio.sleep, 5)
            executor.schedule(str, delay=2.5)
            await asyncio.sleep(0.5)
            assert (0, 0, 1) == (observed.held_count - 1, observed.due_count(now()), len(coroutines))
        assert coroutines is observed.coroutines

        async def slowly():
            yield 1
            await asyncio.sleep(1)

        assert not observed.is_drawing
        batch = executor.schedule_many(str, slowly())
        await asyncio.sleep(0.5)
        assert observed.is_drawing
        await batch
        await asyncio.sleep(0)
        assert not observed.is_drawing

        assert not observed.is_stopped
        executor.pause()
        assert observed.is_stopped
        await asyncio.sleep(3)
        assert (1, 0) == (observed.due_count(now()), observed.due_count(now() - 5))
        executor.resume()
        assert not observed.is_stopped
        executor.rate = 0
        assert observed.is_stopped
        executor.rate = 1
        executor.max_concurrency = 0
        assert observed.is_stopped


async def test_nobody_stands_in_the_way_of_a_task_that_is_not_observed():
    """Without listeners there are no hooks at the start or the end of a task."""
    async with RateLimitedExecutor("x") as executor:
        assert executor._engine.queue.on_start is None
        assert executor._parts.coroutines.on_free == executor._engine._freed


async def test_what_starts_used_is_counted():
    """Of each resource that a cost names: also by items of a batch and by each attempt, and as corrected afterwards."""
    log = Log()
    resources = {"tokens": "1_000_000/s", "points": "1_000_000/s"}
    async with RateLimitedExecutor("x", resources=resources) as executor:
        observe(executor, log)
        assert {} == log.observed.used
        executor.submit(str)
        await executor.submit(str, cost={"tokens": 5, "points": 0})
        assert {"permits": 1, "tokens": 5, "points": 0} == log.observed.used
        await executor.schedule_many(str, range(3), cost=lambda item: {"tokens": item})
        assert 5 + 0 + 1 + 2 == log.observed.used["tokens"]

        async with executor.permit(cost={"tokens": 100}) as permit:
            permit.settle({"tokens": 30})
            assert 8 + 30 == log.observed.used["tokens"]
            permit.settle({"tokens": 40})
        later = executor.schedule(str, cost={"tokens": 1000}, delay=1)
        later.settle({"tokens": 7})
        assert 8 + 40 == log.observed.used["tokens"]
        await later
        assert 8 + 40 + 7 == log.observed.used["tokens"]

        attempts = []

        def fail():
            attempts.append(1)
            if len(attempts) < 3:
                raise OSError

        await executor.schedule(fail, cost={"points": 10}, retry=Retry(3, on=(OSError,), base=0.1))
        assert 30 == log.observed.used["points"]
