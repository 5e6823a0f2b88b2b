"""Kinds of jobs in a simulation: their durations, failures, keys and successors."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._runtime.arguments import callable_of, delay_of, number_of
from ratelimited_executor.simulation.distributions import Constant
from ratelimited_executor.simulation.lasting import Lasting

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ratelimited_executor.simulation.distributions import Distribution
    from ratelimited_executor.simulation.population import Member, Population

__all__ = ["NOT_RECORDED", "RECORDED", "AsRecorded", "Job", "JobFailedError", "distribution_of", "failures_of"]


RECORDED: Final = "recorded"
NOT_RECORDED: Final = (
    f"duration {RECORDED!r} is that of each recorded arrival, so all jobs of this kind must arrive by a recording that has "
    "durations: give another duration, or such arrivals"
)


class JobFailedError(Exception):
    """A simulated job has failed, as its scenario specifies."""


class JobHost(Protocol):
    """The parts of a simulation that its jobs use."""

    @property
    def loop(self) -> Any:
        """The event loop, whose clock is virtual."""
        ...

    @property
    def random(self) -> Random:
        """The source of random numbers."""
        ...

    _current_key: Any  # of the job that starts


class Job:
    """A kind of job: a plain function for executors, as in ``executor.schedule(job, key)``.

    It returns a :class:`Lasting`. Created by :meth:`Simulation.job`, which documents the arguments.
    """

    def __init__(
        self,
        simulation: JobHost,
        name: str,
        duration: Distribution,
        *,
        failures: float | Callable[[Any], float],
        population: Population | None,
        is_sync: bool,
        needs_group: bool,
        then: Callable[[Any], object] | None,
        on_failure: Callable[[Any], object] | None,
        outage_duration: Distribution,
    ) -> None:
        self.name = self.__name__ = self.__qualname__ = name
        self.duration = duration
        self.failures = failures if callable(failures) else failures_of(failures)
        self._fails = failures if callable(failures) else None
        self._failures = 0.0 if callable(failures) else failures
        self.population = population
        self._is_sync = is_sync
        self._needs_group = needs_group
        self._then = None if then is None else callable_of("then", then)
        self._on_failure = None if on_failure is None else callable_of("on_failure", on_failure)
        self._has_end = not (population is None and then is None and on_failure is None)
        self._outage_duration = outage_duration
        self._clock = simulation.loop.clock
        self._random = simulation.random
        self._draw = duration.draw
        self._add_duration: Callable[[float], object] = float  # called with each duration; a meter replaces it
        self._simulation = simulation

    @property
    def is_recorded(self) -> bool:
        """True if its durations are those of recorded arrivals."""
        return isinstance(self.duration, AsRecorded)

    def __call__(self, key: Any = None) -> Lasting:
        """Begin a job for a key: draw its duration and outcome, and return it.

        Raises:
            ValueError: if the key is not in the population; if its duration is that of a recorded arrival.
        """
        return self._begin(key, self._draw(self._random))

    def replay(self, arrival: tuple[Any, float]) -> Lasting:
        """Begin a job for a recorded arrival, given as its key and its duration in seconds; draw its outcome."""
        return self._begin(*arrival)

    def _begin(self, key: Any, seconds: float) -> Lasting:
        self._simulation._current_key = key
        failures = self._failures if self._fails is None else self._fails(key)
        is_failed = failures > 0 and self._random.random() < failures
        population, member = self.population, None
        if population is not None:
            try:
                member = population.members[key]
            except KeyError:
                raise ValueError(
                    f"{self.name} was called with {key!r}, which is not a key of {population.name}"
                ) from None
            seconds *= member.weight
            if population.outages and self._needs_group and population.is_out(member, self._clock._monotonic):
                population.outage_count += 1
                is_failed = True
                seconds = self._outage_duration.draw(self._random)
        self._add_duration(seconds)
        error = JobFailedError(f"{self.name} failed") if is_failed else None
        if not self._has_end:
            return Lasting(seconds, error)
        return Lasting(seconds, error, partial(self._end, key, member), None if member is None else member.begin)

    def _end(self, key: Any, member: Member | None, error: BaseException | None) -> None:
        """Record the result of a job for its key, and start its successor."""
        population = self.population
        if population is not None and member is not None:
            member.active -= 1
            if isinstance(error, JobFailedError):
                member.failures += 1
            elif error is None and self._is_sync:
                self._simulation._current_key = key
                now = self._clock._monotonic
                interval = now - member.synced_at
                if member.syncs:
                    population.add_interval(interval)
                if interval > member.longest:  # noqa: PLR1730  # on the path of every job
                    member.longest = interval
                member.synced_at = now
                member.syncs += 1
        follow = self._then if error is None else self._on_failure if isinstance(error, JobFailedError) else None
        if follow is not None:
            follow(key)

    def __repr__(self) -> str:
        of = "" if self.population is None else f" of {self.population.name}"
        return f"<Job {self.name}{of}, {self.duration!r}>"


class AsRecorded:
    """The durations of recorded arrivals, which come with them: nothing is drawn."""

    mean = math.nan

    def quantile(self, part: float) -> float:  # noqa: ARG002  # the shape of a distribution
        """Return NaN: the durations are those of the arrivals, not of the job."""
        return math.nan

    def draw(self, chance: Random) -> float:  # noqa: ARG002  # the shape of a distribution
        """Refuse: the job was called without a recorded arrival."""
        raise ValueError(NOT_RECORDED)

    def __repr__(self) -> str:
        return repr(RECORDED)


def failures_of(failures: Any) -> float:
    """Return the fraction of jobs that fail, from 0 to 1."""
    part = number_of("failures", failures)
    if not 0 <= part <= 1:
        raise ValueError(f"failures must be a fraction of all jobs, from 0 to 1, got {failures!r}")
    return part


def distribution_of(name: str, duration: Any) -> Distribution:
    """Return a distribution; a span of time becomes a constant."""
    if callable(getattr(duration, "draw", None)):
        found: Distribution = duration
        return found
    try:
        return Constant(delay_of(name, duration))
    except TypeError:
        raise TypeError(
            f"{name} must be a number of seconds, a timedelta, a str such as '250ms' or a distribution "
            f"such as LogNormal(mean=4, p90=9), got {duration!r}"
        ) from None
