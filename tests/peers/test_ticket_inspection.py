"""The view of limits that a group shares shows what the script has answered."""

from collections.abc import Iterator

import pytest

from ratelimited_executor._core.fleet.limit_settings import WindowSettings
from ratelimited_executor._core.fleet.ticket_calls import PlanLimit, TicketCall, TicketRun
from ratelimited_executor.peers.redis.ticket_inspection import LimitView, limits_of
from ratelimited_executor.peers.redis.ticket_script import (
    TICKET_SCRIPT,
    ticket_arguments_of,
    ticket_keys_of,
    ticket_reply_of,
)

from .servers import RedisServer

SECOND = 1_000_000
PLAN = tuple(
    PlanLimit(f"{resource}/window/60", resource, WindowSettings.of(amount, 60 * SECOND).write())
    for resource, amount in (("permits", 10), ("tokens", 1000))
)
KEYS = ticket_keys_of("rle", "mail", "model")


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator:
    """A client of a server without keys of this group."""
    with redis_server.client() as client:
        client.delete(*KEYS)
        yield client
        client.delete(*KEYS)


def call(client, *runs: TicketRun, **fields):
    """Make one call; return the reply, and the server's time after it."""
    asked = TicketCall(
        peer="p",
        since_us=1,
        latest_us=1 << 52,
        ahead_us=100_000,
        difference_us=0,
        quarantine_us=1,
        plan_id="10/min",
        plan=PLAN,
        runs=runs,
        **fields,
    )
    reply = ticket_reply_of(client.eval(TICKET_SCRIPT, len(KEYS), *KEYS, *ticket_arguments_of(asked)))
    seconds, microseconds = client.time()
    return reply, seconds * SECOND + microseconds


def test_use_of_each_limit_is_that_of_the_latest_reply(client):
    """A view shows the names, uses, amounts and end of use of all limits, as in the latest reply."""
    call(client)
    reply, now = call(client, TicketRun(3, (("permits", 1), ("tokens", 50))))
    view = limits_of("model", now, client.hgetall(KEYS[0]))
    assert view is not None
    assert ("model", "10/min", None, None) == (view.name, view.plan, view.quarantine, view.penalty)
    told = [(each.name, each.resource, each.used, each.amount) for each in reply.limits]
    assert told == [(each.name, each.resource, each.used, each.amount) for each in view.limits]
    assert [3, 150] == [each.used for each in view.limits]
    assert all(59 < each.free_in < 61 for each in view.limits)
    assert 0 <= view.last_call < 10


def test_limit_at_rest_and_a_penalty_are_told(client):
    """A view shows a limit at rest as unused, and the end of a penalty."""
    _, now = call(client, penalties=(("", 5 * SECOND),))
    view = limits_of("model", now, client.hgetall(KEYS[0]))
    assert view is not None
    assert LimitView(name="permits/window/60", resource="permits", used=0, amount=10, free_in=0.0) == view.limits[0]
    assert view.penalty is not None
    assert 4 < view.penalty <= 5


def test_key_that_has_gone_is_nothing():
    """Without a hash there is no view."""
    assert limits_of("model", 1, {}) is None


@pytest.mark.parametrize(
    "damage", [{b"state": b"1,2"}, {b"state": b"x"}, {b"plan": b"["}, {b"l:wpermits/window/60": b"0,0,;w2x"}]
)
def test_what_nobody_can_have_written_is_an_error(client, damage):
    """An impossible state raises an error instead of being shown."""
    call(client)
    _, now = call(client)
    with pytest.raises(ValueError):  # noqa: PT011  # of several kinds; the command names what is damaged
        limits_of("model", now, {**client.hgetall(KEYS[0]), **damage})
