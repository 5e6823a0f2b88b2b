"""The figures of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratelimited_executor._core.histogram import DurationHistogram

__all__ = [
    "ExecutorSummary",
    "GaugeSummary",
    "JobSummary",
    "ObjectiveSummary",
    "PopulationSummary",
    "Quantiles",
    "ResourceSummary",
    "Summary",
    "gathered_notes",
]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Statistics of durations, in seconds; percentiles are at most 0.1 % too high, mean and maximum are exact."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, histogram: DurationHistogram) -> Self:
        """Return the statistics of a histogram."""
        p50, p90, p99 = (histogram.quantile(share) for share in (0.5, 0.9, 0.99))
        return cls(histogram.total, histogram.mean, p50, p90, p99, histogram.max)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSummary:
    """The use of a resource of an executor in a run.

    Attributes:
        used: the amount that starts used.
        admitted: the amount that its limits, which may have changed, admit in that time in the long run.
    """

    used: int
    admitted: float

    @property
    def part(self) -> float:
        """The part of the limit that was used; 0.0 if nothing was admitted."""
        return self.used / self.admitted if self.admitted else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeSummary:
    """The values of a gauge at the ends of steps.

    Attributes:
        least: the least value.
        mean: the mean over time.
        most: the largest value.
        last: the value at the end.
    """

    least: float
    mean: float
    most: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSummary:
    """The figures of an executor, or of all of them together, in a run.

    Attributes:
        enqueued: jobs that were enqueued.
        started: jobs that have started, counting each attempt.
        retried: attempts that failed and were, or will be, followed by another.
        done: jobs that returned.
        failed: jobs that raised.
        other: jobs that were cancelled, expired or dropped.
        refused: arrivals for which there was no room; they are not among those enqueued.
        executing: jobs that run at the end.
        pending: jobs that wait at the end, including those due later.
        queue_depth_most: the largest number of jobs due and not started, of samples in each minute and at the end of
            each step.
        queue_depth_mean: the mean over samples, one in each minute at a varying moment.
        pending_most: the largest number of waiting jobs at the end of a step, including those due later.
        executing_mean: the mean number of running jobs over all time.
        start_delay: the time from the due time of jobs to their start.
        evenness: Jain's index of the jobs done in windows of ten minutes, or of a step if that is longer: 1 if all
            windows are equal, 1/n if all jobs are done in one of n; None if no job was done, or the run was shorter
            than a window.
        resources: the use of each of its resources, by name; empty for all executors together.
    """

    enqueued: int
    started: int
    retried: int
    done: int
    failed: int
    other: int
    refused: int
    executing: int
    pending: int
    queue_depth_most: int
    queue_depth_mean: float
    pending_most: int
    executing_mean: float
    start_delay: Quantiles
    evenness: float | None
    resources: dict[str, ResourceSummary] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationSummary:
    """The figures of a population in a run.

    Attributes:
        keys: the number of keys at the end; the next three figures are of these.
        never_synced: keys that were never synced.
        overdue: keys that at the end have not been synced for longer than their period.
        oldest: the longest time since a sync at the end, in seconds.
        sync_interval: the time from a sync of a key to the next; the time until the first sync does not count.
        sync_delay: the excess of the sync interval over the period.
        lock_conflicts: jobs that started while another worked on their key.
        outage_failures: jobs that failed because of an outage.
        joined: keys that joined.
        left: keys that left.
        left_unserved: those of them that were never synced in their life.
    """

    keys: int
    never_synced: int
    overdue: int
    oldest: float
    sync_interval: Quantiles
    sync_delay: Quantiles
    lock_conflicts: int
    outage_failures: int
    joined: int = 0
    left: int = 0
    left_unserved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSummary:
    """How an objective was kept in a run.

    Attributes:
        percent: the percentage of the jobs that are to wait no longer than ``within``.
        within: the longest wait, in seconds.
        each: the period in which it is to hold, in seconds.
        periods: the number of periods that were judged, those in which jobs started or were late; the last one may be
            shorter.
        missed: the number of periods in which it was missed.
        worst: the wait at that percentage in the worst period, in seconds; at most 0.1 % too high, and too low if that
            period is not decided.
        undecided: 1 if the run was too short to judge the last period, as it depends on what still waits; else 0.
        worst_at: when the worst period began, in seconds since the start.
    """

    percent: float
    within: float
    each: float
    periods: int
    missed: int
    worst: float
    undecided: int = 0
    worst_at: float = 0.0

    @property
    def is_decided(self) -> bool:
        """False if it was missed in no period, and the run was too short to judge one of them, or has none to judge."""
        return bool(self.missed) or (self.periods > 0 and not self.undecided)

    @property
    def is_kept(self) -> bool:
        """True if it was kept in every period, and every period could be judged."""
        return self.is_decided and not self.missed


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """The figures of a kind of job in a run.

    Attributes:
        wait: the time from the due time of each attempt to its start.
        execution_time: the durations.
        wait_by_priority: the waits by priority, if jobs of several priorities arrived.
        wait_by_key: the waits by key, with percentiles up to 2 % too high; empty if there were more than 1,000 keys.
        objectives: how each objective was kept.
        cost: what its calls cost, each attempt being one.
    """

    wait: Quantiles
    execution_time: Quantiles
    wait_by_priority: dict[int, Quantiles]
    wait_by_key: dict[Any, Quantiles]
    objectives: tuple[ObjectiveSummary, ...]
    cost: float = 0.0

    @property
    def longest_waiting_key(self) -> tuple[Any, Quantiles] | None:
        """The key with the largest 99th percentile, and its waits; None if no waits by key are kept, or there is one key."""
        if len(self.wait_by_key) < 2:
            return None
        return max(self.wait_by_key.items(), key=lambda each: each[1].p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a run.

    Attributes:
        seconds: simulated seconds.
        executors: the figures of each executor, by name.
        total: the figures of all executors together.
        populations: the figures of each population, by name.
        jobs_by_kind: the figures of each kind of job, by name.
        worker_cost: what the workers of all executors cost.
        gauges: the values of each gauge of the scenario, by name.
        notes: what to know before believing the figures, such as rows of a recording that were skipped.
    """

    seconds: float
    executors: dict[str, ExecutorSummary]
    total: ExecutorSummary
    populations: dict[str, PopulationSummary]
    jobs_by_kind: dict[str, JobSummary] = field(default_factory=dict)
    worker_cost: float = 0.0
    gauges: dict[str, GaugeSummary] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def cost(self) -> float:
        """What workers and calls cost together, in the unit of the prices that the scenario gives."""
        return self.worker_cost + math.fsum(each.cost for each in self.jobs_by_kind.values())

    @property
    def is_objective_kept(self) -> bool:
        """True if every objective was kept in every period; False as well if one is not decided."""
        return all(each.is_kept for kind in self.jobs_by_kind.values() for each in kind.objectives)

    @property
    def jobs(self) -> int:
        """The number of ended jobs."""
        return self.total.done + self.total.failed + self.total.other


def gathered_notes(runs: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """Return the notes of runs, each once, with the name of the first run that has it if runs have several names."""
    named = [(name, list(notes)) for name, notes in runs]
    first: dict[str, str] = {}
    for name, notes in named:
        for note in notes:
            first.setdefault(note, name)
    has_names = len({name for name, _ in named}) > 1
    return [f"{note} (with {name})" if has_names else note for note, name in first.items()]
