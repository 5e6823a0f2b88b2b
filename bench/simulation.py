"""The simulator beside SimPy, which is made for nothing but simulations: the same model on both, in the same run.

The model: each of many keys gets one job in each cycle of eight hours, at its own time in the cycle. There is a number
of workers, and durations are drawn, log-normal or constant. In each simulated minute both sides note the jobs done, the
queue depth, the running jobs, and the quantiles of start delays and durations, and write them to SQLite. Both draw from
the same generator in the same order, so that their counts must be equal to the last job, which is checked.

SimPy is used as in its documentation, with a process for each job that requests a worker, waits and releases it, and
with everything that makes this cheap: methods looked up once, one process that begins the jobs at their times,
durations drawn by an iterator in C, lists that are sorted once a minute. Beside it there is a form that is faster, and
that few people write: callbacks instead of processes.
"""

from __future__ import annotations

import asyncio
import gc
import math
import random
import sqlite3
import tempfile
import time
from contextlib import closing
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

from bench.harness import Chart, Figure, Series, Table, Target, fresh, has_module, ratio
from bench.resident import peak_resident_bytes
from ratelimited_executor import (
    Pacing,
    RateLimitedExecutor,  # noqa: F401  # else the first executor imports it, while the clock runs
)
from ratelimited_executor.simulation import Constant, LogNormal, Scenario, simulate
from ratelimited_executor.simulation.strategies import Slots
from ratelimited_executor.spread import CycleSlots, offset, reciprocal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from fractions import Fraction

    from bench.harness import Options
    from ratelimited_executor.simulation import Distribution, Job, Population, Simulation

NAME = "simulation"
DESCRIPTION = "a simulated day of 185,700 jobs beside SimPy, and what a job costs by the length of the run"
ROUNDS = 3
SEED = 0
CYCLE = "8h"
CYCLES_A_DAY = 3
KEYS, QUICK_KEYS = 61_900, 6_000  # 1.3 million jobs in a week
SMALL_KEYS, SMALL_DAYS = 1_905, 7.0  # 40 thousand jobs in a week
DAYS, QUICK_DAYS = 1.0, 0.02  # --scale 7 makes a week of it
GROWTH_DAYS, QUICK_GROWTH_DAYS = (1.0, 2.0, 4.0, 8.0), (0.02, 0.04)
WORKERS, QUICK_WORKERS = 20, 2  # of which 43 % are busy
FEW_WORKERS, QUICK_FEW_WORKERS = 9, 1  # of which 96 % are busy, so that jobs wait: 18 on average
MEAN_SECONDS, P90_SECONDS = 4.0, 8.0
STEP_SECONDS = 60.0
SMALL_SECONDS_MAX = 1.0
GROWTH_MAX = 1.25
EXECUTING_DIFFERENCE_MAX = 0.01
_MB = 1e6
_DAY_SECONDS = 86_400.0
_ROW_COUNT_MAX = 20_000  # rows in a transaction, as in our simulator

OURS, THEIRS = "ours, durations", "SimPy, a process a job"
OURS_SAMPLED, THEIRS_SAMPLED = f"{OURS}, all samples", f"{THEIRS}, all samples"
OURS_COROUTINES, OURS_EVERY = "ours, real coroutines", "ours, executor.every()"
THEIR_CALLBACKS = "SimPy, callbacks"
_SIDES = (OURS, OURS_SAMPLED, OURS_COROUTINES, OURS_EVERY, THEIRS, THEIRS_SAMPLED, THEIR_CALLBACKS)
_COLUMNS = ("jobs", "wall", "CPU a job", "simulated s/s", "jobs/s", "rows", "peak memory", "against SimPy")


def run(options: Options) -> list[Table]:
    """Measure the sides in turns, each round in a process of its own."""
    keys = QUICK_KEYS if options.quick else KEYS
    days = QUICK_DAYS if options.quick else DAYS * options.scale
    workers = QUICK_WORKERS if options.quick else WORKERS
    few = QUICK_FEW_WORKERS if options.quick else FEW_WORKERS
    model: dict[str, Any] = {"keys": keys, "days": days, "workers": workers, "is_constant": False}
    jobs = f"{keys * CYCLES_A_DAY * days:,.0f} jobs in {_span(days)}"
    sides = (OURS, OURS_COROUTINES, THEIRS, THEIR_CALLBACKS)
    tables = [
        _table(options, f"{jobs}, log-normal durations", _SIDES, model),
        _table(options, f"{jobs}, a constant duration", sides, {**model, "is_constant": True}),
        _table(options, f"{jobs}, workers: {few}, so that jobs wait", sides, {**model, "workers": few}),
        _small(options, model),
        _growth(options, model),
    ]
    if not has_module("simpy"):
        tables[0].notes.append("SimPy: skipped, as simpy is not installed")
    tables[0].notes += [
        f"against SimPy: CPU time of {THEIRS}, with all samples or without, over that of the row; above 1 is faster",
        "real coroutines have no durations that anybody could note, and so a row a minute less",
        "executor.every() is the shipped strategy `slots` with one kind of jobs; it notes what becomes of each key",
    ]
    return tables


