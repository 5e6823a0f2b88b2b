"""The record of each request: two durations, its outcome, and the tool's own lateness.

The *response time* of a request counts from its due time. The *service time* counts from the time of sending. A service
that stalls also delays requests that could not be sent in time. Only the first duration contains that wait; a tool that
shows only the second omits it ("coordinated omission", Gil Tene).

*Our lateness* is the delay added by the tool itself: from the moment at which a request was due **and** had a
connection, to its start. Waiting for a connection is caused by the service and does not count.

While requests are sent, each is a row of columns and nothing is summed up: that takes a microsecond, and three histograms
would take ten. The rows become a :class:`LoadSums` at the end. A participant of a shared load leaves its figures with the
others every few seconds, in case it dies: each time the rows since the last one are summed up, in steps between the
starts of requests.

Memory: 23 bytes for each request, and 8 more at the end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ratelimited_executor._core.urls import masked_text
from ratelimited_executor.load.durations import Durations
from ratelimited_executor.load.figures import ClassFigures, Figures, PhaseFigures, SecondFigures, quantile_of, shorten

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from ratelimited_executor.load.arrivals import Arrival, Schedule

__all__ = [
    "EDGES",
    "NOT_STARTED",
    "LoadOutcome",
    "LoadRecorder",
    "LoadSums",
    "Recent",
    "RecordColumns",
    "RecordedPart",
]

NOT_STARTED: Final = "not started"  # the kind of error of a due request that never got a connection
_RECENT_COUNT: Final = 1_000  # durations in the live view's percentiles: sorting them delays a start by 0.1 ms
_STEP_COUNT: Final = 500  # rows that a step sums up: it delays a start by 0.3 ms
_SORTED_MAX: Final = 1_000_000  # durations of a part that are sorted: it takes a fifth of a second
EDGES: Final = tuple(digit * 10.0**power for power in range(-4, 2) for digit in (1, 2, 5))
"""The upper ends of the parts of a live histogram, in seconds: 100 us to 50 s."""
_NEVER: Final = -1.0  # in the place of the service time of a request that never started


class LoadOutcome(NamedTuple):
    """The outcome of a request.

    Attributes:
        error: the kind of its error; None if there was none.
        sample: the text of the error, or of the response.
        status: the status of the response; None if there was none.
        received: bytes of the response body.
    """

    error: str | None = None
    sample: str = ""
    status: int | None = None
    received: int = 0


class Recent(NamedTuple):
    """Figures of the latest response times, in seconds.

    Attributes:
        p50, p99: quantiles.
        counts: how many are in each part of a histogram, up to each of ``EDGES`` and above the last.
    """

    p50: float
    p99: float
    counts: tuple[int, ...]


class RecordColumns(NamedTuple):
    """Some of the recorded requests, in the order in which they ended.

    Attributes:
        responses: response times in seconds.
        services: service times; negative for a request that never started.
        classes: the index of its class.
        outcomes: the index of its outcome among ``kinds``.
        kinds: (kind of error, status) of each outcome that there was; None for no error, and for no response.
    """

    responses: Sequence[float]
    services: Sequence[float]
    classes: Sequence[int]
    outcomes: Sequence[int]
    kinds: Sequence[tuple[str | None, int | None]]


class _Rows:
    """The recorded requests, a row each, in the order in which they ended; durations in seconds.

    Attributes:
        responses: response times.
        services: service times; ``_NEVER`` for a request that never started.
        lateness: the delay before the start that the tool itself added.
        seconds: the second of the measured load in which it was due.
        phases: the index of its phase.
        classes: the index of its class.
        outcomes: the index of its outcome among ``kinds``.
        kinds: (kind of error, status) of each outcome that there was; None for no error, and for no response.
    """

    __slots__ = ("classes", "kinds", "lateness", "outcomes", "phases", "responses", "seconds", "services")

    def __init__(self) -> None:
        self.responses, self.services, self.lateness = array("f"), array("f"), array("f")
        self.seconds, self.phases, self.classes, self.outcomes = array("I"), array("H"), array("B"), array("I")
        self.kinds: list[tuple[str | None, int | None]] = []


@dataclass(slots=True)
class _Part:
    """Requests of one second, or of one phase."""

    durations: array[float] = field(default_factory=lambda: array("f"))
    error_count: int = 0

    def figures(self, *, is_share: bool) -> dict[str, Any]:
        """Return the fields of ``PartFigures``; with the histogram for a share, which is to be merged with others."""
        ordered = sorted(self.durations)
        shares = (("p50", 0.5), ("p99", 0.99), ("most", 1.0))
        quantiles = {name: quantile_of(ordered, share) for name, share in shares}
        histogram = None
        if is_share:
            durations = Durations()
            durations.add_all(ordered)
            histogram = durations.to_json()
        return {"count": len(ordered), "error_count": self.error_count, **quantiles, "histogram": histogram}

    def figures_in_steps(self, known: Durations | None, *, is_share: bool) -> Generator[None, None, dict[str, Any]]:
        """Return the fields as ``figures`` does, with quantiles of three digits if there are many; yield between steps."""
        if len(self.durations) <= _SORTED_MAX:
            return self.figures(is_share=is_share)
        durations = yield from self._durations_in_steps(known)
        quantiles = {"p50": durations.quantile(0.5), "p99": durations.quantile(0.99), "most": durations.most}
        histogram = durations.to_json() if is_share else None
        return {"count": len(self.durations), "error_count": self.error_count, **quantiles, "histogram": histogram}

    def mergeable_in_steps(self, known: Durations | None) -> Generator[None, None, dict[str, Any]]:
        """Return the fields of ``PartFigures`` for merging alone: its quantiles are 0. Yield between short steps.

        Args:
            known: the durations of the part, if they are in a histogram already.
        """
        durations = yield from self._durations_in_steps(known)
        histogram = durations.to_json() if self.durations else None
        fields = {"count": len(self.durations), "error_count": self.error_count, "p50": 0.0, "p99": 0.0, "most": 0.0}
        return fields | {"histogram": histogram}

    def _durations_in_steps(self, known: Durations | None) -> Generator[None, None, Durations]:
        if known is not None:
            return known
        durations = Durations()
        for begin in range(0, len(self.durations), _STEP_COUNT):
            durations.add_all(self.durations[begin : begin + _STEP_COUNT])
            yield
        yield from durations.settle_in_steps()
        return durations


class _OfClass:
    """Requests of one class."""

    def __init__(self) -> None:
        self.response_times, self.service_times = Durations(), Durations()
        self.error_count = 0


class LoadSums:
    """The sums of recorded requests.

    Args:
        schedule: the schedule of the load.
        samples: the text of the first error of each kind.
        received: bytes of the response bodies.
        sent_count: how many were sent before the end of the load.
        last_end: when the last request had ended, in seconds after the beginning of the load.
    """

    def __init__(
        self, schedule: Schedule, *, samples: dict[str, str], received: int, sent_count: int, last_end: float
    ) -> None:
        self._schedule, self._phases = schedule, schedule.phases
        self._is_share = schedule.participants > 1
        self._response_times, self._service_times, self._lateness = Durations(), Durations(), Durations()
        self._outcomes: Counter[tuple[str | None, int | None]] = Counter()
        self._samples, self._received, self._sent_count = samples, received, sent_count
        self._of_second: dict[int, _Part] = {}
        self._of_phase = {index: _Part() for index in range(len(self._phases))}
        # By index; each is made when it has a request, as a hundred at once would delay starts.
        self._of_class: dict[int, _OfClass] = {}
        self._wall_seconds = max(0.0, last_end - schedule.warm_up)

    def add_rows(self, rows: _Rows, begin: int, end: int) -> None:
        """Add the requests of rows from ``begin`` to ``end``, which is not one of them."""
        responses, services = rows.responses[begin:end], rows.services[begin:end]
        outcomes = rows.outcomes[begin:end]
        is_error = [kind[0] is not None for kind in rows.kinds]
        errors = [is_error[each] for each in outcomes]
        self._response_times.add_all(responses)
        started = [index for index, each in enumerate(services) if each >= 0]
        self._service_times.add_all([services[index] for index in started])
        self._lateness.add_all([rows.lateness[begin + index] for index in started])
        for index, count in Counter(outcomes).items():
            self._outcomes[rows.kinds[index]] += count
        _add_to_parts(self._of_second, rows.seconds[begin:end], responses, errors)
        _add_to_parts(self._of_phase, rows.phases[begin:end], responses, errors)
        if self._schedule.names:
            self._add_to_classes(rows.classes[begin:end], responses, services, errors)

    def _add_to_classes(
        self, indexes: Sequence[int], responses: Sequence[float], services: Sequence[float], errors: Sequence[bool]
    ) -> None:
        for index in set(indexes):
            of_class = self._of_class.get(index)
            if of_class is None:
                of_class = self._of_class[index] = _OfClass()
            own = [row for row, each in enumerate(indexes) if each == index]
            of_class.response_times.add_all([responses[row] for row in own])
            of_class.service_times.add_all([services[row] for row in own if services[row] >= 0])
            of_class.error_count += sum(errors[row] for row in own)

    def figures_in_steps(
        self, *, seconds: float, cpu_share: float, full_seconds: float, cpu_wait_share: float = 0.0
    ) -> Generator[None, None, Figures]:
        """Return the figures of the requests; yield between steps of a fifth of a second at most.

        Args:
            seconds: the time over which requests were due.
            cpu_share: the fraction of one core that the process used meanwhile.
            cpu_wait_share: the fraction of the time for which it had work and no core.
            full_seconds: the time during which all connections were in use.
        """
        yield from self._settle_in_steps()
        phases, timeline = [], []
        for part in self._of_phase.values():
            phases.append((yield from part.figures_in_steps(self._known_of(part), is_share=self._is_share)))
            yield
        for second, part in self._seconds():
            timeline.append((second, (yield from part.figures_in_steps(None, is_share=self._is_share))))
            yield
        return self._figures(
            phases=phases,
            timeline=timeline,
            seconds=seconds,
            cpu_share=cpu_share,
            cpu_wait_share=cpu_wait_share,
            full_seconds=full_seconds,
        )

    def _known_of(self, part: _Part) -> Durations | None:
        """Return the durations of a part if it has all requests."""
        return self._response_times if len(part.durations) == self._response_times.count else None

    def _settle_in_steps(self) -> Generator[None, None, None]:
        """Put all durations into their histograms."""
        every = [self._response_times, self._service_times, self._lateness]
        every += [each for one in self._of_class.values() for each in (one.response_times, one.service_times)]
        for durations in every:
            yield from durations.settle_in_steps()

    def json_in_steps(
        self, *, seconds: float, cpu_share: float, full_seconds: float, cpu_wait_share: float = 0.0
    ) -> Generator[None, None, dict[str, Any]]:
        """Return the figures as values for JSON, for merging with others of the same load: without percentiles.

        Yield after each step of about a third of a millisecond. Nothing may be added meanwhile.
        """
        yield from self._settle_in_steps()
        phases, timeline = [], []
        for part in self._of_phase.values():
            known = self._known_of(part)
            phases.append((yield from part.mergeable_in_steps(known)))
        for second, part in self._seconds():
            timeline.append((second, (yield from part.mergeable_in_steps(None))))
        figures = self._figures(
            phases=phases,
            timeline=timeline,
            seconds=seconds,
            cpu_share=cpu_share,
            cpu_wait_share=cpu_wait_share,
            full_seconds=full_seconds,
        )
        return (yield from figures.to_json_in_steps())

    def _figures(
        self, *, phases: Iterable[dict[str, Any]], timeline: Iterable[tuple[int, dict[str, Any]]], **times: float
    ) -> Figures:
        errors: Counter[str] = Counter()
        statuses: Counter[int] = Counter()
        for (error, status), count in self._outcomes.items():
            if error is not None:
                errors[error] += count
            if status is not None:
                statuses[status] += count
        return Figures(
            **times,
            wall_seconds=self._wall_seconds,
            count=self._response_times.count,
            errors=dict(errors.most_common()),
            samples={kind: text for kind, text in self._samples.items() if kind in errors},
            statuses=dict(sorted(statuses.items())),
            received=self._received,
            sent_count=self._sent_count,
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

    def _seconds(self) -> list[tuple[int, _Part]]:
        return sorted(self._of_second.items())


def _add_to_parts(
    parts: dict[int, _Part], keys: Sequence[int], responses: array[float], errors: Sequence[bool]
) -> None:
    """Add requests to the parts that they belong to."""
    for key in set(keys):
        part = parts.setdefault(key, _Part())
        if keys.count(key) == len(keys):  # nearly always: requests of one second end together
            part.durations.extend(responses)
            part.error_count += sum(errors)
            return
        own = [row for row, each in enumerate(keys) if each == key]
        part.durations.extend([responses[row] for row in own])
        part.error_count += sum(errors[row] for row in own)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPart:
    """Requests that ended between two cuts of a record.

    Attributes:
        count: how many there are.
    """

    _sums: LoadSums
    _rows: _Rows
    _begin: int
    count: int

    def sums_in_steps(self) -> Generator[None, None, LoadSums]:
        """Return their sums; yield after each step of about a third of a millisecond."""
        end = self._begin + self.count
        for begin in range(self._begin, end, _STEP_COUNT):
            self._sums.add_rows(self._rows, begin, min(end, begin + _STEP_COUNT))
            yield
        return self._sums


class LoadRecorder:
    """Records requests as they end.

    Args:
        schedule: the schedule of the load. Requests of its unmeasured phases, which come first, are ignored.

    Attributes:
        error_count: the number of measured requests that have failed so far.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._is_measured = [phase.is_measured for phase in schedule.phases]
        self._begin = self._last_end = schedule.warm_up
        self._rows = _Rows()
        self._indexes: dict[tuple[str | None, int | None], int] = {}  # of outcomes
        self._samples: dict[str, str] = {}
        self._end = schedule.warm_up + schedule.seconds
        self._received = self._sent_count = 0
        self._cut_at = self._cut_received = self._cut_sent = 0  # rows, bytes and sent ones before the last cut
        self.error_count = 0

    @property
    def ended_count(self) -> int:
        """The number of measured requests that have ended so far."""
        return len(self._rows.responses)

    def add(
        self, arrival: Arrival, started: float | None, ended: float, outcome: LoadOutcome, lateness: float = 0.0
    ) -> None:
        """Record a request; times in seconds after the beginning of the load.

        Args:
            arrival: the request.
            started: when it was sent; None if it never started.
            ended: when it ended, or was given up.
            outcome: its outcome.
            lateness: the delay before the start that the tool itself added.
        """
        _, due, phase, class_index, _ = arrival
        if not self._is_measured[phase]:
            return
        error, sample, status, received = outcome
        index = self._indexes.get((error, status))
        if index is None:
            index = self._indexes[error, status] = len(self._rows.kinds)
            self._rows.kinds.append((error, status))
        if error is not None:
            self.error_count += 1
            if sample and error not in self._samples:
                self._samples[error] = shorten(masked_text(sample))
        rows = self._rows
        rows.responses.append(ended - due)
        rows.services.append(_NEVER if started is None else ended - started)
        rows.lateness.append(lateness)
        rows.seconds.append(int(due - self._begin))
        rows.phases.append(phase)
        rows.classes.append(class_index)
        rows.outcomes.append(index)
        self._received += received
        if started is not None and started < self._end:
            self._sent_count += 1
        self._last_end = max(self._last_end, ended)

    def recent(self) -> Recent:
        """Return figures of the last thousand response times."""
        ordered = sorted(self._rows.responses[-_RECENT_COUNT:])
        places = [0, *(bisect_right(ordered, edge) for edge in EDGES), len(ordered)]
        counts = tuple(after - before for before, after in pairwise(places))
        return Recent(p50=quantile_of(ordered, 0.5), p99=quantile_of(ordered, 0.99), counts=counts)

    def columns(self, begin: int, end: int) -> RecordColumns:
        """Return the requests from the ``begin``-th to the one before the ``end``-th that have ended."""
        rows, part = self._rows, slice(begin, end)
        return RecordColumns(
            rows.responses[part], rows.services[part], rows.classes[part], rows.outcomes[part], rows.kinds
        )

    def cut(self) -> RecordedPart:
        """Return the requests recorded since the last cut."""
        begin = self._cut_at
        sums = LoadSums(
            self._schedule,
            samples=dict(self._samples),
            received=self._received - self._cut_received,
            sent_count=self._sent_count - self._cut_sent,
            last_end=self._last_end,
        )
        self._cut_at, self._cut_received, self._cut_sent = self.ended_count, self._received, self._sent_count
        return RecordedPart(_sums=sums, _rows=self._rows, _begin=begin, count=self._cut_at - begin)

    def classify(self, schedule: Schedule) -> None:
        """Take the classes of the requests, if they were not known before: a schedule with the same phases."""
        self._schedule = schedule

    def figures(self, **times: float) -> Figures:
        """Return the figures of all recorded requests; see ``LoadSums.figures_in_steps``. Takes microseconds for each."""
        steps = self.figures_in_steps(_STEP_COUNT, **times)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                figures: Figures = done.value
                return figures

    def figures_in_steps(self, step: int, **times: float) -> Generator[None, None, Figures]:
        """Return the figures of all recorded requests; yield after each ``step`` of them, and then now and again."""
        sums = LoadSums(
            self._schedule,
            samples=dict(self._samples),
            received=self._received,
            sent_count=self._sent_count,
            last_end=self._last_end,
        )
        count = self.ended_count
        for begin in range(0, count, step):
            sums.add_rows(self._rows, begin, min(count, begin + step))
            yield
        return (yield from sums.figures_in_steps(**times))
