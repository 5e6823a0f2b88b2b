"""The figures of a run by the shortcut are those of the executor, to the last bit."""

from array import array

import pytest

from ratelimited_executor import Pacing
from ratelimited_executor.simulation import (
    Constant,
    Objective,
    Poisson,
    Recorded,
    Regular,
    Scenario,
    load_toml,
    simulate,
)
from ratelimited_executor.simulation.recordings import Recording
from ratelimited_executor.simulation.shortcut.run import ShortRun

from .drawn import Drawn


def both(make, *, seed=0, seconds=3600, step=60.0, warm_up=0.0):
    """Return the summaries of the shortcut and of the executor."""
    run = ShortRun(make(), seed=seed, total=float(seconds), step=step, warm_up=warm_up)
    return run.summary, simulate(make(), seed=seed, days=seconds / 86_400, step=step, warm_up=warm_up).summary


@pytest.mark.parametrize("seed", range(24))
def test_random_scenarios_have_equal_figures(seed):
    """Whatever the executors, kinds, priorities, rates and arrivals, with steps and warm-ups of several lengths."""
    chance = Drawn(seed).chance
    seconds, step, warm_up = chance.choice([1728, 3654]), chance.choice([60.0, 10.0, 600.0]), chance.choice([0, 600])
    ours, theirs = both(lambda: Drawn(seed), seed=seed, seconds=seconds, step=step, warm_up=warm_up)
    assert theirs == ours


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24, 100))
def test_many_random_scenarios_have_equal_figures(seed):
    """As above."""
    test_random_scenarios_have_equal_figures(seed)


class Replay(Scenario):
    """A recording with its durations, more than it can do, and a batch."""

    interval = 1.0

    def setup(self, sim) -> None:
        count = 900
        recording = Recording(
            times=[number * 1.7 for number in range(count)],
            keys=[f"client {number % 7}" for number in range(count)],
            durations=array("d", [0.5 + number % 5 for number in range(count)]),
            begin=0.0,
            skipped=0,
        )
        executor = sim.executor("api", max_concurrency=1, rate=2, pacing=Pacing.ON_TIME, worker_price=1)
        request = sim.job("request", "recorded", objectives=Objective("10s", percent=90, each="10m"))
        sim.arrive(Recorded(recording, every="1h"), executor, request)
        sim.schedule_many(executor, sim.job("batch", 0.25), range(40), delays=[100.0] * 40, priority=3)


def test_recordings_and_batches_have_equal_figures():
    """A recording brings its keys and durations; of few keys, waits are kept by key."""
    ours, theirs = both(Replay, seconds=7200)
    assert theirs == ours
    assert 7 == len(ours.jobs_by_kind["request"].wait_by_key)


class Minutely(Scenario):
    """Jobs that last, more than can be done, and urgent ones at the beginning of a minute."""

    def __init__(self, duration):
        self.duration = duration

    def setup(self, sim) -> None:
        executor = sim.executor("api", max_concurrency=2, pacing=Pacing.ON_TIME)
        sim.schedule_many(executor, sim.job("many", self.duration), range(200))
        sim.arrive(Regular(1 / 600), executor, sim.job("urgent", self.duration), priority=5)


@pytest.mark.parametrize(("duration", "longest"), [(20.0, 0.0), (120.0, 120.0)])
def test_urgent_jobs_at_the_beginning_of_a_minute_have_equal_figures(duration, longest):
    """The executor looks at the end of a job that has lasted for a minute before the next minute's jobs are handed over."""
    ours, theirs = both(lambda: Minutely(duration), seconds=1728)
    assert theirs == ours
    assert longest == ours.jobs_by_kind["urgent"].wait.most


class Idle(Scenario):
    """Nothing arrives."""

    def setup(self, sim) -> None:
        sim.executor("api", max_concurrency=2, pacing=Pacing.ON_TIME, worker_price=2)


def test_an_executor_without_jobs_has_equal_figures():
    """Its workers cost all the same."""
    ours, theirs = both(Idle, seconds=1800)
    assert theirs == ours
    assert 2.0 == ours.cost


class Busy(Scenario):
    """Jobs of which most wait."""

    def setup(self, sim) -> None:
        executor = sim.executor("api", max_concurrency=2, pacing=Pacing.ON_TIME)
        sim.arrive(Poisson(2), executor, sim.job("call", 1.0))


def test_starts_are_those_of_the_executor():
    """Each inflow has the start of each job, infinite for those that still wait."""
    run = ShortRun(Busy(), seed=1, total=600.0, step=60.0, warm_up=0.0)
    (inflow,) = run.inflows
    started = [start for start in inflow.inflow.starts if start <= 600]
    assert run.summary.total.started == len(started)
    assert run.summary.total.pending == len(inflow.inflow.starts) - len(started)
    assert sorted(started) == started


class Meetings(Scenario):
    """Feeds that meet at some instants, with gaps that are longer and shorter than an interval, and two batches."""

    def __init__(self, interval, rates, pacing) -> None:
        self.interval = interval
        self.rates = rates
        self.pacing = pacing

    def setup(self, sim) -> None:
        executor = sim.executor("api", max_concurrency=1, pacing=self.pacing)
        for number, rate in enumerate(self.rates):
            sim.arrive(Regular(rate), executor, sim.job(f"job {number}", Constant(0.1)))
        for number in range(2):
            job = sim.job(f"batch {number}", Constant(0.1))
            sim.schedule_many(executor, job, range(4), delays=[0.0, 10.0, 60.0, 120.0])


@pytest.mark.parametrize("interval", [1.0, 7.0, 60.0])
@pytest.mark.parametrize("rates", [(1, 0.5, 0.25), (0.25, 0.5, 1), (0.5, 0.1, 0.5), (1 / 3, 1, 1 / 5)])
@pytest.mark.parametrize("pacing", Pacing)
def test_jobs_due_together_take_turns_as_in_the_executor(interval, rates, pacing):
    """With one worker each turn shows in a wait."""
    ours, theirs = both(lambda: Meetings(interval, rates, pacing), seconds=600)
    assert theirs == ours


HUB = """
name = "hub"
[executors.api]
rate = {0 = 2, 1 = 6, 2 = "3/s"}
max_concurrency = {0 = 3, 1 = 9, 2 = 2}
retry = {attempts = 3, base = "2s", cap = "1m"}
worker_price = 0.4
[jobs.charge]
duration = {mean = 1.5, p90 = 3}
failures = 0.1
objectives = [{within = "5s", each = "30m"}]
[jobs.mail]
duration = 0.3
[[outages]]
job = "charge"
begin = "80m"
end = "90m"
[[arrivals]]
executor = "api"
job = "charge"
daily = {0 = 0.5, 1 = 2}
priority = 10
[[arrivals]]
executor = "api"
job = "mail"
rate = 1
"""


def test_a_hub_with_all_that_planners_write_has_equal_figures(tmp_path):
    """Spread over seconds, retried, out for a time, with rates and workers by hour."""
    (tmp_path / "hub.toml").write_text(HUB)
    ours, theirs = both(lambda: load_toml(tmp_path / "hub.toml"), seconds=9000, warm_up=600)
    assert theirs == ours
    assert ours.executors["api"].retried > 500
    assert ours.worker_cost == pytest.approx(0.4 * (50 * 3 + 60 * 9 + 30 * 2) / 60)
