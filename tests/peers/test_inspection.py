"""Views of a group are computed from what the script wrote, by the server's clock."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from ratelimited_executor._core.fleet.protocol import Request
from ratelimited_executor.peers.redis.inspection import (
    STALE_INTERVALS,
    RateView,
    names_of,
    pattern_of,
    rate_names_of,
    rate_of,
)
from ratelimited_executor.peers.redis.script import SCRIPT, arguments_of, keys_of, reply_of
from ratelimited_executor.peers.redis.slot_script import slot_keys_of

from .servers import RedisServer

T_US = 250_000
NUMBER = 1000
NOW_US = NUMBER * T_US + 100_000  # 0.1 s into interval 1000
RUN = "0123456789abcdef" * 2 + "01234567"
STATE = {
    "run": RUN, "epoch": "2", "safe": "990", "last": str(NOW_US - 50_000), "grid": f"{T_US},25,1,0,900", "next": "",
}  # fmt: skip


def read(
    state: dict[str, str] | None = None, members: Any = None, *plans: dict[str, str], now_us: int = NOW_US
) -> RateView:
    """Read a rate whose state is the default except for what is given."""
    rate = rate_of("mail", now_us, STATE | (state or {}), members or {}, plans)
    assert rate is not None
    return rate


# Names.


@pytest.mark.parametrize(
    ("prefix", "group", "pattern"),
    [
        ("rle", "mail", "{rle:mail}:*:state"),
        ("rle", None, "{rle:*}:*:state"),
        ("a*b?", "[x]^", r"{a\*b\?:\[x\]\^}:*:state"),
        ("a\\b", "c-d", r"{a\\b:c-d}:*:state"),
    ],
)
def test_pattern_takes_names_literally(prefix: str, group: str | None, pattern: str) -> None:
    """Characters that are special in a pattern are escaped."""
    assert pattern == pattern_of(prefix, group)


def test_names_are_those_of_the_group_alone() -> None:
    """Names are those of one group: they may contain colons and look like keys, and other keys are left out."""
    names = ["sms", "a:b", "x:state", "{y}", ""]
    keys = [keys_of("rle", "mail", name)[0] for name in names]
    others = [keys_of("rle", "mails", "z")[0], keys_of("rl", "mail", "z")[0], *keys_of("rle", "mail", "z")[1:]]
    assert sorted(names) == names_of([*others, *keys, keys[0]], "rle", "mail")
    expected = {"mail": sorted([*names, "z"]), "mails": ["z"], "s": []}
    assert expected == rate_names_of([*slot_keys_of("rle", "s"), *keys, *others], "rle")


def test_pattern_finds_a_group_on_a_server(redis_server: RedisServer) -> None:
    """A group whose name looks like a pattern is found, and no other."""
    groups = ["a*", "ab", "a[b]", "a\\", "ä", "a?"]
    with redis_server.client(decode_responses=True) as client:
        for group in groups:
            client.hset(keys_of("r*", group, f"of {group}")[0], "run", "x")
        for group in groups:
            found = list(client.scan_iter(match=pattern_of("r*", group)))
            assert [f"of {group}"] == names_of(found, "r*", group), group
        expected = {group: [f"of {group}"] for group in groups}
        assert expected == rate_names_of(client.scan_iter(match=pattern_of("r*")), "r*")


# Rates.


def test_rate_is_read_from_the_grid() -> None:
    """The rate is read as an exact ratio of permits a second, with the run and era of its authority."""
    rate = read()
    assert ("mail", Fraction(100), None, None, 0.25) == (
        rate.name,
        rate.rate,
        rate.next_rate,
        rate.next_in,
        rate.interval,
    )
    assert (RUN, 2, None, 0.05, 0) == (rate.run, rate.epoch, rate.quarantine, rate.last_call, rate.active_count)


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (NUMBER + 2, (100, 200, 0.4)),  # comes in force at the begin of that interval
        (NUMBER + 1, (100, 200, 0.15)),
        (NUMBER, (200, None, None)),  # came in force, and nobody has called since
        (NUMBER - 5, (200, None, None)),
    ],
)
def test_next_rate_comes_in_force_at_its_interval(since: int, expected: tuple[Any, ...]) -> None:
    """A next rate is shown until its interval begins, whether a call has noticed that or not."""
    rate = read({"next": f"{T_US},50,1,0,{since}"})
    assert expected == (rate.rate, rate.next_rate, rate.next_in)


def test_permits_of_an_interval_without_a_plan_are_those_of_its_rate() -> None:
    """Without a plan the permits of an interval follow its rate, which may be the next one."""
    rate = read({"next": f"{T_US},50,1,0,{NUMBER + 1}"})
    assert (25, 0, 50, 0) == (
        rate.running.permits,
        rate.running.granted_count,
        rate.upcoming.permits,
        rate.upcoming.granted_count,
    )


@pytest.mark.parametrize(("safe", "left"), [(NUMBER + 4, 0.9), (NUMBER + 1, 0.15), (NUMBER, None)])
def test_quarantine_lasts_until_its_interval_begins(safe: int, left: float | None) -> None:
    """The quarantine is shown until its interval begins, before which no permit comes up."""
    assert left == read({"safe": str(safe)}).quarantine


def test_permits_of_a_peer_are_what_it_fetched_and_what_it_asked_for_at_once() -> None:
    """Permits of a peer are those it fetched and those it asked for at once; reserved ones are listed separately."""
    members = {"a:1:x": f"1.0,7,{NOW_US},0", "b:2:y": f"2.5,0,{NOW_US - 1_000_000},1"}
    running = {
        "number": str(NUMBER), "count": "25", "stride": "14", "grid": STATE["grid"], "peers": "2", "swept": "1",
        "free": "20-21,", "g:a:1:x": "0-5,9-11,", "a:a:1:x": "17;12-13,14-15,", "g:gone": "5-9,", "a:b:2:y": "3;",
    }  # fmt: skip
    upcoming = {
        "number": str(NUMBER + 1), "count": "25", "stride": "14", "grid": STATE["grid"], "peers": "1", "free": "",
        "g:a:1:x": "0-12,", "r:b:2:y": "12-25,",
    }  # fmt: skip
    rate = read(None, members, upcoming, running)

    first, second = rate.peers
    assert ("a:1:x", 0, 1.0, 7, 9, 12, 0, 9 / 25, 0.0, False) == (
        first.id, first.rank, first.weight, first.demand, first.running, first.upcoming, first.planned, first.share,
        first.seen, first.is_stale,
    )  # fmt: skip
    assert ("b:2:y", 1, 2.5, 0, 0, 0, 13, 0.0, 1.0, True) == (
        second.id, second.rank, second.weight, second.demand, second.running, second.upcoming, second.planned,
        second.share, second.seen, second.is_stale,
    )  # fmt: skip
    assert (13, 12, 1) == (rate.running.granted_count, rate.upcoming.granted_count, rate.active_count)


def test_plans_of_other_intervals_are_not_counted() -> None:
    """A plan that is left of an earlier interval is not counted."""
    old = {"number": str(NUMBER - 2), "count": "25", "g:a": "0-25,"}
    assert 0 == read(None, {"a": f"1.0,0,{NOW_US},0"}, old, {}).running.granted_count


def test_share_of_an_interval_without_permits_is_none() -> None:
    """In an interval without permits a peer's share is None, as at a rate of 0."""
    rate = read({"grid": f"{T_US},0,1,0,900"}, {"a": f"1.0,0,{NOW_US},0"})
    assert (Fraction(0), 0, None) == (rate.rate, rate.running.permits, rate.peers[0].share)


