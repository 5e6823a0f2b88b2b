"""Run a scenario: set it up, let time pass in steps, measure and write. Resume interrupted runs."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._runtime.arguments import delay_of, number_of, seconds_of
from ratelimited_executor._runtime.log import LOGGER
from ratelimited_executor.simulation.database import FORMAT, RunDatabase, as_json, run_files
from ratelimited_executor.simulation.hours import DAY_SECONDS
from ratelimited_executor.simulation.limits import DAYS_MAX, STEP_SECONDS_MIN, check_most
from ratelimited_executor.simulation.recorder import Recorder
from ratelimited_executor.simulation.simulation import Scenario, Simulation
from ratelimited_executor.testing.clock import DEFAULT_START_WALL

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor.simulation.summary import Summary

__all__ = ["RunInProgress", "RunProgress", "RunResult", "end_of_step", "looks", "simulate", "span_of"]

_PROGRESS_SECONDS: Final = 0.1  # between two reports
_WRITE_SECONDS: Final = 2.0  # between two transactions
_LOOK_SECONDS: Final = 60.0  # between two samples of queue depth and held permits
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """The progress of a run.

    Attributes:
        seconds: simulated seconds so far.
        total: seconds to simulate.
        jobs: jobs that have ended.
        wall_seconds: real seconds so far.
        is_replaying: True while it repeats the past of an interrupted run.
    """

    seconds: float
    total: float
    jobs: int
    wall_seconds: float
    is_replaying: bool

    @property
    def speed(self) -> float:
        """Simulated seconds per real second."""
        return self.seconds / self.wall_seconds if self.wall_seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run.

    Attributes:
        scenario: the name of the scenario.
        seed: the seed.
        status: ``"finished"``, or ``"interrupted"`` if it was stopped.
        summary: the summary of its figures.
        rows: the number of rows written.
        wall_seconds: real seconds, including those before an interruption.
        total: seconds that were to be simulated.
        end: seconds since the start at which the last job ended.
        is_done: True if nothing is left to do: no job runs or waits, and none will arrive.
        is_replaying: True if the run was stopped while it repeated the past of an interrupted run; the file is
            unchanged.
    """

    scenario: str
    seed: int
    status: str
    summary: Summary
    rows: int
    wall_seconds: float
    total: float
    end: float
    is_done: bool
    is_replaying: bool = False

    @property
    def speed(self) -> float:
        """Simulated seconds in a second."""
        return self.summary.seconds / self.wall_seconds if self.wall_seconds else 0.0


def span_of(
    scenario: Scenario, *, days: float | None, step: DurationLike, warm_up: DurationLike
) -> tuple[float, float, float]:
    """Return the seconds of a run, of its steps and of its warm-up, for arguments as of :func:`simulate`."""
    total = number_of("days", scenario.days if days is None else days) * DAY_SECONDS
    if not 0 < total < math.inf:
        raise ValueError(f"days must be > 0 and finite, got {scenario.days if days is None else days!r}")
    check_most("days", total / DAY_SECONDS, DAYS_MAX, "days")
    width = seconds_of("step", step)
    if width < STEP_SECONDS_MIN:
        raise ValueError(f"step must be at least {STEP_SECONDS_MIN} s, got {step!r}")
    warm = math.ceil(delay_of("warm_up", warm_up) / width) * width
    if warm >= total:
        raise ValueError(f"warm_up must be shorter than the run, {format_duration(total)}, got {warm_up!r}")
    return total, width, warm


def simulate(
    scenario: Scenario,
    *,
    days: float | None = None,
    seed: int = 0,
    step: DurationLike = 60.0,
    start: float = DEFAULT_START_WALL,
    samples: bool = False,
    warm_up: DurationLike = 0.0,
    until_done: bool = False,
    database: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_progress: Callable[[RunProgress], object] | None = None,
) -> RunResult:
    """Run a scenario in virtual time, with production executors, and measure it.

    A run is reproducible: the same scenario, seed and version give the same result. So an interrupted run is resumed by
    repeating its past without writing it, and continuing from there.

    Args:
        scenario: the scenario to simulate.
        days: the days to simulate, > 0; those of the scenario if None.
        seed: the seed of all random numbers.
        step: the span over which values are summed up, > 0.
        start: epoch seconds at which the simulation begins; by default 2024-01-01T00:00:00Z.
        samples: True to write every single value.
        warm_up: a span at the beginning that the summary leaves out, rounded up to a whole step; less than ``days``.
        until_done: True to stop once nothing is left to do, which may be before ``days`` have passed.
        database: the file to write, which must not exist; None writes none.
        resume: True to continue an interrupted run in its file, which must exist.
        on_progress: called with the progress at most ten times a second; it may return True to stop the run.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range, or the file holds another run.
        FileExistsError: if the file exists, and ``resume`` is false.
        Exception: any error of the scenario.
    """
    if not isinstance(scenario, Scenario):
        raise TypeError(f"scenario must be an object of a subclass of Scenario, such as MyScenario(), got {scenario!r}")
    total, width, warm = span_of(scenario, days=days, step=step, warm_up=warm_up)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an integer, got {seed!r}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be >= 0 and < 2**63, got {seed!r}")
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(
            "simulate() cannot run within a running event loop, which it would block: call it in a thread"
        )
    properties = {
        "format": FORMAT,
        "version": _version(),
        "scenario": scenario.name,
        "parameters": as_json(scenario.parameters()),
        "seed": seed,
        "start": number_of("start", start),
        "step": width,
        "is_sampled": int(samples),
        **({"warm_up": warm} if warm else {}),
    }
    run = RunInProgress(scenario, properties, total=total, warm_up=warm, until_done=until_done, on_progress=on_progress)
    return run.go(database, resume=resume)


