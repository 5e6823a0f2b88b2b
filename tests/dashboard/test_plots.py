"""Plots as SVG: well-formed, within their frame, broken where nothing was measured, and described in words."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.ticks import ticks
from ratelimited_executor.dashboard.plots import PlotLine, plot_of, plot_svg, spark_svg


def plot(values, times=None, **options):
    times = list(range(0, 5 * len(values), 5)) if times is None else times
    settings = {"end": 300.0, "span": 300.0, "step": 5.0, "text_of": "{:g}".format} | options
    return plot_svg("A & B", times, [PlotLine(name="waiting", values=values)], **settings)


def paths(svg):
    return [each.get("d") for each in ElementTree.fromstring(svg).iter("path")]


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


@given(st.lists(st.floats(0, 1e9, width=32), max_size=180))
def test_line_in_the_list_stays_in_its_frame_and_ends_at_the_right(values):
    """Any history makes a line of a few points within its frame, whose newest point is at the right edge."""
    lines = paths(spark_svg(values, [0.0] * len(values), 180))
    assert len(lines) == bool(values)
    for line in lines:
        points = [tuple(map(float, pair)) for pair in re.findall(r"(-?[\d.]+) (-?[\d.]+)", line)]
        assert 2 <= len(points) <= 36
        assert points[-1][0] == 120
        assert all(0 <= x <= 120 and 2 <= y <= 22 for x, y in points)


def test_line_of_failures_is_drawn_if_there_are_any():
    """The second line is there only if something has failed, and shows the highest of the values that it stands for."""
    assert len(paths(spark_svg([5.0] * 180, [0.0] * 180, 180))) == 1
    both = paths(spark_svg([5.0] * 180, [0.0] * 179 + [5.0], 180))
    assert both[1].rpartition("L")[2] == both[0].rpartition("L")[2] == "120.0 2.0"


def test_sparse_line_covers_no_other():
    """A line of failures is drawn where there are some, with a foot on both sides, and not at all if there are none."""
    columns = {"started": [5.0] * 9, "failed": [0.0, 0, 0, 2, 0, 0, 0, 0, 0]}
    some = plot_of("A", [*range(900, 945, 5)], columns, end=940.0, text_of="{:g}".format, sparse="failed")
    _, _, failed, _ = paths(some.svg)
    assert failed.count("L") == 2
    assert "failed 0 now, 0 to 2" in some.svg
    none = plot_of("A", [900, 905], {"started": [5.0, 5], "failed": [0.0, 0]}, end=940.0, text_of=str, sparse="failed")
    assert (some.lines, none.lines) == (["started", "failed"], ["started"])
    _, spark = paths(spark_svg([5.0] * 180, [0.0] * 90 + [5.0] + [0.0] * 89, 180))
    assert spark.count("L") == 2


@pytest.mark.parametrize(("age", "labels"), [(200, 6), (800, 4), (1700, 4), (3000, 5)])
def test_axis_is_the_shortest_that_shows_all(age, labels):
    """The axis is 5, 15, 30 or 60 minutes long, with labels at round minutes."""
    drawn = plot_of("A", [1000.0 - age, 1000.0], {"waiting": [1.0, 2.0]}, end=1000.0, text_of=str)
    minutes = re.findall(r">(?:-(\d+) min|now)<", drawn.svg)
    assert len(minutes) == labels
    assert all(int(each or 0) % 5 == 0 for each in minutes) or age == 200
