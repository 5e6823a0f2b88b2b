"""What a run came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from ratelimited_executor._core.histogram import DurationHistogram

__all__ = ["ExecutorSummary", "PopulationSummary", "Quantiles", "Summary"]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """How long something took, in seconds; percentiles are at most 0.1 % too long, mean and most are exact."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, histogram: DurationHistogram) -> Self:
        """Read them from a histogram."""
        p50, p90, p99 = (histogram.quantile(share) for share in (0.5, 0.9, 0.99))
        return cls(histogram.total, histogram.mean, p50, p90, p99, histogram.max)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSummary:
    """What an executor, or all of them together, did in a run.

    Attributes:
        enqueued: jobs that it was given.
        started: jobs that have started, each attempt of one.
        retried: attempts that failed and were, or will be, followed by another.
        done: jobs that returned.
        failed: jobs that raised.
        other: jobs that were cancelled, expired or dropped.
        refused: arrivals for which there was no room; they are not among those enqueued.
        executing: jobs that run at the end.
        pending: jobs that wait at the end, those due later included.
        queue_depth_most: most jobs that were due and had not started, of all looks: one in each minute, and the end of each step.
        queue_depth_mean: their mean over a look in each minute, each at another moment of it.
        pending_most: most jobs that waited at the end of a step, those due later included.
        executing_mean: jobs that run, in the mean over all time.
        start_delay: from the due time of jobs to their start.
        evenness: of the jobs done in ten minutes each, or in a step if that is longer: Jain's index, 1 if all are equal, 1/n if all are done in one of n;
            None if none was done, or the run was shorter than that.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationSummary:
    """What was done for a population in a run.

    Attributes:
        keys: how many there are.
        never_synced: keys that were not synced once.
        overdue: keys that at the end have not been synced for longer than their period.
        oldest: seconds for which the worst key has not been synced at the end.
        sync_interval: from a sync of a key to the next; the time until its first one is none.
        sync_delay: by how much that was longer than the period.
        lock_conflicts: jobs that started while another worked on their key.
        outage_failures: jobs that failed by an outage.
    """

    keys: int
    never_synced: int
    overdue: int
    oldest: float
    sync_interval: Quantiles
    sync_delay: Quantiles
    lock_conflicts: int
    outage_failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run came to.

    Attributes:
        seconds: simulated.
        executors: by name.
        total: all executors together.
        populations: by name.
    """

    seconds: float
    executors: dict[str, ExecutorSummary]
    total: ExecutorSummary
    populations: dict[str, PopulationSummary]

    @property
    def jobs(self) -> int:
        """How many jobs have ended."""
        return self.total.done + self.total.failed + self.total.other
