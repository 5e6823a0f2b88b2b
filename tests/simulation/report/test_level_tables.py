"""The report has the use of resources and the figures of gauges as the terminal shows them."""

import math
import re

import pytest

from ratelimited_executor.simulation import Calls, write_report
from ratelimited_executor.simulation.report.kinds import named_figures
from ratelimited_executor.simulation.report.level_tables import levels_section
from ratelimited_executor.simulation.report.reading import read_runs

from .test_level_plots import Asking, simulate


def cells(html: str) -> list[str]:
    return re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", html)


def test_figures_of_a_run(tmp_path):
    """Each resource has a row, also one that nothing was used of, and so has each gauge."""
    simulate(Asking(), database=tmp_path / "run.sqlite3")
    found = cells(levels_section(read_runs([tmp_path / "run.sqlite3"])))
    assert ["Resource", "Used", "Of the limit"] == found[:3]
    assert ["cents of api", "0", "0.0 %", "tokens of api", "60,100", "50.1 %"] == found[3:9]
    assert ["Gauge", "Least", "Mean", "Most", "At the end", "minutes", "1", "5.5", "10", "10"] == found[9:]


def test_runs_are_told_apart(tmp_path):
    """Of several runs each row has the name of its run."""
    for seed in (1, 2):
        simulate(Asking(), database=tmp_path / f"{seed}.sqlite3", seed=seed)
    page = write_report(sorted(tmp_path.glob("*.sqlite3")), tmp_path / "report.html")[0].read_text(encoding="utf-8")
    assert "asking, seed 1: tokens of api" in page
    assert "asking, seed 2: minutes" in page


@pytest.mark.parametrize(
    "written",
    [None, 5, [], {"a": 5}, {"a": {"used": 1}}, {"a": {"used": 1, "part": None}}, {"a": {"used": math.inf, "part": 1}}],
)
def test_what_is_damaged_is_left_out(written):
    """Figures that no run writes are not shown."""
    assert {} == named_figures(written, ("used", "part"))


def test_run_without_any_has_no_section(tmp_path):
    """A run without resources and gauges has no such section."""
    simulate(Calls(count=3), database=tmp_path / "run.sqlite3", until_done=True)
    assert "" == levels_section(read_runs([tmp_path / "run.sqlite3"]))
