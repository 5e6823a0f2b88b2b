"""Forecasts: how many runs are in time, how certain that is, and when the work ends."""

import math
from statistics import NormalDist
from types import SimpleNamespace

import pytest

from ratelimited_executor.simulation import (
    Calls,
    Constant,
    Exponential,
    Forecast,
    LogNormal,
    Poisson,
    Scenario,
    forecast,
    forecasts,
    simulate,
)

INF = math.inf


@pytest.fixture
def runs_end(monkeypatch):
    """Let runs end at given times without simulating them; infinity is never."""

    def install(ends, failed=0, jobs=1):
        left = iter(ends)

        def run(scenario, *, days, seed, start, until_done, on_progress):
            end = next(left)
            is_done = end < INF
            summary = SimpleNamespace(total=SimpleNamespace(failed=failed), jobs=jobs)
            return SimpleNamespace(summary=summary, is_done=is_done, end=end, speed=1.0)

        monkeypatch.setattr(forecasts, "simulate", run)

    return install


def _forecast(runs_end, ends, within=100.0) -> Forecast:
    runs_end(ends)
    return forecast(Calls(), within=within, seeds=len(ends))


# Certainty.


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [
        (8, 10, 0.490, 0.943),
        (0, 10, 0.0, 0.278),
        (10, 10, 0.722, 1.0),
        (1, 1, 0.207, 1.0),
        (0, 1, 0.0, 0.793),
        (5, 10, 0.237, 0.763),
        (20, 20, 0.839, 1.0),
        (50, 100, 0.404, 0.596),
        (95, 100, 0.888, 0.978),
    ],
)
def test_chance_has_the_wilson_interval(runs_end, hits, count, low, high):
    """The chance has the Wilson interval, compared with published values (Newcombe, 1998; Brown et al., 2001)."""
    found = _forecast(runs_end, [50.0] * hits + [150.0] * (count - hits))
    assert (low, hits / count, high) == pytest.approx(found.chance, abs=6e-4)
    assert (hits, count) == (found.in_time, len(found.ends))


@pytest.mark.parametrize("count", [2, 7, 20, 33])
def test_wilson_interval_is_where_the_score_is_at_its_limit(runs_end, count):
    """At both ends of the Wilson interval the estimate is 1.96 standard deviations away, as it is defined."""
    z = NormalDist().inv_cdf(0.975)
    for hits in range(count + 1):
        low, part, high = _forecast(runs_end, [50.0] * hits + [150.0] * (count - hits)).chance
        assert 0 <= low <= part + 1e-12
        assert part - 1e-12 <= high <= 1
        for end in (low, high):
            if 1e-9 < end < 1 - 1e-9:
                assert abs(part - end) == pytest.approx(z * math.sqrt(end * (1 - end) / count), rel=1e-6)


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (15, 4, 12), (20, 6, 15), (30, 10, 21), (50, 18, 33)],
)
def test_median_has_the_interval_of_the_order_statistics(runs_end, count, first, last):
    """The interval of the median is between order statistics, as in tables of the sign test."""
    found = _forecast(runs_end, [float(number) for number in range(count, 0, -1)])
    assert (first, (count + 1) / 2, last) == found.median
    assert tuple(map(float, range(1, count + 1))) == found.ends


@pytest.mark.parametrize("count", [6, 11, 12, 25, 64])
def test_interval_of_the_median_is_the_narrowest_that_holds(runs_end, count):
    """The interval of the median has 95 % coverage, and would not with one value less on both sides."""
    low, _, high = _forecast(runs_end, list(range(1, count + 1))).median

    def coverage(first: int, last: int) -> float:
        return sum(math.comb(count, number) for number in range(first, last)) / 2**count

    assert coverage(int(low), int(high)) >= 0.95 > coverage(int(low) + 1, int(high) - 1)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_runs_have_no_interval_of_the_median(runs_end, count):
    """Up to five runs have no interval of the median: least and greatest include it in at most 94 % of cases."""
    low, _, high = _forecast(runs_end, list(range(1, count + 1))).median
    assert (0.0, INF) == (low, high)


# Ends.


def test_in_time_is_up_to_the_moment(runs_end):
    """A run that ends exactly at the time is in time, and one that ends later is not."""
    found = _forecast(runs_end, [100.0, math.nextafter(100.0, INF), 99.0])
    assert (2, 100.0) == (found.in_time, found.within)


