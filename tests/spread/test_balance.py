"""Balanced slots cost the same within a bound, and few keys move when one is added or removed."""

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor.spread import balance, cycle_slot_of

COSTS = st.dictionaries(st.integers(0, 10**6), st.one_of(st.integers(0, 20), st.floats(0, 1000)), max_size=7)


def loads_of(costs, assignment, slots) -> list[float]:
    loads = [0.0] * slots
    for key, slot in assignment.items():
        loads[slot] += costs[key]
    return loads


@given(COSTS, st.integers(1, 4), st.sampled_from([0.01, 0.1, 0.5, 2.0]))
@settings(max_examples=100, deadline=None)
def test_load_is_within_the_bound_of_the_optimum(costs, slots, slack):
    """No slot costs more than max(1 + slack, 3/2) times the optimum, which is found by trying all assignments."""
    found = balance(costs, slots, slack=slack)
    assert costs.keys() == found.keys()
    best = min(
        max(loads_of(costs, dict(zip(costs, choice, strict=True)), slots))
        for choice in itertools.product(range(slots), repeat=len(costs))
    )
    assert max(loads_of(costs, found, slots)) <= max(1 + slack, 1.5) * best * (1 + 1e-9)


@pytest.mark.parametrize("slack", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_light_keys_are_balanced_within_the_slack(slack, seed):
    """If none costs more than the slack times the mean, no slot takes more than 1 + slack times the mean."""
    rng = random.Random(seed)
    costs = {number: rng.choice([1, 1, 1, 2, 5]) for number in range(20_000)}
    loads = loads_of(costs, balance(costs, 128, slack=slack), 128)
    mean = sum(costs.values()) / 128
    assert max(costs.values()) <= 0.02 * mean + 5
    assert max(loads) <= (1 + slack) * mean + 1e-6


def test_without_costs_to_speak_of_most_keys_keep_their_slot():
    """Most keys keep their slot, so that a database can still select nearly all of a slot's keys by their hash."""
    costs = dict.fromkeys(range(10_000), 1)
    found = balance(costs, 128, slack=0.3)
    assert sum(found[key] != cycle_slot_of(key, "8h") for key in costs) < 100


@pytest.mark.parametrize("heavy", [0, 200])
def test_few_keys_move_when_one_joins_or_leaves(heavy):
    """About as many of 10,000 keys move as docs/reference/spread.md says: ten if one joins, five if one leaves."""
    rng = random.Random(1)
    costs = dict.fromkeys(range(10_000), 1.0) | {10**6 + number: rng.choice([20, 50, 100]) for number in range(heavy)}
    before = balance(costs, 128)
    joined, left = [], []
    for number in range(20):
        after = balance(costs | {10**9 + number: rng.choice([1, 1, 1, 20])}, 128)
        joined.append(sum(before[key] != after[key] for key in costs))
        gone = rng.choice(list(costs))
        after = balance({key: cost for key, cost in costs.items() if key != gone}, 128)
        left.append(sum(before[key] != slot for key, slot in after.items()))
    assert statistics.mean(joined) <= 15, joined
    assert statistics.mean(left) <= 10, left
    assert max(joined + left) <= 300


def test_order_of_the_keys_does_not_matter():
    """The assignment is a function of the set of keys and costs, whatever the order they are given in."""
    costs = {number: 1 + number % 7 for number in range(1000)}
    shuffled = list(costs.items())
    random.Random(2).shuffle(shuffled)
    assert balance(costs, 16) == balance(dict(shuffled), 16)


def test_nothing_and_costs_of_nothing():
    """Keys that cost nothing stay in the slot of their hash; without keys the assignment is empty."""
    assert {} == balance({}, 5)
    assert {key: cycle_slot_of(key, "8h") for key in range(100)} == balance(dict.fromkeys(range(100), 0), 128)
    assert {"a": 0} == balance({"a": 3}, 1)


@pytest.mark.parametrize(
    ("costs", "slots", "options", "name"),
    [
        ({"a": math.nan}, 2, {}, "costs"),
        ({"a": -1}, 2, {}, "costs"),
        ({"a": math.inf}, 2, {}, "costs"),
        ({"a": 1}, 0, {}, "slots"),
        ({"a": 1}, 2, {"slack": 0}, "slack"),
        ({"a": 1}, 2, {"slack": -1}, "slack"),
        ({"a": 1}, 2, {"slack": math.nan}, "slack"),
        ({"a": 1}, 2, {"slack": math.inf}, "slack"),
    ],
)
def test_values_out_of_range_are_refused_by_name(costs, slots, options, name):
    """The message names the argument."""
    with pytest.raises(ValueError, match=f"^{name} must be"):
        balance(costs, slots, **options)


@pytest.mark.parametrize(
    ("costs", "slots", "name"),
    [
        (["a"], 2, "costs"),
        ({"a": "1"}, 2, "costs"),
        ({"a": True}, 2, "costs"),
        ({"a": 1}, 2.0, "slots"),
        ({1.5: 1}, 2, "key"),
    ],
)
def test_wrong_types_are_refused_by_name(costs, slots, name):
    """The message names the argument."""
    with pytest.raises(TypeError, match=f"^{name} must be"):
        balance(costs, slots)