@pytest.mark.parametrize(
    ("seen_us", "is_stale"),
    [(NOW_US, False), (NOW_US - 3 * T_US, False), (NOW_US - 3 * T_US - 1, True), (NOW_US + 40_000, False)],
)
def test_peer_is_stale_when_plans_are_made_without_it(seen_us: int, is_stale: bool) -> None:
    """A peer is stale after three intervals without a call, as in the script."""
    (peer,) = read(None, {"a": f"1.0,0,{seen_us},0"}).peers
    assert (is_stale, max(0, NOW_US - seen_us) / 1e6) == (peer.is_stale, peer.seen)
    assert re.search(rf"local STALE_INTERVALS.* = {STALE_INTERVALS},", SCRIPT)


def test_peers_are_in_the_order_of_their_ranks() -> None:
    """Peers are sorted by rank as a number, not as text."""
    members = {name: f"1.0,0,{NOW_US},{rank}" for name, rank in (("a", 10), ("b", 9), ("c", 0))}
    assert ["c", "b", "a"] == [peer.id for peer in read(None, members).peers]


def test_hashes_that_were_read_later_than_the_time_move_it_on() -> None:
    """A call between reading the time and the hashes moves the time of the view forward."""
    later = {"number": str(NUMBER + 2), "count": "25", "g:a": "0-3,"}
    before = {"number": str(NUMBER + 1), "count": "25", "g:a": "0-9,"}
    rate = read({"last": str((NUMBER + 1) * T_US + 10)}, {"a": f"1.0,0,{NOW_US},0"}, later, before)
    assert (NUMBER + 1, 9, 3, 0.0) == (
        rate.running.number,
        rate.peers[0].running,
        rate.peers[0].upcoming,
        rate.last_call,
    )


