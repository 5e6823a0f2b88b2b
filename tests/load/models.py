"""Figures and measurements for tests, made without sending a load."""

from __future__ import annotations

from ratelimited_executor.load.arrivals import Arrival, Phase, Schedule
from ratelimited_executor.load.figures import Figures, Measurement
from ratelimited_executor.load.recording import LoadOutcome, LoadRecorder


def record(
    recorder: LoadRecorder,
    *,
    due: float,
    ended: float,
    started: float | None = None,
    phase: int = 0,
    class_index: int = 0,
    lateness: float = 0.0,
    **outcome,
) -> None:
    """Record a request that has ended, with the fields of its outcome."""
    recorder.add(Arrival(0, due, phase, class_index), started, ended, LoadOutcome(**outcome), lateness)


def figures_of(
    durations, *, errors: int = 0, lateness: float = 0.0, cpu_share: float = 0.1, kind: str = "timeout"
) -> Figures:
    """Return the figures of 10 requests a second, the first ``errors`` of which failed."""
    seconds = max(1.0, len(durations) / 10)
    recorder = LoadRecorder(Schedule(classes={"": [Phase(first=10, last=10, seconds=seconds)]}))
    for number, duration in enumerate(durations):
        due = number / 10
        is_error = number < errors
        record(
            recorder,
            due=due,
            started=due + lateness,
            ended=due + duration,
            lateness=lateness,
            error=kind if is_error else None,
            status=None if is_error else 200,
            received=5,
        )
    return recorder.figures(seconds=seconds, cpu_share=cpu_share, full_seconds=0.0)


def figures_of_classes(**durations) -> Figures:
    """Return the figures of a load with classes, each of 10 requests a second."""
    seconds = max(map(len, durations.values())) / 10
    recorder = LoadRecorder(Schedule(classes={name: [Phase(first=10, last=10, seconds=seconds)] for name in durations}))
    for index, of_class in enumerate(durations.values()):
        for number, duration in enumerate(of_class):
            due = number / 10
            record(recorder, due=due, started=due, ended=due + duration, class_index=index)
    return recorder.figures(seconds=seconds, cpu_share=0.1, full_seconds=0.0)


def measurement_of(figures: Figures, **more) -> Measurement:
    """Return a measurement with the figures and with settings of its own, which ``more`` replaces."""
    fields = {
        "target": "http://service/",
        "settings": {"rate": "10/s"},
        "begun": "2026-01-01T00:00:00+00:00",
        "version": "1",
    }
    return Measurement(**{**fields, **more}, figures=figures)
