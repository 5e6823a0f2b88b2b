"""A run is repeatable, measures what happened exactly, and resumes from wherever it was interrupted."""

import asyncio
import dataclasses
import functools
import gc
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
import uuid
from contextlib import closing
from itertools import pairwise

import pytest

from ratelimited_executor import Pacing
from ratelimited_executor.simulation import Exponential, Lasting, Poisson, Regular, Sample, Scenario, simulate
from ratelimited_executor.simulation.database import FORMAT, is_run_database
from ratelimited_executor.simulation.recorder import Recorder
from ratelimited_executor.simulation.runs import RunDatabase
from ratelimited_executor.spread import CycleSlots

HOUR = 3600.0
DAY = 86_400.0
TABLES = (
    "run",
    "source",
    "step",
    "quantiles",
    "counter",
    "gauge",
    "histogram",
    "sample",
    "key_summary",
    "life",
    "slot",
    "event",
)


def read(path):
    """Return all rows of all tables, except for the real time that the run has taken."""
    with closing(sqlite3.connect(path)) as connection:
        rows = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}
    rows["run"] = [row for row in rows["run"] if row[0] != "wall_seconds"]
    return rows


def properties(path):
    return dict(read(path)["run"])


def columns(path, query, *arguments):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query, arguments).fetchall()


class Made(Scenario):
    """A scenario that is set up by a function."""

    def __init__(self, setup):
        self.setup = setup


def run(setup, seconds=HOUR, **options):
    return simulate(Made(setup), days=seconds / DAY, **options)


@dataclasses.dataclass
class Busy(Scenario):
    """A scenario with arrivals, failures, conflicts, an outage, a cycle, a task and a backlog."""

    days = 0.125
    rate: float = 0.1

    def setup(self, sim):
        population = sim.population(
            "keys", 40, period="30m", weight=lambda key: 1 + key % 3, group=lambda key: "ab"[key % 2]
        )
        executor = sim.executor("one", rate=self.rate, max_concurrency=3)
        fleet = sim.fleet("two", 2, rate=1, key_concurrency=1)
        sync = sim.job("sync", Exponential(5), failures=0.1, population=population)
        other = sim.job("other", 2, then=lambda key: executor.schedule(sync, key % 40))
        sim.arrive(Poisson(0.06), executor, sync, keys=range(40))
        sim.arrive(Regular(0.02), fleet, other)
        sim.outage(population, "a", 3000, 4000)
        for keys in sim.note_slots(population, "cycle", CycleSlots("1h")):
            executor.schedule_many(sync, keys, over=1000)

        async def work():
            while True:
                await asyncio.sleep(sim.random.uniform(100, 1000))
                sim.mark("worked")

        sim.spawn(work())


