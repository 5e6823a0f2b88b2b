"""The report shows the waits of each kind of job, its objectives and what it costs, without the warm-up."""

import json

import pytest

from ratelimited_executor.simulation.report.kinds import StoredQuantiles, kinds_of, quantiles_of
from ratelimited_executor.simulation.report.reading import read_run


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


@pytest.mark.parametrize(
    "written", [None, [], {"a": 5}, {"a": {"wait": "x", "objectives": 3, "wait_by_priority": [], "cost": "y"}}]
)
def test_what_is_damaged_is_left_out(written):
    """A database may have been edited."""
    assert all(not kind.waits and not kind.objectives for kind in kinds_of(written))
    assert kinds_of(json.loads(json.dumps({"a": {"objectives": [{"percent": -1}]}})))[0].objectives == []
    assert quantiles_of({"count": 3, "p50": 1, "p90": 2, "p99": "many", "most": 4}) is None
