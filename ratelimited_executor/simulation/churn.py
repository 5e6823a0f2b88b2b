"""Keys that join a population and leave it in the course of a run.

When keys join, and how long they stay, depends on the seed, the name of the population and their distributions alone, so
every configuration of a scenario has the same keys at the same times.
"""

from __future__ import annotations

import math
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor.simulation.arrivals import Recorded
from ratelimited_executor.simulation.distributions import remaining_life
from ratelimited_executor.simulation.feeds import CHUNK_SECONDS

if TYPE_CHECKING:
    from random import Random

    from ratelimited_executor.simulation.arrivals import Arrivals
    from ratelimited_executor.simulation.distributions import Distribution
    from ratelimited_executor.simulation.population import Population
    from ratelimited_executor.spread.keys import Key

__all__ = ["Churn"]

_SAME_MOMENT: Final = 1e-6  # seconds: sums and differences of times since the epoch are rounded by less


class Churn:
    """Lets keys join a population, and leave it.

    Args:
        loop: the event loop of the simulation.
        population: the population.
        joins: when keys join; None for never. The keys are those of a recording, or the next unused numbers.
        lifetime: how long a key stays; those that are there at the start joined before, and stay for what remains of it. None
            for the durations of a recording, at its speed, if it has any, or else for ever.
        streams: random numbers for the times, for the lifetimes, and for what remains of them at the start.

    Raises:
        ValueError: if a lifetime is given beside that of a recording; if each key of a recording is to join more than once.
    """

    def __init__(
        self,
        loop: Any,
        population: Population,
        joins: Arrivals | None,
        lifetime: Distribution | None,
        streams: tuple[Random, Random, Random],
    ) -> None:
        if lifetime is not None and isinstance(joins, Recorded) and joins.has_durations:
            raise ValueError("lifetime must not be given beside a recording with durations, which are the lifetimes")
        if isinstance(joins, Recorded) and joins.scale > 1 and joins.has_keys:
            raise ValueError(
                f"scale must be at most 1 for keys that join, since a key that is there cannot join again, got {joins.scale!r}: "
                "leave out key, so that numbers join, or add keys under other names to the recording"
            )
        self._loop = loop
        self.population: Final = population
        self._joins = joins
        self._lifetime = lifetime
        self._when, self._chance, self._remaining = streams
        self._unused = count(len(population))
        self._ends: dict[Key, float] = {}  # when keys that are there will leave
        population.on_leave(lambda key: self._ends.pop(key, None))

    def begin(self) -> None:
        """Let keys join and leave from now on."""
        if self._lifetime is not None:
            remaining = remaining_life(self._lifetime)
            for key in self.population:
                self._let_leave(key, remaining(self._remaining))
        if self._joins is not None:
            self._loop.call_soon(self._let_join)

    def _let_join(self) -> None:
        """Let keys join in the coming minute."""
        joins, begin = self._joins, self._loop.time()
        assert joins is not None
        end = begin + CHUNK_SECONDS
        times = joins.between(begin, end, self._when)
        keys = joins.keys_between(begin, end) if times else None
        lives = joins.lives_between(begin, end) if isinstance(joins, Recorded) else None
        for time, key, seconds in zip(times, keys or repeat(None), lives or repeat(None), strict=False):
            self._loop.push(time, self._join, (key, seconds))
        if end < joins.end:
            self._loop.call_at(end, self._let_join)

    def _join(self, joining: tuple[Key | None, float | None]) -> None:
        key, seconds = joining
        population = self.population
        if key is None:
            key = next(number for number in self._unused if number not in population)
        now = self._loop.time()
        if (end := self._ends.get(key, math.inf)) <= now + _SAME_MOMENT:  # one life of it begins where another ends
            self._leave((key, end))
        population.join(key, now)
        self._let_leave(key, self._draw() if seconds is None else seconds)

    def _draw(self) -> float:
        return math.inf if self._lifetime is None else self._lifetime.draw(self._chance)

    def _let_leave(self, key: Key, seconds: float) -> None:
        if seconds < math.inf:
            end = self._ends[key] = self._loop.time() + seconds
            self._loop.push(end, self._leave, (key, end))

    def _leave(self, leaving: tuple[Key, float]) -> None:
        key, end = leaving
        if self._ends.get(key) == end:  # else it has left before, and may have joined again
            self.population.leave(key, self._loop.time())
