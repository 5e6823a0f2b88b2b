"""Feedback of the remote service: penalties, and the rate that it accepts."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor import (
    Burst,
    ExecutorManager,
    Paced,
    Rate,
    RateLimitedExecutor,
    Retry,
    RetryLater,
    Window,
)
from ratelimited_executor.orders import Fair
from ratelimited_executor.peers import StaticPeers
from ratelimited_executor.policies import Adaptive
from ratelimited_executor.retries import parse_retry_after
from ratelimited_executor.testing import VirtualClock, audit

from ...helpers import Flaky, first_quick, now, seen
from ...kinds import check_law, each_policy

# Left alone.


async def test_penalty_holds_all_starts_for_its_time(virtual_clock):
    """A penalty holds all starts; running tasks continue, a shorter one changes nothing, ``penalty_max`` bounds it."""
    async with RateLimitedExecutor("x", rate=100, penalty_max=60) as executor:
        running = executor.submit(asyncio.sleep, 1)
        await asyncio.sleep(0.5)
        executor.penalize(10)
        executor.penalize(timedelta(seconds=3))
        assert 10 == executor.statistics().penalty
        handles = [executor.submit(now) for _ in range(3)]
        await running
        assert 1 == now()
        assert [10.5] * 3 == pytest.approx(await asyncio.gather(*handles), abs=0.05)
        executor.penalize(1e9)
        assert 60 == pytest.approx(executor.statistics().penalty)
        began = now()
        assert await executor.submit(now) == pytest.approx(began + 60, abs=0.02)
        executor.penalize(0)
        assert 0 == executor.statistics().penalty


@pytest.mark.parametrize("policy", each_policy(5), ids=repr)
async def test_nothing_is_saved_up_while_it_is_left_alone(virtual_clock, policy):
    """A penalty saves up no permits: the law holds afterwards."""
    starts = []
    async with RateLimitedExecutor("x", rate=5, policy=policy, drain_timeout=0) as executor:
        executor.schedule_many(lambda _: starts.append(now()), range(100))
        await asyncio.sleep(2)
        count = len(starts)
        executor.penalize(10)
        await asyncio.sleep(9.9)
        assert count == len(starts)
        await asyncio.sleep(3)
    check_law(policy, starts, 5)
    assert len(starts) >= count + 13


async def test_unlimited_executor_can_be_left_alone(virtual_clock):
    """A penalty also holds an unlimited executor, which is unlimited again afterwards."""
    async with RateLimitedExecutor("x") as executor:
        executor.penalize(5)
        handles = [executor.submit(now) for _ in range(2000)]
        call = []
        executor.call_later(1, lambda: call.append(now()))
        assert [5.0] * 2000 == pytest.approx(await asyncio.gather(*handles), abs=0.01)
        assert [5.0] == pytest.approx(call, abs=0.01)


# As fast as it can be asked.


class Server:
    """Serves a number of requests in any second, and refuses the others."""

    def __init__(self, capacity) -> None:
        self.capacity = capacity
        self.served: list[float] = []
        self.refused = 0

    def ask(self, *_) -> None:
        """Be served, or be asked to retry."""
        self.served = [time for time in self.served if time > now() - 1]
        if len(self.served) >= self.capacity:
            self.refused += 1
            raise RetryLater(after=0.5)
        self.served.append(now())


@pytest.mark.parametrize("policy", [Paced(), Burst(1)], ids=repr)
async def test_rate_finds_what_a_server_can_take(virtual_clock, policy):
    """The rate rises while all succeed, falls on overload, and stays within its bounds."""
    server = Server(20)
    rates = []
    async with RateLimitedExecutor(
        "x", rate=5, policy=policy, adaptive=Adaptive(floor=2, ceiling=100, increase=1), drain_timeout=0
    ) as executor:
        executor.schedule_many(server.ask, range(100_000), results=False)
        for _ in range(200):
            await asyncio.sleep(1)
            rates.append(float(executor.rate))
            assert 2 <= rates[-1] <= 100
        done = executor.statistics().done
        assert done >= 0.65 * 20 * 185
        assert server.refused < 0.1 * done
        assert executor.rate == executor.statistics().rate
        server.capacity = 0
        await asyncio.sleep(30)
        assert Rate(2) == executor.rate
        server.capacity = 1000
        await asyncio.sleep(150)
        assert 100 == float(executor.rate)
    assert 18 <= max(rates[:60]) <= 25


async def test_rate_that_is_not_used_does_not_rise(virtual_clock):
    """A rate that is not used does not rise: nobody knows whether the service would accept more."""
    async with RateLimitedExecutor("x", rate=10, adaptive=Adaptive(floor=1, ceiling=50, increase=1)) as executor:
        for _ in range(100):
            executor.submit(int)
            await asyncio.sleep(1)
        assert Rate(10) == executor.rate


@pytest.mark.parametrize("policy", each_policy(6), ids=repr)
@pytest.mark.parametrize("peers", first_quick([2, 1, 3]))
async def test_rate_that_is_divided_rises_by_the_use_of_the_part(virtual_clock, policy, peers):
    """A process compares its use with its own part of the rate, since it does not know the others."""
    rules = Adaptive(floor=6, ceiling=90, increase=6)
    async with ExecutorManager(peers=StaticPeers(peers, 0)) as manager:
        busy = manager.executor("busy", rate=30, policy=policy, adaptive=rules, drain_timeout=0)
        idle = manager.executor("idle", rate=30, policy=policy, adaptive=rules, drain_timeout=0)
        busy.schedule_many(int, itertools.repeat(0))
        idle.schedule_many(int, range(150 // peers), over=30)
        await asyncio.sleep(20)
        assert 90 == float(busy.rate)
        busy.penalize(None)
        assert 45 == float(busy.rate)
        await asyncio.sleep(20)
        assert 90 == float(busy.rate)
        assert Rate(30) == idle.rate


class Parts:
    """Processes with fixed parts of one rate."""

    def __init__(self, count, rate, rules) -> None:
        self.managers = [ExecutorManager(peers=StaticPeers(count, rank)) for rank in range(count)]
        self.executors = [
            manager.executor("x", rate=rate, adaptive=rules, drain_timeout=0) for manager in self.managers
        ]
        self.starts: list[float] = []

    async def __aenter__(self):
        for manager in self.managers:
            await manager.start()
        return self

    async def __aexit__(self, *_):
        for manager in self.managers:
            await manager.aclose()

    def load(self, executor, work=None):
        """Give one executor endless work."""

        def start(_):
            self.starts.append(now())
            if work is not None:
                work()

        executor.schedule_many(start, itertools.repeat(0), results=False)

    @property
    def rate(self):
        """The rate of the group: the mean of the executors' rates."""
        return sum(float(executor.rate) for executor in self.executors) / len(self.executors)


