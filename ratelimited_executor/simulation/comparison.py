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


def _depth(summary: Summary) -> float:
    return float(summary.total.queue_depth_most)


def _pending(summary: Summary) -> float:
    return float(summary.total.pending_most)


def _sync_delay(summary: Summary) -> float:
    return max((each.sync_delay.mean for each in summary.populations.values()), default=0.0)


def _forgotten(summary: Summary) -> float:
    return float(sum(each.overdue for each in summary.populations.values()))


def _unevenness(summary: Summary) -> float:
    return 1.0 if summary.total.evenness is None else 1 - summary.total.evenness


def _conflicts(summary: Summary) -> float:
    return float(sum(each.lock_conflicts for each in summary.populations.values()))


CRITERIA: Final = (
    Criterion("queue depth", "jobs", _depth, "most"),
    Criterion("pending jobs", "jobs", _pending, "most"),
    Criterion("sync delay", "seconds", _sync_delay, "mean"),
    Criterion("overdue keys", "keys", _forgotten),
    Criterion("throughput evenness", "part", _unevenness),
    Criterion("lock conflicts", "jobs", _conflicts),
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
        criterion.name: {run: criterion.value(summary) for run, summary in summaries.items()} for criterion in CRITERIA
    }
    ranks = {
        name: {run: 1 + sum(other < value for other in found.values()) for run, value in found.items()}
        for name, found in values.items()
    }
    order = sorted(summaries, key=lambda run: sum(found[run] for found in ranks.values()))
    return Comparison(values, ranks, order)
