"""How many permits a process asks for: one for each task that is due and could start, by all that it knows of itself.

A permit that its peer cannot use lapses, and is lost to the whole group. So what the process's other limits hold back
counts as little as what is not due: a pause, a penalty, a second rate, a resource, the limits of keys, and
``max_concurrency``.

A place of ``max_concurrency`` that is taken becomes free by and by. How soon is told by what was seen lately: of tasks
that ran for ``busy`` seconds together, and of which ``ended`` have ended, each ends within w seconds with a chance of
w * ended / busy (Little's law). A place that is free lets one task start, and as many more as end in it; one that is
taken, as many as end in it. Where nothing is known yet, places are no limit: one interval's permits are the price.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._core.looking import coming_until, demand_until

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ratelimited_executor._core.key_gate import KeyGate
    from ratelimited_executor._core.queue import TaskQueue
    from ratelimited_executor._kernel.calendar import Calendar
    from ratelimited_executor._kernel.timeline import Timeline

__all__ = ["Demand", "Worker"]

_MEMORY_SECONDS: Final = 2.0  # what was seen so long ago counts a third
_ROUNDING: Final = 1e-9


class Counts(Protocol):
    """What has become of the tasks."""

    started_count: int

    def running_count(self) -> int:
        """Count the tasks that run."""
        ...


class Worker(Protocol):
    """What starts the tasks: an executor's engine."""

    timeline: Timeline
    queue: TaskQueue
    max_concurrency: int | None

    @property
    def accounts(self) -> Counts:
        """What has become of them."""
        ...


class Demand:
    """What one executor could start, if there were permits for all.

    Args:
        worker: the executor's engine.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._seen_at: float | None = None  # loop time
        self._running_count = 0  # then, as the next three
        self._ended_count = 0
        self._started_count = 0
        self._ready_count = 0
        self._busy = 0.0  # seconds for which tasks ran, of late
        self._busy_since_end = 0.0
        self._ended = 0.0  # tasks that have ended after their start, of late
        self._started = 0.0
        self._grown = 0.0  # by how many the tasks that are due have become more, of late

    # Seeing.

    def look(self, now: float) -> None:
        """Record how it goes; after each run, and before each count."""
        worker = self._worker
        if worker.max_concurrency is None and worker.queue.gate is None:
            return
        running_count, started_count = worker.accounts.running_count(), worker.accounts.started_count
        ended_count, ready_count = started_count - running_count, worker.queue.ready_count()
        if self._seen_at is not None:
            seconds = max(0.0, now - self._seen_at)
            kept = math.exp(-seconds / _MEMORY_SECONDS)
            busy, ended = self._running_count * seconds, ended_count - self._ended_count
            self._busy = self._busy * kept + busy
            self._ended = self._ended * kept + ended
            self._busy_since_end = 0.0 if ended else self._busy_since_end + busy
            self._started = self._started * kept + started_count - self._started_count
            self._grown = self._grown * kept + ready_count - self._ready_count
        self._seen_at = now
        self._running_count, self._ended_count = running_count, ended_count
        self._started_count, self._ready_count = started_count, ready_count

    def _turns(self, seconds: float) -> float:
        """Estimate how many tasks end, within so many seconds, in one place that is never free."""
        if not self._busy:
            return math.inf
        rate = self._ended / self._busy
        if self._busy_since_end:  # what ended soon until now may take longer from now on
            rate = min(rate, 1 / self._busy_since_end)
        return rate * seconds

    # Counting.

    def count(self, now: float, due: float, begin: float, end: float, most: int) -> int:  # a time and a span
        """Count the tasks that are due by a time, and could start in [``begin``, ``end``).

        Args:
            now: loop time.
            due: loop time by which they are due.
            begin: loop time; before it none of them starts.
            end: loop time.
            most: what goes beyond that need not be counted.
        """
        worker, queue = self._worker, self._worker.queue
        to_ns = queue.timeline.to_ns
        span = _Span(to_ns(max(now, begin)), to_ns(end), self._turns(max(0.0, end - now)))
        count: float = queue.permits.startable_until(span.begin_ns, span.end_ns)
        if worker.max_concurrency is not None:
            running_count = worker.accounts.running_count()
            count = min(count, span.places(worker.max_concurrency - running_count, running_count))
        if count <= 0:
            return 0
        if queue.gate is None:
            return math.floor(min(count, demand_until(queue, due)) + _ROUNDING)
        return math.floor(min(count, self._count_keyed(queue.gate, to_ns(now), due, span, most)) + _ROUNDING)

    def _count_keyed(self, gate: KeyGate, now_ns: int, due: float, span: _Span, most: int) -> float:
        """Count the tasks that are due by a time, and that their keys could start in a span."""
        grown = max(0.0, self._grown)
        part = self._started / (self._started + grown) if grown else 1.0  # of what comes, of keys that may start it

        def allowance(key: Hashable, cost: int) -> float:
            return most if key is None else gate.count_until(key, cost, span, now_ns)

        def count_of(calendar: Calendar, when: float, *, is_spread: bool) -> float:
            ready: Any = calendar.ready  # by key, as there is a gate
            count: float = ready.count_startable(allowance, most)
            return count + part * coming_until(calendar, when, is_spread=is_spread)

        return demand_until(self._worker.queue, due, count_of) + gate.count_parked(span, most, now_ns)


class _Span:
    """A time in which tasks could start.

    Args:
        begin_ns: from which on.
        end_ns: until when.
        turns: how many tasks end in a place until then, if it is never free.
    """

    def __init__(self, begin_ns: int, end_ns: int, turns: float) -> None:
        self.begin_ns = begin_ns
        self.end_ns = end_ns
        self._turns = turns

    def places(self, free: float, taken: int) -> float:
        """Estimate how many tasks could start in so many places that are free, and in so many that are taken."""
        free = max(0, free)
        if self._turns == math.inf:
            return math.inf if free or taken else 0
        return free * (1 + math.floor(self._turns)) + taken * self._turns
