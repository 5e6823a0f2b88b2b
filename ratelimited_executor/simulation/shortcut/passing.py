"""Computes when each job of one executor starts where jobs are on time and tried once: without the executor's own queue.

A job starts once it is due, a worker is free and there is a permit; of several, the one of the highest rank, and among equal
ranks the one due first. Due jobs change only at due times, at ends, and at permits, so these are all that is visited.
Permits are those of the executor's own queue, asked at the same instants: the law of a rate is not written twice.

Each sum is made of the same numbers in the same order as in the executor's run, so that all figures are equal to the last
bit: the running time from start to start and end to end, and the values of a meter by steps and parts of at least 2,000.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, Any

from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.choice import two_bodies, used_there
from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor._kernel.sizes import RUN_COUNT
from ratelimited_executor.simulation.chances import mixed
from ratelimited_executor.simulation.meters import GATHER_COUNT, new_histogram
from ratelimited_executor.simulation.shortcut.rules import NoShortcutError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratelimited_executor._core.histogram import DurationHistogram
    from ratelimited_executor.simulation.outages import JobOutage
    from ratelimited_executor.simulation.shortcut.columns import Columns

__all__ = ["AttemptColumns", "Counted", "Inflow", "Pass", "Passed", "late_waits", "pass_jobs"]


@used_there
class AttemptColumns:
    """The attempts of an inflow's jobs, in the order in which they start.

    Args:
        indexes: the index of each one's job.
        dues: when each is due, in seconds since the start.
        starts: when each starts; infinity if it does not.
        seconds: the duration of each.
    """

    __slots__ = ("dues", "indexes", "seconds", "starts")

    def __init__(
        self, indexes: array[int] | range, dues: array[float], starts: array[float], seconds: array[float]
    ) -> None:
        self.indexes = indexes
        self.dues = dues
        self.starts = starts
        self.seconds = seconds


class Inflow:
    """The jobs of one feed or batch, and what is measured of them.

    Args:
        columns: the jobs.
        failures: the fraction that fails.
        outages: those in which more fail.
        rank: their place among all due jobs, as the queue of an executor compares it: priority, negated, and class.
        level: the place of this rank among those of the executor: 0 is the highest.
        waits: the numbers of the meters of their waits.
        executions: the number of the meter of their durations.
        quantile: returns a quantile of the durations; None if each attempt of a job lasts equally long.

    Attributes:
        starts: when the first attempt of each starts, in seconds since the start; infinity if it does not.
        attempts: all attempts that have started.
    """

    __slots__ = (
        "attempts", "counts", "dues", "executions", "failures", "is_feed", "level", "lucks", "outages", "quantile", "rank", "seconds",
        "starts", "times", "waits",
    )  # fmt: skip

    def __init__(
        self,
        columns: Columns,
        *,
        failures: float,
        outages: Sequence[JobOutage] = (),
        rank: tuple[float, TaskClass],
        level: int,
        waits: list[int],
        executions: int,
        quantile: Callable[[float], float] | None = None,
    ) -> None:
        self.times, self.dues = columns.times, columns.dues
        self.seconds, self.lucks = columns.seconds, columns.lucks
        self.counts = columns.counts
        self.is_feed = columns.keys is None
        self.failures = failures
        self.outages = outages
        self.rank = rank
        self.level = level
        self.waits = waits
        self.executions = executions
        self.quantile = quantile
        self.forget()

    def forget(self) -> None:
        """Forget all starts."""
        self.starts = array("d", [math.inf]) * len(self.dues)
        self.attempts = AttemptColumns(range(len(self.dues)), self.dues, self.starts, self.seconds)

    def part(self, number: int, first: int, stop: int) -> BatchSource:
        """Return jobs that are handed over together, for a queue; ``number`` is that of the inflow."""
        dues = None if self.rank[1] is TaskClass.IMMEDIATE else self.dues[first:stop]
        return BatchSource(
            stop - first, first=self.dues[first], dues=dues, indexes=range(first, stop), rank=self.rank, name="",
            owner=number,
        )  # fmt: skip

    def again(self, number: int, index: int, due: float) -> BatchSource:
        """Return a job that has failed, for another attempt at a due time."""
        return self.part(number, index, index + 1).again(index, due)

    def drawn_again(self, index: int, attempt: int) -> tuple[float, float]:
        """Return the luck and the duration of a further attempt, 1 for the second, as a job of an executor has them."""
        luck, seconds = self.lucks[index], self.seconds[index]
        if self.quantile is not None:
            seconds = self.quantile(mixed(luck, 2 * attempt + 1))
            if not 0 <= seconds < math.inf:
                raise NoShortcutError("a duration of another attempt is out of range")
        return mixed(luck, 2 * attempt), seconds


@used_there
class Passed:
    """What was counted at each moment.

    Attributes:
        started: attempts that have started so far.
        retried: attempts that have failed so far, and are followed by another.
        done: jobs that have returned so far.
        failed: jobs that have failed so far.
        running: jobs that run.
        workers: how many may run at once; infinity for no limit.
        depth: jobs that are due and have not started.
        running_seconds: the running time of all jobs so far.
        taken: the values of meters that were taken out: (moment, meter, histogram).
        is_unsure: True if there is no result: the order of jobs that are due together depends on how they were handed over.
    """

    __slots__ = (
        "depth",
        "done",
        "failed",
        "is_unsure",
        "retried",
        "running",
        "running_seconds",
        "started",
        "taken",
        "workers",
    )

    def __init__(self) -> None:
        self.started, self.retried, self.done, self.failed = (array("q") for _ in range(4))
        self.running, self.depth = array("q"), array("q")
        self.running_seconds, self.workers = array("d"), array("d")
        self.taken: list[tuple[int, int, DurationHistogram]] = []
        self.is_unsure = False


@two_bodies
def pass_jobs(
    inflows: Sequence[Inflow],
    workers: float,
    queue: Any,
    moments: array[float],
    is_step: bytearray,
    taking: Mapping[int, Sequence[int]],
    meter_count: int,
) -> Passed:
    """Compute all starts up to the last moment.

    Args:
        inflows: the jobs.
        workers: how many run at once; infinity for no limit.
        queue: the queue of the executor, for its permits; None at an unlimited rate.
        moments: when something is counted, rising, in seconds since the start.
        is_step: for each moment, 1 if a step ends there.
        taking: the meters whose values are taken out at a moment, by its number.
        meter_count: the number of meters.
    """
    return _Passing(inflows, workers, queue, meter_count).run(moments, is_step, taking)


class Pass:
    """What both ways to the starts have in common: what is counted, and when.

    Args:
        inflows: the jobs.
        workers: how many run at once; infinity for no limit.
        queue: the queue of the executor; None where it is not asked.
        meter_count: the number of meters.
    """

    def __init__(self, inflows: Sequence[Inflow], workers: float, queue: Any, meter_count: int) -> None:
        self._inflows = inflows
        self._workers = workers
        self._queue = queue
        self._meters = [Counted() for _ in range(meter_count)]
        self._running = self._started = self._retried = self._done = self._failed = 0
        self._running_seconds = self._seen_at = 0.0
        self._is_unsure = False

    def run(self, moments: array[float], is_step: bytearray, taking: Mapping[int, Sequence[int]]) -> Passed:
        """Compute all starts up to the last moment; arguments as of :func:`pass_jobs`."""
        passed = Passed()
        for number, moment in enumerate(moments):
            self._pass_until(moment)
            depth = self._depth(moment)
            if self._is_unsure:
                passed.is_unsure = True
                break
            passed.started.append(self._started)
            passed.retried.append(self._retried)
            passed.done.append(self._done)
            passed.failed.append(self._failed)
            passed.running.append(self._running)
            passed.depth.append(depth)
            passed.workers.append(self._workers)
            passed.running_seconds.append(self._running_seconds + self._running * (moment - self._seen_at))
            for meter in self._meters if is_step[number] else ():
                meter.end_step()
            for index in taking.get(number, ()):
                passed.taken.append((number, index, self._meters[index].take()))
        return passed

    def _pass_until(self, moment: float) -> None:
        """Let everything happen up to a moment."""
        raise NotImplementedError

    def _depth(self, moment: float) -> int:
        """Count the jobs that are due at a moment and have not started."""
        raise NotImplementedError

    def _measure(self, inflow: Inflow, wait: float, seconds: float) -> None:
        """Count a start: its wait, and its duration."""
        for index in inflow.waits:
            self._meters[index].step.append(wait)
        self._meters[inflow.executions].step.append(seconds)
        self._started += 1

    def _note_running(self, now: float, change: int) -> None:
        """Add up the running time; from now on one job more, or one less, runs."""
        self._running_seconds += self._running * (now - self._seen_at)
        self._seen_at = now
        self._running += change


class _Passing(Pass):
    def __init__(self, inflows: Sequence[Inflow], workers: float, queue: Any, meter_count: int) -> None:
        super().__init__(inflows, workers, queue, meter_count)
        self._heads = [0] * len(inflows)
        self._ready: list[deque[tuple[Inflow, int]]] = [
            deque() for _ in range(1 + max((each.level for each in inflows), default=0))
        ]
        self._ready_count = self._new_count = 0  # due jobs; of these, since the executor looked last
        self._ends: list[tuple[float, bool]] = []
        self._permit_at = math.inf

    def _depth(self, moment: float) -> int:
        self._pull(moment)
        return self._ready_count

    def _pass_until(self, moment: float) -> None:
        ends = self._ends
        while not self._is_unsure:
            end = ends[0][0] if ends else math.inf
            other = math.inf
            if self._running < self._workers:
                other = min(self._next_due(), self._permit_at if self._ready_count else math.inf)
            if min(end, other) > moment:
                return
            if end > other:
                self._look(other)
                continue
            _, is_failed = heapq.heappop(ends)
            was_full = self._running == self._workers
            self._note_running(end, -1)
            self._done += not is_failed
            self._failed += is_failed
            if was_full:
                self._look(end)

    def _look(self, now: float) -> None:
        """Start what may start now."""
        self._pull(now)
        if len(self._ready) > 1 and self._new_count > RUN_COUNT:
            self._is_unsure = True
            return
        self._new_count = 0
        self._permit_at = math.inf
        queue = self._queue
        admission = None if queue is None else queue.admission
        if admission is not None:
            admission.count = 0  # permits are counted anew at each look
        while self._ready_count and self._running < self._workers:
            if admission is not None:
                if (not admission.count and now < admission.next_at) or not admission.find(now, math.inf):
                    self._permit_at = admission.next_at
                    return
                admission.take(1, now)
            self._start(now)
            if queue is not None:
                queue.take_effect(now)

    def _start(self, now: float) -> None:
        inflow, position = next(each for each in self._ready if each).popleft()
        self._ready_count -= 1
        self._note_running(now, 1)
        inflow.starts[position] = now
        seconds = inflow.seconds[position]
        self._measure(inflow, now - inflow.dues[position], seconds)
        heapq.heappush(self._ends, (now + seconds, inflow.lucks[position] < inflow.failures))

    def _next_due(self) -> float:
        return min(
            (
                inflow.dues[head]
                for inflow, head in zip(self._inflows, self._heads, strict=True)
                if head < len(inflow.dues)
            ),
            default=math.inf,
        )

    def _pull(self, now: float) -> None:
        """Make ready what is due, in due order."""
        while (due := self._next_due()) <= now:
            first = [
                number
                for number, (inflow, head) in enumerate(zip(self._inflows, self._heads, strict=True))
                if head < len(inflow.dues) and inflow.dues[head] == due
            ]
            if len(first) > 1:
                self._is_unsure = True
                return
            inflow, head = self._inflows[first[0]], self._heads[first[0]]
            self._heads[first[0]] += 1
            self._ready[inflow.level].append((inflow, head))
            self._ready_count += 1
            self._new_count += 1


class Counted:
    """A meter that is counted as :class:`~.meters.Meter` counts, without quantiles of steps."""

    def __init__(self) -> None:
        self.step: list[float] = []
        self._gathered: list[float] = []
        self._histogram = new_histogram()

    def end_step(self) -> None:
        """End a step: its values are counted, once there are enough of them."""
        self._gathered += self.step
        self.step.clear()
        if len(self._gathered) > GATHER_COUNT:
            self._count()

    def take(self) -> DurationHistogram:
        """Return all values so far, and forget them."""
        self._count()
        found, self._histogram = self._histogram, new_histogram()
        return found

    def _count(self) -> None:
        self._histogram.add_sorted(sorted(self._gathered))
        self._gathered.clear()


@two_bodies
def late_waits(inflow: Inflow, within: float, ends: Sequence[float]) -> list[list[float]]:
    """Return how late jobs are at the ends of periods that have not started by then.

    Args:
        inflow: the jobs, with their starts.
        within: the longest wait of a job that is not late, in seconds.
        ends: the ends of the periods, rising, in seconds since the start.
    """
    found: list[list[float]] = [[] for _ in ends]
    for due, start in zip(inflow.times, inflow.starts, strict=True):
        if start - due > within:
            for number in range(bisect_right(ends, due), bisect_left(ends, start)):
                if ends[number] - due > within:
                    found[number].append(ends[number] - due)
    return found
