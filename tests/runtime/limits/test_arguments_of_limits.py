"""Every parameter of limits, keys, costs, room, retries and penalties, with every bad value: a matrix, not examples."""

import asyncio
import math
from datetime import datetime, timedelta
from decimal import Decimal
from inspect import signature
from zoneinfo import ZoneInfo

import pytest

from ratelimited_executor import (
    Burst,
    ExecutorManager,
    Paced,
    Rate,
    RateLimitedExecutor,
    Retry,
    RetryLater,
    WhenFull,
    Window,
    orders,
)
from ratelimited_executor._runtime.limits.policy import RULES
from ratelimited_executor.orders import Ageing, Fair, TaskView
from ratelimited_executor.peers import StaticPeers
from ratelimited_executor.policies import Adaptive, Quota
from ratelimited_executor.testing import audit, worst_window

NAN, INF = math.nan, math.inf
NO_NUMBERS = (NAN, INF, -INF, True, "1", b"1", [], None, 1j)
NO_DURATIONS = (*(value for value in NO_NUMBERS if value != "1"), "", "soon", "1x", "-1", "30m1h")
NO_SPANS = (*NO_DURATIONS, -1, -1e-9, timedelta(seconds=-1), datetime(2024, 1, 1))  # noqa: DTZ001  # a mistake anyway
NO_COUNTS = (NAN, INF, -1, 1.0, 1.5, True, "1", Decimal(1), timedelta(1))
NO_RATES = (NAN, -INF, -1, True, [], "", "1 1", "1/x", "-1/s", Decimal("NaN"), {}, object())
NO_POLICIES = (1, "x", Retry, object(), ValueError, [], True, lambda error: 1.0)
NO_COSTS = (0, -1, 1.5, NAN, INF, "1", None, [], {"permits": 0}, {"permits": 1.5}, {"tokens": -1}, {"tokens": "1"})
UNHASHABLE = ([], {}, {1: 2}, [1], set())


def refuses(call, name) -> None:
    """Assert that a call raises an error that names the parameter."""
    with pytest.raises((TypeError, ValueError)) as info:
        call()
    assert type(info.value) in (TypeError, ValueError)
    assert name in str(info.value), str(info.value)


# What is made without an executor.

MADE = {
    "Paced strictness": (lambda value: Paced(strictness=value), "strictness", (*NO_NUMBERS, "exact", object())),
    "Paced slack": (lambda value: Paced(slack=value), "slack", (*NO_DURATIONS, -1)),
    "Window margin": (lambda value: Window(margin=value), "margin", (*NO_DURATIONS, -0.001)),
    "Burst permits": (Burst, "permits", (*NO_COUNTS, 0, None)),
    "Quota permits": (lambda value: Quota(value, per="day"), "permits", (*NO_COUNTS, None)),
    "Quota per": (lambda value: Quota(1, per=value), "per", ("", "fortnight", None, 1, "Day", ["day"])),
    "Quota start": (
        lambda value: Quota(1, per="day", start=value),
        "start",
        ("", "8", "8:0", "24:00", "00:60", "08:30:00", None, 8, 8.5, timedelta(hours=8)),
    ),
    "Quota start of an hour": (lambda value: Quota(1, per="hour", start=value), "start", ("08:30", "00:01")),
    "Quota tz": (
        lambda value: Quota(1, per="day", tz=value),
        "tz",
        ("", "Europe/Nowhere", "../etc/passwd", None, 1, object()),
    ),
    "Quota parse": (
        Quota.parse,
        "quota",
        ("", "10", "ten per day", "10 per", "per day", "10 per day from 8", "-1 per day", "10/day", "1.5 per day"),
    ),
    "Fair by": (Fair, "by", (1, "key", [], {})),
    "Fair weights": (lambda value: Fair(weights=value), "weights", (1, "x", [1], ("a",))),
    "Fair weight of a key": (
        lambda value: Fair(weights={"a": value}),
        "weights",
        (0, -1, NAN, INF, True, "1", None, Decimal(1), []),
    ),
    "Fair weight by a function": (
        lambda value: Fair(weights=lambda key: value).weight("a"),
        "weights",
        (0, -1, NAN, INF, True, "1", None),
    ),
    "Ageing seconds": (Ageing, "seconds", (*NO_DURATIONS, 0, -1, timedelta(0))),
    "Retry attempts": (Retry, "attempts", (*NO_COUNTS, 0, None)),
    "Retry base": (lambda value: Retry(base=value), "base", (*NO_DURATIONS, 0, -1, timedelta(0))),
    "Retry cap": (lambda value: Retry(cap=value), "cap", (*NO_DURATIONS, 0, -1, 0.5)),
    "Retry on": (
        lambda value: Retry(on=value),
        "on",
        (1, "ValueError", None, int, [ValueError], (int,), (ValueError, 1)),
    ),
    "RetryLater after": (RetryLater, "after", (NAN, INF, -1, -1e-9, True, "1x", "-1", [], timedelta(-1))),
    "Adaptive floor": (lambda value: Adaptive(floor=value, ceiling=5), "floor", (*NO_NUMBERS, 0, -1, 6)),
    "Adaptive ceiling": (lambda value: Adaptive(floor=1, ceiling=value), "ceiling", (*NO_NUMBERS, 0, -1, 0.5)),
    "Adaptive increase": (
        lambda value: Adaptive(floor=1, ceiling=5, increase=value),
        "increase",
        (NAN, INF, True, "1", [], 0, -1),
    ),
    "Adaptive decrease": (
        lambda value: Adaptive(floor=1, ceiling=5, decrease=value),
        "decrease",
        (*NO_NUMBERS, 0, -1, 1, 1.5),
    ),
    "Adaptive period": (lambda value: Adaptive(floor=1, ceiling=5, period=value), "period", (*NO_DURATIONS, 0, -1)),
    "audit costs": (lambda value: audit([1.0, 2.0], 1, costs=value), "costs", ([1], [1, 2, 3], [])),
    "worst_window costs": (lambda value: worst_window([1.0, 2.0], 1, costs=value), "costs", ([1], [1, 2, 3])),
}


