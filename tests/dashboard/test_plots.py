"""Plots as SVG: well-formed, within their frame, broken where nothing was measured, and described in words."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor.dashboard.plots import PlotLine, plot_svg, ticks


def plot(values, times=None, **options):
    times = list(range(0, 5 * len(values), 5)) if times is None else times
    settings = {"end": 300.0, "span": 300.0, "step": 5.0, "text_of": "{:g}".format} | options
    return plot_svg("A & B", times, [PlotLine(name="waiting", values=values)], **settings)


def paths(svg):
    return [each.get("d") for each in ElementTree.fromstring(svg).iter("path")]


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


@pytest.mark.parametrize(("highest", "marks"), [(0.2, [0, 1]), (1, [0, 1]), (2, [0, 1, 2]), (7, [0, 2, 4, 6, 8])])
def test_axis_of_counts_has_no_fractions(highest, marks):
    """An axis of counts and its plot have whole numbers only, as there is no half of a peer."""
    assert ticks(highest, is_whole=True) == marks
    assert (">0.5<" in plot([2.0]), ">0.5<" in plot([2.0], is_whole=True)) == (True, False)


@given(st.lists(st.one_of(st.floats(0, 1e9), st.just(math.nan), st.just(math.inf)), max_size=60))
def test_plot_is_well_formed_and_stays_in_its_frame(values):
    """Any values, even NaN and infinity, give well-formed SVG with all points within the frame."""
    for path in paths(plot(values)):
        for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path):
            assert 63 <= float(x) <= 633
            assert 7 <= float(y) <= 159


def test_line_breaks_where_points_are_missing():
    """A line breaks at a gap of more than a step, and a lone point is a dot."""
    lines, dots = paths(plot([1, 2, 3, 4, 5, 6], times=[0, 5, 10, 50, 100, 105]))
    assert lines.count("M") == 2
    assert lines.count("L") == 3
    assert dots.count("M") == 1


def test_points_before_the_axis_are_left_out():
    """Points before the start of the axis are left out, as they would cover its labels."""
    lines, dots = paths(plot([9, 9, 1, 1], times=[-100, -95, 10, 15]))
    assert lines.count("M") + lines.count("L") == 2
    assert dots == ""


def test_plot_says_in_words_what_it_shows():
    """The escaped label for screen readers has the last value and the range, or says that there is no data yet."""
    label = ElementTree.fromstring(plot([1, 5, 3])).get("aria-label")
    assert label == "A & B: waiting 3 now, 1 to 5"
    assert "no data yet" in plot([])
    assert "no data yet" in plot([math.nan])
