"""Measures the tasks of one executor as they run: how late they start, and how long they take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import CurrentFields, ObserverFields
from ratelimited_executor._runtime.insight.observing import Listener

if TYPE_CHECKING:
    from ratelimited_executor._runtime.insight.observing import Observable, Observed
    from ratelimited_executor.simulation.meters import Meter
    from ratelimited_executor.testing.clock import VirtualClock

__all__ = ["Current", "ExecutorObserver"]


class Current(CurrentFields):
    """What happens at this moment of a simulation.

    Attributes:
        wait: the lateness in seconds of the task that is about to start; None once its job has begun.
        key: the key of the job that began or ended last.
        cause: the luck of the job that has just ended, while it enqueues others; None otherwise.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self.wait = self.key = self.cause = None


class ExecutorObserver(ObserverFields):
    """Observes one executor of a simulation.

    Args:
        clock: the clock of the simulation.
        start_delay: collects the lateness of starts.
        current: is told of the task that starts.

    Attributes:
        observed: the state of the executor; set once it has started.
        ended_at: loop time at which the last job that takes time ended.
    """

    __slots__ = ("observed",)

    observed: Observed

    def __init__(self, clock: VirtualClock, start_delay: Meter, current: Current) -> None:
        self._clock = clock
        self._current = current
        self._start_delay = start_delay
        self._running = ()
        self._running_seconds = 0.0
        self._seen_at = 0.0  # loop time
        self.ended_at = -math.inf

    def observe(self, executor: Observable) -> None:
        """Measure an executor from now on, or from its start if it has not started."""
        executor._listen(Listener(opened=self.opened, started=self.started, freed=self.ended))

    def opened(self, observed: Observed) -> None:
        """Record that the executor has started."""
        self.observed = observed
        self._running = observed.coroutines
        self._seen_at = self._clock._monotonic

    # The number of running tasks changes only at starts and ends.

    @two_bodies
    def started(self, due: float, at: float) -> None:
        """Record that a task starts."""
        now = self._clock._monotonic
        self._running_seconds += len(self._running) * (now - self._seen_at)
        self._seen_at = now
        self._current.wait = wait = at - due
        self._start_delay.add(wait)

    @two_bodies
    def ended(self) -> None:
        """Record that a task that took time has ended."""
        now = self._clock._monotonic
        self._running_seconds += (len(self._running) + 1) * (now - self._seen_at)
        self._seen_at = self.ended_at = now

    def running_seconds(self) -> float:
        """Return the total running time of all coroutines so far, in seconds."""
        return self._running_seconds + len(self._running) * (self._clock._monotonic - self._seen_at)
