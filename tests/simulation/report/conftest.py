"""A run with kinds of jobs, and the page about it."""

import re

import pytest

from ratelimited_executor import Pacing
from ratelimited_executor.simulation import Constant, LogNormal, Objective, Poisson, Scenario, simulate
from ratelimited_executor.simulation.report import write_report


class Hub(Scenario):
    """Charges of two priorities and a few clients, with an objective, a price and workers that cost."""

    def setup(self, sim) -> None:
        executor = sim.executor("api", max_concurrency=4, worker_price=0.5, pacing=Pacing.ON_TIME)
        charge = sim.job("charge", LogNormal(mean=1.5, p90=3), objectives=Objective("1s", each="10m"), price=0.01)
        for priority in (0, 7):
            sim.arrive(Poisson(1), executor, charge, keys=["ann", "bob"], priority=priority)
        sim.arrive(Poisson(0.1), executor, sim.job("mail", Constant(0.1)))


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """Return the database, the result, and the page of a run with a warm-up."""
    folder = tmp_path_factory.mktemp("report")
    database = folder / "hub.sqlite3"
    result = simulate(Hub(), days=1 / 24, warm_up=600, seed=3, database=database)
    page, *_ = write_report([database], folder / "report.html")
    text = re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.DOTALL)
    return database, result, [re.sub(r"<[^>]+>", "|", line) for line in text.replace("</tr>", "\n").splitlines()]
