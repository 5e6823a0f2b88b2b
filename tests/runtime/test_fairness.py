"""Shares by key: ``Fair`` on the whole executor, ``Ageing``, and changes of the order during a backlog."""

import asyncio
import collections
import itertools
import random
from inspect import isfunction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor import Burst, Paced, Pacing, RateLimitedExecutor, TaskState, Window, default_order, orders
from ratelimited_executor._core.order import ordering
from ratelimited_executor.orders import Ageing, Fair, earliest_due_first, latest_due_first
from ratelimited_executor.testing import audit, run_virtual

from ..helpers import examples, now


def check_forgotten(executor) -> None:
    """Assert that almost nothing is kept of keys that have nothing to start."""
    levels = executor._engine.queue._fair_clock.levels
    assert len(levels) <= 1
    assert sum(len(level.flows) + len(level.ghosts) for level in levels.values()) <= 2


def check_shares(log, weights, costs) -> None:
    """Assert that between any two starts the shares of two keys differ by one task's cost of each at most.

    ``log`` holds keys in the order of their starts, all of which had waiting tasks all the time.
    """
    for first, second in itertools.combinations(weights, 2):
        bound = costs[first] / weights[first] + costs[second] / weights[second] + 1e-9
        lead, low, high = 0.0, 0.0, 0.0
        for key, cost in log:
            if key == first:
                lead += cost / weights[first]
            elif key == second:
                lead -= cost / weights[second]
            low, high = min(low, lead), max(high, lead)
        assert high - low <= bound, (first, second, low, high, bound)


@given(
    weights=st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0.5, 1, 1, 2, 3.7, 10]), min_size=2),
    costs=st.lists(st.integers(1, 5), min_size=6, max_size=6),
    policy=st.sampled_from([Paced(), Burst(10), Window()]),
    pacing=st.sampled_from(Pacing),
    way=st.sampled_from(["now", "delayed", "both", "batches", "mixed"]),
    seed=st.integers(0, 1000),
)
@examples(60)
def test_shares_are_right_within_one_task_of_each(weights, costs, policy, pacing, way, seed):
    """While two keys have waiting tasks, each gets its share by weight, however the tasks came."""
    cost_of = dict(zip("abcdef", costs, strict=True))
    count = 120
    rng = random.Random(seed)

    async def main():
        log = []
        async with RateLimitedExecutor(
            "x", rate=20, policy=policy, pacing=pacing, order=Fair(weights=weights), drain_timeout=0
        ) as executor:
            calls = [key for key in weights for _ in range(count)]
            rng.shuffle(calls)
            for number, key in enumerate(calls):
                delay = {"now": None, "delayed": 1.0, "both": (None, 1.0)[number % 2]}.get(way, rng.choice([None, 1.0]))
                if way != "batches":
                    note = lambda key=key: log.append((now(), key))
                    executor.schedule(note, delay=delay, key=key, cost=cost_of[key])
            if way == "batches":
                for key in weights:
                    executor.schedule_many(
                        lambda key: log.append((now(), key)), [key] * count, key=key, cost=cost_of[key]
                    )
            await asyncio.sleep(1.01)
            log.clear()
            while max(collections.Counter(key for _, key in log).values(), default=0) <= count // 3:
                await asyncio.sleep(0.5)  # all of them have tasks that wait until then
        return log

    log = run_virtual(main())
    assert log
    check_shares([(key, cost_of[key]) for _, key in log], weights, cost_of)


@pytest.mark.parametrize("delay", [None, 2.0])
@pytest.mark.parametrize("pacing", Pacing)
async def test_tenant_with_many_tasks_delays_anothers_first_by_one_permit(virtual_clock, delay, pacing):
    """A hundred thousand tasks of one key delay another key's first task by one permit."""
    async with RateLimitedExecutor("x", rate=10, pacing=pacing, order=Fair(), drain_timeout=0) as executor:
        executor.schedule_many(int, range(100_000), key="big", delay=delay)
        await asyncio.sleep(5.05)
        asked = now()
        small = executor.submit(now, key="small")
        assert asked < await small <= asked + 0.2
        later = executor.schedule(now, delay=3.0, key="another")
        due = now() + 3.0
        assert due <= await later <= due + 0.2


async def test_equal_keys_take_turns(virtual_clock):
    """Equal keys take turns while each has tasks; the last one then uses the full rate."""
    log = []
    async with RateLimitedExecutor("x", rate=10, order=Fair()) as executor:
        for key, count in (("a", 5), ("b", 3), ("c", 1)):
            for _ in range(count):
                executor.submit(lambda key=key: log.append((round(now(), 6), key)), key=key)
    assert ["a", "b", "c", "a", "b", "a", "b", "a", "a"] == [key for _, key in log]
    assert [pytest.approx(0.1 * index, abs=1e-6) for index in range(9)] == [time for time, _ in log]


