"""The cost of a start: permits and resources, their settlement, and the tasks that wait for them."""

import asyncio
import functools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimited_executor import (
    Burst,
    ExecutorManager,
    Paced,
    Rate,
    RateLimitedExecutor,
    TaskDroppedError,
    TaskState,
    Window,
)
from ratelimited_executor.insight import Hold
from ratelimited_executor.orders import Fair
from ratelimited_executor.peers import StaticPeers
from ratelimited_executor.policies import Quota
from ratelimited_executor.testing import audit, run_virtual, worst_window

from ...helpers import examples, now
from ...kinds import at_once, each_policy

MS = 0.001


def at(*times):
    """Compare with times, to a millisecond."""
    return pytest.approx(list(times), abs=MS)


# What a start takes.


async def test_paced_start_is_followed_by_what_it_costs(virtual_clock):
    """A paced task of cost c starts like any other, and the next one when that is paid for."""
    starts = []
    async with RateLimitedExecutor("x", rate=10) as executor:
        for cost in (1, 5, 1, 3, 1):
            executor.submit(lambda: starts.append(now()), cost=cost)
    assert at(0, 0.1, 0.6, 0.7, 1.0) == starts


async def test_windowed_start_waits_for_room_for_all_of_it(virtual_clock):
    """A task starts when the window has room for its whole cost, and all others wait behind it."""
    starts = []
    async with RateLimitedExecutor("x", rate="10/10s", policy=Window(margin=0)) as executor:
        for cost in (6, 5, 4, 1, 10):
            executor.submit(lambda: starts.append(now()), cost=cost)
    assert at(0, 10, 10, 10, 20) == starts


async def test_start_from_a_bucket_waits_for_what_it_costs(virtual_clock):
    """A task starts when its whole cost has flowed into the bucket."""
    starts = []
    async with RateLimitedExecutor("x", rate=2, policy=Burst(10)) as executor:
        for cost in (8, 6, 1, 10):
            executor.submit(lambda: starts.append(now()), cost=cost)
    assert at(0, 2, 2.5, 7.5) == starts


@pytest.mark.parametrize("policy", each_policy(10), ids=repr)
async def test_starts_without_a_resource_do_not_wait_for_it(virtual_clock, policy):
    """Only tasks that name a resource use it and wait for it, in their order."""
    free, bound = [], []
    async with RateLimitedExecutor("x", rate=100, policy=policy, resources={"tokens": "10/10s"}) as executor:
        for _ in range(3):
            executor.submit(lambda: bound.append(now()), cost={"tokens": 10})
        await asyncio.sleep(0.5)
        executor.submit(lambda: free.append(now()), priority=1)
    assert at(0.5) == free
    assert pytest.approx([0, 10, 20], abs=0.011) == bound, "but for the margin of a window, twice"


async def test_several_resources_hold_at_once(virtual_clock):
    """A start waits for the last of its resources, and uses all of them."""
    starts = []
    async with RateLimitedExecutor(
        "x", policy=Window(margin=0), rate=100, resources={"tokens": "100/60s", "calls": ("3/10s", "5/60s")}
    ) as executor:
        assert {"tokens": (Rate(100, per=60),), "calls": (Rate(3, per=10), Rate(5, per=60))} == executor.resources
        for tokens in (10, 10, 10, 10, 50, 20):
            executor.submit(lambda: starts.append(now()), cost={"tokens": tokens, "calls": 1})
        await asyncio.sleep(1)
        left = {(limit.resource, limit.limit): limit.left for limit in executor.statistics().limits}
        assert {("tokens", "100/min"): 70, ("calls", "3/10s"): 0, ("calls", "5/min"): 2} == {
            key: value for key, value in left.items() if key[0] != "permits"
        }
    assert at(0, 0, 0, 10, 10, 60) == starts


