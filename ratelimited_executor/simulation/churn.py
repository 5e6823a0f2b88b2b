"""Keys that join a population and leave it in the course of a run.

When keys join, and how long they stay, depends on the seed, the name of the population and their distributions alone, so
every configuration of a scenario has the same keys at the same times.
"""

from __future__ import annotations

import math
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.simulation.arrivals import Recorded
from ratelimited_executor.simulation.feeds import CHUNK_SECONDS

if TYPE_CHECKING:
    from random import Random

    from ratelimited_executor.simulation.arrivals import Arrivals
    from ratelimited_executor.simulation.distributions import Distribution
    from ratelimited_executor.simulation.population import Population
    from ratelimited_executor.spread.keys import Key

__all__ = ["Churn"]


class Churn:
    """Lets keys join a population, and leave it.

    Args:
        loop: the event loop of the simulation.
        population: the population.
        joins: when keys join; None for never. The keys are those of a recording, or the next unused numbers.
        lifetime: how long a key stays: those that are there at the start as well, from then on. None for the durations of a
            recording, if it has any, or else for ever.
        streams: random numbers for the times and for the lifetimes.

    Raises:
        ValueError: if a lifetime is given beside that of a recording.
    """

    def __init__(
        self,
        loop: Any,
        population: Population,
        joins: Arrivals | None,
        lifetime: Distribution | None,
        streams: tuple[Random, Random],
    ) -> None:
        if lifetime is not None and isinstance(joins, Recorded) and joins.has_durations:
            raise ValueError("lifetime must not be given beside a recording with durations, which are the lifetimes")
        self._loop = loop
        self.population: Final = population
        self._joins = joins
        self._lifetime = lifetime
        self._when, self._chance = streams
        self._unused = count(len(population))

    def begin(self) -> None:
        """Let keys join and leave from now on."""
        for key in self.population:
            self._let_leave(key, self._draw())
        if self._joins is not None:
            self._loop.call_soon(self._let_join)

    def _let_join(self) -> None:
        """Let keys join in the coming minute."""
        joins, begin = self._joins, self._loop.time()
        assert joins is not None
        end = begin + CHUNK_SECONDS
        times = joins.between(begin, end, self._when)
        keys = joins.keys_between(begin, end) if times else None
        lives = joins.durations_between(begin, end) if isinstance(joins, Recorded) else None
        for time, key, seconds in zip(times, keys or repeat(None), lives or repeat(None), strict=False):
            self._loop.push(time, self._join, (key, seconds))
        if end < joins.end:
            self._loop.call_at(end, self._let_join)

    def _join(self, joining: tuple[Key | None, float | None]) -> None:
        key, seconds = joining
        population = self.population
        if key is None:
            key = next(number for number in self._unused if number not in population)
        population.join(key, self._loop.time())
        self._let_leave(key, self._draw() if seconds is None else seconds)

    def _draw(self) -> float:
        return math.inf if self._lifetime is None else self._lifetime.draw(self._chance)

    def _let_leave(self, key: Key, seconds: float) -> None:
        if seconds < math.inf:
            self._loop.push(self._loop.time() + seconds, self._leave, key)

    def _leave(self, key: Key) -> None:
        self.population.leave(key, self._loop.time())
