"""Waits of jobs are kept by kind, priority and key, and against objectives; workers and calls have their price."""

import math

import pytest

from ratelimited_executor import Pacing, Retry
from ratelimited_executor.simulation import JobFailedError, Objective, Regular, Scenario, simulate
from ratelimited_executor.simulation.waits import KEY_COUNT_MAX

HOUR = 1 / 24  # of a day


class Made(Scenario):
    """A scenario that is set up by a function."""

    def __init__(self, setup):
        self.setup = setup


def run(setup, days=HOUR, **options):
    return simulate(Made(setup), days=days, **options).summary


def test_each_kind_has_its_own_waits():
    """Kinds that share an executor have each their waits and durations."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=1, pacing=Pacing.ON_TIME)
        long, short = sim.job("long", 10), sim.job("short", 1)
        executor.schedule_many(long, [1])
        executor.schedule_many(short, [1, 2])

    kinds = run(setup).jobs_by_kind
    assert ["long", "short"] == list(kinds)
    assert (1, 0.0) == (kinds["long"].wait.count, kinds["long"].wait.most)
    assert (2, 11.0) == (kinds["short"].wait.count, kinds["short"].wait.most)
    assert (10.0, 1.0) == (kinds["long"].execution_time.mean, kinds["short"].execution_time.mean)


def test_waits_are_kept_by_priority_where_there_are_several():
    """Urgent jobs of a kind wait less than others; a kind with one priority has no waits by priority."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=1, pacing=Pacing.ON_TIME)
        call, other = sim.job("call", 6), sim.job("other", 0.1)
        sim.schedule_many(executor, call, range(20), priority=0)
        sim.schedule_many(executor, call, range(20), priority=5)
        sim.schedule_many(executor, other, range(3), priority=2)

    kinds = run(setup).jobs_by_kind
    by_priority = kinds["call"].wait_by_priority
    assert {0: 20, 5: 20} == {priority: waits.count for priority, waits in by_priority.items()}
    assert by_priority[5].p50 < by_priority[0].p50
    assert max(by_priority[5].most, by_priority[0].most) == kinds["call"].wait.most
    assert {} == kinds["other"].wait_by_priority


def test_waits_are_kept_by_key():
    """Each key has its waits; of a kind with too many keys none are kept."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=1, pacing=Pacing.ON_TIME)
        executor.schedule_many(sim.job("few", 1), ["a", "b", "a"])
        executor.schedule_many(sim.job("many", 0), range(KEY_COUNT_MAX + 1))
        executor.schedule(sim.job("any", 0), {"without": "a hash"})

    kinds = run(setup).jobs_by_kind
    waits = kinds["few"].wait_by_key
    assert {"a": 2, "b": 1} == {key: found.count for key, found in waits.items()}
    assert (2.0, 1.0) == (waits["a"].most, waits["b"].most)
    assert {} == kinds["many"].wait_by_key == kinds["any"].wait_by_key


def test_of_a_kind_with_a_key_without_a_hash_no_waits_are_kept_by_key():
    """Nor those of the keys before it, which would look like all of them."""

    def setup(sim):
        call = sim.job("call", 1)
        sim.schedule_many(sim.executor("api"), call, ["a", "b", ["c"], "a"], delays=[0, 70, 140, 210])

    assert {} == run(setup).jobs_by_kind["call"].wait_by_key


def test_every_attempt_has_a_wait():
    """A retry waits from when it is due."""

    def setup(sim):
        executor = sim.executor("api", retry=Retry(3, on=(JobFailedError,)))
        sim.schedule_many(executor, sim.job("call", 1, failures=1.0, price=0.5), ["a"])

    call = run(setup).jobs_by_kind["call"]
    assert (3, 1.5) == (call.wait.count, call.cost)


def test_an_objective_holds_in_each_period():
    """An objective is judged by each period alone: a bad hour is not made good by others."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=1, pacing=Pacing.ON_TIME)
        call = sim.job("call", 1, objectives=[Objective("5s", each="1h"), Objective("5s", percent=50, each="1d")])
        sim.arrive(Regular(0.1), executor, call)
        sim.at("1h30m", lambda: executor.schedule_many(call, range(100)))

    summary = run(setup, days=4 * HOUR)
    hourly, daily = summary.jobs_by_kind["call"].objectives
    assert (4, 1) == (hourly.periods, hourly.missed)
    assert 90 < hourly.worst < 101
    assert (1, 0) == (daily.periods, daily.missed)
    assert (hourly.is_kept, daily.is_kept, summary.is_objective_kept) == (False, True, False)


