"""The view of limits that a group shares shows what the script has answered."""

import json
import random
import struct
import time
from collections.abc import Iterator

import pytest

from ratelimited_executor._core.fleet.ticket_calls import TicketRun
from ratelimited_executor.peers.redis.slot_script import slot_keys_of
from ratelimited_executor.peers.redis.ticket_inspection import (
    LimitView,
    limit_names_of,
    limits_of,
    names_of,
    pattern_of,
)
from ratelimited_executor.peers.redis.ticket_script import ticket_keys_of

from .group_keys import COSTS, PACE, PLAN_ID, SECOND, call, now_us
from .servers import RedisServer

KEYS = ticket_keys_of("rle", "default", "mail")


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator:
    """A client of a server without keys of this group."""
    with redis_server.client() as client:
        client.delete(*KEYS)
        yield client
        client.delete(*KEYS)


def view_of(client, **damage):
    """Return the view of what the server has, some fields of its hash replaced."""
    fields = {**client.hgetall(KEYS[0]), **{name.encode(): value for name, value in damage.items()}}
    seen = {peer.decode(): us for peer, us in client.zrange(KEYS[3], 0, -1, withscores=True)}
    return limits_of("mail", now_us(client), fields, seen)


# Names.


@pytest.mark.parametrize(
    ("prefix", "group", "pattern"),
    [
        ("rle", "mail", "{rle:mail}:*:tickets"),
        ("rle", None, "{rle:*}:*:tickets"),
        ("a*b?", "[x]^", r"{a\*b\?:\[x\]\^}:*:tickets"),
        ("a\\b", "c-d", r"{a\\b:c-d}:*:tickets"),
    ],
)
def test_pattern_takes_names_literally(prefix, group, pattern):
    """Characters that are special in a pattern are escaped."""
    assert pattern == pattern_of(prefix, group)


def test_names_are_those_of_the_group_alone():
    """Names are those of one group: they may contain colons and look like keys, and other keys are left out."""
    names = ["sms", "a:b", "x:tickets", "{y}", ""]
    keys = [ticket_keys_of("rle", "mail", name)[0] for name in names]
    others = [
        ticket_keys_of("rle", "mails", "z")[0],
        ticket_keys_of("rl", "mail", "z")[0],
        *ticket_keys_of("rle", "mail", "z")[1:],
    ]
    assert sorted(names) == names_of([*others, *keys, keys[0]], "rle", "mail")
    expected = {"mail": sorted(names), "mails": ["z"], "s": []}
    assert expected == limit_names_of([*slot_keys_of("rle", "s"), *keys, *others], "rle")


def test_pattern_finds_a_group_on_a_server(redis_server):
    """A group whose name looks like a pattern is found, and no other."""
    groups = ["a*", "ab", "a[b]", "a\\", "ä", "a?"]
    with redis_server.client(decode_responses=True) as client:
        for group in groups:
            client.hset(ticket_keys_of("r*", group, f"of {group}")[0], "run", "x")
        for group in groups:
            found = list(client.scan_iter(match=pattern_of("r*", group)))
            assert [f"of {group}"] == names_of(found, "r*", group), group
        expected = {group: [f"of {group}"] for group in groups}
        assert expected == limit_names_of(client.scan_iter(match=pattern_of("r*")), "r*")


# Limits.


def test_use_of_each_limit_is_that_of_the_latest_reply(client):
    """A view shows the names, uses, amounts and end of use of all limits, as in the latest reply."""
    call(client)
    reply = call(client, TicketRun(3, COSTS), number=1)
    view = view_of(client)
    assert ("mail", PLAN_ID, None, None) == (view.name, view.plan, view.quarantine, view.penalty)
    told = [(each.name, each.resource, each.used, each.amount) for each in reply.limits]
    assert told == [(each.name, each.resource, each.used, each.amount) for each in view.limits]
    assert [3, 150] == [each.used for each in view.limits]
    assert all(59 < each.free_in < 61 for each in view.limits)
    assert 0 <= view.last_call < 10