def test_what_is_never_through_ends_at_infinity(runs_end):
    """A run that does not end has the end infinity, and so has the median if most do not end."""
    found = _forecast(runs_end, [10.0, INF, INF, INF, 20.0, INF, INF])
    assert (2, (10.0, 20.0), INF) == (found.in_time, found.ends[:2], found.median[1])
    found = _forecast(runs_end, [INF] * 4)
    assert (0, (0.0, INF, INF)) == (found.in_time, found.median)  # four runs are too few
    found = _forecast(runs_end, [10.0, 20.0, 30.0, 40.0, INF])
    assert 30.0 == found.median[1]


@pytest.mark.parametrize(
    ("ends", "middle"), [([10.0, 20.0, 30.0, INF], 25.0), ([10.0, 20.0, INF, INF], INF), ([10.0, INF], INF)]
)
def test_median_lies_between_the_two_in_the_middle(runs_end, ends, middle):
    """The median is between the two middle ends, and does not fall if a run gets worse."""
    assert middle == _forecast(runs_end, ends).median[1]


def test_failures_and_jobs_are_means(runs_end):
    """Failures and jobs are means over all runs."""
    runs_end([1.0, 2.0, 3.0], failed=2, jobs=7)
    found = forecast(Calls(), within=10, seeds=3)
    assert (2.0, 7.0) == (found.failed, found.jobs)


# Simulated work.


@pytest.mark.parametrize(("count", "rate", "seconds"), [(100, 10, 1.0), (1000, 50, 0.1), (10, 0.5, 0.0), (1, 1, 5.0)])
def test_rate_bound_queue_ends_when_the_rate_says(count, rate, seconds):
    """With a rate the last of n calls starts at (n - 1) / rate, and then takes its duration."""
    end = (count - 1) / rate + seconds
    found = forecast(Calls(count=count, rate=rate, duration=Constant(seconds)), within=end + 0.01, seeds=3)
    assert [end] * 3 == pytest.approx(list(found.ends), abs=0.005)
    assert (3, count, 0) == (found.in_time, found.jobs, found.failed)
    late = forecast(Calls(count=count, rate=rate, duration=Constant(seconds)), within=max(0.001, end - 0.01), seeds=3)
    assert (0, found.ends) == (late.in_time, late.ends)


@pytest.mark.parametrize(("count", "nodes", "concurrency"), [(100, 1, 1), (100, 1, 7), (100, 4, 5), (3, 5, 1)])
def test_queue_bound_by_concurrency_ends_after_its_rounds(count, nodes, concurrency):
    """With concurrency the end is after as many rounds as the node with the most calls needs."""
    rounds = math.ceil(math.ceil(count / nodes) / concurrency)
    scenario = Calls(count=count, rate=INF, nodes=nodes, concurrency=concurrency, duration=Constant(2))
    found = forecast(scenario, within=1000, seeds=2)
    assert [2.0 * rounds] * 2 == pytest.approx(list(found.ends), abs=1e-3)


def test_nodes_share_the_rate():
    """Three nodes with a third of the rate each take as long as one."""
    found = forecast(Calls(count=300, rate=3, nodes=3, duration=Constant(1)), within=1000, seeds=2)
    assert [101.0] * 2 == pytest.approx(list(found.ends), abs=2)


def test_attempts_take_permits_too():
    """Attempts take permits: n calls of which a part p fails take n / (1 - p) permits."""
    scenario = Calls(count=2000, rate=10, failures=0.2, attempts=20, duration=Constant(0.1))
    found = forecast(scenario, within=1000, seeds=3)
    assert (0, 2000) == (found.failed, found.jobs)
    for end in found.ends:
        assert 250 == pytest.approx(end, abs=15)


def test_what_fails_for_good_is_through_and_counted():
    """A call that fails without another attempt has ended, and is counted as failed."""
    found = forecast(Calls(count=1000, rate=100, failures=0.3), within=60, seeds=4)
    assert (4, 1000) == (found.in_time, found.jobs)
    assert 300 == pytest.approx(found.failed, abs=5 * 14.5 / 2)


def test_seeds_differ_and_repeat():
    """Each run has its own seed, and the same seeds make the same forecast."""
    scenario = Calls(count=50, rate=INF, duration=LogNormal(mean=4, p90=8))
    found = forecast(scenario, within=10, seeds=5)
    assert 5 == len(set(found.ends))
    assert found == forecast(scenario, within=10, seeds=5)
    single = [forecast(scenario, within=10, seeds=1, first_seed=seed).ends[0] for seed in range(5)]
    assert sorted(single) == list(found.ends)
    assert found.ends != forecast(scenario, within=10, seeds=5, first_seed=5).ends


def test_chance_is_that_of_the_distribution():
    """A call of 10 s on average ends within 10 s with a chance of 1 - 1 / e."""
    found = forecast(Calls(count=1, rate=INF, duration=Exponential(10)), within=10, seeds=200)
    low, _, high = found.chance
    assert low < 1 - math.exp(-1) < high
    low, _, high = found.median
    assert low < 10 * math.log(2) < high


