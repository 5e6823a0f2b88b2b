"""Every numeric, text and callable argument of every method, with every bad value: refused by name, with the remedy."""

import asyncio
import concurrent.futures
import contextvars
import gc
import math
import threading
import warnings
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
import pytz

from ratelimited_executor import (
    BacklogFullError,
    Burst,
    ExecutorManager,
    ExecutorStoppedError,
    Paced,
    Rate,
    RateLimitedExecutor,
    RateLimitedExecutorError,
    Window,
)
from ratelimited_executor._runtime.arguments import tz_of
from ratelimited_executor.exceptions import ExecutorNotStartedError, WrongLoopError
from ratelimited_executor.peers import StaticPeers
from ratelimited_executor.policies import Quota

NAN, INF = math.nan, math.inf
NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001  # that is the mistake
NO_NUMBERS = (NAN, INF, -INF, True, False, "1", b"1", [], object(), 1j)
NO_TEXTS = (
    "",
    "soon",
    "1x",
    "1h30",
    "30m1h",
    "1h1h",
    "-1",
    "-1s",
    "1e3",
    "1_000",
    "nan",
    "inf",
    "1 week",
    "9" * 400,
)  # of a span
NO_SPANS = (
    *(each for each in NO_NUMBERS if each != "1"),
    *NO_TEXTS,
    NAIVE,
    -1,
    -1e-9,
    -(10**400),
    10**400,
    timedelta(seconds=-1),
    Decimal("-1"),
    Decimal("NaN"),
)
NO_COSTS = (NAN, 0, -1, 1.5, True, "1", None, {"x": 1}, {"permits": 0})
NO_COUNTS = (NAN, INF, -1, 1.0, 1.5, True, "1", Decimal(1), timedelta(1))


async def work():
    """Do nothing."""


def fails_later(executor, **options):
    """Have a check that needs an await made by the call, too."""
    return asyncio.ensure_future(executor.acquire(**options))