@pytest.fixture
def each_step(monkeypatch):
    """Report progress and write rows at each step, instead of by real time."""
    monkeypatch.setattr("ratelimited_executor.simulation.runs._PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr("ratelimited_executor.simulation.runs._WRITE_SECONDS", 0.0)


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """Return what an uninterrupted run of ``Busy`` writes, with or without samples; each is made once."""

    @functools.cache
    def made(*, samples=False):
        path = tmp_path_factory.mktemp("whole") / "run"
        simulate(Busy(), database=path, samples=samples)
        return read(path)

    return made


def stop_at(seconds):
    return lambda progress: progress.seconds >= seconds


# Repeatability.


def test_the_same_seed_writes_the_same(tmp_path, whole):
    """The same seed writes the same rows, except for the real time, and another one writes others."""
    for name, seed in (("a", 0), ("b", 1)):
        simulate(Busy(), seed=seed, samples=True, database=tmp_path / name)
    first, other, without = whole(samples=True), read(tmp_path / "b"), whole()
    assert first == read(tmp_path / "a")
    for table in ("step", "quantiles", "histogram", "sample", "key_summary", "event"):
        assert first[table] != other[table], table
    assert {"life"} == {table for table, rows in first.items() if not rows}  # no key joins or leaves
    assert [] == without["sample"]
    assert {"run", "sample"} >= {table for table in TABLES if first[table] != without[table]}


CODE = """
import sys
sys.path.insert(0, {directory!r})
from test_runs import *
{code}
"""


def run_code(code, **environment):
    """Run code in another process that imports this module."""
    script = CODE.format(directory=os.path.dirname(__file__), code=code)
    return subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_another_process_writes_the_same(tmp_path, whole):
    """Another process writes the same, with another hash seed."""
    path = tmp_path / "run"
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    found = run_code(f"simulate(Busy(), database={str(path)!r}, samples=True)", PYTHONHASHSEED=seed)
    assert 0 == found.returncode, found.stderr
    assert whole(samples=True) == read(path)


def as_tuple(value):
    return dataclasses.astuple(value) if dataclasses.is_dataclass(value) else value


def test_the_step_changes_nothing_that_happens(tmp_path):
    """The step changes only the resolution, not what happens."""
    results = [simulate(Busy(), step=step).summary for step in (7, 60, 3600)]
    for one, other in pairwise(results):
        for name in one.executors:
            first, second = one.executors[name], other.executors[name]
            for field in ("enqueued", "started", "done", "failed", "other", "executing", "pending", "start_delay"):
                assert as_tuple(getattr(first, field)) == pytest.approx(as_tuple(getattr(second, field))), field
        one, other = one.populations["keys"], other.populations["keys"]
        assert as_tuple(one.sync_interval) == pytest.approx(as_tuple(other.sync_interval))


def test_without_a_database_the_result_is_the_same(tmp_path):
    """Without a database the result is the same, and nothing is written."""
    with_one = simulate(Busy(), database=tmp_path / "a")
    without = simulate(Busy())
    assert (with_one.summary, with_one.end, with_one.rows) == (without.summary, without.end, without.rows)
    assert ["a"] == [path.name for path in tmp_path.iterdir() if not path.name.startswith("a-")]


def test_parameters_are_written_the_same_in_every_run(tmp_path):
    """Arrivals as a parameter are recorded the same in every run, so that it can be resumed."""

    @dataclasses.dataclass
    class WithArrivals(Scenario):
        arrivals: object = dataclasses.field(default_factory=lambda: Poisson(0.01))

        def setup(self, sim):
            sim.arrive(self.arrivals, sim.executor("a"), sim.job("job", 1))

    first, second = WithArrivals(), WithArrivals()
    for name, scenario in (("a", first), ("b", second)):
        simulate(scenario, days=0.1, database=tmp_path / name)
    assert read(tmp_path / "a") == read(tmp_path / "b")


# The database.


def test_counts_agree(tmp_path):
    """The sums of all steps are the totals, and each step continues the one before."""
    path = tmp_path / "run"
    result = simulate(Busy(), database=path)
    sources = {name: number for number, kind, name, _ in read(path)["source"] if kind == "executor"}
    assert set(sources) == {"one", "two/0", "two/1"} == set(result.summary.executors)
    for name, number in sources.items():
        summary = result.summary.executors[name]
        sums = columns(
            path,
            "SELECT sum(enqueued_jobs), sum(started_jobs), sum(done_jobs), sum(failed_jobs), "
            "sum(cancelled_jobs + expired_jobs + dropped_jobs) FROM step WHERE source = ?", number,
        )  # fmt: skip
        assert sums == [(summary.enqueued, summary.started, summary.done, summary.failed, summary.other)]
        assert summary.enqueued == summary.done + summary.failed + summary.other + summary.executing + summary.pending
        rows = columns(path, "SELECT * FROM step WHERE source = ? ORDER BY time", number)
        accepted = started = ended = 0
        for _, _, *changes, executing, depth, pending, backlog in rows:
            accepted, started, ended = (
                accepted + changes[0],
                started + changes[1],
                ended + sum(changes[2:]),
            )  # with retried ones
            assert (executing, pending) == (started - ended, accepted - started)
            assert 0 <= depth <= pending
            assert backlog == depth / {"one": 0.1, "two/0": 1, "two/1": 1}[name] or name != "one"
        delays = columns(path, "SELECT sum(count) FROM quantiles WHERE source = ? AND metric = 'start_delay'", number)
        assert [(summary.started,)] == delays
    assert properties(path)["jobs"] == result.summary.jobs
    counters = dict(columns(path, "SELECT metric, sum(value) FROM counter GROUP BY metric"))
    population = result.summary.populations["keys"]
    assert counters == {"lock_conflicts": population.lock_conflicts, "outage_failures": population.outage_failures}
    assert all(counters.values())
    keys = columns(path, "SELECT count(*), sum(syncs), sum(syncs = 0) FROM key_summary")
    first = population.keys - population.never_synced  # each key's first sync ends no interval
    assert keys == [(40, population.sync_interval.count + first, population.never_synced)]
    metrics = "SELECT source, metric, sum(count) FROM {} GROUP BY source, metric ORDER BY source, metric"
    assert columns(path, metrics.format("histogram")) == columns(path, metrics.format("quantiles"))
    assert result.rows == sum(len(rows) for table, rows in read(path).items() if table != "run")


def test_properties_tell_of_the_run(tmp_path):
    """Properties record what was run, and how far."""
    path = tmp_path / "run"
    result = simulate(Busy(rate=0.3), days=0.1, seed=7, step=30, start=1_000_000_000, database=path)
    found = properties(path)
    found.pop("version")
    figures = json.loads(found.pop("summary"))
    assert figures["queue_depth_mean"] == result.summary.total.queue_depth_mean
    assert figures["start_delay"]["p99"] == result.summary.total.start_delay.p99
    assert found == {
        "format": FORMAT, "scenario": "busy", "parameters": '{"rate": 0.3}', "seed": 7, "start": 1_000_000_000.0,
        "step": 30.0, "is_sampled": 0, "days": 0.1, "status": "finished", "reached": 8640.0, "jobs": result.summary.jobs,
    }  # fmt: skip
    assert ("busy", 7, "finished", 8640.0) == (result.scenario, result.seed, result.status, result.total)
    assert is_run_database(path)
    details = {name: json.loads(text) for _, kind, name, text in read(path)["source"] if kind != "executor"}
    assert {"period": 1800.0, "count": 40} == details["keys"]
    assert {"duration": "Exponential(5)", "failures": 0.1} == details["sync"]


def test_a_tiny_run_by_hand(tmp_path):
    """Ten jobs of 5 s, one in 10 s, have the depths, starts, delays and quantiles computed by hand."""

    def setup(sim):
        sim.executor("a", rate="6/min", pacing=Pacing.ON_TIME).schedule_many(sim.job("job", 5), range(10))

    path = tmp_path / "run"
    result = run(setup, 120, step=30, database=path)
    assert [
        (30.0, 1, 10, 4, 0, 3, 0, 0, 0, 0, 1, 6, 6, 60.0),
        (60.0, 1, 0, 3, 0, 3, 0, 0, 0, 0, 1, 3, 3, 30.0),
        (90.0, 1, 0, 3, 0, 3, 0, 0, 0, 0, 1, 0, 0, 0.0),
        (120.0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0.0),
    ] == [row[:13] + (pytest.approx(row[13]),) for row in read(path)["step"]]
    quantiles = {(time, metric): rest for time, _, metric, *rest in read(path)["quantiles"]}
    assert quantiles[30.0, "start_delay"] == pytest.approx([4, 15, 0, 10, 30, 30, 30])
    assert quantiles[60.0, "start_delay"] == pytest.approx([3, 50, 40, 50, 60, 60, 60])
    assert quantiles[90.0, "start_delay"] == pytest.approx([3, 80, 70, 80, 90, 90, 90])
    assert quantiles[30.0, "execution_time"] == [4, 5, 5, 5, 5, 5, 5]
    assert (120.0, "start_delay") not in quantiles
    summary = result.summary.executors["a"]
    assert (8, pytest.approx(10 * 5 / 120)) == (summary.queue_depth_most, summary.executing_mean)
    assert summary.queue_depth_mean == pytest.approx(sum(range(0, 100, 10)) / 120, rel=0.1)
    assert (10, 90.0) == (summary.start_delay.count, pytest.approx(summary.start_delay.most))
    assert 40 <= summary.start_delay.p50 <= 40 * 1.02
    assert (95.0, True) == (pytest.approx(result.end), result.is_done)


def test_quantiles_are_those_of_the_nearest_rank(tmp_path):
    """Quantiles of a step are those of the nearest rank."""

    def setup(sim):
        executor = sim.executor("a", pacing=Pacing.ON_TIME)
        lengths = iter([*range(100, 0, -1), 7])
        job = sim.job("job", type("Drawn", (), {"draw": lambda self, chance: next(lengths), "mean": 1})())
        executor.schedule_many(job, range(100))
        executor.schedule(job, delay=100)

    path = tmp_path / "run"
    run(setup, 200, step=60, database=path)
    rows = columns(
        path, "SELECT time, count, mean, least, p50, p90, p99, most FROM quantiles WHERE metric = 'execution_time'"
    )
    assert [(60.0, 100, 50.5, 1, 50, 90, 99, 100), (120.0, 1, 7, 7, 7, 7, 7, 7)] == rows


def test_start_delay_is_exact():
    """Start delays count from due time to start, for every kind of task, with and without limits."""
    for options in ({}, {"rate": 1}, {"max_concurrency": 1}, {"rate": 2, "max_concurrency": 2}):
        expected = []

        def setup(sim, options=options, expected=expected):
            executor = sim.executor("a", pacing=Pacing.ON_TIME, **options)

            def job(due):
                expected.append(sim.now - due)
                return Lasting(0.75)

            for number in range(20):
                executor.schedule(job, number * 0.25, delay=number * 0.25)
                executor.call_later(number * 0.125, job, number * 0.125)
            executor.schedule_many(job, [2.5] * 10, delay=2.5)

        found = run(setup, 600).summary.executors["a"].start_delay
        assert (50, max(expected)) == (found.count, pytest.approx(found.most))
        assert sum(expected) / 50 == pytest.approx(found.mean, abs=1e-9)


def test_the_end_of_a_step_belongs_to_it(tmp_path):
    """What happens at the end of a step is counted in it, and not in the next."""

    def setup(sim):
        executor = sim.executor("a", pacing=Pacing.ON_TIME)
        executor.schedule(sim.job("job", 60), delay=60)
        executor.schedule(sim.job("other", 60), delay=60.5)

    path = tmp_path / "run"
    run(setup, 240, database=path)
    assert [(60.0, 2, 1, 0, 1), (120.0, 0, 1, 1, 1), (180.0, 0, 0, 1, 0)] == columns(
        path, "SELECT time, enqueued_jobs, started_jobs, done_jobs, executing_jobs FROM step"
    )


def test_idle_time_is_skipped_and_the_means_are_right(tmp_path):
    """A quiet day has few rows, and the means of the whole day."""

    def setup(sim):
        executor = sim.executor("a", max_concurrency=1, pacing=Pacing.ON_TIME)
        job = sim.job("job", 600)
        for hour in (0, 10, 20):
            executor.schedule_many(job, range(3), delay=hour * HOUR)

    path = tmp_path / "run"
    result = run(setup, DAY, database=path)
    summary = result.summary.executors["a"]
    assert summary.executing_mean * DAY == pytest.approx(9 * 600, abs=9 * 60)
    assert summary.queue_depth_mean * DAY == pytest.approx(3 * (2 + 1) * 600, abs=9 * 60)
    assert 90 <= len(read(path)["step"]) <= 100
    assert result.summary.seconds == DAY
    assert (20 * HOUR + 1800, True) == (result.end, result.is_done)


@pytest.mark.parametrize("case", ["rate of 0", "no place", "penalty", "paused"])
def test_jobs_that_cannot_start_are_in_the_queue(tmp_path, case):
    """Jobs that cannot start are in the queue from their due times on."""

    def setup(sim):
        options = {"rate of 0": {"rate": 0}, "no place": {"max_concurrency": 0}}.get(case, {})
        executor = sim.executor("a", pacing=Pacing.ON_TIME, **options)
        if case == "paused":
            executor.pause()
        elif case == "penalty":
            executor.penalize(HOUR)
        executor.schedule_many(sim.job("job", 1), range(6), delays=[600.0 * number + 90 for number in range(6)])

    path = tmp_path / "run"
    summary = run(setup, HOUR, database=path).summary.executors["a"]
    depths = dict(columns(path, "SELECT time, queue_depth FROM step"))
    assert [1, 1, 2, 3, 6] == [depths.get(time) for time in (120.0, 660.0, 720.0, 1800.0, 3540.0)]
    assert summary.queue_depth_mean * HOUR == pytest.approx(
        sum(HOUR - 600 * number - 90 for number in range(6)), abs=360
    )


def test_the_backlog_of_a_node_is_what_its_own_rate_takes(tmp_path):
    """The backlog of a node counts by its own part of the rate."""

    def setup(sim):
        sim.fleet("node", 4, rate=4).schedule_many(sim.job("job", 0), range(4000))

    path = tmp_path / "run"
    run(setup, 60, database=path)
    for depth, backlog in columns(path, "SELECT queue_depth, queue_backlog FROM step"):
        assert depth == pytest.approx(backlog)


def test_samples_keep_each_value(tmp_path):
    """With samples every value is stored, also what is derived, and quantiles are theirs."""
    path = tmp_path / "run"
    simulate(Busy(), samples=True, database=path)
    for metric in ("start_delay", "execution_time", "sync_interval"):
        samples = columns(
            path, "SELECT source, count(*), max(value) FROM sample WHERE metric = ? GROUP BY source", metric
        )
        quantiles = columns(
            path, "SELECT source, sum(count), max(most) FROM quantiles WHERE metric = ? GROUP BY source", metric
        )
        assert samples == quantiles != []
    keys = columns(path, "SELECT key, count(*) FROM sample WHERE metric = 'sync_interval' GROUP BY key")
    assert keys == columns(path, "SELECT key, syncs - 1 FROM key_summary WHERE syncs > 1")
    assert columns(path, "SELECT sum(count) FROM quantiles WHERE metric = 'sync_delay'") == columns(
        path, "SELECT count(*) FROM sample WHERE metric = 'sync_delay'"
    )


def test_samples_of_start_delays_have_the_key_of_their_job(tmp_path):
    """Samples of start delays have the key of their job; those of an executor have none, which runs any function."""

    def setup(sim):
        sim.executor("a", rate=1, pacing=Pacing.ON_TIME).schedule_many(sim.job("job", 1), ["a", "b", "c"])

    path = tmp_path / "run"
    run(setup, 60, samples=True, database=path)
    rows = columns(
        path, "SELECT kind, key FROM sample JOIN source ON id = source WHERE metric = 'start_delay' ORDER BY kind, time"
    )
    assert [("executor", None)] * 3 + [("job", "a"), ("job", "b"), ("job", "c")] == rows
    assert [("a",), ("b",), ("c",)] == columns(
        path, "SELECT key FROM sample WHERE metric = 'execution_time' ORDER BY time"
    )


def test_samples_of_any_key_are_written(tmp_path):
    """Samples of jobs without a population may have any argument as the key."""

    def setup(sim):
        sim.executor("a").schedule(sim.job("job", 1), ("a", 1))

    run(setup, 60, samples=True, database=tmp_path / "run")


def test_keys_with_the_same_text_are_written(tmp_path):
    """A UUID and its text are different keys."""
    key = uuid.UUID(int=5)

    def setup(sim):
        sim.population("all", [key, str(key)], period="1h")
        sim.executor("a")

    path = tmp_path / "run"
    run(setup, 60, database=path)
    assert 2 == len(read(path)["key_summary"])


def test_every_kind_of_key_is_written(tmp_path):
    """Keys may be numbers, texts, bytes and UUIDs."""
    key = uuid.UUID(int=5)

    def setup(sim):
        population = sim.population("all", [1, "1", b"1", key, -(2**63)], period="1h")
        sim.executor("a").schedule_many(sim.job("job", 1, population=population), list(population))

    path = tmp_path / "run"
    run(setup, 60, database=path)
    assert {1, "1", b"1", str(key), -(2**63)} == {row[1] for row in read(path)["key_summary"]}
    assert {1} == {row[4] for row in read(path)["key_summary"]}


# The end.


def test_until_done_ends_with_the_last_job():
    """With ``until_done`` a run ends with its last job, and otherwise after all days."""

    def setup(sim):
        sim.executor("a", rate=1, pacing=Pacing.ON_TIME).schedule_many(sim.job("job", 2.5), range(100))

    result = run(setup, DAY, until_done=True)
    assert (101.5, True, "finished", 120.0) == (
        pytest.approx(result.end),
        result.is_done,
        result.status,
        result.summary.seconds,
    )
    result = run(setup, DAY)
    assert (101.5, True, DAY) == (pytest.approx(result.end), result.is_done, result.summary.seconds)
    result = run(setup, 60, until_done=True)
    assert (False, 60.0) == (result.is_done, result.summary.seconds)
    assert 60 == pytest.approx(result.end, abs=1)


@pytest.mark.parametrize("case", ["cancelled", "run_timeout", "timeout"])
def test_until_done_does_not_wait_for_what_was_cancelled(case):
    """With ``until_done`` a run does not wait for the end of a cancelled job, or for an unused time limit."""

    def setup(sim):
        executor = sim.executor("a", pacing=Pacing.ON_TIME)
        if case == "cancelled":
            handle = executor.schedule(sim.job("job", 7200))
            sim.at(10, handle.cancel)
        elif case == "run_timeout":
            executor.schedule(sim.job("job", 10), run_timeout=7200)
        else:

            async def job():
                async with asyncio.timeout(7200):
                    await asyncio.sleep(10)

            executor.schedule(job)

    result = run(setup, DAY, until_done=True)
    assert (10.0, 60.0) == (result.end, result.summary.seconds)


@pytest.mark.parametrize(("seconds", "step"), [(DAY, 60), (120, 60), (100, 60), (20, 0.1)])
def test_the_end_is_when_something_has_happened_last(seconds, step):
    """The end of a run is the time of its last event, not the end of a step."""

    def setup(sim):
        sim.executor("a").schedule(sim.job("job", 1.25))

    assert 1.25 == run(setup, seconds, step=step).end


def test_days_need_not_be_a_multiple_of_the_step(tmp_path):
    """The last step is shorter if the days are not a multiple of the step."""

    def setup(sim):
        sim.arrive(Regular(1), sim.executor("a", pacing=Pacing.ON_TIME), sim.job("job", 0.5))

    path = tmp_path / "run"
    result = run(setup, 100, database=path)
    assert [(60.0, 61), (100.0, 40)] == columns(path, "SELECT time, started_jobs FROM step")
    assert (100.0, 101) == (result.summary.seconds, result.summary.executors["a"].started)


# Interrupted and resumed.


@pytest.mark.parametrize(("at", "samples"), [(60, True), (3600, False), (10_740, True)])
def test_a_run_that_was_told_to_stop_goes_on_as_if_it_had_not(tmp_path, each_step, at, samples, whole):
    """A stopped and resumed run writes the same rows as an uninterrupted one."""
    path = tmp_path / "run"
    result = simulate(Busy(), database=path, samples=samples, on_progress=stop_at(at))
    found = properties(path)
    assert ("interrupted", "interrupted", float(at)) == (result.status, found["status"], found["reached"])
    assert found["jobs"] == result.summary.jobs
    assert [] == columns(path, "SELECT * FROM step WHERE time > ?", at)
    told = []
    result = simulate(Busy(), database=path, samples=samples, resume=True, on_progress=told.append)
    assert ("finished", 10_800.0) == (result.status, result.summary.seconds)
    assert {True: at // 60, False: 180 - at // 60 + 1} == {
        value: sum(progress.is_replaying == value for progress in told) for value in (True, False)
    }
    assert whole(samples=samples) == read(path)


def test_a_run_is_interrupted_again_and_again(tmp_path, each_step, whole):
    """A resumed run may be interrupted again, also while it repeats its past, and keeps what was reached."""
    path = tmp_path / "run"
    simulate(Busy(), database=path, on_progress=stop_at(6000))
    for stop, reached in ((1200, 6000.0), (6060, 6060.0), (60, 6060.0), (9000, 9000.0)):
        assert "interrupted" == simulate(Busy(), database=path, resume=True, on_progress=stop_at(stop)).status
        assert reached == properties(path)["reached"]
    simulate(Busy(), database=path, resume=True)
    assert whole() == read(path)


def test_a_finished_run_goes_on_for_more_days(tmp_path):
    """A finished run resumed for more days is as a longer run would have been."""
    simulate(Busy(), days=0.125, database=tmp_path / "whole")
    path = tmp_path / "run"
    simulate(Busy(), days=0.0625, database=path)
    with pytest.raises(ValueError, match=r"covers 0\.0625 days already: give more days="):
        simulate(Busy(), days=0.0625, database=path, resume=True)
    simulate(Busy(), days=0.125, database=path, resume=True)
    assert read(tmp_path / "whole") == read(path)


def test_a_finished_run_goes_on_in_the_middle_of_a_step(tmp_path):
    """A run resumed in the middle of a step counts no job twice."""

    def setup(sim):
        sim.arrive(Regular(1), sim.executor("a"), sim.job("job", 1))

    path = tmp_path / "run"
    run(setup, 100, database=path)
    result = run(setup, 600, database=path, resume=True)
    assert [(result.summary.executors["a"].started,)] == columns(path, "SELECT sum(started_jobs) FROM step")


KILLED = """
import ratelimited_executor.simulation.runs as runs
runs._WRITE_SECONDS = 0.0

class Killed(Busy):
    name = "busy"

    def setup(self, sim):
        super().setup(sim)
        sim.at({at}, lambda: os.kill(os.getpid(), signal.SIGKILL))

simulate(Killed(), database={path!r}, samples=True)
"""


def test_a_run_that_was_killed_goes_on(tmp_path, whole):
    """A killed run is resumed from its last transaction, and its file can be read meanwhile."""
    path = tmp_path / "run"
    found = run_code(KILLED.format(at=9999, path=str(path)))
    assert -signal.SIGKILL == found.returncode, found.stderr
    assert ("running", 9960.0) == (properties(path)["status"], properties(path)["reached"])
    simulate(Busy(), database=path, samples=True, resume=True)
    assert whole(samples=True) == read(path)


def test_a_run_that_was_killed_in_its_first_step_goes_on(tmp_path, whole):
    """A run killed in its first step can be resumed."""
    path = tmp_path / "run"
    found = run_code(KILLED.format(at=10, path=str(path)))
    assert -signal.SIGKILL == found.returncode, found.stderr
    simulate(Busy(), database=path, samples=True, resume=True)
    assert whole(samples=True) == read(path)


class Interrupted(Busy):
    """The same scenario with a keyboard interrupt at a given time in its first run."""

    name = "busy"

    def __init__(self, at):
        super().__init__()
        self.at = at

    def setup(self, sim):
        super().setup(sim)
        sim.at(self.at, self.interrupt)

    def interrupt(self):
        if self.at:
            raise KeyboardInterrupt


def test_a_keyboard_interrupt_leaves_a_run_that_goes_on(tmp_path, whole):
    """A keyboard interrupt is raised, and the file has all complete steps, from which the run resumes."""
    path, scenario = tmp_path / "run", Interrupted(9999)
    with pytest.raises(KeyboardInterrupt):
        simulate(scenario, database=path, samples=True)
    found = properties(path)
    assert ("interrupted", 9960.0) == (found["status"], found["reached"])
    scenario.interrupt = lambda: None
    simulate(scenario, database=path, resume=True, samples=True)
    assert whole(samples=True) == read(path)


def test_a_keyboard_interrupt_while_a_step_is_measured_leaves_a_run_that_goes_on(tmp_path, monkeypatch, whole):
    """A keyboard interrupt while a step is measured leaves a run that can be resumed."""
    path, count = tmp_path / "run", 0
    take = Recorder._take_population

    def interrupted(*arguments, **options):
        nonlocal count
        count += 1
        if count == 50:
            raise KeyboardInterrupt
        take(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "_take_population", interrupted)
        with pytest.raises(KeyboardInterrupt):
            simulate(Busy(), database=path)
    simulate(Busy(), database=path, resume=True)
    assert whole() == read(path)


def test_sources_that_come_after_the_interruption_are_written(tmp_path, each_step):
    """Executors that the scenario makes after the interruption are written."""

    def setup(sim):
        sim.executor("a")
        sim.at(2000, lambda: sim.executor("late").schedule(sim.job("job", 1)))

    path = tmp_path / "run"
    run(setup, database=path, on_progress=stop_at(600))
    run(setup, database=path, resume=True)
    assert ["a", "late", "job"] == [row[2] for row in read(path)["source"]]


@pytest.mark.parametrize(
    ("scenario", "options", "words"),
    [
        (Busy(rate=0.5), {}, "parameters"),
        (Busy(), {"seed": 1}, "seed 0, and not 1"),
        (Busy(), {"step": 30}, "step 60.0, and not 30"),
        (Busy(), {"start": 5}, "start"),
        (Busy(), {"samples": True}, "is_sampled 0, and not 1"),
        (Made(lambda sim: None), {}, "scenario 'busy', and not 'made'"),
    ],
)
def test_another_run_is_not_resumed(tmp_path, each_step, scenario, options, words):
    """A run with other settings is not resumed: the difference is reported, and the file unchanged."""
    path = tmp_path / "run"
    simulate(Busy(), database=path, on_progress=stop_at(600))
    before = read(path)
    with pytest.raises(ValueError, match=words):
        simulate(scenario, days=0.25, database=path, resume=True, **options)
    assert before == read(path)


def changed(rate):
    def setup(sim):
        sim.arrive(Regular(rate), sim.executor("a"), sim.job("job", 1))

    return Made(setup)


def test_a_scenario_that_has_changed_is_not_resumed(tmp_path, each_step):
    """A changed scenario is not resumed, since its past differs."""
    path = tmp_path / "run"
    simulate(changed(1), days=0.1, database=path, on_progress=stop_at(1800))
    with pytest.raises(ValueError, match=r"the past could not be repeated: \d+ jobs instead of \d+"):
        simulate(changed(2), days=0.1, database=path, resume=True)


def test_a_scenario_that_has_changed_is_refused_again(tmp_path, each_step):
    """A changed scenario is refused repeatedly, and the unchanged one is then resumed."""
    path = tmp_path / "run"
    simulate(changed(1), days=0.1, database=path, on_progress=stop_at(1800))
    for _ in range(2):
        with pytest.raises(ValueError, match="the past could not be repeated"):
            simulate(changed(2), days=0.1, database=path, resume=True)
    simulate(changed(1), days=0.1, database=path, resume=True)
    simulate(changed(1), days=0.1, database=tmp_path / "whole")
    assert read(tmp_path / "whole") == read(path)


def test_a_scenario_that_has_changed_leaves_the_file_as_it_is(tmp_path, each_step):
    """A changed scenario leaves every row of the file as it was."""
    path = tmp_path / "run"
    simulate(changed(1), days=0.1, database=path, on_progress=stop_at(1800))
    before = read(path)
    with pytest.raises(ValueError, match="the past could not be repeated"):
        simulate(changed(2), days=0.1, database=path, resume=True)
    assert before == read(path)


# Bad input.


def nothing(sim):
    sim.executor("a")


def test_a_file_that_is_there_is_not_written(tmp_path):
    """An existing file or link is not overwritten."""
    path = tmp_path / "run"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="run already exists: give another name, resume it, or remove it first"):
        run(nothing, database=path)
    assert "mine" == path.read_text()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        run(nothing, database=str(link))
    other = tmp_path / "other"
    run(nothing, database=other)
    with pytest.raises(FileExistsError):
        run(nothing, database=other)


