"""The laws of joint admission, checked for the authority in memory and the script on Redis.

The server's clock is an argument, so nothing here waits.
"""

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import redis

from ratelimited_executor._core.fleet.limit_settings import BurstSettings, PaceSettings, WindowSettings
from ratelimited_executor._core.fleet.ticket_calls import (
    FAIR_HOLDER,
    LAPSED_US,
    Correction,
    LimitCopy,
    PlanLimit,
    Report,
    TicketCall,
    TicketReply,
    TicketRun,
)

from .binaries import KINDS as SERVERS
from .servers import RedisServer
from .ticket_subjects import KEYS, TicketsInMemory, TicketsOnRedis, TicketSubject

pytestmark = pytest.mark.real_time("a real server, on one side")

PROGRAMS = int(os.environ.get("TICKET_PROGRAMS", "50"))
SECOND = 1_000_000
START = 1_704_067_200 * SECOND
VALID = 20_000
AHEAD = 100_000
EARLY = 1_000  # by which a peer may be back before it was told to
CYCLE = 2000
DIFFERENCE = SECOND
QUARANTINE = 3 * SECOND
REDATED = QUARANTINE - LAPSED_US  # before its end

PACE = PlanLimit("rate", "tickets", PaceSettings.of(100, SECOND).write())
WINDOW = PlanLimit("minute", "tickets", WindowSettings.of(10, 10 * SECOND).write())
TOKENS = PlanLimit("tokens", "tokens", BurstSettings.of(1000, 100, SECOND).write())
KEY = PaceSettings.of(1, SECOND).write()
KEY_WINDOW = WindowSettings.of(2, 5 * SECOND).write()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of the shared server."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def on_redis(client: redis.Redis) -> Iterator[TicketsOnRedis]:
    """The script on Redis."""
    subject = TicketsOnRedis(client)
    yield subject
    subject.cleanup()


@pytest.fixture(params=["memory", *SERVERS])
def subject(request: pytest.FixtureRequest, server_of: Callable[[str], RedisServer]) -> Iterator[TicketSubject]:
    """Each subject in turn."""
    if request.param == "memory":
        yield TicketsInMemory()
        return
    with redis.Redis.from_url(server_of(request.param).url) as client:
        on_server = TicketsOnRedis(client)
        yield on_server
        on_server.cleanup()


class Group:
    """Peers of an authority and its clock, after the first quarantine.

    Attributes:
        eras: the last era that each peer knows.
    """

    def __init__(self, subject: TicketSubject, *plan: PlanLimit, plan_id: str = "one") -> None:
        self.subject = subject
        self.plan_id, self.plan = plan_id, plan or (WINDOW,)
        self.now = START
        self.eras: dict[str, str] = {}
        self.numbers: Counter[str] = Counter()
        self.reply: TicketReply
        self.call()
        self.now += QUARANTINE
        self.call()

    def call(self, peer: str = "p", **fields) -> TicketReply:
        """Make one call."""
        self.numbers[peer] += 1
        told = {
            "era": self.eras.get(peer, ""),
            "since_us": 1,  # the caller vouches for all time so far
            "earliest_us": self.now,
            "latest_us": self.now,
            "number": self.numbers[peer],
            "ahead_us": AHEAD,
            "life_us": 0,
            "cycle_us": CYCLE,
            "difference_us": DIFFERENCE,
            "quarantine_us": QUARANTINE,
            "plan_id": self.plan_id,
            "plan": self.plan,
        }
        self.reply = self.subject.call(self.now, TicketCall(peer=peer, **{**told, **fields}))
        self.eras[peer] = self.reply.era
        return self.reply

    def ask(self, *runs: TicketRun, peer: str = "p", **fields) -> list[int]:
        """Ask for tickets; return how many of each run are admitted."""
        reply = self.call(peer, runs=runs, **fields)
        return [len(outcome.tickets) for outcome in reply.outcomes]

    def copies(self) -> tuple[LimitCopy, ...]:
        """Return copies of the limits of the plan, as in the latest reply."""
        return tuple(LimitCopy(each.name, False, each.serial, each.text) for each in self.reply.limits)


def some(wanted: int = 1, key: str = "", key_settings: str = "", **costs: int) -> TicketRun:
    """Return a run whose tickets each cost one of ``tickets``, and the given costs."""
    return TicketRun(wanted, tuple(({"tickets": 1} | costs).items()), key, key_settings)


# All or nothing, at one time.