# What takes it, the name, bad values. None stands for "not given" wherever it is the default.
MATRIX = {
    "schedule delay": (lambda e, v: e.schedule(int, delay=v), "delay", NO_SPANS),
    "schedule at": (lambda e, v: e.schedule(int, at=v), "at", (*NO_NUMBERS, NAIVE, 10**400, timedelta(1))),
    "schedule priority": (
        lambda e, v: e.schedule(int, priority=v),
        "priority",
        (NAN, INF, -INF, "1", None, [], 10**400),
    ),
    "schedule expires": (lambda e, v: e.schedule(int, expires=v), "expires", NO_SPANS),
    "schedule run_timeout": (lambda e, v: e.schedule(int, run_timeout=v), "run_timeout", (*NO_SPANS, 0, timedelta())),
    "schedule deadline": (lambda e, v: e.schedule(int, deadline=v), "deadline", (*NO_SPANS, 0, timedelta())),
    "submit deadline": (lambda e, v: e.submit(int, deadline=v), "deadline", (*NO_SPANS, 0)),
    "schedule name": (lambda e, v: e.schedule(int, name=v), "name", (1, b"x", [], object())),
    "schedule context": (lambda e, v: e.schedule(int, context=v), "context", (1, "x", {}, contextvars.Context)),
    "submit priority": (lambda e, v: e.submit(int, priority=v), "priority", (NAN, INF, "1", None)),
    "submit expires": (lambda e, v: e.submit(int, expires=v), "expires", NO_SPANS),
    "submit run_timeout": (lambda e, v: e.submit(int, run_timeout=v), "run_timeout", (*NO_SPANS, 0)),
    "call_later delay": (
        lambda e, v: e.call_later(v, int),
        "delay",
        (NAN, INF, -INF, "1", None, [], 1j, NAIVE, 10**400),
    ),
    "call_later context": (lambda e, v: e.call_later(1, int, context=v), "context", (1, "x", {})),
    "call_at when": (lambda e, v: e.call_at(v, int), "when", (NAN, INF, -INF, "1", None, [], 1j, NAIVE, 10**400)),
    "call_at context": (lambda e, v: e.call_at(1, int, context=v), "context", (1, "x", {})),
    "call_soon context": (lambda e, v: e.call_soon(int, context=v), "context", (1, "x", {})),
    "schedule_many delay": (lambda e, v: e.schedule_many(int, [1], delay=v), "delay", NO_SPANS),
    "schedule_many at": (lambda e, v: e.schedule_many(int, [1], at=v), "at", (*NO_NUMBERS, NAIVE)),
    "schedule_many over": (lambda e, v: e.schedule_many(int, [1], over=v), "over", NO_SPANS),
    "schedule_many delays": (
        lambda e, v: e.schedule_many(int, [1], delays=v),
        "delays",
        (1, "a", ["1"], [None], [1, 2], [NAN]),
    ),
    "schedule_many delays of any kind": (
        lambda e, v: e.schedule_many(int, [1, 2], delays=[0, v]),
        "delays",
        (NAN, INF, -INF, -1, -1e-9, "1", None, 10**400),
    ),
    "schedule_many count": (lambda e, v: e.schedule_many(int, iter([1]), count=v), "count", NO_COUNTS),
    "schedule_many priority": (lambda e, v: e.schedule_many(int, [1], priority=v), "priority", (NAN, INF, "1", None)),
    "schedule_many expires": (lambda e, v: e.schedule_many(int, [1], expires=v), "expires", NO_SPANS),
    "schedule_many name": (lambda e, v: e.schedule_many(int, [1], name=v), "name", (1, b"x", [])),
    "schedule_many context": (lambda e, v: e.schedule_many(int, [1], context=v), "context", (1, "x", {})),
    "schedule_many items": (lambda e, v: e.schedule_many(int, v), "items", (1, None, work, int)),
    "map items": (lambda e, v: e.map(int, v), "items", (1, None, work, int)),
    "map limit": (lambda e, v: e.map(int, [1], limit=v), "limit", (*NO_COUNTS, 0, None)),
    "map key": (lambda e, v: e.map(int, [1], key=v), "key", ([], {}, set())),
    "map cost": (lambda e, v: e.map(int, [1], cost=v), "cost", NO_COSTS),
    "fixed rate key": (lambda e, v: e.schedule_at_fixed_rate(int, period=1, key=v), "key", ([], {})),
    "fixed rate cost": (lambda e, v: e.schedule_at_fixed_rate(int, period=1, cost=v), "cost", NO_COSTS),
    "fixed delay cost": (lambda e, v: e.schedule_with_fixed_delay(int, delay=1, cost=v), "cost", NO_COSTS),
    "cron cost": (lambda e, v: e.schedule_cron("* * * * *", int, cost=v), "cost", NO_COSTS),
    "limited priority": (lambda e, v: e.limited(priority=v), "priority", (NAN, INF, "1", None)),
    "limited expires": (lambda e, v: e.limited(expires=v), "expires", NO_SPANS),
    "limited name": (lambda e, v: e.limited(name=v), "name", (1, b"x", [1])),
    "limited key": (lambda e, v: e.limited(key=v), "key", ([], {})),
    "limited fn with arguments": (lambda e, v: e.limited(key=1)(v), "", (int, None, "x", 5)),
    "map expires": (lambda e, v: e.map(int, [1], expires=v), "expires", NO_SPANS),
    "map priority": (lambda e, v: e.map(int, [1], priority=v), "priority", (NAN, INF, "1", None)),
    "fixed rate period": (lambda e, v: e.schedule_at_fixed_rate(int, period=v), "period", (*NO_SPANS, 0, None)),
    "fixed rate initial_delay": (
        lambda e, v: e.schedule_at_fixed_rate(int, period=1, initial_delay=v),
        "initial_delay",
        (*NO_SPANS, None),
    ),
    "fixed rate missed": (lambda e, v: e.schedule_at_fixed_rate(int, period=1, missed=v), "missed", ("skip", None, 1)),
    "fixed rate on_error": (
        lambda e, v: e.schedule_at_fixed_rate(int, period=1, on_error=v),
        "on_error",
        ("stop", None),
    ),
    "fixed rate max_runs": (
        lambda e, v: e.schedule_at_fixed_rate(int, period=1, max_runs=v),
        "max_runs",
        (*NO_COUNTS, 0),
    ),
    "fixed rate priority": (
        lambda e, v: e.schedule_at_fixed_rate(int, period=1, priority=v),
        "priority",
        (NAN, INF, "1", None),
    ),
    "fixed rate expires": (lambda e, v: e.schedule_at_fixed_rate(int, period=1, expires=v), "expires", NO_SPANS),
    "fixed rate run_timeout": (
        lambda e, v: e.schedule_at_fixed_rate(int, period=1, run_timeout=v),
        "run_timeout",
        (*NO_SPANS, 0),
    ),
    "fixed rate name": (lambda e, v: e.schedule_at_fixed_rate(int, period=1, name=v), "name", (1, b"x", [1])),
    "fixed delay delay": (lambda e, v: e.schedule_with_fixed_delay(int, delay=v), "delay", (*NO_SPANS, None)),
    "fixed delay initial_delay": (
        lambda e, v: e.schedule_with_fixed_delay(int, delay=1, initial_delay=v),
        "initial_delay",
        (*NO_SPANS, None),
    ),
    "fixed delay max_runs": (
        lambda e, v: e.schedule_with_fixed_delay(int, delay=1, max_runs=v),
        "max_runs",
        (*NO_COUNTS, 0),
    ),
    "cron expression": (
        lambda e, v: e.schedule_cron(v, int),
        "expression",
        ("", "* * * *", "60 * * * *", "x", None, 5, int, "@hourlyy", "* * * * * *"),
    ),
    "cron tz": (
        lambda e, v: e.schedule_cron("* * * * *", int, tz=v),
        "tz",
        ("Europe/Nowhere", "../etc/passwd", 1, 0, "", object()),
    ),
    "cron missed": (lambda e, v: e.schedule_cron("* * * * *", int, missed=v), "missed", ("skip", None)),
    "cron max_runs": (lambda e, v: e.schedule_cron("* * * * *", int, max_runs=v), "max_runs", (*NO_COUNTS, 0)),
    "permit priority": (lambda e, v: e.permit(priority=v), "priority", (NAN, INF, "1", None)),
    "permit expires": (lambda e, v: e.permit(expires=v), "expires", NO_SPANS),
    "permit name": (lambda e, v: e.permit(name=v), "name", (1, b"x", [1])),
    "acquire_nowait priority": (lambda e, v: e.acquire_nowait(priority=v), "priority", (NAN, INF, "1", None)),
    "acquire_nowait name": (lambda e, v: e.acquire_nowait(name=v), "name", (1, b"x", [1])),
    "acquire_nowait cost": (lambda e, v: e.acquire_nowait(cost=v), "cost", NO_COSTS),
    "acquire_nowait key": (lambda e, v: e.acquire_nowait(key=v), "key", ([], {})),
    "limited fn": (lambda e, v: e.limited(v), "", (int, None, "x", 5)),
    "shutdown timeout": (lambda e, v: e.shutdown(timeout=v), "timeout", NO_SPANS),
    "as_futures_executor max_workers": (lambda e, v: e.as_futures_executor(v), "max_workers", (*NO_COUNTS, 0)),
    "waiting_tasks limit": (lambda e, v: e.waiting_tasks(v), "limit", (*NO_COUNTS,)),
    "call_threadsafe method": (lambda e, v: e.call_threadsafe(v), "method", (None, 1, "x", object())),
    "explain handle": (lambda e, v: e.explain(v), "handle", (None, 1, "x", object())),
    "rate": (
        lambda e, v: setattr(e, "rate", v),
        "rate",
        (NAN, -INF, -1, True, None, [], "", "1 1", "1/x", "-1/s", "-1", "nan", Decimal("NaN")),
    ),
    "pacing": (lambda e, v: setattr(e, "pacing", v), "pacing", ("spread", None, 1)),
    "order": (lambda e, v: setattr(e, "order", v), "order", (None, 1, "x")),
    "max_concurrency": (lambda e, v: setattr(e, "max_concurrency", v), "max_concurrency", NO_COUNTS),
    "expires": (lambda e, v: setattr(e, "expires", v), "expires", NO_SPANS),
}
AWAITED = {
    "acquire priority": (lambda e, v: e.acquire(priority=v), "priority", (NAN, INF, "1", None)),
    "acquire expires": (lambda e, v: e.acquire(expires=v), "expires", NO_SPANS),
    "invoke_all timeout": (lambda e, v: e.invoke_all([int], timeout=v), "timeout", NO_SPANS),
    "invoke_any timeout": (lambda e, v: e.invoke_any([int], timeout=v), "timeout", NO_SPANS),
    "invoke_all calls": (lambda e, v: e.invoke_all(v), "calls", ([1], [int, None], ["x"], [int, 5], 5, None)),
    "invoke_any calls": (lambda e, v: e.invoke_any(v), "calls", ([1], [int, None], ["x"], [], 5, None)),
    "await_termination timeout": (lambda e, v: e.await_termination(v), "timeout", NO_SPANS),
}
CALLABLES = {
    "schedule": lambda e, fn: e.schedule(fn, delay=1),
    "submit": lambda e, fn: e.submit(fn),
    "execute": lambda e, fn: e.execute(fn),
    "schedule_threadsafe": lambda e, fn: e.schedule_threadsafe(fn),
    "schedule_many": lambda e, fn: e.schedule_many(fn, [1]),
    "map": lambda e, fn: e.map(fn, [1]),
    "call_soon": lambda e, fn: e.call_soon(fn),
    "call_soon_threadsafe": lambda e, fn: e.call_soon_threadsafe(fn),
    "call_later": lambda e, fn: e.call_later(1, fn),
    "call_later 0": lambda e, fn: e.call_later(0, fn),
    "call_at": lambda e, fn: e.call_at(1, fn),
    "fixed rate": lambda e, fn: e.schedule_at_fixed_rate(fn, period=1),
    "fixed delay": lambda e, fn: e.schedule_with_fixed_delay(fn, delay=1),
    "cron": lambda e, fn: e.schedule_cron("* * * * *", fn),
    "futures face": lambda e, fn: e.as_futures_executor().submit(fn),
}


