"""The effects of user functions, cancelling, settling and closing on limits of keys, shares and room."""

import asyncio
import gc
from collections import Counter

import pytest

from ratelimited_executor import (
    BacklogFullError,
    Burst,
    ExecutorStoppedError,
    Paced,
    Rate,
    RateLimitedExecutor,
    RetryLater,
    TaskExpiredError,
    WhenFull,
    Window,
    default_order,
)
from ratelimited_executor.insight import Hold
from ratelimited_executor.orders import Fair, latest_due_first
from ratelimited_executor.policies import Adaptive, Quota
from ratelimited_executor.retries import parse_retry_after
from ratelimited_executor.testing import worst_window

from ...helpers import first_quick, now
from ...kinds import each_policy

ORDERS = {
    "default": default_order,
    "fair": Fair(),
    "latest": latest_due_first,
    "fair by name": Fair(lambda task: task.name),
}
TEN_A_MINUTE = Rate(10, per=60)


# Keys of classes of the user.


class FragileKey:
    """A key whose hash and equality raise while ``what`` says so."""

    what = ""

    def __init__(self, number) -> None:
        self.number = number

    def __hash__(self):
        if self.what == "hash":
            raise OSError(self.what)
        return hash(self.number)

    def __eq__(self, other):
        if self.what == "equality":
            raise OSError(self.what)
        return self.number == other.number


@pytest.mark.parametrize("what", ["hash", "equality"])
@pytest.mark.parametrize("order", [*ORDERS, "fair by key"])
@pytest.mark.parametrize("name", ["key_rate", "key_concurrency", "key_max_pending"])
async def test_key_that_goes_bad_loses_no_task(virtual_clock, monkeypatch, account, what, order, name):
    """A key whose hash begins to raise loses no task: accepted tasks start, end and are cancelled as usual."""
    started, limit = Counter(), {"key_rate": 100, "key_concurrency": 2, "key_max_pending": 9}[name]
    order = ORDERS.get(order, Fair(lambda task: task.key))
    async with RateLimitedExecutor("x", rate=100, order=order, **{name: limit}) as executor:
        handles = [
            executor.schedule(started.update, [index % 5], key=FragileKey(index % 5), delay=0.1 * (index % 3))
            for index in range(30)
        ]
        batch = executor.schedule_many(started.update, [[0]] * 4, key=lambda _: FragileKey(7), delay=0.1)
        handles.append(executor.schedule(started.update, [9], key=FragileKey(9), delay=5))
        await asyncio.sleep(0.05)
        monkeypatch.setattr(FragileKey, "what", what)
        handles[-1].cancel()
        await asyncio.sleep(0.3)
        account(executor)
        with pytest.raises(OSError, match=what):
            executor.submit(str, key=FragileKey(1)), executor.submit(str, key=FragileKey(1))
        monkeypatch.setattr(FragileKey, "what", "")
        await asyncio.sleep(1)
        account(executor)
        assert all(handle.done() for handle in handles) and batch.done()
        assert handles[0].key.number == 0
    assert {0: 10, 1: 6, 2: 6, 3: 6, 4: 6} == started


@pytest.mark.parametrize("order", ["default", "fair"])
async def test_equal_keys_of_a_class_are_one(virtual_clock, order):
    """Equal keys of a class are one key for limits, backlog and penalties; functions get a key of the user."""
    seen = set()

    def limit_of(key):
        seen.add(type(key))
        return 1

    async with RateLimitedExecutor(
        "x", order=ORDERS[order], key_concurrency=limit_of, key_max_pending=2, drain_timeout=0
    ) as executor:
        for _ in range(3):
            executor.submit(asyncio.sleep, 1, key=FragileKey(1))
            await asyncio.sleep(0)
        with pytest.raises(BacklogFullError) as caught:
            executor.submit(str, key=FragileKey(1))
        assert caught.value.key.number == 1
        assert executor.backlog_seconds(FragileKey(1)) == float("inf")
        executor.penalize(60, key=FragileKey(2))
        held = executor.submit(str, key=FragileKey(2))
        assert Hold.PENALTY is executor.explain(held).hold
    assert {FragileKey} == seen


# Shares of keys that have limits of their own.


