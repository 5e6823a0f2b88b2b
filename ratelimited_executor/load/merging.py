"""Merge the figures of participants that share a load into those of the whole load.

Counts, errors and histograms are added. A percentile of the whole is read from the merged histogram, since a mean of
percentiles is not a percentile. For seconds, rates of phases and the load of participants, the maximum counts.

A participant that dies has left checkpoints: each has the figures of the requests that ended since the one before.
They are merged as if each were of a participant of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
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
        """The fraction of the load that was sent and is not in the figures: at least, if a participant is missing."""
        return sum(each.sent_part - each.known_part for each in self.participants) / len(self.participants)

    @property
    def unsent_share(self) -> float:
        """The fraction of the load that was never sent: at most, as a missing participant sent on after it was last heard of."""
        return sum(1 - each.sent_part for each in self.participants) / len(self.participants)

    @property
    def incomplete(self) -> str | None:
        """The reason why the figures are not those of the whole load; None if they are."""
        if self.reason is not None:
            return f"these figures are of {self.participants[0].name} alone, as they could not be merged: {self.reason}"
        reasons = [_reason_of(each) for each in self.participants if each.is_missing or each.sent_part < 1]
        if not reasons:
            return None
        unsent, absent = f"{self.unsent_share:.0%}", f"{self.absent_share:.0%}"
        if any(each.is_missing for each in self.participants):
            unsent, absent = (
                f"at most {math.ceil(self.unsent_share * 100)}%",
                f"at least {int(self.absent_share * 100)}%",
            )
        return f"{'; '.join(reasons)}. {unsent} of the load was never sent, and {absent} was sent but is not in these figures"


def whole_of(
    names: Sequence[str],
    shares: Mapping[int, Figures],
    heard: Mapping[int, float],
    schedule: Schedule,
    checkpoints: Mapping[int, Sequence[Figures]] | None = None,
) -> Whole:
    """Merge the figures that have arrived.

    Args:
        names: the names of the participants, by rank.
        shares: their figures by rank, from at least one participant.
        heard: seconds after the beginning at which each participant gave its last sign of life, by rank; absent if
            none.
        schedule: the schedule of the load.
        checkpoints: the figures that missing participants have left, by rank: those of the requests that ended between
            two checkpoints, in any order, and perhaps not all of them.
    """
    left = {rank: _up_to_the_last(parts) for rank, parts in (checkpoints or {}).items() if parts and rank not in shares}
    participants = [
        _present(name, shares[rank], schedule)
        if rank in shares
        else _missing(name, heard.get(rank, 0.0), merge(left[rank]) if rank in left else None, schedule)
        for rank, name in enumerate(names)
    ]
    known = [shares[rank] for rank in sorted(shares)]
    known += [part for rank in sorted(left) for part in left[rank]]
    return Whole(figures=merge(known), participants=participants)


def _up_to_the_last(parts: Sequence[Figures]) -> list[Figures]:
    """Return the checkpoints of a participant with the CPU share of the last one, which is that of the whole time."""
    last = max(parts, key=lambda each: each.seconds)
    return [replace(part, cpu_share=last.cpu_share, cpu_wait_share=last.cpu_wait_share) for part in parts]


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
        cpu_wait_share=max(share.cpu_wait_share for share in shares),
        full_seconds=max(share.full_seconds for share in shares),
        count=sum(share.count for share in shares),
        errors=dict(_added(share.errors for share in shares).most_common()),
        samples={kind: text for share in reversed(shares) for kind, text in share.samples.items()},
        statuses=dict(sorted(_added(share.statuses for share in shares).items())),
        received=sum(share.received for share in shares),
        sent_count=sum(share.sent_count for share in shares),
        response_times=Durations.merged(share.response_times for share in shares),
        service_times=Durations.merged(share.service_times for share in shares),
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
        response_times=Durations.merged(part.response_times for part in parts),
        service_times=Durations.merged(part.service_times for part in parts),
    )


def _present(name: str, figures: Figures, schedule: Schedule) -> Participant:
    sent_part = schedule.part_due(figures.seconds)
    return Participant(name=name, sent_part=sent_part, known_part=sent_part, **_row(figures))


def _missing(name: str, heard: float, left: Figures | None, schedule: Schedule) -> Participant:
    sent_part = schedule.part_due(heard - schedule.warm_up)
    if left is None:
        return Participant(name=name, sent_part=sent_part, is_missing=True)
    sent_part = max(sent_part, schedule.part_due(left.seconds))
    known_part = min(sent_part, left.count / schedule.expected)
    return Participant(name=name, sent_part=sent_part, is_missing=True, known_part=known_part, **_row(left))


def _row(figures: Figures) -> dict[str, Any]:
    return {
        "count": figures.count,
        "error_count": figures.error_count,
        "cpu_share": figures.cpu_share,
        "lateness_p99": figures.lateness.quantile(0.99),
    }


def _reason_of(participant: Participant) -> str:
    """Return why a participant's share is not complete."""
    if not participant.is_missing:
        return f"{participant.name} was stopped after {participant.sent_part:.0%} of its share"
    text = f"{participant.name} is missing, last heard of after {participant.sent_part:.0%} of its share"
    return f"{text}, with figures up to {participant.known_part:.0%}" if participant.known_part else text