def end_of_step(time: float, step: float, total: float) -> float:
    """Return when the step that begins at a time ends."""
    return min(total, (math.floor(time / step + 1e-9) + 1) * step)


def looks(begin: float, end: float, step: float, total: float) -> Iterator[tuple[float, float]]:
    """Yield the moments in (begin, end] at which queue depth is sampled, and the seconds that each stands for.

    A sample at the end of each minute would always see jobs that arrive by the minute. The moments follow Weyl's
    additive recurrence with the golden ratio, which is more even than random moments.
    """
    cell = min(_LOOK_SECONDS, step)
    number = math.floor(begin / cell)
    while number * cell < end:
        seconds = min(cell, total - number * cell)
        moment = number * cell + (number + 1) * _GOLDEN % 1 * seconds
        if begin < moment <= end:
            yield moment, seconds
        number += 1


class RunInProgress:
    """One run in progress.

    Args:
        scenario: the scenario.
        properties: the properties of the run, as the database has them.
        total: seconds to simulate.
        warm_up: seconds that the summary leaves out, in whole steps.
        until_done: True to stop once nothing is left to do.
        on_progress: as of :func:`simulate`.
    """

    def __init__(
        self,
        scenario: Scenario,
        properties: dict[str, Any],
        *,
        total: float,
        warm_up: float,
        until_done: bool,
        on_progress: Callable[[RunProgress], object] | None,
    ) -> None:
        self._warm_up = warm_up
        self._until_done = until_done
        self._last_time = 0.0
        self._scenario = scenario
        self._properties = properties
        self._total = total
        self._on_progress = on_progress
        self._reached = 0.0  # seconds simulated in finished steps, written or to be written
        self._jobs = 0  # jobs ended by then
        self._jobs_before = 0  # jobs ended in the interrupted run
        self._begin = time.perf_counter()
        self._before = 0.0  # real seconds of the interrupted run
        self._writes_from = -math.inf
        self._is_set_up = False
        self._found: dict[str, Any] = {}  # the properties of the interrupted run

    def go(self, path: str | os.PathLike[str] | None, *, resume: bool) -> RunResult:
        """Run it, from the start or from where it was interrupted."""
        if resume and path is None:
            raise ValueError("resume needs database=, the file of the run that was interrupted")
        simulation = self._simulation()
        try:
            database = RunDatabase(path, is_new=not resume)
        except BaseException:
            simulation.close()
            raise
        try:
            if resume:
                self._check(database.properties())
                database.forget_after(self._writes_from)
            return self._run(simulation, self._recorder(simulation, database), database)
        finally:
            simulation.close()
            database.close()
            if path is not None and not resume and not self._is_set_up:
                for file in run_files(path):  # the run has not begun: leave no file behind
                    file.unlink(missing_ok=True)

    def into(self, database: RunDatabase) -> RunResult:
        """Run it from the start, and write into an open database."""
        simulation = self._simulation()
        try:
            return self._run(simulation, self._recorder(simulation, database), database)
        finally:
            simulation.close()

    def _simulation(self) -> Simulation:
        properties = self._properties
        return Simulation(seed=properties["seed"], start=properties["start"], interval=self._scenario.interval)

    def _recorder(self, simulation: Simulation, database: RunDatabase) -> Recorder:
        return Recorder(
            simulation,
            database,
            step=self._properties["step"],
            keeps_samples=bool(self._properties["is_sampled"]),
            writes_from=self._writes_from,
        )

    def _run(self, simulation: Simulation, recorder: Recorder, database: RunDatabase) -> RunResult:
        status, is_through, wall_seconds = "failed", False, 0.0
        warnings = _Warnings(simulation)
        LOGGER.addFilter(warnings)
        try:
            if self._writes_from == -math.inf:
                database.set({**self._properties, "days": self._total / DAY_SECONDS, **self._state("running")})
            else:
                database.set({"days": self._total / DAY_SECONDS, "status": "running"})
            simulation.set_up(self._scenario)
            recorder.check()
            self._is_set_up = True
            status = "finished" if self._pass_time(simulation, recorder, database) else "interrupted"
            is_through = True
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            LOGGER.removeFilter(warnings)
            if self._reached < self._writes_from:  # stopped while replaying: keep the file as it was
                database.set({name: self._found[name] for name in ("days", "status")})
                wall_seconds = self._wall_seconds()
            else:
                state = self._state(status)
                wall_seconds = state["wall_seconds"]
                if is_through:
                    state["summary"] = as_json(recorder.figures())
                recorder.finish(state)
        return RunResult(
            scenario=self._properties["scenario"],
            seed=self._properties["seed"],
            status=status,
            summary=recorder.summary(),
            rows=database.row_count,
            wall_seconds=wall_seconds,
            total=self._total,
            end=self._last_time,
            is_done=recorder.is_done and simulation.loop.next_time() == math.inf,
            is_replaying=self._reached < self._writes_from,
        )

    def _pass_time(self, simulation: Simulation, recorder: Recorder, database: RunDatabase) -> bool:
        """Let time pass, step by step; return False if it was stopped."""
        step, loop = self._properties["step"], simulation.loop
        next_report = next_write = 0.0
        end = 0.0
        while end < self._total:
            begin = end
            end = end_of_step(end, step, self._total)
            upcoming = loop.next_time()
            is_idle = begin > 0 and upcoming > end and recorder.is_idle
            if is_idle:  # no event for a while: skip to the step before the next one
                stop = min(upcoming, self._total, recorder.next_age)
                if begin < self._warm_up:
                    stop = min(stop, self._warm_up)
                end = max(end, min(self._total, (math.ceil(stop / step) - 1) * step))
            if begin < self._writes_from < end:  # the end of the interrupted run may be within a step
                end = self._writes_from
            if not is_idle:
                self._look(simulation, recorder, begin, end)
            simulation.run_until(end)
            recorder.take(end)
            if begin < self._warm_up <= end:
                recorder.forget()
            jobs_before, jobs = self._jobs, recorder.jobs()
            if end == self._writes_from and jobs != self._jobs_before:
                raise ValueError(
                    f"the past could not be repeated: {jobs} jobs instead of {self._jobs_before}, because the "
                    "scenario has changed or is not reproducible (draw from sim.random, and use no sets)"
                )
            self._reached, self._jobs = end, jobs
            if jobs > jobs_before:
                self._last_time = recorder.ended_at if recorder.ended_at > begin else loop.last_time
            if self._until_done and loop.next_time() == math.inf and recorder.is_done:
                break
            now = time.perf_counter()
            if now >= next_report:
                next_report = now + _PROGRESS_SECONDS
                if self._report(end):
                    return bool(end >= self._total)
            if end > self._writes_from and (database.is_full or now >= next_write):
                next_write = now + _WRITE_SECONDS
                database.set(self._state("running"))
        self._report(end)
        return True

    def _look(self, simulation: Simulation, recorder: Recorder, begin: float, end: float) -> None:
        """Let time pass, with a sample in each minute at a quasi-random moment."""
        for moment, seconds in looks(begin, end, self._properties["step"], self._total):
            simulation.run_until(moment)
            recorder.look(seconds)

    def _report(self, seconds: float) -> bool:
        """Report the progress; return True if the run is to stop."""
        if self._on_progress is None:
            return False
        progress = RunProgress(
            seconds=seconds,
            total=self._total,
            jobs=self._jobs,
            wall_seconds=time.perf_counter() - self._begin,
            is_replaying=seconds <= self._writes_from,
        )
        answer: object = self._on_progress(progress)
        return answer is True

    def _state(self, status: str) -> dict[str, Any]:
        wall_seconds = self._wall_seconds()
        return {"status": status, "reached": self._reached, "jobs": self._jobs, "wall_seconds": wall_seconds}

    def _wall_seconds(self) -> float:
        return self._before + time.perf_counter() - self._begin

    def _check(self, found: dict[str, Any]) -> None:
        """Refuse to resume if the file holds another run."""
        for name, value in {"warm_up": None, **self._properties}.items():
            if found.get(name) != value:
                raise ValueError(
                    f"the file holds a run with {name} {found.get(name)!r}, and not {value!r}: "
                    "resume it with its own settings, or give another file"
                )
        self._found = found
        try:
            self._writes_from = float(found["reached"]) or -math.inf  # if nothing was reached, write everything
            self._jobs_before = int(found["jobs"])
            self._before = float(found["wall_seconds"])
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"the file does not record how far its run came, it is damaged ({error}): start again in another file"
            ) from error
        if self._writes_from >= self._total:
            raise ValueError(
                f"the run covers {self._writes_from / DAY_SECONDS:g} days already: give more days= to continue"
            )


class _Warnings(logging.Filter):
    """Collects the warnings of a simulation: a minute may bring a month's worth."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    def filter(self, record: logging.LogRecord) -> bool:
        """Record a warning of this simulation, and drop it; let all others pass."""
        if asyncio._get_running_loop() is not self._simulation.loop:
            return True
        self._simulation._note_warning(record)
        return False


def _version() -> str:
    try:
        return version("ratelimited-executor")
    except PackageNotFoundError:
        return "unknown"
