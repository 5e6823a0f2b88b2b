"""One run by the shortcut: from a scenario to the summary that a run with executors has."""

from __future__ import annotations

import asyncio
import math
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._runtime.repeat.retrying import pause_before_retry
from ratelimited_executor.simulation.accounts import Tally
from ratelimited_executor.simulation.chances import Arriving
from ratelimited_executor.simulation.database import RunDatabase
from ratelimited_executor.simulation.feeds import CHUNK_SECONDS
from ratelimited_executor.simulation.jobs import JobFailedError
from ratelimited_executor.simulation.limits import JOBS_MAX
from ratelimited_executor.simulation.outages import OutageFailures
from ratelimited_executor.simulation.recorder import Recorder
from ratelimited_executor.simulation.runs import end_of_step, looks, span_of
from ratelimited_executor.simulation.shortcut.columns import InflowKeys, columns_of
from ratelimited_executor.simulation.shortcut.passing import Inflow, Passed, late_waits, pass_jobs
from ratelimited_executor.simulation.shortcut.queued import pass_by_queue
from ratelimited_executor.simulation.shortcut.rules import NoShortcutError, Survey
from ratelimited_executor.simulation.waits import KEY_COUNT_MAX, end_of_period

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.histogram import DurationHistogram
    from ratelimited_executor._core.repeat.retries import Retry
    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor
    from ratelimited_executor._runtime.time.hooks import RandomNumbers
    from ratelimited_executor.simulation.accounts import Account
    from ratelimited_executor.simulation.hours import Shift
    from ratelimited_executor.simulation.jobs import Job
    from ratelimited_executor.simulation.loop import SimulationLoop
    from ratelimited_executor.simulation.shortcut.columns import Columns
    from ratelimited_executor.simulation.shortcut.rules import Planned
    from ratelimited_executor.simulation.simulation import ArrivalSource, Scenario
    from ratelimited_executor.simulation.waits import ObjectiveRecord

__all__ = ["RunInflow", "ShortRun", "share_columns"]

_FAILED: Final = JobFailedError("a job failed")
_NEVER_STARTED: Final = Arriving(None, 0.0, 0.0, 0)  # stands for each job that waits at the end


@dataclass(frozen=True, slots=True)
class _Clock:
    """When something is counted in a run.

    Attributes:
        moments: all moments, rising.
        is_step: 1 for the end of a step, 0 for a sample of queue depth.
        seconds: the seconds that each sample stands for; 0 for the end of a step.
        ends: the numbers of the ends of steps.
    """

    moments: array[float]
    is_step: bytearray
    seconds: array[float]
    ends: list[int]


@lru_cache(maxsize=4)
def _clock(total: float, step: float) -> _Clock:
    moments, is_step, seconds, ends, end = array("d"), bytearray(), array("d"), [], 0.0
    while end < total:
        begin, end = end, end_of_step(end, step, total)
        for moment, weight in (*looks(begin, end, step, total), (end, 0.0)):
            moments.append(moment)
            seconds.append(weight)
            is_step.append(not weight)
        ends.append(len(moments) - 1)
    return _Clock(moments, is_step, seconds, ends)


class _Meters:
    """Numbers the meters of an executor, and says what becomes of their values."""

    def __init__(self) -> None:
        self.count = 0
        self.taking: defaultdict[int, list[int]] = defaultdict(list)  # meters, by the number of a moment
        self.found: dict[tuple[int, int], DurationHistogram] = {}  # by moment and meter

    def new(self, taken_at: Sequence[int]) -> int:
        """Return a new meter, whose values are taken out at some moments."""
        number, self.count = self.count, self.count + 1
        for moment in taken_at:
            self.taking[moment].append(number)
        return number


class RunInflow(NamedTuple):
    """The jobs of a feed or batch in a run: what they are, their columns, their starts, and their keys."""

    planned: Planned
    columns: Columns
    inflow: Inflow
    keys: InflowKeys


