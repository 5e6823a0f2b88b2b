"""Every numeric, textual and callable argument of every method, with every bad value: a matrix, not examples."""

import asyncio
import concurrent.futures
import contextvars
import gc
import math
import threading
import warnings
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from ratelimited_executor import Burst, ExecutorManager, Paced, Rate, RateLimitedExecutor, Window, WrongLoopError

NAN, INF = math.nan, math.inf
NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001  # that is the mistake
NO_NUMBERS = (NAN, INF, -INF, True, False, "1", b"1", [], object(), 1j)
NO_SPANS = (*NO_NUMBERS, NAIVE, -1, -1e-9, -(10**400), 10**400, timedelta(seconds=-1), Decimal("-1"), Decimal("NaN"))
NO_COSTS = (NAN, 0, -1, 1.5, True, "1", None, {"x": 1}, {"permits": 0})
NO_COUNTS = (NAN, INF, -1, 1.0, 1.5, True, "1", Decimal(1), timedelta(1))


async def work():
    """Do nothing."""


def fails_later(executor, **options):
    """Make sure that what only an await would check is checked by the call, too."""
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
        ("", "* * * *", "60 * * * *", "x", None, 5, int, "@hourlyy"),
    ),
    "cron tz": (lambda e, v: e.schedule_cron("* * * * *", int, tz=v), "tz", ("Europe/London", 1, 0, "", object())),
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
    """Make a call that fails; return what it changed: statistics before and after, settings with them."""

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
            len(executor._engine.feeders),
            len(executor._repeating),
            len(executor._engine.queue.expiry._places) if hasattr(executor._engine.queue.expiry, "_places") else 0,
        )

    before = look()
    call()
    return before, look()


@pytest.mark.parametrize("what", MATRIX)
async def test_bad_value_is_refused_by_name_and_changes_nothing(virtual_clock, what):
    """TypeError for a wrong kind, ValueError for a wrong value; the message names the parameter; nothing is changed."""
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
    """The same for what is awaited."""
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
    """No callable: a TypeError that names the parameter, also for None, text and instances."""
    async with RateLimitedExecutor("x", rate=10, drain_timeout=0) as executor:
        for value in (None, 5, "int", [], object(), NotImplemented):

            def refused(value=value):
                with pytest.raises(TypeError, match=r"(fn|callback) must be a callable"):
                    CALLABLES[what](executor, value)

            before, after = unchanged(executor, refused)
            assert before == after, value


@pytest.mark.parametrize("what", CALLABLES)
async def test_coroutine_object_is_refused_without_a_second_complaint(virtual_clock, what):
    """A coroutine in place of a function: a TypeError with the remedy, and no warning that it was never awaited."""
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
    """Nothing of such a list is started."""
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
    """Keyword arguments are ours: those of the function go into a partial."""
    async with RateLimitedExecutor("x", drain_timeout=0) as executor:
        with pytest.raises(TypeError) as info:
            getattr(executor, method)(int, **options)
        assert all(word in str(info.value) for word in words), str(info.value)
        assert 0 == executor.statistics().accepted


async def test_bad_options_from_another_thread_are_in_the_future(virtual_clock):
    """What ``schedule`` would raise, the future of ``schedule_threadsafe`` raises."""
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
    """Nothing is made, and a manager that was to own it knows nothing of it."""
    async with ExecutorManager() as manager:
        for value in CONSTRUCTOR[name]:
            options = {"name": "x", "manager": manager} | {name: value}
            with pytest.raises((TypeError, ValueError)) as info:
                RateLimitedExecutor(**options)
            assert name in str(info.value), (value, str(info.value))
            assert {} == manager.executors, value


@pytest.mark.parametrize("value", [*NO_SPANS, 0, 0.009, 3600.1, 1e300, None])
def test_bad_interval_of_a_manager_is_refused_by_name(value):
    """From 0.01 to 3600 seconds, and no other kind."""
    with pytest.raises((TypeError, ValueError), match="interval"):
        ExecutorManager(interval=value)


@pytest.mark.parametrize("peers", [2, "x", object(), (2, 0)])
def test_bad_peers_of_a_manager_are_refused_by_name(peers):
    """What has no count and rank is refused when it is given, not when the first executor starts."""
    with pytest.raises(TypeError, match="peers"):
        ExecutorManager(peers=peers)


@pytest.mark.parametrize("clock", [2, "x", object(), math])
def test_bad_clock_of_a_manager_is_refused_by_name(clock):
    """What cannot be read is refused when it is given."""
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
    """Permits may be 0 or infinite, seconds may not."""
    with pytest.raises((TypeError, ValueError), match=name):
        Rate(permits, per=per)


@pytest.mark.parametrize("slack", NO_SPANS)
def test_bad_slack_is_refused_by_name(slack):
    """A policy is checked when it is made."""
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
    """Also settings and ``shutdown``, which would wake a loop that does not know of it."""
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
    """A thread that reports figures needs no detour."""
    async with RateLimitedExecutor("x", rate=10, drain_timeout=0) as executor:
        executor.schedule(int, delay=5)
        counts = await asyncio.to_thread(executor.statistics)
        assert 1 == counts.waiting
        assert 0 == await asyncio.to_thread(executor.backlog_seconds)
        assert "waiting=1" in await asyncio.to_thread(repr, executor)


def test_settings_may_be_made_before_the_start():
    """Outside of any loop, and they hold when it starts."""
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
        ({"rate": "5/fortnight"}, ValueError, "must look like '100/s'.* got '5/fortnight'$"),
    ],
    ids=str,
)
async def test_common_mistakes_name_their_remedy(virtual_clock, options, error, words):
    """A class for an object, a rate of what has no fixed length."""
    with pytest.raises(error, match=words):
        RateLimitedExecutor("x", **options)
