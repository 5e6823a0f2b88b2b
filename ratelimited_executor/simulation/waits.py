"""How long the jobs of a kind wait: by priority, by key, and against objectives that are to hold every day.

A wait is the time from the due time of an attempt to its start.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durations import seconds_of
from ratelimited_executor._core.histogram import DurationHistogram
from ratelimited_executor._kernel.fields import WaitFields
from ratelimited_executor._runtime.arguments import delay_of, number_of
from ratelimited_executor.simulation.meters import GROWTH, new_histogram
from ratelimited_executor.simulation.summary import JobSummary, ObjectiveSummary, Quantiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor.simulation.chances import Arriving
    from ratelimited_executor.simulation.meters import Meter

__all__ = ["KEY_COUNT_MAX", "Objective", "ObjectiveRecord", "Waits", "end_of_period"]

KEY_COUNT_MAX: Final = 1000  # of a kind with more keys, no waits by key are kept
_TINY: Final = 1e-12  # 99.9 / 100 * 1000 is rounded to more than 999
_GATHER_COUNT: Final = 10_000
_KEY_GROWTH: Final = 1.02  # of the buckets of a key's histogram
_ROUNDING: Final = GROWTH  # percentiles are at most that much too high


class Objective:
    """A service level objective: in every period, most jobs of a kind wait no longer than a time.

    Each attempt counts in the period in which it starts. An arrival that has waited longer than ``within`` at the end of a
    period, and has not started, counts there with the time since it was due: in each period while it waits, and in one if
    it may expire or be refused. If what waits at the end of the run could still decide it, the objective is not decided.

    Args:
        within: the longest wait, >= 0; a number of seconds, a timedelta or a str such as ``"5s"``.
        percent: the percentage of the jobs that wait no longer: >= 1 and < 100.
        each: the period in which it is to hold, > 0; the last one of a run may be shorter.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range.

    >>> Objective("5s", percent=99.9)
    Objective(within=5, percent=99.9, each=86400)
    """

    __slots__ = ("each", "percent", "within")

    def __init__(self, within: DurationLike, *, percent: float = 99.0, each: DurationLike = "1d") -> None:
        self.within: Final = delay_of("within", within)
        self.percent: Final = number_of("percent", percent)
        self.each: Final = seconds_of("each", each)
        if not 1 <= self.percent < 100:
            raise ValueError(f"percent must be a percentage >= 1 and < 100, such as 99 for 99 %, got {percent!r}")

    def __repr__(self) -> str:
        return f"Objective(within={self.within:g}, percent={self.percent:g}, each={self.each:g})"


def end_of_period(time: float, each: float) -> float:
    """Return when the period of a time ends."""
    return (math.floor(time / each) + 1) * each


@dataclass(frozen=True, slots=True)
class JudgedPeriods:
    """How an objective was kept in some periods; the attributes are those of :class:`ObjectiveSummary`."""

    periods: int = 0
    missed: int = 0
    worst: float = 0.0
    undecided: int = 0
    worst_at: float = 0.0

    def with_period(
        self, begin: float, waits: DurationHistogram, objective: Objective, open_waits: Sequence[float] = ()
    ) -> JudgedPeriods:
        """Return the judged on one period more.

        Args:
            begin: when the period began.
            waits: the waits in the period.
            objective: what is to be kept.
            open_waits: how long those have waited at its end that are not late and may become late, ascending.
        """
        share = objective.percent / 100 - _TINY
        found = waits.quantile(share) if waits.total else -1.0
        is_missed = found > objective.within * _ROUNDING
        doubtful = 0 if is_missed else len(open_waits) - bisect_right(open_waits, found)
        is_undecided = doubtful > (1 - share) * (waits.total + doubtful)
        if is_undecided:
            found = _together(waits, open_waits).quantile(share)
        if found < 0:
            return self  # nothing to judge
        return JudgedPeriods(
            periods=self.periods + (not is_undecided),
            missed=self.missed + is_missed,
            worst=max(self.worst, found),
            undecided=self.undecided + is_undecided,
            worst_at=begin if found > self.worst else self.worst_at,
        )


def _together(waits: DurationHistogram, more: Sequence[float]) -> DurationHistogram:
    found = new_histogram()
    found.merge(waits)
    found.add_sorted(more)
    return found


@dataclass(slots=True)
class ObjectiveRecord:
    """An objective, and how it was kept so far.

    Attributes:
        objective: the objective.
        current: the waits in the current period.
        end: the end of that period, in seconds since the start.
        ended: the beginning of the period before it and its waits, if any; it is judged once the run goes on beyond it.
        judged: the periods before these.
        expected: due times and jobs that may not have started, and whether each waits until it starts.
        looked_count: how many of these there were after the last look.
    """

    objective: Objective
    current: DurationHistogram
    end: float
    ended: tuple[float, DurationHistogram] | None = None
    judged: JudgedPeriods = JudgedPeriods()
    expected: list[tuple[float, Arriving, bool]] = field(default_factory=list)
    looked_count: int = 0

    def expect(self, dues: Iterable[float], arrivals: Iterable[Arriving], *, stays: bool = True) -> None:
        """Record that jobs are due at some times; of those that have started most are forgotten.

        Args:
            dues: the due times.
            arrivals: the jobs.
            stays: False if they may expire or be refused: then they are late in one period, and in no other.
        """
        self.expected += zip(dues, arrivals, repeat(stays), strict=False)
        if len(self.expected) > 2 * self.looked_count + _GATHER_COUNT:
            self.expected = [each for each in self.expected if not each[1].attempts]
            self.looked_count = len(self.expected)

    def end_period(self, time: float) -> None:
        """End the current period, and begin the one of a time."""
        self.judged = self._judge_ended()
        self.current.add_sorted(sorted(wait for wait in self._waits(time) if wait > self.objective.within))
        self.expected = [
            each
            for each in self.expected
            if not each[1].attempts and (each[2] or time - each[0] <= self.objective.within)
        ]
        self.ended, self.current = (self.end - self.objective.each, self.current), new_histogram()
        self.end = end_of_period(time, self.objective.each)

    def forget(self) -> None:
        """Forget the periods so far."""
        self.judged, self.ended, self.current = JudgedPeriods(), None, new_histogram()

    def sum_up(self, time: float) -> ObjectiveSummary:
        """Return how it was kept, in the current period as well, at the end of a run.

        What waits by then, and is not late, may still become late. It is taken to start like the others, unless it has
        waited longer than the percentile of these: if so many have that the objective depends on them, it is not decided.
        """
        waits = sorted(self._waits(time))
        late = bisect_right(waits, self.objective.within)
        objective = self.objective
        begin = self.end - objective.each
        if self.ended is not None and time <= begin:  # it ends with the run
            judged, (begin, last) = self.judged, self.ended
        else:
            judged, last = self._judge_ended(), _together(self.current, waits[late:])
        judged = judged.with_period(begin, last, objective, waits[:late])
        return ObjectiveSummary(
            percent=objective.percent,
            within=objective.within,
            each=objective.each,
            periods=judged.periods,
            missed=judged.missed,
            worst=judged.worst,
            undecided=judged.undecided,
            worst_at=judged.worst_at,
        )

    def _waits(self, time: float) -> Iterator[float]:
        """Yield how long each job has waited that is due and has not started."""
        return (time - due for due, job, _ in self.expected if not job.attempts and due <= time)

    def _judge_ended(self) -> JudgedPeriods:
        return self.judged if self.ended is None else self.judged.with_period(*self.ended, self.objective)


class Waits(WaitFields):
    """The waits of a kind of job.

    Args:
        meter: collects the waits of all jobs of the kind.
        new_meter: makes the meter of a priority.
        objectives: what is to be kept.

    Attributes:
        records: how each objective was kept so far.
        priorities: the priorities by which waits are kept, if there are several.
    """

    def __init__(self, meter: Meter, new_meter: Callable[[int], Meter], objectives: Sequence[Objective]) -> None:
        self._meter = meter
        self._new_meter = new_meter
        self._first_priority: int | None = None
        self._by_priority: dict[int, Meter] = {}
        self.records: Final = [ObjectiveRecord(each, new_histogram(), each.each) for each in objectives]
        self._recent: dict[Any, list[float]] | None = defaultdict(list)  # by key, since they were last counted
        self._by_key: dict[Any, DurationHistogram] = {}

    def expect(self, dues: Iterable[float], arrivals: Sequence[Arriving], *, stays: bool = True) -> None:
        """Record that jobs of the kind are due at some times, in seconds since the start, whether they ever start or not.

        Args:
            dues: the due times.
            arrivals: the jobs.
            stays: False if they may expire or be refused.
        """
        for record in self.records:
            record.expect(dues, arrivals, stays=stays)

    @property
    def least_period(self) -> float:
        """The shortest period of an objective, in seconds; infinity without objectives."""
        return min((each.objective.each for each in self.records), default=math.inf)

    def note_priority(self, priority: int) -> None:
        """Record that jobs of a priority arrive; once there are two, their waits are kept by priority."""
        if self._first_priority is None:
            self._first_priority = priority
        elif priority != self._first_priority:
            for each in (self._first_priority, priority):
                if each not in self._by_priority:
                    self._by_priority[each] = self._new_meter(each)

    def add(self, wait: float, key: Any, priority: int | None) -> None:
        """Record that a job starts; its priority is None if it did not arrive by the simulation."""
        self._meter.add(wait)
        if self._recent is not None:
            try:
                self._recent[key].append(wait)
            except TypeError:  # a key without a hash
                self._recent = None
        if self._by_priority and priority in self._by_priority:
            self._by_priority[priority].add(wait)

    def end_step(self, time: float) -> None:
        """Count the waits of a step that ends now, before the meter forgets them."""
        for record in self.records:
            record.current.add_sorted(sorted(self._meter.values))
            if time >= record.end:
                record.end_period(time)
        self.count_keys()

    def count_keys(self) -> None:
        """Count the waits of each key in a step that ends now."""
        recent = self._recent
        if not recent:
            return
        if len(recent) > KEY_COUNT_MAX or len(self._by_key.keys() | recent.keys()) > KEY_COUNT_MAX:
            self._recent = None
            self._by_key.clear()
            return
        for key, waits in recent.items():
            if key not in self._by_key:
                self._by_key[key] = DurationHistogram(_KEY_GROWTH)
            self._by_key[key].add_sorted(sorted(waits))
        recent.clear()

    def forget(self) -> None:
        """Forget all waits: what was measured was a warm-up. The meters are forgotten by whoever has made them."""
        for record in self.records:
            record.forget()
        self._by_key.clear()

    def sum_up(self, time: float, execution_time: DurationHistogram, price: float) -> JobSummary:
        """Return the figures of the kind of job.

        Args:
            time: the end of the last step, in seconds since the start.
            execution_time: the durations of the jobs.
            price: that of an attempt.
        """
        return JobSummary(
            wait=Quantiles.of(self._meter.histogram),
            execution_time=Quantiles.of(execution_time),
            wait_by_priority={
                priority: Quantiles.of(meter.histogram) for priority, meter in sorted(self._by_priority.items())
            },
            wait_by_key={}
            if self._recent is None  # those counted so far are not all
            else {key: Quantiles.of(found) for key, found in self._by_key.items()},
            objectives=tuple(record.sum_up(time) for record in self.records),
            cost=price * execution_time.total,
        )
