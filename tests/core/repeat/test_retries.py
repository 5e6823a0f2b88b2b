"""Retries: their pauses, the failures that lead to them, and what a policy refuses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.repeat.retries import Attempts, Retry

from ...helpers import examples


@given(
    st.integers(1, 5000),
    st.floats(0, 1),
    st.floats(1e-3, 1e308),
    st.floats(1, 1e6),
)
@examples(120)
def test_a_pause_is_drawn_from_zero_to_its_bound(number, drawn, base, factor):
    """The pause is drawn from zero to a bound, which doubles with each retry up to a cap."""
    retry = Retry(base=base, cap=min(base * factor, 1.7e308))
    assert 0 <= retry.pause(number, drawn) <= retry.pause(number, 1.0) <= retry.cap
    assert base == retry.pause(1, 1.0)
    assert retry.pause(number, 1.0) in (retry.cap, 2 * retry.pause(max(1, number - 1), 1.0), base)


class Broken(Exception):
    """A failure."""


@pytest.mark.parametrize(
    ("on", "wanted"),
    [
        ((), (False, False)),
        (Broken, (True, False)),
        ((OSError, Broken), (True, False)),
        (lambda error: "timeout" in str(error), (False, True)),
        (BaseException, (True, True)),
    ],
    ids=["nothing", "class", "classes", "function", "all"],
)
def test_failures_are_told_apart(on, wanted):
    """Failures are selected by class or by a function."""
    retry = Retry(on=on)
    assert wanted == tuple(retry.wants(error) for error in (Broken(), ValueError("timeout")))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"attempts": 1.0}, TypeError),
        ({"attempts": True}, TypeError),
        ({"attempts": 0}, ValueError),
        ({"base": "1x"}, ValueError),
        ({"base": b"1"}, TypeError),
        ({"base": True}, TypeError),
        ({"base": 0}, ValueError),
        ({"cap": math.inf}, ValueError),
        ({"cap": 0.5}, ValueError),
        ({"on": int}, TypeError),
        ({"on": "OSError"}, TypeError),
        ({"on": (OSError, "x")}, TypeError),
        ({"on": (OSError, lambda error: True)}, TypeError),
        ({"on": (OSError, (ValueError,))}, TypeError),
        ({"on": None}, TypeError),
    ],
)
def test_a_policy_out_of_range_is_refused(arguments, error):
    """A bad policy is refused: numbers have ranges, and failures are classes or one function."""
    with pytest.raises(error, match=f"^{next(iter(arguments))}(: a duration looks like| must)"):
        Retry(**arguments)


def test_a_policy_tells_of_itself():
    """The repr of a policy shows it."""
    retry = Retry(3, base=0.5, on=OSError)
    assert "Retry(3, base=0.5, cap=60, on=<class 'OSError'>)" == repr(retry)
    attempts = Attempts(retry)
    assert (retry, 0, None) == (attempts.policy, attempts.count, attempts.first)