@pytest.mark.parametrize(
    "kind", ["none", "text", "empty", "directory", "another database", "another format", "no format"]
)
def test_a_file_that_is_no_run_is_not_resumed(tmp_path, kind):
    """A file that is not a run is not resumed, and is left unchanged."""
    path = tmp_path / "run"
    if kind == "text":
        path.write_text("mine" * 1000)
    elif kind == "empty":
        path.touch()
    elif kind == "directory":
        path.mkdir()
    elif kind != "none":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"CREATE TABLE {'mine' if kind == 'another database' else 'run'} (name, value)")
            if kind == "another format":
                connection.execute("INSERT INTO run VALUES ('format', 99)")
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(ValueError, match="run is not a database of a simulation of format 1"):
        run(nothing, database=path, resume=True)
    assert not is_run_database(path)
    assert before == (path.read_bytes() if path.is_file() else None)


def test_resuming_needs_a_file():
    """``resume`` without a database is refused."""
    with pytest.raises(ValueError, match="resume needs database="):
        run(nothing, resume=True)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"days": 0}, ValueError, "days must be"),
        ({"days": -1}, ValueError, "days must be"),
        ({"days": math.nan}, ValueError, "days must be"),
        ({"days": math.inf}, ValueError, "days must be"),
        ({"days": "1"}, TypeError, "days must be"),
        ({"days": True}, TypeError, "days must be"),
        ({"step": 0}, ValueError, "step must be"),
        ({"step": -60}, ValueError, "step must be"),
        ({"step": math.nan}, ValueError, "step must be"),
        ({"step": math.inf}, ValueError, "step must be"),
        ({"step": None}, TypeError, "step must be"),
        ({"step": b"60"}, TypeError, "step must be"),
        ({"step": "1x"}, ValueError, "step: a duration looks like"),
        ({"seed": 1.5}, TypeError, "seed must be"),
        ({"seed": None}, TypeError, "seed must be"),
        ({"seed": True}, TypeError, "seed must be"),
        ({"seed": "1"}, TypeError, "seed must be"),
        ({"start": math.nan}, ValueError, "start must be"),
        ({"start": math.inf}, ValueError, "start must be"),
        ({"start": "now"}, TypeError, "start must be"),
    ],
)
def test_arguments_out_of_range_are_refused(tmp_path, options, error, words):
    """Arguments out of range are refused by name, before a file exists."""
    with pytest.raises(error, match=words):
        simulate(Made(nothing), database=tmp_path / "run", **{"days": 1, **options})
    assert [] == list(tmp_path.iterdir())