@pytest.mark.parametrize(
    "way", ["submit", "schedule", "batch", "batch by item", "lazy", "permit", "acquire", "threadsafe"]
)
async def test_cost_may_be_given_wherever_work_is(virtual_clock, way):
    """Every method takes a cost: starts of cost 5 at ten a second are half a second apart."""
    starts = []

    def note(*_):
        starts.append(now())

    kept = []
    async with RateLimitedExecutor("x", rate=10, drain_timeout=50) as executor:

        async def hold():
            if way == "acquire":
                await executor.acquire(cost=5)
                note()
            else:
                async with executor.permit(cost=5):
                    note()

        if way == "submit":
            kept += [executor.submit(note, cost=5) for _ in range(4)]
        elif way == "schedule":
            kept += [executor.schedule(note, delay=0.0001, cost={"permits": 5}) for _ in range(4)]
        elif way == "batch":
            executor.schedule_many(note, range(4), cost=5)
        elif way == "batch by item":
            executor.schedule_many(note, range(4), cost=lambda item: 5)
        elif way == "lazy":
            executor.schedule_many(note, iter(range(4)), cost=5)
        elif way == "threadsafe":
            kept += [executor.schedule_threadsafe(note, cost=5) for _ in range(4)]
        else:
            kept += [asyncio.create_task(hold()) for _ in range(4)]
        await asyncio.sleep(10)
    assert [0.5] * 3 == pytest.approx(
        [late - early for early, late in zip(starts, starts[1:], strict=False)], abs=2 * MS
    )


# Settling.


@pytest.mark.parametrize("policy", [Window(margin=0), Burst(10)], ids=repr)
async def test_refund_lets_others_start_at_once(virtual_clock, policy):
    """A refund is available to the next task in the same turn."""
    async with RateLimitedExecutor("x", rate="10/100s", policy=policy) as executor:
        first, second = executor.submit(now, cost=10), executor.submit(now, cost=4)
        await asyncio.sleep(3)
        assert not second.done()
        first.settle(6)
        assert at(3) == [await second]


async def test_refund_of_a_pace_gives_back_what_has_not_passed(virtual_clock):
    """A pace refunds only the future: ten seconds settled to four after three allow the next at the fourth."""
    async with RateLimitedExecutor("x", rate=1) as executor:
        first, second = executor.submit(now, cost=10), executor.submit(now)
        await asyncio.sleep(3.2)
        first.settle(1)
        assert at(4) == [await second]
        third, fourth = executor.submit(now, cost=10), executor.submit(now)
        began = await third
        third.settle(6)
        assert at(began + 6) == [await fourth]


@pytest.mark.parametrize(("policy", "expected"), [(Paced(), 30), (Window(margin=0), 200), (Burst(10), 150)], ids=repr)
async def test_what_was_too_little_is_paid_back_first(virtual_clock, policy, expected):
    """Settled to more than is left, nothing starts before it is paid."""
    rate = 1 if isinstance(policy, Paced) else "10/100s"
    async with RateLimitedExecutor("x", rate=rate, policy=policy) as executor:
        first = executor.submit(now, cost=5)
        await first
        first.settle(30 if isinstance(policy, Paced) else 24 if isinstance(policy, Burst) else 10)
        if isinstance(policy, Window):
            second = executor.submit(now, cost={"permits": 1})
            assert at(100) == [await second]
            second.settle(25)
        next_one = executor.submit(now)
        assert at(expected) == [await next_one]


