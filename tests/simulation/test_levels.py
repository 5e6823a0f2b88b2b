"""Gauges are looked at in each step, written where they change, and summed up over time."""

import math
import sqlite3
from array import array
from contextlib import closing

import pytest

from ratelimited_executor import Rate
from ratelimited_executor.simulation import Recorded, Recording, Regular, Scenario, simulate
from ratelimited_executor.simulation.levels import GaugeRecord, amount_a_second
from ratelimited_executor.simulation.shortcut.rules import NoShortcutError, Survey
from ratelimited_executor.simulation.sweeps import figures_of
from ratelimited_executor.policies import Quota


class Counting(Scenario):
    """A job every 30 seconds for ten minutes, and a gauge that counts them."""

    days = 1 / 96  # 15 minutes

    def __init__(self, read=None):
        self.count = 0
        self.read = read or (lambda: self.count)

    def setup(self, sim):
        def work(key):
            self.count += 1

        sim.gauge("ended", self.read, unit="jobs")
        api = sim.executor("api")
        for number in range(20):
            sim.at(30 * number + 1, lambda: api.call_soon(work, None))


def rows(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT time, value FROM gauge WHERE metric = 'value' ORDER BY time").fetchall()


def test_gauge_is_looked_at_in_each_step(tmp_path):
    """There is a row for each step in which the value has changed; the figures are over all of the time."""
    found = simulate(Counting(), database=tmp_path / "run.sqlite3").summary.gauges["ended"]
    assert [(60.0 * step, 2.0 * step) for step in range(1, 11)] == rows(tmp_path / "run.sqlite3")
    assert (2, 20, 20) == (found.least, found.most, found.last)
    assert found.mean == pytest.approx((2 * sum(range(1, 11)) + 5 * 20) / 15)


def test_step_of_a_run_is_that_of_its_gauges(tmp_path):
    """With shorter steps there are more rows."""
    simulate(Counting(), database=tmp_path / "run.sqlite3", step=30)
    assert [(30.0 * step, float(step)) for step in range(1, 21)] == rows(tmp_path / "run.sqlite3")


def test_warm_up_is_left_out():
    """The figures begin where the warm-up ends, and the value is not forgotten."""
    found = simulate(Counting(), warm_up="12m").summary.gauges["ended"]
    assert (20, 20, 20, 20) == (found.least, found.mean, found.most, found.last)


def test_resumed_run_writes_the_same_rows(tmp_path):
    """A run that was stopped and resumed has the rows of one that was not, none of them twice."""
    simulate(Counting(), database=tmp_path / "whole.sqlite3")
    stopped = simulate(Counting(), database=tmp_path / "run.sqlite3", on_progress=lambda at: True)
    assert "interrupted" == stopped.status
    resumed = simulate(Counting(), database=tmp_path / "run.sqlite3", resume=True)
    assert 20 == resumed.summary.gauges["ended"].last
    assert rows(tmp_path / "whole.sqlite3") == rows(tmp_path / "run.sqlite3")


@pytest.mark.parametrize(
    ("value", "error"), [(math.nan, ValueError), (math.inf, ValueError), ("5", TypeError), (None, TypeError)]
)
def test_value_that_is_no_number_is_refused(value, error):
    """The error names the gauge."""
    with pytest.raises(error, match="the value of the gauge ended"):
        simulate(Counting(lambda: value))


def test_gauges_have_names_and_functions():
    """A name is given once, and what reads a gauge can be called."""

    class Twice(Scenario):
        def setup(self, sim):
            sim.gauge("a", lambda: 1)
            with pytest.raises(ValueError, match="name 'a' is in use: every gauge"):
                sim.gauge("a", lambda: 2)
            with pytest.raises(TypeError, match="read must be a callable"):
                sim.gauge("b", 5)
            sim.arrive(Regular(1), sim.executor("api"), sim.job("work", 1))

    assert {"a"} == simulate(Twice(), days=0.001).summary.gauges.keys()


def test_shortcut_leaves_gauges_to_the_executor():
    """A gauge may look at anything, so the shortcut does not apply."""
    survey = Survey(seed=0, interval=1)
    with pytest.raises(NoShortcutError, match="ended is a gauge"):
        survey.set_up(Counting())
    survey.close()


def test_sweeps_have_figures_of_gauges_and_resources():
    """A sweep may be judged by a gauge, by the use of a resource, or by the keys that left."""

    class All(Scenario):
        def setup(self, sim):
            api = sim.executor("api", resources={"tokens": "60/min"})
            joins = Recorded(Recording(array("d", [0, 0, 0]), None, None, begin=0, skipped=0))
            users = sim.population("users", 0, period=10, joins=joins, lifetime=30)
            sim.gauge("users", lambda: len(users))
            sim.arrive(Regular(0.5), api, sim.job("ask", 1, cost={"tokens": 1}))

    found = figures_of(simulate(All(), days=1 / 1440, step=6).summary)
    assert {
        "part of the tokens of api that was used": pytest.approx(31 / 60),
        "gauge users, mean": pytest.approx(1.2),
        "gauge users, most": 3,
        "gauge users, last": 0,
        "never synced keys that left users": 3,
    }.items() <= found.items()


def test_gauge_without_time_has_no_figures():
    """Nothing is said of a gauge that was never looked at."""
    assert GaugeRecord().sum_up() is None


@pytest.mark.parametrize(
    ("limits", "amount"),
    [
        ((), math.inf),
        ((Rate.of("90/min"),), 1.5),
        ((Rate.of("90/min"), Quota(3600, per="hour")), 1.0),
        ((Quota(86_400, per="day"), Quota(60, per="minute"), Quota(604_800, per="week")), 1.0),
        ((Quota(1_000_000, per="month"),), 0.38026),
    ],
)
def test_what_limits_admit_in_the_long_run(limits, amount):
    """The limit that admits least counts; a month has 30.4 days."""
    assert amount == pytest.approx(amount_a_second(limits), rel=1e-4)
