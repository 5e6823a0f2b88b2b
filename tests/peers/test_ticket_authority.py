"""The laws of joint admission, by one suite: for the authority in memory, and the script on Redis.

The server's clock is an argument, so that nothing here waits.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import redis

from ratelimited_executor._core.fleet.laws import BurstSettings, PaceSettings, WindowSettings
from ratelimited_executor._core.fleet.tickets import (
    FAIR_HOLDER,
    Correction,
    LimitCopy,
    PlanLimit,
    TicketCall,
    TicketReply,
    TicketRun,
)

from .servers import RedisServer
from .ticket_subjects import KEYS, TicketsInMemory, TicketsOnRedis, TicketSubject

pytestmark = pytest.mark.real_time("a real server, on one side")

PROGRAMS = int(os.environ.get("TICKET_PROGRAMS", "100"))
SECOND = 1_000_000
START = 1_704_067_200 * SECOND
VALID = 20_000
INTERVAL = 250_000
DIFFERENCE = SECOND
QUARANTINE = 3 * SECOND

PACE = PlanLimit("rate", "tickets", PaceSettings.of(100, SECOND).write())
WINDOW = PlanLimit("minute", "tickets", WindowSettings.of(10, 10 * SECOND, valid_us=VALID).write())
TOKENS = PlanLimit("tokens", "tokens", BurstSettings.of(1000, 100, SECOND, valid_us=VALID).write())
KEY = PaceSettings.of(1, SECOND).write()
KEY_WINDOW = WindowSettings.of(2, 5 * SECOND, valid_us=VALID).write()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of the server that the tests share."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def on_redis(client: redis.Redis) -> Iterator[TicketsOnRedis]:
    """The script."""
    subject = TicketsOnRedis(client)
    yield subject
    subject.cleanup()


@pytest.fixture(params=["memory", "redis"])
def subject(request: pytest.FixtureRequest) -> TicketSubject:
    """One after the other."""
    return TicketsInMemory() if request.param == "memory" else request.getfixturevalue("on_redis")


class Group:
    """Peers of an authority, and its clock; after the first quarantine.

    Attributes:
        eras: the last that each peer was told of.
    """

    def __init__(self, subject: TicketSubject, *plan: PlanLimit, plan_id: str = "one") -> None:
        self.subject = subject
        self.plan_id, self.plan = plan_id, plan or (WINDOW,)
        self.now = START
        self.eras: dict[str, str] = {}
        self.reply: TicketReply
        self.call()
        self.now += QUARANTINE
        self.call()

    def call(self, peer: str = "p", **fields) -> TicketReply:
        """Make one call."""
        told = {
            "era": self.eras.get(peer, ""),
            "interval_us": INTERVAL,
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
        """Return what the latest reply has told of the limits of the plan."""
        return tuple(LimitCopy(each.name, False, each.serial, each.text) for each in self.reply.limits)


def some(wanted: int = 1, key: str = "", key_settings: str = "", **costs: int) -> TicketRun:
    """Make a run; each ticket costs one of ``tickets``, and what is named."""
    return TicketRun(wanted, tuple(({"tickets": 1} | costs).items()), key, key_settings)


def test_ticket_is_admitted(subject):
    """At the present, while there is room."""
    group = Group(subject)
    assert [10] == group.ask(some(12))
    assert [(group.now, (group.now + VALID,))] * 10 == [*group.reply.outcomes[0].tickets]
    assert "minute" == group.reply.outcomes[0].holder
    assert [0] == group.ask(some())


names = st.sampled_from(["p", "q", "r"])
key_names = st.sampled_from(["", "", "ann", "ben", "cho"])
key_limits = st.sampled_from([KEY, KEY, KEY_WINDOW, ""])
PLANS = {
    "one": (WINDOW, PACE),
    "two": (TOKENS, WINDOW._replace(settings=WindowSettings.of(5, 10 * SECOND, valid_us=VALID).write())),
    "three": (PACE, TOKENS, PlanLimit("minute", "tickets", PaceSettings.of(5, SECOND).write())),
}
runs = st.lists(
    st.builds(
        lambda wanted, tokens, key, of, cost: some(wanted, key, of, **({"tokens": tokens} if tokens else {}))._replace(
            key_cost=cost
        ),
        st.integers(0, 4),
        st.sampled_from([0, 0, 1, 300, 2000]),
        key_names,
        key_limits,
        st.sampled_from([1, 1, 2]),
    ),
    max_size=4,
)
steps = st.one_of(
    *[st.tuples(st.just("ask"), names, runs, st.sampled_from([0, 0, 5]), st.sampled_from([1, 1000, 5000]))] * 4,
    *[st.tuples(st.just("pass"), st.sampled_from([1, 1000, 70_000, 260_000, SECOND, QUARANTINE, 11 * SECOND]))] * 2,
    st.tuples(st.just("back"), st.sampled_from([1000, DIFFERENCE, DIFFERENCE + 1, 3600 * SECOND])),
    st.tuples(st.just("plan"), names, st.sampled_from([*PLANS])),
    st.tuples(st.just("penalize"), names, key_names, st.sampled_from([0, 1000, SECOND, 10 * SECOND])),
    *[st.tuples(st.just("correct"), names, st.integers(0, 9), st.sampled_from([-300, -1, 1, 5, 200]))] * 2,
    st.tuples(st.just("tell"), names),
    st.tuples(st.just("jump"), names),
    st.tuples(st.sampled_from(["wipe", "restart"])),
)


@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=st.lists(steps, max_size=40))
def test_both_say_the_same(client, program):
    """Random programs of peers, plans, keys, corrections, copies and eras."""
    memory, lua = TicketsInMemory(), TicketsOnRedis(client)
    group = Group(TicketsInMemory())
    now = START
    eras: dict[str, str] = {}
    plans = dict.fromkeys("pqr", "one")
    tickets: list[tuple[TicketRun, tuple[int, tuple[int, ...]], tuple[str, ...]]] = []
    copies: dict[str, dict[tuple[str, bool, str], LimitCopy]] = {peer: {} for peer in "pqr"}
    has_quarantine = True
    try:
        for step, *rest in program:
            fields: dict = {}
            peer = rest[0] if rest and rest[0] in plans else "p"
            if step == "ask":
                fields = {"runs": tuple(rest[1]), "waiting": rest[2], "weight": rest[3]}
            elif step == "pass":
                now += rest[0]
            elif step == "back":
                now -= rest[0]
            elif step == "plan":
                plans[peer], fields["is_new_plan"] = rest[1], True
            elif step == "penalize":
                fields["penalties"] = ((rest[1], rest[2]),)
            elif step == "correct" and tickets:
                run, (at, receipts), limits = tickets[rest[1] % len(tickets)]
                fields["corrections"] = tuple(
                    Correction(name, "", at, rest[2], receipt) for name, receipt in zip(limits, receipts, strict=False)
                )
                if run.key and run.settings:
                    fields["runs"] = (run._replace(wanted=0),)
                    fields["corrections"] += (Correction("", run.key, at, rest[2], receipts[-1]),)
            elif step == "tell":
                fields["copies"] = tuple(copies[peer].values())
            elif step == "jump":
                fields["has_jumped"] = True
            elif step == "wipe":
                memory.wipe()
                lua.wipe()
            else:
                memory.run = lua.run = ("b" if memory.run[0] == "a" else "a") * 40
            call = TicketCall(
                peer=peer,
                era=eras.get(peer, ""),
                interval_us=INTERVAL,
                difference_us=DIFFERENCE,
                quarantine_us=QUARANTINE,
                plan_id=plans[peer],
                plan=PLANS[plans[peer]],
                **fields,
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