def unchanged(executor, call) -> tuple[object, object]:
    """Make a call that fails; return statistics and settings before and after it."""

    def look():
        return (
            executor.statistics(),
            executor.rate,
            executor.pacing,
            executor.order,
            executor.max_concurrency,
            executor.expires,
            executor.is_shutdown,
            repr(executor),
            executor._engine.armed,
            len(executor._engine.accounts.feeders),
            len(executor._repeating),
            len(executor._engine.queue.expiry._places) if hasattr(executor._engine.queue.expiry, "_places") else 0,
        )

    before = look()
    call()
    return before, look()


@pytest.mark.parametrize("what", MATRIX)
async def test_bad_value_is_refused_by_name_and_changes_nothing(virtual_clock, what):
    """A wrong type is a TypeError, a wrong value a ValueError that names the parameter; nothing changes."""
    call, name, values = MATRIX[what]
    async with RateLimitedExecutor("x", rate=10, drain_timeout=0) as executor:
        executor.schedule(int, delay=5)
        for value in values:

            def refused(value=value):
                with pytest.raises((TypeError, ValueError)) as info:
                    call(executor, value)
                assert type(info.value) in (TypeError, ValueError), value
                assert name in str(info.value), (value, str(info.value))

            before, after = unchanged(executor, refused)
            assert before == after, value