class ShortRun:
    """A run of a scenario by the shortcut.

    Args:
        scenario: the scenario; its ``setup`` is called.
        seed: the seed.
        total: seconds to simulate.
        step: the span over which values are summed up.
        warm_up: seconds that the summary leaves out, whole steps.
        least_count: the number of jobs from which on the shortcut is used.

    Attributes:
        summary: the figures.
        inflows: the jobs, with what they are and when they start.
        step_ends: the ends of all steps, in seconds since the start.

    Raises:
        NoShortcutError: if the shortcut does not apply.
        Exception: any error of the scenario's ``setup``.
    """

    def __init__(
        self, scenario: Scenario, *, seed: int, total: float, step: float, warm_up: float, least_count: int = 0
    ) -> None:
        survey = Survey(seed=seed, interval=scenario.interval)
        database = RunDatabase(None)
        self.inflows: Final[list[RunInflow]] = []
        clock = _clock(total, step)
        self.step_ends: Final = [clock.moments[number] for number in clock.ends]
        try:
            recorder = Recorder(survey, database, step=step, keeps_samples=False)
            survey.set_up(scenario)
            recorder.check()
            columns = [(planned, columns_of(planned, total)) for planned in survey.planned]
            if sum(len(each.dues) for _, each in columns) < least_count:
                raise NoShortcutError(f"runs of fewer than {least_count:,} jobs take no longer with the executor")
            warm = bisect_left(clock.moments, warm_up) if warm_up else -1  # warm-ups are whole steps
            executors = [
                _Executor(
                    source,
                    [each for each in columns if each[0].executor is source.subject],
                    clock,
                    warm,
                    survey,
                )
                for source in survey.sources
                if source.kind == "executor"
            ]
            for each in executors:
                self.inflows.extend(each.inflows)
            _count(recorder, executors, clock, warm)
            for each in executors:
                each.hand_over()
            self.summary: Final = recorder.summary()
        finally:
            survey.close()
            database.close()


def share_columns(
    scenario: Scenario, *, seed: int, days: float | None, step: DurationLike, warm_up: DurationLike
) -> None:
    """Draw the columns of a scenario, and keep them for its runs in this process and in those forked from it.

    Args:
        scenario: the scenario.
        seed: the seed.
        days: as of :func:`~.check.checked_run`.
        step: likewise.
        warm_up: likewise.

    Raises:
        NoShortcutError: if the shortcut does not apply.
        Exception: any error of the scenario's ``setup``.
    """
    total, width, _ = span_of(scenario, days=days, step=step, warm_up=warm_up)
    _clock(total, width)
    survey = Survey(seed=seed, interval=scenario.interval)
    try:
        survey.set_up(scenario)
        for planned in survey.planned:
            columns_of(planned, total)
    finally:
        survey.close()


def _count(recorder: Recorder, executors: list[_Executor], clock: _Clock, warm: int) -> None:
    """Let the accounts and the keys pass through all moments."""
    warm_up = clock.moments[warm] if warm >= 0 else 0.0
    keyed = [_Keyed(job, each.inflows) for each in executors for job in each.kinds]
    keyed = [each for each in keyed if each.may_be_few(warm_up)]
    accounts = [recorder.accounts[each.source] for each in executors]
    is_single = len(executors) == 1  # then the account of all executors is that of the one
    for number, (moment, seconds) in enumerate(zip(clock.moments, clock.seconds, strict=True)):
        if seconds:
            depths = [each.passed.depth[number] for each in executors]
            if any(depths):  # else nothing changes
                for account, depth in zip(accounts, depths, strict=True):
                    account.add_look(depth=depth, holding=0, seconds=seconds)
                recorder.total.add_look(depth=sum(depths), holding=0, seconds=seconds)
            continue
        counts = [each.counts(number) for each in executors]
        for each, account, own in zip(executors, accounts, counts, strict=True):
            workers = each.passed.workers[number]
            account.set_workers(int(workers) if workers < math.inf else 0, moment)
            own.add_to(account)
        if not is_single:
            _Counts(*map(sum, zip(*counts, strict=True))).add_to(recorder.total)
        recorder.end_step(moment)
        if keyed:
            keyed = [each for each in keyed if each.count(moment)]
        if number == warm:
            for each in executors:
                each.set_running(number)
            recorder.forget()
            accounts = [recorder.accounts[each.source] for each in executors]
    for each in executors:
        each.set_running(-1)
    if is_single:
        recorder.total = accounts[0]