def test_every_argument_of_a_policy_and_of_an_order_is_here():
    """What a policy or an order is made of has bad values in the table."""
    made = [*RULES, *(order for order in map(vars(orders).get, orders.__all__) if isinstance(order, type))]
    arguments = {
        f"{kind.__name__} {name}" for kind in made if kind is not TaskView for name in signature(kind).parameters
    }
    assert set() == arguments - set(MADE)


@pytest.mark.parametrize("what", MADE)
def test_bad_value_makes_nothing(what):
    """A wrong type is a TypeError, a wrong value a ValueError that names the parameter."""
    make, name, values = MADE[what]
    for value in values:
        refuses(lambda value=value: make(value), name)


@pytest.mark.parametrize(
    "make", [lambda: Paced(slack=timedelta(seconds=1)), lambda: Window(margin=timedelta(seconds=1))]
)
async def test_policy_with_a_timedelta_works_or_is_refused(virtual_clock, make):
    """A policy refuses a timedelta, or also runs with it."""
    try:
        policy = make()
    except TypeError as error:
        assert "number" in str(error)
        return
    async with RateLimitedExecutor("x", rate=10, policy=policy) as executor:
        assert await executor.submit(lambda: 1) == 1


# The executor.

SETTINGS = {
    "policy": ((1, "window", None, Window, Burst, object()), {}),
    "order": ((None, 1, "fair", []), {}),
    "resources": ((1, "x", [1], {1: 5}, {"": 5}, {None: 5}, {"permits": 5}, {"a": "x"}, {"a": -1}, {"a": []}), {}),
    "key_rate": (NO_RATES, {}),
    "key_concurrency": (NO_COUNTS, {}),
    "max_pending": ((*NO_COUNTS, 0), {}),
    "key_max_pending": ((*NO_COUNTS, 0), {}),
    "max_keys": ((*NO_COUNTS, 0, None), {}),
    "when_full": (("raise", None, 1, WhenFull), {}),
    "retry": (NO_POLICIES, {}),
    "adaptive": ((1, "x", Adaptive, {}), {"rate": 5}),
    "penalty_max": ((*NO_SPANS, 0), {}),
    "rate": ((*NO_RATES, None, (), (1, "x"), "5/s,", "5 per fortnight", "5/s, 3 per", [None]), {}),
}