@pytest.mark.real_time("a real server, whose clock is read")
def test_what_is_read_is_what_the_script_answered(client):
    """After each of many calls by three peers, uses, peers and the plan are those of the reply."""
    chance = random.Random(7)
    peers = ["host:1:a:0", "host:2:b:0", "host:3:c:1"]
    for number in range(100):
        runs = [TicketRun(chance.randrange(4), (("permits", 1),))]
        peer = chance.choice(peers)
        reply = call(client, *runs, peer=peer, number=number, plan_id="100/s", plan=PACE)
        seen = {each.decode(): us for each, us in client.zrange(KEYS[3], 0, -1, withscores=True)}
        view = limits_of("mail", reply.now_us, client.hgetall(KEYS[0]), seen)
        told = [(each.used, each.amount, max(0, each.until_us - reply.now_us) / SECOND) for each in reply.limits]
        assert told == [(each.used, each.amount, each.free_in) for each in view.limits]
        assert (reply.peers, peer, "100/s") == (len(view.peers), view.peers[0].id, view.plan)
        time.sleep(0.002)
    assert len(view.peers) == 3


def test_state_of_an_earlier_era_counts_as_the_script_counts_it(client):
    """After a new era, what is left of the earlier one is shown as used when its last permits have lapsed."""
    call(client)
    call(client, TicketRun(3, COSTS), number=1)
    reply = call(client, has_jumped=True, era=call(client, number=2).era, number=3, quarantine_us=5 * SECOND)
    view = view_of(client)
    assert 4 < view.quarantine <= 5
    assert [each.used for each in reply.limits] == [each.used for each in view.limits] == [3, 150]
    assert [each.until_us / SECOND for each in reply.limits] == pytest.approx(
        [now_us(client) / SECOND + each.free_in for each in view.limits], abs=0.5
    )
    assert all(60 < each.free_in for each in view.limits)


def test_limit_at_rest_and_a_penalty_are_told(client):
    """A view shows a limit at rest as unused, and the end of a penalty."""
    call(client, penalties=(("", 5 * SECOND),))
    view = view_of(client)
    assert LimitView(name="permits/window/60", resource="permits", used=0, amount=10, free_in=0.0) == view.limits[0]
    assert 4 < view.penalty <= 5


def test_peers_are_those_that_have_called_the_latest_first(client):
    """Peers come with the time of their last call, the latest first; one that has not called for a second is not active."""
    call(client, peer="host:1:a:0")
    call(client, peer="host:2:b:0")
    seen = {peer.decode(): us for peer, us in client.zrange(KEYS[3], 0, -1, withscores=True)}
    earlier, later = seen["host:1:a:0"], seen["host:2:b:0"]
    view = limits_of("mail", round(earlier + SECOND), client.hgetall(KEYS[0]), seen)
    assert ["host:2:b:0", "host:1:a:0"] == [peer.id for peer in view.peers]
    assert (1.0, True, 2) == (view.peers[1].last_call, view.peers[1].is_active, view.active_count)
    view = limits_of("mail", round(later + SECOND), client.hgetall(KEYS[0]), seen)
    assert [True, False] == [peer.is_active for peer in view.peers]
    assert view.active_count == 1


def test_key_that_has_gone_is_nothing():
    """Without a hash there is no view."""
    assert limits_of("mail", 1, {}, {}) is None


NUMBERS = [1.0] * 9


@pytest.mark.parametrize(
    "damage",
    [
        {"state": b"1,2"},
        {"state": b"x"},
        {"state": struct.pack("<9d", *NUMBERS[:3], float("nan"), *NUMBERS[4:])},
        {"state": struct.pack("<9d", *NUMBERS[:5], float("inf"), *NUMBERS[6:])},
        {"state": struct.pack("<9d", -1.0, *NUMBERS[1:])},
        {"plan": b"["},
        {"plan": json.dumps([["a", "permits", "w,1"]]).encode()},
        {"l:wpermits/window/60": b"0,0,;w2x"},
        {"l:wpermits/window/60": b"x;w2"},
    ],
    ids=["numbers", "length", "nan", "infinite", "negative", "no json", "settings", "limit", "no era"],
)
def test_what_nobody_can_have_written_is_an_error(client, damage):
    """An impossible state raises an error instead of being shown."""
    call(client)
    view_of(client)
    with pytest.raises(ValueError):  # noqa: PT011  # of several kinds; the command names what is damaged
        view_of(client, **damage)


def test_peer_that_called_at_no_time_is_an_error(client):
    """A time of a call that no clock shows raises an error instead of being shown."""
    call(client)
    client.zadd(KEYS[3], {"bad": "-inf"})
    with pytest.raises(ValueError, match="'mail' has a time that cannot be"):
        view_of(client)