def _table(options: Options, title: str, sides: Sequence[str], model: Mapping[str, Any]) -> Table:
    table = Table(title, _COLUMNS)
    rounds = _rounds(options, title, sides, model, table)
    for side, measured in rounds.items():
        table.add(side, _row(measured, rounds.get(_peer_of(side)), model["days"]))
    bars = [Figure([m["cpu_us"] for m in measured], "us").median for measured in rounds.values()]
    table.charts.append(Chart(title, "", "CPU us a job", [Series("CPU a job", list(rounds), bars)], kind="bar"))
    return table


def _small(options: Options, model: Mapping[str, Any]) -> Table:
    """Measure a short run, as one waits for it at the terminal."""
    keys, days = (60, QUICK_DAYS) if options.quick else (round(SMALL_KEYS * min(1.0, options.scale)), SMALL_DAYS)
    title = f"{keys * CYCLES_A_DAY * days:,.0f} jobs of {keys:,} keys in {_span(days)}"
    table = Table(title, _COLUMNS)
    rounds = _rounds(options, title, (OURS, THEIRS), {**model, "keys": keys, "days": days}, table)
    target = Target(f"<= {SMALL_SECONDS_MAX:g} s", SMALL_SECONDS_MAX)
    for side, measured in rounds.items():
        table.add(side, _row(measured, rounds.get(THEIRS), days, target=target if side == OURS else None))
    return table


def _growth(options: Options, model: Mapping[str, Any]) -> Table:
    """Measure runs of growing length."""
    table = Table(
        "What a job costs, by the length of the run", ["CPU a job", "peak memory", "CPU growth", "memory growth"]
    )
    lengths = QUICK_GROWTH_DAYS if options.quick else tuple(days * min(1.0, options.scale) for days in GROWTH_DAYS)
    cells: dict[str, dict[float, list[dict[str, float]]]] = {}
    for days in lengths:
        for side, measured in _rounds(options, _span(days), (OURS, THEIRS), {**model, "days": days}, table).items():
            cells.setdefault(side, {})[days] = measured
    for side, by_days in cells.items():
        target = Target(f"flat: <= {GROWTH_MAX:g} x", GROWTH_MAX) if side == OURS else None
        first = by_days[lengths[0]]
        for days, measured in by_days.items():
            grown = {
                name: Figure([b[key] / a[key] for a, b in zip(first, measured, strict=True)], "x", target=target)
                for name, key in (("CPU growth", "cpu_us"), ("memory growth", "peak"))
            }
            cost, peak = [m["cpu_us"] for m in measured], [m["peak"] / _MB for m in measured]
            figures = {"CPU a job": Figure(cost, "us"), "peak memory": Figure(peak, "MB"), **grown}
            table.add(f"{side}, {_span(days)}", figures)
    for key, label, scale in (("cpu_us", "CPU us a job", 1.0), ("peak", "peak MB", _MB)):
        series = [
            Series(
                side, list(by_days), [Figure([m[key] for m in each], "").median / scale for each in by_days.values()]
            )
            for side, by_days in cells.items()
        ]
        table.charts.append(Chart(f"{label} by the length of the run", "simulated days", label, series, log="x"))
    return table


def _rounds(
    options: Options, label: str, sides: Sequence[str], model: Mapping[str, Any], table: Table
) -> dict[str, list[dict[str, float]]]:
    """Measure sides in turns, and check that all have the same counts."""
    can_compare = has_module("simpy")
    rounds = options.in_turns(
        {
            side: partial(fresh, "bench.simulation:measure", side=side, **model)
            for side in sides
            if can_compare or not side.startswith("SimPy")
        },
        rounds=options.rounds(ROUNDS),
        warm_up=0,
        label=label,
    )
    expected = rounds[THEIRS if can_compare else OURS][0]
    for side, measured in rounds.items():
        for each in measured:
            table.check("jobs started too many or too few", int(abs(each["started"] - expected["started"])))
            if side == OURS_EVERY:  # slots draw by key: other durations of the same distribution
                continue
            table.check("jobs done too many or too few", int(abs(each["done"] - expected["done"])))
            for key, name in (("executing", "jobs that run"), ("depth", "jobs that wait")):
                is_other = abs(each[key] - expected[key]) > EXECUTING_DIFFERENCE_MAX * expected[key]
                table.check(f"means of {name} that differ by more than 1 %", int(is_other))
    return rounds