@pytest.mark.parametrize("name", SETTINGS)
async def test_executor_with_a_bad_setting_is_not_made(virtual_clock, name):
    """A bad setting is refused by name, and the name of the executor is free again."""
    values, others = SETTINGS[name]
    async with ExecutorManager() as manager:
        for value in values:
            said = "per" if isinstance(value, str) and " per" in value else name
            if isinstance(value, dict) and name == "resources":
                said = "" if any(isinstance(one, (str, int, list)) for one in value.values()) else name
            refuses(lambda value=value: manager.executor("x", **{name: value}, **others), said)
        executor = manager.executor("x")
        assert 0 == executor.statistics().accepted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate": "5/s", "adaptive": None, "policy": Window(), "resources": {"a": "1.5/s"}}, "whole number"),
        ({"rate": 2.5, "policy": Window()}, "whole number"),
        ({"rate": ("5/s", "7.5/min")}, "whole number"),
        ({"adaptive": Adaptive(floor=1, ceiling=2)}, "adaptive"),
        ({"adaptive": Adaptive(floor=1, ceiling=2), "rate": 0}, "adaptive"),
    ],
)
async def test_settings_that_do_not_fit_each_other_are_refused(virtual_clock, options, said):
    """Settings that contradict each other are refused with the remedy."""
    refuses(lambda: RateLimitedExecutor("x", **options), said)


async def test_rate_that_cannot_be_shared_is_refused(virtual_clock):
    """A rate of less than a permit for each peer is refused."""
    async with ExecutorManager(peers=StaticPeers(3, 0)) as manager:
        refuses(lambda: manager.executor("x", rate="2/s", policy=Window()), "rate")
        refuses(lambda: manager.executor("x", rate=5, policy=Burst(2)), "policy")
        refuses(lambda: manager.executor("x", rate=Quota(2, per="day")), "rate")
        refuses(lambda: manager.executor("x", rate=5, policy=Window(), resources={"a": "2/s"}), "resources['a']")
        manager.executor("x", rate="3/s", policy=Window())


# An open executor.

CHANGED = {
    "rate": (lambda e, v: setattr(e, "rate", v), "", (*NO_RATES, None, (), "5/s, x", 2.5)),
    "resources": (
        lambda e, v: setattr(e, "resources", v),
        "resources",
        (1, "x", {"permits": 1}, {1: 1}, {"": 1}, {"tokens": "1.5/s"}),
    ),
    "key_rate": (lambda e, v: setattr(e, "key_rate", v), "key_rate", NO_RATES),
    "key_concurrency": (lambda e, v: setattr(e, "key_concurrency", v), "key_concurrency", NO_COUNTS),
    "order": (lambda e, v: setattr(e, "order", v), "order", (None, 1, "x", [])),
    "penalize retry_after": (
        lambda e, v: e.penalize(v),
        "retry_after",
        tuple(value for value in NO_SPANS if value is not None),
    ),
    "penalize key": (lambda e, v: e.penalize(1, key=v), "key", UNHASHABLE),
    "backlog_seconds key": (lambda e, v: e.backlog_seconds(v), "key", UNHASHABLE),
    "schedule key": (lambda e, v: e.schedule(int, delay=1, key=v), "key", UNHASHABLE),
    "submit key": (lambda e, v: e.submit(int, key=v), "key", UNHASHABLE),
    "schedule_many key": (lambda e, v: e.schedule_many(int, [1], key=v), "key", UNHASHABLE),
    "schedule_many key of an item": (lambda e, v: e.schedule_many(int, [1], key=lambda item: v), "key", UNHASHABLE),
    "permit key": (lambda e, v: e.permit(key=v), "key", UNHASHABLE),
    "schedule cost": (lambda e, v: e.schedule(int, delay=1, cost=v), "cost", (*NO_COSTS, True)),
    "submit cost": (lambda e, v: e.submit(int, cost=v), "cost", (*NO_COSTS, True)),
    "submit cost in an unknown resource": (
        lambda e, v: e.submit(int, cost=v),
        "cost",
        ({"bytes": 1}, {"": 1}, {1: 1}, {None: 1}, {"permits": 1, "Tokens": 2}),
    ),
    "submit cost that is never admitted": (lambda e, v: e.submit(int, cost=v), "cost", (11, {"tokens": 51})),
    "schedule_many cost": (lambda e, v: e.schedule_many(int, [1], cost=v), "cost", (*NO_COSTS, True)),
    "schedule_many cost of an item": (
        lambda e, v: e.schedule_many(int, [1, 2], cost=lambda item: 1 if item == 1 else v),
        "cost",
        (*NO_COSTS, True),
    ),
    "permit cost": (lambda e, v: e.permit(cost=v), "cost", NO_COSTS),
    "schedule retry": (lambda e, v: e.schedule(int, delay=1, retry=v), "retry", NO_POLICIES),
    "submit retry": (lambda e, v: e.submit(int, retry=v), "retry", NO_POLICIES),
    "schedule_many retry": (lambda e, v: e.schedule_many(int, [1], retry=v), "retry", NO_POLICIES),
    "submit unknown": (lambda e, v: e.submit(int, **{v: 1}), "unknown argument", ("keys", "costs", "retries", "room")),
    "schedule unknown": (lambda e, v: e.schedule(int, **{v: 1}), "unknown argument", ("keys", "weight")),
}


