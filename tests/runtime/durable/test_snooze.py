"""A durable function that raises ``Snooze`` runs again later, and no attempt is counted."""

import asyncio
import pickle
from datetime import UTC, datetime

import pytest

from ratelimited_executor import RateLimitedExecutor, Retry
from ratelimited_executor.durable import DurableState, DurableTasks, LaneFail, Snooze

ABSENT = None


async def run(tasks, seconds):
    """Run the tasks for some seconds; return the statistics."""
    async with RateLimitedExecutor("x") as executor, tasks.running(executor) as runner:
        await asyncio.sleep(seconds)
    return runner.statistics()


@pytest.mark.parametrize("retry", [None, Retry(2, on=Exception)])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_snoozed_task_runs_again_without_an_attempt(store, retry, in_thread):
    """It is due again after the time, as often as it asks, whatever its retry policy; no attempt is counted."""
    tasks = DurableTasks(store)
    left = [1, 2, 3, 4, 5]

    def fn():
        if left:
            left.pop()
            raise Snooze("1m")

    function = tasks.task(name="f", retry=retry, in_thread=in_thread)(fn)
    async with tasks:
        ref = await function.put()
        first = await run(tasks, 150)
        row = await ref.row()
        assert (DurableState.SCHEDULED, 0, "") == (row.state, row.attempt_count, row.error)
        assert 3 == first.snoozed
        second = await run(tasks, 160)
        assert ABSENT is await ref.state()
    assert (2, 1, 0) == (second.snoozed, second.done, second.retried)


async def test_until_is_the_wall_clock(store, virtual_clock):
    """``until=`` is a time by the wall clock; a past one is due now."""
    tasks = DurableTasks(store)
    at = virtual_clock.wall() + 100
    untils = [datetime.fromtimestamp(at, UTC), at - 500]
    ran = []

    @tasks.task
    async def fn():
        ran.append(virtual_clock.wall())
        if untils:
            raise Snooze(until=untils.pop(0))

    async with tasks:
        await fn.put()
        await run(tasks, 200)
    assert [at - 100, at, at] == pytest.approx(ran, abs=0.1)


@pytest.mark.parametrize("lane_fail", LaneFail)
async def test_a_lane_waits_for_a_snoozed_task_as_for_a_retried_one(store, lane_fail):
    """A lane that blocks keeps its order, and another one goes on."""
    tasks = DurableTasks(store)
    ran = []

    @tasks.task(lane_fail=lane_fail)
    async def fn(name):
        ran.append(name)
        if ran == ["a"]:
            raise Snooze(10)

    async with tasks:
        await fn.put("a", lane="l")
        await fn.put("b", lane="l")
        await run(tasks, 20)
    assert (["a", "a", "b"] if lane_fail is LaneFail.BLOCK else ["a", "b", "a"]) == ran


async def test_a_cancelled_task_is_not_snoozed(store):
    """A task that is cancelled while it runs is gone, though it asks to run again."""
    tasks = DurableTasks(store)

    @tasks.task
    async def fn():
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            raise Snooze(1) from None

    async with RateLimitedExecutor("x") as executor, tasks.running(executor):
        ref = await fn.put()
        await asyncio.sleep(1)
        assert await ref.cancel()
        await asyncio.sleep(1)
        assert ABSENT is await ref.state()


async def test_outside_of_durable_tasks_it_is_an_error(virtual_clock):
    """A task of the executor alone fails with it."""

    async def fn():
        raise Snooze(5)

    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(Snooze, match="asked to run again in 5 s: only durable tasks can be snoozed"):
            await executor.submit(fn)


def test_it_is_checked_when_it_is_made_and_can_be_pickled():
    """Wrong times are refused, and a copy has the same time."""
    for wrong in ({}, {"after": 1, "until": 2}, {"after": object()}, {"until": "noon"}):
        with pytest.raises(TypeError):
            Snooze(**wrong)
    for wrong in ({"after": -1}, {"after": float("nan")}, {"until": datetime(2026, 1, 1)}):  # noqa: DTZ001  # naive
        with pytest.raises(ValueError):
            Snooze(**wrong)
    for one in (Snooze("1h"), Snooze(until=7)):
        other = pickle.loads(pickle.dumps(one))
        assert (one.after, one.until, str(one)) == (other.after, other.until, str(other))
    assert 1e12 == Snooze(until=1e300).seconds(0.0)
