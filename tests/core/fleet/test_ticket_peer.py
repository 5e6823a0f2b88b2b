"""A peer of shared limits: when it calls, and what it knows of the limits in force."""

from fractions import Fraction

import pytest

from ratelimited_executor._core.fleet.clock import ServerClock
from ratelimited_executor._core.fleet.limit_settings import PaceSettings, WindowSettings
from ratelimited_executor._core.fleet.policies import Outage
from ratelimited_executor._core.fleet.ticket_calls import PlanLimit, TicketRun
from ratelimited_executor._core.fleet.ticket_peer import NEWS_NS, TicketPeer, TicketSettings
from ratelimited_executor._core.fleet.tickets import TicketAuthority

SECOND = 1_000_000
PACE = PlanLimit("permits/rate", "permits", PaceSettings.of(5, SECOND).write())
WINDOW = PlanLimit("permits/window/60", "permits", WindowSettings.of(60, 60 * SECOND).write())
TOKENS = PlanLimit("tokens/window/60", "tokens", WindowSettings.of(6, 60 * SECOND).write())


def peer_of(name, *plan):
    settings = TicketSettings(id=name, weight=1000, ahead_us=100_000, difference_us=0, outage=Outage.STOP)
    return TicketPeer(settings, f"plan of {name}", lambda _: plan, ServerClock())


def exchange(authority, *peers, now_us=10**9):
    """Let peers call at one moment of both clocks, in order."""
    for peer in peers:
        peer.clock.measure(now_us * 1000, now_us * 1000, now_us * 1000)
        call = peer.request((), now_us * 1000)
        peer.receive(call, authority.call(now_us, "run", call), is_step=False, now_ns=now_us * 1000)


def test_peer_that_is_to_learn_the_limits_calls_at_once_and_then_again_and_again():
    """A peer without tasks calls again and again while the limits in force are asked for."""
    peer = peer_of("a", PACE)
    peer.watch(5 + NEWS_NS)
    assert peer.next_call(0, 5) <= 5
    authority = TicketAuthority()
    for now_us in (10**6, 10**6 + 1, 10**7):  # until a quarantine that it has vouched for is over
        peer.watch(now_us * 1000 + NEWS_NS)
        exchange(authority, peer, now_us=now_us)
    assert peer.next_call(0, 10**10) == 10**10 + NEWS_NS // 3


def test_peer_without_tasks_puts_its_limits_in_force_as_it_starts():
    """A peer without tasks calls as it starts, so that its limits are in force and a quarantine begins, and then rests."""
    authority, first, second = TicketAuthority(), peer_of("a", PACE), peer_of("b", WINDOW)
    for each, now_us in ((first, 10**6), (second, 10**7)):
        assert each.next_call(0, now_us * 1000) <= now_us * 1000
        exchange(authority, each, now_us=now_us)
    assert "plan of b" == authority.memory.plan_id
    exchange(authority, second, now_us=10**7 + 1)  # the first answer has told it the time, for which it vouches now
    assert second.next_call(0, 10**10 + 2000) is None


def test_peer_without_a_limit_leaves_the_limits_of_the_others_in_force():
    """A peer without a limit, from its start or from now on, does not lift that of the others."""
    authority, first, second = TicketAuthority(), peer_of("a", PACE), peer_of("b")
    exchange(authority, first, second, first)
    assert (PACE,) == authority.memory.plan
    assert first.is_own_plan
    second.set_plan("one a second", lambda _: (WINDOW,), 10**12)
    exchange(authority, second)
    assert (WINDOW,) == authority.memory.plan
    second.set_plan("none", lambda _: (), 10**12)
    exchange(authority, second, first)
    assert (WINDOW,) == authority.memory.plan


@pytest.mark.parametrize(
    ("plan", "rate"),
    [
        ((PACE,), 5),
        ((PACE, WINDOW, TOKENS), 1),
        ((TOKENS,), None),
        ((), 1),  # it has none, and leaves that of the other in force
        ((PlanLimit("permits/rate", "permits", PaceSettings.of(0, SECOND).write()),), 0),
    ],
)
def test_rate_in_force_is_that_of_the_slowest_limit_on_starts(plan, rate):
    """The rate is known from the first answer on: that of the slowest limit on starts, whoever has set the limits."""
    authority, first, second = TicketAuthority(), peer_of("a", WINDOW), peer_of("b", *plan)
    assert second.rate is None
    exchange(authority, first)
    assert first.rate == pytest.approx(1, rel=0.001)
    exchange(authority, second, first)
    for each in (first, second):
        assert each.rate == (None if rate is None else pytest.approx(Fraction(rate), rel=0.001))


def test_peer_that_holds_many_asks_for_more_when_three_quarters_of_them_are_due():
    """A peer that was granted many tickets, one every 10 ms, wants more, and asks once three quarters of them are due."""
    peer = peer_of("a", PlanLimit("permits/rate", "permits", PaceSettings.of(100, SECOND).write()))
    authority = TicketAuthority()
    for now_us in (10**6, 10**6 + 1, 10**7):
        exchange(authority, peer, now_us=now_us)
    now_us = 10**7 + SECOND
    peer.clock.measure(now_us * 1000, now_us * 1000, now_us * 1000)
    call = peer.request((TicketRun(8, (("permits", 1),)),), now_us * 1000)
    peer.receive(call, authority.call(now_us, "run", call), is_step=False, now_ns=now_us * 1000)
    assert 8 == peer.budget.ticket_count
    assert 60 <= (peer.next_call(1, now_us * 1000) / 1000 - now_us) / 1000 < 61