class _Counts(NamedTuple):
    """The counts of an executor at the end of a step."""

    enqueued: int
    started: int
    retried: int
    done: int
    failed: int
    executing: int
    depth: int

    @property
    def pending(self) -> int:
        """The number of jobs that wait."""
        return self.enqueued - self.done - self.failed - self.executing

    def add_to(self, account: Account) -> None:
        tally = Tally(self.enqueued, self.started, self.retried, self.done, self.failed)
        account.add(tally, executing=self.executing, depth=self.depth, pending=self.pending)


class _Executor:
    """The jobs of one executor, from their columns to what its meters and kinds of jobs have measured.

    Args:
        source: the executor.
        planned: what arrives there.
        clock: when something is counted.
        warm: the number of the moment at which the warm-up ends; -1 without one.
        survey: what was set up.
    """

    def __init__(
        self,
        source: ArrivalSource,
        planned: list[tuple[Planned, Columns]],
        clock: _Clock,
        warm: int,
        survey: Survey,
    ) -> None:
        self.source = source
        self._clock = clock
        self._last = last = clock.ends[-1]
        self._meters = meters = _Meters()
        outs = [last] if warm < 0 else [warm, last]
        self._delay = meters.new(outs)
        self.kinds = {each.job: _KindMeters(each.job, meters, outs, clock) for each, _ in planned}
        ranks = sorted({each.rank for each, _ in planned})
        self.inflows: list[RunInflow] = []
        for each, columns in planned:
            kind = self.kinds[each.job]
            fails = each.job._fails
            inflow = Inflow(
                columns,
                failures=fails.usual if isinstance(fails, OutageFailures) else each.job._failures,
                outages=fails.outages if isinstance(fails, OutageFailures) else (),
                rank=each.rank,
                level=ranks.index(each.rank),
                waits=[self._delay, *kind.waits_of(int(-each.rank[0]))],
                executions=kind.executions,
                quantile=None if each.job.is_recorded else each.job._quantile,
            )
            self.inflows.append(RunInflow(each, columns, inflow, InflowKeys(each, columns)))
        self.passed = self._pass(survey)
        meters.found = {(moment, meter): histogram for moment, meter, histogram in self.passed.taken}
        ends = [clock.moments[number] for number in clock.ends]
        accepted = [sum(each.columns.accepted_until(end) for each in self.inflows) for end in ends]
        self._accepted = dict(zip(clock.ends, accepted, strict=True))
        if any(self.counts(number).pending > JOBS_MAX for number in clock.ends):
            raise NoShortcutError("more jobs wait than an executor of a simulation may hold")

    def _pass(self, survey: Survey) -> Passed:
        clock, executor = self._clock, self.source.subject
        queue, retry = executor._engine.queue, survey.retries.get(executor)
        inflows = [each.inflow for each in self.inflows]
        shifts = [
            (first, partial(_shifted, survey.loop, executor, shift))
            for first, shift in survey.shifts
            if executor in shift.executors
        ]
        workers = math.inf if executor.max_concurrency is None else float(executor.max_concurrency)
        arguments = clock.moments, clock.is_step, dict(self._meters.taking), self._meters.count
        is_changing = any(each.outages or (retry is not None and each.failures) for each in inflows) or bool(shifts)
        if queue.pacing is Pacing.ON_TIME and not is_changing:
            permits = queue.permits
            queue.set_permits(permits.trial())
            passed = pass_jobs(inflows, workers, None if queue.is_unlimited else queue, *arguments)
            if not (passed.is_unsure or self._is_unsure()):
                return passed
            queue.set_permits(permits)
            for inflow in inflows:
                inflow.forget()
        pause = partial(_pause, retry, survey.loop.random)
        due_count = self.source.observer.observed.due_count
        return pass_by_queue(inflows, workers, queue, shifts, pause, due_count, *arguments)

    def _is_unsure(self) -> bool:
        """True if the executor may look at the beginning of a minute before the jobs due then are handed over.

        It does so if that look was planned a minute before, when the hand-over was, or earlier: for the end of a long job,
        for jobs of a batch, or for a permit. Then a job that waits takes the place of a more urgent one that is due just then.
        """
        if len({each.inflow.level for each in self.inflows}) == 1:
            return False
        unsure = {
            minute
            for each in self.inflows
            if each.planned.feed is not None
            for minute in _urgent_minutes(each, [other.inflow for other in self.inflows])
        }
        return bool(unsure) and (
            self._has_rare_starts(unsure) or any(_is_looked_at(each, unsure) for each in self.inflows)
        )

    def _has_rare_starts(self, minutes: set[float]) -> bool:
        """True if permits are so rare that within the minute before one of some minutes no job has started."""
        if self.source.subject._engine.queue.is_unlimited:
            return False
        return not all(
            any(
                _count_until(each.inflow, minute) > _count_until(each.inflow, minute - CHUNK_SECONDS)
                for each in self.inflows
            )
            for minute in minutes
        )

    def counts(self, number: int) -> _Counts:
        """Return the counts at the end of a step, by the number of the moment."""
        of = self.passed
        return _Counts(
            self._accepted[number], of.started[number], of.retried[number], of.done[number], of.failed[number],
            of.running[number], of.depth[number],
        )  # fmt: skip

    def set_running(self, number: int) -> None:
        """Let the observer have the running time up to a moment."""
        self.source.observer._running_seconds = self.passed.running_seconds[number]

    def hand_over(self) -> None:
        """Hand what was measured to the source and the kinds of jobs."""
        self.source.meters["start_delay"].adopt(self._meters.found[self._last, self._delay])
        for job, kind in self.kinds.items():
            kind.hand_over([each.inflow for each in self.inflows if each.planned.job is job])


