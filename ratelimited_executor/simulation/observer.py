"""Measures the tasks of one executor, as it happens: how late they start, and for how long they run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ratelimited_executor._runtime.observing import Listener

if TYPE_CHECKING:
    from collections.abc import Sized

    from ratelimited_executor._runtime.observing import Observable, Observed
    from ratelimited_executor.simulation.meters import Meter
    from ratelimited_executor.testing.clock import VirtualClock

__all__ = ["ExecutorObserver"]


class ExecutorObserver:
    """Observes one executor of a simulation.

    Args:
        clock: of the simulation.
        start_delay: gathers how late tasks start.

    Attributes:
        observed: how the executor stands; only once it has started.
        ended_at: loop time at which a job that takes time has ended last.
    """

    __slots__ = ("_clock", "_running", "_running_seconds", "_seen_at", "_start_delay", "ended_at", "observed")

    observed: Observed

    def __init__(self, clock: VirtualClock, start_delay: Meter) -> None:
        self._clock = clock
        self._start_delay = start_delay
        self._running: Sized = ()
        self._running_seconds = 0.0
        self._seen_at = 0.0  # loop time
        self.ended_at = -math.inf

    def observe(self, executor: Observable) -> None:
        """Measure an executor from now on, or from its start."""
        executor._listen(Listener(opened=self.opened, started=self.started, freed=self.ended))

    def opened(self, observed: Observed) -> None:
        """Record that the executor has started."""
        self.observed = observed
        self._running = observed.coroutines
        self._seen_at = self._clock._monotonic

    # Between two starts or ends the number of those that run stays the same.

    def started(self, due: float, at: float) -> None:
        """Record that a task starts."""
        now = self._clock._monotonic
        self._running_seconds += len(self._running) * (now - self._seen_at)
        self._seen_at = now
        self._start_delay.add(at - due)

    def ended(self) -> None:
        """Record that one has ended which took time."""
        now = self._clock._monotonic
        self._running_seconds += (len(self._running) + 1) * (now - self._seen_at)
        self._seen_at = self.ended_at = now

    def running_seconds(self) -> float:
        """Return for how many seconds coroutines have run so far, all together."""
        return self._running_seconds + len(self._running) * (self._clock._monotonic - self._seen_at)
