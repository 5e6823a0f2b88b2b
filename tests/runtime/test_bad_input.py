"""Bad input raises at the call, names the parameter and the remedy, and changes nothing."""

import asyncio
import math
import threading
from datetime import UTC, datetime, timedelta

import pytest

from ratelimited_executor import (
    BacklogFullError,
    ExecutorManager,
    ExecutorNotStartedError,
    ExecutorStoppedError,
    Paced,
    Rate,
    RateLimitedExecutor,
    RateLimitedExecutorError,
    StaticPeers,
    WrongLoopError,
)

NAN, INF = math.nan, math.inf


async def coroutine_function():
    """Do nothing."""


CALLS = [
    # (call, error, words of the message)
    (lambda e: e.schedule(int, delay=NAN), ValueError, "delay must be finite"),
    (lambda e: e.schedule(int, delay=INF), ValueError, "delay must be finite"),
    (lambda e: e.schedule(int, delay=-INF), ValueError, "delay must be finite"),
    (lambda e: e.schedule(int, delay=-1), ValueError, "delay must be >= 0"),
    (lambda e: e.schedule(int, delay=-1e-9), ValueError, "delay must be >= 0"),
    (lambda e: e.schedule(int, delay=timedelta(seconds=-1)), ValueError, "delay must be >= 0"),
    (lambda e: e.schedule(int, delay="1"), TypeError, "delay must be a number"),
    (lambda e: e.schedule(int, delay=True), TypeError, "delay must be a number"),
    (lambda e: e.schedule(int, delay=1, at=1), TypeError, "delay= or at="),
    (lambda e: e.schedule(int, at=NAN), ValueError, "at must be finite"),
    (lambda e: e.schedule(int, at=INF), ValueError, "at must be finite"),
    (lambda e: e.schedule(int, at=datetime(2024, 1, 1)), ValueError, "aware datetime.*add a tzinfo"),
    (lambda e: e.schedule(int, at="now"), TypeError, "at must be an aware datetime or epoch seconds"),
    (lambda e: e.schedule(int, priority=NAN), ValueError, "priority must be finite"),
    (lambda e: e.schedule(int, priority="high"), TypeError, "priority must be a number"),
    (lambda e: e.schedule(int, expires=-1), ValueError, "expires must be >= 0"),
    (lambda e: e.schedule(int, expires=NAN), ValueError, "expires must be finite"),
    (lambda e: e.schedule(int, run_timeout=0), ValueError, "run_timeout must be > 0"),
    (lambda e: e.schedule(int, name=5), TypeError, "name must be a str"),
    (lambda e: e.schedule(int, context={}), TypeError, "context must be a contextvars.Context"),
    (lambda e: e.schedule(int, timeout=1), TypeError, "expires=.*run_timeout=.*functools.partial"),
    (lambda e: e.schedule(int, base=2), TypeError, "unknown argument base=.*functools.partial"),
    (lambda e: e.submit(int, delay=2), TypeError, "unknown argument delay="),
    (lambda e: e.submit(int, timeout=2), TypeError, "expires=.*run_timeout="),
    (lambda e: e.schedule(None), TypeError, "fn must be a callable"),
    (lambda e: e.submit(3), TypeError, "fn must be a callable"),
    (lambda e: e.execute("x"), TypeError, "fn must be a callable"),
    (lambda e: e.schedule(coroutine_function()), TypeError, "got the coroutine .*uncalled"),
    (lambda e: e.call_later(1, coroutine_function()), TypeError, "callback must be a callable, got the coroutine"),
    (lambda e: e.call_later(NAN, int), ValueError, "delay must be finite"),
    (lambda e: e.call_later(INF, int), ValueError, "delay must be finite"),
    (lambda e: e.call_later("1", int), TypeError, "delay must be a number"),
    (lambda e: e.call_later(1, None), TypeError, "callback must be a callable"),
    (lambda e: e.call_later(1, int, context=3), TypeError, "context must be"),
    (lambda e: e.call_at(NAN, int), ValueError, "when must be finite"),
    (lambda e: e.call_at(-INF, int), ValueError, "when must be finite"),
    (lambda e: e.call_soon(5), TypeError, "callback must be a callable"),
    (lambda e: e.call_soon_threadsafe(5), TypeError, "callback must be a callable"),
    (lambda e: e.schedule_threadsafe(5), TypeError, "fn must be a callable"),
    (lambda e: e.schedule_many(5, [1]), TypeError, "fn must be a callable"),
    (lambda e: e.schedule_many(int, 5), TypeError, "items must be an iterable"),
    (lambda e: e.schedule_many(int, [1], delay=-1), ValueError, "delay must be >= 0"),
    (lambda e: e.schedule_many(int, [1], delay=1, over=2), TypeError, "one of delay=.*not delay and over"),
    (lambda e: e.schedule_many(int, [1, 2], delays=[1]), ValueError, "delays must be as many as the items, 2, got 1"),
    (lambda e: e.schedule_many(int, [1, 2], delays=[1, NAN]), ValueError, r"delays\[1\] must be finite"),
    (lambda e: e.schedule_many(int, [1, 2], delays=[-1, 0]), ValueError, r"delays\[0\] must be >= 0"),
    (lambda e: e.schedule_many(int, [1, 2], delays=["a", 0]), TypeError, "delays must be numbers"),
    (lambda e: e.schedule_many(int, iter([1]), delays=[1]), TypeError, "delays= needs items with a length"),
    (lambda e: e.schedule_many(int, iter([1]), over=1), ValueError, "over= needs items with a length, or count="),
    (lambda e: e.schedule_many(int, [1], count=2), ValueError, "count must be the number of items"),
    (lambda e: e.schedule_many(int, [1], over=INF), ValueError, "over must be finite"),
    (lambda e: e.schedule_many(int, [1], at=datetime(2024, 1, 1)), ValueError, "aware datetime"),
    (lambda e: e.schedule_many(int, [1], expires=-1), ValueError, "expires must be >= 0"),
    (lambda e: e.map(5, []), TypeError, "fn must be a callable"),
    (lambda e: e.map(int, 5), TypeError, "items must be an iterable"),
    (lambda e: e.map(int, [], limit=0), ValueError, "limit must be >= 1"),
    (lambda e: e.schedule_at_fixed_rate(int, period=0), ValueError, "period must be > 0"),
    (lambda e: e.schedule_at_fixed_rate(int, period=NAN), ValueError, "period must be finite"),
    (lambda e: e.schedule_at_fixed_rate(5, period=1), TypeError, "fn must be a callable"),
    (lambda e: e.schedule_at_fixed_rate(int, period=1, max_runs=0), ValueError, "max_runs must be >= 1"),
    (lambda e: e.schedule_at_fixed_rate(int, period=1, missed="skip"), TypeError, "missed must be a MissedTick"),
    (lambda e: e.schedule_at_fixed_rate(int, period=1, on_error="stop"), TypeError, "on_error must be an OnError"),
    (lambda e: e.schedule_at_fixed_rate(int, period=1, expires=-1), ValueError, "expires must be >= 0"),
    (lambda e: e.schedule_with_fixed_delay(int, delay=-1), ValueError, "delay must be >= 0"),
    (lambda e: e.schedule_cron("nonsense", int), ValueError, "cron expression"),
    (lambda e: e.schedule_cron(5, int), TypeError, "expression must be a str"),
    (lambda e: e.permit(expires=-1), ValueError, "expires must be >= 0"),
    (lambda e: e.permit(priority=INF), ValueError, "priority must be finite"),
    (lambda e: e.limited(int), TypeError, "async functions"),
    (lambda e: setattr(e, "rate", -1), ValueError, "rate must be"),
    (lambda e: setattr(e, "rate", NAN), ValueError, "rate must be"),
    (lambda e: setattr(e, "rate", None), TypeError, "rate must be"),
    (lambda e: setattr(e, "pacing", "spread"), TypeError, "pacing must be a Pacing"),
    (lambda e: setattr(e, "order", 5), TypeError, "order must be a callable"),
    (lambda e: setattr(e, "max_concurrency", -1), ValueError, "max_concurrency must be >= 0"),
    (lambda e: setattr(e, "max_concurrency", 1.5), TypeError, "max_concurrency must be an integer"),
    (lambda e: e.shutdown(timeout=-1), ValueError, "timeout must be >= 0"),
    (lambda e: e.as_futures_executor(max_workers=0), ValueError, "max_workers must be >= 1"),
]