@pytest.mark.parametrize("what", AWAITED)
async def test_bad_value_of_an_async_method_is_refused_by_name_and_changes_nothing(virtual_clock, what):
    """Async methods refuse bad values in the same way."""
    call, name, values = AWAITED[what]
    async with RateLimitedExecutor("x", rate=10, drain_timeout=0) as executor:
        executor.schedule(int, delay=5)
        for value in values:
            before = executor.statistics()
            with pytest.raises((TypeError, ValueError)) as info:
                await call(executor, value)
            assert type(info.value) in (TypeError, ValueError), value
            assert name in str(info.value), (value, str(info.value))
            assert before == executor.statistics(), value


@pytest.mark.parametrize("what", CALLABLES)
async def test_what_cannot_be_called_is_refused_and_changes_nothing(virtual_clock, what):
    """None, text and other objects that cannot be called are a TypeError that names the parameter."""
    async with RateLimitedExecutor("x", rate=10, drain_timeout=0) as executor:
        for value in (None, 5, "int", [], object(), NotImplemented):

            def refused(value=value):
                with pytest.raises(TypeError, match=r"(fn|callback) must be a callable"):
                    CALLABLES[what](executor, value)

            before, after = unchanged(executor, refused)
            assert before == after, value


@pytest.mark.parametrize("what", CALLABLES)
async def test_coroutine_object_is_refused_without_a_second_complaint(virtual_clock, what):
    """A coroutine object is a TypeError with the remedy, without a warning that it was never awaited."""
    async with RateLimitedExecutor("x", rate=10, drain_timeout=0) as executor:
        before = executor.statistics()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(TypeError, match=r"(fn|callback) must be a callable, got the coroutine .* uncalled"):
                CALLABLES[what](executor, work())
            gc.collect()
        assert before == executor.statistics()


