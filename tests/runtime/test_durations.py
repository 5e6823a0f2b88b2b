"""Every public argument that is a span of time takes seconds, a timedelta or text, and refuses others by name."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from inspect import signature
from typing import Any

import pytest

from ratelimited_executor import (
    ExecutorManager,
    Pacing,
    Rate,
    RateLimitedExecutor,
    Retry,
    RetryLater,
    orders,
    simulation,
)
from ratelimited_executor._runtime.limits.policy import RULES
from ratelimited_executor.cycles import MemoryProgress
from ratelimited_executor.orders import Ageing
from ratelimited_executor.policies import Adaptive, Paced, Window
from ratelimited_executor.spread import CycleSlots, cycle_slots, offset
from ratelimited_executor.testing import VirtualClock, VirtualEventLoop, audit, run_virtual, worst_window

from ..helpers import redis_peers

Executor = RateLimitedExecutor


def nothing(*_: Any) -> None: ...


async def keys(slot: Any) -> list[int]:
    return []


def every(executor: Executor, **options: Any) -> None:
    arguments: dict[str, Any] = {"cycle": "8h", "progress": MemoryProgress()} | options
    executor.every(fn=nothing, keys=keys, **arguments).cancel()


async def enter(permit: Any) -> None:
    async with permit:
        pass


def set_expires(executor: Executor, value: Any) -> None:
    executor.expires = value


def virtual_loop(**options: Any) -> VirtualEventLoop:
    loop = VirtualEventLoop(**options)
    loop.close()
    return loop


# The argument; a value that is in range, in seconds; what takes it.
OF_A_RUNNING_EXECUTOR: list[tuple[str, float, Callable[[Executor, Any], Any]]] = [
    ("delay", 2, lambda e, v: e.schedule(nothing, delay=v)),
    ("expires", 2, lambda e, v: e.schedule(nothing, expires=v)),
    ("run_timeout", 2, lambda e, v: e.schedule(nothing, in_thread=True, run_timeout=v, delay=1).cancel()),
    ("deadline", 2, lambda e, v: e.schedule(asyncio.sleep, 0, deadline=v)),
    ("expires", 2, lambda e, v: e.submit(nothing, expires=v)),
    ("deadline", 2, lambda e, v: e.submit(asyncio.sleep, 0, deadline=v)),
    ("delay", 2, lambda e, v: e.schedule_wait(nothing, delay=v)),
    ("delay", 2, lambda e, v: e.schedule_many(nothing, [1], delay=v)),
    ("over", 2, lambda e, v: e.schedule_many(nothing, [1], over=v)),
    ("expires", 2, lambda e, v: e.schedule_many(nothing, [1], expires=v)),
    ("timeout", 2, lambda e, v: e.invoke_all([nothing], timeout=v)),
    ("timeout", 2, lambda e, v: e.invoke_any([nothing], timeout=v)),
    ("expires", 2, lambda e, v: anext(e.map(nothing, [1], expires=v))),
    ("period", 2, lambda e, v: e.schedule_at_fixed_rate(nothing, period=v)),
    ("initial_delay", 2, lambda e, v: e.schedule_at_fixed_rate(nothing, period=1, initial_delay=v)),
    ("expires", 2, lambda e, v: e.schedule_at_fixed_rate(nothing, period=1, expires=v)),
    ("delay", 2, lambda e, v: e.schedule_with_fixed_delay(nothing, delay=v)),
    ("initial_delay", 2, lambda e, v: e.schedule_with_fixed_delay(nothing, delay=1, initial_delay=v)),
    ("cycle", 3600, lambda e, v: every(e, cycle=v)),
    ("lease", 60, lambda e, v: every(e, lease=v)),
    ("expires", 2, lambda e, v: e.acquire(expires=v)),
    ("expires", 2, lambda e, v: enter(e.permit(expires=v))),
    ("retry_after", 2, lambda e, v: e.penalize(v)),
    ("expires", 2, set_expires),
    ("timeout", 2, lambda e, v: e.await_termination(v)),
    ("timeout", 2, lambda e, v: e.shutdown(wait=True, timeout=v)),
    ("delay", 2, lambda e, v: e.call_later(1, nothing).reschedule(v)),
]

OF_A_VALUE: list[tuple[str, float, Callable[[Any], Any]]] = [
    ("penalty_max", 2, lambda v: RateLimitedExecutor("e", penalty_max=v)),
    ("expires", 2, lambda v: RateLimitedExecutor("e", expires=v)),
    ("drain_timeout", 2, lambda v: RateLimitedExecutor("e", drain_timeout=v)),
    ("interval", 2, lambda v: ExecutorManager(interval=v)),
    ("precision", 0.001, lambda v: ExecutorManager(precision=v)),
    ("slack", 0.02, lambda v: Paced(slack=v)),
    ("margin", 0.02, lambda v: Window(margin=v)),
    ("per", 60, lambda v: Rate(5, per=v)),
    ("base", 2, lambda v: Retry(base=v)),
    ("cap", 2, lambda v: Retry(cap=v)),
    ("after", 2, RetryLater),
    ("period", 2, lambda v: Adaptive(floor=1, ceiling=2, period=v)),
    ("seconds", 2, Ageing),
    ("interval", 0.25, lambda v: redis_peers(interval=v)),
    ("late", 0.02, lambda v: redis_peers(late=v)),
    ("clock_difference", 2, lambda v: redis_peers(clock_difference=v)),
    ("timeout", 0.25, lambda v: redis_peers(timeout=v)),
    ("cycle", 3600, cycle_slots),
    ("cycle", 3600, CycleSlots),
    ("period", 3600, lambda v: offset(1, v)),
    ("interval", 2, lambda v: simulation.Simulation(interval=v).close()),
    ("duration", 2, lambda v: simulation.Simulation().job("a job", v).duration.mean),
    ("seconds", 2, lambda v: simulation.Simulation().at(v, nothing)),
    ("period", 2, lambda v: simulation.Simulation().every(v, nothing)),
    ("first", 2, lambda v: simulation.Simulation().every(1, nothing, first=v)),
    ("seconds", 2, lambda v: simulation.Simulation().run_until(v)),
    ("period", 3600, lambda v: simulation.Population("p", 5, period=v).period),
    ("begin", 2, lambda v: simulation.Population("p", 5, period=9, group=str).add_outage("1", v, 5)),
    ("end", 2, lambda v: simulation.Population("p", 5, period=9, group=str).add_outage("1", 0, v)),
    ("seconds", 2, lambda v: simulation.Constant(v).mean),
    ("mean", 2, lambda v: simulation.Exponential(v).mean),
    ("mean", 2, lambda v: simulation.LogNormal(mean=v, p90=4).mean),
    ("p90", 4, lambda v: simulation.LogNormal(mean=2, p90=v).sigma),
    ("values", 2, lambda v: simulation.Percentiles({0: 0, 100: v}).mean),
    ("limit", 2, lambda v: virtual_loop(limit=v).limit),
    ("patience", 2, lambda v: virtual_loop(patience=v).patience),
    ("seconds", 2, lambda v: VirtualClock().block(v)),
    ("seconds", 2, lambda v: VirtualClock().step_wall(v)),
    ("slack", 0.02, lambda v: audit([0, 0.1], rate=10, slack=v).worst_excess),
    ("width", 0.5, lambda v: worst_window([0, 0.5], width=v)),
]


def test_every_span_of_a_policy_and_of_an_order_is_here() -> None:
    """The arguments of policies and orders that are spans are in the table."""
    kinds = [*RULES, *(order for order in map(vars(orders).get, orders.__all__) if isinstance(order, type))]
    missing = [
        f"{kind.__name__} {name}"
        for kind in kinds
        for name, parameter in signature(kind).parameters.items()
        if parameter.annotation == "DurationLike"
        and not any(name == each and isinstance(make(seconds), kind) for each, seconds, make in OF_A_VALUE)
    ]
    assert [] == missing


def forms(seconds: float) -> list[Any]:
    """Return one span in every form."""
    return [seconds, timedelta(seconds=seconds), f"{round(seconds * 1000)}ms", f" {seconds} S", f"{seconds}"]


MAY_BE_INFINITE = {"limit", "patience"}
BAD: list[tuple[Any, type[Exception], str]] = [
    ("soon", ValueError, "a duration looks like 90, 10m or 1h30m, got 'soon'"),
    ("", ValueError, "a duration looks like"),
    ("-1s", ValueError, "a duration looks like"),
    ("30m1h", ValueError, "a duration looks like"),
    (b"1", TypeError, "must be a number of seconds, a timedelta"),
    (True, TypeError, "must be a number"),
    ([], TypeError, "must be a number"),
    (float("nan"), ValueError, ""),
    (float("inf"), ValueError, ""),
]


async def _take(call: Callable[[Executor, Any], Any], value: Any) -> None:
    async with RateLimitedExecutor("e", pacing=Pacing.ON_TIME) as executor:
        taken = call(executor, value)
        if hasattr(taken, "__await__") and asyncio.iscoroutine(taken):
            await taken
        await executor.aclose()


@pytest.mark.parametrize(("name", "seconds", "call"), OF_A_RUNNING_EXECUTOR)
def test_span_of_a_call_takes_every_form(name: str, seconds: float, call: Callable[[Executor, Any], Any]) -> None:
    """A span of a call may be seconds, a timedelta, or text with or without a unit."""
    for value in forms(seconds):
        run_virtual(_take(call, value))


@pytest.mark.parametrize(("name", "seconds", "call"), OF_A_RUNNING_EXECUTOR)
@pytest.mark.parametrize(("value", "error", "words"), BAD)
def test_bad_span_of_a_call_is_refused_by_name(
    name: str, seconds: float, call: Callable[[Executor, Any], Any], value: Any, error: type[Exception], words: str
) -> None:
    """A bad span is refused at the call by name, with the valid forms."""
    with pytest.raises(error) as caught:
        run_virtual(_take(call, value))
    assert name in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(("name", "seconds", "make"), OF_A_VALUE)
def test_span_of_a_value_takes_every_form(name: str, seconds: float, make: Callable[[Any], Any]) -> None:
    """A value takes every form of a span, and the results are equal."""
    made = [make(value) for value in forms(seconds)]
    if isinstance(made[0], (Paced, Window, Rate, int, float, tuple)):
        assert all(each == made[0] for each in made)
    kept = getattr(made[0], name, None)
    if isinstance(kept, float):
        assert [seconds] * len(made) == [getattr(each, name) for each in made]


@pytest.mark.parametrize(("name", "seconds", "make"), OF_A_VALUE)
@pytest.mark.parametrize(("value", "error", "words"), BAD)
def test_bad_span_of_a_value_is_refused_by_name(
    name: str, seconds: float, make: Callable[[Any], Any], value: Any, error: type[Exception], words: str
) -> None:
    """A value refuses a bad span by name, as a call does."""
    if name in MAY_BE_INFINITE and value == float("inf"):
        pytest.skip("stands for no limit")
    with pytest.raises(error) as caught:
        make(value)
    assert name in str(caught.value)
    assert words in str(caught.value)


def test_zero_is_a_delay_as_text_too() -> None:
    """Where a span may be 0, so may its text; otherwise the error says so."""
    assert Paced(slack="0") == Paced(slack=0) == Paced(slack="0ms")
    with pytest.raises(ValueError, match="base must be > 0 seconds, got '0s'"):
        Retry(base="0s")


def test_span_of_a_rate_stays_exact() -> None:
    """A fraction stays exact, and a float means the decimal number that was written."""
    assert Fraction(1, 3) == Rate(1, per=Fraction(1, 3)).per
    assert Fraction(1, 10) == Rate(1, per="100ms").per == Rate(1, per=timedelta(milliseconds=100)).per
    assert Fraction(1, 10) == Rate(1, per=Decimal("0.1")).per