@pytest.mark.parametrize("peers", [1, 2])
@pytest.mark.parametrize(
    ("resources", "paid"),
    [
        ((Paced(), "100/10s"), 50),
        ((Window(), "100/10s"), 10),
        ((Burst(10), "100/10s"), 40),
        ((Window(), Quota(100, per="minute")), 60),
        ((Window(), [Rate(100, per=10), Rate(100, per=30)]), 30),
    ],
    ids=["paced", "window", "burst", "quota", "several"],
)
@pytest.mark.parametrize("way", ["submit", "schedule", "batch", "lazy", "map", "permit", "acquire", "limited"])
async def test_amount_of_zero_waits_for_a_deficit(virtual_clock, way, resources, paid, peers):
    """While a resource is in deficit, nothing starts that names it, even with an amount of 0."""
    (policy, rates), starts, cost = resources, [], {"tokens": 0}
    paid = paid * peers if isinstance(policy, Paced) else paid
    manager = ExecutorManager(peers=StaticPeers(peers, 0)) if peers > 1 else ExecutorManager()
    async with (
        manager,
        manager.executor("x", policy=policy, resources={"tokens": rates}, drain_timeout=900) as executor,
    ):
        first = executor.submit(now, cost=cost)
        again = executor.submit(now, cost=cost)
        assert at(0, 0) == [await first, await again]  # an amount of 0 takes nothing
        amount = 500 if isinstance(policy, Paced) else 500 // peers if isinstance(policy, Burst) else 101
        first.settle({"tokens": amount})
        waiting = executor.submit(lambda: None, cost=cost)
        await asyncio.sleep(1)
        said = executor.explain(waiting)
        assert (Hold.RESOURCE, True) == (said.hold, said.detail.startswith("tokens "))
        assert at(1) == [await executor.submit(now, priority=5)]
        waiting.cancel()

        async def hold():
            if way == "acquire":
                await executor.acquire(cost=cost)
                starts.append(now())
            else:
                async with executor.permit(cost=cost):
                    starts.append(now())

        kept = []
        if way in {"submit", "schedule"}:
            kept.append(getattr(executor, way)(lambda: starts.append(now()), cost=cost))
        elif way in {"batch", "lazy"}:
            items = range(1) if way == "batch" else iter(range(1))
            executor.schedule_many(lambda _: starts.append(now()), items, cost=lambda _: cost)
        elif way == "map":
            kept.append(asyncio.create_task(anext(aiter(executor.map(lambda _: starts.append(now()), [0], cost=cost)))))
        elif way == "limited":
            kept.append(asyncio.ensure_future(executor.limited(cost=cost)(hold_nothing)(starts)))
        else:
            kept.append(asyncio.create_task(hold()))
        await asyncio.sleep(600)
    assert [paid] == pytest.approx(starts, abs=0.02)


async def hold_nothing(starts):
    """Log a start."""
    starts.append(now())


@pytest.mark.parametrize(
    ("policy", "between"),
    [
        (Paced(), 2),
        (Paced(), 0),
        (Window(margin=0), 2),
        (Window(margin=0), 0),
        (Burst(10), 2),
        (Burst(10), 0),
    ],
    ids=repr,
)
async def test_last_word_counts_however_often_it_is_settled(virtual_clock, policy, between):
    """After any number of settlements only the last one counts."""
    results = []
    for settled in [(7,), (2, 9, between, 7), (10, 7, 7)]:
        async with RateLimitedExecutor("x", rate="10/100s", policy=policy) as executor:
            begin = now()
            first = executor.submit(int, cost=8)
            await first
            for amount in settled:
                first.settle(amount)
            rest = [executor.submit(now) for _ in range(6)]
            results.append([time - begin for time in await asyncio.gather(*rest)])
        await asyncio.sleep(1000 - now() % 1000)
    assert results[0] == pytest.approx(results[1], abs=MS)
    assert results[0] == pytest.approx(results[2], abs=MS)


async def test_settled_to_nothing_it_has_cost_nothing(virtual_clock):
    """A task settled to nothing, such as an answer from a cache, has used no permit."""
    starts = []
    async with RateLimitedExecutor("x", rate="3/100s", policy=Window(margin=0), drain_timeout=0) as executor:

        def cached(number):
            starts.append((number, now()))
            handles[number].settle(0)

        handles = [executor.submit(cached, number, cost={"permits": 1}) for number in range(50)]
        await asyncio.sleep(1)
        assert 50 == len(starts)
        last = [executor.submit(now) for _ in range(4)]
        await asyncio.sleep(100)
        assert at(1, 1, 1, 101) == [await one for one in last[:3]] + [101]
        assert not last[3].done() or last[3].result() >= 101


async def test_held_permit_is_settled_while_it_is_held(virtual_clock):
    """The object given by ``async with`` settles a held permit."""
    async with RateLimitedExecutor(
        "x", rate="100/60s", policy=Window(margin=0), resources={"tokens": "50/60s"}
    ) as executor:
        async with executor.permit(cost={"tokens": 50}) as held:
            waiting = executor.submit(now, cost={"tokens": 20})
            await asyncio.sleep(2)
            assert not waiting.done()
            held.settle({"tokens": 30})
            assert at(2) == [await waiting]
        held.settle({"tokens": 5})  # after its end, too
        assert at(2) == [await executor.submit(now, cost={"tokens": 25})]


