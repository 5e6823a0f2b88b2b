"""``Fair``: its arguments, weights and repr. The law of its shares is in ``test_ready_fair.py``."""

import math

import pytest

from ratelimited_executor._core.order.fair import Fair


@pytest.mark.parametrize("weight", [0, -1, math.inf, math.nan, "1", True, None])
def test_a_weight_that_is_no_weight_is_refused(weight):
    """A bad weight is refused, in a mapping or from a function."""
    with pytest.raises(ValueError, match="numbers from"):
        Fair(weights={"f": weight})
    with pytest.raises(ValueError, match="numbers from"):
        Fair(weights=lambda key: weight).weight("f")


@pytest.mark.parametrize("arguments", [{"by": 3}, {"weights": 3}, {"weights": [("f", 1)]}])
def test_a_wrong_type_is_refused(arguments):
    """Arguments of a wrong type are refused."""
    with pytest.raises(TypeError, match="must be a"):
        Fair(**arguments)


def test_an_order_tells_of_itself():
    """The repr of an order shows it; weights default to 1, and functions may be wrapped."""
    assert ("Fair()", True, None) == (repr(Fair()), Fair().is_even, Fair().by)
    fair = Fair(len, weights={"f": 2})
    assert (f"Fair(by={len!r}, weights={{'f': 2.0}})", False) == (repr(fair), fair.is_even)
    assert (2.0, 1.0, 1.0) == (fair.weight("f"), fair.weight("g"), Fair().weight("f"))
    wrapped = Fair(len, weights=lambda key: 3).wrapped(lambda function: lambda value: function(value) * 2)
    assert (4, 6.0) == (wrapped.by("ab"), wrapped.weight("f"))
    assert (None, 2.0) == (Fair().wrapped(str).by, fair.wrapped(lambda function: function).weight("f"))