@pytest.mark.parametrize("what", ["invoke_all", "invoke_any"])
async def test_coroutine_objects_among_calls_are_refused_without_a_second_complaint(virtual_clock, what):
    """A list of calls with coroutine objects in it is refused, and none of its calls starts."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(TypeError, match="calls must be a callable, got the coroutine"):
                await getattr(executor, what)([int, work()])
            gc.collect()
        assert 0 == executor.statistics().accepted


@pytest.mark.parametrize("method", ["schedule", "submit"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 1}, ("expires=", "run_timeout=", "functools.partial")),
        ({"timeout": None}, ("expires=", "run_timeout=", "functools.partial")),
        ({"timeout": 1, "base": 2}, ("expires=", "run_timeout=", "functools.partial")),
        ({"base": 2}, ("base=", "functools.partial")),
        ({"prio": 2, "dealy": 3}, ("prio=", "dealy=", "functools.partial")),
    ],
)
async def test_unknown_keyword_is_refused_with_the_remedy(virtual_clock, method, options, words):
    """Unknown keyword arguments are refused: those of the function belong in a partial."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        with pytest.raises(TypeError) as info:
            getattr(executor, method)(int, **options)
        assert all(word in str(info.value) for word in words), str(info.value)
        assert 0 == executor.statistics().accepted


