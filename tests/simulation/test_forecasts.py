"""Forecasts: how many runs are in time, how sure that is, and when all is through."""

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
    """Let runs end at times that are given, without simulating them; infinity is never."""

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


# How sure it is.


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
    """Against values as tables have them (Newcombe, 1998; Brown, Cai and DasGupta, 2001)."""
    found = _forecast(runs_end, [50.0] * hits + [150.0] * (count - hits))
    assert (low, hits / count, high) == pytest.approx(found.chance, abs=6e-4)
    assert (hits, count) == (found.in_time, len(found.ends))


@pytest.mark.parametrize("count", [2, 7, 20, 33])
def test_wilson_interval_is_where_the_score_is_at_its_limit(runs_end, count):
    """At both of its ends the estimate is 1.96 standard deviations away: what defines it."""
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
    """From the r-th to the s-th value, as tables of the sign test have them."""
    found = _forecast(runs_end, [float(number) for number in range(count, 0, -1)])
    assert (first, (count + 1) / 2, last) == found.median
    assert tuple(map(float, range(1, count + 1))) == found.ends


@pytest.mark.parametrize("count", [6, 11, 12, 25, 64])
def test_interval_of_the_median_is_the_narrowest_that_holds(runs_end, count):
    """It holds the median in 95 % of all cases, and one value less on both sides would not."""
    low, _, high = _forecast(runs_end, list(range(1, count + 1))).median

    def coverage(first: int, last: int) -> float:
        return sum(math.comb(count, number) for number in range(first, last)) / 2**count

    assert coverage(int(low), int(high)) >= 0.95 > coverage(int(low) + 1, int(high) - 1)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_runs_have_no_interval_of_the_median(runs_end, count):
    """Of five or fewer, even the least and the greatest hold the median in 94 % of all cases at most."""
    low, _, high = _forecast(runs_end, list(range(1, count + 1))).median
    assert (0.0, INF) == (low, high)


# When it is.


def test_in_time_is_up_to_the_moment(runs_end):
    """At the very end of the time is in time, and a moment later is late."""
    found = _forecast(runs_end, [100.0, math.nextafter(100.0, INF), 99.0])
    assert (2, 100.0) == (found.in_time, found.within)


def test_what_is_never_through_ends_at_infinity(runs_end):
    """And so does the median, where most runs are not through."""
    found = _forecast(runs_end, [10.0, INF, INF, INF, 20.0, INF, INF])
    assert (2, (10.0, 20.0), INF) == (found.in_time, found.ends[:2], found.median[1])
    found = _forecast(runs_end, [INF] * 4)
    assert (0, (0.0, INF, INF)) == (found.in_time, found.median)  # of four runs nothing is sure
    found = _forecast(runs_end, [10.0, 20.0, 30.0, 40.0, INF])
    assert 30.0 == found.median[1]


@pytest.mark.parametrize(
    ("ends", "middle"), [([10.0, 20.0, 30.0, INF], 25.0), ([10.0, 20.0, INF, INF], INF), ([10.0, INF], INF)]
)
def test_median_lies_between_the_two_in_the_middle(runs_end, ends, middle):
    """Whether the last run is through or not: it must not become less when a run becomes worse."""
    assert middle == _forecast(runs_end, ends).median[1]


def test_failures_and_jobs_are_means(runs_end):
    """Of all runs."""
    runs_end([1.0, 2.0, 3.0], failed=2, jobs=7)
    found = forecast(Calls(), within=10, seeds=3)
    assert (2.0, 7.0) == (found.failed, found.jobs)


# What is simulated.


@pytest.mark.parametrize(("count", "rate", "seconds"), [(100, 10, 1.0), (1000, 50, 0.1), (10, 0.5, 0.0), (1, 1, 5.0)])
def test_rate_bound_queue_ends_when_the_rate_says(count, rate, seconds):
    """The last of n calls starts at (n - 1) / rate, and takes its time."""
    end = (count - 1) / rate + seconds
    found = forecast(Calls(count=count, rate=rate, duration=Constant(seconds)), within=end + 0.01, seeds=3)
    assert [end] * 3 == pytest.approx(list(found.ends), abs=0.005)
    assert (3, count, 0) == (found.in_time, found.jobs, found.failed)
    late = forecast(Calls(count=count, rate=rate, duration=Constant(seconds)), within=max(0.001, end - 0.01), seeds=3)
    assert (0, found.ends) == (late.in_time, late.ends)


@pytest.mark.parametrize(("count", "nodes", "concurrency"), [(100, 1, 1), (100, 1, 7), (100, 4, 5), (3, 5, 1)])
def test_queue_bound_by_concurrency_ends_after_its_rounds(count, nodes, concurrency):
    """As many rounds as the node with the most calls needs for them."""
    rounds = math.ceil(math.ceil(count / nodes) / concurrency)
    scenario = Calls(count=count, rate=INF, nodes=nodes, concurrency=concurrency, duration=Constant(2))
    found = forecast(scenario, within=1000, seeds=2)
    assert [2.0 * rounds] * 2 == pytest.approx(list(found.ends), abs=1e-3)