def test_a_seed_of_any_size_will_do(tmp_path):
    """A huge seed works, or is refused before a file exists."""
    path = tmp_path / "run"
    try:
        run(nothing, 60, seed=2**70, database=path)
    except ValueError:
        assert not path.exists()
    else:
        assert is_run_database(path)


def test_a_scenario_whose_interval_cannot_be_leaves_no_file(tmp_path):
    """A scenario with a bad interval is refused, and leaves no file."""
    scenario = Made(nothing)
    scenario.interval = 0
    with pytest.raises(ValueError, match="interval must be"):
        simulate(scenario, days=1, database=tmp_path / "run")
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("days", [-1, math.inf, None, "x"])
def test_days_of_the_scenario_that_cannot_be_are_named(days):
    """Bad days of a scenario are refused with their value."""
    scenario = Made(nothing)
    scenario.days = days
    with pytest.raises((ValueError, TypeError), match=f"days must be .*got {days!r}"):
        simulate(scenario)


@pytest.mark.filterwarnings("ignore:coroutine .*begin.* was never awaited")
def test_a_running_loop_is_refused():
    """A run within a running loop is refused with a remedy."""

    async def main():
        with pytest.raises(RuntimeError, match="cannot run within a running event loop.*thread"):
            run(nothing)
        return await asyncio.to_thread(run, nothing)

    assert "finished" == asyncio.run(main()).status


