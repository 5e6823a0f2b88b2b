"""Holds a run by the shortcut against the executor: its beginning, with the same seed, job by job.

The part has 2,000 starts, and 200 jobs that waited if that many ever do, but at most 5,000 starts. The rules of the shortcut
are in force from the beginning, so a longer part would repeat the same decisions with other numbers. Only an outage, or a
value by hour, may come later: these are held against the executor by random tests alone.

The starts are those of the run itself. Its figures are sums over all of it, so those of the part are computed once more.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.simulation.database import RunDatabase
from ratelimited_executor.simulation.recorder import Recorder
from ratelimited_executor.simulation.runs import RunInProgress, span_of
from ratelimited_executor.simulation.shortcut.run import ShortRun
from ratelimited_executor.testing.clock import DEFAULT_START_WALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor.simulation.simulation import ArrivalSource, Scenario, Simulation
    from ratelimited_executor.simulation.summary import Summary

__all__ = ["JOB_COUNT_MIN", "Checked", "ShortcutError", "checked_run"]

# In a run. Its CPU time with the check is that of the executor at 4,000 jobs where jobs wait for workers, which a short part
# has enough of, at 12,000 where hardly any waits, and at 8,000 to 10,000 where the queue is asked.
JOB_COUNT_MIN: Final = 8_000
_START_COUNT: Final = 2_000
_START_COUNT_MAX: Final = 5_000
_WAIT_COUNT: Final = 200


class ShortcutError(RuntimeError):
    """The shortcut and the executor do not agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The figures of a run by the shortcut.

    Attributes:
        summary: the figures.
        job_count: how many starts were held against those of the executor.
        seconds: the simulated seconds in which these were.
    """

    summary: Summary
    job_count: int
    seconds: float


@dataclass(frozen=True, slots=True, order=True)
class _Start:
    """A start of a job: its time, its kind, its duration, its wait, and its key as a text."""

    time: float
    kind: str
    duration: float
    wait: float
    key: str


def checked_run(
    make: Callable[[], Scenario], *, seed: int, days: float | None, step: DurationLike, warm_up: DurationLike
) -> Checked:
    """Run a scenario by the shortcut, and check the result.

    Args:
        make: returns the scenario; it is called for the run, and for each run of the check.
        seed: the seed of all random numbers.
        days: the days to simulate; those of the scenario if None.
        step: the span over which values are summed up.
        warm_up: a span at the beginning that the summary leaves out.

    Raises:
        NoShortcutError: if the shortcut does not apply; says why.
        ShortcutError: if the executor does something else; names the first difference.
        Exception: any error of the scenario.
    """
    scenario = make()
    total, width, warm = span_of(scenario, days=days, step=step, warm_up=warm_up)
    run = ShortRun(scenario, seed=seed, total=total, step=width, warm_up=warm, least_count=JOB_COUNT_MIN)
    end = _end_of_part(run)
    early = warm if warm < end else 0.0
    expected = _Witness(make(), seed=seed, total=end, step=width, warm_up=early)
    starts = sorted(_starts_of(run, end))
    _compare(starts, sorted(expected.starts))
    ours = ShortRun(make(), seed=seed, total=end, step=width, warm_up=early)
    if ours.summary != expected.summary:
        raise ShortcutError(f"by the shortcut the figures are {ours.summary}, by the executor {expected.summary}")
    return Checked(summary=run.summary, job_count=len(starts), seconds=end)


def _end_of_part(run: ShortRun) -> float:
    """Return the end of the step up to which a run is checked."""
    all_attempts = [inflow.attempts for _, _, inflow, _ in run.inflows]
    starts = merge(*(zip(of.starts, of.dues, strict=True) for of in all_attempts))
    wait_count, last = 0, 0.0
    for count, (start, due) in enumerate(islice(starts, _START_COUNT_MAX), start=1):
        if start > run.step_ends[-1]:
            return run.step_ends[-1]
        wait_count += start > due
        last = start
        if count >= _START_COUNT and wait_count >= _WAIT_COUNT:
            break
    return next(end for end in run.step_ends if end >= last)


def _starts_of(run: ShortRun, end: float) -> Iterator[_Start]:
    """Yield the starts of a run up to a time."""
    for planned, _, inflow, keys in run.inflows:
        of = inflow.attempts
        found = keys.of(of.indexes[: bisect_right(of.starts, end)])
        for key, start, due, seconds in zip(found, of.starts, of.dues, of.seconds, strict=False):
            yield _Start(start, planned.job.name, seconds, start - due, repr(key))


class _Witness(RunInProgress):
    """A run with executors, and all starts of its kinds of jobs."""

    def __init__(self, scenario: Scenario, *, seed: int, total: float, step: float, warm_up: float) -> None:
        properties = {
            "scenario": scenario.name,
            "seed": seed,
            "start": DEFAULT_START_WALL,
            "step": step,
            "is_sampled": 0,
        }
        super().__init__(scenario, properties, total=total, warm_up=warm_up, until_done=False, on_progress=None)
        self.starts: Final[list[_Start]] = []
        database = RunDatabase(None)
        try:
            self.summary: Final = self.into(database).summary
        finally:
            database.close()

    def _recorder(self, simulation: Simulation, database: RunDatabase) -> Recorder:
        return _StartRecorder(simulation, database, self.starts, step=self._properties["step"], keeps_samples=False)


class _StartRecorder(Recorder):
    """A recorder that keeps the starts of all kinds of jobs."""

    def __init__(self, simulation: Simulation, database: RunDatabase, starts: list[_Start], **options: Any) -> None:
        self._starts = starts
        self._wait = 0.0
        super().__init__(simulation, database, **options)

    def _add_source(self, source: ArrivalSource) -> None:
        super()._add_source(source)
        if source.kind != "job":
            return
        clock, current, name = self._simulation.loop.clock, self._simulation._current, source.name

        def note_wait(row: tuple[Any, ...]) -> None:
            self._wait = row[-1]

        def note_start(row: tuple[Any, ...]) -> None:  # the duration is measured after the wait
            *_, key, seconds = row
            self._starts.append(_Start(clock._monotonic, name, seconds, self._wait, repr(key)))

        source.meters["start_delay"].keep(note_wait, float)
        source.meters["execution_time"].keep(note_start, lambda: current.key)


def _compare(ours: list[_Start], theirs: list[_Start]) -> None:
    """Raise an error that names the first difference, if there is one."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False), start=1):
        for name in ("time", "kind", "key", "wait", "duration"):
            found, expected = getattr(one, name), getattr(other, name)
            if found != expected:
                raise ShortcutError(
                    f"job {number}, {other.kind} {other.key}: its {name} is {found!r} by the shortcut, and {expected!r} by the "
                    "executor: run it without the shortcut, and report this"
                )
    if len(ours) != len(theirs):
        raise ShortcutError(f"{len(ours)} jobs start by the shortcut, and {len(theirs)} by the executor")
