"""Requests counted by class and outcome while a load runs, as histograms with given bounds, for a monitoring system.

The figures of a report are exact, and made at its end. These are sums that only grow, made in steps between the starts of requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from ratelimited_executor.load.recording import LoadRecorder

__all__ = ["BoundedHistogram", "RequestKind", "RequestTally", "TalliedRequests"]

_STEP_COUNT: Final = 250  # rows that a step counts: it delays a start by a fifth of a millisecond


class RequestKind(NamedTuple):
    """What the requests of one histogram have in common.

    Attributes:
        class_index: the index of their class.
        error: the kind of their error; None if they succeeded.
        status: the status of their responses; None if there was none.
    """

    class_index: int
    error: str | None
    status: int | None


@dataclass(slots=True)
class BoundedHistogram:
    """Durations in seconds, counted between bounds.

    Attributes:
        bounds: the upper bounds of all parts but the last, ascending; a duration is in the first part that it does not exceed.
        counts: how many durations are in each part, one more than bounds.
        total: the sum of all durations.
        least: the shortest; infinity if there is none.
        most: the longest; 0 if there is none.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0
    least: float = float("inf")
    most: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    def add_all(self, durations: Sequence[float]) -> None:
        """Count durations; a negative one, which a clock of low resolution may make, counts as 0."""
        if not durations:
            return
        durations = [max(0.0, each) for each in durations]
        for part, count in Counter(map(partial(bisect_left, self.bounds), durations)).items():
            self.counts[part] += count
        self.total += sum(durations)
        self.least = min(self.least, *durations)
        self.most = max(self.most, *durations)


class TalliedRequests(NamedTuple):
    """The requests of one kind.

    Attributes:
        responses: their response times, from when they were due.
        services: the service times of those that were sent.
    """

    responses: BoundedHistogram
    services: BoundedHistogram


class RequestTally:
    """The requests of one load after the other, such as the trials of a search.

    Args:
        response_bounds: the bounds of response times, in seconds.
        service_bounds: the bounds of service times.

    Attributes:
        kinds: the requests of each kind that there was.
    """

    def __init__(self, response_bounds: Sequence[float], service_bounds: Sequence[float]) -> None:
        self.kinds: dict[RequestKind, TalliedRequests] = {}
        self._bounds = tuple(response_bounds), tuple(service_bounds)
        self._recorder: LoadRecorder | None = None
        self._taken = 0  # rows of the recorder

    def follow(self, recorder: LoadRecorder) -> None:
        """Count the requests of another load from now on, and the rest of the one before at once."""
        self.take_all()
        self._recorder, self._taken = recorder, 0

    def take_all(self) -> None:
        """Count what has been recorded since the last time."""
        for _ in self.take_in_steps():
            pass

    def take_in_steps(self) -> Generator[None, None, None]:
        """Count what has been recorded since the last time; yield after each step of about a fifth of a millisecond."""
        while self._recorder is not None and self._taken < self._recorder.ended_count:
            columns = self._recorder.columns(self._taken, self._taken + _STEP_COUNT)
            self._taken += len(columns.responses)
            keys = list(zip(columns.classes, columns.outcomes, strict=True))
            for key in dict.fromkeys(keys):
                own = [row for row, each in enumerate(keys) if each == key]
                kind = self.kinds.setdefault(
                    RequestKind(key[0], *columns.kinds[key[1]]),
                    TalliedRequests(*map(BoundedHistogram, self._bounds)),
                )
                kind.responses.add_all([columns.responses[row] for row in own])
                kind.services.add_all([columns.services[row] for row in own if columns.services[row] >= 0])
            yield
