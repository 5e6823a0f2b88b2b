"""The report draws resources beside their limits, and gauges, of one run or of several."""

import sqlite3
from array import array
from contextlib import closing
from dataclasses import dataclass

import pytest

from ratelimited_executor.simulation import Recorded, Recording, Regular, Scenario, simulate
from ratelimited_executor.simulation.report.figures import figure_html
from ratelimited_executor.simulation.report.level_plots import make_level_plots
from ratelimited_executor.simulation.report.reading import read_runs


@dataclass
class Asking(Scenario):
    """Questions that cost 100 tokens, one a second, under a limit of 200 a second, and a gauge of the time."""

    step: float = 1.0
    days = 1 / 144

    def setup(self, sim):
        api = sim.executor("api", resources={"tokens": "200/s", "cents": "1_000/s"})
        sim.arrive(Regular(1), api, sim.job("ask", 0.1, cost={"tokens": 100}))
        sim.gauge("minutes", lambda: sim.now // 60, unit="min")


@pytest.fixture
def run(tmp_path):
    """Return a function that simulates into a file, and returns its path."""

    def run(name="run", **options):
        simulate(Asking(), database=tmp_path / f"{name}.sqlite3", **options)
        return tmp_path / f"{name}.sqlite3"

    return run


def test_resource_is_drawn_beside_its_limit(run):
    """What was used is a minute's worth, the limit is dashed and has the same colour; what is not used is left out."""
    plots = {plot.key: plot for plot in make_level_plots(read_runs([run()]))}
    assert ["resource-1", "gauge-1"] == list(plots)
    used, limit = plots["resource-1"].lines
    assert ("Resource tokens", "tokens a minute") == (plots["resource-1"].title, plots["resource-1"].y_label)
    assert [6100, *[6000] * 9] == used.y  # the first step has both of its ends
    assert [12_000] * 10 == limit.y
    assert (False, True, "limit of api") == (used.is_limit, limit.is_limit, limit.name)
    assert used.colour == limit.colour
    assert '"dash":"dash"' in figure_html(plots["resource-1"], with_plotly=False).replace(" ", "")


def test_gauge_keeps_its_last_value(run):
    """A level that has not changed has no row, and keeps its value."""
    (plot,) = (plot for plot in make_level_plots(read_runs([run(step=20)])) if plot.key == "gauge-1")
    assert [step // 3 for step in range(1, 31)] == plot.lines[0].y
    assert ("Gauge minutes", "min") == (plot.title, plot.y_label)


def test_runs_are_told_apart(run):
    """Of several runs each has a line of its own."""
    plots = {plot.key: plot for plot in make_level_plots(read_runs([run("a", seed=1), run("b", seed=2)]))}
    assert ["asking, seed 1", "asking, seed 2"] == [line.name for line in plots["gauge-1"].lines]
    assert ["asking, seed 1: api", "limit of asking, seed 1: api"] == [line.name for line in plots["resource-1"].lines][
        :2
    ]


@dataclass
class Accounts(Scenario):
    """An account joins every quarter of an hour, at the start two, and the first of them is synced after an hour and a half, and again later."""

    executors: int = 1
    days = 1 / 6

    def setup(self, sim):
        joins = Recorded(Recording(array("d", [0, *range(0, 14_400, 900)]), None, None, begin=0, skipped=0))
        accounts = sim.population("accounts", 0, period="1h", joins=joins, lifetime="3h")
        job = sim.job("sync", 1, population=accounts)
        for number in range(self.executors):
            api = sim.executor(f"api {number}", resources={"tokens": "1/s"})
            for delay in (5400, 9000):
                api.schedule(job, 0, delay=delay, cost={"tokens": 1})


def test_numbers_of_keys_are_drawn(tmp_path):
    """Those that are there in each step, and every hour those that were never synced, and once."""
    simulate(Accounts(), database=tmp_path / "run.sqlite3")
    (plot,) = (plot for plot in make_level_plots(read_runs([tmp_path / "run.sqlite3"])) if plot.key == "keys-1")
    lines = {line.name: line.y for line in plot.lines}
    there, never, once = (lines[f"accounts, {what}"] for what in ("there", "never synced", "synced once"))
    assert [2, 2, 6, 13] == [there[at] for at in (0, 13, 59, 178)]
    assert [there[59], there[119] - 1, there[179]] == [
        never[59],
        never[119],
        never[179],
    ]  # the first has left at the end
    assert (None, None) == (never[58], once[58])
    assert [0, 1, 0] == [once[59], once[119], once[179]]


def test_numbers_of_keys_of_several_runs(tmp_path):
    """Each number has a plot of its own, with a line for each run."""
    for seed in (1, 2):
        simulate(Accounts(), database=tmp_path / f"{seed}.sqlite3", seed=seed)
    plots = [plot for plot in make_level_plots(read_runs(sorted(tmp_path.glob("*.sqlite3")))) if "keys" in plot.key]
    assert ["keys-1", "keys-2", "keys-3"] == [plot.key for plot in plots]
    assert "Keys that are never synced" == plots[1].title
    assert ["accounts, seed 1: accounts", "accounts, seed 2: accounts"] == [line.name for line in plots[1].lines]


def test_lines_that_are_left_out_are_counted(tmp_path):
    """A plot has 16 lines at most, and its caption says of how many."""
    simulate(Accounts(executors=20), database=tmp_path / "run.sqlite3")
    (plot,) = (plot for plot in make_level_plots(read_runs([tmp_path / "run.sqlite3"])) if plot.key == "resource-1")
    assert 16 == len(plot.lines)
    assert plot.caption.endswith("The first 16 of 40 lines are shown.")


def test_run_without_levels_has_no_such_plots(run):
    """There is nothing to draw of it."""
    path = run()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM gauge")
        connection.execute("DELETE FROM counter")
        connection.commit()
    assert [] == make_level_plots(read_runs([path]))