def test_a_running_loop_is_refused_before_anything_is_made(tmp_path, recwarn):
    """A run refused within a running loop leaves neither a file nor a coroutine that was never awaited."""

    async def main():
        with pytest.raises(RuntimeError):
            run(nothing, database=tmp_path / "run")

    asyncio.run(main())
    assert [] == list(tmp_path.iterdir())
    assert [] == list(recwarn)


# Errors of the scenario.


@pytest.mark.parametrize("where", ["setup", "at", "job", "spawn", "progress"])
def test_a_run_that_fails_leaves_a_file_that_can_be_read(tmp_path, each_step, where):
    """A failed run raises the error, and leaves a readable file that records how far it came."""

    def fail(*_):
        raise KeyError("mine")

    async def spawned():
        await asyncio.sleep(2000)
        fail()

    def setup(sim):
        executor = sim.executor("a", pacing=Pacing.ON_TIME)
        sim.arrive(Regular(0.1), executor, sim.job("job", 1))
        if where == "setup":
            fail()
        elif where == "at":
            sim.at(2000, fail)
        elif where == "job":
            executor.schedule(fail, delay=2000)
        elif where == "spawn":
            sim.spawn(spawned())

    path = tmp_path / "run"
    with pytest.raises(KeyError, match="mine"):
        run(setup, database=path, on_progress=lambda it: where == "progress" and it.seconds >= 1980 and fail())
    if where == "setup":  # nothing has begun
        assert [] == list(tmp_path.iterdir())
        return
    found = properties(path)
    assert ("failed", 1980.0) == (found["status"], found["reached"])
    assert 33 == len(read(path)["step"])
    assert is_run_database(path)


