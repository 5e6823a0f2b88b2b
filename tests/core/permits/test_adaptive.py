"""Adaptation of a rate: steps up and parts down, within its bounds."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.permits.adaptive import Adaptive, AdaptiveControl
from ratelimited_executor._core.permits.rates import Rate

from ...helpers import examples

RULES = Adaptive(floor=2, ceiling=100, increase=5, decrease=0.5, period=1)


def test_a_rate_rises_by_steps_and_falls_by_parts():
    """An overload halves the rate once in a period, and a period without one adds a step, within the bounds."""
    control = AdaptiveControl(RULES, 0.0)
    assert 50 == control.overloaded(Fraction(100), 0.1)
    assert 50 == control.overloaded(Fraction(50), 1.0)
    assert 25 == control.overloaded(Fraction(50), 1.1)
    assert 2 == control.overloaded(Fraction(3), 9.0)
    for now, started, rate, wanted in [
        (9.9, 1000, 10, 10),  # the period has not passed
        (10.0, 1000, 10, 10),  # there was an overload
        (11.0, 2000, 10, 15),
        (12.0, 2009, 15, 15),  # too little of the rate was used
        (13.0, 2019, 15, 20),
        (13.5, 3000, 20, 20),
        (15.0, 3000, 99, 100),
    ]:
        assert wanted == control.step(Fraction(rate), now, used_count=started, done_count=started)


def test_a_rate_at_which_nothing_returns_does_not_rise():
    """A rate does not rise while no task ends: starts alone do not show that the other side copes."""
    control = AdaptiveControl(RULES, 0.0)
    assert 10 == control.step(Fraction(10), 1.0, used_count=10, done_count=0)
    assert 15 == control.step(Fraction(10), 2.0, used_count=20, done_count=1)


@given(
    st.lists(st.tuples(st.sampled_from(["overload", "step"]), st.floats(0, 3), st.integers(0, 200)), max_size=40),
    st.fractions(min_value=0, max_value=200, max_denominator=10),
)
@examples(100)
def test_a_rate_stays_within_its_bounds_and_changes_once_a_period(events, rate):
    """Falls are a period apart, and so are rises, within the bounds."""
    control = AdaptiveControl(RULES, 0.0)
    rate, now, started = control.bounded(rate), 0.0, 0
    changes: dict[int, float] = {}
    for event, ahead, count in events:
        now, started, before = now + ahead, started + count, rate
        if event == "overload":
            rate = control.overloaded(rate, now)
            assert rate in (before, control.bounded(before / 2))
        else:
            rate = control.step(rate, now, used_count=started, done_count=started)
            assert rate in (before, control.bounded(before + 5))
        assert 2 <= rate <= 100
        if rate != before:
            direction = 1 if rate > before else -1
            assert now - changes.get(direction, -math.inf) >= 1
            changes[direction] = now


@pytest.mark.parametrize(
    "rules", [{"increase": 1.1, "decrease": 0.85}, {"increase": 1e-7, "decrease": 0.999_999}], ids=str
)
def test_a_rate_is_a_plain_number_however_many_steps_it_has_taken(rules):
    """A rate has at most twelve digits, however many steps it has taken, and no step is lost by that."""
    control = AdaptiveControl(Adaptive(floor=1, ceiling=50, **rules), 0.0)
    rate, now = Fraction(10), 0.0
    for index in range(5_000):
        now, before = now + 1, rate
        if index % 7 == 3:
            rate = control.overloaded(rate, now)
            assert rate == 1 or float(rate) == pytest.approx(float(before) * rules["decrease"], rel=1e-11)
        else:
            rate = control.step(rate, now, used_count=index * 100, done_count=index * 100)
            assert rate == 50 or float(rate - before) in (0, pytest.approx(rules["increase"], rel=1e-3))
        assert len(str(rate.denominator)) <= 13
        assert str(Rate(rate)) == f"{float(rate)!r}/s".replace(".0/", "/")


# A group.


@pytest.mark.parametrize(("rate", "period", "peers"), [(10, 1.0, 10), (50, 1.0, 10), (100, 1.0, 4), (2, 5.0, 3)])
def test_a_small_part_is_looked_at_once_enough_of_it_has_come_up(rate, period, peers):
    """A small part of a rate is judged only after as many permits as the whole has in a period, or four."""
    control = AdaptiveControl(Adaptive(floor=1, ceiling=200, period=period, increase=1), 0.0)
    count = min(rate * period, 4)
    part = rate / peers
    due = max(period, count / part)
    assert rate == control.step(Fraction(rate), due * 0.99, used_count=1000, done_count=1000, peers=peers)
    few = max(1, int(0.7 * part * due - 1) - 1)
    assert rate == control.step(Fraction(rate), due * 1.01, used_count=few, done_count=few, peers=peers) or few == 1
    most = few + round(part * due)
    assert rate + 1 == control.step(Fraction(rate), due * 2.03, used_count=most, done_count=most, peers=peers)


def test_one_rate_alone_is_looked_at_once_in_a_period_however_low_it_is():
    """A rate without peers is judged once in a period, however low it is."""
    control = AdaptiveControl(Adaptive(floor=0.1, ceiling=10, increase=0.1), 0.0)
    assert Fraction("0.2") == control.step(Fraction("0.1"), 10.0, used_count=1, done_count=1)


def _follow(control, rate, told, now, *, is_news=True, count=0):
    control.follow(Fraction(rate), Fraction(told), now, is_news=is_news, used_count=count, done_count=count)


def test_a_step_of_another_is_a_step_of_ours():
    """A step of another peer starts a period: after a fall no rise follows in it, and no overload counts."""
    control = AdaptiveControl(RULES, 0.0)
    _follow(control, 50, 55, 0.9, count=45)
    assert 55 == control.step(Fraction(55), 1.8, used_count=1000, done_count=1000)
    assert 60 == control.step(Fraction(55), 1.95, used_count=1000, done_count=1000)
    _follow(control, 60, 30, 2.5, count=2000)
    assert control.is_held(3.4)
    assert 30 == control.overloaded(Fraction(30), 3.4)
    assert 30 == control.step(Fraction(30), 3.6, used_count=4000, done_count=4000)
    assert 35 == control.step(Fraction(30), 4.7, used_count=8000, done_count=8000)
    _follow(control, 35, 10, 5.0, is_news=False)
    assert not control.is_held(5.1)
    assert 5 == control.overloaded(Fraction(10), 5.1)


def test_what_is_told_but_for_rounding_is_no_step():
    """A rate that differs only by an authority's rounding is not a step."""
    control = AdaptiveControl(RULES, 0.0)
    _follow(control, 50, 50 - Fraction(1, 100_000), 0.9)
    assert 55 == control.step(Fraction(50), 1.0, used_count=50, done_count=50)