def _span(days: float) -> str:
    return "1 simulated day" if days == 1 else f"{days:g} simulated days"


def _peer_of(side: str) -> str:
    return THEIRS_SAMPLED if side in (OURS_SAMPLED, THEIRS_SAMPLED) else THEIRS


def _row(
    measured: Sequence[Mapping[str, float]],
    theirs: Sequence[Mapping[str, float]] | None,
    days: float,
    *,
    target: Target | None = None,
) -> dict[str, Figure | str]:
    cpu = [m["cpu_us"] for m in measured]
    speeds = [days * _DAY_SECONDS / m["wall"] for m in measured]
    row: dict[str, Figure | str] = {
        "jobs": f"{measured[0]['done']:,}",
        "wall": Figure([m["wall"] for m in measured], "s", target=target),
        "CPU a job": Figure(cpu, "us"),
        "simulated s/s": Figure(speeds, "", smaller_is_better=False),
        "jobs/s": Figure([m["done"] / m["wall"] for m in measured], "", smaller_is_better=False),
        "rows": f"{measured[0]['rows']:,}",
        "peak memory": Figure([m["peak"] / _MB for m in measured], "MB"),
    }
    if theirs is not None:
        row["against SimPy"] = ratio([m["cpu_us"] for m in theirs], cpu)
    return row


# In a process of its own.