@pytest.mark.parametrize(("call", "error", "words"), CALLS)
async def test_refused_call_names_the_parameter_and_changes_nothing(virtual_clock, account, call, error, words):
    """The error names what is wrong; counts, settings and timers are as before, and the executor works."""
    async with RateLimitedExecutor("x", rate=10) as executor:
        waiting = executor.schedule(int, delay=5)
        before = executor.statistics()
        with pytest.raises(error, match=words):
            call(executor)
        assert before == executor.statistics()
        assert not executor.is_shutdown
        account(executor)
        assert 0 == await executor.submit(int)
        assert 0 == await waiting
        assert 2 == executor.statistics().accepted


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: RateLimitedExecutor(""), TypeError, "name must be a str"),
        (lambda: RateLimitedExecutor(None), TypeError, "name must be a str"),
        (lambda: RateLimitedExecutor("x", rate=-1), ValueError, "rate must be"),
        (lambda: RateLimitedExecutor("x", rate="fast"), ValueError, "rate must look like"),
        (lambda: RateLimitedExecutor("x", pacing="spread"), TypeError, "pacing must be a Pacing"),
        (lambda: RateLimitedExecutor("x", policy=0.02), TypeError, "policy must be a Paced"),
        (lambda: RateLimitedExecutor("x", order=1), TypeError, "order must be a callable"),
        (lambda: RateLimitedExecutor("x", max_concurrency=-1), ValueError, "max_concurrency must be >= 0"),
        (lambda: RateLimitedExecutor("x", max_pending=0), ValueError, "max_pending must be >= 1"),
        (lambda: RateLimitedExecutor("x", when_full="raise"), TypeError, "when_full must be a WhenFull"),
        (lambda: RateLimitedExecutor("x", drain_timeout=-1), ValueError, "drain_timeout must be >= 0"),
        (lambda: RateLimitedExecutor("x", drain_timeout=NAN), ValueError, "drain_timeout must be finite"),
        (lambda: RateLimitedExecutor("x", max_threads=0), ValueError, "max_threads must be >= 1"),
        (lambda: ExecutorManager(interval=0), ValueError, "interval must be"),
        (lambda: ExecutorManager(interval=0.001), ValueError, "interval must be from 0.01 to 3600"),
        (lambda: ExecutorManager(interval=3601), ValueError, "interval must be from 0.01 to 3600"),
        (lambda: ExecutorManager(interval=NAN), ValueError, "interval must be finite"),
        (lambda: Paced(slack=-1), ValueError, "slack must be >= 0"),
        (lambda: StaticPeers(0, 0), ValueError, "n must be >= 1"),
        (lambda: StaticPeers(2, 2), ValueError, "rank must be from 0"),
        (lambda: StaticPeers(2.0, 0), TypeError, "n must be an integer"),
        (lambda: Rate(1, per=0), ValueError, "per must be"),
    ],
)
def test_constructors_refuse_bad_arguments_by_name(make, error, words):
    """What an executor or manager cannot be made with is refused when it is made."""
    with pytest.raises(error, match=words):
        make()


