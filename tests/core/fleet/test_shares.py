"""Shares of the permits of an interval: which peer gets how many, and which."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core.fleet.shares import apportion, level, stride

from ...helpers import fluid_shares

NUMBER = 6_816_268_800  # number of the interval of 250 ms at that time


# Shares.


DEMANDS = st.lists(
    st.tuples(
        st.sampled_from([0.5, 1.0, 1.0, 1.0, 2.0, 3.0, 1e-6]), st.sampled_from([0, 1, 2, 3, 7, 20, 300, 1 << 40])
    ),
    min_size=1,
    max_size=9,
).map(lambda pairs: {f"peer {index}": pair for index, pair in enumerate(pairs)})
SUPPLIES = st.one_of(st.integers(0, 40), st.sampled_from([250, 25_000]))


# Fibonacci numbers, whose golden part is nearly whole.
NUMBERS = st.one_of(
    st.integers(NUMBER, NUMBER + 10**7), st.sampled_from([0, 832_040, 1_346_269, 2_178_309, 3_524_578, 39_088_169])
)


@given(DEMANDS, SUPPLIES)
@settings(max_examples=300, deadline=None)
def test_level_is_that_of_max_min(demands, supply):
    """Each peer's share is the smaller of its demand and its weight times the level."""
    water = level(demands, supply)
    wanted = sum(demand for _, demand in demands.values())

    assert (wanted <= supply) == (water == math.inf)
    shares = fluid_shares(demands, supply)
    assert {peer: pytest.approx(float(share), rel=1e-9, abs=1e-9) for peer, share in shares.items()} == {
        peer: min(demand, weight * water) for peer, (weight, demand) in demands.items()
    }


def test_level_of_nobody_is_infinite():
    """Without peers the level is infinite."""
    assert math.inf == level({}, 0) == level({}, 10)


@given(DEMANDS, SUPPLIES, NUMBERS)
@settings(max_examples=500, deadline=None)
def test_ranges_add_up_and_are_within_one_of_the_share(demands, supply, number):
    """Ranges follow each other without a gap, are within one of the shares, and divide all supply or demand."""
    ranges, done = apportion(demands, supply, number)
    shares = fluid_shares(demands, supply)

    assert [*demands] == [*ranges]
    assert list(range(done)) == [rank for part in ranges.values() for rank in part]
    assert min(supply, sum(demand for _, demand in demands.values())) == done
    off = {peer: len(part) - shares[peer] for peer, part in ranges.items()}
    assert {} == {peer: float(by) for peer, by in off.items() if abs(by) >= 1 + 1e-6}


@given(DEMANDS, SUPPLIES, NUMBERS)
@settings(max_examples=300, deadline=None)
def test_nobody_is_planned_more_than_it_wants(demands, supply, number):
    """No peer is planned more than its demand, and with enough supply each gets exactly that."""
    ranges, _ = apportion(demands, supply, number)

    assert {} == {peer: len(part) for peer, part in ranges.items() if len(part) > demands[peer][1]}


@pytest.mark.parametrize(("count", "supply"), [(3, 1), (7, 1), (7, 3), (10, 25), (9, 2)])
def test_remainders_go_round(count, supply):
    """Over time equal peers get the same, and none waits much longer than its turn."""
    demands = {f"peer {index}": (1.0, 1 << 40) for index in range(count)}
    granted = Counter()
    latest = dict.fromkeys(demands, 0)
    waits = []
    intervals = 100 * count
    for index in range(intervals):
        ranges, _ = apportion(demands, supply, NUMBER + index)
        for peer, part in ranges.items():
            granted[peer] += len(part)
            if part:
                waits.append(index - latest[peer])
                latest[peer] = index

    assert supply * intervals == granted.total()
    assert {} == {peer: got for peer, got in granted.items() if abs(got - 100 * supply) > 3}
    assert max(waits) <= math.ceil(2.7 * count / supply)


@pytest.mark.parametrize("weights", [[1, 1, 3], [1, 2], [0.5, 2.5, 4, 1, 1]], ids=str)
def test_weights_hold_in_the_long_run(weights):
    """Over time shares follow the weights within a few permits, however few an interval has."""
    demands = {f"peer {index}": (float(weight), 1 << 40) for index, weight in enumerate(weights)}
    granted = Counter()
    for index in range(1000):
        for peer, part in apportion(demands, 2, NUMBER + index)[0].items():
            granted[peer] += len(part)

    assert {} == {
        peer: (granted[peer], 2000 * weight / sum(weights))
        for peer, (weight, _) in demands.items()
        if abs(granted[peer] - 2000 * weight / sum(weights)) > 4
    }


# Which permits.


def worst_gap(count: int, size: int) -> float:
    """Return the largest gap between permits of ``size`` consecutive ranks, with the interval as a ring."""
    step = stride(count)
    places = sorted(rank * step % count for rank in range(size))
    gaps = [later - earlier for earlier, later in itertools.pairwise(places)]
    return max([*gaps, places[0] + count - places[-1]]) * size / count


@given(st.integers(1, 200_000))
@settings(max_examples=200, deadline=None)
def test_each_rank_has_a_place_of_its_own(count):
    """Each rank has its own place, since the stride shares no factor with the count."""
    assert 0 < stride(count) < max(2, count)
    assert 1 == math.gcd(stride(count), count)


def test_no_interval_has_no_stride_either():
    """An interval without permits has no stride."""
    assert stride(0) >= 0


# With 24 strides to choose from on each side the worst gap found is 3.17 times the mean (165 ranks of 14,154 permits);
# 2.4 for all but a few counts and sizes. Found by search, not a bound that follows from the choice.
WORST_GAP = 3.5


@pytest.mark.parametrize("counts", [range(1, 40), range(40, 100), [100, 250, 1000]], ids=["few", "some", "many"])
def test_any_run_of_ranks_is_spread_over_the_interval(counts):
    """The permits of any range of ranks are spread over the interval."""
    sizes = {count: range(1, count + 1) if count <= 100 else range(1, count, max(1, count // 40)) for count in counts}
    worst = {(count, size): worst_gap(count, size) for count in counts for size in sizes[count]}

    assert {} == {key: round(gap, 2) for key, gap in worst.items() if gap > WORST_GAP}


@given(st.integers(100, 30_000), st.sampled_from([2, 3, 5, 10, 50]), st.floats(0.01, 1))
@settings(max_examples=150, deadline=None)
def test_runs_of_ranks_of_many_permits_are_spread(count, few, part):
    """The permits of a few ranks, or of a part of all, are spread also in large intervals."""
    assert worst_gap(count, few) <= WORST_GAP
    assert worst_gap(count, max(1, int(count * part))) <= WORST_GAP


@pytest.mark.parametrize(("count", "size"), [(3546, 506), (25, 12), (27_595, 13_797), (250, 83), (14_154, 165)])
def test_known_runs_of_ranks_are_spread(count, size):
    """Ranges are spread in cases in which the golden stride, or others, would be bad."""
    assert worst_gap(count, size) <= WORST_GAP
