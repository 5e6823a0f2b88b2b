"""Measures a simulation step by step, and writes the measurements to its database.

Counts are read from the executors at the end of each step, and cost the jobs nothing. Values are collected in lists
that are emptied at each step, so memory does not grow with the length of the run.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor.simulation.accounts import Account, Tally, window_of_evenness
from ratelimited_executor.simulation.database import as_json
from ratelimited_executor.simulation.levels import GaugeRecord, ResourceUse, amount_a_second
from ratelimited_executor.simulation.meters import new_histogram
from ratelimited_executor.simulation.summary import PopulationSummary, Quantiles, Summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratelimited_executor.simulation.database import RunDatabase
    from ratelimited_executor.simulation.simulation import ArrivalSource, Simulation
    from ratelimited_executor.simulation.summary import ExecutorSummary, JobSummary

__all__ = ["Recorder"]

_AGE_SECONDS: Final = 3600.0  # between two measurements of the ages of all keys
_SYNCS: Final = attrgetter("syncs")


class Recorder:
    """Measures a simulation.

    Args:
        simulation: the simulation to measure.
        database: the database of the run.
        step: seconds over which values are summed up.
        keeps_samples: True if every single value is written.
        writes_from: seconds since the start before which nothing is written, because the database already has it.

    Attributes:
        accounts: the counts of each executor.
        total: the counts of all executors together.
    """

    def __init__(
        self,
        simulation: Simulation,
        database: RunDatabase,
        *,
        step: float,
        keeps_samples: bool,
        writes_from: float = -math.inf,
    ) -> None:
        self._simulation = simulation
        self._database = database
        self._keeps_samples = keeps_samples
        self._writes_from = writes_from
        self._step = step
        self.accounts: dict[ArrivalSource, Account] = {}
        self.total = Account()
        self._begin = 0.0  # seconds since the start from which on all is measured: the end of the warm-up
        self._running_before: dict[ArrivalSource, float] = {}  # running time of the executors in the warm-up
        self._counters: Counter[tuple[str, str]] = Counter()  # of the whole run, by population and metric
        self._levels: dict[tuple[int, str], float] = {}  # the last value of each, by source and metric
        self._gauges: defaultdict[str, GaugeRecord] = defaultdict(GaugeRecord)
        self._resources: defaultdict[tuple[ArrivalSource, str], ResourceUse] = defaultdict(ResourceUse)
        self._used: Counter[tuple[ArrivalSource, str]] = Counter()  # of the whole run so far
        self._time = 0.0
        self._next_age = _AGE_SECONDS
        self._window_seconds = window_of_evenness(step)
        self._next_window = self._window_seconds
        simulation._on_source = self._add_source
        for source in simulation.sources:
            self._add_source(source)

    @property
    def is_idle(self) -> bool:
        """True if no job runs, no due job waits, and none can fall due unnoticed."""
        for source in self.accounts:
            observed = source.observer.observed
            _, running, waiting = observed.counts()
            if running or observed.ready_count or (waiting and observed.is_stopped):  # it is not woken for due jobs
                return False
        return True

    @property
    def is_done(self) -> bool:
        """True if no job runs and no job waits, due or not."""
        for source in self.accounts:
            observed = source.observer.observed
            _, running, waiting = observed.counts()
            if running or waiting or observed.is_drawing:
                return False
        return True

    @property
    def ended_at(self) -> float:
        """Loop time at which the last job that takes time ended."""
        return max((source.observer.ended_at for source in self.accounts), default=-math.inf)

    def jobs(self) -> int:
        """Count the jobs that had ended by the end of the last step."""
        return sum(self.total.tally[3:])

    @property
    def next_age(self) -> float:
        """The time of the next measurement of the ages of all keys; infinity without populations."""
        has_keys = any(source.kind == "population" for source in self._simulation.sources)
        return self._next_age if has_keys else math.inf

    def look(self, seconds: float) -> None:
        """Sample the number of due jobs and held permits now, for a number of seconds."""
        now = self._simulation.now
        total_depth = total_holding = 0
        for source, account in self.accounts.items():
            observed = source.observer.observed
            depth, holding = observed.due_count(now), observed.held_count
            account.add_look(depth=depth, holding=holding, seconds=seconds)
            total_depth += depth
            total_holding += holding
        self.total.add_look(depth=total_depth, holding=total_holding, seconds=seconds)

    def take(self, time: float) -> None:
        """End a step now; ``time`` is the current time in seconds since the start."""
        is_written = time > self._writes_from
        self._take_executors(time, is_written=is_written)
        if time >= self._next_age:
            self._next_age = (time // _AGE_SECONDS + 1) * _AGE_SECONDS
            self._measure_ages(time, is_written=is_written)
        self._take_gauges(time, is_written=is_written)
        self.end_step(time)
        add = self._database.add
        for source in self._simulation.sources:
            meters = source.meters
            if source.kind == "population":
                meters["sync_delay"].extend_by_excess(meters["sync_interval"], source.subject.period)
                self._take_population(source, time, is_written=is_written)
            elif source.kind == "job":
                source.subject._waits.end_step(time)
            for meter in meters.values():
                quantiles = meter.take()
                if quantiles is not None and is_written:
                    add("quantiles", (time, source.number, meter.metric, *quantiles))

    def end_step(self, time: float) -> None:
        """End a step at a time: a window for the evenness may have passed."""
        if time >= self._next_window:
            windows = int((time - self._next_window) // self._window_seconds) + 1
            self._next_window += windows * self._window_seconds
            for account in (*self.accounts.values(), self.total):
                account.end_windows(windows)
        self._time = time

    def check(self) -> None:
        """Refuse an objective whose period is shorter than a step: it could not be judged.

        Raises:
            ValueError: names the kind of job.
        """
        for source in self._simulation.sources:
            if source.kind == "job" and source.subject._waits.least_period < self._step:
                raise ValueError(
                    f"objectives of {source.name}: each must be at least a step, {format_duration(self._step)}, got "
                    f"{format_duration(source.subject._waits.least_period)}: give a shorter step"
                )

    def forget(self) -> None:
        """Forget what was measured so far, at the end of a step: it was a warm-up. What is written stays."""
        self._begin = self._time
        self._counters.clear()
        self._gauges.clear()
        self._resources.clear()
        self.accounts = {source: account.after(self._time) for source, account in self.accounts.items()}
        self.total = self.total.after(self._time)
        for source in self._simulation.sources:
            for meter in source.meters.values():
                meter.forget()
            if source.kind == "job":
                source.subject._waits.forget()
            if source.kind == "executor":
                self._running_before[source] = source.observer.running_seconds()

    def finish(self, values: dict[str, Any]) -> None:
        """Write the tables of the end of a run, in place of those of an earlier end."""
        database, simulation = self._database, self._simulation
        database.forget(("histogram", "key_summary", "life", "slot", "event"))
        for source in simulation.sources:
            for meter in source.meters.values():
                for low, high, count in meter.histogram.buckets():
                    database.add("histogram", (source.number, meter.metric, low, high, count))
            if source.kind == "population":
                self._write_keys(source)
        numbers = {id(source.subject): source.number for source in simulation.sources}
        for population, *slot in simulation.slots:
            database.add("slot", (numbers[id(population)], *slot))
        for event in sorted(simulation.events, key=itemgetter(0)):
            if event[0] <= simulation.now:  # not those in the future
                database.add("event", event)
        database.set(values)

    def summary(self) -> Summary:
        """Return the figures of all measurements."""
        executors = {}
        delays, all_seconds = new_histogram(), 0.0
        for source, account in self.accounts.items():
            histogram = source.meters["start_delay"].histogram
            delays.merge(histogram)
            seconds = source.observer.running_seconds() - self._running_before.get(source, 0.0)
            all_seconds += seconds
            resources = {name: use.sum_up() for (whose, name), use in self._resources.items() if whose is source}
            executors[source.name] = account.sum_up(self._time - self._begin, histogram, seconds, resources)
        populations = {
            source.name: self._sum_up_population(source)
            for source in self._simulation.sources
            if source.kind == "population"
        }
        total = self.total.sum_up(self._time - self._begin, delays, all_seconds)
        return Summary(
            seconds=self._time - self._begin,
            executors=executors,
            total=total,
            populations=populations,
            jobs_by_kind={
                source.name: source.subject._waits.sum_up(
                    self._time, source.meters["execution_time"].histogram, source.subject.price
                )
                for source in self._simulation.sources
                if source.kind == "job"
            },
            worker_cost=sum(
                source.worker_price * account.worker_seconds(self._time) / 3600
                for source, account in self.accounts.items()
            ),
            gauges={name: found for name, level in self._gauges.items() if (found := level.sum_up()) is not None},
            notes=(*self._simulation.notes, *_idle_notes(executors)),
        )

    def figures(self) -> dict[str, Any]:
        """Return the figures of the whole run that no table has exactly, so that the report shows the same ones."""
        summary = self.summary()
        total = summary.total
        delays = new_histogram()
        for source in self._simulation.sources:
            if source.kind == "population":
                delays.merge(source.meters["sync_delay"].histogram)
        return {
            "queue_depth_most": total.queue_depth_most,
            "queue_depth_mean": total.queue_depth_mean,
            "start_delay": asdict(total.start_delay),
            "sync_delay": asdict(Quantiles.of(delays)),
            "worker_cost": summary.worker_cost,
            "resources": {
                f"{resource} of {name}": {"used": use.used, "part": use.part}
                for name, executor in summary.executors.items()
                for resource, use in executor.resources.items()
            },
            "notes": summary.notes,
            "gauges": {name: asdict(gauge) for name, gauge in summary.gauges.items()},
            "jobs_by_kind": {name: _written_kind(kind) for name, kind in summary.jobs_by_kind.items()},
        }

    # Helpers.

    def _add_source(self, source: ArrivalSource) -> None:
        self._database.add("source", (source.number, source.kind, source.name, as_json(source.details())))
        if source.kind == "executor":
            account = self.accounts[source] = Account()
            account.set_workers(source.subject.max_concurrency or 0, self._simulation.now)
        if self._keeps_samples:
            simulation = self._simulation
            for meter in source.meters.values():  # the key of a job is known only when it is called, after its start
                meter.keep(
                    self._write_sample, _no_key if source.kind == "executor" else lambda: simulation._current.key
                )

    def _write_sample(self, row: tuple[int, str, Any, float]) -> None:
        now = self._simulation.now
        if now > self._writes_from:
            source, metric, key, value = row
            self._database.add("sample", (now, source, metric, _written(key), value))
            if metric == "sync_interval":
                period = self._simulation.sources[source - 1].subject.period
                self._database.add("sample", (now, source, "sync_delay", _written(key), max(0.0, value - period)))

    def _take_executors(self, time: float, *, is_written: bool) -> None:
        total: tuple[int, ...] = Tally()
        total_executing = total_depth = total_pending = 0
        refusals = self._simulation.refused
        for source, account in self.accounts.items():
            observed = source.observer.observed
            account.set_workers(source.subject.max_concurrency or 0, time)
            tally, executing, pending = observed.counts()
            depth = observed.due_count(time)
            if is_written and (executing or depth or tally != account.tally):
                rate = observed.rate
                backlog = depth / rate if 0 < rate < math.inf else None
                changes = map(int.__sub__, tally, account.tally)
                self._database.add("step", (time, source.number, *changes, executing, depth, pending, backlog))
            account.add(tally, executing=executing, depth=depth, pending=pending)
            for resource, limits in source.subject.resources.items():
                limit = amount_a_second(limits) / source.node_count
                self._take_resource(source, resource, limit, time, is_written=is_written)
            if refusals and (refused := refusals.pop(source.subject, 0)):
                account.refused += refused
                self.total.refused += refused
                if is_written:
                    self._database.add("counter", (time, source.number, "refused_jobs", refused))
            total = tuple(map(int.__add__, total, tally))
            total_executing += executing
            total_depth += depth
            total_pending += pending
        self.total.add(total, executing=total_executing, depth=total_depth, pending=total_pending)

    def _take_resource(
        self, source: ArrivalSource, resource: str, limit: float, time: float, *, is_written: bool
    ) -> None:
        """Record what was used of a resource in a step that ends now, and its limit, an amount a second."""
        total = source.observer.observed.used.get(resource, 0)
        used, self._used[source, resource] = total - self._used[source, resource], total
        self._resources[source, resource].add(used, limit * (time - self._time))
        if used and is_written:
            self._database.add("counter", (time, source.number, f"used {resource}", used))
        if limit < math.inf:
            self._write_level(source, f"limit of {resource}", limit, time, is_written=is_written)

    def _take_gauges(self, time: float, *, is_written: bool) -> None:
        """Look at the gauges of the scenario at the end of a step."""
        for source in self._simulation.sources:
            if source.kind == "gauge":
                value = source.subject.value()
                self._gauges[source.name].add(value, time - self._time)
                self._write_level(source, "value", value, time, is_written=is_written)

    def _write_level(self, source: ArrivalSource, metric: str, value: float, time: float, *, is_written: bool) -> None:
        """Write a level at the end of a step if it has changed."""
        place = source.number, metric
        if self._levels.get(place) != value:
            self._levels[place] = value
            if is_written:
                self._database.add("gauge", (time, source.number, metric, value))

    def _measure_ages(self, time: float, *, is_written: bool) -> None:
        now = self._simulation.now
        for source in self._simulation.sources:
            if source.kind == "population":
                syncs = list(map(_SYNCS, source.subject.members.values()))
                for metric, level in (("keys_never_synced", syncs.count(0)), ("keys_synced_once", syncs.count(1))):
                    self._write_level(source, metric, level, time, is_written=is_written)
                source.meters["time_since_last_sync"].extend([max(0.0, age) for age in source.subject.ages(now)])

    def _take_population(self, source: ArrivalSource, time: float, *, is_written: bool) -> None:
        """Record what happened to a population in a step that ends now."""
        population = source.subject
        if population.is_changing:
            self._write_level(source, "keys_alive", len(population), time, is_written=is_written)
        for metric, count in (
            ("lock_conflicts", population.conflict_count),
            ("outage_failures", population.outage_count),
            ("keys_joined", population.joined_count),
            ("keys_left", population.left_count),
            ("keys_left_unserved", population.unserved_count),
        ):
            if count:
                self._counters[source.name, metric] += count
                if is_written:
                    self._database.add("counter", (time, source.number, metric, count))
        population.conflict_count = population.outage_count = 0
        population.joined_count = population.left_count = population.unserved_count = 0

    def _write_keys(self, source: ArrivalSource) -> None:
        now = self._simulation.now
        for key, member in source.subject.members.items():
            last = member.synced_at if member.syncs else None
            longest = max(member.longest, now - member.synced_at)
            row = (
                source.number,
                _written(key),
                member.group,
                member.weight,
                member.syncs,
                member.failures,
                last,
                longest,
            )
            self._database.add("key_summary", row)
        for key, *life in source.subject.all_lives():
            self._database.add("life", (source.number, _written(key), *life))

    def _sum_up_population(self, source: ArrivalSource) -> PopulationSummary:
        population, now = source.subject, self._simulation.now
        ages = [now - member.synced_at for member in population.members.values()]
        return PopulationSummary(
            keys=len(population),
            never_synced=len(population.never_synced()),
            overdue=sum(age > population.period for age in ages),
            oldest=max(ages, default=0.0),
            sync_interval=Quantiles.of(source.meters["sync_interval"].histogram),
            sync_delay=Quantiles.of(source.meters["sync_delay"].histogram),
            lock_conflicts=self._counters[source.name, "lock_conflicts"],
            outage_failures=self._counters[source.name, "outage_failures"],
            joined=self._counters[source.name, "keys_joined"],
            left=self._counters[source.name, "keys_left"],
            left_unserved=self._counters[source.name, "keys_left_unserved"],
        )


def _idle_notes(executors: dict[str, ExecutorSummary]) -> Iterator[str]:
    """Yield a warning for each executor that has work, and did none."""
    for name, each in executors.items():
        if each.pending and not each.started and not each.executing:
            yield f"executor {name} has started nothing, while jobs wait for it"


def _written_kind(kind: JobSummary) -> dict[str, Any]:
    """Return the figures of a kind of job, without those of all its keys."""
    longest = kind.longest_waiting_key
    return {
        "wait": asdict(kind.wait),
        "wait_by_priority": {str(priority): asdict(waits) for priority, waits in kind.wait_by_priority.items()},
        "longest_waiting_key": None if longest is None else {"key": str(longest[0]), **asdict(longest[1])},
        "objectives": [asdict(each) for each in kind.objectives],
        "cost": kind.cost,
    }


def _no_key() -> None:
    return None


def _written(key: Any) -> Any:
    """Return a key as a type that SQLite can store."""
    if key is None or isinstance(key, (str, bytes, float)):
        return key
    is_small = isinstance(key, int) and -(2**63) <= key < 2**63
    return int(key) if is_small else str(key)
