"""Shares of keys in claims for a fair executor."""

from collections import Counter

import pytest

from ratelimited_executor._core.durable.tasks import NO_KEY
from ratelimited_executor._core.durable.turns import share_for, turns_ahead, turns_of

HELD = Counter({(0.0, "a"): 4, (0.0, "b"): 1, (1.0, NO_KEY): 2})
EVEN = dict.fromkeys(("a", "b", NO_KEY), 1.0)


def more(held, weights, share):
    """How many more tasks the keys would get."""
    return sum(max(0.0, share * weights[key] - count) for (_, key), count in held.items())


def test_first_round_is_for_keys_without_tasks():
    """At share 0 a key that has no task gets one, and others none."""
    turns = turns_of(HELD, EVEN, {0.0: "a"}, share=0.0)
    assert (1, {0.0: "a"}) == (turns.each, turns.after)
    assert {0} == set(turns.others.values())
    assert 1 == turns.quota(2.0, "a")
    assert 0 == turns.quota(0.0, "a")


def test_larger_shares_are_by_weight():
    """Up to a share, keys get as many tasks as their weight says, less those they have."""
    turns = turns_of(HELD, {"a": 3.0, "b": 0.1, NO_KEY: 1.0}, {}, share=2.5)
    assert 3 == turns.each
    assert {(0.0, "a"): 4, (0.0, "b"): 0, (1.0, NO_KEY): 1} == turns.others


@pytest.mark.parametrize("weights", [EVEN, {"a": 5.0, "b": 0.01, NO_KEY: 1.0}, {"a": 1e-6, "b": 1e6, NO_KEY: 1.0}])
@pytest.mark.parametrize("room", [1, 2, 7, 1000])
def test_share_fills_the_room(weights, room):
    """At the share for some room the keys get just as many more tasks, and at least one unit of their weight."""
    share = share_for(HELD, weights, room)
    assert share == 1.0 or room == pytest.approx(more(HELD, weights, share), rel=1e-6)
    assert room <= more(HELD, weights, share) + 1e-3
    assert 1.0 == share_for(Counter(), {}, room)


def test_what_precedes_held_tasks():
    """Ahead of held tasks are those of larger priorities, and those of other keys at the least one."""
    turns = turns_ahead(HELD, {}, least=0.0, count=11)
    assert {(0.0, "a"): 0, (0.0, "b"): 0, (1.0, NO_KEY): 11} == turns.others
    assert 4 == turns.each
    assert 1 == turns_ahead(HELD, {}, least=0.0, count=3).each
