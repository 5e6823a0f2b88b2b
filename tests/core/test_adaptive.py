"""How a rate adapts: by steps up, by parts down, within its bounds."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimited_executor._core.adaptive import Adaptive, AdaptiveControl
from ratelimited_executor._core.rates import Rate

RULES = Adaptive(floor=2, ceiling=100, increase=5, decrease=0.5, period=1)


def test_a_rate_rises_by_steps_and_falls_by_parts():
    """An overload halves it, once in a period; a period without any adds a step; both stay within the bounds."""
    control = AdaptiveControl(RULES, 0.0)
    assert 50 == control.overloaded(Fraction(100), 0.1)
    assert 50 == control.overloaded(Fraction(50), 1.0)
    assert 25 == control.overloaded(Fraction(50), 1.1)
    assert 2 == control.overloaded(Fraction(3), 9.0)
    assert 4 == control.overload_count
    for now, started, rate, wanted in [
        (9.9, 1000, 10, 10),  # the period has not passed
        (10.0, 1000, 10, 10),  # it has seen an overload
        (11.0, 2000, 10, 15),
        (12.0, 2009, 15, 15),  # not used enough
        (13.0, 2019, 15, 20),
        (13.5, 3000, 20, 20),
        (15.0, 3000, 99, 100),
    ]:
        assert wanted == control.step(Fraction(rate), now, used_count=started, done_count=started)


def test_a_rate_at_which_nothing_returns_does_not_rise():
    """Starts alone say nothing of how the other side fares."""
    control = AdaptiveControl(RULES, 0.0)
    assert 10 == control.step(Fraction(10), 1.0, used_count=10, done_count=0)
    assert 15 == control.step(Fraction(10), 2.0, used_count=20, done_count=1)


@given(
    st.lists(st.tuples(st.sampled_from(["overload", "step"]), st.floats(0, 3), st.integers(0, 200)), max_size=40),
    st.fractions(min_value=0, max_value=200, max_denominator=10),
)
@settings(max_examples=200, deadline=None)
def test_a_rate_stays_within_its_bounds_and_changes_once_a_period(events, rate):
    """Whatever comes, two steps down are a period apart, and so are two steps up."""
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
    """Of twelve digits at most, so that its size is bounded; and no step is lost by that."""
    control = AdaptiveControl(Adaptive(floor=1, ceiling=50, **rules), 0.0)
    rate, now = Fraction(10), 0.0
    for index in range(20_000):
        now, before = now + 1, rate
        if index % 7 == 3:
            rate = control.overloaded(rate, now)
            assert rate == 1 or float(rate) == pytest.approx(float(before) * rules["decrease"], rel=1e-11)
        else:
            rate = control.step(rate, now, used_count=index * 100, done_count=index * 100)
            assert rate == 50 or float(rate - before) in (0, pytest.approx(rules["increase"], rel=1e-3))
        assert len(str(rate.denominator)) <= 13
        assert str(Rate(rate)) == f"{float(rate)!r}/s".replace(".0/", "/")


def test_two_that_share_a_bottleneck_come_to_equal_parts():
    """Of whatever height they begin with: both lose a part of what they have, and gain alike."""
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
    """Each argument is a finite number > 0, and they fit each other."""
    with pytest.raises(error, match=f"^{next(iter(changes))} must"):
        Adaptive(**({"floor": 1, "ceiling": 10} | changes))


def test_rules_tell_of_themselves():
    """A step is a hundredth of the ceiling unless said otherwise."""
    assert "Adaptive(floor=1, ceiling=50, increase=0.5, decrease=0.5, period=1)" == repr(Adaptive(floor=1, ceiling=50))
