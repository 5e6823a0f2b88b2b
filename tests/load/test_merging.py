"""Figures of participants, merged into those of the whole load."""

from __future__ import annotations

import json
import random

import pytest

from ratelimited_executor.load.arrivals import Phase, Schedule
from ratelimited_executor.load.durations import Durations
from ratelimited_executor.load.figures import Figures, Measurement
from ratelimited_executor.load.merging import alone, merge, whole_of
from ratelimited_executor.load.recording import Ended, Recorder
from tests.load.models import measurement_of

CLASSES = {
    "ordinary": [Phase(first=40, last=40, seconds=2, is_measured=False), Phase(first=40, last=80, seconds=10)],
    "urgent": [Phase(first=5, last=5, seconds=2, is_measured=False), Phase(first=5, last=5, seconds=10)],
}


def recorded(rank: int, participants: int, *, seconds: float = 10) -> Figures:
    """The figures of one participant, whose durations follow from the number of the request alone."""
    schedule = Schedule(classes=CLASSES, rank=rank, participants=participants)
    recorder = Recorder(schedule)
    for arrival in schedule.arrivals():
        if arrival.due < 2 + seconds:
            duration = random.Random(arrival.number).expovariate(20)
            recorder.add(
                Ended(
                    due=arrival.due,
                    phase=arrival.phase,
                    started=arrival.due + 0.001,
                    ended=arrival.due + duration,
                    lateness=0.001 * (rank + 1),
                    error="late" if arrival.number % 10 == 3 else None,
                    status=200,
                    received=7,
                    class_index=arrival.class_index,
                )
            )
    return recorder.figures(seconds=seconds, cpu_share=0.2 * (rank + 1), full_seconds=float(rank))


def through_json(figures: Figures) -> Figures:
    """As they come from another process."""
    return Measurement.from_json(json.loads(json.dumps(measurement_of(figures).to_json()))).figures


@pytest.mark.parametrize("participants", [2, 3])
def test_merged_figures_are_those_of_one_that_sent_all(participants) -> None:
    """Counts exactly; percentiles to the three digits of the histogram, which is what the whole has of them as well."""
    whole = recorded(0, 1)
    merged = merge([through_json(recorded(rank, participants)) for rank in range(participants)])

    for name in ("seconds", "wall_seconds", "count", "errors", "statuses", "received", "asked_rate", "answered_rate"):
        assert getattr(whole, name) == pytest.approx(getattr(merged, name)), name
    for name in ("from_intended", "from_actual"):
        one, other = getattr(whole, name), getattr(merged, name)
        assert one.curve() == other.curve()
        assert (one.mean, one.most) == pytest.approx((other.mean, other.most))
    for parts, merged_parts in ((whole.phases, merged.phases), (whole.timeline, merged.timeline)):
        assert len(parts) == len(merged_parts) > 0
        for part, merged_part in zip(parts, merged_parts, strict=True):
            assert (part.count, part.error_count) == (merged_part.count, merged_part.error_count)
            assert (part.p50, part.p99, part.most) == pytest.approx(
                (merged_part.p50, merged_part.p99, merged_part.most), rel=2e-3
            )
    for each, merged_each in zip(whole.classes, merged.classes, strict=True):
        assert (each.name, each.rate, each.count, each.error_count) == (
            merged_each.name,
            merged_each.rate,
            merged_each.count,
            merged_each.error_count,
        )
        assert each.from_intended.curve() == merged_each.from_intended.curve()


def test_the_busiest_participant_counts() -> None:
    """Its CPU, its full connections, and the worst lateness."""
    merged = merge([recorded(rank, 3) for rank in range(3)])

    assert (pytest.approx(0.6), 2.0) == (merged.cpu_share, merged.full_seconds)
    assert pytest.approx(0.003) == merged.lateness.most


def test_histograms_add_up() -> None:
    """Also of none."""
    parts = [Durations() for _ in range(3)]
    for number in range(1, 101):
        parts[number % 2].add(number / 100)

    assert (100, 1) == (Durations.merged(parts).count, Durations.merged(parts).most)
    assert pytest.approx(0.5, rel=1e-3) == Durations.merged(parts).quantile(0.5)
    assert 0 == Durations.merged([]).count


def test_missing_and_stopped_participants_are_told_with_their_part() -> None:
    """One of four died in the middle, and one was stopped after a fifth: a quarter is absent, more was not sent."""
    schedule = Schedule(classes=CLASSES, participants=4)
    shares = {0: recorded(0, 4), 2: recorded(2, 4, seconds=2), 3: recorded(3, 4)}
    whole = whole_of(["a", "b", "c", "d"], shares, {1: 7.0}, schedule)

    assert [("a", 1, False), ("b", 0.5, True), ("c", 0.2, False), ("d", 1, False)] == [
        (each.name, each.sent_part, each.is_missing) for each in whole.participants
    ]
    assert (0.25, pytest.approx((0.5 + 0.8) / 4)) == (whole.absent_share, whole.unsent_share)
    assert (
        "b is missing, last heard of after 50% of its share; c was stopped after 20% of its share. "
        "32% of the load was never sent, and 25% of it is not in these figures"
    ) == whole.incomplete
    assert whole_of(["a", "c"], {0: shares[0], 1: shares[3]}, {}, schedule).incomplete is None
    assert (
        sum(share.count for share in shares.values())
        == whole.figures.count
        == sum(each.count for each in whole.participants)
    )


def test_one_alone_keeps_its_figures_and_the_reason() -> None:
    """Without the histograms of its parts."""
    figures = recorded(1, 2)
    whole = alone("b", figures, Schedule(classes=CLASSES, participants=2), reason="no answer")

    assert "these figures are of b alone, as they could not be merged: no answer" == whole.incomplete
    assert figures.count == whole.figures.count
    assert {None} == {each.histogram for each in whole.figures.timeline}
