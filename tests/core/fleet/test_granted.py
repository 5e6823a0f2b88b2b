"""Permits granted by the authority are used within their time by any clock, and answer as numbered permits do."""

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core import queue
from ratelimited_executor._kernel import admission
from ratelimited_executor._core.fleet.clock import ServerClock
from ratelimited_executor._core.fleet.granted import GrantedPermits
from ratelimited_executor._core.permits import PermitGrid
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._core.rates import Rate

from .two_clocks import DRIFTS, MS, NOW_NS, NS, TwoClocks

LATE_NS = 18 * MS
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.lists(st.integers(-30 * MS, 300 * MS), max_size=8)),
        st.tuples(st.just("run"), st.one_of(st.integers(0, 5 * MS), st.integers(0, 100 * MS))),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("exchange"), st.integers(0, 12 * MS)),
        st.tuples(st.just("drop"), st.just(0)),
        st.tuples(st.just("drift"), DRIFTS),
    ),
    max_size=40,
)


@given(OPS)
@settings(max_examples=400, deadline=None)
def test_permits_are_used_in_their_time_by_any_clock(ops):
    """A permit is used by no possible clock before its time, or more than ``late`` after it."""
    clocks, clock = TwoClocks(), ServerClock()
    clocks.exchange(clock, 300_000, 300_000)
    permits = GrantedPermits(clock, Rate(100), late_ns=LATE_NS)
    held: list[int] = []
    dropped = taken = 0
    total = 0
    for action, value in ops:
        if action == "hold":
            times = [clock.at(clocks.now_ns) + shift for shift in value]
            permits.hold(times)
            held = sorted(held + times)
            total += len(times)
        elif action == "run":
            clocks.run(value)
        elif action == "exchange":
            clocks.exchange(clock, value, 0)
        elif action == "drop":
            dropped += permits.held_count()
            permits.drop()
            held.clear()
        elif action == "drift":
            clocks.drift = value
        else:
            count = permits.usable(clocks.now_ns)
            error = clock.error_ns(clocks.now_ns)
            earliest, latest = (clock.at(clocks.now_ns) + sign * error for sign in (-1, 1))
            held = [time for time in held if time >= latest - LATE_NS]
            assert sum(time <= earliest for time in held) == count
            for time in held[: min(value, count)]:
                assert time <= earliest <= latest <= time + LATE_NS
            permits.take(min(value, count))
            del held[: min(value, count)]
            taken += min(value, count)
        assert total == permits.held_count() + permits.taken_count + permits.lapsed_count + dropped
        assert taken == permits.taken_count