@pytest.mark.parametrize("count", first_quick([2, 4, 10]))
async def test_rate_of_all_parts_falls_and_rises_as_one(virtual_clock, count):
    """The group's rate rises by at most ``increase`` a period, and is used in full at the ceiling."""
    async with Parts(count, 100, Adaptive(floor=20, ceiling=100, increase=10)) as parts:
        for executor in parts.executors:
            parts.load(executor)
        await asyncio.sleep(5)
        for executor in parts.executors:
            executor.penalize(None)
        assert 50 == parts.rate
        before = parts.rate
        for _ in range(20):
            await asyncio.sleep(1)
            assert before <= parts.rate <= before + 10.01
            before = parts.rate
        assert 100 == parts.rate
        parts.starts.clear()
        await asyncio.sleep(10)
        assert len(parts.starts) >= 985  # the exact law leaves a hundredth
    assert audit(parts.starts, 100, slack=0.005).ok


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4, 10])
async def test_part_of_one_falls_and_recovers_beside_the_others(virtual_clock, count):
    """Overload, penalty and work of one process move only its own part of the rate."""
    async with Parts(count, 100, Adaptive(floor=20, ceiling=200, increase=10)) as parts:
        busy, *others = parts.executors
        parts.load(busy)
        await asyncio.sleep(20)
        assert 200 == float(busy.rate)
        assert {Rate(100)} == {other.rate for other in others}
        busy.penalize(10)
        assert 100 == float(busy.rate)
        for other in others:
            parts.load(other)
        await asyncio.sleep(9.9)
        assert 100 == float(busy.rate)
        assert all(float(other.rate) >= 170 for other in others)
        await asyncio.sleep(20)
        assert 200 == parts.rate
        parts.starts.clear()
        await asyncio.sleep(5)
        assert 990 <= len(parts.starts) <= 1001


@pytest.mark.parametrize("count", [2, 4, 10])
async def test_parts_that_are_little_used_do_not_rise(virtual_clock, count):
    """A start every 1.2 s does not use a part of two permits a second, so the part does not rise."""
    async with Parts(count, 2 * count, Adaptive(floor=1, ceiling=200, increase=1)) as parts:
        for _ in range(50):
            await asyncio.sleep(1.2)
            for executor in parts.executors:
                executor.submit(int)
        assert 2 * count <= parts.rate <= 2.1 * count  # two starts that happen to be close may look like use


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4, 10])
async def test_parts_find_what_a_server_can_take(virtual_clock, count):
    """Each process finds the server's capacity by its own observations."""
    server = Server(60)
    async with Parts(count, 20, Adaptive(floor=10, ceiling=200, increase=2)) as parts:
        for executor in parts.executors:
            parts.load(executor, server.ask)
        await asyncio.sleep(60)
        done, refused = sum(executor.statistics().done for executor in parts.executors), server.refused
        await asyncio.sleep(60)
        done = sum(executor.statistics().done for executor in parts.executors) - done
        assert done >= 0.6 * 60 * 60
        assert server.refused - refused <= 0.1 * done
        server.capacity = 0
        await asyncio.sleep(60)
        assert 10 == parts.rate