def test_a_run_that_fails_closes_its_file(tmp_path, monkeypatch):
    """A failed run closes its file, and raises the first of several errors."""
    closed = []
    close = RunDatabase.close
    monkeypatch.setattr(RunDatabase, "close", lambda self: (closed.append(self), close(self)))

    def fail(key):
        raise KeyError(key)

    def setup(sim):
        sim.executor("a").schedule_many(sim.job("job", 10, then=fail), range(5))

    with pytest.raises(KeyError, match="0"):
        run(setup, database=tmp_path / "run")
    assert 1 == len(closed)


def test_time_that_passes_in_an_asynchronous_setup_is_measured(tmp_path):
    """Time that passes in an asynchronous setup is measured step by step."""

    async def setup(sim):
        executor = sim.executor("a", pacing=Pacing.ON_TIME)
        sim.arrive(Regular(0.1), executor, sim.job("job", 1))
        await asyncio.sleep(1800)

    path = tmp_path / "run"
    run(setup, database=path)
    assert 60 == len(read(path)["step"])


def test_warnings_of_the_library_are_events(tmp_path, caplog):
    """Warnings of the library are recorded as events, and not logged."""

    def setup(sim):
        executor = sim.executor("a", drain_timeout=10, max_concurrency=1)
        executor.schedule_many(sim.job("job", 100, failures=1.0), range(10))
        sim.at(300, lambda: executor.shutdown() and None)

    path = tmp_path / "run"
    run(setup, database=path)
    assert [] == caplog.messages
    [(time, text)] = read(path)["event"]
    assert time == pytest.approx(310, abs=1)
    assert text.startswith("warning: a: closed with")


