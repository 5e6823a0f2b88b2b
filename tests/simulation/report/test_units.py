"""Ticks of axes."""

import pytest

from ratelimited_executor.simulation.report.units import round_ticks, unit_for


@pytest.mark.parametrize(
    ("least", "most", "texts"),
    [
        (3.2, 11, ["2", "4", "6", "8", "10", "12"]),
        (0.0, 0.3, ["0.00", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30"]),
        (1000, 5000, ["1,000", "2,000", "3,000", "4,000", "5,000"]),
        (5, 5, ["5", "6"]),
        (0, 0, ["0.0", "0.2"]),
    ],
)
def test_ticks_are_round(least, most, texts):
    """They enclose all values, at most seven distances apart, and have no more digits than differ."""
    ticks = round_ticks(least, most)
    assert texts == [text for _, text in ticks][: len(texts)]
    assert ticks[0][0] <= least <= most <= ticks[-1][0]
    assert 2 <= len(ticks) <= 8


def test_durations_have_one_unit():
    """It is that of the largest value; the values of ticks are seconds."""
    texts = ["0 min", "5 min", "10 min", "15 min", "20 min"]
    assert list(zip([0, 300, 600, 900, 1200], texts, strict=True)) == round_ticks(10, 1111, unit_for(1111))
