"""A peer of shared limits: when it calls, and what it knows of the limits in force."""

from fractions import Fraction

import pytest

from ratelimited_executor._core.fleet.budget import HeldTicket, KeyBudgetLimit
from ratelimited_executor._core.fleet.clock import ServerClock
from ratelimited_executor._core.fleet.limit_settings import PaceSettings, WindowSettings
from ratelimited_executor._core.fleet.policies import Outage
from ratelimited_executor._core.fleet.ticket_calls import PlanLimit, TicketRun
from ratelimited_executor._core.fleet.ticket_peer import NEWS_NS, TICKETS_MAX, TicketPeer, TicketSettings
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


def test_peer_whose_tickets_lapse_asks_for_few_and_then_for_more_again():
    """A peer that could not use most of its tickets asks for a few, and for twice as many after each call that could."""
    peer = peer_of("a", PACE)
    assert peer.room == TICKETS_MAX
    peer.budget.lapsed_count += 500
    peer.request((), 1)
    assert [4] == [peer.room]
    rooms = []
    for now_ns in range(2, 12):
        peer.budget.used_count += 1
        peer.request((), now_ns)
        rooms.append(peer.room)
    assert [8, 16, 32, 64] == rooms[:4]
    assert rooms[-1] == TICKETS_MAX


def test_peer_whose_calls_get_no_answer_asks_for_fewer():
    """After a call without an answer the next one asks for half as many tickets: a smaller one may be answered in time."""
    peer = peer_of("a", PACE)
    peer.fail(peer.request((), 1), 1)
    assert peer.room == TICKETS_MAX // 2
    for now_ns in range(2, 20):
        peer.fail(peer.request((), now_ns), now_ns)
    assert 4 == peer.room


def test_peer_that_uses_its_tickets_late_asks_for_longer_lives_and_then_for_later_tickets():
    """Tickets live for twice the time until they are used; where they may not, they are to be of a later time."""
    peer = peer_of("a", PACE)
    for _ in range(20):
        peer.note_delay(100_000_000)
    assert peer.wanted_life_us == pytest.approx(200_000, rel=0.01)
    assert peer.request((), 1).after_us > 0, "the latest tickets lived no longer than a moment"
    authority = TicketAuthority()
    for now_us in (10**9, 10**9 + 1, 10**9 + 2 * SECOND):
        peer.clock.measure(now_us * 1000, now_us * 1000, now_us * 1000)
        call = peer.request((TicketRun(1, (("permits", 1),)),), now_us * 1000)
        peer.receive(call, authority.call(now_us, "run", call), is_step=False, now_ns=now_us * 1000)
    assert 0 == peer.after_us, "now they live long enough"
    for _ in range(20):
        peer.note_delay(600_000_000)
    assert 150_000 == peer.after_us


def test_corrections_of_many_keys_all_come_with_the_settings_of_their_keys():
    """What lapses of more keys than fit into a call is given back by the next calls, and again after a lost one."""
    peer, settings = peer_of("a", PACE), WindowSettings.of(1, SECOND).write()
    for number in range(450):
        ticket = HeldTicket(1, 2, {}, (), f"key {number}", settings, 1, 1)
        peer.budget.correct_key(ticket, -1 if number % 2 else 1)
    told = set()
    for now_ns in range(1, 4):
        call = peer.request((), now_ns)
        known = {run.key: run.settings for run in call.runs}
        assert all(known[each.key] == settings for each in call.corrections)
        told |= {each.key for each in call.corrections}
    assert 450 == len(told)
    peer.fail(call, 4)
    again = peer.request((), 5)
    assert 25 == len(again.corrections), "the charges of the lost call"
    assert {settings} == {run.settings for run in again.runs}


def test_question_about_a_later_time_takes_no_ticket_of_a_key_away():
    """To ask when a key may start after a penalty leaves the tickets that may be used until then."""
    peer, settings = peer_of("a", PACE), WindowSettings.of(10, SECOND).write()
    peer.clock.measure(10**9, 10**9, 10**9)
    limit = KeyBudgetLimit(peer.budget, "ann", settings, cost_max=10, per_second=10)
    peer.budget.hold(HeldTicket(10**5, 10**7, {"permits": 1}, (), "ann", settings, 1, 10**7))
    assert limit.admits(1, 10**9)
    limit.when(1, 10**12)
    assert limit.admits(1, 10**9)
    assert 1 == peer.budget.left_of("permits", 10**9)


def test_start_of_a_key_uses_the_smallest_ticket_that_covers_its_cost():
    """A ticket of a key starts no task of a higher cost, and what it covers beyond the cost of its task is given back."""
    peer, settings = peer_of("a", PACE), WindowSettings.of(10, SECOND).write()
    peer.clock.measure(10**9, 10**9, 10**9)
    limit = KeyBudgetLimit(peer.budget, "ann", settings, cost_max=10, per_second=10)
    for cost in (5, 2, 8):
        peer.budget.hold(HeldTicket(10**5, 10**7, {}, (), "ann", settings, cost, 10**7))
    assert [cost for cost in range(10) if limit.admits(cost, 10**9)] == [*range(9)]
    limit.take(3, 10**9)
    assert [2, 8] == peer.budget.costs_of_key("ann")
    assert [2] == [each.cost for each in peer.budget.corrections]
    limit.take(8, 10**9)
    assert not limit.admits(3, 10**9)
    assert limit.when(3, 10**9) is None
    assert [2] == [each.cost for each in peer.budget.corrections]
