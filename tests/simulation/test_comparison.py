"""Comparison of runs: smaller is better, equal values share a rank, and runs are ordered by the sum of ranks."""

import dataclasses

import pytest

from ratelimited_executor.simulation import (
    CRITERIA,
    STRATEGIES,
    Comparison,
    ExecutorSummary,
    PopulationSummary,
    Quantiles,
    Summary,
    compare,
    simulate,
)

NAMES = [criterion.name for criterion in CRITERIA]
TEXTS = {"float": 0.0, "int": 0, "float | None": None}


def _filled(kind, **values):
    """Make a record of a kind with these values, and others empty."""
    empty = {field.name: TEXTS.get(field.type) for field in dataclasses.fields(kind)}
    return kind(**empty | values)


def summary(
    *,
    depth: int = 0,
    pending: int = 0,
    delay: float = 0.0,
    overdue: int = 0,
    evenness: float | None = 1.0,
    conflicts: int = 0,
    executors: int = 1,
    populations: int = 1,
) -> Summary:
    """Make the summary of a run in which all executors, and all populations, have the same figures."""
    nothing = _filled(Quantiles)
    delays = _filled(Quantiles, count=1, mean=delay, p50=delay, p90=delay, p99=delay, most=delay)
    executor = _filled(
        ExecutorSummary, queue_depth_most=depth, pending_most=pending, start_delay=nothing, evenness=evenness
    )
    population = _filled(
        PopulationSummary, keys=10, overdue=overdue, sync_interval=nothing, sync_delay=delays, lock_conflicts=conflicts
    )
    total = dataclasses.replace(executor, queue_depth_most=executors * depth, pending_most=executors * pending)
    return Summary(
        seconds=1.0,
        total=total,
        executors={f"executor {number}": executor for number in range(executors)},
        populations={f"population {number}": population for number in range(populations)},
    )


WORSE = {
    "queue depth": {"depth": 5},
    "pending jobs": {"pending": 5},
    "sync delay": {"delay": 5.0},
    "overdue keys": {"overdue": 5},
    "throughput evenness": {"evenness": 0.5},
    "lock conflicts": {"conflicts": 5},
}


def test_every_criterion_is_named_once():
    """Every criterion has a unique name, a unit, and a case in these tests."""
    assert len(set(NAMES)) == len(NAMES)
    assert set(WORSE) == set(NAMES)
    assert all(criterion.unit for criterion in CRITERIA)


@pytest.mark.parametrize("name", NAMES)
def test_each_criterion_looks_at_its_own(name):
    """A run that is worse in one thing is worse by that criterion only."""
    found = compare({"good": summary(), "bad": summary(**WORSE[name])})
    assert {"good": 1, "bad": 2} == found.ranks[name]
    assert found.values[name]["good"] < found.values[name]["bad"]
    assert all({"good": 1, "bad": 1} == found.ranks[other] for other in NAMES if other != name)
    assert (["good"], ["good", "bad"]) == (found.best(name), list(found.order))
    assert all(["good", "bad"] == found.best(other) for other in NAMES if other != name)


def test_values_are_summed_up_over_executors_and_populations():
    """Jobs and keys are added up, and a delay is that of the worst population."""
    one = compare({"a": summary(depth=3, overdue=2, delay=7.0, conflicts=4), "b": summary()}).values
    two = compare(
        {"a": summary(depth=3, overdue=2, delay=7.0, conflicts=4, executors=2, populations=2), "b": summary()}
    )
    assert (3.0, 6.0) == (one["queue depth"]["a"], two.values["queue depth"]["a"])
    assert (2.0, 4.0) == (one["overdue keys"]["a"], two.values["overdue keys"]["a"])
    assert (4.0, 8.0) == (one["lock conflicts"]["a"], two.values["lock conflicts"]["a"])
    assert (7.0, 7.0) == (one["sync delay"]["a"], two.values["sync delay"]["a"])


def test_equals_share_a_rank_and_the_next_one_is_left_out():
    """Two runs that share the first rank are followed by a third rank."""
    made = {"a": summary(depth=5), "b": summary(depth=2), "c": summary(depth=2), "d": summary(depth=9)}
    found = compare(made)
    assert {"a": 3, "b": 1, "c": 1, "d": 4} == found.ranks["queue depth"]
    assert ["b", "c"] == found.best("queue depth")
    assert ["b", "c", "a", "d"] == list(found.order)


def test_all_equal_are_all_first():
    """Equal runs all have rank 1, in the order given."""
    found = compare({name: summary() for name in "cab"})
    assert all({"a": 1, "b": 1, "c": 1} == ranks for ranks in found.ranks.values())
    assert ["c", "a", "b"] == list(found.order)


def test_order_is_by_the_sum_of_ranks():
    """A run that is last by one criterion and first by all others ranks before one that is second by all."""
    first = summary(depth=100)
    second = summary(depth=1, delay=1.0, overdue=1, conflicts=1, evenness=0.9, pending=1)
    third = summary(depth=2, delay=2.0, overdue=2, conflicts=2, evenness=0.8, pending=2)
    found = compare({"third": third, "second": second, "first": first})
    assert ["first", "second", "third"] == list(found.order)
    sums = {run: sum(ranks[run] for ranks in found.ranks.values()) for run in found.order}
    assert sorted(sums.values()) == [sums[run] for run in found.order]


def test_runs_without_populations_or_jobs_are_compared_too():
    """A run without populations has no delay, and one without jobs is maximally uneven."""
    found = compare({"none": summary(populations=0, evenness=None), "some": summary(delay=5.0, evenness=0.5)})
    assert (0.0, 5.0) == (found.values["sync delay"]["none"], found.values["sync delay"]["some"])
    assert (1.0, 0.5) == (found.values["throughput evenness"]["none"], found.values["throughput evenness"]["some"])


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_are_refused(count):
    """Fewer than two runs are refused."""
    with pytest.raises(ValueError, match=f"summaries must be at least two, got {count}"):
        compare({str(number): summary() for number in range(count)})


def test_criterion_that_is_none_is_an_error():
    """An unknown criterion raises KeyError."""
    with pytest.raises(KeyError):
        compare({"a": summary(), "b": summary()}).best("beauty")


def test_strategies_are_compared():
    """All strategies are ranked by all criteria; weighted slots have the fewest conflicts."""
    options = {"accounts": 100, "outage_day": 0, "workers": 2}
    found = compare({name: simulate(made(**options), days=0.4).summary for name, made in STRATEGIES.items()})
    assert isinstance(found, Comparison)
    assert set(found.order) == set(STRATEGIES)
    for name in NAMES:
        assert set(STRATEGIES) == set(found.ranks[name]) == set(found.values[name])
        assert 1 == min(found.ranks[name].values())
        best = min(found.values[name].values())
        assert found.best(name) == [run for run, value in found.values[name].items() if value == best]
    assert "weighted-slots" in found.best("lock conflicts")
    assert 5 == found.ranks["throughput evenness"]["self-rescheduling"]