def test_nodes_share_the_rate():
    """Three with a third each take as long as one."""
    found = forecast(Calls(count=300, rate=3, nodes=3, duration=Constant(1)), within=1000, seeds=2)
    assert [101.0] * 2 == pytest.approx(list(found.ends), abs=2)


def test_attempts_take_permits_too():
    """A call that fails is tried again: n calls of which a part p fails take n / (1 - p) permits."""
    scenario = Calls(count=2000, rate=10, failures=0.2, attempts=20, duration=Constant(0.1))
    found = forecast(scenario, within=1000, seeds=3)
    assert (0, 2000) == (found.failed, found.jobs)
    for end in found.ends:
        assert 250 == pytest.approx(end, abs=15)


def test_what_fails_for_good_is_through_and_counted():
    """Without further attempts."""
    found = forecast(Calls(count=1000, rate=100, failures=0.3), within=60, seeds=4)
    assert (4, 1000) == (found.in_time, found.jobs)
    assert 300 == pytest.approx(found.failed, abs=5 * 14.5 / 2)


def test_seeds_differ_and_repeat():
    """Each run has a seed of its own, from the first on; the same seeds make the same forecast."""
    scenario = Calls(count=50, rate=INF, duration=LogNormal(mean=4, p90=8))
    found = forecast(scenario, within=10, seeds=5)
    assert 5 == len(set(found.ends))
    assert found == forecast(scenario, within=10, seeds=5)
    single = [forecast(scenario, within=10, seeds=1, first_seed=seed).ends[0] for seed in range(5)]
    assert sorted(single) == list(found.ends)
    assert found.ends != forecast(scenario, within=10, seeds=5, first_seed=5).ends


def test_chance_is_that_of_the_distribution():
    """One call that takes 10 s in the mean is through in 10 s with a chance of 1 - 1 / e."""
    found = forecast(Calls(count=1, rate=INF, duration=Exponential(10)), within=10, seeds=200)
    low, _, high = found.chance
    assert low < 1 - math.exp(-1) < high
    low, _, high = found.median
    assert low < 10 * math.log(2) < high


def test_each_run_is_told():
    """By its number, from 1 on, and its result."""
    told = []
    forecast(Calls(count=5), within=10, seeds=3, on_run=lambda number, result: told.append((number, result.seed)))
    assert [(1, 0), (2, 1), (3, 2)] == told


def test_lateness_is_told_up_to_twice_the_time():
    """And an hour at least; what takes longer than that is never through."""
    for count, end in ((50, 49.1), (3600, 3599.1), (4000, INF)):
        found = forecast(Calls(count=count, rate=1), within=30, seeds=1)
        assert (0, end) == (found.in_time, pytest.approx(found.ends[0], abs=0.01))


class _Endless(Scenario):
    """Jobs that never stop to come."""

    def setup(self, sim):
        """Let them arrive."""
        sim.arrive(Poisson(0.01), sim.executor("api"), sim.job("call", 1))


class _Sleepy(Scenario):
    """A job that is due later than the forecast looks."""

    def setup(self, sim):
        """Let it wait."""
        sim.executor("api").schedule(sim.job("call", 1), 1, delay=86_400)


class _Late(Scenario):
    """A job that comes when all seems to be through."""

    def setup(self, sim):
        """Let it come."""
        executor, job = sim.executor("api"), sim.job("call", 1)
        executor.schedule(job, 1)
        sim.at(600, lambda: executor.schedule(job, 2))


@pytest.mark.parametrize("scenario", [_Endless(), _Sleepy()])
def test_scenario_that_does_not_end_is_never_through(scenario):
    """Whether jobs come for ever or wait for long."""
    found = forecast(scenario, within=60, seeds=2)
    assert (0, (INF, INF)) == (found.in_time, found.ends)


def test_scenario_is_through_when_its_last_job_is():
    """Also where none waits for a while."""
    assert (601.0,) == forecast(_Late(), within=60, seeds=1).ends


def test_end_of_a_run_is_when_something_has_happened_last():
    """Also where the time of the run is no multiple of its step."""
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
    """By name."""
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
    """With the reason."""
    with pytest.raises(error, match=words):
        forecast(Calls(**{"count": 1} | options), within=10, seeds=1)


@pytest.mark.parametrize("options", [{"count": -1}, {"count": 0}, {"attempts": 0}, {"attempts": -3}])
def test_calls_of_less_than_one_are_refused(options):
    """Rather than to be through at once."""
    with pytest.raises(ValueError, match=next(iter(options))):
        forecast(Calls(**{"count": 1} | options), within=10, seeds=1)
