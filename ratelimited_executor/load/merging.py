"""Merge the figures of participants that share a load into those of the whole load.

Counts, errors and histograms are added. A percentile of the whole is read from the merged histogram, since a mean of
percentiles is not a percentile. For seconds, rates of phases and the load of participants, the maximum counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ratelimited_executor.load.durations import Durations
from ratelimited_executor.load.figures import ClassFigures, Figures, Participant, PhaseFigures, SecondFigures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ratelimited_executor.load.arrivals import Schedule
    from ratelimited_executor.load.figures import PartFigures

__all__ = ["Whole", "alone", "merge", "whole_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The known figures of a shared load.

    Attributes:
        figures: the merged figures that have arrived.
        participants: all participants, by rank; only this one if the figures were not merged.
        reason: the reason why the figures were not merged; None if they were.
    """

    figures: Figures
    participants: list[Participant]
    reason: str | None = None

    @property
    def absent_share(self) -> float:
        """The fraction of the load that is not in the figures because participants are missing."""
        return sum(each.is_missing for each in self.participants) / len(self.participants)

    @property
    def unsent_share(self) -> float:
        """The fraction of the load that was never sent, as far as is known."""
        return sum(1 - each.sent_part for each in self.participants) / len(self.participants)

    @property
    def incomplete(self) -> str | None:
        """The reason why the figures are not those of the whole load; None if they are."""
        if self.reason is not None:
            return f"these figures are of {self.participants[0].name} alone, as they could not be merged: {self.reason}"
        reasons = [
            f"{each.name} is missing, last heard of after {each.sent_part:.0%} of its share"
            if each.is_missing
            else f"{each.name} was stopped after {each.sent_part:.0%} of its share"
            for each in self.participants
            if each.is_missing or each.sent_part < 1
        ]
        if not reasons:
            return None
        return (
            f"{'; '.join(reasons)}. {self.unsent_share:.0%} of the load was never sent, and "
            f"{self.absent_share:.0%} of it is not in these figures"
        )


def whole_of(
    names: Sequence[str], shares: Mapping[int, Figures], heard: Mapping[int, float], schedule: Schedule
) -> Whole:
    """Merge the figures that have arrived.

    Args:
        names: the names of the participants, by rank.
        shares: their figures by rank, from at least one participant.
        heard: seconds after the beginning at which each participant gave its last sign of life, by rank; absent if
            none.
        schedule: the schedule of the load.
    """
    participants = [
        _present(name, shares[rank], schedule) if rank in shares else _missing(name, heard.get(rank, 0.0), schedule)
        for rank, name in enumerate(names)
    ]
    return Whole(figures=merge([shares[rank] for rank in sorted(shares)]), participants=participants)


def alone(name: str, figures: Figures, schedule: Schedule, *, reason: str) -> Whole:
    """Return the figures of one participant, when those of the others are unavailable for a reason."""
    return Whole(figures=merge([figures]), participants=[_present(name, figures, schedule)], reason=reason)


def merge(shares: Sequence[Figures]) -> Figures:
    """Return the figures of the whole load.

    Args:
        shares: the figures of at least one participant of the load; phases and seconds with their histograms.
    """
    seconds = sorted((second for share in shares for second in share.timeline), key=lambda each: each.second)
    return Figures(
        seconds=max(share.seconds for share in shares),
        wall_seconds=max(share.wall_seconds for share in shares),
        cpu_share=max(share.cpu_share for share in shares),
        full_seconds=max(share.full_seconds for share in shares),
        count=sum(share.count for share in shares),
        errors=dict(_added(share.errors for share in shares).most_common()),
        statuses=dict(sorted(_added(share.statuses for share in shares).items())),
        received=sum(share.received for share in shares),
        from_intended=Durations.merged(share.from_intended for share in shares),
        from_actual=Durations.merged(share.from_actual for share in shares),
        lateness=Durations.merged(share.lateness for share in shares),
        phases=[
            PhaseFigures(first=parts[0].first, last=parts[0].last, seconds=parts[0].seconds, **_merged_parts(parts))
            for parts in zip(*(share.phases for share in shares), strict=True)
        ],
        timeline=[
            SecondFigures(second=second, **_merged_parts(list(parts)))
            for second, parts in groupby(seconds, key=lambda each: each.second)
        ],
        classes=[_merged_class(parts) for parts in zip(*(share.classes for share in shares), strict=True)],
    )


def _added(counts: Iterable[dict[Any, int]]) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for each in counts:
        total.update(each)
    return total


def _merged_parts(parts: Sequence[PartFigures]) -> dict[str, Any]:
    """Return the merged fields of ``PartFigures``."""
    durations = Durations.merged(Durations.from_json(part.histogram) for part in parts if part.histogram is not None)
    return {
        "count": sum(part.count for part in parts),
        "error_count": sum(part.error_count for part in parts),
        "p50": durations.quantile(0.5),
        "p99": durations.quantile(0.99),
        "most": durations.most,
    }


def _merged_class(parts: Sequence[ClassFigures]) -> ClassFigures:
    return ClassFigures(
        name=parts[0].name,
        first=parts[0].first,
        last=parts[0].last,
        count=sum(part.count for part in parts),
        error_count=sum(part.error_count for part in parts),
        from_intended=Durations.merged(part.from_intended for part in parts),
        from_actual=Durations.merged(part.from_actual for part in parts),
    )


def _present(name: str, figures: Figures, schedule: Schedule) -> Participant:
    return Participant(
        name=name,
        sent_part=min(1.0, figures.seconds / schedule.seconds),
        count=figures.count,
        error_count=figures.error_count,
        cpu_share=figures.cpu_share,
        lateness_p99=figures.lateness.quantile(0.99),
    )


def _missing(name: str, heard: float, schedule: Schedule) -> Participant:
    sent_part = min(1.0, max(0.0, heard - schedule.warm_up) / schedule.seconds)
    return Participant(name=name, sent_part=sent_part, is_missing=True)
