"""Compares runs by several criteria."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratelimited_executor.simulation.summary import Summary

__all__ = ["CRITERIA", "Comparison", "Criterion", "compare"]


@dataclass(frozen=True, slots=True)
class Criterion:
    """A criterion by which runs are compared.

    The criteria are the largest queue depth and number of pending jobs; the mean sync delay; the keys that are overdue
    at the end; the difference of Jain's index of the throughput from 1; and lock conflicts.

    Attributes:
        name: its name.
        unit: the unit of its values: jobs, seconds, keys, or part of the whole.
        value: returns its value for a run; smaller is better.
        of: the statistic over many values, such as the most.
    """

    name: str
    unit: str
    value: Callable[[Summary], float]
    of: str = ""


CRITERIA: Final = (
    Criterion("queue depth", "jobs", lambda run: run.total.queue_depth_most, "most"),
    Criterion("pending jobs", "jobs", lambda run: run.total.pending_most, "most"),
    Criterion(
        "sync delay",
        "seconds",
        lambda run: max((each.sync_delay.mean for each in run.populations.values()), default=0.0),
        "mean",
    ),
    Criterion("overdue keys", "keys", lambda run: sum(each.overdue for each in run.populations.values())),
    Criterion("throughput evenness", "part", lambda run: 1 - (run.total.evenness or 0.0)),
    Criterion("lock conflicts", "jobs", lambda run: sum(each.lock_conflicts for each in run.populations.values())),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side.

    Attributes:
        values: the values of each criterion, by run.
        ranks: the ranks of each criterion, by run, 1 for the best; runs with equal values share one.
        order: the runs, the best first: by the sum of their ranks.
    """

    values: dict[str, dict[str, float]]
    ranks: dict[str, dict[str, int]]
    order: Sequence[str]

    def rank_sum(self, run: str) -> int:
        """Return the sum of the ranks of a run."""
        return sum(found[run] for found in self.ranks.values())

    def best(self, criterion: str) -> list[str]:
        """Return the runs that are best by a criterion."""
        return [run for run, rank in self.ranks[criterion].items() if rank == 1]


def compare(summaries: Mapping[str, Summary]) -> Comparison:
    """Compare runs by all criteria.

    Raises:
        ValueError: if there are fewer than two runs.
    """
    if len(summaries) < 2:
        raise ValueError(f"summaries must be at least two, got {len(summaries)}")
    values = {
        criterion.name: {run: float(criterion.value(summary)) for run, summary in summaries.items()}
        for criterion in CRITERIA
    }
    ranks = {
        name: {run: 1 + sum(other < value for other in found.values()) for run, value in found.items()}
        for name, found in values.items()
    }
    order = sorted(summaries, key=lambda run: sum(found[run] for found in ranks.values()))
    return Comparison(values, ranks, order)