def test_an_objective_that_is_just_kept_is_kept():
    """A wait of exactly the limit keeps it, although percentiles are rounded up."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=1, pacing=Pacing.ON_TIME)
        executor.schedule_many(sim.job("call", 5.005, objectives=Objective(5.005)), [1, 2])

    assert run(setup).is_objective_kept


def test_workers_cost_by_the_hour_and_calls_by_price():
    """The cost is that of workers, whether they work or not, and of calls."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=4, worker_price=0.25)
        sim.fleet("nodes", 2, max_concurrency=3, worker_price=1)
        executor.schedule_many(sim.job("call", 1, price=0.01), range(10))
        sim.at("30m", lambda: setattr(executor, "max_concurrency", 8))

    summary = run(setup)
    assert summary.worker_cost == pytest.approx(0.25 * 6 + 2 * 3)
    assert summary.cost == pytest.approx(summary.worker_cost + 0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"within": -1}, "within must be >= 0"),
        ({"within": "soon"}, "within"),
        ({"within": 5, "percent": 100}, "percent must be a percentage >= 1 and < 100, such as 99 for 99 %, got 100"),
        ({"within": 5, "percent": 0.99}, "percent must be a percentage >= 1"),
        ({"within": 5, "each": 0}, "each must be > 0"),
    ],
)
def test_an_objective_that_cannot_be_is_refused(options, words):
    """Each argument is checked, and named."""
    with pytest.raises(ValueError, match=words):
        Objective(**options)


def test_prices_that_cannot_be_are_refused():
    """A price of workers needs their number; no price is negative."""

    def refused(options, words):
        with pytest.raises((TypeError, ValueError), match=words):
            run(lambda sim: sim.executor("api", **options))

    refused({"worker_price": 1}, "worker_price needs max_concurrency")
    refused({"worker_price": -1, "max_concurrency": 1}, "worker_price must be >= 0")
    refused({"worker_price": "1", "max_concurrency": 1}, "worker_price must be a number")
    with pytest.raises(ValueError, match="price must be >= 0"):
        run(lambda sim: sim.job("call", 1, price=-1))


def test_a_warm_up_is_left_out_of_the_summary():
    """Counts, waits, costs and means are those after the warm-up; what runs and waits goes on."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=2, pacing=Pacing.ON_TIME, worker_price=1)
        call = sim.job("call", 2, price=1, objectives=Objective("5s", each="30m"))
        sim.arrive(Regular(0.5), executor, call)
        executor.schedule_many(call, range(60))  # a backlog for a while

    whole, warm = run(setup, days=2 * HOUR), run(setup, days=2 * HOUR, warm_up="30m")
    assert (7200, 5400) == (whole.seconds, warm.seconds)
    assert (3661, 2700) == (whole.total.started, warm.total.started)
    assert warm.total.executing_mean == pytest.approx(1.0)
    call = warm.jobs_by_kind["call"]
    assert (2700, 0.0, 2700.0) == (call.wait.count, call.wait.most, call.cost)
    assert call.execution_time.count == 2700
    assert (3, 0) == (call.objectives[0].periods, call.objectives[0].missed)
    assert whole.jobs_by_kind["call"].objectives[0].missed == 1
    assert warm.worker_cost == pytest.approx(3.0)
    assert warm.total.queue_depth_most == 0 < whole.total.queue_depth_most


def test_a_warm_up_as_long_as_the_run_is_refused():
    """Nothing would be left to measure."""
    with pytest.raises(ValueError, match="warm_up must be shorter than the run, 1h, got '1h'"):
        run(lambda sim: sim.executor("api"), warm_up="1h")


def test_jobs_that_do_not_start_miss_an_objective():
    """What still waits, expires or is refused counts, and a kind that never starts has not kept anything."""

    def nobody(sim):
        executor = sim.executor("api", max_concurrency=0)
        sim.arrive(Regular(0.1), executor, sim.job("call", 1, objectives=Objective("5s", each="30m")))

    [halted] = run(nobody).jobs_by_kind["call"].objectives
    assert (2, 2) == (halted.periods, halted.missed)
    assert 3560 <= halted.worst <= 3604, "what waits counts in each period"

    def impatient(sim):
        executor = sim.executor("api", max_concurrency=1, pacing=Pacing.ON_TIME)
        sim.arrive(Regular(0.2), executor, sim.job("call", 10, objectives=Objective("5s")), expires="3s")

    [expired] = run(impatient).jobs_by_kind["call"].objectives
    assert (1, 1) == (expired.periods, expired.missed)

    def full(sim):
        executor = sim.executor("api", max_concurrency=1, max_pending=1, pacing=Pacing.ON_TIME)
        sim.arrive(Regular(0.2), executor, sim.job("call", 10, objectives=Objective("30s")))

    [refused] = run(full).jobs_by_kind["call"].objectives
    assert refused.missed == 1

    def enough(sim):
        executor = sim.executor("api", max_concurrency=1)
        call = sim.job("call", 1, objectives=Objective("5s"))
        sim.arrive(Regular(0.1), executor, call)
        sim.schedule_many(executor, call, range(3), delays=[100, 200, 1e6])
        sim.offer(executor, call, 5, delay=300)

    assert run(enough).is_objective_kept


@pytest.mark.parametrize(
    ("due", "within", "days", "expected"),
    [
        ("22h", "8h", 1, (0, 0, 1, 2)),
        ("22h", "1h", 1, (1, 1, 0, 2)),
        ("1h", "30h", 1, (0, 0, 1, 23)),
        ("22h", "8h", 1.5, (1, 1, 0, 14)),
        ("1h", "1h", 2.5, (3, 3, 0, 59)),
        ("1h", "1h", 6, (6, 6, 0, 143)),
    ],
)
def test_what_never_starts_misses_each_period_or_leaves_it_undecided(due, within, days, expected):
    """It is late in each period in which it waits, and not decided while it is not late, up to the end of the run."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=0)
        call = sim.job("call", 6, objectives=Objective(within))
        sim.at(due, lambda: sim.schedule_many(executor, call, range(100)))

    summary = run(setup, days=days)
    [objective] = summary.jobs_by_kind["call"].objectives
    found = (objective.periods, objective.missed, objective.undecided)
    assert (*expected[:3], pytest.approx(expected[3] * 3600, rel=1e-3)) == (*found, objective.worst)
    assert (bool(expected[1]), False) == (objective.is_decided, objective.is_kept)
    assert objective.worst_at == (math.ceil(days) - 1) * 86400
    assert not summary.is_objective_kept


