"""The figures of participants, merged into those of the whole load."""

from __future__ import annotations

import json
import random

import pytest

from ratelimited_executor.load.arrivals import Arrival, Phase, Schedule
from ratelimited_executor.load.durations import Durations
from ratelimited_executor.load.figures import Figures, Measurement
from ratelimited_executor.load.merging import alone, merge, whole_of
from ratelimited_executor.load.recording import LoadRecorder
from tests.load.models import measurement_of, record

CLASSES = {
    "ordinary": [Phase(first=40, last=40, seconds=2, is_measured=False), Phase(first=40, last=80, seconds=10)],
    "urgent": [Phase(first=5, last=5, seconds=2, is_measured=False), Phase(first=5, last=5, seconds=10)],
}


def recorded(rank: int, participants: int, *, seconds: float = 10, cuts: bool = False) -> Figures:
    """Return the figures of one participant, whose durations depend on the number of the request alone."""
    schedule = Schedule(classes=CLASSES, rank=rank, participants=participants)
    recorder = LoadRecorder(schedule)
    for number, arrival in enumerate(schedule.arrivals()):
        if arrival.due < 2 + seconds:
            end(recorder, arrival, rank)
        if cuts and number % 50 == 0:
            recorder.cut()
    return recorder.figures(seconds=seconds, cpu_share=0.2 * (rank + 1), full_seconds=float(rank))


def end(recorder: LoadRecorder, arrival: Arrival, rank: int) -> None:
    """Record a request of a participant."""
    record(
        recorder,
        due=arrival.due,
        phase=arrival.phase,
        started=arrival.due + 0.001,
        ended=arrival.due + random.Random(arrival.number).expovariate(20),
        lateness=0.001 * (rank + 1),
        error="late" if arrival.number % 10 == 3 else None,
        sample="too\n late" if arrival.number % 20 == 13 else "",
        status=200,
        received=7,
        class_index=arrival.class_index,
    )


def through_json(figures: Figures) -> Figures:
    """Return figures as they arrive from another process."""
    return Measurement.from_json(json.loads(json.dumps(measurement_of(figures).to_json()))).figures


@pytest.mark.parametrize("participants", [2, 3])
def test_merged_figures_are_those_of_one_that_sent_all(participants) -> None:
    """Merged figures equal those of one that sent everything: counts exactly, percentiles to three digits."""
    whole = recorded(0, 1)
    merged = merge([through_json(recorded(rank, participants)) for rank in range(participants)])

    for name in ("seconds", "wall_seconds", "count", "errors", "statuses", "received", "asked_rate", "answered_rate"):
        assert getattr(whole, name) == pytest.approx(getattr(merged, name)), name
    for name in ("response_times", "service_times"):
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
        assert each.response_times.curve() == merged_each.response_times.curve()


@pytest.mark.parametrize("participants", [1, 2])
def test_figures_are_the_same_however_often_they_were_cut(participants) -> None:
    """Cutting the recording into checkpoints, any number of times, changes no field of the figures."""
    plain, cut = (recorded(0, participants, cuts=cuts).to_json() for cuts in (False, True))

    for fields in (plain, cut):
        for durations in (fields[name] for name in ("response_times", "service_times", "lateness")):
            durations["mean"] = pytest.approx(durations["mean"])  # a sum in another order
        for each in fields["classes"]:
            for name in ("response_times", "service_times"):
                each[name]["mean"] = pytest.approx(each[name]["mean"])
    assert plain == cut


@pytest.mark.parametrize("cuts", [False, True])
def test_text_of_an_error_survives_cuts_and_merging(cuts) -> None:
    """One text of each kind of error is kept, from whichever participant and whichever part of its load has one."""
    merged = merge([through_json(recorded(rank, 3, cuts=cuts)) for rank in range(3)])
    assert {"late": "too late"} == merged.samples
    assert "late: too late" == merged.sample


def test_the_busiest_participant_counts() -> None:
    """Merged figures have the CPU share and the full connections of the busiest participant, and the worst lateness."""
    merged = merge([recorded(rank, 3) for rank in range(3)])

    assert (pytest.approx(0.6), 2.0) == (merged.cpu_share, merged.full_seconds)
    assert pytest.approx(0.003) == merged.lateness.most


def test_histograms_add_up() -> None:
    """Merged histograms have the durations of all, and merging no histogram gives an empty one."""
    parts = [Durations() for _ in range(3)]
    for number in range(1, 101):
        parts[number % 2].add_all([number / 100])

    assert (100, 1) == (Durations.merged(parts).count, Durations.merged(parts).most)
    assert pytest.approx(0.5, rel=1e-3) == Durations.merged(parts).quantile(0.5)
    assert 0 == Durations.merged([]).count


