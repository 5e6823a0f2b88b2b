"""The record of each request: two durations, its error, its bytes, and the tool's own lateness.

The *response time* of a request counts from its due time. The *service time* counts from the time of sending. A service
that stalls also delays requests that could not be sent in time. Only the first duration contains that wait; a tool that
shows only the second omits it ("coordinated omission", Gil Tene).

*Our lateness* is the delay added by the tool itself: from the moment at which a request was due **and** had a
connection, to its start. Waiting for a connection is caused by the service and does not count.

A participant of a shared load leaves its figures with the others every few seconds, in case it dies. Each time its
records are cut: those since the last cut become a :class:`LoadSums` of its own, which is encoded in steps between the
starts of requests, and is added to the sums of the whole. So recording a request costs the same with cuts as without.

Memory: for each request, one array item of 4 bytes for its second and one for its phase.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.load.durations import Durations
from ratelimited_executor.load.figures import ClassFigures, Figures, PhaseFigures, SecondFigures, quantile_of, shorten

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from ratelimited_executor.load.arrivals import Schedule

__all__ = ["NOT_STARTED", "Ended", "LoadRecorder", "LoadSums"]

NOT_STARTED: Final = "not started"  # the kind of error of a due request that never got a connection
_RECENT_COUNT: Final = 1_000  # durations in the live view's percentiles: sorting them delays a start by 0.1 ms
_STEP_COUNT: Final = 200  # durations that a step of encoding adds to a histogram: it delays a start by 0.3 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that has ended; times in seconds after the beginning of the load.

    Attributes:
        due: when it was due.
        phase: the index of its phase.
        class_index: the index of its class.
        started: when it was sent; None if it never started.
        ended: the time at which it ended, or was given up.
        lateness: the delay before the start that the tool itself added.
        error: the kind of its error; None if there was none.
        sample: the text of the error, or of the response.
        status: the status of the response; None if there was none.
        received: bytes of the response body.
    """

    due: float
    phase: int
    started: float | None
    ended: float
    lateness: float = 0.0
    error: str | None = None
    sample: str = ""
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

    def take(self, other: _Part) -> None:
        self.durations.extend(other.durations)
        self.error_count += other.error_count

    def figures(self, *, is_share: bool) -> dict[str, Any]:
        """Return the fields of ``PartFigures``; with the histogram for a share, which is to be merged with others."""
        ordered = sorted(self.durations)
        shares = (("p50", 0.5), ("p99", 0.99), ("most", 1.0))
        quantiles = {name: quantile_of(ordered, share) for name, share in shares}
        histogram = _histogram_of(ordered).to_json() if is_share else None
        return {"count": len(ordered), "error_count": self.error_count, **quantiles, "histogram": histogram}

    def figures_in_steps(self, durations: Durations | None = None) -> Generator[None, None, dict[str, Any]]:
        """Return the fields of ``PartFigures`` for merging alone: its quantiles are 0. Yield between short steps.

        Args:
            durations: the durations of the part, if they are in a histogram already.
        """
        if durations is None:
            durations = Durations()
            for begin in range(0, len(self.durations), _STEP_COUNT):
                _add_all(durations, self.durations[begin : begin + _STEP_COUNT])
                yield
        histogram = durations.to_json() if self.durations else None
        fields = {"count": len(self.durations), "error_count": self.error_count, "p50": 0.0, "p99": 0.0, "most": 0.0}
        return fields | {"histogram": histogram}


class _OfClass:
    """Requests of one class."""

    def __init__(self) -> None:
        self.response_times, self.service_times = Durations(), Durations()
        self.error_count = 0

    def add(self, ended: Ended) -> None:
        self.response_times.add(ended.ended - ended.due)
        if ended.started is not None:
            self.service_times.add(ended.ended - ended.started)
        self.error_count += ended.error is not None

    def take(self, other: _OfClass) -> None:
        self.response_times.take(other.response_times)
        self.service_times.take(other.service_times)
        self.error_count += other.error_count