@pytest.mark.parametrize("policy", each_policy(10), ids=repr)
async def test_task_that_is_settled_before_its_start_costs_that(virtual_clock, policy):
    """A task settled before its start costs that amount, and at least a permit."""
    async with RateLimitedExecutor("x", rate="10/10s", policy=policy) as executor:
        executor.pause()
        first, second, third = (executor.submit(now, cost=cost) for cost in (2, 9, 9))
        first.settle(8)
        second.settle(2)
        third.settle(0)
        assert (8, 2, 1) == (first.cost, second.cost, third.cost)
        await asyncio.sleep(1)
        executor.resume()
        begin = await first
        gap = 8 if at_once(policy, "10/10s") is None else 0  # the one before is paid for first
        assert await second == pytest.approx(begin + gap, abs=MS)


@pytest.mark.parametrize("policy", [Window(margin=0), Burst(10)], ids=repr)
async def test_task_that_is_settled_to_less_before_its_start_may_start_at_once(virtual_clock, policy):
    """A task that waits for eight permits and is settled to two may start at once."""
    async with RateLimitedExecutor("x", rate="10/100s", policy=policy) as executor:
        executor.submit(int, cost=5)
        waiting = executor.submit(now, cost=8)
        await asyncio.sleep(2)
        waiting.settle(2)
        assert at(2) == [await waiting]


async def test_settling_after_the_window_has_passed_matters_no_more(virtual_clock):
    """Settling a cost that has left the window changes nothing."""
    async with RateLimitedExecutor("x", rate="5/10s", policy=Window(margin=0)) as executor:
        first = executor.submit(int, cost=5)
        await asyncio.sleep(11)
        first.settle(0)
        starts = [executor.submit(now) for _ in range(6)]
        assert at(11, 11, 11, 11, 11, 21) == await asyncio.gather(*starts)


async def test_settling_is_refused_for_what_was_not_reserved(virtual_clock):
    """Settling is refused for a task without a cost, and for a resource that it did not name."""
    async with RateLimitedExecutor("x", rate=10, resources={"tokens": 10}) as executor:
        plain, keyed = executor.submit(int), executor.submit(int, key="a")
        some = executor.submit(int, cost={"tokens": 3})
        for handle in (plain, keyed):
            with pytest.raises(ValueError, match="cost="):
                handle.settle(2)
        with pytest.raises(ValueError, match="bytes"):
            some.settle({"bytes": 1})
        some.settle({"tokens": 4})
        some.settle({})
        some.settle({"permits": 2})
        assert {"permits": 2, "tokens": 4} == dict(some.needs)
        plain.settle({})


@example(policy=Paced(), tasks=[(10, 0, 5.0), (1, 0, 0.0), (1, 0, 0.0), (5, 5, 0.0), (10, 10, 0.0), (1, 0, 0.0)])
@example(policy=Burst(10), tasks=[(2, 0, 0.3)] * 4 + [(3, 2, 0.0), (9, 9, 0.0)])
@given(
    policy=st.sampled_from([Paced(), Burst(10)]),
    tasks=st.lists(st.tuples(st.integers(1, 10), st.integers(0, 10), st.sampled_from([0.0, 0.3, 5.0])), max_size=20),
)
@examples(60)
def test_law_holds_for_what_was_reserved_and_for_what_is_left_of_it(policy, tasks):
    """Starts settled to less stay within the law of their final costs."""

    async def main():
        starts = []

        async def work(number, actual, seconds):
            starts.append((now(), actual))
            await asyncio.sleep(seconds)
            handles[number].settle(actual)

        async with RateLimitedExecutor("x", rate="10/2s", policy=policy) as executor:
            handles = [
                executor.submit(work, number, min(cost, actual), seconds, cost=cost)
                for number, (cost, actual, seconds) in enumerate(tasks)
            ]
        return starts

    starts = run_virtual(main(), limit=10_000)
    times, costs = [time for time, _ in starts], [cost for _, cost in starts]
    assert len(tasks) == len(starts)
    if isinstance(policy, Paced):
        assert audit(times, "10/2s", costs=costs).ok
    else:
        assert audit(times, "10/2s", slack=0.005, burst=10, costs=costs).ok


# Nobody starves.