def _shifted(loop: SimulationLoop, executor: RateLimitedExecutor, shift: Shift, now: float) -> tuple[float, bool]:
    """Let a setting change at a time; return how many jobs run at once, and True if that woke the executor."""
    engine: Any = executor._engine
    loop.clock._monotonic = now
    asyncio._set_running_loop(loop)
    try:
        shift()
    finally:
        asyncio._set_running_loop(None)
    is_awake, engine.armed = engine.armed == -math.inf, math.inf  # it is asked in place of its loop
    return math.inf if executor.max_concurrency is None else executor.max_concurrency, is_awake


def _pause(retry: Retry | None, numbers: RandomNumbers, failures: int) -> float | None:
    """Return the seconds before another attempt, as ``Retries`` does; None if there is none."""
    if retry is None:
        return None
    return pause_before_retry(retry, failures, _FAILED, first=None, now=0.0, numbers=numbers)


def _urgent_minutes(urgent: RunInflow, inflows: Sequence[Inflow]) -> Iterator[float]:
    """Yield the beginnings of minutes at which a job of a feed is due and starts, while a less urgent one waits."""
    inflow = urgent.inflow
    for number in range(1, len(urgent.columns.counts)):
        minute = number * CHUNK_SECONDS
        position = bisect_left(inflow.dues, minute)
        if position == len(inflow.dues) or not inflow.dues[position] == inflow.starts[position] == minute:
            continue
        for other in inflows:
            waiting = bisect_right(other.starts, minute)
            if other.level > inflow.level and waiting < len(other.dues) and other.dues[waiting] <= minute:
                yield minute
                break


def _is_looked_at(run_inflow: RunInflow, minutes: set[float]) -> bool:
    """True if a job of an inflow makes the executor look at one of some minutes, as was known a minute before."""
    inflow = run_inflow.inflow
    if run_inflow.planned.feed is None and not minutes.isdisjoint(inflow.dues):
        return True
    return any(
        seconds >= CHUNK_SECONDS and start + seconds in minutes
        for start, seconds in zip(inflow.starts, inflow.seconds, strict=True)
    )


def _count_until(inflow: Inflow, time: float) -> int:
    """Return how many jobs of an inflow start before a time."""
    return bisect_left(inflow.starts, time)