class LoadSums:
    """The sums of recorded requests.

    Args:
        schedule: the schedule of the load.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._phases = schedule, schedule.phases
        self._is_share = schedule.participants > 1
        self._begin = schedule.warm_up
        self._response_times, self._service_times, self._lateness = Durations(), Durations(), Durations()
        self._errors: Counter[str] = Counter()
        self._samples: dict[str, str] = {}
        self._statuses: Counter[int] = Counter()
        self._received = 0
        self._of_second: dict[int, _Part] = {}
        self._of_phase = [_Part() for _ in self._phases]
        # By index; each is made when its first request ends, as a hundred at once would delay starts.
        self._of_class: dict[int, _OfClass] = {}
        self._has_classes = bool(schedule.names)
        self._last_end = self._begin

    @property
    def error_count(self) -> int:
        """The number of failed requests."""
        return self._errors.total()

    @property
    def count(self) -> int:
        """The number of requests."""
        return self._response_times.count

    def add(self, ended: Ended) -> None:
        """Add a measured request."""
        self._response_times.add(ended.ended - ended.due)
        if ended.started is not None:
            self._service_times.add(ended.ended - ended.started)
            self._lateness.add(ended.lateness)
        if ended.error is not None:
            self._errors[ended.error] += 1
            if ended.error not in self._samples and ended.sample:
                self._samples[ended.error] = shorten(ended.sample)
        if ended.status is not None:
            self._statuses[ended.status] += 1
        self._received += ended.received
        self._of_phase[ended.phase].add(ended)
        if self._has_classes:
            self._class(ended.class_index).add(ended)
        self._of_second.setdefault(int(ended.due - self._begin), _Part()).add(ended)
        self._last_end = max(self._last_end, ended.ended)

    def take(self, other: LoadSums) -> None:
        """Add the sums of other requests of the same load. Takes a tenth of a millisecond, and as much for each class."""
        self._response_times.take(other._response_times)
        self._service_times.take(other._service_times)
        self._lateness.take(other._lateness)
        self._errors.update(other._errors)
        self._samples = other._samples | self._samples
        self._statuses.update(other._statuses)
        self._received += other._received
        for part, other_part in zip(self._of_phase, other._of_phase, strict=True):
            part.take(other_part)
        for index, of_class in other._of_class.items():
            self._class(index).take(of_class)
        for second, part in other._of_second.items():
            self._of_second.setdefault(second, _Part()).take(part)
        self._last_end = max(self._last_end, other._last_end)

    def figures(self, *, seconds: float, cpu_share: float, full_seconds: float) -> Figures:
        """Return the figures of the requests.

        Args:
            seconds: the time over which requests were due.
            cpu_share: the fraction of one core that the process used meanwhile.
            full_seconds: the time during which all connections were in use.
        """
        return self._figures(
            phases=[part.figures(is_share=self._is_share) for part in self._of_phase],
            timeline=[(second, part.figures(is_share=self._is_share)) for second, part in self._seconds()],
            seconds=seconds,
            cpu_share=cpu_share,
            full_seconds=full_seconds,
        )

    def json_in_steps(
        self, *, seconds: float, cpu_share: float, full_seconds: float
    ) -> Generator[None, None, dict[str, Any]]:
        """Return the figures as values for JSON, for merging with others of the same load: without percentiles.

        Yield after each step of about a third of a millisecond. Nothing may be added meanwhile.
        """
        phases, timeline = [], []
        for part in self._of_phase:
            known = self._response_times if len(part.durations) == self.count else None
            phases.append((yield from part.figures_in_steps(known)))
        for second, part in self._seconds():
            timeline.append((second, (yield from part.figures_in_steps())))
        figures = self._figures(
            phases=phases, timeline=timeline, seconds=seconds, cpu_share=cpu_share, full_seconds=full_seconds
        )
        return (yield from figures.to_json_in_steps())

    def _figures(
        self, *, phases: Iterable[dict[str, Any]], timeline: Iterable[tuple[int, dict[str, Any]]], **times: float
    ) -> Figures:
        return Figures(
            **times,
            wall_seconds=self._last_end - self._begin,
            count=self.count,
            errors=dict(self._errors.most_common()),
            samples=dict(self._samples),
            statuses=dict(sorted(self._statuses.items())),
            received=self._received,
            response_times=self._response_times,
            service_times=self._service_times,
            lateness=self._lateness,
            phases=[
                PhaseFigures(first=phase.first, last=phase.last, seconds=phase.seconds, **part)
                for phase, part in zip(self._phases, phases, strict=True)
                if phase.is_measured
            ],
            classes=self._class_figures(),
            timeline=[SecondFigures(second=second, **part) for second, part in timeline],
        )

    def _class_figures(self) -> list[ClassFigures]:
        figures, none = [], _OfClass()
        for index, name in enumerate(self._schedule.names):
            measured = [phase for phase in self._schedule.classes[name] if phase.is_measured]
            of_class = self._of_class.get(index, none)
            figures.append(
                ClassFigures(
                    name=name,
                    first=measured[0].first,
                    last=measured[-1].last,
                    count=of_class.response_times.count,
                    error_count=of_class.error_count,
                    response_times=of_class.response_times,
                    service_times=of_class.service_times,
                )
            )
        return figures

    def _class(self, index: int) -> _OfClass:
        of_class = self._of_class.get(index)
        if of_class is None:
            of_class = self._of_class[index] = _OfClass()
        return of_class

    def _seconds(self) -> list[tuple[int, _Part]]:
        return sorted(self._of_second.items())


class LoadRecorder:
    """Records requests as they end, and sums them up.

    Args:
        schedule: the schedule of the load. Requests of its unmeasured phases, which come first, are ignored.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._is_measured = [phase.is_measured for phase in schedule.phases]
        self._before: LoadSums | None = None  # of requests until the last cut; None if there was none
        self._since = LoadSums(schedule)  # of requests since then
        self._recent: deque[float] = deque(maxlen=_RECENT_COUNT)

    @property
    def error_count(self) -> int:
        """The number of measured requests that have failed so far."""
        return self._since.error_count + (0 if self._before is None else self._before.error_count)

    @property
    def ended_count(self) -> int:
        """The number of measured requests that have ended so far."""
        return self._since.count + (0 if self._before is None else self._before.count)

    def add(self, ended: Ended) -> None:
        """Record a request."""
        if self._is_measured[ended.phase]:
            self._recent.append(ended.ended - ended.due)
            self._since.add(ended)

    def recent(self, share: float) -> float:
        """Return a quantile of the last thousand response times."""
        return quantile_of(sorted(self._recent), share)

    def cut(self) -> LoadSums:
        """Return the sums of the requests recorded since the last cut; nothing is added to them any more."""
        cut, self._since = self._since, LoadSums(self._schedule)
        if self._before is None:
            self._before = LoadSums(self._schedule)
        self._before.take(cut)
        return cut

    def figures(self, *, seconds: float, cpu_share: float, full_seconds: float) -> Figures:
        """Return the figures of all recorded requests; see ``LoadSums.figures``. Nothing may be recorded later."""
        if self._before is not None:
            self.cut()
        whole = self._since if self._before is None else self._before
        return whole.figures(seconds=seconds, cpu_share=cpu_share, full_seconds=full_seconds)


def _histogram_of(values: Iterable[float]) -> Durations:
    durations = Durations()
    _add_all(durations, values)
    return durations


def _add_all(durations: Durations, values: Iterable[float]) -> None:
    for each in values:
        durations.add(each)
