"""Kinds of jobs in a simulation: their durations, failures, keys and successors."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._kernel.choice import two_bodies, used_there
from ratelimited_executor._kernel.fields import JobFields
from ratelimited_executor._runtime.arguments import callable_of, delay_of, number_of
from ratelimited_executor.simulation.chances import Arriving, mixed
from ratelimited_executor.simulation.distributions import Constant
from ratelimited_executor.simulation.lasting import Lasting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from ratelimited_executor.simulation.costs import JobCost
    from ratelimited_executor.simulation.distributions import Distribution
    from ratelimited_executor.simulation.meters import Meter
    from ratelimited_executor.simulation.observer import Current
    from ratelimited_executor.simulation.population import Member, Population
    from ratelimited_executor.simulation.waits import Waits

__all__ = ["NOT_RECORDED", "RECORDED", "AsRecorded", "Job", "JobFailedError", "distribution_of", "failures_of"]


RECORDED: Final = "recorded"
NOT_RECORDED: Final = (
    f"duration {RECORDED!r} is that of each recorded arrival, so all jobs of this kind must arrive by a recording that has "
    "durations: give another duration, or such arrivals"
)


@used_there
class JobFailedError(Exception):
    """A simulated job has failed, as its scenario specifies."""


class JobHost(Protocol):
    """The parts of a simulation that its jobs use."""

    @property
    def loop(self) -> Any:
        """The event loop, whose clock is virtual."""
        ...

    def stream(self, name: str) -> Random:
        """Return a new stream of random numbers."""
        ...

    _current: Current


@used_there
class Job(JobFields):
    """A kind of job: a plain function for executors, as in ``executor.schedule(job, key)``.

    It returns a :class:`Lasting`. Created by :meth:`Simulation.job`, which documents the arguments.
    """

    _execution_time: Meter
    _waits: Waits
    duration: Distribution

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
        price: float,
        cost: JobCost | None,
    ) -> None:
        self.name = self.__name__ = self.__qualname__ = name
        self.duration = duration
        self.failures = failures if callable(failures) else failures_of(failures)
        self.price = number_of("price", price)
        if not 0 <= self.price < math.inf:
            raise ValueError(f"price must be >= 0 and finite, got {price!r}")
        self.cost: Final = cost
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
        self._current = simulation._current
        self._chance = simulation.stream(f"job {name}")
        self._luck = self._chance.random()  # of the kind, from which those of keys and of followers are derived
        self._number = self._chance.getrandbits(32)
        self._followed: tuple[float | None, int] = (
            None,
            0,
        )  # the luck of the job that was followed last, and how often
        self._turns: list[int] = []  # how often each key was called, by number
        if population is not None:
            self._turns += [0] * population.made_count
            population.on_join(lambda _: self._turns.append(0))

    @property
    def is_recorded(self) -> bool:
        """True if its durations are those of recorded arrivals."""
        return isinstance(self.duration, AsRecorded)

    # Jobs that arrive: what is random was drawn by then.

    @two_bodies
    def _drawn(
        self, keys: Iterable[Any], chance: Random, *, durations: Iterable[float] | None = None, priority: int = 0
    ) -> list[Arriving]:
        """Draw the random numbers of jobs that arrive.

        Args:
            keys: the key of each job.
            chance: a stream of random numbers.
            durations: recorded durations in seconds, one for each key; drawn if None.
            priority: the priority that all of them have.
        """
        luck = chance.random
        if durations is not None:
            return [Arriving(key, seconds, luck(), priority) for key, seconds in zip(keys, durations, strict=True)]
        draw = self.duration.draw
        return [Arriving(key, draw(chance), luck(), priority) for key in keys]

    def _following(self, key: Any, priority: int) -> Arriving:
        """Draw the random numbers of a job that arrives now: by those of the job that has just ended, if one has."""
        cause = self._current.cause
        if cause is None:
            return Arriving(key, self._draw(self._chance), self._chance.random(), priority)
        before, count = self._followed
        count = count + 1 if cause == before else 0  # one job may be followed by several of a kind
        self._followed = cause, count
        luck = mixed(cause, self._number + (count << 32))
        return Arriving(key, self._quantile(mixed(luck, 0)), luck, priority)

    def cost_of_next(self, key: Any) -> dict[str, int]:
        """Return what the next start for a key of its population costs, by resource, for executors that call it with a key.

        Raises:
            ValueError: if the kind has no cost or no population, or the key is not in the population.
        """
        if self.cost is None or self.population is None:
            raise ValueError(f"{self.name} must have a cost and a population: give cost= and population= to the job")
        number = self._member(self.population, key).number
        return self.cost.of(mixed(self._luck, (number << 32) + self._turns[number]))

    @two_bodies
    def _begin_arrival(self, arrival: Arriving) -> Lasting:
        """Begin an attempt of a job that has arrived."""
        seconds, luck = arrival.seconds, arrival.luck
        if attempt := arrival.attempts:
            luck = mixed(arrival.luck, 2 * attempt)
            if not self.is_recorded:
                seconds = self._quantile(mixed(arrival.luck, 2 * attempt + 1))
        arrival.attempts = attempt + 1
        return self._begin(arrival.key, seconds, luck, arrival.priority)

    # Jobs that are called with a key.

    @two_bodies
    def __call__(self, key: Any = None) -> Lasting:
        """Begin a job for a key: draw its duration and outcome, and return it.

        Raises:
            ValueError: if the key is not in the population; if its duration is that of a recorded arrival.
        """
        population, chance = self.population, self._chance
        if population is None:
            return self._begin(key, self._draw(chance), chance.random(), None)
        number = self._member(population, key).number  # the numbers of a key do not depend on when others start
        turn = self._turns[number]
        self._turns[number] = turn + 1
        luck = mixed(self._luck, (number << 32) + turn)
        return self._begin(key, self._quantile(mixed(luck, 0)), luck, None)

    def _draw(self, chance: Random) -> float:
        return self.duration.draw(chance)

    def _quantile(self, part: float) -> float:
        return self.duration.quantile(part)

    def _member(self, population: Population, key: Any) -> Member:
        try:
            return population.members[key] if key in population.members else population.left[key]
        except (KeyError, TypeError):  # TypeError: it has no hash
            raise ValueError(f"{self.name} was called with {key!r}, which is not a key of {population.name}") from None

    def _begin(self, key: Any, seconds: float, luck: float, priority: int | None) -> Lasting:
        current = self._current
        current.key = key
        if (wait := current.wait) is not None:
            current.wait = None
            self._waits.add(wait, key, priority)
        is_failed = luck < (self._failures if self._fails is None else self._fails(key))
        population, member = self.population, None
        if population is not None:
            member = self._member(population, key)
            seconds *= member.weight
            if population.outages and self._needs_group and population.is_out(member, self._clock._monotonic):
                population.outage_count += 1
                is_failed = True
                seconds = self._outage_duration.quantile(mixed(luck, -1))
        self._execution_time.add(seconds)
        error = JobFailedError(f"{self.name} failed") if is_failed else None
        if not self._has_end:
            return Lasting(seconds, error)
        return Lasting(seconds, error, partial(self._end, key, member, luck), None if member is None else member.begin)

    @two_bodies
    def _end(self, key: Any, member: Member | None, luck: float, error: BaseException | None) -> None:
        """Record the result of a job for its key, and start its successor."""
        population = self.population
        if population is not None and member is not None:
            member.active -= 1
            if isinstance(error, JobFailedError):
                member.failures += 1
            elif error is None and self._is_sync:
                self._current.key = key
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
            self._current.cause = luck
            try:
                follow(key)
            finally:
                self._current.cause = None

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
