"""The jobs that arrive at an executor in the course of a run: their times, their keys, and what was drawn for each."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor.simulation.arrivals import Recorded
from ratelimited_executor.simulation.jobs import NOT_RECORDED, Job
from ratelimited_executor.simulation.population import Population

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from ratelimited_executor.simulation.arrivals import Arrivals

__all__ = ["CHUNK_SECONDS", "Feed", "draw_columns"]

CHUNK_SECONDS: Final = 60.0  # the span of arrivals scheduled at a time; later ones are not pending


class Feed:
    """Jobs of one kind that arrive at one executor or fleet, a minute's worth at a time.

    Args:
        arrivals: their times.
        job: the kind of job, or any other function of a key.
        keys: the keys, drawn uniformly; those of a recording, or numbers from 0 on, if None. Of a population whose keys change,
            the keys of a minute are drawn from those that are there when it begins.
        priority: the priority of all of them.
        streams: random numbers for the times, for the keys and for the jobs.

    Raises:
        ValueError: if ``keys`` is empty; if the job needs recorded durations, and the arrivals have none.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        job: Callable[[Any], object],
        keys: Sequence[Any] | Population | None,
        priority: int,
        streams: tuple[Random, Random, Random],
    ) -> None:
        self._recorded: Recorded | None = None  # whose durations the jobs have
        if isinstance(job, Job) and job.is_recorded:
            if not (isinstance(arrivals, Recorded) and arrivals.has_durations):
                raise ValueError(NOT_RECORDED)
            if not arrivals.is_ended:
                raise ValueError(
                    f"duration of {job.name} must be finite, and in the recording there is none where it has no end: remove what "
                    "has not ended from the recording, or give another column"
                )
            self._recorded = arrivals
        self.arrivals: Final = arrivals
        self.job: Final = job
        self._population: Final = keys if isinstance(keys, Population) and keys.is_changing else None
        self.chosen = None if keys is None else list(keys)
        if self.chosen is not None and not self.chosen and self._population is None:
            raise ValueError("keys must contain at least one key, got none")
        self.priority: Final = priority
        self._when, self._which, self.work = streams
        self._count = 0

    def times(self, begin: float) -> list[float]:
        """Return the times in the minute that begins then, in seconds since the start. Called once for each, in order.

        There are none if the keys change, and there is none from which one could be drawn.
        """
        times = self.arrivals.between(begin, begin + CHUNK_SECONDS, self._when)
        if self._population is None:
            return times
        self.chosen = list(self._population)
        return times if self.chosen else []

    def keys(self, begin: float, count: int) -> Sequence[Any]:
        """Return the keys of the arrivals of that minute. Called once for each that has any, in order."""
        first, self._count = self._count, self._count + count
        if self.chosen is not None:
            return self._which.choices(self.chosen, k=count)
        found = self.arrivals.keys_between(begin, begin + CHUNK_SECONDS)
        return range(first, first + count) if found is None else found

    def durations(self, begin: float) -> Sequence[float] | None:
        """Return the recorded durations of that minute; None if they are drawn."""
        return None if self._recorded is None else self._recorded.durations_between(begin, begin + CHUNK_SECONDS)

    def items(self, begin: float, count: int) -> Sequence[Any]:
        """Return what the executor is to call the job with, for each arrival of that minute."""
        keys = self.keys(begin, count)
        if not isinstance(self.job, Job):
            return keys
        return self.job._drawn(keys, self.work, durations=self.durations(begin), priority=self.priority)


@two_bodies
def draw_columns(job: Job, chance: Random, count: int) -> tuple[array[float], array[float]]:
    """Draw the durations and the luck of jobs that arrive, in the order in which :meth:`Job._drawn` does."""
    draw, luck = job.duration.draw, chance.random
    pairs = [(draw(chance), luck()) for _ in range(count)]
    return array("d", [seconds for seconds, _ in pairs]), array("d", [part for _, part in pairs])
