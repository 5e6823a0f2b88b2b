"""Plots as SVG."""

from __future__ import annotations

import json
import re

import pytest

from ratelimited_executor.cli.bench.drawing import Line, drawing, linear_scale, log_scale
from ratelimited_executor.cli.bench.page import render
from tests.load.models import figures_of, figures_of_classes, measurement_of


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([13, 24], ["10", "20", "50"]),
        ([20, 20], ["20", "50"]),
        ([0.9, 12], ["0.5", "1", "2", "5", "10", "20"]),
        ([0.9, 12_000], ["0.1", "1", "10", "100", "1,000", "10,000", "100,000"]),
        ([1000, 0], ["1,000", "2,000"]),
        ([0], ["1", "2"]),
    ],
)
def test_logarithmic_axis_has_labels_around_the_values(values, labels) -> None:
    """However close together they are: an axis without numbers cannot be read."""
    scale = log_scale("milliseconds", values)

    assert labels == [label for _, label in scale.ticks]
    assert [0, 1] == pytest.approx([scale.part_of(scale.ticks[0][0]), scale.part_of(scale.ticks[-1][0])])
    assert 0 == scale.part_of(0)


@pytest.mark.parametrize("high", [0, 1e-12, 0.3, 1, 7, 999, 1e6, 12_345_678])
def test_linear_axis_ends_at_a_round_number_above_all_values(high) -> None:
    """It begins at 0 and has two to seven labels."""
    scale = linear_scale("requests", high)

    assert 0 == scale.ticks[0][0]
    assert scale.ticks[-1][0] == pytest.approx(scale.high)
    assert scale.high >= high
    assert 2 <= len(scale.ticks) <= 8


def test_script_has_the_value_of_each_point_and_no_end_of_itself() -> None:
    """The values are texts, one for each position, and a name cannot end the script that holds them."""
    lines = [Line(name="</script>", colour="red", values=[1, 2])]
    found = drawing(
        [(0, "a"), (1, "b")], lines, x=linear_scale("x", 1), y=linear_scale("y", 2), text_of=lambda value: f"<{value}>"
    )
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', found)

    assert [["</script>", ["<1>", "<2>"]]] == json.loads(data)["lines"]
    assert 1 == found.count("</script>")


def test_page_of_users_has_no_service_time_and_nothing_that_was_due() -> None:
    """Users who wait for their answers send at no rate."""
    figures = figures_of([0.1] * 50)
    opened, closed = (render(measurement_of(figures, settings=each)) for each in ({"rate": "10/s"}, {"users": "5"}))

    assert "service time" in opened and "</i>due</li>" in opened
    assert "service time" not in closed and "</i>due</li>" not in closed and "</i>sent</li>" in closed


def test_page_of_a_search_has_the_reason_of_each_trial() -> None:
    """Which thresholds were not kept, and why a trial does not count."""
    held = {"rate": 100.0, "held": True, "clear": False, "broken": [], "tool_limit": None}
    failed = {"rate": 200.0, "held": False, "clear": True, "broken": ["p99 2.22 s is above 200 ms", "errors"]}
    trials = [held, failed | {"tool_limit": None}, failed | {"tool_limit": "it was late"}]
    page = render(measurement_of(figures_of([0.1]), search={"trials": trials}))
    rows = [re.findall("<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr><th[^>]*>[12]00/s.*?</tr>", page)]

    assert ["held", "not clearly", ""] == rows[0]
    assert ["not held", "clearly", "p99 2.22 s is above 200 ms; errors"] == rows[1]
    assert "does not count" == rows[2][1]
    assert rows[2][2].endswith("; errors; it does not count, as the load generator was the bottleneck: it was late")


def test_page_stays_small_however_long_the_load_and_however_many_classes() -> None:
    """An hour of seconds, and a hundred classes, make a page below 300 kB."""
    hour = render(measurement_of(figures_of([0.1 + number % 97 / 50 for number in range(36_000)])))
    classes = render(measurement_of(figures_of_classes(**{f"class{number}": [0.1, 0.2] for number in range(100)})))

    assert max(map(len, (hour, classes))) < 300_000
    assert "second 9 to 17" in hour or "second 9 to" in hour