@given(tasks=st.lists(st.tuples(st.integers(1, 10), st.integers(0, 10), st.sampled_from([0.0, 0.3, 5.0])), max_size=20))
@examples(40)
def test_window_holds_for_what_is_left_of_a_reservation(tasks):
    """Starts keep the exact window of their final costs."""

    async def main():
        starts = []

        async def work(number, actual, seconds):
            starts.append((now(), actual))
            await asyncio.sleep(seconds)
            handles[number].settle(actual)

        async with RateLimitedExecutor("x", rate="10/2s", policy=Window()) as executor:
            handles = [
                executor.submit(work, number, min(cost, actual), seconds, cost=cost)
                for number, (cost, actual, seconds) in enumerate(tasks)
            ]
        return starts

    starts = run_virtual(main(), limit=10_000)
    assert len(tasks) == len(starts)
    assert worst_window([time for time, _ in starts], 2, costs=[cost for _, cost in starts])[0] <= 10


@pytest.mark.parametrize("policy", each_policy(10), ids=repr)
@pytest.mark.parametrize("order", ["default", "fair"])
async def test_heavy_task_is_not_starved_by_light_ones(virtual_clock, policy, order):
    """A heavy task gets its turn, and light ones wait for it, however many come."""
    options = {"order": Fair()} if order == "fair" else {}
    async with RateLimitedExecutor("x", rate=10, policy=policy, drain_timeout=0, **options) as executor:

        async def flood():
            while True:
                for _ in range(3):
                    executor.submit(int, key="light")
                await asyncio.sleep(0.1)

        flooding = asyncio.create_task(flood())
        await asyncio.sleep(2.05)
        asked, ahead = now(), executor.statistics().waiting
        heavy = executor.submit(now, key="heavy", cost=10)
        started = await asyncio.wait_for(heavy, 300)
        flooding.cancel()
        if order == "default":
            assert started <= asked + (ahead + 12) / 10
        else:
            assert started <= asked + 2.2


@pytest.mark.parametrize("policy", [Window(margin=0), Burst(10)], ids=repr)
async def test_heavy_task_for_a_resource_is_not_starved(virtual_clock, policy):
    """Light users of a resource wait behind a heavy one."""
    async with RateLimitedExecutor(
        "x", policy=policy, rate=1000, resources={"tokens": "10/s"}, drain_timeout=0
    ) as executor:

        async def flood():
            while True:
                executor.submit(int, cost={"tokens": 1})
                await asyncio.sleep(0.05)

        flooding = asyncio.create_task(flood())
        await asyncio.sleep(1.01)
        heavy = executor.submit(now, cost={"tokens": 10})
        started = await asyncio.wait_for(heavy, 60)
        flooding.cancel()
        assert started <= 4


# More than is ever admitted.


@pytest.mark.parametrize(
    ("options", "cost", "most"),
    [
        ({"rate": "5/s", "policy": Window()}, 6, 5),
        ({"rate": ("5/s", "3/min")}, 4, 3),
        ({"rate": 100, "policy": Burst(7)}, 8, 7),
        ({"rate": Quota(9, per="day")}, 10, 9),
        ({"resources": {"tokens": "50/s"}, "policy": Window()}, {"tokens": 51}, 50),
        ({"resources": {"tokens": "50/s"}, "policy": Burst(2)}, {"tokens": 51}, 50),
        ({"resources": {"tokens": Quota(50, per="hour")}}, {"tokens": 51}, 50),
        ({"resources": {"tokens": (10, "50/min")}}, {"tokens": 51}, 50),
    ],
    ids=repr,
)
async def test_cost_beyond_any_limit_is_refused_at_the_call(virtual_clock, options, cost, most):
    """A cost that no limit ever admits is refused at the call; the largest possible one is accepted."""
    async with RateLimitedExecutor("x", **options) as executor:
        for call in (
            lambda: executor.submit(int, cost=cost),
            lambda: executor.schedule(int, delay=5, cost=cost),
            lambda: executor.permit(cost=cost),
            lambda: executor.schedule_many(int, [1], cost=cost),
            lambda: executor.schedule_many(int, [1, 2], cost=lambda item: cost),
        ):
            with pytest.raises(ValueError, match=rf"cost.* must be <= {most}, or it is never admitted"):
                call()
        with pytest.raises(ValueError, match="never admitted"):
            await executor.acquire(cost=cost)
        assert 0 == executor.statistics().accepted
        least = {resource: most for resource in cost} if isinstance(cost, dict) else most
        assert 0 == await executor.submit(int, cost=least)