@given(st.integers(0, 5 * MS), st.integers(0, 60 * NS), st.lists(st.integers(0, 300 * MS), min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_next_time_is_when_a_permit_may_be_taken(delay, age, shifts):
    """Waiting until the next time, repeatedly if the error has grown, finds a permit, and none before."""
    clocks, clock = TwoClocks(), ServerClock()
    clocks.exchange(clock, delay, delay)
    clocks.run(age)
    late = 4 * clock.error_ns(clocks.now_ns) + LATE_NS
    permits = GrantedPermits(clock, Rate(100), late_ns=late)
    permits.hold(clock.at(clocks.now_ns) + shift for shift in shifts)
    number_time = permits.next_number_time()
    now = clocks.now_ns
    for _ in range(4):
        if permits.usable(now):
            break
        when = permits.next_time(now)
        assert when is not None
        assert max(now, number_time) <= when
        assert not permits.usable(when - 2 * MS if when - 2 * MS > now else now)
        now = when
    assert permits.usable(now) > 0
    assert now == permits.next_time(now)


@given(st.integers(0, 5 * MS), st.integers(0, 60 * NS), st.lists(st.integers(0, 30 * MS), min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_permits_stay_usable_until_the_time_that_is_told(delay, age, shifts):
    """Permits stay usable until the given time, so that the queue counts them once."""
    clocks, clock = TwoClocks(), ServerClock()
    clocks.exchange(clock, delay, delay)
    clocks.run(age)
    late = 4 * clock.error_ns(clocks.now_ns) + LATE_NS
    permits = GrantedPermits(clock, Rate(100), late_ns=late)
    permits.hold(clock.at(clocks.now_ns) + shift for shift in shifts)
    now = permits.next_time(clocks.now_ns) + MS
    count = permits.usable(now)

    assert permits.usable(permits.usable_until_ns) >= count


def questions() -> Iterator[str]:
    """Ask all that a queue asks of its permits."""
    for module in (queue, admission):
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self.permits":
                yield node.attr


@pytest.mark.parametrize("name", sorted({*questions()}))
def test_queue_asks_both_kinds_of_permits_the_same(name):
    """Numbered and granted permits answer every question of the queue."""
    permits = GrantedPermits(ServerClock(), Rate(100), late_ns=LATE_NS)

    assert hasattr(permits, name)
    assert hasattr(PermitGrid(Rate(100), slack_ns=LATE_NS, now_ns=NOW_NS), name)


def answers(permits, now: int) -> list[object]:
    """Return what is usable at some times."""
    return [permits.usable(now), permits.next_time(now), permits.next_fresh_time(now + 1), permits.time_after(now, 1)]


@pytest.mark.parametrize("rate", [Rate(0), Rate(math.inf)], ids=str)
def test_extreme_rates_are_answered_as_by_numbered_permits(rate):
    """At rate 0 nothing is usable, and at an infinite rate everything, whatever permits are held."""
    clock = ServerClock()
    clock.assume(0, NOW_NS)
    permits = GrantedPermits(clock, Rate(100), late_ns=LATE_NS)
    permits.hold([NOW_NS - MS, NOW_NS + MS])
    permits.set_rate(rate, NOW_NS)
    numbered = PermitGrid(Rate(100), slack_ns=LATE_NS, now_ns=NOW_NS)
    numbered.set_rate(rate, NOW_NS)

    if rate.is_zero:
        assert [0, None, None, None] == answers(permits, NOW_NS) == answers(numbered, NOW_NS)
    else:
        assert [UNLIMITED, NOW_NS] == answers(permits, NOW_NS)[:2] == answers(numbered, NOW_NS)[:2]
        assert UNLIMITED == permits.count_until(NOW_NS, NOW_NS + 1) == numbered.count_until(NOW_NS, NOW_NS + 1)
        assert NOW_NS == permits.time_after(NOW_NS, 9) == numbered.time_after(NOW_NS, 9)
        permits.take(5)
        assert (2, 0, NOW_NS) == (permits.held_count(), permits.taken_count, permits.usable_until_ns)


def test_nothing_is_usable_before_the_clock_is_known():
    """Before the clock is known no permit is usable, and no time is expected."""
    permits = GrantedPermits(ServerClock(), Rate(100), late_ns=LATE_NS)
    permits.hold([NOW_NS])

    assert (0, None, None) == (permits.usable(NOW_NS), permits.next_time(NOW_NS), permits.next_fresh_time(NOW_NS))
    assert permits.next_number_time() > NOW_NS + 10**9 * NS


def test_nothing_is_usable_after_our_clock_has_stood_still():
    """After the local clock has stood still no permit is usable, and no time is returned that would be waited for."""
    clock = ServerClock()
    clock.assume(0, NOW_NS)
    is_whole = True
    permits = GrantedPermits(clock, Rate(100), late_ns=LATE_NS, is_clock_whole=lambda: is_whole)
    permits.hold([NOW_NS])
    assert 1 == permits.usable(NOW_NS)
    is_whole = False

    assert (0, 1) == (permits.usable(NOW_NS), permits.held_count())
    assert permits.next_time(NOW_NS) is None


def test_permits_that_are_held_are_counted_by_time():
    """Held permits are counted by the authority's time, in whatever order they came."""
    clock = ServerClock()
    clock.assume(5 * NS, NOW_NS)
    permits = GrantedPermits(clock, Rate(10), late_ns=LATE_NS)
    base = NOW_NS + 5 * NS
    permits.hold([base + 30, base + 10])
    permits.hold([base + 20])

    assert [3, 0, 1, 2, 3] == [permits.held_count(until and base + until) for until in (None, 1, 11, 30, 31)]
    assert NOW_NS + 10 == permits.next_number_time()
    permits.drop()
    assert (0, None) == (permits.held_count(), permits.next_time(NOW_NS))


def test_expectations_are_what_is_held_and_an_even_share():
    """Expected permits are those held, and an even share of the rate afterwards."""
    clock = ServerClock()
    clock.assume(0, NOW_NS)
    permits = GrantedPermits(clock, Rate(10), late_ns=LATE_NS)
    permits.peers = 2
    permits.hold(NOW_NS + shift * MS for shift in (10, 20))

    assert [2, 5, 2] == [permits.count_until(NOW_NS, NOW_NS + span * MS) for span in (100, 1000, 21)]
    assert [10, 20, 200, 400] == [(permits.time_after(NOW_NS, count) - NOW_NS) // MS for count in (1, 2, 3, 4)]
