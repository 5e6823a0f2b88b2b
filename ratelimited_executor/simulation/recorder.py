"""Measures a simulation, step by step, and writes that down.

What is counted is read from the executors at the end of each step, and costs the jobs nothing. Values are gathered in lists
that are emptied with each step: memory does not grow with the length of the run.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.states import TaskState
from ratelimited_executor.simulation.database import as_json
from ratelimited_executor.simulation.summary import ExecutorSummary, PopulationSummary, Quantiles, Summary

if TYPE_CHECKING:
    from ratelimited_executor.simulation.database import RunDatabase
    from ratelimited_executor.simulation.simulation import Simulation, Source

__all__ = ["Recorder"]

_AGE_SECONDS: Final = 3600.0  # between two looks at the age of all keys
_EVEN_SECONDS: Final = 600.0  # over which jobs are counted to tell how even the throughput is
_ENDS: Final = (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED, TaskState.DROPPED)


class _Counts:
    """The counts of an executor at the end of the last step, and what is summed up over all of them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.last = (0,) * (2 + len(_ENDS))
        self.depth_most = 0
        self.pending_most = 0
        self.depth_seconds = 0.0  # the integral of the queue depth over time
        self.executing_seconds = 0.0
        self.window_done = 0
        self.window_count = 0
        self.window_sum = 0.0
        self.window_squares = 0.0