@pytest.mark.parametrize("cost", [1000, {"tokens": 100_000}])
async def test_any_cost_is_admitted_by_a_pace(virtual_clock, cost):
    """A pace admits any cost, in the time that it takes."""
    async with RateLimitedExecutor("x", rate=10, resources={"tokens": 1000}) as executor:
        first, second = executor.submit(now, cost=cost), executor.submit(now, cost={"tokens": 1})
        assert at(0, 100) == [await first, await second]


@pytest.mark.parametrize("kind", ["task", "permit", "batch", "delayed"])
async def test_rate_lowered_below_the_cost_of_a_waiting_task_drops_it(virtual_clock, account, handler, kind):
    """A rate lowered below a waiting task's cost drops it with a reason, and those behind continue."""
    handler()
    async with RateLimitedExecutor("x", rate="10/s", policy=Window()) as executor:
        await executor.submit(int, cost=8)
        if kind == "task":
            heavy = executor.submit(int, cost=6)
        elif kind == "delayed":
            heavy = executor.schedule(int, delay=0.5, cost=6)
        elif kind == "batch":
            heavy = executor.schedule_many(int, range(3), cost=6, results=True)
        else:

            async def hold():
                async with executor.permit(cost=6):
                    pass

            heavy = asyncio.create_task(hold())
            await asyncio.sleep(0)
        light = executor.schedule(now, delay=0.6)
        executor.rate = "5/s"
        await asyncio.sleep(3)
        account(executor)
        assert light.done()
        assert executor.statistics().dropped == (3 if kind == "batch" else 1)
        if kind == "batch":
            assert 3 == heavy.summary.dropped
            assert all(isinstance(one.error, TaskDroppedError) for one in heavy.results.values())
        else:
            error = heavy.exception()
            assert isinstance(error, TaskDroppedError)
            assert "6 permits" in str(error)
        if kind in ("task", "delayed"):
            assert TaskState.DROPPED is heavy.state


async def test_resource_that_is_taken_away_is_not_waited_for(virtual_clock):
    """Tasks that name a removed resource start as if they did not name it."""
    async with RateLimitedExecutor("x", rate=100, resources={"tokens": "1/100s"}) as executor:
        executor.submit(int, cost={"tokens": 1})
        waiting = executor.submit(now, cost={"tokens": 1})
        await asyncio.sleep(1)
        executor.resources = None
        assert {} == executor.resources
        assert at(1) == [await waiting]


async def test_resource_at_a_rate_of_0_is_paused(virtual_clock):
    """A resource at rate 0 holds its tasks, whatever their cost, until it has a rate again."""
    async with RateLimitedExecutor(
        "x", rate=100, policy=Window(), resources={"tokens": 10}, drain_timeout=0
    ) as executor:
        executor.pause()
        handles = [executor.submit(now, cost={"tokens": 5}) for _ in range(2)]
        for handle in handles:
            handle.add_done_callback(lambda handle: handle.exception())
        executor.resources = {"tokens": 0}
        executor.resume()
        await asyncio.sleep(5)
        assert [TaskState.WAITING] * 2 == [handle.state for handle in handles]
        executor.resources = {"tokens": 10}
        assert at(5, 5) == [await handle for handle in handles]


async def test_cost_is_seen_by_the_order_and_told_by_the_handle(virtual_clock):
    """The order function and the handle see the cost, so light tasks may go first."""
    log = []
    async with RateLimitedExecutor("x", rate=1, order=lambda task: (task.cost, task.arrival)) as executor:
        executor.pause()
        for cost in (5, 2, 9, 1):
            handle = executor.submit(functools.partial(log.append, cost), cost=cost)
            assert cost == handle.cost
        executor.schedule_many(log.append, [3], cost=3)
        executor.resume()
    assert [1, 2, 3, 5, 9] == log


async def test_unlimited_executor_takes_costs(virtual_clock):
    """Without a rate, costs delay nothing."""
    async with RateLimitedExecutor("x") as executor:
        handles = [executor.submit(now, cost=1_000_000) for _ in range(100)]
        assert [0.0] * 100 == await asyncio.gather(*handles)
        assert Hold.NOTHING is executor.explain(handles[0]).hold
