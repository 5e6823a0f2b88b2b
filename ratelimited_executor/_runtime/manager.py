"""Many executors on one timeline, and the interval runner that wakes for all of them.

The runner keeps one timer in the event loop, set for the earliest executor that wants to be run. An idle executor wants
nothing, so that an idle process is never woken.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Self

from ratelimited_executor._core.timeline import NS, Timeline
from ratelimited_executor._runtime.arguments import seconds_of
from ratelimited_executor._runtime.clock import clock_for
from ratelimited_executor._runtime.closing import close_all
from ratelimited_executor._runtime.log import RateLimitedWarnings
from ratelimited_executor.exceptions import ExecutorNotStartedError, ExecutorStoppedError
from ratelimited_executor.peers.static import StaticPeers

if TYPE_CHECKING:
    from types import TracebackType

    from ratelimited_executor._runtime.engine import Engine
    from ratelimited_executor._runtime.executor import RateLimitedExecutor
    from ratelimited_executor.abc import Clock, Peers

__all__ = ["ExecutorManager", "Runner"]

INTERVAL_SECONDS_MIN: Final = 0.01
INTERVAL_SECONDS_MAX: Final = 3600.0
_SLICE_SECONDS: Final = 0.003  # of work before the loop gets its turn; the last task started comes on top
_BLOCKED_SECONDS: Final = 1.0  # a timer later than this is worth a warning
_COMPACT_COUNT: Final = 128  # entries of the heap, stale ones included, that never matter
_TIMER_SECONDS_MAX: Final = 86_400.0


class Runner:
    """Runs every engine at the time it asked for, in slices.

    Args:
        loop: the event loop that everything runs on.
        clock: where the time is read; its monotonic scale is that of the loop's timers.
        interval: seconds in one interval.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, interval: float) -> None:
        self.loop = loop
        self.clock = clock
        self.timeline = Timeline(monotonic=clock.monotonic(), wall=clock.wall(), interval_ns=round(interval * NS))
        self.warnings = RateLimitedWarnings(clock.monotonic)
        self.context = Context()  # what our own callbacks run in: nobody's variables
        self._heap: list[tuple[float, int, Engine]] = []  # (when, id, engine); stale unless engine.armed is when
        self._compact_count = _COMPACT_COUNT
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._timer_at = math.inf
        self._is_running = False

    def arm(self, engine: Engine, when: float) -> None:
        """Run an engine at loop time ``when``, or earlier if it was armed so."""
        if when >= engine.armed:
            return
        engine.armed = when
        heapq.heappush(self._heap, (when, id(engine), engine))
        if not self._is_running and when < self._timer_at:
            self._set_timer(when)

    def disarm(self, engine: Engine) -> None:
        """Forget an engine that has closed."""
        engine.armed = math.inf
        self._heap = [entry for entry in self._heap if entry[2] is not engine]
        heapq.heapify(self._heap)
        if not self._heap:
            self._set_timer(math.inf)

    def _on_timer(self) -> None:
        now = self.clock.monotonic()
        if now - self._timer_at > _BLOCKED_SECONDS and self._timer_at > 0:
            self.warnings.warn("blocked", "the event loop was blocked for %.1f s", now - self._timer_at)
        self._timer = None
        self._timer_at = math.inf
        self._is_running = True
        try:
            self._run(now)
        finally:
            self._is_running = False
            self._set_timer(self._next())

    def _run(self, now: float) -> None:
        stop = now + _SLICE_SECONDS
        again: list[tuple[Engine, float]] = []
        try:
            while self._next() <= now < stop:
                engine = heapq.heappop(self._heap)[2]
                engine.armed = -math.inf  # what it arms while it runs is in the answer that it returns
                wake = -math.inf  # should it leave by an exception, it is run again
                try:
                    wake = engine.run(stop)
                finally:
                    again.append((engine, wake))
                now = self.clock.monotonic()
        finally:
            for engine, wake in again:
                engine.armed = math.inf
                self.arm(engine, wake)

    def _next(self) -> float:
        """Return when the next engine wants to be run; infinity if none does."""
        heap = self._heap
        while heap and heap[0][2].armed != heap[0][0]:
            heapq.heappop(heap)
        if len(heap) > self._compact_count:
            self._heap = heap = [entry for entry in heap if entry[2].armed == entry[0]]
            heapq.heapify(heap)
            self._compact_count = max(_COMPACT_COUNT, 2 * len(heap))
        return heap[0][0] if heap else math.inf

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = when
        if when == math.inf:
            return
        now = self.clock.monotonic()
        if when <= now:
            self._timer = self.loop.call_soon(self._on_timer, context=self.context)
        else:
            # At most a day ahead: no event loop was made for timers beyond.
            self._timer = self.loop.call_at(min(when, now + _TIMER_SECONDS_MAX), self._on_timer, context=self.context)