@pytest.mark.parametrize("policy", each_policy(3), ids=repr)
@pytest.mark.parametrize("weight", first_quick([3, 0.5, 20]))
@pytest.mark.parametrize("part", [0.5, 0.95, 1.1, 1.5, 3])
async def test_key_gets_the_lesser_of_its_rate_and_its_share(virtual_clock, policy, weight, part):
    """A key gets the lesser of its rate and its weighted share, whatever the ratio of the two."""
    starts = Counter()
    share = 30 * weight / (weight + 2)
    key_rates = {"gold": Rate(round(part * share * 20), per=20)}
    async with RateLimitedExecutor(
        "x", rate=30, policy=policy, order=Fair(weights={"gold": weight}), key_rate=key_rates.get, drain_timeout=0
    ) as executor:
        executor.pause()
        for key in ("gold", "a", "b"):
            executor.schedule_many(lambda _, key=key: starts.update([key]), range(2000), key=key)
        executor.resume()
        await asyncio.sleep(20)
    assert starts["gold"] / 20 == pytest.approx(min(part, 1) * share, rel=0.05, abs=1)
    assert abs(starts["a"] - starts["b"]) <= 30  # a window's permits go all at once: one key may be ahead by them


async def test_key_that_was_held_back_saves_nothing_up(virtual_clock):
    """After a long penalty a key goes first for a few tasks, and then in turn."""
    log = []
    async with RateLimitedExecutor("x", rate=100, order=Fair(), drain_timeout=0) as executor:
        for key in ("a", "b"):
            executor.schedule_many(lambda _, key=key: log.append(key), range(3000), key=key)
        executor.penalize(10, key="a")
        await asyncio.sleep(10)
        log.clear()
        await asyncio.sleep(1)
    assert 50 <= log.count("a") <= 55, log


@pytest.mark.parametrize(("reserved", "actual"), [(1, 5), (50, 5), (5, 5)])
async def test_shares_go_by_what_was_settled(virtual_clock, reserved, actual):
    """Shares follow settled costs: neither a low nor a high estimate pays off."""
    used = Counter()

    async def call(handles, key, amount):
        await asyncio.sleep(0)
        handles.pop(0).settle(amount)
        used[key] += amount

    async with RateLimitedExecutor("x", rate=100, order=Fair(), drain_timeout=0) as executor:
        for _ in range(400):
            for key, estimate in (("a", reserved), ("b", 5)):
                box = []
                box.append(executor.submit(call, box, key, actual, key=key, cost={"permits": estimate}))
        await asyncio.sleep(20)
    assert used["a"] == pytest.approx(used["b"], abs=60), used
    assert sum(used.values()) >= 1900


async def test_one_task_at_a_time_pays_for_what_it_has_used(virtual_clock):
    """A key that has one task at a time still owes the cost that it settled."""
    used = Counter()

    async def serial(executor, key, estimate):
        while True:
            handle = executor.submit(int, key=key, cost={"permits": estimate})
            await handle
            handle.settle(5)
            used[key] += 5

    async with RateLimitedExecutor("x", rate=100, order=Fair(), drain_timeout=0) as executor:
        executor.schedule_many(lambda _: used.update({"busy": 5}), range(2000), key="busy", cost=5)
        client = asyncio.create_task(serial(executor, "a", 1))
        await asyncio.sleep(20)
        client.cancel()
    assert used["a"] <= 1.1 * used["busy"], used


@pytest.mark.parametrize("policy", [Window(), Burst(30)], ids=repr)
@pytest.mark.parametrize("order", ["default", "fair"])
async def test_permits_that_come_all_at_once_go_to_what_is_first_of_all(virtual_clock, policy, order):
    """Permits that come up together go to the first tasks of all, even if these are examined last."""
    log = []
    async with RateLimitedExecutor("x", rate=30, policy=policy, order=ORDERS[order], drain_timeout=0) as executor:
        for priority, key in enumerate("abc"):
            executor.schedule_many(log.append, [key] * 20_000, key=key, priority=priority if order == "default" else 0)
        await asyncio.sleep(0.01)
    assert {"default": {"c": 30}, "fair": {"a": 10, "b": 10, "c": 10}}[order] == Counter(log)


# Limits of keys under functions of the user.


@pytest.mark.parametrize("order", ORDERS)
async def test_limits_go_by_the_key_and_not_by_the_share(virtual_clock, order):
    """Limits follow ``key=``; ``by=`` of a fair order only defines shares."""
    starts, most, running = [], [0], [0]

    async def call():
        starts.append(now())
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(1.7)
        running[0] -= 1

    async with RateLimitedExecutor("x", rate=100, order=ORDERS[order], key_rate="1/s", key_concurrency=1) as executor:
        handles = [executor.submit(call, key="a", name=str(number)) for number in range(4)]
        await asyncio.gather(*handles)
    assert 1 == most[0]
    assert (1, starts[0]) == worst_window(starts, 0.97)