@pytest.mark.parametrize(("waiting", "is_decided"), [(1, True), (2, False)])
def test_an_objective_is_decided_if_what_waits_cannot_change_it(waiting, is_decided):
    """Of 100 jobs one may be late; the others waited shorter than those that wait at the end."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=100 - waiting, pacing=Pacing.ON_TIME)
        sim.schedule_many(executor, sim.job("call", 7200, objectives=Objective("2h")), range(100))

    [objective] = run(setup).jobs_by_kind["call"].objectives
    assert (is_decided, is_decided) == (objective.is_decided, objective.is_kept)
    assert (1 if is_decided else 0, 0) == (objective.periods, objective.missed)


def test_an_objective_without_jobs_is_not_decided():
    """Nothing was judged."""
    summary = run(lambda sim: (sim.executor("api"), sim.job("call", 1, objectives=Objective("5s"))))
    [objective] = summary.jobs_by_kind["call"].objectives
    assert (0, False, False) == (objective.periods, objective.is_decided, objective.is_kept)


def test_jobs_that_expire_or_are_refused_are_late_once():
    """They do not wait any more in the periods that follow."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=0, expires="3s")
        full = sim.executor("full", max_concurrency=0, max_pending=1)
        call = sim.job("call", 1, objectives=Objective("5s", each="10m"))
        other = sim.job("other", 1, objectives=Objective("5s", each="10m"))
        sim.schedule_many(executor, call, range(10))
        sim.offer(full, other, 1)

    kinds = run(setup).jobs_by_kind
    assert [(1, 1), (1, 1)] == [(each.periods, each.missed) for kind in kinds.values() for each in kind.objectives]


def test_a_warm_up_ends_where_it_says_though_nothing_happens_then():
    """Idle time is skipped up to the end of the warm-up, and not beyond: workers cost all the rest."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=2, worker_price=1)
        executor.schedule_many(sim.job("call", 1), [1], delays=[20 * 3600.0])

    summary = run(setup, days=1, warm_up="1h")
    assert (23 * 3600, 46.0) == (summary.seconds, pytest.approx(summary.worker_cost))
    with pytest.raises(ValueError, match="warm_up must be shorter than the run"):
        run(setup, days=1, warm_up="23h30m", step="1h")


def test_an_objective_shorter_than_a_step_is_refused():
    """It could not be judged."""
    with pytest.raises(ValueError, match="objectives of call: each must be at least a step, 1m, got 10 s"):
        run(lambda sim: (sim.executor("api"), sim.job("call", 1, objectives=Objective(5, each="10s"))))


def test_exactly_the_percentage_keeps_an_objective():
    """Of a thousand jobs one may be late if 99.9 % are to be in time."""

    def setup(sim):
        executor = sim.executor("api", max_concurrency=1000, pacing=Pacing.ON_TIME)
        executor.schedule_many(sim.job("call", 60, objectives=Objective("1s", percent=99.9)), range(1001))

    [objective] = run(setup).jobs_by_kind["call"].objectives
    assert objective.is_kept