async def test_bad_options_from_another_thread_are_in_the_future(virtual_clock):
    """The future of ``schedule_threadsafe`` raises the error that ``schedule`` would raise."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        for options, error, words in (
            ({"delay": -1}, ValueError, "delay"),
            ({"timeout": 1}, TypeError, "run_timeout="),
            ({"at": NAIVE}, ValueError, "at must be"),
        ):
            with pytest.raises(error, match=words):
                await asyncio.wrap_future(executor.schedule_threadsafe(int, **options))
        assert 0 == executor.statistics().accepted


CONSTRUCTOR = {
    "name": (1, b"x", "", None, [], object(), "tenant\ud800"),
    "rate": (NAN, -INF, -1, True, None, [], "", "-1", "1/fortnight", "5/month"),
    "pacing": ("spread", None, 1),
    "policy": (None, 0.02, "paced", Paced, Window, Burst),
    "order": (None, 1),
    "max_concurrency": NO_COUNTS,
    "max_pending": (*NO_COUNTS, 0),
    "when_full": ("raise", None),
    "expires": NO_SPANS,
    "drain_timeout": NO_SPANS,
    "max_threads": (*NO_COUNTS, 0),
    "thread_pool": (1, "x", object(), map, concurrent.futures.ThreadPoolExecutor),
    "manager": (1, "x", object(), ExecutorManager),
}


@pytest.mark.parametrize("name", CONSTRUCTOR)
async def test_bad_argument_of_the_constructor_is_refused_by_name(virtual_clock, name):
    """A bad argument creates no executor, and the manager does not register one."""
    async with ExecutorManager() as manager:
        for value in CONSTRUCTOR[name]:
            options = {"name": "x", "manager": manager} | {name: value}
            with pytest.raises((TypeError, ValueError)) as info:
                RateLimitedExecutor(**options)
            assert name in str(info.value), (value, str(info.value))
            assert {} == manager.executors, value


@pytest.mark.parametrize("value", [*NO_SPANS, 0, 0.009, 3600.1, 1e300, None])
def test_bad_interval_of_a_manager_is_refused_by_name(value):
    """An interval is a number from 0.01 to 3600 seconds."""
    with pytest.raises((TypeError, ValueError), match="interval"):
        ExecutorManager(interval=value)


@pytest.mark.parametrize("peers", [2, "x", object(), (2, 0)])
def test_bad_peers_of_a_manager_are_refused_by_name(peers):
    """Peers without count and rank are refused at once, not when the first executor starts."""
    with pytest.raises(TypeError, match="peers"):
        ExecutorManager(peers=peers)


@pytest.mark.parametrize("clock", [2, "x", object(), math])
def test_bad_clock_of_a_manager_is_refused_by_name(clock):
    """A clock that cannot be read is refused at once."""
    with pytest.raises(TypeError, match="clock"):
        ExecutorManager(clock=clock)


@pytest.mark.parametrize(
    ("permits", "per", "name"),
    [
        (NAN, 1, "permits"), (-1, 1, "permits"), ("1", 1, "permits"), (None, 1, "permits"), (True, 1, "permits"),
        (-INF, 1, "permits"), (1, 0, "per"), (1, -1, "per"), (1, INF, "per"), (1, NAN, "per"), (1, None, "per"), (1, "s", "per"),
    ],
)  # fmt: skip
def test_bad_part_of_a_rate_is_refused_by_name(permits, per, name):
    """The permits of a rate may be 0 or infinite, its seconds may not."""
    with pytest.raises((TypeError, ValueError), match=name):
        Rate(permits, per=per)


@pytest.mark.parametrize("slack", NO_SPANS)
def test_bad_slack_is_refused_by_name(slack):
    """A policy checks its slack when it is created."""
    with pytest.raises((TypeError, ValueError), match="slack"):
        Paced(slack=slack)


# From the wrong place.


FROM_THE_LOOP_ONLY = {
    **CALLABLES,
    "permit": lambda e, fn: e.permit(),
    "rate": lambda e, fn: setattr(e, "rate", 5),
    "pacing": lambda e, fn: setattr(e, "pacing", e.pacing),
    "order": lambda e, fn: setattr(e, "order", e.order),
    "max_concurrency": lambda e, fn: setattr(e, "max_concurrency", 1),
    "pause": lambda e, fn: e.pause(),
    "resume": lambda e, fn: e.resume(),
    "shutdown": lambda e, fn: e.shutdown(),
}


for safe in ("schedule_threadsafe", "call_soon_threadsafe", "futures face"):
    del FROM_THE_LOOP_ONLY[safe]


@pytest.mark.parametrize("what", FROM_THE_LOOP_ONLY)
async def test_call_from_another_thread_is_refused_and_changes_nothing(virtual_clock, what):
    """Calls from another thread are refused, also settings and ``shutdown``, which would wake the loop."""
    async with RateLimitedExecutor("x", rate=10, drain_timeout=0) as executor:
        errors = []

        def use():
            try:
                FROM_THE_LOOP_ONLY[what](executor, int)
            except Exception as error:  # noqa: BLE001  # looked at below
                errors.append(error)

        def in_a_thread():
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()

        before, after = unchanged(executor, in_a_thread)
        assert [WrongLoopError] == list(map(type, errors))
        assert "x" in str(errors[0])
        assert "schedule_threadsafe()" in str(errors[0])
        assert before == after
        assert not executor.is_paused


async def test_statistics_may_be_read_from_another_thread(virtual_clock):
    """Another thread may read the statistics directly."""
    async with RateLimitedExecutor("x", rate=10, drain_timeout=0) as executor:
        executor.schedule(int, delay=5)
        counts = await asyncio.to_thread(executor.statistics)
        assert 1 == counts.waiting
        assert 0 == await asyncio.to_thread(executor.backlog_seconds)
        assert "waiting=1" in await asyncio.to_thread(repr, executor)


def test_settings_may_be_made_before_the_start():
    """Settings made before the start, outside any loop, hold after it."""
    executor = RateLimitedExecutor("x")
    executor.rate, executor.max_concurrency = "5/s", 3
    executor.pause()
    assert (Rate(5), 3, True) == (executor.rate, executor.max_concurrency, executor.is_paused)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"policy": Paced}, TypeError, r"got the class Paced: write Paced\(\)"),
        ({"policy": Window}, TypeError, r"got the class Window: write Window\(\)"),
        ({"policy": Burst}, TypeError, r"got the class Burst: write Burst\(n\)"),
        ({"rate": "5/month"}, ValueError, "write '5 per month' for a quota"),
        ({"rate": "5/weeks"}, ValueError, "write '5 per week' for a quota"),
        (
            {"rate": "5/fortnight"},
            ValueError,
            "must look like '100/s'.* got '5/fortnight': the units are ms, s, min, h, day$",
        ),
    ],
    ids=str,
)
async def test_common_mistakes_name_their_remedy(virtual_clock, options, error, words):
    """Common mistakes, such as a class in place of an object, are refused with the remedy."""
    with pytest.raises(error, match=words):
        RateLimitedExecutor("x", **options)


# What is refused changes nothing.


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
    (lambda e: e.schedule(int, delay="soon"), ValueError, "delay: a duration looks like 90, 10m or 1h30m"),
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
    (
        lambda e: e.schedule_many(int, [1, 2], delays=[1]),
        ValueError,
        "delays must have one entry for each of the 2 items, got 1",
    ),
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
    """A refused call changes no counts, settings or timers, and the executor still works."""
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
        (lambda: RateLimitedExecutor("x", retries=3), TypeError, "unknown argument retries=: use retry=Retry"),
        (lambda: ExecutorManager().executor("x", weight=3), TypeError, "unknown argument weight=: use key= and"),
        (lambda: RateLimitedExecutor("x", base=3), TypeError, "unknown argument base= of an executor"),
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
    """Constructors refuse bad arguments by name."""
    with pytest.raises(error, match=words):
        make()


async def test_second_use_of_a_name_is_refused(virtual_clock):
    """Names of a manager's executors are unique; the name of a closed one may be used again."""
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
    """A finite time beyond all clocks is accepted, waits, and disturbs nothing."""
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
    """Every call before ``async with`` is refused with this reason."""
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
        with pytest.raises(ExecutorNotStartedError, match="enter it, or its manager, with 'async with'"):
            call()
    async with executor:
        assert 0 == await executor.submit(int)
    manager = ExecutorManager()
    with pytest.raises(ExecutorNotStartedError):
        await manager.executor("y").start()