# Progress and memory.


def test_progress_is_told_to_the_end(each_step):
    """Progress is reported from the first step to the last."""
    told = []
    result = run(lambda sim: sim.arrive(Regular(1), sim.executor("a"), sim.job("job", 1)), on_progress=told.append)
    seconds = [progress.seconds for progress in told]
    assert sorted(seconds) == seconds
    assert (60.0, HOUR, HOUR) == (seconds[0], seconds[-1], told[-1].total)
    assert result.summary.jobs == told[-1].jobs
    assert not any(progress.is_replaying for progress in told)
    assert all(progress.speed > 0 for progress in told)
    assert result.speed > 0


def test_any_other_answer_than_true_goes_on():
    """Only ``True`` from ``on_progress`` stops a run."""
    assert "finished" == run(nothing, on_progress=lambda _: 1).status


def test_memory_does_not_grow_with_the_length_of_a_run(tmp_path, each_step, monkeypatch):
    """A run of two days needs no more memory at its end than one of half a day."""

    def setup(sim):
        population = sim.population("keys", 30, period="4h")
        job = sim.job("sync", Sample([10, 20]), failures=0.1, population=population)
        executor = sim.executor("a", rate=1, max_concurrency=9, pacing=Pacing.ON_TIME)
        sim.arrive(Regular(1 / 90), executor, sim.job("other", 5, failures=0.1), expires=60)
        sim.every("1h", lambda: executor.schedule_many(job, range(30), over=3000))
        sim.every("10m", lambda: executor.schedule(job, 1, run_timeout=1000))

    def held(days):
        found = []

        def look(progress):
            if progress.seconds == days * DAY:
                gc.collect()
                found.append(tracemalloc.get_traced_memory()[0])

        tracemalloc.start()
        run(setup, days * DAY, step=600, database=tmp_path / f"{days}", on_progress=look)
        tracemalloc.stop()
        return found[0]

    monkeypatch.setattr("ratelimited_executor.simulation.meters.GATHER_COUNT", 100)  # else it takes days to fill up
    held(0.25)  # allocated once
    short, long = held(0.5), held(2)
    assert long < 1.1 * short, (short, long)


