"""Everything at once: random executors and random steps, and the accounting closes after each step."""

import asyncio
import random

import pytest

from ratelimited_executor import (
    BacklogFullError,
    Pacing,
    Rate,
    RateLimitedExecutor,
    Retry,
    RetryLater,
    TaskState,
    WhenFull,
    default_order,
)
from ratelimited_executor.orders import Ageing, Fair, latest_due_first
from ratelimited_executor.policies import Quota
from ratelimited_executor.testing import run_virtual

from ..helpers import first_quick
from ..kinds import each_policy
from ..waiting import live_count, walk

ORDERS = [
    default_order,
    Fair(),
    Fair(weights={"a": 3}),
    Ageing(5),
    latest_due_first,
    Fair(by=lambda task: task.priority),
]
RATES = [20, Rate(20, per=2), [Rate(20), Rate(50, per=5)], [Rate(10), Quota(100, per="minute")], float("inf")]
SEEDS = 150


def check(executor):
    """Walk the waiting tasks: each is in exactly one place."""
    counts = executor.statistics()
    engine = executor._engine
    assert counts.waiting == sum(1 for _ in walk(engine.queue)) == live_count(engine.queue)
    ended = counts.done + counts.failed + counts.cancelled + counts.expired + counts.dropped
    assert counts.accepted == counts.waiting + counts.running + ended


async def nap(seconds):
    """Run for a while, then perhaps fail, or ask for a retry."""
    await asyncio.sleep(seconds)
    if seconds > 0.5:
        raise RetryLater(0.1)
    if seconds > 0.45:
        raise ValueError


def call(number):
    """Fail or ask for a retry now and then."""
    if number > 0.55:
        raise RetryLater
    if number > 0.5:
        raise KeyError


def options_of(chosen):
    """Draw the options of an executor."""
    options = {
        "rate": chosen.choice(RATES),
        "policy": chosen.choice(each_policy(5)),
        "order": chosen.choice(ORDERS),
        "pacing": chosen.choice(list(Pacing)),
        "resources": chosen.choice([None, {"tokens": Rate(100, per=3)}]),
        "max_concurrency": chosen.choice([None, None, 3]),
        "key_rate": chosen.choice([None, None, 5, lambda key: 3 if key == "a" else None]),
        "key_concurrency": chosen.choice([None, None, 2, lambda key: 1 if key == "b" else None]),
        "drain_timeout": chosen.choice([None, 3.0]),
    }
    if chosen.random() < 0.5:
        options["max_pending"] = chosen.choice([5, 20])
        options["key_max_pending"] = chosen.choice([None, 4])
        options["when_full"] = chosen.choice(list(WhenFull))
    return options


def terms_of(chosen, *, has_tokens):
    """Draw the options of a task."""
    terms = {}
    if chosen.random() < 0.7:
        terms["key"] = chosen.choice("abcd")
    if chosen.random() < 0.3:
        terms["priority"] = chosen.choice([1, 2, -1])
    if chosen.random() < 0.2:
        terms["expires"] = chosen.choice([0.1, 2])
    if chosen.random() < 0.25:
        terms["cost"] = chosen.choice([2, 3, 5])
    elif has_tokens and chosen.random() < 0.4:
        terms["cost"] = {"tokens": chosen.choice([1, 30, 60])}
    if chosen.random() < 0.1:
        terms["retry"] = chosen.choice([None, Retry(2, on=ValueError, base=0.1)])
    return terms


def schedule(executor, chosen, handles, terms):
    """Schedule tasks in one of many ways."""
    wall = executor._parts.runner.clock.wall()
    which = chosen.randrange(6)
    if which == 0:
        executor.schedule_many(
            chosen.choice([nap, call]),
            [chosen.random() * 0.6 for _ in range(chosen.randrange(1, 12))],
            **chosen.choice([{}, {"over": 2}, {"delay": 1}]),
            **terms,
        )
    elif which == 1:
        executor.execute(call, 0.0)
        executor.call_later(chosen.random(), call, 0.0)
    else:
        when = [{"delay": 3 * chosen.random()}, {}, {}, {"at": wall + 5 * chosen.random()}][which - 2]
        handles.append(executor.schedule(chosen.choice([nap, call]), 0.6 * chosen.random(), **when, **terms))


async def change(executor, chosen, handles):
    """Change, read or disturb something."""
    loop = asyncio.get_running_loop()
    which = chosen.randrange(13)
    some = chosen.choice(handles) if handles else None
    if which == 0:
        executor.order = chosen.choice(ORDERS)
    elif which == 1:
        executor.rate = chosen.choice([20, Rate(5), [Rate(8), Rate(30, per=4)]])
    elif which == 2:
        executor.penalize(chosen.random(), key=chosen.choice([None, "a", "b"]))
    elif which == 3:
        executor.key_rate = chosen.choice([None, 2, 10])
    elif which == 4:
        executor.key_concurrency = chosen.choice([None, 1, 3])
    elif which == 5:
        executor.pause()
        await asyncio.sleep(0.2)
        executor.resume()
    elif which == 6:
        loop.block_for(chosen.choice([0.03, 1.2]))
    elif which == 7:
        loop.clock.step_wall(chosen.choice([-100, 100]))
    elif some is None:
        await asyncio.sleep(0.1)
    elif which == 8:
        executor.explain(some)
        executor.backlog_seconds("a")
    elif which == 9:
        some.cancel()
    elif which == 10:
        some.settle({"permits": chosen.choice([0, 1, 4])})
    else:
        await asyncio.sleep(1.5 * chosen.random())


async def play(seed):
    """Run one executor through random steps to its end."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    chosen = random.Random(seed)
    options = options_of(chosen)
    handles = []
    async with RateLimitedExecutor("x", **options) as executor:
        for _ in range(chosen.randrange(20, 120)):
            try:
                if chosen.random() < 0.6:
                    terms = terms_of(chosen, has_tokens=options["resources"] is not None)
                    schedule(executor, chosen, handles, terms)
                else:
                    await change(executor, chosen, handles)
            except BacklogFullError:
                pass
            except ValueError as error:  # a cost that a window or a key never admits, or that there was none to settle
                assert "cost" in str(error)
            check(executor)
    check(executor)
    assert [] == [handle for handle in handles if not handle.done()]
    for handle in handles:
        if handle.state not in (TaskState.DONE, TaskState.CANCELLED):
            handle.exception()


@pytest.mark.parametrize("part", first_quick(range(5)))
def test_account_closes_whatever_is_combined(part):
    """No task is lost or counted twice, and every executor ends."""
    for seed in range(part * SEEDS // 5, (part + 1) * SEEDS // 5):
        run_virtual(play(seed), limit=100_000)