class ExecutorManager:
    """Owns the interval runner, the timeline and the peers of its executors.

    Args:
        interval: seconds in one interval, from 0.01 to 3600: the span over which tasks are spread.
        clock: where the time is read; the system's by default.
        peers: with whom the rates are shared; nobody by default.

    Use it as an async context manager; leaving it normally closes every executor as leaving that executor would.

    >>> async def main():
    ...     async with ExecutorManager() as manager:
    ...         mail = manager.executor("mail", rate=100)
    ...         sms = manager.executor("sms", rate="5/min")
    """

    def __init__(self, *, interval: float = 1.0, clock: Clock | None = None, peers: Peers | None = None) -> None:
        self._interval = seconds_of("interval", interval)
        if not INTERVAL_SECONDS_MIN <= self._interval <= INTERVAL_SECONDS_MAX:
            raise ValueError(
                f"interval must be from {INTERVAL_SECONDS_MIN} to {INTERVAL_SECONDS_MAX:.0f} seconds, got {interval!r}"
            )
        self._clock = clock
        self._peers: Peers = peers if peers is not None else StaticPeers(1, 0)
        self._executors: dict[str, RateLimitedExecutor] = {}
        self._runner: Runner | None = None
        self._is_closed = False

    @property
    def interval(self) -> float:
        """Seconds in one interval."""
        return self._interval

    @property
    def peers(self) -> Peers:
        """With whom the rates are shared."""
        return self._peers

    @property
    def executors(self) -> dict[str, RateLimitedExecutor]:
        """The executors by name, those that are closed left out."""
        return dict(self._executors)

    def executor(self, name: str, **options: Any) -> RateLimitedExecutor:
        """Make an executor of this manager; it starts with the manager, or at once if that has started.

        Args:
            name: unlike that of every other executor of the manager.
            options: as for :class:`RateLimitedExecutor`.

        Raises:
            ValueError: if an open executor has this name.
            ExecutorStoppedError: if the manager is closed.
        """
        from ratelimited_executor._runtime.executor import RateLimitedExecutor  # noqa: PLC0415  # it imports this module

        return RateLimitedExecutor(name, manager=self, **options)

    async def start(self) -> None:
        """Start on the running event loop, with every executor made so far; ``async with`` does it.

        Raises:
            ExecutorStoppedError: if it was started before.
        """
        if self._is_closed or self._runner is not None:
            raise ExecutorStoppedError(repr(self))
        loop = asyncio.get_running_loop()
        self._runner = Runner(loop, self._clock or clock_for(loop), self._interval)
        for executor in self._executors.values():
            executor._open(self._runner)

    async def aclose(self) -> None:
        """Close every executor as leaving its ``async with`` would: what was accepted runs, up to its ``drain_timeout``."""
        self._is_closed = True
        await close_all([executor._closing for executor in self._executors.values()])

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.aclose()
            return
        self._is_closed = True
        for executor in self._executors.values():
            executor._closing.abort()
        await close_all([executor._closing for executor in self._executors.values()])

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "new" if self._runner is None else "open"
        return f"<ExecutorManager {state} interval={self._interval:g} executors={len(self._executors)}>"

    # For its executors.

    def _register(self, executor: RateLimitedExecutor) -> Runner | None:
        """Take in an executor, and return the runner if the manager has started."""
        if self._is_closed:
            raise ExecutorStoppedError(repr(self))
        if executor.name in self._executors:
            raise ValueError(f"name {executor.name!r} is in use: every executor of a manager needs a name of its own")
        self._executors[executor.name] = executor
        return self._runner

    def _forget(self, executor: RateLimitedExecutor) -> None:
        if self._executors.get(executor.name) is executor:
            del self._executors[executor.name]

    def _close_alone(self) -> None:
        """Note that the only executor of a manager that nobody else has is closed."""
        self._is_closed = True

    def _started_runner(self) -> Runner:
        if self._runner is None:
            raise ExecutorNotStartedError(repr(self))
        return self._runner