async def test_use_after_the_end_is_refused(virtual_clock):
    """Once closing has begun, every face refuses new tasks, and nothing changes."""
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
    """Neither an open nor a closed executor can be started again."""
    thing = kind("x") if kind is RateLimitedExecutor else kind()
    async with thing:
        with pytest.raises(ExecutorStoppedError, match="create a new one"):
            await thing.start()
    with pytest.raises(ExecutorStoppedError, match="create a new one"):
        await thing.start()
    with pytest.raises(ExecutorStoppedError, match="create a new one"):
        async with thing:
            pass


async def test_use_from_another_thread_is_refused(virtual_clock):
    """A call from another thread raises, and names the thread-safe methods."""
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
    """An executor belongs to the loop on which it was started."""
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
    """With ``max_pending`` tasks waiting, a call raises with the numbers, and accepts nothing."""
    async with RateLimitedExecutor("x", max_pending=3, rate=1) as executor:
        kept = [executor.schedule(int, delay=5) for _ in range(2)]
        with pytest.raises(BacklogFullError, match=r"refused 2 task\(s\): 2 are already waiting and max_pending is 3"):
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
    """Times may be aware datetimes and timedeltas."""
    async with RateLimitedExecutor("x") as executor:
        at = datetime.fromtimestamp(virtual_clock.wall() + 0.25, UTC)
        first = executor.schedule(int, at=at)
        second = executor.schedule(int, delay=timedelta(seconds=0.5), expires=timedelta(minutes=1))
        await asyncio.gather(first, second)
        assert at.timestamp() == first.due
        assert 0.5 == virtual_clock.monotonic()


@pytest.mark.parametrize("rate", ["1,000/s", "10,000 per day UTC", ["1,000/s", "5/min"]])
def test_comma_inside_a_number_is_refused(rate):
    """A comma in a number is refused: commas separate rates, so "1,000" would be two."""
    with pytest.raises(ValueError, match=r"rate must not have a comma inside a number, write 1_000/s"):
        RateLimitedExecutor("x", rate=rate)
    with pytest.raises(ValueError, match=r"resources\['tokens'\] must not have a comma"):
        RateLimitedExecutor("x", resources={"tokens": "1,000/s"})


@pytest.mark.parametrize("rate", [(10, 60), [5, 0.5]])
def test_two_numbers_are_no_rate_over_a_time(rate):
    """Two numbers without a time are refused; the error says how to write a rate."""
    with pytest.raises(ValueError, match=r"'10/min' or Rate\(10, per=60\)"):
        RateLimitedExecutor("x", rate=rate)