async def test_priority_comes_before_fairness(virtual_clock):
    """More important tasks start first; keys share within one priority."""
    log = []
    async with RateLimitedExecutor("x", rate=10, order=Fair()) as executor:
        executor.submit(int)
        for key in "aabb":
            executor.submit(log.append, key, key=key)
        for _ in range(3):
            executor.submit(log.append, "A", key="a", priority=1)
    assert ["A", "A", "A", "a", "b", "a", "b"] == log


async def test_key_that_was_away_has_saved_nothing(virtual_clock):
    """A key that comes late gets its share from then on, without its unused past share."""
    log = []
    async with RateLimitedExecutor("x", rate=10, order=Fair(), drain_timeout=0) as executor:
        executor.schedule_many(lambda _: log.append("a"), range(200), key="a")
        await asyncio.sleep(10.05)
        log.clear()
        executor.schedule_many(lambda _: log.append("b"), range(50), key="b")
        await asyncio.sleep(2)
    assert abs(log.count("a") - log.count("b")) <= 1


async def test_tasks_without_a_key_share_one(virtual_clock):
    """Plain calls, tasks and batches without a key are one tenant."""
    log = []
    async with RateLimitedExecutor("x", rate=10, order=Fair(), drain_timeout=0) as executor:
        for index in range(30):
            executor.submit(log.append, "none")
            executor.execute(log.append, "none")
            executor.call_later(0, log.append, "none")
            executor.schedule_many(log.append, ["none"])
            executor.submit(log.append, "mine", key=1)
        await asyncio.sleep(4)
    assert abs(log.count("none") - log.count("mine")) <= 1
    assert len(log) >= 40


@pytest.mark.parametrize("kind", ["attribute", "raises", "unhashable", "weights raise", "bad weight"])
async def test_key_of_ones_own_may_come_from_a_function(virtual_clock, kind, caplog):
    """A task whose key function fails has no key: nothing is lost, and a warning says why."""

    def by(task):
        if kind == "raises" and task.name == "b":
            raise ValueError(task.name)
        return [task.name] if kind == "unhashable" else task.name

    def weights(key):
        if kind == "weights raise":
            raise ValueError(key)
        return -1 if kind == "bad weight" else {"a": 2}.get(key, 1)

    log = []
    async with RateLimitedExecutor("x", rate=10, order=Fair(by, weights=weights), drain_timeout=0) as executor:
        for name in "aaaaaaaaabbbbbbbbb":
            executor.submit(log.append, name, name=name, key="ignored")
        executor.schedule_many(log.append, ["batch"] * 3, name="c")
        await asyncio.sleep(0.45)
        if kind == "attribute":
            assert abs(log.count("a") - 2 * log.count("b")) <= 3
        await asyncio.sleep(10)
    assert {"a": 9, "b": 9, "batch": 3} == collections.Counter(log)
    assert (kind != "attribute") == ("by or weights of Fair raised" in caplog.text)


async def test_batch_with_a_key_for_each_item(virtual_clock):
    """With a function as ``key=``, each item of a batch counts for its own key."""
    log = []
    async with RateLimitedExecutor("x", rate=10, order=Fair(), drain_timeout=0) as executor:
        executor.schedule_many(log.append, ["a"] * 50 + ["b"] * 50 + ["c"] * 50, key=lambda item: item)
        await asyncio.sleep(3)
        assert [10, 10, 10] == pytest.approx([log.count(key) for key in "abc"], abs=1)
        lazy = executor.schedule_many(log.append, iter(["d"] * 50), key=str.upper)
        await asyncio.sleep(4)
        assert log.count("d") >= 9
        lazy.cancel()


async def test_batch_with_a_key_and_delays_keeps_both(virtual_clock):
    """Items of several keys start when they are due, in turns where they are due together."""
    log = []
    async with RateLimitedExecutor("x", rate=10, pacing=Pacing.ON_TIME, order=Fair()) as executor:
        items = [("a", 1.0)] * 3 + [("b", 1.0)] * 3 + [("a", 5.0), ("b", 4.0)]
        executor.schedule_many(
            lambda item: log.append((item[0], round(now(), 3))),
            items,
            delays=[delay for _, delay in items],
            key=lambda item: item[0],
        )
    assert [("a", 1.0), ("b", 1.1), ("a", 1.2), ("b", 1.3), ("a", 1.4), ("b", 1.5), ("b", 4.0), ("a", 5.0)] == log


