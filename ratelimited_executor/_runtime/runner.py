"""The interval runner: wakes the event loop for the executors of one manager.

It keeps one timer (``wakers.py``), set for the earliest executor that wants to be run. An idle executor wants nothing,
so that an idle process is never woken. Work goes in slices, between which the loop has its turn; executors that have work
left take turns.
"""

from __future__ import annotations

import heapq
import math
from contextvars import Context
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import RunnerFields
from ratelimited_executor._kernel.sizes import BLOCKED_SECONDS, LONG_HOLD_SECONDS, SLICE_SECONDS
from ratelimited_executor._kernel.timeline import NS, Timeline
from ratelimited_executor._runtime.clock import coarse_time_of, is_of_system
from ratelimited_executor._runtime.garbage import LONG_COLLECTIONS
from ratelimited_executor._runtime.log import RateLimitedWarnings
from ratelimited_executor._runtime.wakers import LoopTimer, waker_for

if TYPE_CHECKING:
    import asyncio

    from ratelimited_executor._runtime.hooks import Hooks
    from ratelimited_executor.abc import Clock

__all__ = ["Runnable", "Runner"]

_PRECISION_UNLIMITED_SECONDS: Final = 0.001  # what asyncio's own timers do
_PRECISION_CROWDED_SECONDS: Final = 0.003  # 0.06 microseconds less a call at 100,000 a second than at 0.002
_COMPACT_COUNT: Final = 128  # entries of the heap, stale ones included, that never matter
_PRECISION_SECONDS: Final = 0.0005  # between two wake-ups, unless it was chosen: half of what asyncio's own timers do


class Runnable(Protocol):
    """The interface of the runner's clients: the engines of executors."""

    armed: float  # loop time at which; the runner keeps it

    def run(self, stop: float) -> float:
        """Work until loop time ``stop`` at most; return the loop time of the next run."""
        ...


class Runner(RunnerFields):
    """Runs every engine at the time it asked for, in slices.

    Args:
        loop: the event loop that everything runs on.
        clock: where the time is read; its monotonic scale is that of the loop's timers.
        interval: seconds in one interval.
        precision: the shortest time between two wake-ups, in seconds; None for what the loop's kind is best at.
        hooks: what the loop offers.

    Attributes:
        earliest: loop time before which no timer wakes the loop again.
        is_lent: True if the system has lent anything that :meth:`close` frees.
        precision_unlimited: the same as ``precision`` for an executor without a limit, which has nothing to pace.
        precision_crowded: the same where so much falls due that waking up costs more than starting it, and most of it is
            late anyway by the time that the others take.
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
        self.context = Context()  # what our own callbacks run in: nobody's variables
        self.engines: set[Runnable] = set()  # all that have not closed
        self._heap = []  # (when, number, engine); stale unless engine.armed is when
        self._numbers = count()  # of entries of the heap: the first to ask goes first
        self._compact_count = _COMPACT_COUNT
        is_virtual = hooks.is_virtual  # there a wake-up costs nothing that anybody waits for
        self._waker = (
            waker_for(loop, self._on_timer, self.context, is_foreign=not is_of_system(clock))
            if hooks.make_waker is None
            else hooks.make_waker(self.run_due)  # of a loop that is not woken, but asks
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
        self._call_at = math.inf  # when the loop was to call us: _timer_at, unless that had passed
        self._is_running = False

    def arm(self, engine: Runnable, when: float) -> None:
        """Run an engine at loop time ``when``, or earlier if it was armed so."""
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
        """Free what the system lent; every engine has closed."""
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
        """Return for how many of the last ``seconds`` long garbage collections have held the process."""
        return LONG_COLLECTIONS.seconds_since(self._monotonic() - seconds) if self._is_on_real_clock else 0.0

    @two_bodies
    def run_due(self, now: float) -> float:
        """Run what is due, and return when to be called next: for a loop that is asked and not woken.

        Args:
            now: loop time; nobody was late.
        """
        self.earliest = now
        self._timer_at = math.inf
        self._is_running = True
        try:
            self._run(now)
        finally:
            self._is_running = False
        heap = self._heap
        # Of one executor, nearly always, its entry is the only one.
        self._timer_at = when = heap[0][0] if len(heap) == 1 and heap[0][2].armed == heap[0][0] else self._next()
        return when

    @two_bodies
    def _on_timer(self) -> None:
        try:
            now = self._monotonic()
            if now - self._call_at > BLOCKED_SECONDS:
                self._note_blocked(now - self._call_at)
            # From the time that was set and not from now: what is late must not make the next later.
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
        """Run every engine soon: an exception has left a run, perhaps between two lines of ours."""
        self._is_running = False
        self._heap.clear()
        for engine in self.engines:
            engine.armed = math.inf
            self.arm(engine, -math.inf)
        self._set_timer(self._next())

    def _run(self, now: float) -> None:
        """Run each engine whose time has come once; what they ask of each other meanwhile is for the next turn."""
        stop = now + SLICE_SECONDS
        heap = self._heap
        if len(heap) == 1 and heap[0][0] <= now and heap[0][2].armed == heap[0][0]:  # nearly always
            engine = heap.pop()[2]
            engine.armed = -math.inf  # as below
            try:
                engine.armed = wake = engine.run(stop)
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
                engine.armed = -math.inf  # what it arms until it has run is in the answer that it returns
        run_count = 0
        try:
            for engine in due:
                if now >= stop:
                    break
                run_count += 1
                wake = -math.inf  # should it leave by an exception, it is run again
                try:
                    wake = engine.run(stop)
                finally:
                    engine.armed = math.inf
                    self.arm(engine, wake)
                now = self._monotonic()
        finally:
            for engine in due[run_count:]:
                engine.armed = math.inf
                self.arm(engine, -math.inf)

    def _next(self) -> float:
        """Return when the next engine wants to be run; infinity if none does."""
        heap = self._heap
        if len(heap) == 1 and heap[0][2].armed == heap[0][0]:  # nearly always
            return heap[0][0]
        while heap and heap[0][2].armed != heap[0][0]:
            heapq.heappop(heap)
        if len(heap) > self._compact_count:
            # One for each engine: it may have asked for the same time again and again.
            self._heap = heap = list({entry[2]: entry for entry in heap if entry[2].armed == entry[0]}.values())
            heapq.heapify(heap)
            self._compact_count = max(_COMPACT_COUNT, 2 * len(heap))
        return heap[0][0] if heap else math.inf

    def _set_timer(self, when: float) -> None:
        if self.loop.is_closed():  # what lies there may still be cancelled
            return
        now = self._monotonic()
        if now < when < self.earliest:
            when = self.earliest
        self._timer_at = when
        self._call_at = when if when > now else now  # noqa: FURB136  # this is the path of every wake-up
        self._waker.set(when, now)
