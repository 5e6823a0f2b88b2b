"""Recording requests, the figures that come of it, and their JSON."""

from __future__ import annotations

import json

import pytest

from ratelimited_executor.load.arrivals import Phase, Schedule
from ratelimited_executor.load.durations import Durations
from ratelimited_executor.load.figures import Measurement, Participant, quantile_of
from ratelimited_executor.load.recording import NOT_STARTED, LoadRecorder
from tests.load.models import figures_of, figures_of_classes, measurement_of, record


def test_durations_are_exact_to_three_digits() -> None:
    """Durations of a microsecond to an hour have three digits; longer ones count as an hour; the maximum is exact."""
    durations = Durations()
    for seconds in (0.000_001, 0.001_234, 1.5, 3_000.0, 9_999.0):
        durations.add_all([seconds])

    assert 5 == durations.count
    assert pytest.approx(0.001_234, rel=1e-3) == durations.quantile(0.4)
    assert pytest.approx(1.5, rel=1e-3) == durations.quantile(0.6)
    assert pytest.approx(3_600, rel=1e-3) == durations.quantile(1)
    assert 9_999 == durations.most
    assert 3 == durations.count_above(0.01)


def test_durations_survive_json() -> None:
    """Durations read from their JSON have the same quantiles, mean and maximum; no durations at all work as well."""
    durations = Durations()
    for number in range(1, 1000):
        durations.add_all([number / 1000])
    read = Durations.from_json(json.loads(json.dumps(durations.to_json())))

    assert durations.curve() == read.curve()
    assert (durations.mean, durations.most) == pytest.approx((read.mean, read.most))
    assert 0 == Durations.from_json(Durations().to_json()).count


@pytest.mark.parametrize("change", [{"hdr": "nonsense"}, {"count": 3}, {"max": "x"}, {"mean": float("nan")}])
def test_broken_histogram_is_refused(change) -> None:
    """A broken histogram raises a ValueError, whichever error the codec raises."""
    durations = Durations()
    durations.add_all([1])

    with pytest.raises(ValueError, match="histogram"):
        Durations.from_json(durations.to_json() | change)


def test_recorder_tells_both_durations_and_leaves_the_warm_up_out() -> None:
    """Figures have both durations and requests that never started; requests of the warm-up are left out."""
    phases = [Phase(first=1, last=1, seconds=5, is_measured=False), Phase(first=1, last=1, seconds=10)]
    recorder = LoadRecorder(Schedule(classes={"": phases}))
    record(recorder, due=1.0, phase=0, started=1.0, ended=99.0, error="timeout")
    record(recorder, due=5.0, phase=1, started=7.0, ended=7.01, status=200, received=3)
    record(recorder, due=6.5, phase=1, started=None, ended=10.0, error=NOT_STARTED)
    figures = recorder.figures(seconds=10, cpu_share=0, full_seconds=2)

    assert (2, 1, 1) == (figures.count, figures.service_times.count, figures.lateness.count)
    assert pytest.approx(2.01, rel=1e-3) == figures.response_times.quantile(0.5)
    assert pytest.approx(0.01, rel=1e-3) == figures.service_times.quantile(0.5)
    assert ({NOT_STARTED: 1}, {200: 1}, 3) == (figures.errors, figures.statuses, figures.received)
    assert [(0, 1, 0), (1, 1, 1)] == [(each.second, each.count, each.error_count) for each in figures.timeline]
    assert [(2, 1)] == [(phase.count, phase.error_count) for phase in figures.phases]
    assert (0.2, 0.1) == (figures.asked_rate, figures.answered_rate)
    assert (1, 0.5) == (figures.sent_count, figures.sent_share)


