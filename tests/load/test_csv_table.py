"""The figures of a load as comma-separated values."""

from __future__ import annotations

import csv
import io

from ratelimited_executor.load.csv_table import csv_of
from tests.load.models import figures_of, figures_of_classes


def test_each_part_of_a_load_is_a_row() -> None:
    """The load, its phases and its seconds, with counts, and response times in seconds."""
    rows = list(csv.reader(io.StringIO(csv_of(figures_of([0.25] * 15, errors=2)))))

    assert ["part", "name", "requests", "errors", "p50", "p99", "max"] == rows[0]
    assert [
        ["load", "", "15", "2"],
        ["phase", "10/s", "15", "2"],
        ["second", "0", "10", "2"],
        ["second", "1", "5", "0"],
    ] == [row[:4] for row in rows[1:]]
    assert all(0.249 < float(cell) < 0.251 for row in rows[1:] for cell in row[4:])


def test_each_class_is_a_row() -> None:
    """By its name."""
    rows = list(csv.reader(io.StringIO(csv_of(figures_of_classes(a=[0.1], b=[0.2, 0.2])))))

    assert [["class", "a", "1"], ["class", "b", "2"]] == [row[:3] for row in rows if row[0] == "class"]