async def test_heavy_tasks_take_their_share_and_no_more(virtual_clock):
    """A key whose tasks cost four times as much starts a quarter as many."""
    log = []
    async with RateLimitedExecutor("x", rate=20, order=Fair(), drain_timeout=0) as executor:
        executor.schedule_many(log.append, ["heavy"] * 100, key="heavy", cost=4)
        for _ in range(100):
            executor.submit(log.append, "light", key="light")
        await asyncio.sleep(8)
    assert log.count("light") == pytest.approx(4 * log.count("heavy"), abs=5)
    assert log.count("light") >= 75


# Cancelling.


@pytest.mark.parametrize("gated", [False, True])
async def test_cancelling_under_fair_loses_and_doubles_nothing(virtual_clock, account, gated):
    """After any cancellations the other tasks start once each, in their shares."""
    rng = random.Random(5)
    log = []
    options = {"key_concurrency": 5} if gated else {}
    async with RateLimitedExecutor("x", rate=100, order=Fair(), **options) as executor:
        handles = {}
        for number in range(900):
            key, delay = rng.choice("abcde"), rng.choice([None, None, 0.3, 1.5])
            handles[number] = executor.schedule(log.append, number, delay=delay, key=key)
        batch = executor.schedule_many(log.append, range(1000, 1100), key="a")
        for _ in range(20):
            await asyncio.sleep(0.1)
            for number in rng.sample(sorted(handles), 30):
                handles[number].cancel()
            account(executor)
        batch.cancel()
        account(executor)
        await asyncio.sleep(0)
    assert len(log) == len(set(log))
    cancelled = {number for number, handle in handles.items() if handle.cancelled()}
    assert {*handles} - cancelled == {number for number in log if number < 1000}


async def test_memory_of_cancelled_tasks_is_freed_under_fair(virtual_clock):
    """Twenty thousand cancelled tasks leave no places and no keys behind."""
    async with RateLimitedExecutor("x", rate=1, order=Fair(), drain_timeout=0) as executor:
        executor.submit(int)
        for key in range(100):
            for handle in [executor.submit(int, key=key) for _ in range(200)]:
                handle.cancel()
        await asyncio.sleep(200)
        assert 0 == executor.statistics().waiting
        assert executor._engine.queue.on_time.ready.count <= 200
        check_forgotten(executor)


async def test_keys_without_tasks_are_forgotten(virtual_clock):
    """Thousands of keys and priorities that each had one task leave nothing behind."""
    async with RateLimitedExecutor("x", order=Fair()) as executor:
        for key in range(10_000):
            executor.submit(int, key=key)
        await asyncio.sleep(10)
        check_forgotten(executor)
        for number in range(1000):
            executor.submit(int, key="a", priority=number)
            await asyncio.sleep(0.01)
        await asyncio.sleep(10)
        check_forgotten(executor)


# Ageing.


async def test_nobody_starves_under_ageing(virtual_clock):
    """A task of low priority starts once it has waited long enough, whatever more important tasks come."""
    async with RateLimitedExecutor("x", rate=5, order=Ageing(2.0), drain_timeout=0) as executor:
        low = executor.submit(now, priority=0)
        low.cancel()
        executor.submit(int, priority=9)
        began = now()
        low = executor.submit(now, priority=0)

        async def flood():
            while True:
                executor.submit(int, priority=5)
                await asyncio.sleep(0.1)  # twice the rate

        flooding = asyncio.create_task(flood())
        started = await low
        flooding.cancel()
        # Those due before 2 s x 5 go first: a hundred tasks at five a second.
        assert began + 15 < started <= began + 21


async def test_ageing_is_what_the_default_order_is_not(virtual_clock):
    """Without ageing, the same flood keeps the task waiting forever."""
    async with RateLimitedExecutor("x", rate=5, drain_timeout=0) as executor:
        executor.schedule_many(int, range(10_000), priority=5)
        low = executor.submit(int)
        await asyncio.sleep(100)
        assert TaskState.WAITING is low.state
        executor.order = Ageing(0.001)
        executor.submit(int, priority=4)
        await asyncio.sleep(5)
        assert TaskState.WAITING is low.state  # it came when the others did


@given(
    tasks=st.lists(st.tuples(st.sampled_from([0, 1, 2, 7]), st.sampled_from([0.0, 0.5, 1.0, 3.0, 6.0])), max_size=40),
    seconds=st.sampled_from([0.1, 1.0, 5.0]),
)
@examples(50)
def test_ageing_orders_by_the_due_time_less_its_seconds_for_each_step(tasks, seconds):
    """Ageing orders due tasks by due time minus its seconds for each step of priority."""

    async def main():
        log = []
        async with RateLimitedExecutor("x", rate=1, order=Ageing(seconds), pacing=Pacing.ON_TIME) as executor:
            executor.pause()
            for priority, delay in tasks:
                executor.schedule(log.append, delay - seconds * priority, delay=delay, priority=priority)
            await asyncio.sleep(8)
            executor.resume()
        return log

    log = run_virtual(main(), limit=10_000)
    assert sorted(log) == pytest.approx(log, abs=1e-9)
    assert len(tasks) == len(log)


