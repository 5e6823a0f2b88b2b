"""A feed has the times, keys and items of one minute after the other."""

import random

import pytest

from ratelimited_executor.simulation import Poisson, Simulation
from ratelimited_executor.simulation.feeds import Feed


def streams():
    return tuple(random.Random(number) for number in range(3))


def test_keys_are_numbers_from_minute_to_minute():
    """Without keys, jobs are numbered."""
    feed = Feed(Poisson(1), print, None, 0, streams())
    assert [range(3), range(3, 5)] == [feed.keys(0.0, 3), feed.keys(60.0, 2)]
    assert all(60 <= time < 120 for time in feed.times(60.0))


def test_items_of_a_kind_are_drawn():
    """A kind of job gets its random numbers with the key; another function gets the key."""
    sim = Simulation()
    drawn = Feed(Poisson(1), sim.job("call", 2.0), "ab", 4, streams()).items(0.0, 5)
    plain = Feed(Poisson(1), print, "ab", 4, streams()).items(0.0, 5)
    sim.close()
    assert plain == [each.key for each in drawn]
    assert {(2.0, 4)} == {(each.seconds, each.priority) for each in drawn}


def test_no_keys_are_an_error():
    """None can be drawn."""
    with pytest.raises(ValueError, match="keys must contain at least one key"):
        Feed(Poisson(1), print, [], 0, streams())
