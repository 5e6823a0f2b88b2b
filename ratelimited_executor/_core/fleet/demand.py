"""How many tickets a process asks for: one for each due task that could start, as far as it can tell.

A ticket that its peer cannot use lapses, and is lost to the whole group. So tasks held back by the process's other
limits do not count, just like tasks that are not due. Those limits are a pause, a penalty, a second rate, a resource,
the limits of keys, and ``max_concurrency``.

An occupied place of ``max_concurrency`` becomes free in time. Recent tasks tell how soon: if tasks ran for ``busy``
seconds in total and ``ended`` of them have ended, each ends within w seconds with probability w * ended / busy
(Little's law). A free place lets one task start, and one more for each that ends in it; an occupied place, one for each
that ends in it. While nothing is known, places are no limit: that may cost the tickets of one call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._core.queue.looking import coming_until, demand_until

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ratelimited_executor._core.keys.gate import KeyGate
    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._kernel.calendar import Calendar
    from ratelimited_executor._kernel.timeline import Timeline

__all__ = ["Demand", "Worker"]

_MEMORY_SECONDS: Final = 2.0  # observations of that age count about a third
_ROUNDING: Final = 1e-9


class Counts(Protocol):
    """The counts of tasks by state."""

    started_count: int

    def running_count(self) -> int:
        """Count the tasks that run."""
        ...


class Worker(Protocol):
    """An executor's engine, which starts the tasks."""

    timeline: Timeline
    queue: TaskQueue
    max_concurrency: int | None

    @property
    def accounts(self) -> Counts:
        """The counts of its tasks."""
        ...


class Demand:
    """The tasks that one executor could start, given enough tickets.

    Args:
        worker: the executor's engine.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._seen_at: float | None = None  # loop time of the last look
        self._running_count = 0  # at that time, like the next one
        self._ended_count = 0
        self._busy = 0.0  # recent seconds of running tasks
        self._busy_since_end = 0.0
        self._ended = 0.0  # recent ends of started tasks

    # Observing.

    def look(self, now: float) -> None:
        """Record the present counts; call after each run and before each count."""
        worker = self._worker
        if worker.max_concurrency is None and worker.queue.gate is None:
            return
        running_count = worker.accounts.running_count()
        ended_count = worker.accounts.started_count - running_count
        if self._seen_at is not None:
            seconds = max(0.0, now - self._seen_at)
            kept = math.exp(-seconds / _MEMORY_SECONDS)
            busy, ended = self._running_count * seconds, ended_count - self._ended_count
            self._busy = self._busy * kept + busy
            self._ended = self._ended * kept + ended
            self._busy_since_end = 0.0 if ended else self._busy_since_end + busy
        self._seen_at = now
        self._running_count, self._ended_count = running_count, ended_count

    def _turns(self, seconds: float) -> float:
        """Estimate how many tasks end within a time in one place that is never free."""
        if not self._busy:
            return math.inf
        rate = self._ended / self._busy
        if self._busy_since_end:  # tasks may take longer now than they did
            rate = min(rate, 1 / self._busy_since_end)
        return rate * seconds

    # Counting.

    def count(self, now: float, seconds: float, most: int) -> int:
        """Count the tasks due now that could start within some seconds.

        Args:
            now: loop time.
            seconds: from then on.
            most: counting may stop there.
        """
        worker, queue = self._worker, self._worker.queue
        span = self._span(now, seconds)
        count: float = queue.permits.startable_until(span.begin_ns, span.end_ns)
        if worker.max_concurrency is not None:
            running_count = worker.accounts.running_count()
            count = min(count, span.places(worker.max_concurrency - running_count, running_count))
        if count <= 0:
            return 0
        if queue.gate is None:
            return math.floor(min(count, demand_until(queue, now)) + _ROUNDING)
        return math.floor(min(count, self._count_keyed(queue.gate, now, span, most)) + _ROUNDING)

    def count_of_key(self, gate: KeyGate, key: Hashable, cost: int, now: float, seconds: float, most: int) -> int:
        """Count the tasks of a key that its limits let start within some seconds, up to ``most``."""
        span = self._span(now, seconds)
        return math.floor(min(most, gate.count_until(key, cost, span, span.begin_ns)) + _ROUNDING)

    def _span(self, now: float, seconds: float) -> _Span:
        to_ns = self._worker.queue.timeline.to_ns
        return _Span(to_ns(now), to_ns(now + seconds), self._turns(seconds))

    def _count_keyed(self, gate: KeyGate, now: float, span: _Span, most: int) -> float:
        """Count the tasks due now that the limits of their keys let start in a span."""

        def allowance(key: Hashable, cost: int) -> float:
            return most if key is None else gate.count_until(key, cost, span, span.begin_ns)

        def count_of(calendar: Calendar, when: float, *, is_spread: bool) -> float:
            ready: Any = calendar.ready  # by key, as there is a gate
            count: float = ready.count_startable(allowance, most)
            return count + coming_until(calendar, when, is_spread=is_spread)

        return demand_until(self._worker.queue, now, count_of) + gate.count_parked(span, most, span.begin_ns)


class _Span:
    """A time in which tasks could start.

    Args:
        begin_ns: its start.
        end_ns: its end.
        turns: how many tasks end by then in a place that is never free.
    """

    def __init__(self, begin_ns: int, end_ns: int, turns: float) -> None:
        self.begin_ns = begin_ns
        self.end_ns = end_ns
        self._turns = turns

    def places(self, free: float, taken: int) -> float:
        """Estimate how many tasks could start in the free and the taken places."""
        free = max(0, free)
        if self._turns == math.inf:
            return math.inf if free or taken else 0
        return free * (1 + math.floor(self._turns)) + taken * self._turns