@pytest.mark.parametrize("state", [{}, {"run": RUN, "grid": ""}])
def test_rate_whose_keys_have_gone_is_none(state: dict[str, str]) -> None:
    """A rate whose keys expired meanwhile is None."""
    assert rate_of("mail", NOW_US, state, {}, ()) is None


@pytest.mark.parametrize(
    ("state", "members", "plan"),
    [
        ({"grid": "1,2,3"}, {}, {}),
        ({"grid": "0,25,1,0,900"}, {}, {}),
        ({"safe": "soon"}, {}, {}),
        ({}, {"a": "1.0,0"}, {}),
        ({}, {}, {"number": str(NUMBER), "count": "25", "g:a": "x-y,"}),
    ],
)
def test_hashes_of_somebody_else_are_refused(
    state: dict[str, str], members: dict[str, str], plan: dict[str, str]
) -> None:
    """Hashes that the script cannot have written are refused."""
    with pytest.raises(ValueError):
        read(state, members, plan)


# The script.


@pytest.mark.real_time("a real server, whose clock is read; 1.3 s in intervals of 50 ms")
def test_what_is_read_is_what_the_script_granted(redis_server: RedisServer) -> None:
    """After each of many calls by three peers, the permits in the hashes are those of the replies."""
    chance = random.Random(7)
    names = ["host:1:a", "host:2:b", "host:3:c"]
    fetched: Counter[tuple[int, str]] = Counter()  # by interval and peer, from the replies
    asked: Counter[tuple[int, str]] = Counter()
    compared = 0
    keys = keys_of("rle", "g", "mail")
    with redis_server.client(decode_responses=True) as client:
        for sequence in range(100):
            name = chance.choice(names)
            now, urgent, soon, later = sorted(chance.choices(range(8), k=4))
            request = Request(
                peer=name, weight=2.5, now=now, urgent=urgent, soon=soon, later=later, sequence=sequence,
                step=25, unit=2, interval_us=50_000, quarantine=0, is_fetching=chance.random() < 0.7,
            )  # fmt: skip
            reply = reply_of(client.eval(SCRIPT, len(keys), *keys, *arguments_of(request)))
            fetched[reply.upcoming.number, name] = sum(map(len, reply.upcoming.ranks))
            if reply.running.number:
                asked[reply.running.number, name] = sum(map(len, reply.running.ranks))
            state, members, *plans = (client.hgetall(key) for key in keys[:4])
            rate = rate_of("mail", reply.now_us, state, members, plans)
            assert rate is not None
            assert (Fraction(250), reply.era) == (rate.rate, f"{rate.run}:{rate.epoch}")
            for interval in (rate.running, rate.upcoming):
                expected = {each: fetched[interval.number, each] + asked[interval.number, each] for each in names}
                assert expected == {each: interval.granted.get(each, 0) for each in names}
                assert interval.granted_count + sum(interval.planned.values()) <= interval.permits
                compared += interval.granted_count
            (peer,) = (peer for peer in rate.peers if peer.id == name)
            assert (reply.rank, 2.5, False) == (peer.rank, peer.weight, peer.is_stale)
            time.sleep(0.01)
    assert compared > 100
