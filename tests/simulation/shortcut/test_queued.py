"""Both bodies drive an executor's queue alike; spread jobs, retries, and what happens at one instant."""

import math
from array import array

import pytest

from ratelimited_executor import Pacing
from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor.simulation import Constant, Regular, Scenario
from ratelimited_executor.simulation.outages import JobOutage
from ratelimited_executor.simulation.shortcut import run as run_module
from ratelimited_executor.simulation.shortcut.columns import Columns
from ratelimited_executor.simulation.shortcut.passing import Inflow
from ratelimited_executor.simulation.shortcut.queued import _Queued, pass_by_queue
from ratelimited_executor.simulation.shortcut.rules import NoShortcutError, Survey
from ratelimited_executor.simulation.shortcut.run import ShortRun

from .drawn import Drawn


def inflow(dues, seconds, *, priority=0, failures=0.0, lucks=None, quantile=None, is_feed=True, outages=()):
    times = array("d", dues)
    counts = array("q", [len(times)])
    return Inflow(
        Columns(times, times, array("d", seconds), array("d", lucks or [0.5] * len(times)), counts, None if is_feed else []),
        failures=failures, rank=(-priority, TaskClass.OTHER), level=0, waits=[0], executions=1, quantile=quantile,
        outages=outages,
    )  # fmt: skip


class One(Scenario):
    """An executor without jobs."""

    def __init__(self, **options) -> None:
        self._options = options

    def setup(self, sim) -> None:
        sim.executor("api", **self._options)


def pure(inflows, workers, queue, shifts, pause, due_count, moments, is_step, taking, count):
    return _Queued(inflows, workers, queue, shifts, pause, due_count, count).run(moments, is_step, taking)


BODIES = pytest.mark.parametrize("body", [pure, pass_by_queue], ids=["pure", "in use"])


def run(body, inflows, *, workers=math.inf, moments=(100.0,), pause=lambda failures: None, shifts=(), **options):
    """Pass jobs by the queue of an executor with some options."""
    sim = Survey(seed=0, interval=1.0)
    sim.set_up(One(max_concurrency=None if workers == math.inf else workers, **options))
    executor, observed = sim.sources[0].subject, sim.sources[0].observer.observed
    moments = array("d", moments)
    steps = bytearray([1] * len(moments))
    queue = executor._engine.queue
    passed = body(
        inflows, float(workers), queue, shifts, pause, observed.due_count, moments, steps, {len(moments) - 1: [0, 1]}, 2
    )
    sim.close()
    return passed


@BODIES
def test_jobs_of_an_interval_are_spread_over_it(body):
    """Those of the running interval, in which they are handed over, start on time."""
    made = inflow([0.5, 1.0, 1.1, 1.2, 1.3], [0.1] * 5)
    passed = run(body, [made], moments=[0.6, 1.4, 3.0])
    assert [0.5, 1.0, 1.25, 1.5, 1.75] == list(made.starts)
    assert ([1, 3, 5], [0, 2, 0]) == (list(passed.started), list(passed.depth))


@BODIES
def test_more_than_a_rate_allows_start_at_permits(body):
    """The more important first; what waits at the end of an interval goes on in the next."""
    low, high = inflow([1.0] * 3, [0.1] * 3), inflow([1.0, 1.9], [0.1] * 2, priority=1)
    passed = run(body, [low, high], rate=2, moments=[1.2, 10.0])
    assert ([1.5, 2.5, 3.0], [1.0, 2.0]) == (list(low.starts), list(high.starts))
    assert ([1, 5], [3, 0]) == (list(passed.started), list(passed.depth))


@BODIES
def test_a_failed_job_waits_for_its_pause_and_draws_anew(body):
    """Its luck and duration are those of a job of an executor; a pause of None is the end."""
    made = inflow([0.0, 5.0], [1.0, 1.0], failures=1.0, quantile=lambda part: 2.0)
    asked = []

    def pause(failures):
        asked.append(failures)
        return 0.25 if failures < 3 else None

    passed = run(body, [made], pause=pause, moments=[1.0, 4.0, 20.0], pacing=Pacing.ON_TIME)
    assert [1, 2, 3, 1, 2, 3] == asked
    assert [0.0, 5.0] == list(made.starts)
    assert [(0, 0.0, 0.0, 1.0), (0, 1.25, 1.25, 2.0), (0, 3.5, 3.5, 2.0), (1, 5.0, 5.0, 1.0)] == [
        *zip(*(list(getattr(made.attempts, name)) for name in ("indexes", "dues", "starts", "seconds")), strict=True)
    ][:4]
    assert ([1, 2, 4], [0, 0, 2]) == (list(passed.retried), list(passed.failed))
    assert [0, 0, 0] == list(passed.done)
    waits, seconds = (histogram for _, _, histogram in passed.taken)
    assert (6, 0.0, 10.0) == (waits.total, waits.max, seconds.total * seconds.mean)