@pytest.mark.parametrize("limit", ["key_rate", "key_concurrency"])
@pytest.mark.parametrize("order", ORDERS)
async def test_function_of_a_key_may_cancel_its_task(virtual_clock, account, order, limit):
    """A key function may cancel its task, which is cancelled once and does not start."""
    handles, is_armed = {}, []

    def limit_of(key):
        if is_armed:
            handles[key].cancel()
        return 5

    async with RateLimitedExecutor("x", rate=10, order=ORDERS[order], **{limit: limit_of}) as executor:
        executor.pause()
        handles.update((key, executor.submit(str, key=key)) for key in "abc")
        is_armed.append(True)
        executor.resume()
        await asyncio.sleep(2)
        account(executor)
        counts = executor.statistics()
        assert (3, 3, 0, 0) == (counts.accepted, counts.cancelled, counts.started, counts.waiting)


@pytest.mark.parametrize("rate", [5, 0])
@pytest.mark.parametrize("what", ["schedule", "order"])
@pytest.mark.parametrize("order", ORDERS)
async def test_function_of_a_key_may_change_what_is_first(virtual_clock, account, handler, order, what, rate):
    """A key function may schedule a more important task or set an order; both hold at once, nothing is lost."""
    done, reports = [], handler()

    def rate_of(key):
        if key == "refresh":
            return 5
        if not done:
            done.append(None)
            if what == "schedule":
                done[0] = executor.submit(now, key="refresh", priority=1)
            else:
                executor.order = default_order if order == "fair" else Fair()
        return rate

    async with RateLimitedExecutor("x", rate=10, order=ORDERS[order], drain_timeout=0) as executor:
        executor.pause()
        handles = [executor.submit(now, key=key) for key in "abc"]
        executor.key_rate = rate_of
        executor.resume()
        await asyncio.sleep(10)
        account(executor)
        assert all(handle.done() == bool(rate) for handle in handles)
        if what == "schedule":
            assert await done[0] < 0.5
    assert [] == reports


async def test_function_of_a_key_is_asked_when_the_key_is_seen_first(virtual_clock):
    """A key function is called when its key is first seen, and not again while the key is in use."""
    asked = Counter()

    def rate_of(key):
        asked[key] += 1
        return 5

    async with RateLimitedExecutor("x", rate=1000, key_rate=rate_of, drain_timeout=0) as executor:
        await executor.submit(str, key="a")
        before = asked["a"]
        for _ in range(1000):
            executor.submit(str, key="a")
        await asyncio.sleep(0.5)
    assert before == asked["a"] <= 2


@pytest.mark.parametrize(("options", "name"), [({"key_rate": lambda key: "foo"}, "key_rate"), ({"key_concurrency": lambda key: "2"}, "key_concurrency")])  # fmt: skip
async def test_function_of_a_key_that_tells_no_limit_is_refused_by_name(virtual_clock, account, options, name):
    """A key function that returns no limit fails the scheduling call, which changes nothing."""
    async with RateLimitedExecutor("x", **options) as executor:
        with pytest.raises((TypeError, ValueError), match=f"{name} of the key 'a'"):
            executor.submit(int, key="a")
        account(executor)
        assert 0 == executor.statistics().accepted


# What goes without a start.


@pytest.mark.parametrize("how", ["cancel", "permit", "drop", "expire", "cancel of a batch"])
@pytest.mark.parametrize("of", ["rate", "key", "key, fair"])
async def test_what_waited_for_a_costly_task_that_has_gone_starts_at_once(virtual_clock, how, of):
    """A task that waited behind a costly one starts at once when that is cancelled, if it fits."""
    options = {"rate": TEN_A_MINUTE} if of == "rate" else {"rate": 100, "key_rate": TEN_A_MINUTE}
    if of == "key, fair":
        options["order"] = Fair()
    if how == "drop":
        options |= {"max_pending": 2, "when_full": WhenFull.DROP_OLDEST}
    async with RateLimitedExecutor("x", policy=Window(), drain_timeout=0, **options) as executor:
        executor.submit(int, cost=5, key="a")
        await asyncio.sleep(0.1)

        async def hold():
            async with executor.permit(cost=10, key="a"):
                raise AssertionError

        if how == "permit":
            costly = asyncio.ensure_future(hold())
            await asyncio.sleep(0)
        elif how == "cancel of a batch":
            costly = executor.schedule_many(int, [1], cost=10, key="a")
        else:
            costly = executor.submit(int, cost=10, key="a", expires=0.8 if how == "expire" else None)
        small = executor.submit(now, cost=1, key="a")
        await asyncio.sleep(1)
        if how == "drop":
            executor.schedule(int, delay=100, key="a")
        elif how == "expire":
            await asyncio.sleep(1.5)  # a deadline is looked at in the interval after it
        else:
            costly.cancel()
        assert await small <= (2.7 if how == "expire" else 1.11)
        if how not in ("permit", "cancel of a batch"):
            with pytest.raises(BaseException):  # noqa: B017, PT011  # each ends in its own way
                await costly


