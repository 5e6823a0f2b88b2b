"""Where a scenario is M/M/c, its mean wait is known."""

import pytest

from ratelimited_executor import Pacing
from ratelimited_executor.simulation import Exponential, LogNormal, Poisson, Regular, Scenario, sweep
from ratelimited_executor.simulation.report.sweep_page import write_sweep_page
from ratelimited_executor.simulation.shortcut.erlang import expected_wait, part_that_waits


class Queue(Scenario):
    """Calls at random for some workers."""

    def __init__(self, workers=6, duration=None, arrivals=None, **options) -> None:
        self.workers = workers
        self.duration = duration or Exponential(1.0)
        self.arrivals = arrivals or Poisson(4.8)
        self.options = {"pacing": Pacing.ON_TIME, **options}

    def setup(self, sim) -> None:
        executor = sim.executor("api", max_concurrency=self.workers, **self.options)
        sim.arrive(self.arrivals, executor, sim.job("call", self.duration))


@pytest.mark.parametrize(
    ("workers", "load", "expected"), [(1, 0.7, 0.7), (2, 1.0, 1 / 3), (6, 4.8, 0.5178), (100, 80, 0.01965)]
)
def test_the_part_that_waits_is_that_of_tables(workers, load, expected):
    """Of one worker it is the load."""
    assert expected == pytest.approx(part_that_waits(workers, load), rel=2e-3)


def test_the_mean_wait_of_one_worker_is_that_of_the_textbook():
    """Load over one minus load, in service times."""
    name, wait = expected_wait(Queue(workers=1, arrivals=Poisson(0.5)))
    assert ("call", 1.0) == (name, pytest.approx(wait))


@pytest.mark.parametrize(
    "scenario",
    [
        Queue(workers=4), Queue(duration=LogNormal(mean=1, p90=2)), Queue(arrivals=Regular(4)), Queue(rate=9),
        Queue(pacing=Pacing.SPREAD), Queue(workers=None),
    ],
)  # fmt: skip
def test_other_scenarios_have_none(scenario):
    """A queue that grows, other durations or arrivals, a rate, a spread, no limit."""
    assert expected_wait(scenario) is None


def test_a_sweep_is_checked_by_the_formula(tmp_path):
    """The mean of the runs is the expected one, and the page has both."""
    found = sweep(Queue, {"workers": [6, 7]}, days=0.3, warm_up="10m", seeds=8, processes=2)
    for each in found.configurations:
        name, expected = found.expected_waits[str(each)]
        estimate = each.estimate(f"wait of {name}, mean")
        assert abs(estimate.mean - expected) < 2 * estimate.half
    page = write_sweep_page(found, tmp_path / "sweep.html").read_text()
    assert "Check by queueing theory" in page
    assert "Mean wait by the formula" in page


def test_a_sweep_without_a_formula_has_no_such_section(tmp_path):
    """Nothing is claimed of it."""
    found = sweep(Queue, {"workers": [6]}, given={"arrivals": [Regular(4)]}, days=0.01, seeds=1, processes=1)
    assert {} == found.expected_waits
    assert "queueing theory" not in write_sweep_page(found, tmp_path / "sweep.html").read_text()
