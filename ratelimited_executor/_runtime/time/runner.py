"""The interval runner: wakes the event loop for the executors of one manager.

It keeps one timer (``wakers.py``), set for the earliest run that an executor has asked for. An idle executor asks for
none, so that an idle process is never woken. Work goes in slices, between which the loop has its turn; executors that
have work left take turns.
"""

from __future__ import annotations

import heapq
import math
from contextvars import Context
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import RunnerFields
from ratelimited_executor._kernel.sizes import BLOCKED_SECONDS, COMPACT_COUNT, LONG_HOLD_SECONDS, SLICE_SECONDS
from ratelimited_executor._kernel.timeline import NS, Timeline
from ratelimited_executor._runtime.log import RateLimitedWarnings
from ratelimited_executor._runtime.time.clock import coarse_time_of, is_of_system
from ratelimited_executor._runtime.time.garbage import LONG_COLLECTIONS
from ratelimited_executor._runtime.time.wakers import LoopTimer, waker_for

if TYPE_CHECKING:
    import asyncio

    from ratelimited_executor._runtime.time.hooks import Hooks
    from ratelimited_executor.abc import Clock

__all__ = ["Runnable", "Runner"]

_PRECISION_UNLIMITED_SECONDS: Final = 0.001  # the precision of asyncio's own timers
_PRECISION_CROWDED_SECONDS: Final = 0.003  # 0.06 microseconds less a call at 100,000 a second than at 0.002
_PRECISION_SECONDS: Final = 0.0005  # the default between two wake-ups: half of the precision of asyncio's own timers


class Runnable(Protocol):
    """The interface of the runner's clients: the engines of executors."""

    armed: float  # loop time of the next run; the runner keeps it

    def run(self, now: float, stop: float) -> float:
        """Work from loop time ``now`` until ``stop`` at most; return the loop time of the next run."""
        ...


