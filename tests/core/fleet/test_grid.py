"""The numbered permits of a fleet: which interval has which, exact at every rate."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core.fleet.grid import FleetGrid, grid_rate
from ratelimited_executor._core.rates import Rate

NUMBER = 6_816_268_800  # number of the interval of 250 ms at that time
INTERVALS_US = st.sampled_from([50_000, 250_000, 333_333, 1_000_000, 5_000_000])
STRETCHES = st.sampled_from([Fraction(0), Fraction(185, 10_000), Fraction(15, 10_000)])
RATES = st.one_of(
    st.sampled_from([Fraction(100), Fraction(7, 3), Fraction(1, 10), Fraction(100_000), Fraction(1, 86_400)]),
    st.fractions(min_value=Fraction(1, 97), max_value=100_000, max_denominator=97),
)


@st.composite
def grids(draw: st.DrawFn) -> FleetGrid:
    """Draw a grid of some rate and phase."""
    interval_us = draw(INTERVALS_US)
    step, unit = grid_rate(Rate(draw(RATES)), interval_us, draw(STRETCHES))
    since = draw(st.sampled_from([0, 17, NUMBER]))
    return FleetGrid(interval_us, step, unit, draw(st.integers(0, unit - 1)), since)


def phase_at(grid: FleetGrid, number: int) -> Fraction:
    """Return the number of permits that have come up by the begin of an interval, and the part of the next."""
    return Fraction(grid.base + grid.step * (number - grid.since), grid.unit)


# The grid.


@given(grids(), st.integers(-50, 100_000))
@settings(max_examples=300, deadline=None)
def test_interval_owns_the_permits_that_come_up_in_it(grid, after):
    """Permit n belongs to the interval in which the phase is n, at that time rounded up to a microsecond."""
    number = grid.since + after
    begin, end = phase_at(grid, number), phase_at(grid, number + 1)
    permits = range(math.ceil(begin), math.ceil(end))

    assert permits.start == grid.first(number)
    assert len(permits) == grid.count(number)

    for place in {0, len(permits) // 2, len(permits) - 1} if permits else ():
        passed = (permits[place] - begin) / Fraction(grid.step, grid.unit) * grid.interval_us
        assert number * grid.interval_us + math.ceil(passed) == grid.time_us(number, place)


@given(grids(), st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_times_of_permits_rise_evenly(grid, after):
    """Permits are evenly spaced, within an interval and across intervals, except for rounding."""
    times = []
    for number in range(grid.since + after, grid.since + after + 5):
        count = grid.count(number)
        places = [0, 1, 2, count - 3, count - 2, count - 1] if count > 6 else range(count)
        times += [(grid.first(number) + place, grid.time_us(number, place)) for place in places]
        begin = number * grid.interval_us
        assert all(begin <= time <= begin + grid.interval_us for _, time in times[-len(places) :] if places)
    gap_us = Fraction(grid.interval_us * grid.unit, grid.step)
    for (one, time), (other, later) in itertools.pairwise(times):
        assert abs(later - time - (other - one) * gap_us) < 1


@given(grids(), st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_number_of_permits_is_exact_over_long_stretches(grid, times):
    """``unit`` intervals have exactly ``step`` permits, wherever they begin."""
    assert times * grid.step == grid.first(grid.since + times * grid.unit) - grid.first(grid.since)


@pytest.mark.parametrize(
    ("rate", "stretch", "seconds", "count"),
    [
        (Rate(Fraction(7, 3)), 0, 3 * 86_400, 7 * 86_400),
        (Rate(1, per=10), 0, 10 * 86_400, 86_400),
        (Rate(100_000), 0, 86_400, 8_640_000_000),
        (Rate(0.1), 0, 315_360_000, 31_536_000),
        (Rate(100), Fraction(37, 2000), 2037, 200_000),
    ],
    ids=str,
)
def test_known_rates_are_exact(rate, stretch, seconds, count):
    """Known rates are exact, such as one tenth for ten years."""
    grid = FleetGrid(250_000, *grid_rate(rate, 250_000, Fraction(stretch)), 0, NUMBER)

    assert count == grid.first(NUMBER + 4 * seconds) - grid.first(NUMBER)


A_HAIR = Fraction(1, 10**6)  # parts of a permit: the precision of whole numbers in doubles


@given(grids(), RATES, STRETCHES, st.integers(0, 100_000))
@settings(max_examples=400, deadline=None)
def test_another_rate_keeps_the_phase(grid, ratio, stretch, after):
    """A change of the rate keeps the part of the next permit that is to come, rounded up, so that none comes early.

    A part of 0 stays 0: the permit comes up at once, as it would have at the old rate.
    """
    since = grid.since + after
    new = grid.with_rate(*grid_rate(Rate(ratio), grid.interval_us, stretch), since)
    before, now = (math.ceil(phase) - phase for phase in (phase_at(grid, since), phase_at(new, since)))

    assert (grid.interval_us, since) == (new.interval_us, new.since)
    assert pytest.approx(float(ratio * grid.interval_us / 1_000_000 / (1 + stretch)), rel=1e-6) == new.step / new.unit
    assert before - A_HAIR <= now < before + Fraction(1, new.unit) + A_HAIR
    assert before or not now


@given(grids(), RATES, STRETCHES, st.integers(0, 100_000))
@settings(max_examples=400, deadline=None)
def test_no_two_permits_come_closer_when_the_rate_changes(grid, ratio, stretch, after):
    """When the rate changes, the permits around the change are no closer than at the faster of the two rates."""
    since = grid.since + after
    new = grid.with_rate(*grid_rate(Rate(ratio), grid.interval_us, stretch), since)
    gaps_us = [Fraction(grid.interval_us * each.unit, each.step) for each in (grid, new)]
    old_phase, new_phase = phase_at(grid, since), phase_at(new, since)
    before_us = (old_phase - math.ceil(old_phase) + 1) * gaps_us[0]  # since the last permit
    after_us = (math.ceil(new_phase) - new_phase) * gaps_us[1]

    assert before_us + after_us >= min(gaps_us) - A_HAIR * gaps_us[1]


def test_rate_of_zero_owns_nothing():
    """At rate 0 no permit comes up, and the phase is kept for the next rate."""
    grid = FleetGrid(250_000, 10, 3, 0, 0).with_rate(*grid_rate(Rate(0), 250_000), 7)

    assert [0] * 5 == [grid.count(number) for number in (7, 8, 100, 10**9, 6)]


# The rate of a grid.


ODD_RATES = st.one_of(
    RATES,
    st.fractions(min_value=Fraction(1, 10**7), max_value=10**6),
    st.floats(min_value=1e-6, max_value=1e6).map(lambda rate: Rate(rate).per_second),
    st.integers(1, 10**7).map(lambda seconds: Rate(1 / seconds).per_second),
)


@given(ODD_RATES, INTERVALS_US, STRETCHES)
@settings(max_examples=400, deadline=None)
def test_rate_of_a_grid_is_never_more_than_asked_for(ratio, interval_us, stretch):
    """The rate of a grid is rounded down, to numbers that doubles hold for years of intervals."""
    step, unit = grid_rate(Rate(ratio), interval_us, stretch)
    asked = ratio * interval_us / 1_000_000 / (1 + stretch)

    assert Fraction(step, unit) <= asked
    assert step % unit < 2**22
    assert unit <= 2**50
    assert unit + step % unit * 2**30 < 2**53


@given(ODD_RATES, INTERVALS_US, STRETCHES)
@settings(max_examples=400, deadline=None)
def test_rate_of_a_grid_is_next_to_what_was_asked_for(ratio, interval_us, stretch):
    """Rounding lowers a rate by less than a millionth, also slow ones such as once a week."""
    step, unit = grid_rate(Rate(ratio), interval_us, stretch)
    asked = ratio * interval_us / 1_000_000 / (1 + stretch)

    assert Fraction(step, unit) > asked * (1 - Fraction(1, 10**6))


@pytest.mark.parametrize("seconds", [3, 7, 60, 3600, 86_400, 14 * 86_400])
def test_rate_as_a_float_is_that_rate(seconds):
    """A rate given as a float such as ``1 / 86_400`` is once a day, in spite of rounding."""
    step, unit = grid_rate(Rate(1 / seconds), 250_000)

    assert pytest.approx(0.25 / seconds, rel=1e-6) == step / unit


@pytest.mark.parametrize(
    ("rate", "stretch", "ratio"),
    [
        (Rate(100), 0, Fraction(25)),
        (Rate(Fraction(7, 3)), 0, Fraction(7, 12)),
        (Rate(1, per=10), 0, Fraction(1, 40)),
        (Rate(0), 0, Fraction(0)),
        (Rate(100), Fraction(37, 2000), Fraction(50_000, 2037)),
    ],
    ids=str,
)
def test_rate_of_small_numbers_is_exact(rate, stretch, ratio):
    """Rates of small numbers are exact as a ratio of permits to intervals."""
    assert ratio == Fraction(*grid_rate(rate, 250_000, Fraction(stretch)))