def test_a_fall_overrules_the_rises_that_did_not_know_of_it():
    """For a period a fall overrules concurrent rises, but not rates that others have set higher or lower."""
    control = AdaptiveControl(RULES, 0.0)
    assert not control.is_overruled(Fraction(50), Fraction(55), 0.0)
    assert 25 == control.overloaded(Fraction(50), 10.0)
    for told, is_overruled in [(20, False), (25, False), (26, True), (50, True), (55, True), (56, False), (90, False)]:
        assert is_overruled == control.is_overruled(Fraction(25), Fraction(told), 10.9), told
    assert not control.is_overruled(Fraction(25), Fraction(55), 11.0)
    control.period_least = 1.5
    assert control.is_overruled(Fraction(25), Fraction(55), 11.4)
    _follow(control, 25, 12, 11.4)  # another peer has fallen deeper: the rate before both counts
    assert control.is_overruled(Fraction(12), Fraction(55), 12.8)


def test_two_that_share_a_bottleneck_come_to_equal_parts():
    """Two processes at one bottleneck converge to equal rates, whatever they begin with."""
    controls = [AdaptiveControl(RULES, 0.0) for _ in range(2)]
    rates = [Fraction(90), Fraction(4)]
    for second in range(1, 400):
        if sum(rates) > 100:
            rates = [control.overloaded(rate, second) for control, rate in zip(controls, rates, strict=True)]
        else:
            count = 1000 * second
            rates = [
                control.step(rate, second, used_count=count, done_count=count)
                for control, rate in zip(controls, rates, strict=True)
            ]
    assert abs(rates[0] - rates[1]) <= 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"floor": "1"}, TypeError),
        ({"floor": True}, TypeError),
        ({"ceiling": None}, TypeError),
        ({"increase": []}, TypeError),
        ({"floor": 0}, ValueError),
        ({"ceiling": math.inf}, ValueError),
        ({"period": math.nan}, ValueError),
        ({"ceiling": 0.5}, ValueError),
        ({"decrease": 1}, ValueError),
        ({"decrease": 0}, ValueError),
    ],
)
def test_rules_out_of_range_are_refused(changes, error):
    """Bad rules are refused: arguments are finite numbers > 0 that fit each other."""
    with pytest.raises(error, match=f"^{next(iter(changes))} must"):
        Adaptive(**({"floor": 1, "ceiling": 10} | changes))


def test_rules_tell_of_themselves():
    """The repr of rules shows them, with the step a hundredth of the ceiling by default."""
    assert "Adaptive(floor=1, ceiling=50, increase=0.5, decrease=0.5, period=1)" == repr(Adaptive(floor=1, ceiling=50))
