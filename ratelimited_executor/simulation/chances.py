"""The random numbers of a simulation: a stream for each source of arrivals and each kind of job.

With a single stream for everything, one number more in one place would change every later number elsewhere, and two runs
that differ in one parameter would be two different days. With a stream for each source, drawn as jobs arrive, one seed
is the same day of traffic for six workers and for twenty, so the difference between two runs is that of the workers.

Source of the method: common random numbers (Law, Simulation Modeling and Analysis, chapter 11).

The first attempt of a job uses the numbers drawn at its arrival. Those of its other attempts, and of the jobs that follow
it, are functions of these and of the attempt, so they do not depend on the order of starts.
"""

from __future__ import annotations

from typing import Any, Final

from ratelimited_executor._kernel.choice import two_bodies, used_there
from ratelimited_executor._kernel.fields import ArrivalFields

__all__ = ["Arriving", "mixed"]

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


@two_bodies
def mixed(luck: float, number: int) -> float:
    """Return a number in [0, 1) that is a function of another one and of an integer, and looks independent of both.

    Source: splitmix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014).
    """
    bits = (int(luck * 2**53) + number * _GOLDEN) & _MASK
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _MASK
    return ((bits ^ bits >> 31) >> 11) * 2.0**-53


@used_there
class Arriving(ArrivalFields):
    """A job that arrives: its key, and the numbers that were drawn for it.

    Args:
        key: the argument of the job.
        seconds: the duration of the first attempt.
        luck: a uniform number in [0, 1): the first attempt fails if it is below the fraction of failures.
        priority: its priority.

    Attributes:
        attempts: how many attempts have begun.
    """

    __slots__ = ()

    @two_bodies
    def __init__(self, key: Any, seconds: float, luck: float, priority: int) -> None:
        self.key = key
        self.seconds = seconds
        self.luck = luck
        self.priority = priority
        self.attempts = 0