def test_each_run_is_told():
    """``on_run`` is called with the number of each run, from 1, and its result."""
    told = []
    forecast(Calls(count=5), within=10, seeds=3, on_run=lambda number, result: told.append((number, result.seed)))
    assert [(1, 0), (2, 1), (3, 2)] == told


def test_lateness_is_told_up_to_twice_the_time():
    """Lateness is simulated up to twice the time, and an hour at least; work that takes longer does not end."""
    for count, end in ((50, 49.1), (3600, 3599.1), (4000, INF)):
        found = forecast(Calls(count=count, rate=1), within=30, seeds=1)
        assert (0, end) == (found.in_time, pytest.approx(found.ends[0], abs=0.01))


class _Endless(Scenario):
    """A scenario whose jobs never stop arriving."""

    def setup(self, sim):
        """Let jobs arrive."""
        sim.arrive(Poisson(0.01), sim.executor("api"), sim.job("call", 1))


class _Sleepy(Scenario):
    """A scenario with a job due after the end of the forecast."""

    def setup(self, sim):
        """Schedule the job."""
        sim.executor("api").schedule(sim.job("call", 1), 1, delay=86_400)


class _Late(Scenario):
    """A scenario with a job that comes after all others have ended."""

    def setup(self, sim):
        """Schedule the jobs."""
        executor, job = sim.executor("api"), sim.job("call", 1)
        executor.schedule(job, 1)
        sim.at(600, lambda: executor.schedule(job, 2))


@pytest.mark.parametrize("scenario", [_Endless(), _Sleepy()])
def test_scenario_that_does_not_end_is_never_through(scenario):
    """A scenario whose jobs never end, or wait beyond the forecast, does not end."""
    found = forecast(scenario, within=60, seeds=2)
    assert (0, (INF, INF)) == (found.in_time, found.ends)


def test_scenario_is_through_when_its_last_job_is():
    """A scenario ends with its last job, even if none waits in between."""
    assert (601.0,) == forecast(_Late(), within=60, seeds=1).ends


def test_end_of_a_run_is_when_something_has_happened_last():
    """The end of a run is the time of its last event, also between two steps."""
    assert 9.1 == pytest.approx(simulate(Calls(count=10, rate=1), days=0.01).end, abs=0.01)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"within": 0}, ValueError, "within must be > 0 seconds"),
        ({"within": -1}, ValueError, "within must be > 0 seconds"),
        ({"within": INF}, ValueError, "within must be finite"),
        ({"within": math.nan}, ValueError, "within must be finite"),
        ({"within": "6x"}, ValueError, "within: a duration looks like"),
        ({"within": None}, TypeError, "within must be a number"),
        ({"seeds": 0}, ValueError, "seeds must be >= 1"),
        ({"seeds": -5}, ValueError, "seeds must be >= 1"),
        ({"seeds": 1.5}, TypeError, "seeds must be an integer"),
        ({"seeds": True}, TypeError, "seeds must be an integer"),
        ({"first_seed": 1.5}, TypeError, "seed must be an integer"),
    ],
)
def test_what_cannot_be_is_refused(options, error, words):
    """Bad arguments are refused by name."""
    with pytest.raises(error, match=words):
        forecast(Calls(count=1), **{"within": 10, "seeds": 1} | options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"nodes": 0}, ValueError, "nodes must be >= 1"),
        ({"nodes": 1.5}, TypeError, "nodes must be an integer"),
        ({"rate": -1}, ValueError, "rate must be"),
        ({"rate": "fast"}, ValueError, "rate must look like"),
        ({"concurrency": -1}, ValueError, "max_concurrency"),
        ({"failures": 1.5}, ValueError, "failures must be a fraction of all jobs"),
        ({"duration": "1x"}, ValueError, "duration: a duration looks like"),
        ({"duration": []}, TypeError, "duration must be a number of seconds, .* or a distribution"),
    ],
)
def test_calls_that_cannot_be_are_refused(options, error, words):
    """Bad calls are refused with the reason."""
    with pytest.raises(error, match=words):
        forecast(Calls(**{"count": 1} | options), within=10, seeds=1)


@pytest.mark.parametrize("options", [{"count": -1}, {"count": 0}, {"attempts": 0}, {"attempts": -3}])
def test_calls_of_less_than_one_are_refused(options):
    """Fewer than one call or attempt is refused."""
    with pytest.raises(ValueError, match=next(iter(options))):
        forecast(Calls(**{"count": 1} | options), within=10, seeds=1)