# Independence of the step.


@pytest.mark.parametrize("step", [7.0, 60.0, 900.0, DAY / 4])
def test_means_and_evenness_do_not_hang_on_the_step(step):
    """Means and evenness do not depend on the step, also for events at its ends."""

    def setup(sim):
        sim.arrive(Regular(0.1), sim.executor("a", pacing=Pacing.ON_TIME), sim.job("job", 2.5))

    summary = run(setup, DAY / 4, step=step).summary.executors["a"]
    assert (0.25, 1.0) == (pytest.approx(summary.executing_mean, abs=1e-3), pytest.approx(summary.evenness, abs=1e-3))
    assert summary.queue_depth_mean < 0.2


def test_running_time_is_exact():
    """Running times are exact for lasting jobs, coroutines, cancelled and unfinished ones."""

    def setup(sim):
        executor = sim.executor("a", pacing=Pacing.ON_TIME)
        executor.schedule_many(sim.job("job", 10), range(5))
        executor.schedule(asyncio.sleep, 20)
        handles = [executor.schedule(sim.job("long", 1e6)), executor.schedule(asyncio.sleep, 1e6)]
        sim.at(30, handles[0].cancel)
        sim.at(40, handles[1].cancel)
        executor.schedule(sim.job("late", 1e6), delay=HOUR - 7)
        executor.schedule(asyncio.sleep, 1e6, delay=HOUR - 8)

    summary = run(setup, HOUR).summary
    assert summary.total.executing_mean * HOUR == pytest.approx(50 + 20 + 30 + 40 + 7 + 8)


def test_what_setup_enqueues_is_written_at_once(tmp_path):
    """What the setup enqueues is written at once, however late it is due."""
    path = tmp_path / "run"
    run(
        lambda sim: sim.executor("a").schedule_many(sim.job("job", 1), range(9), delay=5 * HOUR) and None,
        DAY,
        database=path,
    )
    assert (60.0, 9) == columns(path, "SELECT time, enqueued_jobs FROM step ORDER BY time")[0]


@pytest.mark.parametrize("how", ["rate", "max_concurrency"])
def test_queue_of_an_executor_that_is_halted_in_mid_run(tmp_path, how):
    """Jobs that fall due while an executor is halted are in the queue in each step."""

    def setup(sim):
        executor = sim.executor("a", pacing=Pacing.ON_TIME)
        executor.schedule_many(sim.job("job", 1), range(3), delays=[1800, 3600, 5400])
        before = getattr(executor, how)
        sim.at(600, lambda: setattr(executor, how, 0))
        sim.at(9000, lambda: setattr(executor, how, before))

    path = tmp_path / "run"
    summary = run(setup, 10_000, database=path).summary.executors["a"]
    assert summary.queue_depth_mean * 10_000 == pytest.approx(7200 + 5400 + 3600, abs=200)
    assert 118 < len(read(path)["step"]) < 130


def test_ages_are_looked_at_each_hour(tmp_path):
    """Ages of keys are recorded each hour, also while nothing happens."""

    def setup(sim):
        population = sim.population("all", 10, period="1h")
        sim.executor("a").schedule_many(sim.job("job", 1, population=population), range(10), delay=11 * HOUR)

    path = tmp_path / "run"
    run(setup, DAY / 2, database=path)
    assert [(12, 120)] == columns(
        path, "SELECT count(*), sum(count) FROM quantiles WHERE metric = 'time_since_last_sync'"
    )


def test_the_end_is_that_of_the_last_job():
    """The end of a run is that of its last job, and not of an unused timeout or a mark."""

    def setup(sim):
        executor = sim.executor("a")
        executor.schedule(sim.job("job", 1), run_timeout=50)
        handle = executor.schedule(sim.job("long", 45))
        sim.at(2, handle.cancel)
        population = sim.population("all", 1, period="1h", group=str)
        sim.outage(population, "0", 20, 40)

    assert 2.0 == run(setup, HOUR, until_done=True).end


@pytest.mark.parametrize("step", [1.0, 60.0, 600.0])
@pytest.mark.parametrize("kind", ["a duration", "a coroutine"])
def test_the_end_does_not_hang_on_what_happens_later(step, kind):
    """The end does not depend on later calls of the scenario, unused timers and remembered keys."""

    def setup(sim):
        executor = sim.executor("a", rate=10, key_rate="1/h", pacing=Pacing.ON_TIME)
        if kind == "a duration":
            executor.schedule(sim.job("job", 1), 1, key="a")
        else:
            executor.schedule(asyncio.sleep, 1, key="a")
        sim.at(30, lambda: None)
        sim.spawn(asyncio.sleep(45))
        executor.schedule(int, delay=40).cancel()

    assert 1.0 == run(setup, HOUR, until_done=True, step=step).end