def test_missing_and_stopped_participants_are_told_with_their_part() -> None:
    """The report says which share was sent of a participant that died halfway, and of one stopped after a fifth."""
    schedule = Schedule(classes=CLASSES, participants=4)
    shares = {0: recorded(0, 4), 2: recorded(2, 4, seconds=2), 3: recorded(3, 4)}
    whole = whole_of(["a", "b", "c", "d"], shares, {1: 7.0}, schedule)
    sent = {"b": 275 / 650, "c": 98 / 650}

    assert [("a", 1, False), ("b", sent["b"], True), ("c", sent["c"], False), ("d", 1, False)] == [
        (each.name, pytest.approx(each.sent_part), each.is_missing) for each in whole.participants
    ]
    assert pytest.approx(sent["b"] / 4) == whole.absent_share
    assert pytest.approx((2 - sent["b"] - sent["c"]) / 4) == whole.unsent_share
    assert (
        "b is missing, last heard of after 42% of its share; c was stopped after 15% of its share. "
        "at most 36% of the load was never sent, and at least 10% was sent but is not in these figures"
    ) == whole.incomplete
    assert (
        "b was stopped after 15% of its share. 42% of the load was never sent, and 0% was sent but is not in these figures"
        == whole_of(["a", "b"], {0: shares[0], 1: shares[2]}, {}, schedule).incomplete
    )
    assert whole_of(["a", "c"], {0: shares[0], 1: shares[3]}, {}, schedule).incomplete is None
    assert (
        sum(share.count for share in shares.values())
        == whole.figures.count
        == sum(each.count for each in whole.participants)
    )


def checkpoints(rank: int, participants: int, *, until: float) -> list[Figures]:
    """Return the figures that a participant leaves every two seconds, as others read them."""
    schedule = Schedule(classes=CLASSES, rank=rank, participants=participants)
    recorder, left = LoadRecorder(schedule), []
    for second in range(2, 2 + int(until), 2):
        for arrival in schedule.arrivals():
            if second <= arrival.due < second + 2:
                end(recorder, arrival, rank)
        sums = at_the_end(recorder.cut().sums_in_steps())
        steps = sums.json_in_steps(seconds=second, cpu_share=1 / second, full_seconds=0.0)
        left.append(Figures.from_json(json.loads(json.dumps(at_the_end(steps)))))
    return left


def at_the_end(steps):
    """Return the value that a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def test_missing_participant_is_in_the_figures_until_its_last_checkpoint() -> None:
    """The figures of a dead participant count up to its last checkpoint, in any order, with its sent and known part."""
    schedule = Schedule(classes=CLASSES, participants=2)
    left = checkpoints(1, 2, until=6)
    count = sum(each.count for each in left)
    for order in (left, left[::-1]):
        whole = whole_of(["a", "b"], {0: recorded(0, 2)}, {1: 2 + 7.0}, schedule, {1: order})
        missing = whole.participants[1]

        assert (True, count, 1 / 6) == (missing.is_missing, missing.count, missing.cpu_share)
        assert recorded(0, 2).count + count == whole.figures.count
        assert (pytest.approx(413 / 650), pytest.approx(342 / 650, abs=2 / 325)) == (
            missing.sent_part,
            missing.known_part,
        )
        assert pytest.approx((missing.sent_part - missing.known_part) / 2) == whole.absent_share
        assert (
            "b is missing, last heard of after 64% of its share, with figures up to 53%. "
            "at most 19% of the load was never sent, and at least 5% was sent but is not in these figures"
        ) == whole.incomplete
        assert "at least 63%, figures up to 53%" == missing.sent
    together = merge([recorded(0, 2), recorded(1, 2, seconds=6)])
    assert together.response_times.curve() == whole.figures.response_times.curve()
    assert [each.count for each in together.timeline] == [each.count for each in whole.figures.timeline]
    assert [each.p99 for each in together.phases] == [each.p99 for each in whole.figures.phases]


def test_checkpoint_that_redis_has_lost_is_not_in_the_known_part() -> None:
    """Only checkpoints that are there count, not the time of the last one; complete figures replace checkpoints."""
    schedule = Schedule(classes=CLASSES, participants=2)
    left = checkpoints(1, 2, until=6)
    own = {0: recorded(0, 2)}
    whole = whole_of(["a", "b"], own, {1: 9.0}, schedule, {1: left[2:]})
    complete = whole_of(["a", "b"], own | {1: recorded(1, 2)}, {1: 9.0}, schedule, {1: left})

    assert pytest.approx(left[2].count / 325) == whole.participants[1].known_part
    assert complete.incomplete is None
    assert merge([recorded(0, 2), recorded(1, 2)]).count == complete.figures.count


def test_one_alone_keeps_its_figures_and_the_reason() -> None:
    """A participant that could not merge reports its own figures with the reason, without histograms of their parts."""
    figures = recorded(1, 2)
    whole = alone("b", figures, Schedule(classes=CLASSES, participants=2), reason="no answer")

    assert "these figures are of b alone, as they could not be merged: no answer" == whole.incomplete
    assert figures.count == whole.figures.count
    assert {None} == {each.histogram for each in whole.figures.timeline}
