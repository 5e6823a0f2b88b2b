"""Numbers, times and states as texts for people."""

import math
from types import SimpleNamespace

import pytest

from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._runtime.insight.insight import Hold
from ratelimited_executor.dashboard import views
from ratelimited_executor.dashboard.texts import (
    age_text,
    count_text,
    hold_text,
    number_text,
    per_second_text,
    plan_text,
    rate_text,
    seconds_text,
    state_text,
    time_text,
)

from ratelimited_executor.peers.fleet import FleetPeers
from ratelimited_executor.peers.redis.peers import RedisPeers
from ratelimited_executor.peers.stored.file import FilePeers
from ratelimited_executor.peers.stored.postgres import PostgresPeers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count_text(1234567), "1,234,567"),
        (count_text(math.nan), "-"),
        (number_text(999.9), "1 k"),
        (number_text(999.4), "999"),
        (number_text(1500), "1.5 k"),
        (number_text(999_900), "1 M"),
        (number_text(math.inf), "∞"),
        (number_text(math.nan), "-"),
        (per_second_text(0), "0/s"),
        (per_second_text(0.0995), "0.1/s"),
        (per_second_text(0.333), "0.33/s"),
        (per_second_text(math.inf), "∞/s"),
        (plan_text("Paced(slack=0.02) permits 10/s"), "permits 10/s, paced"),
        (plan_text("Paced(slack=0.02, strictness=Strictness.NOMINAL) permits inf/s"), "permits without a limit, paced"),
        (plan_text("100/min"), "100/min"),
        (per_second_text(math.nan), "-"),
        (seconds_text(None), "-"),
        (seconds_text(math.nan), "-"),
        (seconds_text(0), "0 s"),
        (seconds_text(math.inf), "∞"),
        (seconds_text(5400), "1h30m"),
        (age_text(5.0, 10.0), "5 s to 10 s"),
        (age_text(5.0, 5.0), "5 s"),
        (age_text(0.0, 5.0), "up to 5 s"),
        (age_text(5.0, None), "over 5 s"),
        (time_text(0), "1970-01-01 00:00:00 UTC"),
    ],
)
def test_texts(text, expected):
    """Texts are short, and have no unit if there is no value."""
    assert text == expected


def standing(**values):
    return SimpleNamespace(**{"is_paused": False, "fleet": None, "penalty": 0.0, "rate": Rate(5), **values})


@pytest.mark.parametrize(
    ("values", "is_closing", "expected"),
    [
        ({}, False, ("open", "open", "good")),
        ({"is_paused": True}, False, ("paused", "paused", "wait")),
        ({"penalty": 2.5}, False, ("penalty", "penalty: 2.5 s left", "wait")),
        (
            {"fleet": SimpleNamespace(state="outage", rate=None)},
            False,
            ("outage", "outage: no answer from the group", "bad"),
        ),
        ({"fleet": SimpleNamespace(state="active", rate=0)}, False, ("paused", "group paused: its rate is 0", "wait")),
        ({"rate": Rate(0), "overdue": 0}, False, ("stopped", "stopped: its rate is 0", "wait")),
        ({"rate": Rate(0), "overdue": 1200}, False, ("stopped", "stopped: its rate is 0, 1,200 due", "bad")),
        ({"is_paused": True}, True, ("closing", "closing", "wait")),
    ],
)
def test_state_names_what_matters_most(values, is_closing, expected):
    """The text names what matters most, and the colour says how bad it is."""
    assert state_text(standing(**values), is_closing=is_closing) == expected


def test_full_executor_is_said_to_be_so_unless_tasks_fail():
    """What keeps all places is told where nothing worse is; an outage names what does not answer."""
    assert state_text(standing(), is_closing=False, stuck="2 of 2 running") == ("full", "full: 2 of 2 running", "wait")
    assert state_text(standing(), is_closing=False, stuck="2 of 2 running", failed=1).kind == "failing"
    assert state_text(standing(), is_closing=False, stuck="2 of 2 running", lately=1).kind == "full"
    assert state_text(standing(), is_closing=False, lately=1200) == ("failed", "open; 1,200 failed in 15 min", "wait")
    away = standing(fleet=SimpleNamespace(state="outage", rate=None))
    assert state_text(away, is_closing=False, authority="Redis").text == "outage: no answer from Redis"


def test_each_authority_has_its_words():
    """The kinds of peers that have an authority are those that the pages name."""
    kinds = {each.__name__ for each in (FilePeers, PostgresPeers, RedisPeers)}
    ours = {
        each.__name__ for each in FleetPeers.__subclasses__() if each.__module__.startswith("ratelimited_executor.")
    }
    assert set(views._AUTHORITIES) == kinds == ours


def test_rate_of_a_group_is_said_to_be_that():
    """The rate of a group is marked as such, as this process has only a part of it."""
    assert rate_text(standing()) == "5/s"
    assert rate_text(standing(rate=Rate(math.inf))) == "no limit"
    assert rate_text(standing(fleet=SimpleNamespace(rate=Rate(1000).permits))) == "1 k/s (group)"


def test_each_hold_has_a_meaning():
    """Each hold has a text; one without would be an error on the page of the task."""
    assert all(hold_text(hold) for hold in Hold)