def measure(*, side: str, keys: int, days: float, workers: int, is_constant: bool) -> dict[str, float]:
    """Simulate a number of days; return what that cost, and what was counted.

    The times of the keys in the cycle exist before the clock starts, except for ``executor.every()``, which computes
    them itself. Setting up, measuring and writing the file count; imports do not.
    """
    duration: Distribution = Constant(MEAN_SECONDS) if is_constant else LogNormal(mean=MEAN_SECONDS, p90=P90_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.sqlite")
        if side.startswith("SimPy"):
            simulation = _Theirs(side, keys, days, workers, duration, path)
            measured = simulation.run
        else:
            scenario = _scenario(side, keys, workers, duration)
            measured = partial(_ours, scenario, days, path, keeps_samples=side == OURS_SAMPLED)
        gc.collect()
        begin, cpu = time.perf_counter(), time.process_time()
        counts = measured()
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    cpu_us = cpu * 1e6 / max(1, counts["done"])
    return {**counts, "wall": wall, "cpu_us": cpu_us, "peak": peak_resident_bytes()}


def _ours(scenario: Scenario, days: float, path: Path, *, keeps_samples: bool) -> dict[str, float]:
    result = simulate(scenario, days=days, seed=SEED, step=STEP_SECONDS, samples=keeps_samples, database=path)
    found = result.summary.executors["workers"]
    executing = depth = 0.0  # averages over the ends of steps, as on SimPy's side
    with closing(sqlite3.connect(path)) as connection:
        for end, running, waiting in connection.execute("SELECT time, executing_jobs, queue_depth FROM step"):
            seconds = end - STEP_SECONDS * (math.ceil(end / STEP_SECONDS) - 1)
            executing += running * seconds
            depth += waiting * seconds
    return {
        "started": found.started,
        "done": found.done,
        "executing": executing / (days * _DAY_SECONDS),
        "depth": depth / (days * _DAY_SECONDS),
        "rows": result.rows,
    }


def _scenario(side: str, keys: int, workers: int, duration: Distribution) -> Scenario:
    if side == OURS_EVERY:
        assert isinstance(duration, LogNormal), duration
        rest: dict[str, Any] = {"outage_day": 0, "locked_out": 0.0, "jumbo": 0.0, "failures": 0.0}
        return _OneKind(accounts=keys, workers=workers, cycle=CYCLE, mean=MEAN_SECONDS, p90=P90_SECONDS, **rest)
    return _Cycle(keys, workers, duration, is_real=side == OURS_COROUTINES)


class _OneKind(Slots):
    """The shipped strategy with one kind of jobs instead of two."""

    def kinds(self, sim: Simulation, accounts: Population) -> Iterable[tuple[str, Job, Fraction]]:
        yield "sync", self.sync_job(sim, accounts), reciprocal(0, of=1)


class _Cycle(Scenario):
    """One job for each key in a cycle, at its own time; the keys of a slot are scheduled when the slot begins.

    Args:
        keys: how many keys there are.
        workers: how many jobs run at once.
        duration: the distribution of the durations of jobs.
        is_real: whether a job is a coroutine that sleeps instead of a duration.
    """

    interval: ClassVar[float] = 60.0  # as in the shipped strategies; it changes only the speed

    def __init__(self, keys: int, workers: int, duration: Distribution, *, is_real: bool) -> None:
        self._workers = workers
        self._duration = duration
        self._is_real = is_real
        self._slots = slots = CycleSlots(CYCLE)
        self._keys: list[list[int]] = [[] for _ in range(slots.count)]
        self._delays: list[list[float]] = [[] for _ in range(slots.count)]
        for key in range(keys):
            slot, when = slots.slot_of(key), offset(key, CYCLE)
            self._keys[slot].append(key)
            self._delays[slot].append(when - slot * slots.slot_seconds)

    def setup(self, sim: Simulation) -> None:
        executor = sim.executor("workers", max_concurrency=self._workers, pacing=Pacing.ON_TIME)
        job = _sleeper(self._duration) if self._is_real else sim.job("job", self._duration)
        turn = -1

        def hand_over() -> None:
            nonlocal turn
            turn = (turn + 1) % self._slots.count
            executor.schedule_many(job, self._keys[turn], delays=self._delays[turn])

        sim.every(self._slots.slot_seconds, hand_over)


def _sleeper(duration: Distribution) -> Callable[[int], Any]:
    draw, chance = duration.draw, _chance()

    async def job(_: int) -> None:
        seconds = draw(chance)
        chance.random()  # whether it fails, as for a kind of job
        await asyncio.sleep(seconds)

    return job


class _Theirs:
    """The same model in SimPy.

    Args:
        side: the form in which it is written.
        keys: how many keys there are.
        days: how many days are simulated.
        workers: how many jobs run at once.
        duration: the distribution of the durations of jobs.
        path: the path of the database.
    """

    def __init__(self, side: str, keys: int, days: float, workers: int, duration: Distribution, path: Path) -> None:
        import simpy  # noqa: PLC0415  # an extra, imported on use

        self._env: Any = simpy.Environment()
        self._workers: Any = simpy.Resource(self._env, capacity=workers)
        self._seconds = days * _DAY_SECONDS
        self._cycle_seconds = float(CycleSlots(CYCLE).seconds)
        self._times = sorted((offset(key, CYCLE), key) for key in range(keys))
        self._draws = _draws(duration)
        self._done = self._started = 0
        self._delays: list[float] = []
        self._durations: list[float] = []
        self._executing_seconds = self._depth_seconds = self._last = 0.0
        self._done_before = 0
        self._steps: list[tuple[Any, ...]] = []
        self._quantiles: list[tuple[Any, ...]] = []
        self._samples: list[tuple[Any, ...]] = []
        self._row_count = 0
        self._path = path
        self._feed = {
            THEIRS: self._begin_processes,
            THEIRS_SAMPLED: self._begin_sampled_processes,
            THEIR_CALLBACKS: self._begin_callbacks,
        }[side]

    def run(self) -> dict[str, float]:
        """Simulate, and return what was counted."""
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        self._connection.executescript(_SCHEMA)
        self._env.process(self._feed())
        self._env.process(self._measure())
        self._env.run(until=self._seconds)
        self._take(self._seconds)
        self._write()
        self._connection.close()
        return {
            "started": self._started,
            "done": self._done,
            "executing": self._executing_seconds / self._seconds,
            "depth": self._depth_seconds / self._seconds,
            "rows": self._row_count,
        }

    # The forms: each is the process that begins the jobs at their times. `env._now` saves a call of `now`.

    def _begin_processes(self) -> Generator[Any, Any, None]:
        env, timeout = self._env, self._env.timeout
        request, release, draws = self._workers.request, self._workers.release, self._draws
        add_delay, add_duration = self._delays.append, self._durations.append

        def job(due: float, _: int) -> Generator[Any, Any, None]:
            worker = request()
            yield worker
            add_delay(env._now - due)
            seconds = next(draws)
            add_duration(seconds)
            yield timeout(seconds)
            release(worker)
            self._done += 1

        return self._begin_each(job)

    def _begin_sampled_processes(self) -> Generator[Any, Any, None]:
        env, timeout = self._env, self._env.timeout
        request, release, draws = self._workers.request, self._workers.release, self._draws
        add_delay, add_duration, add_sample = self._delays.append, self._durations.append, self._samples.append

        def job(due: float, key: int) -> Generator[Any, Any, None]:
            worker = request()
            yield worker
            now = env._now
            add_delay(now - due)
            seconds = next(draws)
            add_duration(seconds)
            add_sample((now, 1, "start_delay", key, now - due))
            add_sample((now, 2, "execution_time", key, seconds))
            yield timeout(seconds)
            release(worker)
            self._done += 1

        return self._begin_each(job)

    def _begin_each(self, job: Callable[[float, int], Generator[Any, Any, None]]) -> Generator[Any, Any, None]:
        env, timeout, process, cycle_begin = self._env, self._env.timeout, self._env.process, 0.0
        while True:
            for when, key in self._times:
                due = cycle_begin + when
                yield timeout(due - env._now)
                process(job(due, key))
            cycle_begin += self._cycle_seconds

    def _begin_callbacks(self) -> Generator[Any, Any, None]:
        env, timeout, cycle_begin = self._env, self._env.timeout, 0.0
        request, release, draws = self._workers.request, self._workers.release, self._draws
        add_delay, add_duration = self._delays.append, self._durations.append

        def granted(worker: Any) -> None:
            add_delay(env._now - worker.due)
            seconds = next(draws)
            add_duration(seconds)
            timeout(seconds, worker).callbacks.append(ended)

        def ended(timer: Any) -> None:
            release(timer._value)
            self._done += 1

        while True:
            for when, _ in self._times:
                due = cycle_begin + when
                yield timeout(due - env._now)
                worker = request()
                worker.due = due
                worker.callbacks.append(granted)
            cycle_begin += self._cycle_seconds

    # Measuring.

    def _measure(self) -> Generator[Any, Any, None]:
        env = self._env
        while True:
            yield env.timeout(STEP_SECONDS)
            self._take(env.now)
            if len(self._steps) + len(self._quantiles) + len(self._samples) >= _ROW_COUNT_MAX:
                self._write()

    def _take(self, now: float) -> None:
        """End a step: write down its counts and quantiles."""
        depth, executing = len(self._workers.queue), self._workers.count
        started = len(self._delays)
        self._steps.append((now, 1, started, self._done - self._done_before, executing, depth))
        self._started += started
        self._done_before = self._done
        self._executing_seconds += executing * (now - self._last)
        self._depth_seconds += depth * (now - self._last)
        self._last = now
        for source, metric, values in ((1, "start_delay", self._delays), (2, "execution_time", self._durations)):
            if values:
                values.sort()
                count = len(values)
                middle, p90, p99 = (values[(part * count - 1) // 100] for part in (50, 90, 99))
                mean = math.fsum(values) / count
                row = (now, source, metric, count, mean, values[0], middle, p90, p99, values[-1])
                self._quantiles.append(row)
                values.clear()

    def _write(self) -> None:
        connection = self._connection
        connection.execute("BEGIN")
        for table, rows in (("step", self._steps), ("quantiles", self._quantiles), ("sample", self._samples)):
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608  # names of our own
                self._row_count += len(rows)
                rows.clear()
        connection.execute("COMMIT")


_SCHEMA = """
PRAGMA synchronous = OFF;
PRAGMA journal_mode = WAL;
CREATE TABLE step (time REAL, source INTEGER, started_jobs INTEGER, done_jobs INTEGER, executing_jobs INTEGER,
    queue_depth INTEGER);
CREATE TABLE quantiles (time REAL, source INTEGER, metric TEXT, count INTEGER, mean REAL, least REAL, p50 REAL,
    p90 REAL, p99 REAL, most REAL);
CREATE TABLE sample (time REAL, source INTEGER, metric TEXT, key, value REAL);
"""


def _draws(duration: Distribution) -> Iterator[float]:
    """Yield durations without end: the same as ours draws, without a Python call for each."""
    if isinstance(duration, LogNormal):
        normal = NormalDist(math.log(duration.mean) - duration.sigma**2 / 2, duration.sigma)
        every_second = islice(iter(_chance().random, 0.0), 0, None, 2)  # the others say whether a job fails
        return map(math.exp, map(normal.inv_cdf, every_second))
    return repeat(duration.mean)


def _chance() -> random.Random:
    """Return the stream of random numbers of the kind of job, after what it has drawn for itself."""
    chance = random.Random(f"{SEED} job job 1")
    chance.random()
    chance.getrandbits(32)
    return chance