def test_many_requests_of_a_part_are_not_sorted(monkeypatch) -> None:
    """The quantiles of a phase of many requests have the three digits of a histogram, and its longest is exact."""
    recorder = LoadRecorder(Schedule(classes={"": [Phase(first=100, last=100, seconds=1)] * 2}))
    for number in range(200):
        record(recorder, due=number / 100, phase=number // 100, started=number / 100, ended=number / 50 + 0.0123456)
    exact = recorder.figures(seconds=2, cpu_share=0, full_seconds=0).phases
    monkeypatch.setattr("ratelimited_executor.load.recording._SORTED_MAX", 50)
    counted = recorder.figures(seconds=2, cpu_share=0, full_seconds=0).phases

    assert [each.p50 for each in counted] != [each.p50 for each in exact]
    for one, other in zip(exact, counted, strict=True):
        assert pytest.approx((one.p50, one.p99), rel=1e-3) == (other.p50, other.p99)
    assert [(each.count, each.most) for each in exact] == [(each.count, each.most) for each in counted]


def test_request_that_is_sent_after_the_load_does_not_count_as_sent_in_time() -> None:
    """A request that waited for a connection beyond the end of the load is none of those that reach the target rate."""
    recorder = LoadRecorder(Schedule(classes={"": [Phase(first=1, last=1, seconds=2)]}))
    record(recorder, due=0.0, started=1.9, ended=2.5)
    record(recorder, due=1.0, started=2.1, ended=2.6)
    figures = recorder.figures(seconds=2, cpu_share=0, full_seconds=2)

    assert (2, 1) == (figures.count, figures.sent_count)


def test_each_class_has_figures_of_its_own() -> None:
    """A load with classes has figures for each class as well as for all requests; one without has no classes."""
    figures = figures_of_classes(ordinary=[0.5] * 90, urgent=[0.01] * 10)

    assert ["ordinary", "urgent"] == [each.name for each in figures.classes]
    assert (100, [90, 10]) == (figures.count, [each.count for each in figures.classes])
    assert pytest.approx([0.5, 0.01], rel=1e-3) == [each.service_times.quantile(0.99) for each in figures.classes]
    assert [] == figures_of([0.5]).classes


@pytest.mark.parametrize(
    "figures",
    [figures_of([0.1, 0.2, 0.3], errors=1), figures_of_classes(a=[0.1, 0.2], b=[0.3])],
    ids=["plain", "classes"],
)
def test_measurement_survives_json(figures) -> None:
    """A measurement read from its JSON has every field, and its JSON has quantiles for readers without our library."""
    participants = [Participant(name="a", sent_part=1, count=3), Participant(name="b", sent_part=0.5, is_missing=True)]
    measurement = measurement_of(figures, search={"held": 10.0}, participants=participants, incomplete="b is missing")
    text = json.dumps(measurement.to_json())
    read = Measurement.from_json(json.loads(text))

    assert json.loads(text) == read.to_json()
    assert (participants, "b is missing") == (read.participants, read.incomplete)
    assert pytest.approx(0.3, rel=1e-2) == json.loads(text)["figures"]["response_times"]["p99"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "not a measurement"),
        ({"kind": "else"}, "not a measurement"),
        ({"kind": "ratelimited-executor bench", "format": 99}, "format 99"),
        ({"kind": "ratelimited-executor bench", "format": 1}, "field is missing"),
        ({"kind": "ratelimited-executor bench", "format": 1, "figures": {"phases": 3}}, "field is missing"),
    ],
)
def test_other_json_is_refused(value, reason) -> None:
    """JSON that is not a measurement of a known format is refused with the reason."""
    with pytest.raises(ValueError, match=reason):
        Measurement.from_json(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("settings", None),
        ("settings", {"rate": 5}),
        ("incomplete", ["why"]),
        ("target", None),
        ("figures.seconds", None),
        ("figures.cpu_share", 10**400),
        ("figures.count", "3"),
        ("figures.count", 4),
        ("figures.wall_seconds", float("nan")),
        ("figures.received", -1),
        ("figures.errors", {"http 500": None}),
        ("figures.statuses", []),
        ("figures.lateness", None),
        ("figures.phases", [{"count": "3"}]),
    ],
)
def test_field_of_another_type_is_refused(name, value) -> None:
    """A field of the wrong type or of an impossible value is refused by its name, as reports rely on the types."""
    written = json.loads(json.dumps(measurement_of(figures_of([0.1, 0.2, 0.3])).to_json()))
    Measurement.from_json(written)
    place, _, field = name.rpartition(".")
    (written[place] if place else written)[field] = value
    with pytest.raises(ValueError, match=f"{field} has|another type"):
        Measurement.from_json(written)


def test_quantile_is_the_smallest_value_that_the_share_does_not_exceed() -> None:
    """The quantile is the smallest value that at least the given share of the values does not exceed."""
    values = [float(value) for value in range(1, 101)]

    assert (1, 50, 99, 100) == tuple(quantile_of(values, share) for share in (0, 0.5, 0.99, 1))
    assert 0 == quantile_of([], 0.5)