class Recorder:
    """Measures a simulation.

    Args:
        simulation: what is measured.
        database: where it is written.
        keeps_samples: whether every single value is written.
        writes_from: seconds before which nothing is written, because it is there already.
    """

    def __init__(
        self, simulation: Simulation, database: RunDatabase, *, keeps_samples: bool, writes_from: float = -math.inf
    ) -> None:
        self._simulation = simulation
        self._database = database
        self._keeps_samples = keeps_samples
        self._writes_from = writes_from
        self._executors: list[_Counts] = []
        self._counters: Counter[tuple[str, str]] = Counter()  # of the whole run, by population and metric
        self._time = 0.0
        self._next_age = _AGE_SECONDS
        self._next_window = _EVEN_SECONDS
        simulation._on_source = self._add_source
        for source in simulation.sources:
            self._add_source(source)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, and nothing that is due waits."""
        return all(
            not engine.running_count() and not engine.queue.ready_count()
            for engine in (counts.source.subject._started() for counts in self._executors)
        )

    @property
    def is_done(self) -> bool:
        """Whether nothing runs and nothing waits, due or not."""
        engines = [counts.source.subject._started() for counts in self._executors]
        return not any(engine.running_count() or engine.waiting_count() or engine.feeders for engine in engines)

    def jobs(self) -> int:
        """Count the jobs that have ended."""
        return sum(sum(counts.source.subject._started().ended_counts.values()) for counts in self._executors)

    def take(self, time: float) -> None:
        """End a step at a time, in seconds since the start, which is now."""
        is_written = time > self._writes_from
        for counts in self._executors:
            self._take_counts(counts, time, is_written=is_written)
        if time >= self._next_age:
            self._next_age = (time // _AGE_SECONDS + 1) * _AGE_SECONDS
            self._measure_ages()
        if time >= self._next_window:
            self._end_windows(time)
        add = self._database.add
        for source in self._simulation.sources:
            if source.kind == "population":
                period, meters = source.subject.period, source.meters
                meters["sync_delay"].values += [
                    interval - period if interval > period else 0.0  # as fast as it can be
                    for interval in meters["sync_interval"].values
                ]
            for meter in source.meters.values():
                quantiles = meter.take()
                if quantiles is not None and is_written:
                    add("quantiles", (time, source.number, meter.metric, *quantiles))
            if source.kind == "population":
                self._take_conflicts(source, time, is_written=is_written)
        self._time = time

    def finish(self, values: dict[str, Any]) -> None:
        """Write what is known at the end, in place of what was written at an earlier one."""
        database, simulation = self._database, self._simulation
        database.forget(("histogram", "key_summary", "slot", "event"))
        for source in simulation.sources:
            for meter in source.meters.values():
                for low, high, count in meter.histogram.buckets():
                    database.add("histogram", (source.number, meter.metric, low, high, count))
            if source.kind == "population":
                self._write_keys(source)
        numbers = {id(source.subject): source.number for source in simulation.sources}
        for population, *slot in simulation.slots:
            database.add("slot", (numbers[id(population)], *slot))
        for event in simulation.events:
            database.add("event", event)
        database.set(values)

    def summary(self) -> Summary:
        """Sum up what was measured."""
        executors = {counts.source.name: self._sum_up_executor(counts) for counts in self._executors}
        populations = {
            source.name: self._sum_up_population(source)
            for source in self._simulation.sources
            if source.kind == "population"
        }
        return Summary(seconds=self._time, executors=executors, populations=populations)

    # Helpers.

    def _add_source(self, source: Source) -> None:
        self._database.add("source", (source.number, source.kind, source.name, as_json(source.details())))
        if source.kind == "executor":
            self._executors.append(_Counts(source))
        if self._keeps_samples:
            simulation = self._simulation
            for meter in source.meters.values():  # whose key a job has is known once it is called, after its start
                meter.keep(
                    self._write_sample, _no_key if source.kind == "executor" else lambda: simulation._current_key
                )

    def _write_sample(self, row: tuple[int, str, Any, float]) -> None:
        now = self._simulation.now
        if now > self._writes_from:
            source, metric, key, value = row
            self._database.add("sample", (now, source, metric, _written(key), value))
            if metric == "sync_interval":
                period = self._simulation.sources[source - 1].subject.period
                self._database.add("sample", (now, source, "sync_delay", _written(key), max(0.0, value - period)))

    def _take_counts(self, counts: _Counts, time: float, *, is_written: bool) -> None:
        executor = counts.source.subject
        engine = executor._started()
        engine.burst.settle()
        present = (engine.accepted_count, engine.started_count, *(engine.count(state) for state in _ENDS))
        executing = engine.running_count()
        queue = engine.queue
        depth = sum(each.count_until(time, is_spread=False) for each in (queue.on_time, queue.spread))
        pending = engine.waiting_count()
        rate = float(executor.rate) / getattr(queue.grid, "peers", 1)
        backlog = depth / rate if 0 < rate < math.inf else None
        changes = tuple(map(int.__sub__, present, counts.last))
        done = changes[2]
        if is_written and (any(changes) or executing or depth):
            row = (time, counts.source.number, *changes, executing, depth, pending, backlog)
            self._database.add("step", row)
        counts.last = present
        counts.depth_most = max(counts.depth_most, depth)
        counts.pending_most = max(counts.pending_most, pending)
        counts.depth_seconds += depth * (time - self._time)
        counts.executing_seconds += executing * (time - self._time)
        counts.window_done += done

    def _end_windows(self, time: float) -> None:
        """Count the jobs of a window for the evenness of the throughput; windows that were skipped had none."""
        windows = int((time - self._next_window) // _EVEN_SECONDS) + 1
        self._next_window += windows * _EVEN_SECONDS
        for counts in self._executors:
            counts.window_count += windows
            counts.window_sum += counts.window_done
            counts.window_squares += counts.window_done**2
            counts.window_done = 0

    def _measure_ages(self) -> None:
        now = self._simulation.now
        for source in self._simulation.sources:
            if source.kind == "population":
                add = source.meters["time_since_last_sync"].values.extend
                add(max(0.0, age) for age in source.subject.ages(now))

    def _take_conflicts(self, source: Source, time: float, *, is_written: bool) -> None:
        population = source.subject
        for metric, count in (
            ("lock_conflicts", population.conflict_count),
            ("outage_failures", population.outage_count),
        ):
            if count:
                self._counters[source.name, metric] += count
                if is_written:
                    self._database.add("counter", (time, source.number, metric, count))
        population.conflict_count = population.outage_count = 0

    def _write_keys(self, source: Source) -> None:
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

    def _sum_up_executor(self, counts: _Counts) -> ExecutorSummary:
        engine = counts.source.subject._started()
        windows = counts.window_count
        evenness = None
        if windows and counts.window_squares:
            evenness = counts.window_sum**2 / (windows * counts.window_squares)
        enqueued, started, done, failed, *others = counts.last
        return ExecutorSummary(
            enqueued=enqueued,
            started=started,
            done=done,
            failed=failed,
            other=sum(others),
            executing=engine.running_count(),
            pending=engine.waiting_count(),
            queue_depth_most=counts.depth_most,
            queue_depth_mean=counts.depth_seconds / self._time if self._time else 0.0,
            pending_most=counts.pending_most,
            executing_mean=counts.executing_seconds / self._time if self._time else 0.0,
            start_delay=Quantiles.of(counts.source.meters["start_delay"].histogram),
            evenness=evenness,
        )

    def _sum_up_population(self, source: Source) -> PopulationSummary:
        population, now = source.subject, self._simulation.now
        ages = [now - member.synced_at for member in population.members.values()]
        return PopulationSummary(
            keys=len(population),
            never_synced=len(population.never_synced()),
            overdue=sum(age > population.period for age in ages),
            oldest=max(ages),
            sync_interval=Quantiles.of(source.meters["sync_interval"].histogram),
            sync_delay=Quantiles.of(source.meters["sync_delay"].histogram),
            lock_conflicts=self._counters[source.name, "lock_conflicts"],
            outage_failures=self._counters[source.name, "outage_failures"],
        )


def _no_key() -> None:
    return None


def _written(key: Any) -> Any:
    """Return a key as SQLite can hold it."""
    if key is None or isinstance(key, (str, bytes, float)):
        return key
    is_small = isinstance(key, int) and -(2**63) <= key < 2**63
    return int(key) if is_small else str(key)
