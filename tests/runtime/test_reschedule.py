"""``CallHandle.reschedule``: the same call at another time, wherever it waits."""

import asyncio
import contextvars
import gc
import math
import random

import pytest

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor.exceptions import WrongLoopError

from ..helpers import now

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="nobody's")


@pytest.mark.parametrize("delay", [0.25, 0.75, 5, 10.2, 10.75, 10.999, 11, 60, 5000, 0, -3])
async def test_callback_comes_at_its_new_time_alone(virtual_clock, account, delay):
    """A rescheduled callback runs once at its new time, sooner or later, with its arguments."""
    calls = []
    async with RateLimitedExecutor("x") as executor:
        handle = executor.call_later(10.5, lambda *args: calls.append((now(), args)), 1, 2)
        executor.call_later(10.6, int)
        assert handle.reschedule(delay)
        assert max(0, delay) == max(0, handle.when())
        assert not handle.cancelled()
        account(executor)
        assert 2 == executor.statistics().waiting
    assert [(pytest.approx(max(0, delay)), (1, 2))] == calls
    assert 2 == executor.statistics().done == executor.statistics().accepted


async def test_timeout_that_starts_anew_with_each_sign_of_life(virtual_clock):
    """A timeout rescheduled at each sign of life fires once, its delay after the last one."""
    fired = []
    async with RateLimitedExecutor("x") as executor:
        timeout = executor.call_later(30, lambda: fired.append(now()))
        for _ in range(1000):
            await asyncio.sleep(0.37)
            assert timeout.reschedule(30)
        last = now()
        await asyncio.sleep(100)
    assert [pytest.approx(last + 30)] == fired


@pytest.mark.parametrize("seed", range(5))
async def test_any_history_of_timers_ends_at_their_last_times(virtual_clock, account, seed):
    """After any rescheduling and cancelling each call runs once at its last time, or never."""
    rng = random.Random(seed)
    calls = {}
    async with RateLimitedExecutor("x") as executor:
        dues, handles, gone = {}, {}, set()
        for number in range(400):
            if number % 7 == 0:
                var.set(f"{number}")
            dues[number] = now() + 5 + rng.random() * 20
            handles[number] = executor.call_at(
                dues[number], lambda number=number, seen=var.get(): calls.update({number: (now(), seen == var.get())})
            )
        for _ in range(3000):
            number = rng.randrange(400)
            if number not in gone and rng.random() < 0.05:
                handles[number].cancel()
                gone.add(number)
            delay = rng.choice([0.1, 1, 3, 10, 30]) * rng.random()
            could = number not in gone and number not in calls
            assert could == handles[number].reschedule(delay)
            if could:
                dues[number] = now() + delay
            if rng.random() < 0.05:
                await asyncio.sleep(rng.random() / 20)
        account(executor)
        await asyncio.sleep(60)
        account(executor)
    assert set(range(400)) - gone <= set(calls)
    for number, (time, is_own_context) in calls.items():
        assert is_own_context
        if number not in gone:
            assert pytest.approx(dues[number], abs=1e-3) == time, number


@pytest.mark.parametrize("when", ["cancelled", "has run", "runs", "closed", "cut"])
async def test_what_does_not_wait_cannot_be_rescheduled(virtual_clock, account, when):
    """Rescheduling a call that does not wait returns False, and changes neither its time nor the counts."""
    answers = []
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        handle = executor.call_later(1, lambda: answers.append(handle.reschedule(5)) if when == "runs" else None)
        if when == "cancelled":
            handle.cancel()
        elif when in ("has run", "runs"):
            await asyncio.sleep(3)
        elif when == "cut":
            executor.shutdown(cancel_pending=True)
        else:
            await executor.shutdown(cancel_pending=True)
        before = executor.statistics(), handle.when()
        assert not handle.reschedule(5)
        assert before == (executor.statistics(), handle.when())
        if when != "cut":
            account(executor)
    assert answers == ([False] if when == "runs" else [])
    with pytest.raises(ValueError, match="delay"):
        handle.reschedule(math.nan)


async def test_call_that_waits_for_a_permit_is_put_off(virtual_clock, account):
    """A due call that waits for a permit can be put off, and another one takes its permit."""
    calls = []
    async with RateLimitedExecutor("x", rate=1) as executor:
        handles = [executor.call_soon(lambda number=number: calls.append((number, now()))) for number in range(3)]
        await asyncio.sleep(0.5)
        assert [False, True, True] == [handle.reschedule(10) for handle in handles[:2]] + [handles[2].reschedule(0)]
        account(executor)
        await asyncio.sleep(0.6)
    assert [(0, 0), (2, 1), (1, 10.5)] == [(number, round(time, 6)) for number, time in calls]


async def test_call_is_put_off_while_a_large_bucket_is_ordered(virtual_clock, account):
    """Rescheduling does not disturb places that are being put in order or compacted."""
    calls = []
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.call_later(5.5 + number / 1e6, calls.append, number) for number in range(30_000)]
        for handle in handles[:20_000]:
            handle.cancel()  # the survivors are moved together in steps
        for handle in handles[20_000:25_000]:
            assert handle.reschedule(5.9)
        await asyncio.sleep(4.99)  # put in order ahead
        for handle in handles[25_000:29_000]:
            assert handle.reschedule(0.7)
        account(executor)
        await asyncio.sleep(0.6)
        assert [*range(29_000, 30_000)] == sorted(calls)
        account(executor)
        await asyncio.sleep(1)
    assert [*range(20_000, 30_000)] == sorted(calls)


async def test_context_goes_with_the_call(virtual_clock):
    """A rescheduled call keeps its own context, not that of its rescheduler."""
    seen = []
    async with RateLimitedExecutor("x") as executor:
        var.set("mine")
        first = executor.call_later(5, lambda: seen.append(var.get()))
        given = contextvars.copy_context()
        second = executor.call_later(5, lambda: (seen.append(var.get()), var.set("changed")), context=given)
        var.set("later")
        executor.call_later(7, int)
        first.reschedule(7)
        second.reschedule(1)
    assert ["mine", "mine"] == seen
    assert "changed" == given[var]


async def test_rescheduling_leaves_nothing_behind(virtual_clock):
    """A timer rescheduled a million times is one task, and its old places are freed."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        handle = executor.call_later(30, int)
        for number in range(20_000):
            assert handle.reschedule(30 + number % 40)
        gc.collect()
        buckets = executor._engine.queue.on_time.buckets()
        assert sum(len(bucket.calls) for bucket in buckets) < 40 * 200
        assert 1 == sum(bucket.live for bucket in buckets)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "soon", "-1s", None, [], 1j, object(), 10**400])
async def test_bad_delay_is_refused_by_name_and_changes_nothing(virtual_clock, value):
    """A bad delay is refused by name at the call, and the call keeps its time."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        handle = executor.call_later(5, int)
        with pytest.raises((TypeError, ValueError), match="delay"):
            handle.reschedule(value)
        assert (5, 1) == (handle.when(), executor.statistics().waiting)


async def test_refused_from_another_thread(virtual_clock):
    """Another thread may not reschedule: it would corrupt the columns."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        handle = executor.call_later(5, int)
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(handle.reschedule, 1)
        assert 5 == handle.when()


async def test_far_time_is_kept(virtual_clock):
    """A call can be rescheduled to a time beyond any bucket number in floats."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        handle = executor.call_later(5, int)
        assert handle.reschedule(1e300)
        assert handle.reschedule(1e308)
        assert 1e308 == handle.when()
        assert handle.reschedule(2)
        await asyncio.sleep(3)
        assert 1 == executor.statistics().done
