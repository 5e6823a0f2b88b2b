"""Requests counted while a load runs: each once, in the part of its duration, with those of its class and outcome."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor.load import tally as module
from ratelimited_executor.load.arrivals import Arrival, Phase, Schedule
from ratelimited_executor.load.recording import LoadOutcome, LoadRecorder
from ratelimited_executor.load.tally import BoundedHistogram, RequestKind, RequestTally
from tests.helpers import examples

BOUNDS = (0.01, 0.1, 1.0)
OUTCOMES = [LoadOutcome(status=200), LoadOutcome("status 503", "no", 503), LoadOutcome("timeout", "late")]


def recorder_of() -> LoadRecorder:
    """Return a recorder of two classes."""
    phase = Phase(first=1, last=1, seconds=100)
    return LoadRecorder(Schedule(classes={"a": [phase], "b": [phase]}))


def record(recorder: LoadRecorder, class_index: int, outcome: int, seconds: float, *, wait: float | None = 0.0) -> None:
    """Record a request that took some seconds after a wait; None if it never started."""
    due = 1.0
    started = None if wait is None else due + wait
    arrival = Arrival(number=0, due=due, phase=0, class_index=class_index, turn=0)
    recorder.add(arrival, started, due + seconds, OUTCOMES[outcome])


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.floats(0, 5), st.integers(0, 9)), max_size=60))
def test_each_request_is_counted_once(requests: list[tuple[int, int, float, int]]) -> None:
    """Whenever counts are taken, and in however short steps, their sums are those of all requests until then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_STEP_COUNT", 7)
        recorder, tally = recorder_of(), RequestTally(BOUNDS, BOUNDS)
        tally.follow(recorder)
        for class_index, outcome, seconds, pause in requests:
            record(recorder, class_index, outcome, seconds)
            if not pause:
                tally.take_all()
        tally.take_all()
        tally.take_all()
    expected = Counter((c, OUTCOMES[o].error, OUTCOMES[o].status) for c, o, _, _ in requests)
    assert expected == {tuple(kind): each.responses.count for kind, each in tally.kinds.items()}
    for kind, found in tally.kinds.items():
        own = [s for c, o, s, _ in requests if kind == RequestKind(c, OUTCOMES[o].error, OUTCOMES[o].status)]
        assert pytest.approx(sum(own), rel=1e-5, abs=1e-5) == found.responses.total
        assert pytest.approx((min(own), max(own)), rel=1e-5, abs=1e-5) == (found.responses.least, found.responses.most)
        assert found.services.count == len(own)


def test_duration_is_in_the_first_part_that_it_does_not_exceed() -> None:
    """A bound belongs to the part below it, as in OpenTelemetry; what exceeds all is in the last; a negative duration is 0."""
    histogram = BoundedHistogram(BOUNDS)
    histogram.add_all([0.01, 0.010001, 1.0, 1.5, -0.1])
    histogram.add_all([])
    assert ([2, 1, 1, 1], 5, 0.0, 1.5) == (histogram.counts, histogram.count, histogram.least, histogram.most)
    assert pytest.approx(2.520001) == histogram.total


def test_request_that_never_started_has_no_service_time() -> None:
    """A request that waited in vain has a response time, and no service time; a wait counts in the response time alone."""
    recorder, tally = recorder_of(), RequestTally(BOUNDS, BOUNDS)
    tally.follow(recorder)
    record(recorder, 0, 2, 0.5, wait=None)
    record(recorder, 0, 2, 0.5, wait=0.45)
    tally.take_all()
    [found] = tally.kinds.values()
    assert ([0, 0, 2, 0], [0, 1, 0, 0]) == (found.responses.counts, found.services.counts)


def test_loads_that_follow_each_other_add_up() -> None:
    """The rest of a load is counted when the next begins, and the counts go on from there."""
    tally = RequestTally(BOUNDS, BOUNDS)
    for _ in range(3):
        recorder = recorder_of()
        tally.follow(recorder)
        record(recorder, 1, 0, 0.05)
    tally.take_all()
    assert {RequestKind(1, None, 200): 3} == {kind: each.responses.count for kind, each in tally.kinds.items()}
