"""Each distribution has the mean and quantiles that it was made from, and impossible ones are refused."""

import math
import random
from bisect import bisect_left, bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor.simulation import Constant, Exponential, LogNormal, Percentiles, Sample
from ratelimited_executor.simulation.distributions import remaining_life

EVERY = [
    Constant(3),
    Exponential(2),
    LogNormal(mean=4, p90=8),
    LogNormal(mean=4, p90=4.01),
    LogNormal(mean=4, p90=9.09),
    Percentiles({0: 0, 50: 1, 90: 5, 99: 30, 100: 60}),
    Percentiles({0: 2, 100: 2}),
    Sample([1, 2, 3, 10]),
]
LIMIT = math.exp(1.2815515655446004**2 / 2)


@pytest.mark.parametrize("distribution", EVERY, ids=repr)
def test_what_is_drawn_has_the_mean_and_the_quantiles(distribution):
    """Draws have the mean and quantiles of the distribution, and are the same for the same seed."""
    chance = random.Random(1)
    in_order = [distribution.draw(chance) for _ in range(200_000)]
    drawn = sorted(in_order)
    assert all(0 <= value < math.inf for value in drawn)
    deviation = math.sqrt(sum((value - distribution.mean) ** 2 for value in drawn) / len(drawn))
    assert sum(drawn) / len(drawn) == pytest.approx(distribution.mean, abs=5 * deviation / len(drawn) ** 0.5 + 1e-9)
    for part in (0.1, 0.5, 0.9, 0.99):
        value = distribution.quantile(part)
        below = bisect_left(drawn, value * (1 - 1e-12)) / len(drawn)
        at_most = bisect_right(drawn, value * (1 + 1e-12)) / len(drawn)
        assert below - 0.005 <= part + 0.25 * isinstance(distribution, Sample)
        assert part <= at_most + 0.005
    chance = random.Random(1)
    assert in_order[:2_000] == [distribution.draw(chance) for _ in range(2_000)]


@given(st.floats(1e-6, 1e6), st.floats(1.000001, LIMIT * 0.999999))
def test_log_normal_has_the_mean_and_p90_that_it_was_made_from(mean, ratio):
    """A log-normal distribution has its mean and p90 over the whole range of ratios."""
    found = LogNormal(mean=mean, p90=mean * ratio)
    assert mean * ratio == pytest.approx(found.quantile(0.9), rel=1e-6)
    mu = math.log(found.quantile(0.5))
    assert mean == pytest.approx(math.exp(mu + found.sigma**2 / 2), rel=1e-6)
    assert 0 < found.sigma <= 1.2816  # the smaller root


@pytest.mark.parametrize("lives", EVERY, ids=repr)
def test_remaining_life_is_that_of_the_equilibrium(lives):
    """P(remaining > t) is E[(X - t)+] / E[X], by Cox, at quantiles of the lives, and the same for the same seed."""
    draw, chance = remaining_life(lives), random.Random(5)
    drawn = sorted(draw(chance) for _ in range(40_000))
    values = [lives.quantile((number + 0.5) / 200_000) for number in range(200_000)]
    for part in (0.1, 0.5, 0.9, 0.99):
        time = lives.quantile(part) * 0.75  # between the steps of samples
        longer = math.fsum(value - time for value in values if value > time) / math.fsum(values)
        assert longer == pytest.approx(1 - bisect_right(drawn, time) / len(drawn), abs=0.012)
    assert drawn[0] >= 0
    again = random.Random(5)
    assert drawn == sorted(draw(again) for _ in range(40_000))


def test_remaining_lives_of_no_length():
    """Of lives that end as they begin nothing remains."""
    assert 0 == remaining_life(Constant(0))(random.Random(1))


def test_example_of_the_talk_is_refused_with_its_limit():
    """Mean 4 and p90 120 are refused with the limit: no distribution of values >= 0 has them."""
    with pytest.raises(ValueError, match=r"at most 10 times the mean, 40, .* every distribution .* Percentiles"):
        LogNormal(mean=4, p90=120)


def test_limit_of_the_log_normal_is_named():
    """A p90 beyond the limit of log-normal distributions is refused with the limit and the alternative."""
    with pytest.raises(ValueError, match=r"at most 2\.273 times the mean, 9\.09\d*, .* log-normal .* Percentiles"):
        LogNormal(mean=4, p90=30)
    assert LogNormal(mean=4, p90=4 * LIMIT * (1 - 1e-12)).sigma == pytest.approx(1.2816, abs=1e-4)


@pytest.mark.parametrize("p90", [4, 3.9, 0.1])
def test_p90_of_the_mean_or_less_is_refused(p90):
    """A p90 of at most the mean is refused: such a mean comes from few values, which Percentiles can describe."""
    with pytest.raises(ValueError, match="p90 must be more than the mean"):
        LogNormal(mean=4, p90=p90)


def test_percentiles_keep_to_their_points():
    """Percentiles have the given points, and are linear between them."""
    times = Percentiles({0: 0, 50: 1, 90: 5, 100: 10})
    assert [0, 0.5, 1, 5] == [times.quantile(part) for part in (0, 0.25, 0.5, 0.9)]
    assert times.quantile(0.95) == pytest.approx(7.5)
    assert times.mean == pytest.approx(0.5 * 0.5 + 0.4 * 3 + 0.1 * 7.5)
    assert "Percentiles({0: 0, 50: 1, 90: 5, 100: 10})" == repr(times)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "from 0 percent"),
        ({50: 1}, "from 0 percent"),
        ({0: 1, 99: 2}, "to 100"),
        ({0: 1, 50: 0.5, 100: 2}, "must not fall"),
        ({0: 1, 101: 2}, "to 100"),
        ({-1: 1, 100: 2}, "percent must be >= 0"),
        ({0: math.nan, 100: 2}, "values must be finite"),
        ({0: 1, 100: math.inf}, "values must be finite"),
    ],
)
def test_percentiles_that_cannot_be_are_refused(values, words):
    """Bad percentiles are refused with the reason."""
    with pytest.raises(ValueError, match=words):
        Percentiles(values)


@pytest.mark.parametrize(
    "make",
    [
        lambda value: Constant(value),
        lambda value: Exponential(value),
        lambda value: LogNormal(mean=value, p90=2),
        lambda value: LogNormal(mean=1, p90=value),
        lambda value: Sample([value]),
    ],
)
def test_values_out_of_range_are_refused(make):
    """Values out of range or of a wrong type are refused by name."""
    for value in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="must be (> 0|>= 0|finite)"):
            make(value)
    for value in (None, [], True, b"1"):
        with pytest.raises(TypeError, match="must be a number"):
            make(value)


def test_what_is_empty_or_zero_is_refused():
    """An empty sample, a mean of 0, no percentiles and a quantile out of range are refused."""
    with pytest.raises(ValueError, match="at least one value"):
        Sample([])
    for make in (lambda: Exponential(0), lambda: LogNormal(mean=0, p90=1)):
        with pytest.raises(ValueError, match="mean must be > 0"):
            make()
    with pytest.raises(TypeError, match="a mapping from percent"):
        Percentiles([1, 2])
    for distribution in EVERY:
        for part in (-0.1, 1, math.nan):
            with pytest.raises(ValueError, match="part must be"):
                distribution.quantile(part)
