"""``expires=`` of an executor: the default of calls without one, and not for callbacks of the asyncio face."""

import asyncio
from datetime import timedelta

import pytest

from ratelimited_executor import RateLimitedExecutor, TaskExpiredError, TaskState

EXPIRED, DONE = TaskState.EXPIRED, TaskState.DONE


def paused(**options) -> RateLimitedExecutor:
    """An executor on which nothing starts, and on which a task may wait for five seconds."""
    executor = RateLimitedExecutor("x", drain_timeout=0, **{"expires": 5} | options)
    executor.pause()
    return executor


def permit(executor, **options) -> asyncio.Future:
    return asyncio.ensure_future(executor.acquire(**options))


async def drawn(executor, **options) -> list:
    return [result async for result in executor.map(int, [1], **options)]


CALLS = {
    "schedule": lambda e, **o: e.schedule(int, **o),
    "schedule delay": lambda e, **o: e.schedule(int, delay=0.5, **o),
    "schedule key": lambda e, **o: e.schedule(int, key="a", **o),
    "submit": lambda e, **o: e.submit(int, **o),
    "schedule_many": lambda e, **o: e.schedule_many(int, [1, 2], **o),
    "schedule_many lazy": lambda e, **o: e.schedule_many(int, iter([1, 2]), **o),
    "map": lambda e, **o: asyncio.ensure_future(drawn(e, **o)),
    "acquire": permit,
    "fixed rate": lambda e, **o: e.schedule_at_fixed_rate(int, period=60, **o),
    "fixed delay": lambda e, **o: e.schedule_with_fixed_delay(int, delay=60, **o),
    "threadsafe": lambda e, **o: e.schedule_threadsafe(int, **o),
}
WITHOUT_OPTIONS = {
    "execute": lambda e: e.execute(int),
    "invoke_all": lambda e: asyncio.ensure_future(e.invoke_all([int])),
    "futures face": lambda e: e.as_futures_executor().submit(int),
}


async def expired_by(executor, call, *, seconds: float) -> int:
    """Make a call, and return the number of tasks expired after a number of seconds."""
    outcome = call()
    if isinstance(outcome, asyncio.Future):
        outcome.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await asyncio.sleep(seconds)
    return executor.statistics().expired


@pytest.mark.parametrize("what", [*CALLS, *WITHOUT_OPTIONS])
async def test_default_holds_where_a_call_says_nothing(virtual_clock, account, what):
    """Tasks of every method expire within an interval after the executor's ``expires``, and not before."""
    call = CALLS.get(what) or WITHOUT_OPTIONS[what]
    async with paused() as executor:
        assert 0 == await expired_by(executor, lambda: call(executor), seconds=4.5)
        await asyncio.sleep(3)
        assert executor.statistics().expired > 0
        account(executor)


@pytest.mark.parametrize("what", CALLS)
async def test_call_overrides_the_default(virtual_clock, what):
    """A call may set a shorter time, a longer one, or None for never."""
    async with paused() as executor:
        assert 0 < await expired_by(executor, lambda: CALLS[what](executor, expires=1), seconds=4)
    async with paused() as executor:
        assert 0 == await expired_by(executor, lambda: CALLS[what](executor, expires=60), seconds=30)
    async with paused() as executor:
        assert 0 == await expired_by(executor, lambda: CALLS[what](executor, expires=None), seconds=3600)


async def test_callbacks_of_the_asyncio_face_never_expire(virtual_clock):
    """Callbacks of the asyncio face run late, like those of a busy event loop, and never expire."""
    log = []
    async with paused() as executor:
        executor.call_later(1, log.append, "later")
        executor.call_soon(log.append, "soon")
        executor.call_at(executor._engine.loop.time() + 2, log.append, "at")
        await asyncio.sleep(100)
        executor.resume()
        await asyncio.sleep(1)
    assert ["at", "later", "soon"] == sorted(log)


async def test_keys_of_a_cycle_never_expire(virtual_clock):
    """Keys of a cycle never expire: each runs once in each cycle, also after a pause."""
    from ratelimited_executor.cycles import MemoryProgress

    seen = []
    async with paused(expires=0.5) as executor:
        executor.every(
            cycle=256,
            buckets=256,
            keys=lambda slot: [slot],
            slot_of=int,
            fn=seen.append,
            progress=MemoryProgress(),
            catch_up=False,
        )
        await asyncio.sleep(8)
        executor.resume()
        await asyncio.sleep(8)
        assert 0 == executor.statistics().expired
    assert len(seen) > 8


async def test_setting_counts_for_what_is_scheduled_from_then_on(virtual_clock):
    """A new setting applies to tasks scheduled after it; waiting ones keep their deadlines."""
    async with paused(expires=timedelta(seconds=2)) as executor:
        assert 2.0 == executor.expires
        before = executor.submit(int)
        executor.expires = None
        assert executor.expires is None
        never = executor.submit(int)
        executor.expires = 20
        after = executor.submit(int)
        await asyncio.sleep(5)
        assert [EXPIRED, TaskState.WAITING, TaskState.WAITING] == [h.state for h in (before, never, after)]
        await asyncio.sleep(20)
        assert [TaskState.WAITING, EXPIRED] == [h.state for h in (never, after)]
        executor.resume()
        assert 0 == await never


async def test_repeating_task_goes_on_after_a_run_that_expired(virtual_clock):
    """A repetition continues after an expired run, and the next run uses the setting then in force."""
    async with paused(expires=2) as executor:
        every = executor.schedule_at_fixed_rate(int, period=10)
        await asyncio.sleep(5)
        assert (1, 0) == (executor.statistics().expired, every.run_count)
        executor.expires = None
        executor.resume()
        await asyncio.sleep(10)
        assert (1, 1) == (executor.statistics().expired, every.run_count)


async def test_error_names_the_default(virtual_clock):
    """The message and the attribute of the error have the seconds in force."""
    async with RateLimitedExecutor("x", rate=1, expires=0.5) as executor:
        handles = [executor.submit(int) for _ in range(3)]
        await asyncio.wait(handles)
    assert [DONE, EXPIRED, EXPIRED] == [handle.state for handle in handles]
    with pytest.raises(TaskExpiredError, match="within 0.5 s of its due time") as info:
        handles[1].result()
    assert 0.5 == info.value.expires


async def test_execute_with_a_default_reports_failures_and_is_not_tried_again(virtual_clock, handler):
    """``execute`` with a default reports a failure, and is not retried even if it would be with a handle."""
    from ratelimited_executor import RetryLater

    def fails():
        raise RetryLater

    reports = handler()
    async with RateLimitedExecutor("x", expires=5) as executor:
        executor.execute(fails)
        await asyncio.sleep(1)
        assert (1, 0) == (executor.statistics().failed, executor.statistics().retried)
    assert [RetryLater] == [type(report["exception"]) for report in reports]