def look(executor) -> tuple[object, ...]:
    """Return all state of an executor that a refused call might change."""
    return (
        executor.statistics(),
        executor.rate,
        executor.rates,
        executor.resources,
        executor.order,
        executor.key_rate,
        executor.key_concurrency,
        executor.policy,
        repr(executor),
        executor._engine.armed,
        executor._engine.queue.gate is None,
        len(executor._engine.accounts.feeders),
    )


@pytest.mark.parametrize("limited", [False, True], ids=["free", "with limits"])
@pytest.mark.parametrize("what", CHANGED)
async def test_bad_value_is_refused_by_name_and_changes_nothing(virtual_clock, what, limited):
    """A bad value is refused by name and changes nothing, also with every kind of limit."""
    call, name, values = CHANGED[what]
    options = {"max_pending": 9, "key_rate": 5, "key_concurrency": 5} if limited else {}
    async with RateLimitedExecutor(
        "x", rate="10/s", policy=Window(), resources={"tokens": "50/s"}, drain_timeout=0, **options
    ) as executor:
        executor.schedule(int, delay=5)
        for value in values:
            before = look(executor)
            refuses(lambda value=value: call(executor, value), name)
            assert before == look(executor), value
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "value",
    [value for value in (True, 1.0, Decimal(1))],
)
async def test_permit_refuses_a_cost_that_is_no_integer(virtual_clock, value):
    """A permit refuses a cost that is not an integer, as ``submit`` does, even if it equals one."""
    async with RateLimitedExecutor("x") as executor:
        refuses(lambda: executor.permit(cost=value), "cost")
        with pytest.raises(TypeError, match="cost"):
            await executor.acquire(cost=value)


async def test_permit_of_a_limited_key_refuses_what_cannot_be_one(virtual_clock):
    """A permit refuses a bad key by name, also where the backlog of each key is limited."""
    async with RateLimitedExecutor("x", key_max_pending=2) as executor:
        refuses(lambda: executor.permit(key=[]), "key must be hashable")


@pytest.mark.parametrize("way", ["acquire", "schedule_wait", "threadsafe"])
async def test_bad_value_of_what_is_awaited_is_refused(virtual_clock, way):
    """Awaited methods refuse a bad value by name, and nothing waits for it."""
    async with RateLimitedExecutor("x", max_pending=5, when_full=WhenFull.WAIT) as executor:
        for options, name in (({"key": []}, "key"), ({"cost": 0}, "cost"), ({"cost": {"a": 1}}, "cost")):
            with pytest.raises((TypeError, ValueError), match=name):
                if way == "acquire":
                    await executor.acquire(**options)
                elif way == "schedule_wait":
                    await executor.schedule_wait(int, **options)
                else:
                    await asyncio.wrap_future(executor.schedule_threadsafe(int, **options))
            assert (0, 0) == (executor.statistics().accepted, executor.statistics().waiters)
        assert executor._parts.backlog.room._promised_count == 0