class _KindMeters:
    """The meters of a kind of job: its waits, those of each priority and of each objective, and its durations."""

    def __init__(self, job: Job, meters: _Meters, outs: list[int], clock: _Clock) -> None:
        self._job = job
        self._meters = meters
        self._moments = clock.moments
        self._outs = outs
        self._wait = meters.new(outs)
        self.executions = meters.new(outs)
        self._by_priority = {priority: meters.new(outs) for priority in job._waits._by_priority}
        self._objectives: list[tuple[ObjectiveRecord, list[int], int]] = []
        for record in job._waits.records:
            ends = list(_ends_of_periods(record, clock))
            self._objectives.append((record, ends, meters.new(sorted({*ends, *outs}))))

    def waits_of(self, priority: int) -> list[int]:
        """Return the meters of the waits of a priority."""
        own = [number for each, number in self._by_priority.items() if each == priority]
        return [self._wait, *own, *(number for _, _, number in self._objectives)]

    def hand_over(self, inflows: list[Inflow]) -> None:
        """Hand what was measured to the kind of job, whose inflows are given."""
        waits, found, last = self._job._waits, self._meters.found, self._outs[-1]
        waits._meter.adopt(found[last, self._wait])
        self._job._execution_time.adopt(found[last, self.executions])
        for priority, number in self._by_priority.items():
            waits._by_priority[priority].adopt(found[last, number])
        for record, ends, number in self._objectives:
            late = [
                late_waits(inflow, record.objective.within, [self._moments[each] for each in ends])
                for inflow in inflows
            ]
            for moment in sorted({*ends, *self._outs}):
                if record.current.total:
                    record.current.merge(found[moment, number])
                else:
                    record.current = found[moment, number]
                if moment in ends:
                    at = ends.index(moment)
                    record.current.add_sorted(sorted(value for values in late for value in values[at]))
                    record.end_period(self._moments[moment])
                if moment in self._outs[:-1]:
                    record.forget()
            for inflow in inflows:
                dues = _dues_of_waiting(inflow, self._moments[last])
                record.expect(dues, [_NEVER_STARTED] * len(dues))


def _dues_of_waiting(inflow: Inflow, time: float) -> list[float]:
    """Return the due times of the jobs that are due by a time, and have not started."""
    return [due for due, start in zip(inflow.times, inflow.starts, strict=True) if due <= time < start]


def _ends_of_periods(record: ObjectiveRecord, clock: _Clock) -> Iterator[int]:
    end, each = record.end, record.objective.each
    for number in clock.ends:
        if clock.moments[number] >= end:
            yield number
            end = end_of_period(clock.moments[number], each)


class _Keyed:
    """The waits of a kind of job by key, while there are few keys."""

    def __init__(self, job: Job, inflows: list[RunInflow]) -> None:
        self._waits = job._waits
        self._inflows = [(each.inflow, each.keys) for each in inflows if each.planned.job is job]
        self._nexts = [0] * len(self._inflows)  # attempts counted
        self._numbered = [each.inflow for each in inflows if each.planned.job is job and each.keys.are_numbers]

    def may_be_few(self, warm_up: float) -> bool:
        """Return False if there are surely too many keys after the warm-up: each of many jobs has its own."""
        for inflow in self._numbered:
            of = inflow.attempts
            first, stop = bisect_right(of.starts, warm_up), bisect_left(of.starts, math.inf)
            if len(set(of.indexes[first : min(stop, first + 2 * KEY_COUNT_MAX)])) > KEY_COUNT_MAX:
                self._waits._recent = None
                return False
        return True

    def count(self, time: float) -> bool:
        """Count the starts of a step that ends at a time; return False once there are too many keys."""
        recent = self._waits._recent
        if recent is None:
            return False
        for number, (inflow, keys) in enumerate(self._inflows):
            of, first = inflow.attempts, self._nexts[number]
            self._nexts[number] = stop = bisect_right(of.starts, time, first)
            for position, key in enumerate(keys.of(of.indexes[first:stop]), first):
                try:
                    recent[key].append(of.starts[position] - of.dues[position])
                except TypeError:  # a key without a hash
                    self._waits._recent = None
                    return False
        self._waits.count_keys()
        return True
