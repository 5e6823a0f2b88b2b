"""Labels of an axis: few, round and evenly spaced."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.ticks import ticks


@given(st.floats(1e-6, 1e12))
def test_ticks_are_few_round_numbers_up_to_the_highest(highest):
    """The ticks start at 0 and are evenly spaced by 1, 2 or 5 times a power of ten."""
    marks = ticks(highest)
    step = marks[1]
    assert marks[0] == 0
    assert marks[-2] < highest <= marks[-1] * (1 + 1e-9)
    assert 2 <= len(marks) <= 7
    assert f"{step:e}"[0] in "125"
    assert all(math.isclose(mark, number * step) for number, mark in enumerate(marks))


@pytest.mark.parametrize("highest", [0.0, 5e-324, math.inf, math.nan, -1.0])
def test_axis_of_nothing_is_there_all_the_same(highest):
    """Without a positive finite value the axis goes from 0 to 1."""
    assert ticks(highest) == [0.0, 1.0]
