"""The table of a sweep: its columns, and the texts of its figures."""

import pytest

from ratelimited_executor.simulation.report.sweep_table import columns_of, interval_text
from ratelimited_executor.simulation.sweeps import Estimate, Sweep, SweepRun

CALLS, MAILS = "worst wait of call, 99 % in each 1d", "worst wait of mail, 90 % in each 1d"


def made(figures, *, kept=()):
    """Return a sweep over workers, with some figures of each configuration in two runs."""
    found = Sweep("hub", {"workers": range(1, 1 + len(figures))}, None)
    for each, values in zip(found.configurations, figures, strict=True):
        for seed in range(2):
            is_kept = each.settings["workers"] in kept
            own = {name: value + seed for name, value in values.items()}
            each.runs[seed] = SweepRun(
                settings=each.settings,
                seed=seed,
                figures=own,
                is_kept=is_kept,
                digest="",
                missed=() if is_kept else (CALLS,),
            )
    return found


def rows_of(found):
    """Return the headings and the rows of its table."""
    columns = columns_of(found)
    return [heading for heading, _ in columns], [[text(each) for _, text in columns] for each in found.configurations]


def test_each_objective_has_a_column_and_its_differences():
    """They are from the cheapest that keeps its objectives, in whose row they are empty."""
    found = made([{CALLS: 9.0, MAILS: 4.0, "cost": 1.0}, {CALLS: 3.0, MAILS: 5.0, "cost": 2.0}], kept={2})
    headings, rows = rows_of(found)
    between = "difference, seed by seed"
    assert ["workers", "cost", "objectives kept", CALLS, between, MAILS, between] == headings
    assert ["0 of 2, not call", "+6 s ± 0 s", "-1 s ± 0 s"] == [rows[0][2], rows[0][4], rows[0][6]]
    assert ["2 of 2", "", ""] == [rows[1][2], rows[1][4], rows[1][6]]


def test_without_objectives_the_least_figure_is_the_reference():
    """So it is where no configuration keeps them; a single configuration has nothing to differ from."""
    waits = [{"wait of call, p99": 2.0}, {"wait of call, p99": 1.0}]
    headings, rows = rows_of(made(waits, kept={1, 2}))
    assert ["workers", "runs", "wait of call, p99", "difference, seed by seed"] == headings
    assert ["+1 s ± 0 s", ""] == [row[3] for row in rows]
    assert "" == rows_of(made([{CALLS: 9.0}, {CALLS: 3.0}]))[1][1][3]
    assert ["workers", "runs", "wait of call, p99"] == rows_of(made(waits[:1], kept={1}))[0]


@pytest.mark.parametrize(
    ("figure", "estimate", "text"),
    [
        ("cost", Estimate(1234.5678, 0.0342, 5), "1,234.568 ± 0.034"),
        ("cost", Estimate(12.0, float("inf"), 1), "12"),
        ("cost", Estimate(12.0, 0.0, 3), "12 ± 0"),
        ("jobs done", Estimate(123456.7, 321.0, 3), "123,457 ± 321"),
        ("wait of x, p99", Estimate(4.5, 0.25, 3), "4.5 s ± 250 ms"),
        ("wait of x, p99", Estimate(0.0, 0.0, 3), "0 s ± 0 s"),
        ("wait of x, p99", Estimate(float("nan"), float("inf"), 0), "none"),
    ],
)
def test_intervals_have_two_digits(figure, estimate, text):
    """A mean has no more digits than its interval."""
    assert text == interval_text(figure, estimate)


def test_differences_have_a_sign():
    """More and less are told apart."""
    texts = [interval_text("cost", Estimate(mean, 0.5, 3), is_signed=True) for mean in (2.0, -2.0)]
    assert ["+2.00 ± 0.50", "-2.00 ± 0.50"] == texts