async def test_second_use_of_a_name_is_refused(virtual_clock):
    """Executors of a manager have names of their own; a closed one's may be used again."""
    async with ExecutorManager() as manager:
        first = manager.executor("mail")
        with pytest.raises(ValueError, match="name 'mail' is in use"):
            manager.executor("mail")
        with pytest.raises(ValueError, match="name 'mail' is in use"):
            RateLimitedExecutor("mail", manager=manager)
        assert {"mail": first} == manager.executors
        await first.aclose()
        assert 0 == await manager.executor("mail").submit(int)


@pytest.mark.parametrize("delay", [5e9, 1e12, 1e15, 1e18, 1e300, 1.7e308])
async def test_huge_times_are_taken_and_never_come(virtual_clock, account, delay):
    """A finite time beyond all clocks waits, and disturbs nothing."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        executor.call_later(delay, int)
        executor.call_at(delay, int)
        kept = executor.schedule(int, delay=delay, expires=delay)
        executor.schedule(int, at=delay)
        executor.schedule_many(int, [1, 2], delays=[delay, 1])
        executor.schedule_many(int, [1], at=delay)
        executor.schedule_many(int, [1, 2], over=delay)
        executor.schedule_at_fixed_rate(int, period=delay)
        executor.call_later(-delay, int)
        executor.call_at(-delay, int)
        executor.schedule(int, at=-delay)
        await asyncio.sleep(10)
        account(executor)
        executor.explain(kept)
        assert 6 == executor.statistics().done
        assert 10 == virtual_clock.monotonic()


async def test_use_before_the_start_is_refused(virtual_clock):
    """Before ``async with`` every call says so."""
    executor = RateLimitedExecutor("x")
    for call in (
        lambda: executor.submit(int),
        lambda: executor.call_later(1, int),
        lambda: executor.execute(int),
        lambda: executor.schedule_many(int, []),
        lambda: executor.permit(),
        lambda: executor.statistics(),
        lambda: executor.call_soon_threadsafe(int),
        lambda: executor.schedule_threadsafe(int),
        lambda: executor.map(int, []),
        lambda: executor.schedule_at_fixed_rate(int, period=1),
    ):
        with pytest.raises(ExecutorNotStartedError, match="async with"):
            call()
    async with executor:
        assert 0 == await executor.submit(int)
    manager = ExecutorManager()
    with pytest.raises(ExecutorNotStartedError):
        await manager.executor("y").start()


async def test_use_after_the_end_is_refused(virtual_clock):
    """After closing has begun nothing more is accepted, on any face, and nothing changes."""
    executor = RateLimitedExecutor("x")
    async with executor:
        await executor.submit(int)
    before = executor.statistics()
    for call in (
        lambda: executor.submit(int),
        lambda: executor.call_later(1, int),
        lambda: executor.execute(int),
        lambda: executor.schedule_many(int, []),
        lambda: executor.permit(),
        lambda: executor.map(int, []),
        lambda: executor.schedule_at_fixed_rate(int, period=1),
        lambda: executor.call_soon(int),
        lambda: executor.as_futures_executor(),
    ):
        with pytest.raises(ExecutorStoppedError, match="closed and accepts nothing more"):
            call()
    assert before == executor.statistics()


@pytest.mark.parametrize("kind", [RateLimitedExecutor, ExecutorManager])
async def test_restart_is_refused_with_a_clear_error(virtual_clock, kind):
    """Neither an open nor a closed one starts again."""
    thing = kind("x") if kind is RateLimitedExecutor else kind()
    async with thing:
        with pytest.raises(ExecutorStoppedError, match="make a new one"):
            await thing.start()
    with pytest.raises(ExecutorStoppedError, match="make a new one"):
        await thing.start()
    with pytest.raises(ExecutorStoppedError, match="make a new one"):
        async with thing:
            pass


async def test_use_from_another_thread_is_refused(virtual_clock):
    """From another thread a call raises, and names the ways in that are safe."""
    async with RateLimitedExecutor("x") as executor:
        errors = []

        def use():
            for call in (lambda: executor.submit(int), lambda: executor.call_later(1, int), lambda: executor.permit()):
                try:
                    call()
                except RateLimitedExecutorError as error:
                    errors.append(error)

        await asyncio.to_thread(use)
        assert 3 == len(errors)
        assert all(isinstance(error, WrongLoopError) for error in errors)
        assert "schedule_threadsafe() or call_soon_threadsafe()" in str(errors[0])
        assert 0 == executor.statistics().accepted


async def test_use_from_another_loop_is_refused(virtual_clock):
    """An executor belongs to the loop that it was started on."""
    async with RateLimitedExecutor("x") as executor:
        result = []

        def other():
            async def main():
                with pytest.raises(WrongLoopError):
                    executor.submit(int)
                result.append("refused")

            asyncio.run(main())

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert ["refused"] == result


@pytest.mark.parametrize("face", ["submit", "call_later", "execute", "many", "map", "permit", "call_soon", "fixed"])
async def test_full_executor_refuses_and_changes_nothing(virtual_clock, account, face):
    """With ``max_pending`` waiting, a call raises with the numbers, and accepts nothing."""
    async with RateLimitedExecutor("x", max_pending=3, rate=1) as executor:
        kept = [executor.schedule(int, delay=5) for _ in range(2)]
        with pytest.raises(BacklogFullError, match=r"refused 2 task\(s\): 2 wait already and max_pending is 3"):
            executor.schedule_many(int, [1, 2])
        kept.append(executor.schedule(int, delay=5))
        before = executor.statistics()
        with pytest.raises(BacklogFullError) as info:
            if face == "many":
                executor.schedule_many(int, [1])
            elif face == "map":
                async for _ in executor.map(int, [1]):
                    pass
            elif face == "permit":
                async with executor.permit():
                    pass
            elif face == "call_later":
                executor.call_later(1, int)
            elif face == "fixed":
                executor.schedule_at_fixed_rate(int, period=1)
            else:
                getattr(executor, face)(int)
        assert (3, 1, 3) == (info.value.waiting, info.value.asked, info.value.max_pending)
        assert before == executor.statistics()
        account(executor)
        kept[0].cancel()
        assert 0 == await executor.submit(int)


async def test_aware_datetime_and_timedelta_are_taken(virtual_clock):
    """Times may be given as what the standard library has for them."""
    async with RateLimitedExecutor("x") as executor:
        at = datetime.fromtimestamp(virtual_clock.wall() + 0.25, UTC)
        first = executor.schedule(int, at=at)
        second = executor.schedule(int, delay=timedelta(seconds=0.5), expires=timedelta(minutes=1))
        await asyncio.gather(first, second)
        assert at.timestamp() == first.due
        assert 0.5 == virtual_clock.monotonic()