async def test_flags_are_true_or_false():
    """A flag must be a bool: text and numbers are refused, and the executor stays as it was."""
    with pytest.raises(TypeError, match="early must be True or False, got 'no'"):
        RateLimitedExecutor("x", early="no")
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(TypeError, match="early must be"):
            executor.early = "no"
        with pytest.raises(TypeError, match="in_thread must be True or False, got 'yes'"):
            executor.submit(print, in_thread="yes")
        with pytest.raises(TypeError, match=r"wait must be True or False, got 5: seconds are given by timeout="):
            executor.shutdown(5)
        with pytest.raises(TypeError, match="cancel_pending must be"):
            executor.shutdown(cancel_pending="yes")
        with pytest.raises(TypeError, match="allow_overlap must be True or False, got 1"):
            executor.schedule_at_fixed_rate(print, period=1, allow_overlap=1)
        with pytest.raises(TypeError, match="allow_overlap must be"):
            executor.schedule_cron("* * * * *", print, allow_overlap=None)
        assert 3 == await executor.submit(lambda: 3)


# Time zones: names, zones of the standard library and those of pytz, which have one constant offset until localized.


@pytest.mark.parametrize("made", ["zone", "zone of a datetime"])
def test_zone_of_pytz_becomes_the_zone_of_its_name(made):
    """A zone of pytz, or of a datetime that it localized, follows its daylight saving time, as its name does."""
    zone = pytz.timezone("Europe/London")
    if made != "zone":
        zone = zone.localize(datetime(2024, 7, 1)).tzinfo
    assert ZoneInfo("Europe/London") is tz_of("tz", zone)
    assert UTC is tz_of("tz", pytz.utc)
    quota = Quota(5, per="day", start="09:00", tz=zone)
    assert Quota(5, per="day", start="09:00", tz="Europe/London") == quota
    noon = datetime(2024, 7, 1, 12, tzinfo=UTC).timestamp()
    assert datetime(2024, 7, 1, 8, tzinfo=UTC).timestamp() == quota.period(noon)[0]


def test_zones_with_one_offset_stay_as_they_are():
    """A fixed offset of pytz or of the standard library, and a zone without a name, are used themselves."""
    with open(zoneinfo._tzpath.find_tzfile("Europe/London") or pytest.skip("no time zone files"), "rb") as file:
        nameless = ZoneInfo.from_file(file)
    for zone in (pytz.FixedOffset(330), timezone(timedelta(hours=-3)), nameless, UTC):
        assert zone is tz_of("tz", zone)


def test_zone_that_exists_in_pytz_alone_is_refused():
    """If there is no zone of the name that a zone of pytz has, the error names it."""

    class Zone(tzinfo):
        zone = "US/Pacific-New"

        def localize(self, moment):
            return moment

    with pytest.raises(ValueError, match="tz must be the name of a time zone, .*got 'US/Pacific-New'"):
        tz_of("tz", Zone())


def test_zone_without_offsets_is_refused():
    """A tzinfo that does not say its offset is refused at the call."""

    class Silent(tzinfo):
        def utcoffset(self, moment):
            return None

        def fromutc(self, moment):
            return moment

    for zone in (tzinfo(), Silent()):
        with pytest.raises(ValueError, match="tz must be a tzinfo with offsets from UTC"):
            tz_of("tz", zone)


def test_system_without_time_zones_is_told_what_to_install(monkeypatch):
    """Where Python finds no time zones at all, as on Windows, the error names the package that has them."""
    with pytest.raises(ValueError, match="got 'Mars/Base'$"):
        tz_of("tz", "Mars/Base")
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    with pytest.raises(ValueError, match="got 'Mars/Base': this system has no time zones, pip install tzdata"):
        tz_of("tz", "Mars/Base")


async def test_datetime_with_a_zone_of_pytz_must_be_localized(virtual_clock):
    """``at=`` takes what ``localize()`` returns, and refuses a datetime with the local mean time of London."""
    zone = pytz.timezone("Europe/London")
    right = zone.localize(datetime(2100, 7, 1, 9))
    summer = right.timestamp()
    async with RateLimitedExecutor("x") as executor:
        handle = executor.schedule(int, at=right)
        assert summer == handle.due
        handle.cancel()
        with pytest.raises(ValueError, match="at must be .*: localize it, or take the zone 'Europe/London'"):
            executor.schedule(int, at=datetime(2100, 7, 1, 9, tzinfo=zone))
        executor.schedule(int, at=datetime(2100, 7, 1, 9, tzinfo=pytz.timezone("Etc/GMT+5"))).cancel()
        executor.schedule(int, at=right + timedelta(days=180)).cancel()  # an instant, however it is shown