# Changing the order.

ORDERS = [default_order, Fair(), Ageing(3), Fair(lambda task: task.name), latest_due_first, earliest_due_first]


def test_every_order_is_public_and_tested():
    """Each order is in the public module, and one of those that are changed while a backlog waits."""
    public = {name: getattr(orders, name) for name in orders.__all__ if name != "TaskView"}
    assert {"Fair", *ordering.__all__} - {"Order", "TaskClass", "TaskView", "view_of"} == set(public)
    assert set() == set(public.values()) - {*map(type, ORDERS), *filter(isfunction, ORDERS)}


@pytest.mark.slow
@given(orders=st.lists(st.sampled_from(ORDERS), min_size=1, max_size=8), seed=st.integers(0, 100), gated=st.booleans())
@examples(20)
def test_changing_the_order_while_a_backlog_waits_loses_nothing(orders, seed, gated):
    """After any change of order, with keys held back or not, each task starts once, and the law holds."""
    rng = random.Random(seed)

    async def main():
        log, times = [], []

        def note(number):
            log.append(number)
            times.append(now())

        options = {"key_rate": 30, "key_concurrency": lambda key: 3} if gated else {}
        expected = 0
        async with RateLimitedExecutor("x", rate=50, **options) as executor:
            for order in [default_order, *orders, default_order]:
                executor.order = order
                for _ in range(rng.choice([3, 40, 300])):
                    delay = rng.choice([None, 0.2, 1.3])
                    executor.schedule(note, expected, delay=delay, key=rng.choice([None, "a", "b", "c"]))
                    expected += 1
                count = rng.choice([0, 50])
                executor.schedule_many(note, range(expected, expected + count), key=rng.choice([None, "a"]))
                expected += count
                await asyncio.sleep(rng.choice([0, 0.1, 0.9]))
        return log, times, expected

    log, times, expected = run_virtual(main(), limit=10_000)
    assert list(range(expected)) == sorted(log)
    assert audit(times, 50).ok


@pytest.mark.parametrize("between", [Fair(), Ageing(1), latest_due_first], ids=["Fair", "Ageing", "latest due first"])
async def test_default_order_is_the_default_again_afterwards(virtual_clock, between):
    """Back in the default order, priority decides first, and then the due time."""
    log = []
    async with RateLimitedExecutor("x", rate=10, pacing=Pacing.ON_TIME) as executor:
        executor.pause()
        for delay in (0.1, 0.5, 0.2, 0.4, 0.3):
            for priority in (0, 2, 1):
                executor.schedule(log.append, (-priority, delay), delay=delay, priority=priority, key=delay)
        await asyncio.sleep(0.6)
        executor.order = between
        await asyncio.sleep(0.1)
        executor.order = default_order
        executor.resume()
    assert sorted(log) == log


@pytest.mark.parametrize(
    "between",
    [
        latest_due_first,
        Fair(lambda task: -task.due),
    ],
    ids=["latest", "fair"],
)
async def test_default_order_is_the_default_again_for_keys_held_back(virtual_clock, between):
    """The default order also returns if no task could have started when it was set."""
    log = []
    async with RateLimitedExecutor("x", rate=10, pacing=Pacing.ON_TIME, key_concurrency=0, order=between) as executor:
        for delay in (0.1, 0.2, 0.3, 0.4, 0.5):
            executor.schedule(log.append, delay, delay=delay, key="a")
        await asyncio.sleep(0.6)
        executor.order = default_order
        await asyncio.sleep(0.1)
        executor.key_concurrency = 1
    assert sorted(log) == log


def test_fair_and_ageing_say_what_they_are():
    """The representations of ``Fair`` and ``Ageing`` contain their arguments."""
    assert "Fair()" == repr(Fair())
    assert "Fair(weights={'a': 2.0})" == repr(Fair(weights={"a": 2}))
    assert "Ageing(1.5)" == repr(Ageing(1.5))
    assert 1.5 == Ageing(1.5).seconds
    assert (2.0, 1.0) == (Fair(weights={"a": 2}).weight("a"), Fair(weights={"a": 2}).weight("b"))
    assert 3.0 == Fair(weights=lambda key: 3).weight("a")
    assert Fair().by is None