def test_ticket_is_taken_of_all_limits_or_of_none(subject):
    """A ticket is admitted by all limits or by none: a refusal costs nothing."""
    group = Group(subject, WINDOW, TOKENS)
    assert [1, 0] == group.ask(some(tokens=900), some(tokens=200))
    life = group.reply.outcomes[0].life_us
    assert ("tokens", group.now + 1_000_500 + life) == (group.reply.outcomes[1].holder, group.reply.outcomes[1].at_us)
    assert [1, 900 + life // 10_005] <= [each.used for each in group.reply.limits] <= [1, 901 + life // 10_005]
    assert [9] == group.ask(some(20))


def test_ticket_tells_its_time_and_the_receipts_of_the_limits_that_count_it(subject):
    """A ticket has its time, and receipts in the order of the plan, followed by the key's."""
    group = Group(subject, TOKENS, WINDOW, PACE)
    group.ask(some(key="ann", key_settings=KEY))
    ((at, receipts),) = group.reply.outcomes[0].tickets
    assert (group.now, 3) == (at, len(receipts))
    assert group.now + group.reply.outcomes[0].life_us == receipts[0]  # of the window
    group.ask(some(tokens=1, key="ben", key_settings=KEY))
    assert [4] == [len(receipts) for _, receipts in group.reply.outcomes[0].tickets]


def test_tickets_are_as_late_as_their_peer_can_use_them(subject):
    """A peer with a slow event loop gets tickets of a later time; no later than any ticket may be."""
    group = Group(subject, PACE)
    assert [3] == group.ask(some(3), after_us=100_000)
    times = [at - group.now for at, _ in group.reply.outcomes[0].tickets]
    assert 100_000 <= min(times) < max(times) <= 250_000
    assert [1] == group.ask(some(1)), "earlier ones are left for the others"
    assert group.now == group.reply.outcomes[0].tickets[0][0]
    assert [0] == group.ask(some(1), after_us=250_001)
    subject.wipe()
    group = Group(subject, WINDOW)
    assert [2] == group.ask(some(2), after_us=150_000)
    assert {group.now + 150_000} == {at for at, _ in group.reply.outcomes[0].tickets}


def test_tickets_are_admitted_some_time_ahead(subject):
    """Tickets are admitted some time ahead, each at its time, with the time of the next one and when to ask for it."""
    group = Group(subject, PACE)
    assert [10] == group.ask(some(100))
    (outcome,) = group.reply.outcomes
    times = [at for at, _ in outcome.tickets]
    assert times == [group.now + each * 10_005 for each in range(10)]
    assert (group.now + 100_050, group.now + 50 + EARLY) == (outcome.at_us, outcome.again_us)
    assert [0] == group.ask(some())
    group.now += AHEAD
    assert [10] == group.ask(some(100))


@pytest.mark.parametrize(
    ("settings", "cycle", "ahead"),
    [
        (PaceSettings.of(100, SECOND), CYCLE, AHEAD),
        (PaceSettings.of(20, SECOND), CYCLE, 3 * 50_025),
        (PaceSettings.of(2, SECOND), CYCLE, 250_000),
        (PaceSettings.of(100, SECOND), 120_000, 180_000),
        (WindowSettings.of(2, SECOND // 5), CYCLE, 100_050),
    ],
    ids=str,
)
def test_horizon_lets_a_peer_reserve_its_next_turns(subject, settings, cycle, ahead):
    """A ticket may lie as far ahead as is needed for the next turns and calls, but half a window and 250 ms at most."""
    group = Group(subject, PlanLimit("rate", "tickets", settings.write()))
    group.ask(some(2), cycle_us=cycle)
    group.ask(some(1000), cycle_us=cycle)
    (outcome,) = group.reply.outcomes
    assert "rate" == outcome.holder
    assert ahead == outcome.at_us - outcome.again_us + EARLY
    assert all(at <= group.now + ahead < outcome.at_us for at, _ in outcome.tickets)


# In the order of the peer.


def test_what_a_limit_of_all_refuses_stands_before_what_comes_after_it(subject):
    """A run refused by a limit of all also holds back the later runs, though there is room for them."""
    group = Group(subject, WINDOW, TOKENS)
    group.ask(some(tokens=900))
    assert [0, 0] == group.ask(some(tokens=500), some(5))
    first, second = group.reply.outcomes
    assert ("tokens", first.at_us, first.again_us) == (second.holder, second.at_us, second.again_us)
    assert [5, 0] == group.ask(some(5), some(tokens=500))


def test_what_the_limit_of_a_key_refuses_holds_nothing_else(subject):
    """A run refused by its key's limit holds back no other, and takes none of the numbers before its time."""
    group = Group(subject, PACE)
    assert [1, 1, 3] == group.ask(some(2, "ann", KEY), some(1, "ben", KEY), some(3))
    ann, ben, others = group.reply.outcomes
    assert ("ann", "", "") == (ann.holder, ben.holder, others.holder)
    assert group.now + SECOND < ann.at_us <= group.now + SECOND + 21_000
    assert [group.now + each * 10_005 for each in (2, 3, 4)] == [at for at, _ in others.tickets]


def test_what_the_limit_of_a_key_refuses_holds_the_later_runs_of_that_key(subject):
    """A run refused by its key's limit holds back those of the same key, which that limit would still admit."""
    group = Group(subject, PACE)
    assert [1] == group.ask(some(1, "ann", KEY_WINDOW))
    dear = some(1, "ann", KEY_WINDOW)._replace(key_cost=2)
    assert [0, 0, 1] == group.ask(dear, some(1, "ann", KEY_WINDOW), some(1, "ben", KEY_WINDOW))
    first, second, _ = group.reply.outcomes
    assert ("ann", first.at_us, first.again_us) == (second.holder, second.at_us, second.again_us)
    assert [1, 0] == group.ask(some(1, "ann", KEY_WINDOW), dear)


def test_ticket_of_a_key_is_reserved_ahead_and_others_fill_the_holes(subject):
    """A ticket that its key holds is reserved up to its horizon ahead, and others take the numbers before it."""
    group = Group(subject, PACE)
    group.ask(some(1, "ann", KEY))
    (outcome,) = group.reply.outcomes
    group.ask(some(1, "ann", KEY))
    free = group.reply.outcomes[0].at_us
    assert free - 250_000 == group.reply.outcomes[0].again_us
    group.now = free - 200_000
    assert [1, 3] == group.ask(some(2, "ann", KEY), some(3))
    ann, others = group.reply.outcomes
    assert free <= ann.tickets[0][0] <= free + 10_005
    assert others.tickets[-1][0] < group.now + 50_000
    assert [group.now + 2] != [outcome.at_us]


def test_turn_of_a_peer_at_a_key_is_kept_for_it(subject):
    """A refusal by a key says when to ask again: later for a peer before whom others are to be served."""
    group = Group(subject, PACE)
    group.ask(some(1, "ann", KEY))
    times = []
    for peer in "pqr":
        group.ask(some(1, "ann", KEY), peer=peer)
        times.append(group.reply.outcomes[0].again_us)
    gap = PaceSettings.of(1, SECOND).gap_us
    assert [0, gap, 2 * gap] == [time - times[0] for time in times]


def test_turns_at_a_window_come_as_it_empties(subject):
    """At a window, a peer is told to ask again when enough has left it for those before and itself, and not a gap later for each."""
    group = Group(subject, PACE)
    settings = WindowSettings.of(2, SECOND)
    group.ask(some(2, "ann", settings.write()))
    times = []
    for peer in "pqrs":
        group.ask(some(1, "ann", settings.write()), peer=peer)
        times.append(group.reply.outcomes[0].again_us)
    pace = 10_005  # of the two starts
    assert [0, pace, settings.width, settings.width + pace] == [time - times[0] for time in times]


def test_dear_turn_at_a_window_is_not_told_too_late(subject):
    """A peer that wants a whole window is told to be back once it may be empty: who goes before may want little of it."""
    group = Group(subject, PACE)
    settings = WindowSettings.of(10, SECOND)
    run = some(1, "ann", settings.write())
    group.ask(run._replace(key_cost=9))
    group.ask(run._replace(key_cost=2), peer="p")
    first_us = group.reply.outcomes[0].again_us
    group.ask(run._replace(key_cost=10), peer="q")
    assert first_us <= group.reply.outcomes[0].again_us < first_us + settings.width // 2


def test_keys_have_limits_of_their_own(subject):
    """Each key has its own limit; a ticket may cost more than one of it, and a reply has a copy of each limit that is to be remembered."""
    group = Group(subject, PACE)
    assert [2, 1] == group.ask(some(3, "ann", KEY_WINDOW), some(3, "ben", KEY_WINDOW)._replace(key_cost=2))
    assert all(outcome.text.startswith("w2") and outcome.serial for outcome in group.reply.outcomes)
    group.now += 5 * SECOND + 250_000 + 3000
    assert [2, 1] == group.ask(some(3, "ann", KEY_WINDOW), some(1, "cho", KEY))
    assert (0, "") == group.reply.outcomes[1][-2:], "a start of this key counts for less than a quarantine"


def test_run_without_settings_is_charged_to_the_limit_of_its_key(subject):
    """A run that does not say the settings of its key is charged to the limit that another run of the call names."""
    group = Group(subject, PACE)
    assert [1, 1] == group.ask(some(1, "ann", KEY_WINDOW), some(1, "ann"))
    assert [0] == group.ask(some(1, "ann", KEY_WINDOW))


def test_run_that_no_limit_counts_waits_for_the_penalty_alone(subject):
    """A ticket of a resource without a limit, as of another plan, is admitted when a penalty ends."""
    group = Group(subject, TOKENS)
    group.call(penalties=(("", 50_000),))
    assert [1] == group.ask(some(1))
    assert [(group.now + 50_000, ())] == [*group.reply.outcomes[0].tickets]


def test_cost_that_no_limit_ever_admits_names_it_without_a_time(subject):
    """A cost that a limit never admits is refused with the limit's name and no time, and reserves no share."""
    group = Group(subject, WINDOW, TOKENS)
    assert [0] == group.ask(some(tokens=1001))
    assert ("tokens", 0) == (group.reply.outcomes[0].holder, group.reply.outcomes[0].at_us)
    assert [10] == group.ask(some(20), peer="q")


def test_limit_of_another_law_is_another_one(subject):
    """A key's limit of another law is a separate one, so that peers of two releases do not damage each other's."""
    group = Group(subject, PACE)
    for _ in range(2):
        group.ask(some(1, "ann", KEY), some(1, "ann", KEY))
        group.ask(some(1, "ann", KEY_WINDOW))
        assert "" == group.reply.flaw
    assert [0] == group.ask(some(1, "ann", KEY))
    assert [0] == group.ask(some(1, "ann", KEY_WINDOW))


# The plan.


def test_limits_in_force_are_those_that_were_set_last(subject):
    """The plan set last is in force, also from a process that starts, and what was used before counts."""
    group = Group(subject)
    group.ask(some(4))
    lower = WINDOW._replace(settings=WindowSettings.of(6, 10 * SECOND).write())
    group.call("q", plan_id="two", plan=(lower,), is_new_plan=True)
    assert ("two", 4, 6) == (group.reply.plan_id, group.reply.limits[0].used, group.reply.limits[0].amount)
    assert [2] == group.ask(some(9))  # from a process that still has the other plan
    assert "two" == group.reply.plan_id
    group.call("p", is_new_plan=True)
    assert group.plan == group.call("q", plan_id="two", plan=(lower,)).plan
    assert [4] == group.ask(some(9))
    assert () == group.reply.plan


# The clock.


@pytest.mark.parametrize("step", [1, DIFFERENCE])
def test_time_stands_still_where_the_clock_is_back_by_a_little(subject, step):
    """If the clock goes back slightly, as after a failover, time stands still and the era continues."""
    group = Group(subject)
    group.ask(some(3))
    before, era = group.now, group.reply.era
    group.now -= step
    assert [7] == group.ask(some(9))
    assert {before} == {at for at, _ in group.reply.outcomes[0].tickets}
    assert (era, group.now) == (group.reply.era, group.reply.now_us)


def test_era_that_is_lost_as_it_begins_is_followed_by_another(subject):
    """An era that is lost at the time at which it began is followed by one of another name, so that peers send their copies."""
    group = Group(subject)
    group.ask(some(8))
    copies = group.copies()
    group.now -= 2 * SECOND
    era = group.call(has_jumped=True).era
    subject.wipe()
    assert era != group.call().era
    group.call(copies=copies)
    group.now += QUARANTINE
    assert [2] == group.ask(some(9))


@pytest.mark.parametrize(
    "told", [{"since_us": 0}, {"earliest_us": START * 2}, {"latest_us": START}], ids=["unknown", "early", "late"]
)
def test_nothing_is_admitted_at_a_time_that_nobody_vouches_for(subject, told):
    """At a time that nobody vouches for nothing is admitted or forgotten."""
    group = Group(subject, WINDOW, TOKENS)
    group.ask(some(10, "ann", KEY_WINDOW))
    group.now += 3600 * SECOND
    assert [0, 0] == group.ask(some(1, "ann", KEY_WINDOW), some(), **told)
    assert ["clock", "clock"] == [each.holder for each in group.reply.outcomes]
    group.now -= 3600 * SECOND  # the clock is set back
    assert [0, 8] == group.ask(some(1, "ann", KEY_WINDOW), some(9))
    assert 0 == group.reply.quarantine_us


@pytest.mark.parametrize("uses", [True, False])
def test_era_begins_after_a_gap_that_no_clock_spans(subject, uses):
    """A gap that no clock spans begins a new era, unless nothing was used."""
    group = Group(subject)
    if uses:
        group.ask(some(8))
    group.now += 5 * SECOND
    group.call(since_us=group.now - SECOND)
    assert (QUARANTINE if uses else 0) == group.reply.quarantine_us
    group.now += QUARANTINE
    assert [2 if uses else 10] == group.ask(some(12))


MACHINE = {"machine": "m", "error_us": 2000}


def after_a_gap(group: Group, seconds: int, step: int = 0, **told) -> int:
    """Use up the window on a machine; return how many tickets a later process gets when the gap is over.

    Args:
        seconds: the gap.
        step: by which the server's clock is set in it, in microseconds.
        told: of its machine, by the later process.
    """
    group.ask(some(10), **MACHINE, offset_us=START)
    group.now += seconds * SECOND + step
    (count,) = group.ask(some(10), peer="q", since_us=group.now - 1, **{**MACHINE, "offset_us": START + step, **told})
    return count


@pytest.mark.parametrize(("seconds", "free"), [(1, 0), (9, 0), (11, 10), (3600, 10)])
@pytest.mark.parametrize("drift", [-499, 0, 499])
def test_gap_between_processes_is_spanned_by_the_clock_of_their_machine(subject, seconds, free, drift):
    """What was used by a process that has ended leaves the window at its time, for the next one on that machine."""
    group = Group(subject)
    era = group.reply.era
    assert free == after_a_gap(group, seconds, offset_us=START + seconds * drift)
    assert (era, 0) == (group.reply.era, group.reply.quarantine_us)


@pytest.mark.parametrize("step", [-SECOND, -20_000, 20_000, SECOND, 3600 * SECOND])
def test_server_clock_that_was_set_in_a_gap_begins_an_era(subject, step):
    """A step of the server's clock between two processes shows in how far it is ahead of their machine's."""
    group = Group(subject)
    assert 0 == after_a_gap(group, 11, step)
    assert QUARANTINE == group.reply.quarantine_us
    group.now += QUARANTINE
    assert [0] == group.ask(some(10), peer="q", offset_us=START + step, **MACHINE)


@pytest.mark.parametrize("names", [("m", "other"), ("m", ""), ("", ""), ("", "m")])
def test_another_machine_and_none_span_no_gap(subject, names):
    """A gap begins an era if the next process is on another machine, or if the system does not tell which it is."""
    group = Group(subject)
    group.ask(some(10), machine=names[0], offset_us=START, error_us=2000)
    group.now += 11 * SECOND
    assert [0] == group.ask(some(10), since_us=group.now - 1, machine=names[1], offset_us=START, error_us=2000)
    assert QUARANTINE == group.reply.quarantine_us


def test_machine_of_a_call_says_nothing_of_a_later_era(subject):
    """A clock that is set, and set back after an era has begun by that, does not pass for one that was never set."""
    group = Group(subject)
    group.ask(some(10), **MACHINE, offset_us=START)
    group.now -= 3600 * SECOND
    group.call("late", since_us=0)
    assert QUARANTINE == group.reply.quarantine_us
    group.now += 3600 * SECOND
    assert [0] == group.ask(some(10), peer="q", since_us=group.now - 1, offset_us=START, **MACHINE)
    assert QUARANTINE == group.reply.quarantine_us


def test_quarantine_is_not_over_by_time_that_nobody_has_seen(subject):
    """If the clock was stepped during a quarantine, time that nobody saw does not end it, and a new era begins."""
    group = Group(subject)
    group.ask(some(8))
    copies = group.copies()
    subject.wipe()
    group.now += SECOND
    group.call("late", earliest_us=group.now - SECOND, latest_us=group.now - 1)
    group.now += 100 * SECOND
    assert [0] == group.ask(some(), since_us=group.now - SECOND // 10)
    assert QUARANTINE == group.reply.quarantine_us
    group.call(copies=copies)
    group.now += QUARANTINE
    assert [2] == group.ask(some(12))


def begin_era(group: Group, cause: str) -> None:
    """Make the next call begin an era."""
    if cause == "back":
        group.now -= DIFFERENCE + 1
    elif cause == "restart":
        group.subject.run = "b" * 40
    else:
        group.call("q")
        group.now += 86_400 * SECOND
        group.call("q", has_jumped=True)


@pytest.mark.parametrize("cause", ["back", "restart", "jump"])
def test_era_begins_with_a_quarantine_and_no_unseen_time_passes(subject, cause):
    """A new era counts all that was used as used when its last tickets lapse, and ignores earlier corrections."""
    group = Group(subject, WINDOW, TOKENS)
    group.ask(some(8, tokens=100))
    ((at, (receipt, _)), *_), era = group.reply.outcomes[0].tickets, group.reply.era
    begin_era(group, cause)
    group.call()
    begun = group.now
    assert group.reply.era != era
    assert [0] == group.ask(some())
    assert (QUARANTINE, "", 0) == (
        group.reply.quarantine_us,
        group.reply.outcomes[0].holder,
        group.reply.outcomes[0].at_us,
    )
    group.now = begun + QUARANTINE - 1
    assert [0] == group.ask(some())
    assert 1 == group.reply.quarantine_us
    group.now += 1
    group.eras["p"] = era
    assert [2] == group.ask(some(9), corrections=(Correction("minute", "", at, 3, receipt),))  # of another era
    group.now = begun + LAPSED_US + 10 * SECOND + 5001 - 300_000
    assert [0] == group.ask(some())
    assert group.now + 300_000 == group.reply.outcomes[0].at_us
    group.now += 300_000
    assert [8] == group.ask(some(9))


def test_step_of_the_clock_that_is_told_twice_begins_one_era(subject):
    """A step of the clock reported by two peers begins one era."""
    group = Group(subject)
    group.call("q")
    group.call("p", has_jumped=True)
    era = group.reply.era
    group.eras["q"] = "of before"
    group.call("q", has_jumped=True)
    assert era == group.reply.era


def test_keys_of_another_era_are_redated(subject):
    """Limits of keys are redated in a new era like all others, and those not asked for are not forgotten too early."""
    group = Group(subject, PACE)
    group.ask(some(2, "ann", KEY_WINDOW), some(2, "ben", KEY_WINDOW))
    begin_era(group, "jump")
    safe = group.now + QUARANTINE
    for group.now in range(safe, safe + 5 * SECOND - REDATED, SECOND):
        assert [0] == group.ask(some(1, "ann", KEY_WINDOW))
        assert 2 == subject.left("k")
    assert [0] == group.ask(some(1, "ben", KEY_WINDOW))
    group.now = safe + 5 * SECOND - REDATED + VALID + 3000
    assert [2, 2] == group.ask(some(3, "ann", KEY_WINDOW), some(3, "ben", KEY_WINDOW))


# What peers remember.


def test_window_is_kept_over_a_loss_if_it_is_told_back(subject):
    """A window survives a loss if peers report it: the latest copy applies, whoever calls first."""
    group = Group(subject)
    group.ask(some(3))
    older = group.copies()
    group.ask(some(4), peer="q")
    newer = group.copies()
    subject.wipe()
    group.call("p", copies=older)
    assert 3 == group.reply.limits[0].used
    group.call("q", copies=newer)
    group.call("p", copies=older)
    assert (7, newer[0].serial) == (group.reply.limits[0].used, group.reply.limits[0].serial)
    group.now += QUARANTINE
    assert [3] == group.ask(some(9))
    assert group.reply.limits[0].serial > newer[0].serial


def test_nothing_is_told_back_when_the_quarantine_is_over(subject):
    """After the quarantine copies are ignored: they are older than what has been admitted since."""
    group = Group(subject)
    group.ask(some(7))
    copies = group.copies()
    subject.wipe()
    group.call()
    group.now += QUARANTINE
    group.call(copies=copies)
    assert [10] == group.ask(some(20))


def test_what_was_written_since_is_later_than_all_before_a_loss(subject):
    """Serial numbers begin at the time, so that what was written after a loss is later than all copies from before."""
    group = Group(subject)
    group.ask(some(7))
    older = group.copies()
    subject.wipe()
    group.call()
    group.now += QUARANTINE
    group.ask(some(2))
    subject.run = "b" * 40
    group.call(copies=older)
    assert 2 == group.reply.limits[0].used


def test_copy_of_one_limit_is_taken_though_another_was_told_later(subject):
    """Each limit takes the copy with its own highest number, whichever other was reported later."""
    group = Group(subject, WINDOW, TOKENS)
    group.ask(some(1, tokens=500))
    group.ask(some(3), peer="q")
    group.ask(some(1, tokens=50), peer="r")
    window, tokens = group.copies()
    older = (window._replace(serial=window.serial - 1), tokens)
    subject.wipe()
    group.call("q", copies=(older[0],))
    group.call("q")
    group.call("r", copies=(tokens, window))
    group.now += QUARANTINE
    group.call()
    refilled = 100 * REDATED // (SECOND + 500)  # at a gap that allows for the drift of clocks
    assert [5, 550 + 50 - refilled] == [each.used for each in group.reply.limits]  # with the longest life of a ticket


def test_keys_are_told_back(subject):
    """Limits of keys are reported back, with or without a run of them, and vanish once they are at rest."""
    group = Group(subject, PACE)
    group.ask(*(some(2, key, KEY_WINDOW) for key in ("ann", "ben")))
    copies = [
        LimitCopy(key, True, each.serial, each.text)
        for key, each in zip(("ann", "ben"), group.reply.outcomes, strict=True)
    ]
    subject.wipe()
    group.call("p", copies=tuple(copies))
    group.now += QUARANTINE
    assert [0] == group.ask(some(1, "ann", KEY_WINDOW))
    assert 2 == subject.left("k")
    group.now += 86_400 * SECOND
    group.call()
    group.call()
    assert 0 == subject.left()


def test_copy_that_is_not_sound_is_forgotten(subject):
    """A damaged copy is ignored and begins no era: else its peer could begin one after the other."""
    group = Group(subject)
    subject.wipe()
    group.call()
    era = group.reply.era
    group.call(copies=(LimitCopy("minute", False, 1 << 51, "w1,damaged"),))
    assert (era, "state") == (group.reply.era, group.reply.flaw)
    group.call()
    assert (era, "") == (group.reply.era, group.reply.flaw)


# Corrections.


def test_costs_are_given_back_and_charged(subject):
    """Costs are given back or charged to limits by name."""
    group = Group(subject, WINDOW, TOKENS)
    group.ask(some(10, tokens=100))
    at, receipts = group.reply.outcomes[0].tickets[-1]
    assert [0] == group.ask(some(tokens=1))
    group.call(
        corrections=(Correction("minute", "", at, 1, receipts[0]), Correction("tokens", "", at, 60, receipts[1]))
    )
    assert [9, 940 + 5] == [each.used for each in group.reply.limits]  # with the life of a ticket
    serial = group.reply.limits[0].serial
    group.call(corrections=(Correction("minute", "", at, -3, receipts[0]), Correction("other", "", at, 1, 0)))
    assert (12, serial + 1) == (group.reply.limits[0].used, group.reply.limits[0].serial)


def test_what_a_call_corrects_is_corrected_once(subject):
    """A call that is heard twice corrects nothing again, and may still ask; after a later one, it does not count at all."""
    group = Group(subject, WINDOW)
    group.ask(some(4))
    at, (receipt,) = group.reply.outcomes[0].tickets[-1]
    back = (Correction("minute", "", at, 1, receipt),)
    number = group.numbers["p"] + 1
    for _ in range(2):
        group.call(corrections=back, number=number)
        assert 3 == group.reply.limits[0].used
    assert [0] == group.ask(some(2), corrections=back, number=number - 1)
    assert 3 == group.reply.limits[0].used
    assert [2] == group.ask(some(2), number=number)
    group.call(corrections=back, number=number + 1)
    assert 4 == group.reply.limits[0].used


@pytest.mark.parametrize("is_key", [False, True])
def test_reported_start_counts_by_its_time(subject, is_key):
    """A start counts at the end of its ticket's life, and from its report on at the reported time."""
    settings = WindowSettings.of(1, SECOND).write()
    group = Group(subject, PACE) if is_key else Group(subject, PlanLimit("second", "tickets", settings))
    run = some(1, "ann", settings) if is_key else some(1)
    group.ask(run, life_us=SECOND)
    ((at, receipts),) = group.reply.outcomes[0].tickets
    assert (group.now, group.now + (500_000)) == (at, receipts[-1])
    group.ask(run)
    assert receipts[-1] + SECOND + 501 == group.reply.outcomes[0].at_us
    report = (
        Report("", "ann", at + 2000, 1, receipts[-1]) if is_key else Report("second", "", at + 2000, 1, receipts[0])
    )
    group.ask(run, reports=(report,))
    assert at + 2000 + SECOND + 501 == group.reply.outcomes[0].at_us


def test_cost_of_a_started_ticket_is_given_back_by_the_time_of_its_start(subject):
    """What a started and reported ticket did not use is given back by a time until its start."""
    group = Group(subject, WINDOW)
    group.ask(some(10))
    ((at, (receipt,)), *_) = group.reply.outcomes[0].tickets
    group.now += 10_000
    group.call(reports=(Report("minute", "", at + 5000, 10, receipt),))
    group.call(corrections=(Correction("minute", "", at, 4, receipt),))
    assert 10 == group.reply.limits[0].used, "nothing counts at the receipt any more"
    group.call(corrections=(Correction("minute", "", at, 4, at + 3000),))
    assert 6 == group.reply.limits[0].used


def test_cost_of_a_key_is_given_back(subject):
    """After the cost of a key is given back, its next ticket is admitted at once."""
    group = Group(subject, PACE)
    group.ask(some(2, "ann", KEY_WINDOW))
    at, (*_, receipt) = group.reply.outcomes[0].tickets[-1]
    back = Correction("", "ann", at, 1, receipt)
    group.call(runs=(some(0, "ann", KEY_WINDOW),), corrections=(back,))
    assert [1] == group.ask(some(2, "ann", KEY_WINDOW))


@pytest.mark.parametrize("is_exact", [True, False])
def test_correction_at_a_time_that_nobody_vouches_for_lets_no_time_pass(subject, is_exact):
    """What a pace owes is owed after a step of the clock, although a correction came at the new time."""
    group = Group(subject, PlanLimit("rate", "tickets", PaceSettings.of(1, SECOND, is_exact=is_exact).write()))
    group.ask(some())
    ((at, (receipt, *_)),) = group.reply.outcomes[0].tickets
    charge = Correction("rate", "", at, -100, receipt)
    group.call(corrections=(charge,))
    before = group.now
    group.now += 3600 * SECOND
    group.call(corrections=(charge._replace(cost=-1),), earliest_us=before, latest_us=before)
    group.call(has_jumped=True, since_us=group.now)
    group.now += QUARANTINE
    assert [0] == group.ask(some())
    assert group.reply.outcomes[0].at_us > group.now + 90 * SECOND


# Penalties.


def test_many_penalties_of_keys_in_one_call(subject):
    """A call may hold more keys than one command of a server takes at once."""
    group = Group(subject, PACE)
    group.call(penalties=tuple((f"{number}", SECOND) for number in range(5000)))
    assert [0, 1] == group.ask(some(1, "4999"), some(1, "5000"))


def test_penalty_holds_all_or_a_key(subject):
    """A penalty holds all tickets or those of a key, which needs no limit, until the latest end given."""
    group = Group(subject, PACE)
    group.call(penalties=(("ann", 2 * SECOND), ("ann", SECOND), ("", SECOND), ("", 1000)))
    assert group.now + SECOND == group.reply.penalty_us
    assert [0] == group.ask(some())
    assert ("penalty", group.now + SECOND) == (group.reply.outcomes[0].holder, group.reply.outcomes[0].at_us)
    until = group.now + 2 * SECOND
    group.now += SECOND
    assert [0, 1, 1] == group.ask(some(1, "ann"), some(1, "ben"), some())
    assert ("ann", until) == (group.reply.outcomes[0].holder, group.reply.outcomes[0].at_us)
    group.now = until - AHEAD
    assert [1] == group.ask(some(1, "ann"))
    assert until == group.reply.outcomes[0].tickets[0][0]
    group.now = until
    assert [1] == group.ask(some(1, "ann", KEY))
    group.now += 2 * SECOND
    group.call()
    assert 0 == subject.left()


# Fair shares.


def served(group: Group, wants: dict[str, tuple[int, int]], seconds: int = 20) -> dict[str, int]:
    """Let peers with (weight, new tasks) call for all of theirs, ten times a second and when told; return what each got."""
    got, waiting, due = dict.fromkeys(wants, 0), dict.fromkeys(wants, 0), dict.fromkeys(wants, 0)
    for step in range(seconds * 50):
        for peer, (weight, wanted) in wants.items():
            if step % 5 == 0:
                waiting[peer] += wanted
                due[peer] = group.now
            if 0 < due[peer] <= group.now:
                (count,) = group.ask(some(waiting[peer]), peer=peer, weight=weight)
                waiting[peer] -= count
                got[peer] += count
                due[peer] = group.reply.outcomes[0].again_us
        group.now += SECOND // 50
    return got


def test_peers_that_want_more_than_there_is_get_parts_by_weight(subject):
    """Peers that want more than there is get parts by weight, however much each wants."""
    got = served(Group(subject, PACE), {"p": (1000, 100), "q": (3000, 1000)})
    assert 0.98 * 2000 <= sum(got.values()) <= 2026
    assert 2.6 <= got["q"] / got["p"] <= 3.4


def test_small_peer_beside_a_huge_one_gets_what_it_wants(subject):
    """A peer with few tasks beside a huge one gets what it wants, and the other one gets the rest."""
    got = served(Group(subject, PACE), {"huge": (1000, 10_000), "small": (1000, 2)})
    assert got["small"] >= 0.95 * 400
    assert sum(got.values()) >= 0.98 * 2000


def test_hungry_peer_that_has_died_is_forgotten(subject):
    """A peer that was refused and has died holds others back for 250 ms after it was expected, and is forgotten later."""
    group = Group(subject, PACE)
    group.ask(some(100), peer="dead")
    tickets = group.reply.outcomes[0].tickets
    until = (tickets[0][0] + tickets[-1][0]) // 2 + CYCLE + 2_000 + 250_000
    group.now = until
    group.ask(some(100))
    assert (FAIR_HOLDER, True) == (group.reply.outcomes[0].holder, group.reply.outcomes[0].is_contended)
    group.now = until + 1
    group.ask(some(100))
    assert "rate" == group.reply.outcomes[0].holder


def test_what_comes_before_others_are_back_is_free(subject):
    """Beside a hungry peer, one that is ahead of its share reserves what comes before the other one is expected back."""
    group = Group(subject, PACE)
    group.ask(some())
    group.ask(some(), peer="far", cycle_us=AHEAD)
    back = group.reply.outcomes[0].tickets[0][0] + AHEAD + 2_000
    assert [10] == group.ask(some(100), weight=10)  # one of its tickets is more than its share
    free = group.reply.outcomes[0]
    assert free.tickets[-1][0] < back <= free.tickets[-1][0] + 10_005
    assert (FAIR_HOLDER, back) == (free.holder, free.again_us)


def test_who_is_late_holds_nobody_back(subject):
    """Beside a hungry peer that is late, one that is ahead of its share reserves its part of the near future again and again."""
    group = Group(subject, PACE)
    group.ask(some(100), peer="late")
    group.now = group.reply.outcomes[0].tickets[-1][0]
    got = 0
    for _ in range(10):
        got += group.ask(some(100), peer="p")[0]
        assert FAIR_HOLDER == group.reply.outcomes[0].holder
        assert group.now + AHEAD // 2 == group.reply.outcomes[0].again_us
        group.now += 10_000
    assert 10 <= got <= 16


def test_peer_whose_tickets_wait_is_hungry(subject):
    """A peer that got all it wanted, but has to wait for it, counts as hungry: others reserve no more than their share."""
    group = Group(subject, PACE)
    group.ask(some(5), peer="waits")
    (count,) = group.ask(some(100))
    assert FAIR_HOLDER == group.reply.outcomes[0].holder
    assert 4 <= count <= 6


def test_idle_time_saves_up_nothing(subject):
    """A peer that was idle gets no more than its share afterwards."""
    group = Group(subject, PACE)
    served(group, {"p": (1000, 100), "q": (1000, 100)})
    got = served(group, {"p": (1000, 100), "q": (1000, 100), "late": (1000, 100)})
    assert max(got.values()) <= 1.1 * min(got.values())


def test_who_is_not_hungry_does_not_overtake_who_is(subject):
    """Beside a hungry peer, one that was not refused before gets its share of what can be reserved, and no more."""
    group = Group(subject, PACE)
    group.ask(some(100), peer="hungry")
    group.now += AHEAD
    (count,) = group.ask(some(100), peer="other")
    assert FAIR_HOLDER == group.reply.outcomes[0].holder
    assert 4 <= count <= 6
    (rest,) = group.ask(some(100), peer="hungry")
    assert count + rest >= 10


def test_window_is_not_taken_by_who_is_quick(subject):
    """What is free of a window is shared by those who are hungry, whoever calls first when it is free again."""
    group = Group(subject, PlanLimit("second", "tickets", WindowSettings.of(40, SECOND).write()))
    got: Counter[str] = Counter()
    for _ in range(80):
        for peer in "pq":
            got[peer] += group.ask(some(1000), peer=peer, life_us=100_000)[0]
        group.now += SECOND // 16
    assert 0.6 <= got["q"] / got["p"] <= 1.6
    assert sum(got.values()) >= 40 * 4


def test_calls_wait_while_they_take_a_quarter_of_a_core(subject):
    """Calls need not wait while they take little of the server, and wait longer, the more peers call, once they take much."""
    group = Group(subject, PACE)
    gaps = []
    for count in range(1, 4):
        for _ in range(1100):
            for peer in "pqr"[:count]:
                gaps.append(group.call(peer, runs=(some(),)).gap_us)
            group.now += 125
        assert count == group.reply.peers
    assert 0 == gaps[0]
    assert 0 < 2.5 * gaps[1099] < gaps[-1]
    group.now += 5 * SECOND
    assert 0 == group.call().gap_us


def test_peers_that_do_not_call_are_forgotten(subject):
    """A peer that has not called for ten seconds is forgotten, with the number of its last call."""
    group = Group(subject, PACE)
    for peer in "qr":
        group.call(peer)
    assert 3 == group.reply.peers
    for number in range(64, 64 + 200):
        group.now += SECOND // 10
        group.call("p", number=number)
        assert (3 if group.now <= START + QUARANTINE + 10 * SECOND else 1) == group.reply.peers


def test_peers_of_short_lives_are_forgotten(subject):
    """Of processes that call a few times and end, the group remembers those of late."""
    group = Group(subject, PACE)
    for life in range(40):
        group.now += SECOND
        group.call(f"life {life}")
        group.call(f"life {life}")
    assert 11 == group.reply.peers


# Keys leave nothing behind.


def test_keys_that_came_once_leave_nothing_behind(subject):
    """Keys used once leave nothing behind: each call forgets more of them than it brings."""
    group = Group(subject, PACE)
    for number in range(0, 300, 10):
        group.call(
            runs=tuple(some(1, f"{each}", KEY_WINDOW if each % 2 else KEY) for each in range(number, number + 10)),
            penalties=((f"{number}", SECOND),),
        )
        group.now += SECOND // 5
    assert subject.left() < 280
    group.now += 6 * SECOND
    for _ in range(160):
        group.call()
    assert 0 == subject.left()


def test_key_under_other_settings_is_kept_as_long_as_they_say(subject):
    """A key requested under other settings is kept as long as these demand."""
    group = Group(subject, PACE)
    group.ask(some(1, "ann", KEY))
    longer = PaceSettings.of(1, 60 * SECOND).write()
    assert [0] == group.ask(some(1, "ann", longer))
    group.now += 2 * SECOND
    for _ in range(3):
        assert [0] == group.ask(some(1, "ann", longer))


# Random programs.

names = st.sampled_from(["p", "q", "r"])
key_names = st.sampled_from(["", "", "ann", "ben", "cho"])
key_limits = st.sampled_from([KEY, KEY, KEY_WINDOW, ""])
PLANS = {
    "one": (WINDOW, PACE),
    "two": (TOKENS, WINDOW._replace(settings=WindowSettings.of(5, 10 * SECOND).write())),
    "three": (PACE, TOKENS, PlanLimit("minute", "tickets", PaceSettings.of(5, SECOND).write())),
    "pace": (PACE,),
    "quick": (PlanLimit("rate", "tickets", PaceSettings.of(400, SECOND).write()),),
    "nominal": (PlanLimit("rate", "tickets", PaceSettings.of(400, SECOND, is_exact=False).write()),),
    "many": (PlanLimit("minute", "tickets", WindowSettings.of(300, SECOND).write()), PACE),
}
runs = st.lists(
    st.builds(
        lambda wanted, tokens, key, of, cost: some(wanted, key, of, **({"tokens": tokens} if tokens else {}))._replace(
            key_cost=cost
        ),
        st.sampled_from([0, 1, 2, 4, 30, 200]),
        st.sampled_from([0, 0, 1, 300, 2000]),
        key_names,
        key_limits,
        st.sampled_from([1, 1, 2]),
    ),
    max_size=4,
)
steps = st.one_of(
    *[
        st.tuples(
            st.just("ask"),
            names,
            runs,
            st.sampled_from([0, CYCLE, 50_000]),
            st.sampled_from([1, 1000, 5000]),
            st.sampled_from([0, AHEAD, AHEAD]),
        )
    ]
    * 6,
    *[
        st.tuples(
            st.just("pass"), st.sampled_from([1, 1000, 7000, 70_000, 70_000, 260_000, SECOND, QUARANTINE, 11 * SECOND])
        )
    ]
    * 2,
    st.tuples(st.just("back"), st.sampled_from([1000, DIFFERENCE, DIFFERENCE + 1, 3600 * SECOND])),
    st.tuples(st.just("plan"), names, st.sampled_from([*PLANS])),
    st.tuples(st.just("penalize"), names, key_names, st.sampled_from([0, 1000, SECOND, 10 * SECOND])),
    *[st.tuples(st.just("correct"), names, st.integers(0, 9), st.sampled_from([-300, -1, 1, 5, 200]))] * 2,
    *[st.tuples(st.just("report"), names, st.integers(0, 9), st.sampled_from([0, 1000, 10_000]))] * 2,
    st.tuples(st.just("repeat"), names, st.sampled_from([0, 3, 64, 128])),
    st.tuples(st.just("tell"), names),
    st.tuples(st.just("jump"), names),
    st.tuples(st.sampled_from(["wipe", "restart"])),
)


@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(is_calm=st.sampled_from([True, True, False]), program=st.lists(steps, min_size=15, max_size=60))
def test_both_say_the_same(client, is_calm, program):
    """In random programs the script agrees with the memory in every reply."""
    memory, lua = TicketsInMemory(), TicketsOnRedis(client)
    now, numbers = START, itertools.count(1)
    eras: dict[str, str] = {}
    plans = dict.fromkeys("pqr", "one")
    tickets: list[tuple[TicketRun, tuple[int, tuple[int, ...]], tuple[str, ...]]] = []
    copies: dict[str, dict[tuple[str, bool, str], LimitCopy]] = {peer: {} for peer in "pqr"}
    try:
        for step, *rest in [("ask", "p", [], 0, 1000, 0), ("pass", QUARANTINE), *program]:
            fields: dict = {}
            if is_calm and step in {"back", "jump", "tell", "wipe", "restart", "penalize"}:
                continue
            peer = rest[0] if rest and rest[0] in plans else "p"
            if step == "ask":
                fields = {"runs": tuple(rest[1]), "cycle_us": rest[2], "weight": rest[3], "ahead_us": rest[4]}
            elif step == "pass":
                now += rest[0]
            elif step == "back":
                now -= rest[0]
            elif step == "plan":
                plans[peer], fields["is_new_plan"] = rest[1], True
            elif step == "penalize":
                fields["penalties"] = ((rest[1], rest[2]),)
            elif step == "report" and tickets:
                run, (at, receipts), limits = tickets[rest[1] % len(tickets)]
                fields["reports"] = tuple(
                    Report(name, "", at + rest[2], 1, receipt) for name, receipt in zip(limits, receipts, strict=False)
                )
                if run.key and run.settings:
                    fields["runs"] = (run._replace(wanted=0),)
                    fields["reports"] += (Report("", run.key, at + rest[2], run.key_cost, receipts[-1]),)
            elif step == "repeat":
                fields["number"] = rest[1]
            elif step == "correct" and tickets:
                run, (at, receipts), limits = tickets[rest[1] % len(tickets)]
                fields["corrections"] = tuple(
                    Correction(name, "", at, rest[2], receipt, rest[2] == 1)
                    for name, receipt in zip(limits, receipts, strict=False)
                )
                if run.key and run.settings:
                    fields["runs"] = (run._replace(wanted=0),)
                    fields["corrections"] += (Correction("", run.key, at, rest[2], receipts[-1], rest[2] == 1),)
            elif step == "tell":
                fields["copies"] = tuple(copies[peer].values())
            elif step == "jump":
                fields["has_jumped"] = True
            elif step == "wipe":
                memory.wipe()
                lua.wipe()
            elif step == "restart":
                memory.run = lua.run = ("b" if memory.run[0] == "a" else "a") * 40
            call = TicketCall(
                peer=peer,
                era=eras.get(peer, ""),
                since_us=now if step == "tell" else 0 if step == "penalize" else 1,
                earliest_us=now,
                latest_us=now,
                difference_us=DIFFERENCE,
                quarantine_us=QUARANTINE,
                plan_id=plans[peer],
                plan=PLANS[plans[peer]],
                **{"number": next(numbers), "ahead_us": AHEAD, "cycle_us": CYCLE, "life_us": 50_000, **fields},
            )
            reply = memory.call(now, call)
            assert reply == lua.call(now, call)
            assert memory.left() == lua.left()
            eras[peer] = reply.era
            for run, outcome in zip(call.runs, reply.outcomes, strict=True):
                counted = tuple(each.name for each in reply.limits if each.resource in dict(run.costs))
                tickets += [(run, ticket, counted) for ticket in outcome.tickets]
                if outcome.text:
                    copies[peer][run.key, True, outcome.text[0]] = LimitCopy(
                        run.key, True, outcome.serial, outcome.text
                    )
            for each in reply.limits:
                if each.text:
                    copies[peer][each.name, False, each.text[0]] = LimitCopy(each.name, False, each.serial, each.text)
    finally:
        lua.cleanup()


@pytest.mark.parametrize("count", [100, 400, 3000])
@pytest.mark.parametrize("is_exact", [True, False])
def test_both_say_the_same_of_a_pace_that_is_used_up(client, count, *, is_exact):
    """Two peers that report their starts use a whole pace, and the script agrees with the memory in every reply."""
    draw = random.Random(count)
    pace = PlanLimit("rate", "tickets", PaceSettings.of(count, SECOND, is_exact=is_exact).write())
    group, other = Group(TicketsInMemory(), pace), Group(TicketsOnRedis(client), pace)
    held: list[tuple[int, int]] = []
    used, begun = 0, group.now + SECOND
    try:
        while group.now < begun + 2 * SECOND:
            due = [each for each in held if each[0] <= group.now]
            held = [each for each in held if each[0] > group.now]
            used += sum(at >= begun for at, _ in due)
            reports = tuple(Report("rate", "", at + draw.randrange(1000), 1, receipt) for at, receipt in due)
            peer = draw.choice("pq")
            asked: dict = {"runs": (some(draw.choice([1, 30, 300])),), "reports": reports, "era": group.reply.era}
            reply = group.call(peer, **asked)
            other.now = group.now
            assert reply == other.call(peer, **asked)
            held += [(at, receipts[0]) for at, receipts in reply.outcomes[0].tickets]
            group.now += draw.choice([500, 3000, 10_000, 20_000])
    finally:
        other.subject.cleanup()
    assert 0.985 * 2 * count <= used <= 2 * count


LAWS = (WINDOW, TOKENS, PACE)
law_steps = st.one_of(
    *[
        st.tuples(
            st.just("ask"),
            names,
            st.lists(
                st.tuples(st.integers(1, 6), st.sampled_from([0, 1, 300, 900]), st.sampled_from(["", "ann", "ben"])),
                min_size=1,
                max_size=3,
            ),
        )
    ]
    * 4,
    *[st.tuples(st.just("pass"), st.sampled_from([1, 70_000, 260_000, SECOND, 4 * SECOND, 10 * SECOND]))] * 2,
    st.tuples(st.just("step"), st.sampled_from([-3600 * SECOND, -2 * SECOND, 7 * SECOND, 86_400 * SECOND])),
    st.tuples(
        st.just("end"),
        st.sampled_from([SECOND, 4 * SECOND, 10 * SECOND]),
        st.sampled_from([0, 0, 20_000, -2 * SECOND, 3600 * SECOND]),
        st.sampled_from(["m", "m", "m", "other", ""]),
    ),
    st.tuples(st.sampled_from(["wipe", "restart", "set back", "keep"])),
    st.tuples(st.just("lose"), st.sampled_from(KEYS)),
    st.tuples(st.just("damage"), st.integers(0, 20), st.sampled_from(["", "x", "1,2,;w1,x", "garbage"])),
)


@settings(max_examples=PROGRAMS // 2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=st.lists(law_steps, min_size=12, max_size=40), is_memory=st.booleans())
def test_no_window_holds_more_over_losses_and_steps(client, program, is_memory):
    """No window exceeds its limit in real time across losses, steps and ends of all processes, if peers report what they know."""
    subject = TicketsInMemory() if is_memory else TicketsOnRedis(client)
    group = Group(subject, *LAWS)
    runs = itertools.count(1)  # of the server
    offset, saved = 0, None  # real time is the server's time less the offset
    given_out: list[tuple[int, int, str]] = []  # time, tokens, key
    copies: dict[tuple[str, bool], LimitCopy] = {}  # as known by all peers together

    machine, since = "m", 1  # of the processes that live

    def call(peer: str, **fields) -> TicketReply:
        era = group.eras.get("any")
        told = {"machine": machine, "offset_us": START + offset, "error_us": 2000, "since_us": since}
        fields = told | fields
        reply = group.call(peer, **fields)
        if reply.era != era and reply.quarantine_us:
            group.eras["any"] = reply.era
            reply = group.call(peer, **told, copies=tuple(copies.values()))
            for each in "pqr":
                group.eras[each] = reply.era
        group.eras["any"] = reply.era
        for each in reply.limits:
            if each.serial >= copies.get((each.name, False), LimitCopy("", False, 0, "")).serial:
                copies[each.name, False] = LimitCopy(each.name, False, each.serial, each.text)
        return reply

    try:
        call("p")
        for step, *rest in program:
            group.now += 1  # an era is named by its beginning: two never begin in one microsecond
            if step == "pass":
                group.now += rest[0]
            elif step == "step":
                call("p")
                group.now += rest[0]
                offset += rest[0]
                call("p", has_jumped=True)
            elif step == "end":
                group.now += rest[0] + rest[1]
                offset += rest[1]
                machine, since = rest[2], group.now + 1
                call("p", since_us=0)
                group.now += 1
            elif step == "wipe":
                subject.wipe()
            elif step == "restart":
                subject.run = f"{next(runs):040x}"
            elif step == "ask":
                asked = tuple(
                    some(wanted, key, KEY_WINDOW if key else "", **({"tokens": tokens} if tokens else {}))
                    for wanted, tokens, key in rest[1]
                )
                reply = call(rest[0], runs=asked)
                for run, outcome in zip(asked, reply.outcomes, strict=False):
                    tokens = dict(run.costs).get("tokens", 0)
                    given_out += [(at - offset, tokens, run.key) for at, _ in outcome.tickets]
                    if outcome.text:
                        copies[run.key, True] = LimitCopy(run.key, True, outcome.serial, outcome.text)
            elif not is_memory:
                if step == "keep":
                    saved = subject.save()
                elif step == "set back" and saved is not None:
                    subject.restore(saved)  # a lagging replica takes over
                    subject.run = f"{next(runs):040x}"
                elif step == "lose":
                    subject.lose(rest[0])
                elif step == "damage":
                    for key in KEYS[:2]:
                        fields = sorted(each for each in subject.read(key) if each not in ("count", "plan_id"))
                        if fields:
                            subject.write(key, fields[rest[0] % len(fields)], rest[1])
    finally:
        subject.cleanup()
    ends = sorted({at + VALID for at, _, _ in given_out})
    for begin in ends:

        def cost(width: int, key: str = "", *, is_tokens: bool = False, begin: int = begin) -> int:
            return sum(
                tokens if is_tokens else 1
                for at, tokens, of in given_out
                if at <= begin + width and at + VALID >= begin and key in ("", of)
            )

        assert cost(10 * SECOND) <= 10
        assert cost(5 * SECOND, "ann") <= 2
        assert cost(5 * SECOND, "ben") <= 2
        for end in ends:
            if end >= begin:
                assert cost(end - begin, is_tokens=True) <= 1000 + (end - begin) * 100 / SECOND


# The state on a server.


@pytest.mark.parametrize("key", KEYS)
def test_state_of_which_a_part_is_lost_begins_an_era(on_redis, key):
    """If a part of the state is lost an era begins, in which the rest and the peers' copies count."""
    group = Group(on_redis)
    group.ask(some(8, "ann", PaceSettings.of(1000, SECOND).write()))
    copies, era = group.copies(), group.reply.era
    on_redis.lose(key)

    group.call()
    assert group.reply.era != era
    assert ("state", QUARANTINE) == (group.reply.flaw, group.reply.quarantine_us)
    group.call(copies=copies)
    assert "" == group.reply.flaw
    group.now += QUARANTINE
    assert [2] == group.ask(some(9))


@pytest.mark.parametrize("key", KEYS)
def test_keys_count_over_the_loss_of_another_part(on_redis, key):
    """Limits of keys survive the loss of another part of the state."""
    group = Group(on_redis, PACE)
    group.ask(some(2, "ann", KEY_WINDOW))
    on_redis.lose(key)
    group.call()
    group.now += QUARANTINE
    assert [2 if key in ("keys", "rest") else 0] == group.ask(some(3, "ann", KEY_WINDOW))


@pytest.mark.parametrize(
    ("field", "value"),
    [("state", "x"), ("state", ""), ("state", "1,2,3"), ("version", "0"), ("version", "x"), ("mark", "1:1")]
    + [("l:wminute", "garbage"), ("l:wminute", ""), ("l:wminute", "1,1,;w1,00000000,0,0,0,0,0,0;")],
)
def test_state_that_nobody_can_have_written_begins_an_era(on_redis, field, value):
    """An impossible state begins an era, in which the peers' copies count."""
    group = Group(on_redis)
    group.ask(some(8))
    copies, era = group.copies(), group.reply.era
    on_redis.write("tickets", field, value)

    assert [0] == group.ask(some())
    assert ("state", QUARANTINE) == (group.reply.flaw, group.reply.quarantine_us)
    assert group.reply.era != era
    group.call(copies=copies)
    assert "" == group.reply.flaw
    group.now += QUARANTINE
    assert [2] == group.ask(some(9))


@pytest.mark.parametrize("plan", ["garbage", "7", "[7]", '[["a","b"]]', '[["a","b","odd"]]'])
def test_damaged_plan_is_replaced_by_the_callers(on_redis, plan):
    """A damaged plan is replaced by the caller's, in a new era."""
    group = Group(on_redis)
    on_redis.write("tickets", "plan", plan)
    group.call("q", plan_id="other")
    assert ("other", "state", QUARANTINE) == (group.reply.plan_id, group.reply.flaw, group.reply.quarantine_us)


def test_damaged_limit_of_a_key_begins_an_era(on_redis):
    """A damaged limit of a key begins an era when it is requested."""
    group = Group(on_redis, PACE)
    group.ask(some(2, "ann", KEY_WINDOW))
    (outcome,) = group.reply.outcomes
    on_redis.write("keys", "k:wann", "garbage")
    assert [0] == group.ask(some(1, "ann", KEY_WINDOW))
    assert ("state", QUARANTINE) == (group.reply.flaw, group.reply.quarantine_us)
    group.call(copies=(LimitCopy("ann", True, outcome.serial, outcome.text),))
    group.now += QUARANTINE
    assert [0] == group.ask(some(1, "ann", KEY_WINDOW))


def test_settings_that_are_not_sound_are_refused(on_redis):
    """Settings that are not sound are refused by name."""
    group = Group(on_redis, PACE)
    with pytest.raises(redis.ResponseError, match="no settings of a limit: odd"):
        group.call(runs=(some(1, "ann", "odd"),))
    with pytest.raises(redis.ResponseError, match="no settings of a limit: odd"):
        group.call(plan=(PACE._replace(settings="odd"),))


def test_later_version_is_left_alone(on_redis):
    """The state of a later version is refused, unless nobody has called for a minute."""
    group = Group(on_redis)
    on_redis.speak(9)
    group.call()
    on_redis.speak(1)

    with pytest.raises(redis.ResponseError, match="install one release"):
        group.call()
    group.now += 61 * SECOND
    assert QUARANTINE == group.call().quarantine_us


def test_state_lives_until_all_limits_are_at_rest(on_redis):
    """Keys expire some hours after all limits are at rest, and the rest of the state two days later."""
    group = Group(on_redis, PACE)
    hour, day = 3_600_000, 86_400_000

    def lives_are(least: int) -> None:
        for key, left in zip(KEYS, on_redis.lives(), strict=True):
            more = 0 if key in {"keys", "rest"} else 2 * day
            assert least + 2 * hour <= left - more <= least + 5 * hour, key

    lives_are(0)
    month = WindowSettings.of(9, 30 * 86_400 * SECOND).write()
    group.ask(some(1, "ann", month))
    lives_are(30 * day)
    lives = on_redis.lives()
    group.ask(some(1, "ben", KEY), some(100))
    assert all(left <= before for left, before in zip(on_redis.lives(), lives, strict=True))
    on_redis.run = "b" * 40  # a new era takes nothing from what is remembered
    group.call()
    assert all(before - hour <= left for left, before in zip(on_redis.lives(), lives, strict=True))


@pytest.mark.parametrize(("hours", "quarantine"), [(1, QUARANTINE), (9, 0)])
def test_keys_that_have_expired_at_rest_begin_no_era(on_redis, hours, quarantine):
    """Once all keys have expired, at rest, the group goes on at once; keys that are lost before begin an era."""
    group = Group(on_redis, PACE)
    assert [1] == group.ask(some(1, "ann", KEY))
    group.now += hours * 3600 * SECOND
    for key in ("keys", "rest"):
        on_redis.lose(key)
    reply = group.call()
    assert (quarantine, "state" if quarantine else "") == (reply.quarantine_us, reply.flaw)
    assert all(3_600_000 < left for left in on_redis.lives())
    group.now += quarantine
    assert [1] == group.ask(some(1, "ann", KEY))
