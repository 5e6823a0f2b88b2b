"""The record of each request: two durations, its error, its bytes, and the tool's own lateness.

*From the intended start* counts from the due time. *From the actual start* counts from the time of sending. A service
that stalls also delays requests that could not be sent in time. Only the first duration contains that wait; a tool that
shows only the second omits it ("coordinated omission", Gil Tene).

*Our lateness* is the delay added by the tool itself: from the moment at which a request was due **and** had a
connection, to its start. Waiting for a connection is caused by the service and does not count.

Memory: for each request, one array item of 4 bytes for its second and one for its phase.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.load.durations import Durations
from ratelimited_executor.load.figures import ClassFigures, Figures, PhaseFigures, SecondFigures, quantile_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.load.arrivals import Phase, Schedule

__all__ = ["NOT_STARTED", "Ended", "Recorder"]

NOT_STARTED: Final = "not started"  # the kind of error of a due request that never got a connection
_RECENT_COUNT: Final = 1_000  # durations in the live view's percentiles: sorting them delays a start by 0.1 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that has ended; times in seconds after the beginning of the load.

    Attributes:
        due: its intended start.
        phase: the index of its phase.
        class_index: the index of its class.
        started: its actual start; None if it never started.
        ended: the time at which it ended, or was given up.
        lateness: the delay before the start that the tool itself added.
        error: the kind of its error; None if there was none.
        status: the status of the response; None if there was none.
        received: bytes of the response body.
    """

    due: float
    phase: int
    started: float | None
    ended: float
    lateness: float = 0.0
    error: str | None = None
    status: int | None = None
    received: int = 0
    class_index: int = 0


@dataclass(slots=True)
class _Part:
    """Requests of one second, or of one phase."""

    durations: array[float] = field(default_factory=lambda: array("f"))
    error_count: int = 0

    def add(self, ended: Ended) -> None:
        self.durations.append(ended.ended - ended.due)
        self.error_count += ended.error is not None

    def figures(self, *, is_share: bool) -> dict[str, Any]:
        """Return the fields of ``PartFigures``; with the histogram for a share, which is to be merged with others."""
        ordered = sorted(self.durations)
        shares = (("p50", 0.5), ("p99", 0.99), ("most", 1.0))
        quantiles = {name: quantile_of(ordered, share) for name, share in shares}
        histogram = None
        if is_share:
            durations = Durations()
            for each in ordered:
                durations.add(each)
            histogram = durations.to_json()
        return {"count": len(ordered), "error_count": self.error_count, **quantiles, "histogram": histogram}


class _OfClass:
    """Requests of one class."""

    def __init__(self, name: str, phases: Sequence[Phase]) -> None:
        self._name, self._phases = name, [phase for phase in phases if phase.is_measured]
        self._from_intended, self._from_actual = Durations(), Durations()
        self._error_count = 0

    def add(self, ended: Ended) -> None:
        self._from_intended.add(ended.ended - ended.due)
        if ended.started is not None:
            self._from_actual.add(ended.ended - ended.started)
        self._error_count += ended.error is not None

    def figures(self) -> ClassFigures:
        return ClassFigures(
            name=self._name,
            first=self._phases[0].first,
            last=self._phases[-1].last,
            count=self._from_intended.count,
            error_count=self._error_count,
            from_intended=self._from_intended,
            from_actual=self._from_actual,
        )


class Recorder:
    """Records requests as they end, and sums them up.

    Args:
        schedule: the schedule of the load. Requests of its unmeasured phases, which come first, are ignored.
    """

    def __init__(self, schedule: Schedule) -> None:
        phases = self._phases = schedule.phases
        self._is_share = schedule.participants > 1
        self._of_class = [_OfClass(name, schedule.classes[name]) for name in schedule.names]
        self._begin = schedule.warm_up
        self._from_intended, self._from_actual, self._lateness = Durations(), Durations(), Durations()
        self._errors: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()
        self._received = 0
        self._of_second: dict[int, _Part] = {}
        self._of_phase = [_Part() for _ in phases]
        self._last_end = self._begin
        self._recent: deque[float] = deque(maxlen=_RECENT_COUNT)

    @property
    def error_count(self) -> int:
        """The number of measured requests that have failed so far."""
        return self._errors.total()

    @property
    def ended_count(self) -> int:
        """The number of measured requests that have ended so far."""
        return self._from_intended.count

    def add(self, ended: Ended) -> None:
        """Record a request."""
        if not self._phases[ended.phase].is_measured:
            return
        duration = ended.ended - ended.due
        self._recent.append(duration)
        self._from_intended.add(duration)
        if ended.started is not None:
            self._from_actual.add(ended.ended - ended.started)
            self._lateness.add(ended.lateness)
        if ended.error is not None:
            self._errors[ended.error] += 1
        if ended.status is not None:
            self._statuses[ended.status] += 1
        self._received += ended.received
        self._of_phase[ended.phase].add(ended)
        if self._of_class:
            self._of_class[ended.class_index].add(ended)
        self._of_second.setdefault(int(ended.due - self._begin), _Part()).add(ended)
        self._last_end = max(self._last_end, ended.ended)

    def recent(self, share: float) -> float:
        """Return a quantile of the last thousand durations from the intended start."""
        return quantile_of(sorted(self._recent), share)

    def figures(self, *, seconds: float, cpu_share: float, full_seconds: float) -> Figures:
        """Return the figures of the recorded requests.

        Args:
            seconds: the time over which requests were due.
            cpu_share: the fraction of one core that the process used meanwhile.
            full_seconds: the time during which all connections were in use.
        """
        return Figures(
            seconds=seconds,
            wall_seconds=self._last_end - self._begin,
            cpu_share=cpu_share,
            full_seconds=full_seconds,
            count=self.ended_count,
            errors=dict(self._errors.most_common()),
            statuses=dict(sorted(self._statuses.items())),
            received=self._received,
            from_intended=self._from_intended,
            from_actual=self._from_actual,
            lateness=self._lateness,
            phases=[
                PhaseFigures(
                    first=phase.first, last=phase.last, seconds=phase.seconds, **part.figures(is_share=self._is_share)
                )
                for phase, part in zip(self._phases, self._of_phase, strict=True)
                if phase.is_measured
            ],
            classes=[each.figures() for each in self._of_class],
            timeline=[
                SecondFigures(second=second, **part.figures(is_share=self._is_share))
                for second, part in sorted(self._of_second.items())
            ],
        )