@BODIES
def test_all_jobs_that_start_in_an_outage_fail(body):
    """From its beginning on, and until just before its end."""
    made = inflow([0.5, 1.0, 2.5, 3.0], [1.0] * 4, outages=[JobOutage(1.0, 2.0), JobOutage(2.5, 3.0)])
    passed = run(body, [made], pacing=Pacing.ON_TIME)
    assert ([2], [2]) == (list(passed.failed), list(passed.done))


@BODIES
def test_an_outage_fails_a_part_that_changes(body):
    """Of jobs with the same luck those fail that start while the outage's fraction is larger."""
    outage = JobOutage(1.0, 4.0, times=[1.0, 3.0], parts=[1.0, 0.0])
    made = inflow([0.5, 1.0, 1.9, 2.1, 3.5], [0.1] * 5, lucks=[0.5] * 5, outages=[outage])
    passed = run(body, [made], pacing=Pacing.ON_TIME)
    assert ([2], [3]) == (list(passed.failed), list(passed.done))


@BODIES
def test_an_attempt_of_a_recorded_job_lasts_as_long(body):
    """Nothing is drawn but its luck."""
    made = inflow([0.0], [3.0], failures=1.0)
    run(body, [made], pause=lambda failures: 1.0 if failures == 1 else None)
    assert [3.0, 3.0] == list(made.attempts.seconds)


@BODIES
def test_a_duration_out_of_range_is_refused(body):
    """The executor says what is wrong with it."""
    made = inflow([0.0], [1.0], failures=1.0, quantile=lambda part: -1.0)
    with pytest.raises(NoShortcutError, match="a duration of another attempt is out of range"):
        run(body, [made], pause=lambda failures: 1.0)


@BODIES
def test_a_freed_place_is_used_before_what_falls_due_then(body):
    """The end of a job wakes the queue at once, before other ends of the same instant."""
    made = inflow([0.0, 0.5, 2.0], [2.0, 1.0, 1.0])
    run(body, [made], workers=1, pacing=Pacing.ON_TIME)
    assert [0.0, 2.0, 3.0] == list(made.starts)


@BODIES
def test_batches_come_before_feeds(body):
    """They are scheduled by setup() itself."""
    feed, batch = inflow([0.0], [1.0]), inflow([0.0], [1.0], is_feed=False)
    run(body, [feed, batch], workers=1, pacing=Pacing.ON_TIME)
    assert ([1.0], [0.0]) == (list(feed.starts), list(batch.starts))


@pytest.mark.parametrize("seed", range(100, 112))
def test_both_bodies_have_equal_figures(monkeypatch, seed):
    """Of random scenarios, to the last bit, whether a shorter way would do or not."""
    found = []
    monkeypatch.setattr(run_module, "pass_jobs", lambda *_: type("Unsure", (), {"is_unsure": True}))
    for body in (pure, pass_by_queue):
        monkeypatch.setattr(run_module, "pass_by_queue", body)
        run = ShortRun(Drawn(seed), seed=seed, total=900.0, step=60.0, warm_up=0.0)
        starts = [(list(each.inflow.starts), list(each.inflow.attempts.dues)) for each in run.inflows]
        found.append((run.summary, starts))
    assert found[0] == found[1]


class Feeds(Scenario):
    """A job each second."""

    def setup(self, sim) -> None:
        sim.arrive(Regular(1), sim.executor("api"), sim.job("call", Constant(0.1)))


def test_minutes_are_handed_over_as_they_begin():
    """The first second of each is the running interval: its jobs start on time, and all others are spread."""
    run = ShortRun(Feeds(), seed=0, total=150.0, step=60.0, warm_up=0.0)
    (found,) = run.inflows
    assert [60, 120, 180] == list(found.columns.counts)
    assert list(range(151)) == list(found.inflow.starts)[:151]