class Runner(RunnerFields):
    """Runs every engine at the time it asked for, in slices.

    Args:
        loop: the event loop that everything runs on.
        clock: the source of time; its monotonic scale is that of the loop's timers.
        interval: seconds in one interval.
        precision: the shortest time between two wake-ups, in seconds; None for the default of this kind of loop.
        hooks: the capabilities of the loop.

    Attributes:
        earliest: loop time before which no timer wakes the loop again.
        is_lent: True while it holds system resources, which :meth:`close` frees.
        precision_unlimited: the precision for an executor without a limit, which has nothing to pace.
        precision_crowded: the precision where so many tasks fall due that waking up costs more than starting them, and
            most are late anyway because of the others.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        interval: float,
        precision: float | None = None,
        *,
        hooks: Hooks,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self._monotonic = clock.monotonic
        self.hooks = hooks
        self.timeline = Timeline(monotonic=clock.monotonic(), wall=clock.wall(), interval_ns=round(interval * NS))
        self.timeline.loop_time = coarse_time_of(loop, clock)
        self.warnings = RateLimitedWarnings(clock.monotonic)
        self.context = Context()  # the context of our own callbacks: without variables
        self.engines: set[Runnable] = set()  # all that have not closed
        self._heap = []  # (when, number, engine); stale unless engine.armed is when
        self._numbers = count()  # numbers of the heap's entries: the first to ask goes first
        self._compact_count = COMPACT_COUNT
        is_virtual = hooks.is_virtual  # in virtual time a wake-up makes no one wait
        self._waker = (
            waker_for(loop, self._on_timer, self.context, is_foreign=not is_of_system(clock))
            if hooks.make_waker is None
            else hooks.make_waker(self.run_due)  # for a loop that polls instead of being woken
        )
        self.is_lent = not is_virtual
        if self._is_on_real_clock:
            LONG_COLLECTIONS.watch()
        self._precision = precision if precision is not None else 0.0 if is_virtual else _PRECISION_SECONDS
        is_adaptive = precision is None and not is_virtual
        self.precision_unlimited = _PRECISION_UNLIMITED_SECONDS if is_adaptive else self._precision
        self.precision_crowded = _PRECISION_CROWDED_SECONDS if is_adaptive else self._precision
        self.earliest = -math.inf
        self._timer_at = math.inf
        self._call_at = math.inf  # when the loop should call us: _timer_at, unless that had passed
        self._is_running = False

    def arm(self, engine: Runnable, when: float) -> None:
        """Run an engine at loop time ``when``, or earlier if it was already armed for that."""
        if when >= engine.armed:
            return
        engine.armed = when
        heapq.heappush(self._heap, (when, next(self._numbers), engine))
        if not self._is_running and when < self._timer_at:
            self._set_timer(when)

    def disarm(self, engine: Runnable) -> None:
        """Forget an engine that has closed."""
        self.engines.discard(engine)
        engine.armed = math.inf
        self._heap = [entry for entry in self._heap if entry[2] is not engine]
        heapq.heapify(self._heap)
        if not self._heap:
            self._set_timer(math.inf)

    def close(self) -> None:
        """Free the system resources; every engine has closed."""
        self._waker.close()
        self._waker = LoopTimer(self.loop, self._on_timer, self.context)
        if self._is_on_real_clock:
            LONG_COLLECTIONS.unwatch()
        self.is_lent = False

    @property
    def _is_on_real_clock(self) -> bool:
        """True while it runs on the system's clock, on which collections take time."""
        return self.is_lent and is_of_system(self.clock)

    def collected_seconds(self, seconds: float) -> float:
        """Return for how many of the last ``seconds`` long garbage collections have blocked the process."""
        return LONG_COLLECTIONS.seconds_since(self._monotonic() - seconds) if self._is_on_real_clock else 0.0

    @two_bodies
    def run_due(self, now: float) -> float:
        """Run the due engines; return the loop time of the next call. For a loop that polls instead of being woken.

        Args:
            now: loop time; the call is not late.
        """
        self.earliest = now
        self._timer_at = math.inf
        self._is_running = True
        try:
            self._run(now)
        finally:
            self._is_running = False
        heap = self._heap
        # With one executor, its entry is nearly always the only one.
        self._timer_at = when = heap[0][0] if len(heap) == 1 and heap[0][2].armed == heap[0][0] else self._next()
        return when

    @two_bodies
    def _on_timer(self) -> None:
        try:
            now = self._monotonic()
            if now - self._call_at > BLOCKED_SECONDS:
                self._note_blocked(now - self._call_at)
            # From the time that was set and not from now: lateness must not delay the next wake-up.
            self.earliest = min(now, self._call_at) + self._precision
            self._timer_at = math.inf
            self._is_running = True
            self._run(now)
            self._is_running = False
            self._set_timer(self._next())
        except BaseException:
            self._rearm()
            raise

    def _note_blocked(self, seconds: float) -> None:
        """Warn of a timer that was very late."""
        collected = self.collected_seconds(seconds)
        if collected >= LONG_HOLD_SECONDS:
            self.warnings.warn(
                "blocked",
                "the event loop was blocked for %.1f s, %.1f s of it by garbage collections",
                seconds,
                collected,
            )
        else:
            self.warnings.warn("blocked", "the event loop was blocked for %.1f s", seconds)

    def _rearm(self) -> None:
        """Run every engine soon: an exception has ended a run, perhaps between two lines of ours."""
        self._is_running = False
        self._heap.clear()
        for engine in self.engines:
            engine.armed = math.inf
            self.arm(engine, -math.inf)
        self._set_timer(self._next())

    def _run(self, now: float) -> None:
        """Run each due engine once; runs that they ask of each other meanwhile wait for the next turn."""
        stop = now + SLICE_SECONDS
        heap = self._heap
        if len(heap) == 1 and heap[0][0] <= now and heap[0][2].armed == heap[0][0]:  # nearly always
            engine = heap.pop()[2]
            engine.armed = -math.inf  # as below
            try:
                engine.armed = wake = engine.run(now, stop)
            except BaseException:
                engine.armed = math.inf
                self.arm(engine, -math.inf)
                raise
            if wake < math.inf:
                heapq.heappush(self._heap, (wake, next(self._numbers), engine))
            return
        due: list[Runnable] = []
        while heap and heap[0][0] <= now:
            when, _, engine = heapq.heappop(heap)
            if engine.armed == when:
                due.append(engine)
                engine.armed = -math.inf  # what it arms during its run is part of the time that it returns
        run_count = 0
        try:
            for engine in due:
                if now >= stop:
                    break
                run_count += 1
                wake = -math.inf  # if it raises, it is run again
                try:
                    wake = engine.run(now, stop)
                finally:
                    engine.armed = math.inf
                    self.arm(engine, wake)
                now = self._monotonic()
        finally:
            for engine in due[run_count:]:
                engine.armed = math.inf
                self.arm(engine, -math.inf)

    def _next(self) -> float:
        """Return the loop time of the next run; infinity if there is none."""
        heap = self._heap
        if len(heap) == 1 and heap[0][2].armed == heap[0][0]:  # nearly always
            return heap[0][0]
        while heap and heap[0][2].armed != heap[0][0]:
            heapq.heappop(heap)
        if len(heap) > self._compact_count:
            # One entry for each engine, which may have asked for the same time repeatedly.
            self._heap = heap = list({entry[2]: entry for entry in heap if entry[2].armed == entry[0]}.values())
            heapq.heapify(heap)
            self._compact_count = max(COMPACT_COUNT, 2 * len(heap))
        return heap[0][0] if heap else math.inf

    def _set_timer(self, when: float) -> None:
        if self.loop.is_closed():  # tasks there may still be cancelled
            return
        now = self._monotonic()
        if now < when < self.earliest:
            when = self.earliest
        self._timer_at = when
        self._call_at = when if when > now else now  # noqa: FURB136  # this is the path of every wake-up
        self._waker.set(when, now)