async def test_one_overload_counts_once(virtual_clock):
    """Requests refused together halve the rate once; a penalty counts as an overload, too."""
    async with RateLimitedExecutor(
        "x", rate=64, adaptive=Adaptive(floor=1, ceiling=100, decrease=0.5, period=2), retry=Retry(2, base=50, cap=50)
    ) as executor:

        async def refused():
            await asyncio.sleep(1)
            raise RetryLater

        for _ in range(20):
            executor.submit(refused).add_done_callback(seen)
        await asyncio.sleep(1.5)
        assert Rate(32) == executor.rate
        await asyncio.sleep(2)
        executor.penalize(0.1)
        executor.penalize(0.1)
        assert Rate(16) == executor.rate


async def test_rate_of_a_window_adapts(virtual_clock, handler, account):
    """The rate of a window adapts by whole permits."""
    reports = handler()
    async with RateLimitedExecutor(
        "x", rate="10/2s", policy=Window(), adaptive=Adaptive(floor=1, ceiling=20), drain_timeout=0
    ) as executor:
        executor.schedule_many(Flaky(60), range(200))
        await asyncio.sleep(60)
        account(executor)
        assert [] == reports
        assert 60 < executor.statistics().started


async def test_rate_adapts_where_nothing_is_tried_again(virtual_clock):
    """A task that raises ``RetryLater`` means overload, even if it is not retried."""
    async with RateLimitedExecutor(
        "x", rate=64, adaptive=Adaptive(floor=1, ceiling=100), retry=None, drain_timeout=0
    ) as executor:
        executor.submit(Flaky(9)).add_done_callback(seen)
        await asyncio.sleep(0.5)
        assert Rate(32) == executor.rate


# Headers.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ("  ", None),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("-1", None),
        ("1.5", 1.5),
        ("1e3", None),
        ("٣", None),
        ("soon", None),
        ("inf", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 80.0),
        ("Wednesday, 21-Oct-15 07:28:00 GMT", 80.0),
        ("Wed Oct 21 07:28:00 2015", 80.0),
        ("Wed, 21 Oct 2015 07:26:40 GMT", 0.0),
        ("Wed, 21 Oct 1915 07:28:00 GMT", 0.0),
        ("Wed, 41 Oct 2015 07:28:00 GMT", None),
        ("Wed, 21 Oct 2015 27:28:00 GMT", None),
    ],
)
def test_header_is_read(value, expected):
    """A header in seconds or as a date is read as seconds from now; None if it is not usable."""
    assert expected == parse_retry_after(value, now=1445412400)


@given(st.text(max_size=60) | st.text("0123456789:GMT,- SunMonOctJan+", max_size=40))
def test_no_header_raises(value):
    """No header raises, whatever the server sends."""
    found = parse_retry_after(value, now=1e9)
    assert found is None or found >= 0


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)))  # noqa: DTZ001  # its zone is put in below
def test_date_of_a_header_is_the_time_until_then(when):
    """A date in a header becomes the time until then, to the second."""
    when = when.replace(tzinfo=UTC, microsecond=0)
    assert max(0.0, when.timestamp() - 1e9) == parse_retry_after(format_datetime(when, usegmt=True), now=1e9)


def test_seconds_of_a_header_can_be_waited_for():
    """The seconds that are read are accepted by ``RetryLater``."""
    found = parse_retry_after("9" * 400)
    assert found is None or RetryLater(found)


# Time passes while it is decided.


@pytest.fixture
def passing_time(virtual_clock, monkeypatch):
    """Let time pass at every reading of the clock, as outside tests."""
    read = VirtualClock.monotonic

    def look(clock):
        clock.block(2e-4)
        return read(clock)

    monkeypatch.setattr(VirtualClock, "monotonic", look)


async def test_step_of_the_rate_is_no_later_than_the_decision_that_takes_it(passing_time, handler):
    """A decision at a given time finds every rate step of that time in force."""
    reports, rates = handler(), set()
    async with RateLimitedExecutor(
        "x", rate=200, adaptive=Adaptive(floor=50, ceiling=2000, increase=70, decrease=0.8), drain_timeout=0
    ) as executor:
        executor.schedule_many(lambda _: None, range(100_000))
        for second in range(20):
            await asyncio.sleep(1)
            if second % 5 == 4:
                executor.penalize(0)
            rates.add(executor.rate)
    assert [] == reports
    assert len(rates) > 10


@pytest.mark.parametrize("order", ["key function", "by", "weights"])
async def test_order_may_change_the_rate_in_the_middle_of_a_decision(virtual_clock, handler, order):
    """A rate set by the order function counts from the time of the running decision."""
    reports, rates = handler(), itertools.cycle([50, 1000, 77])

    def change(_):
        virtual_clock.block(0.0004)
        executor.rate = next(rates)
        return 1

    orders = {"key function": change, "by": Fair(change), "weights": Fair(weights=change)}
    async with RateLimitedExecutor("x", rate=100, order=orders[order]) as executor:
        for number in range(600):
            executor.schedule(int, delay=0.01 * (number % 50), key=number)
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(30)
        assert 600 == executor.statistics().done
    assert [] == reports