@pytest.mark.parametrize("order", ["default", "fair"])
async def test_refund_lets_the_next_task_of_the_key_start(virtual_clock, order):
    """A refund lets the next task of the key start at once."""
    async with RateLimitedExecutor(
        "x", rate=100, policy=Window(), key_rate=TEN_A_MINUTE, order=ORDERS[order]
    ) as executor:
        first, following = executor.submit(int, cost=10, key="a"), executor.submit(now, cost=5, key="a")
        await asyncio.sleep(1)
        first.settle(1)
        assert await following <= 1.01


@pytest.mark.parametrize("order", ["default", "fair"])
@pytest.mark.parametrize("options", [{"key_rate": lambda key: 0}, {"key_concurrency": 0}], ids=["rate", "concurrency"])
async def test_halted_keys_are_forgotten_with_their_tasks(virtual_clock, order, options):
    """Halted keys hold no memory once none of their tasks wait."""

    def handle_count():
        return sum(type(each).__name__ == "TaskHandle" for each in gc.get_objects())

    before = handle_count()
    async with RateLimitedExecutor("x", rate=1000, order=ORDERS[order], **options) as executor:
        for number in range(300):
            executor.submit(bytes, 1000, key=number, expires=1)
        handle = executor.submit(int, key="cancelled")
        await asyncio.sleep(5)
        handle.cancel()
        del handle
        await asyncio.sleep(3600)
        gc.collect()
        assert (0, 0) == (executor.statistics().waiting, executor.statistics().keys)
        assert handle_count() <= before


@pytest.mark.parametrize("by", ["rate", "penalty"])
async def test_closing_does_not_wait_until_an_idle_key_is_forgotten(virtual_clock, by):
    """Closing does not wait for an idle key's state to lapse if only a halted task is left."""
    key_rates = {"halted": 0, "slow": Rate(1, per=86400)}
    async with RateLimitedExecutor("x", rate=100, key_rate=key_rates.get) as executor:
        if by == "rate":
            await executor.submit(str, key="slow")
        else:
            executor.penalize(3600, key="other")
        halted = executor.submit(str, key="halted")
        await asyncio.sleep(1)
    assert halted.cancelled()
    assert now() < 3


async def test_timers_of_a_key_do_not_pile_up(virtual_clock):
    """Timers of a key do not pile up when its first task changes again and again."""
    async with RateLimitedExecutor("x", rate=1000, policy=Window(), key_rate=Rate(1, per=86400), drain_timeout=0) as executor:  # fmt: skip
        await executor.submit(str, key="a")
        for number in range(1000):
            handle = executor.submit(str, key="a", priority=number)
            await asyncio.sleep(0.001)
            handle.cancel()
        assert len(executor._engine.queue.gate._timers) < 100


# Rates that change.