async def test_item_of_a_lazy_batch_with_a_bad_key_or_cost_fails_the_batch(virtual_clock):
    """A bad key or cost fails a lazy batch; items drawn before it run."""
    for options, name in (
        ({"key": lambda item: [] if item == 2 else item}, "key"),
        ({"cost": lambda item: 0 if item == 2 else 1}, "cost"),
    ):
        seen = []
        async with RateLimitedExecutor("x") as executor:
            batch = executor.schedule_many(seen.append, iter(range(5)), **options)
            with pytest.raises((TypeError, ValueError), match=name):
                await batch
        assert [0, 1] == seen


@pytest.mark.parametrize(
    ("actual", "name"),
    [(-1, "actual"), (1.5, "actual"), (True, "actual"), ("1", "actual"), (None, "actual"), ({"tokens": -1}, "tokens")]
    + [({"tokens": 1.5}, "tokens"), ({"bytes": 1}, "bytes"), ({"permits": 1, "tokens": None}, "tokens")],
)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_bad_settlement_changes_nothing(virtual_clock, actual, name, when):
    """A settlement with a bad part changes nothing, not even the good parts."""
    async with RateLimitedExecutor("x", rate=10, policy=Window(), resources={"tokens": "50/s"}) as executor:
        if when == "before":
            executor.pause()
        handle = executor.submit(int, cost={"permits": 2, "tokens": 5})
        await asyncio.sleep(0.1)
        before = look(executor), dict(handle.needs)
        refuses(lambda: handle.settle(actual), name)
        assert before == (look(executor), dict(handle.needs))
        executor.resume()


@pytest.mark.parametrize("limit", ["key_rate", "key_concurrency"])
async def test_function_of_a_key_that_raises_or_is_wrong_is_told(virtual_clock, caplog, limit):
    """A key function that raises is reported to the caller or by a warning, and its key is not stuck."""
    values = {"raises": ZeroDivisionError, "text": "x", "negative": -1, "number": 1}

    def of(key):
        value = values.get(key)
        if isinstance(value, type):
            raise value
        return value

    async with RateLimitedExecutor("x", **{limit: of}) as executor:
        for key in (None, "unknown", "number"):
            assert await asyncio.wait_for(executor.submit(lambda: 1, key=key), 5) == 1
        for key in ("raises", "text", "negative") if limit == "key_rate" else ("raises",):
            try:
                handle = executor.submit(lambda: 1, key=key)
            except (ZeroDivisionError, TypeError, ValueError):  # the caller hears of it, and nothing was taken in
                continue
            assert await asyncio.wait_for(handle, 5) == 1
            assert "raised ZeroDivisionError()" in caplog.text
        assert executor.statistics().accepted == executor.statistics().done


@pytest.mark.parametrize("value", ["x", -1, 1.5, NAN])
async def test_places_of_a_key_that_are_no_number_limit_nothing(virtual_clock, caplog, value):
    """A ``key_concurrency`` that becomes invalid before the start limits nothing, and is warned about."""
    values = [1]
    async with RateLimitedExecutor("x", key_concurrency=lambda key: values[0], drain_timeout=0) as executor:
        handles = [executor.submit(lambda: 1, key="a") for _ in range(3)]
        values[0] = value
        with pytest.raises((TypeError, ValueError), match="key_concurrency of the key 'a' must be"):
            executor.submit(int, key="a")
        for _ in range(20):  # no sleep: an executor that runs in vain would stop virtual time
            await asyncio.sleep(0)
        assert [1, 1, 1] == [handle.result() for handle in handles]
        assert "key 'a'" in caplog.text


@pytest.mark.parametrize("make", [lambda: Rate(5), lambda: Quota(5, per="day"), lambda: Fair(), lambda: Retry()])
def test_values_have_a_representation(make):
    """The representation of values is not the default one with an address."""
    assert " at 0x" not in repr(make())


def test_time_zone_of_a_quota_is_given_by_name_or_object():
    """A quota of a zone's name is that of the zone."""
    quota = Quota(5, per="day", tz="Europe/London")
    assert quota == Quota(5, per="day", tz=ZoneInfo("Europe/London"))
    assert "Quota(5, per='day', start='00:00', tz='Europe/London')" == repr(quota)
