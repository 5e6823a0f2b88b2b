"""The report shows the waits of each kind of job, its objectives and what it costs, without the warm-up."""

import json
import re

import pytest

from ratelimited_executor import Pacing
from ratelimited_executor.simulation import Constant, LogNormal, Objective, Poisson, Scenario, simulate
from ratelimited_executor.simulation.report import write_report
from ratelimited_executor.simulation.report.kinds import StoredQuantiles, kinds_of, quantiles_of
from ratelimited_executor.simulation.report.reading import read_run


class Hub(Scenario):
    """Charges of two priorities and a few clients, with an objective, a price and workers that cost."""

    def setup(self, sim) -> None:
        executor = sim.executor("api", max_concurrency=4, worker_price=0.5, pacing=Pacing.ON_TIME)
        charge = sim.job("charge", LogNormal(mean=1.5, p90=3), objectives=Objective("1s", each="10m"), price=0.01)
        for priority in (0, 7):
            sim.arrive(Poisson(1), executor, charge, keys=["ann", "bob"], priority=priority)
        sim.arrive(Poisson(0.1), executor, sim.job("mail", Constant(0.1)))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Return the database, the result, and the page of a run with a warm-up."""
    folder = tmp_path_factory.mktemp("report")
    database = folder / "hub.sqlite3"
    result = simulate(Hub(), days=1 / 24, warm_up=600, seed=3, database=database)
    page, *_ = write_report([database], folder / "report.html")
    text = re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.DOTALL)
    return database, result, [re.sub(r"<[^>]+>", "|", line) for line in text.replace("</tr>", "\n").splitlines()]


def test_figures_are_those_of_the_summary(ran):
    """Waits by kind, priority and key, objectives and costs are read as the run had them."""
    database, result, _ = ran
    found = read_run(database)
    charge, mail = found.kinds
    expected = result.summary.jobs_by_kind["charge"]
    key, longest = expected.longest_waiting_key
    named = {
        "all": expected.wait, "priority 7": expected.wait_by_priority[7], "priority 0": expected.wait_by_priority[0],
        f"the key that waited longest, {key}": longest,
    }  # fmt: skip
    assert [(name, StoredQuantiles(of.p50, of.p90, of.p99, of.most)) for name, of in named.items()] == charge.waits
    (objective,) = charge.objectives
    assert (expected.objectives[0].missed, expected.objectives[0].worst) == (objective.missed, objective.worst)
    assert (expected.cost, result.summary.worker_cost) == (charge.cost, found.worker_cost)
    assert ("all", [], 0.0) == (mail.waits[0][0], mail.objectives, mail.cost)


def test_counts_leave_the_warm_up_out(ran):
    """They are those of the summary; the end of the warm-up is marked in the plots."""
    database, result, _ = ran
    found = read_run(database)
    assert result.summary.total.done == found.ends["done"]
    assert [(600.0, "the warm-up ends")] == [(event.time, event.name) for event in found.events]


def test_the_page_shows_them(ran):
    """A table of waits, one of objectives, one of costs."""
    _, result, lines = ran
    text = "\n".join(lines)
    assert "Waits, objectives and cost" in text
    assert re.search(r"\|charge\|+priority 7\|", text)
    assert re.search(r"\|+99 % within 1 s in each 10m\|+missed in \d+ of 5\|", text)
    workers, calls = result.summary.worker_cost, result.summary.jobs_by_kind["charge"].cost
    assert re.search(rf"\|workers\|+{workers:.2f}\|", text)
    assert re.search(rf"\|all\|+{workers + calls:.2f}\|", text)
    assert re.search(r"\|Warm-up\|+10m", text)


@pytest.mark.parametrize(
    "written", [None, [], {"a": 5}, {"a": {"wait": "x", "objectives": 3, "wait_by_priority": [], "cost": "y"}}]
)
def test_what_is_damaged_is_left_out(written):
    """A database may have been edited."""
    assert all(not kind.waits and not kind.objectives for kind in kinds_of(written))
    assert kinds_of(json.loads(json.dumps({"a": {"objectives": [{"percent": -1}]}})))[0].objectives == []
    assert quantiles_of({"count": 3, "p50": 1, "p90": 2, "p99": "many", "most": 4}) is None