@pytest.mark.parametrize(
    ("rates", "between"),
    [
        ([Rate(4), Rate(6, per=60)], [Rate(4), Rate(20, per=30), Rate(6, per=60)]),
        ([Rate(4), Rate(6, per=60)], 0),
        ([Rate(4), Quota(6, per="hour")], 0),
        ([Rate(4), Quota(6, per="hour")], [Quota(6, per="hour"), Rate(3)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", [Paced(), Window()], ids=repr)
async def test_limit_that_stays_counts_what_it_has_counted(virtual_clock, rates, between, policy):
    """A limit keeps its counts while others are added beside it for a while, or the rate is 0."""
    starts = []
    async with RateLimitedExecutor("x", rate=rates, policy=policy, drain_timeout=0) as executor:
        executor.schedule_many(lambda _: starts.append(now()), range(40))
        await asyncio.sleep(10)
        executor.rate = between
        await asyncio.sleep(1)
        executor.rate = rates
        await asyncio.sleep(5)
    assert 6 == len(starts), starts


@pytest.mark.parametrize(("is_up", "rate"), [(False, 2), (True, 10)])
async def test_adaptive_keeps_its_bounds_in_whole_permits(virtual_clock, is_up, rate):
    """Under ``Window`` the bounds are whole permits: the floor rounded up, the ceiling rounded down."""
    async with RateLimitedExecutor(
        "x", rate=5, policy=Window(), adaptive=Adaptive(floor=1.5, ceiling=10.5, increase=1), drain_timeout=0
    ) as executor:
        for _ in range(30):
            if is_up:
                executor.schedule_many(str, range(12))
            else:
                executor.penalize(None)  # a header that was missing: there was too much, and no time was named
            await asyncio.sleep(1.1)
        assert rate == executor.rate.per_second


async def test_header_of_a_year_is_obeyed_for_as_long_as_a_penalty(virtual_clock):
    """A ``Retry-After`` of a year, surely a mistake, is limited by ``penalty_max``."""
    calls = []

    def call():
        calls.append(now())
        if len(calls) == 1:
            raise RetryLater(parse_retry_after("31536000"))

    async with RateLimitedExecutor("x", penalty_max=60) as executor:
        await executor.submit(call)
    assert calls[1] <= 62


# Permits that go on late, and rooms.


@pytest.mark.parametrize("options", [{"rate": 50}, {"rate": 5000, "key_rate": 50}], ids=["rate", "key_rate"])
@pytest.mark.parametrize("cost", [1, 2])
async def test_window_counts_a_waiter_when_it_goes_on(virtual_clock, options, cost):
    """A window counts a waiter when it continues, which may be long after its start was decided."""
    starts = []

    async def wait(executor):
        async with executor.permit(key="a", cost=cost):
            starts.append(now())
            asyncio.get_running_loop().block_for(0.002)

    async with RateLimitedExecutor("x", policy=Window(), **options) as executor:
        await asyncio.gather(*(wait(executor) for _ in range(200)))
    assert 50 // cost == worst_window(starts, 1.0)[0]
    assert starts[-1] < 4.8 * cost


async def test_quota_counts_a_waiter_in_the_period_in_which_it_goes_on(virtual_clock):
    """A quota counts a waiter in the period in which it continues."""
    loop = asyncio.get_running_loop()
    starts = []

    async def wait(executor):
        async with executor.permit():
            starts.append(loop.clock.wall())
            loop.block_for(0.01)

    async with RateLimitedExecutor("x", rate=Quota(5, per="minute"), drain_timeout=0) as executor:
        await asyncio.sleep(60 - loop.clock.wall() % 60 - 0.02)
        waiters = [asyncio.ensure_future(wait(executor)) for _ in range(15)]
        await asyncio.sleep(100)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    assert 5 >= max(Counter(int(start // 60) for start in starts).values())
    assert len(starts) >= 10


@pytest.mark.parametrize("is_closing", [False, True])
async def test_permit_waits_for_room_no_longer_than_it_may(virtual_clock, is_closing):
    """A permit waits for room neither beyond its deadline nor while its executor closes."""
    async with RateLimitedExecutor("x", rate=Rate(1, per=100), max_pending=1, when_full=WhenFull.WAIT) as executor:
        await executor.submit(str)
        executor.submit(str)
        permit = executor.permit(expires=None if is_closing else 1)
        if is_closing:
            executor.shutdown()
        begin = now()
        with pytest.raises(ExecutorStoppedError if is_closing else TaskExpiredError):
            await permit.__aenter__()
        assert now() - begin == pytest.approx(0 if is_closing else 1, abs=0.01)
        assert 0 == executor.statistics().waiters
        executor.shutdown(cancel_pending=True)


async def test_place_that_was_waited_for_counts_towards_the_deadline(virtual_clock):
    """``expires=`` of a permit counts from the request, including the wait for room."""
    async with RateLimitedExecutor("x", rate=Rate(1, per=10), max_pending=1, when_full=WhenFull.WAIT) as executor:
        await executor.submit(str)
        executor.submit(str)  # starts at 10, and makes room
        begin = now()
        with pytest.raises(TaskExpiredError):
            async with executor.permit(expires=15):
                raise AssertionError
        assert now() - begin == pytest.approx(15, abs=1.1)  # a deadline is looked at in the interval after it


async def test_lines_of_several_keys_are_served_in_order(virtual_clock):
    """Waiters for room are served in order of arrival, except for full keys; cancelled ones leave no trace."""
    log = []

    async def schedule(number, key):
        await executor.schedule_wait(int, key=key)
        log.append((number, key))

    async with RateLimitedExecutor(
        "x", rate=Rate(1), max_pending=3, key_max_pending=2, when_full=WhenFull.WAIT, drain_timeout=0
    ) as executor:
        await executor.submit(int)
        for _ in range(2):
            executor.submit(int, key="a")
        executor.submit(int)
        waiters = [asyncio.ensure_future(schedule(number, key)) for number, key in enumerate("aabbac")]
        await asyncio.sleep(0)
        waiters[1].cancel()
        await asyncio.sleep(20)
        assert 0 == executor.statistics().waiters
    assert [0, 2, 3, 4, 5] == sorted(number for number, _ in log)
    for key in "ab":
        assert sorted(mine := [number for number, each in log if each == key]) == mine


@pytest.mark.parametrize("order", [Fair, latest_due_first.__class__], ids=["Fair", "function"])
def test_class_is_no_order(order):
    """A class is refused as an order: its parentheses were forgotten."""
    with pytest.raises(TypeError, match="call it first"):
        RateLimitedExecutor("x", order=order)


@pytest.mark.parametrize(("name", "value"), [("key_rate", {"a": "1/s"}), ("key_concurrency", {"a": 1})])
def test_mapping_of_keys_is_refused_with_the_remedy(name, value):
    """A mapping of keys is refused with the remedy: a function."""
    with pytest.raises(TypeError, match=f"{name} must be .* its method get"):
        RateLimitedExecutor("x", **{name: value})


@pytest.mark.parametrize(("argument", "remedy"), [("delay", "schedule"), ("retries", "retry="), ("at", "schedule")])
async def test_argument_of_another_method_is_refused_with_the_remedy(virtual_clock, argument, remedy):
    """An argument of another method is refused with that method as the remedy, not ``functools.partial``."""
    async with RateLimitedExecutor("x") as executor:
        with pytest.raises(TypeError, match=f"{argument}=: use {remedy}"):
            executor.submit(int, **{argument: 3})


def test_name_of_a_resource_is_told_with_a_bad_rate():
    """A bad rate of a resource is refused by the resource's name, not as "rate"."""
    with pytest.raises(ValueError, match="resources\\['tokens'\\]"):
        RateLimitedExecutor("x", resources={"tokens": "many"})


def test_quotas_are_seen_in_the_representation():
    """The representation contains quotas, which are part of the rate."""
    assert "100 per minute" in repr(RateLimitedExecutor("x", rate="100 per minute UTC, 10/s"))


async def test_backlog_goes_by_costs_resources_and_keys(virtual_clock):
    """``backlog_seconds``, as for ``Retry-After`` of a 503, includes costs, resources and keys."""
    cases = [
        ({"rate": "1/s"}, {"cost": 10}, 590),
        ({"rate": "60/min", "resources": {"tokens": "1000/min"}, "policy": Window()}, {"cost": {"tokens": 100}}, 300),
        ({"rate": 100, "key_rate": "1/s"}, {"key": "a"}, 59),
        ({"key_rate": "1/s"}, {"key": "a"}, 59),
    ]
    for options, rare, expected in cases:
        async with RateLimitedExecutor("x", drain_timeout=0, **options) as executor:
            for _ in range(60):
                executor.submit(str, **rare)
            assert executor.backlog_seconds() == pytest.approx(expected, abs=0.6), options


async def test_backlog_beyond_the_calendar_is_infinite(virtual_clock):
    """A backlog beyond the calendar, as with a quota of one a month, is infinite."""
    async with RateLimitedExecutor("x", rate=Quota(1, per="month"), drain_timeout=0) as executor:
        executor.schedule_many(str, range(200_000))
        await asyncio.sleep(1)
        assert float("inf") == executor.backlog_seconds()


async def test_position_of_a_held_task_counts_those_that_pass_it(virtual_clock):
    """The position of a task whose key waits includes the tasks that pass it."""
    log = []
    async with RateLimitedExecutor("x", rate=10, order=Fair(), key_rate={"slow": "1/s"}.get) as executor:
        handles = [executor.submit(log.append, "slow", key="slow") for _ in range(20)]
        executor.schedule_many(log.append, ["a"] * 500, key="a")
        await asyncio.sleep(0.01)
        word = executor.explain(handles[-1])
        before = len(log)
        await handles[-1]
        assert word.position == pytest.approx(len(log) - 1 - before, abs=2)
        executor.shutdown(cancel_pending=True)
