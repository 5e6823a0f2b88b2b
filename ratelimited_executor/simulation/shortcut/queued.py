"""Computes when each job of one executor starts by asking the executor's own queue, without its tasks, timers and callbacks.

The queue decides, as in production: every pacing, rank and rate, and jobs that fail and are tried again. This module hands
it the jobs as they arrive, minute by minute, and keeps the time: of ends, hand-overs and wake-ups, in the order in which an
executor and the loop of a simulation have them.

Order at one instant: what was planned first happens first, and a wake-up of the queue after all of that; but if the end of a
job frees the only place, the queue is asked at once.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_left
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.sizes import START_COUNT_MAX
from ratelimited_executor.simulation.feeds import CHUNK_SECONDS
from ratelimited_executor.simulation.hours import HOUR_SECONDS
from ratelimited_executor.simulation.shortcut.passing import AttemptColumns, Pass, Passed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._kernel.batches import BatchSource
    from ratelimited_executor.simulation.shortcut.passing import Inflow

__all__ = ["pass_by_queue"]

_Event = tuple[float, int, int, int, bool]
"""Time, number among equal times, inflow, and of an end the index of the job and True if it fails.

In place of the index are ``_HAND_OVER``, and ``_SHIFT`` with the number of the shift in place of the inflow.
"""
_HAND_OVER: Final = -1
_SHIFT: Final = -2


@two_bodies
def pass_by_queue(
    inflows: Sequence[Inflow],
    workers: float,
    queue: TaskQueue,
    shifts: Sequence[tuple[float, Callable[[float], tuple[float, bool]]]],
    pause: Callable[[int], float | None],
    due_count: Callable[[float], int],
    moments: array[float],
    is_step: bytearray,
    taking: Mapping[int, Sequence[int]],
    meter_count: int,
) -> Passed:
    """Compute all starts up to the last moment.

    Args:
        inflows: the jobs.
        workers: how many run at once; infinity for no limit.
        queue: the queue of the executor, empty.
        shifts: what may change a setting each hour, with the time of its first call: called with the time, it returns how many
            run at once from then on, and True if the queue is to be asked now.
        pause: returns the seconds before another attempt, by the number of those that have failed; None if there is none.
        due_count: counts the jobs in the queue that are due at a time.
        moments: when something is counted, rising, in seconds since the start.
        is_step: for each moment, 1 if a step ends there.
        taking: the meters whose values are taken out at a moment, by its number.
        meter_count: the number of meters.
    """
    return _Queued(inflows, workers, queue, shifts, pause, due_count, meter_count).run(moments, is_step, taking)


class _Queued(Pass):
    def __init__(
        self,
        inflows: Sequence[Inflow],
        workers: float,
        queue: TaskQueue,
        shifts: Sequence[tuple[float, Callable[[float], tuple[float, bool]]]],
        pause: Callable[[int], float | None],
        due_count: Callable[[float], int],
        meter_count: int,
    ) -> None:
        super().__init__(inflows, workers, queue, meter_count)
        self._shifts = shifts
        self._shift_counts = [0] * len(shifts)
        self._pause = pause
        self._due_count = due_count
        self._events: list[_Event] = []
        self._numbers = count()
        self._attempts: list[tuple[array[Any], ...]] = [tuple(map(array, "qddd")) for _ in inflows]
        self._chunks = [0] * len(inflows)  # minutes handed over
        self._failures: dict[tuple[int, int], int] = {}  # failed attempts of jobs that are tried again
        self._wake = math.inf
        self._is_full = False  # True if the queue was last asked without a free worker
        queue._is_single = True  # each start is told, as in a simulation
        for number, (first, _) in enumerate(shifts):
            heapq.heappush(self._events, (first, next(self._numbers), number, _SHIFT, False))
        for number in sorted(range(len(inflows)), key=lambda number: inflows[number].is_feed):
            self._hand_over(0.0, number)  # batches come first, in setup()

    def run(self, moments: array[float], is_step: bytearray, taking: Mapping[int, Sequence[int]]) -> Passed:
        """Compute all starts, and note all attempts."""
        passed = super().run(moments, is_step, taking)
        for inflow, columns in zip(self._inflows, self._attempts, strict=True):
            inflow.attempts = AttemptColumns(*columns)
        return passed

    def _depth(self, moment: float) -> int:
        return self._due_count(moment)

    def _pass_until(self, moment: float) -> None:
        events, now = self._events, self._seen_at
        while True:
            at = events[0][0] if events else math.inf
            is_wake = self._wake < at
            if is_wake:
                at = self._wake
            if at > moment:
                return
            now = max(now, at)
            if is_wake:
                self._wake = -math.inf  # what is armed meanwhile is part of the answer
                self._wake = self._ask(now)
                continue
            _, _, number, index, is_failed = heapq.heappop(events)
            if index >= 0:
                self._end(now, number, index, is_failed=is_failed)
                continue
            self._change(now, number, index)
            while events and events[0][0] == now and events[0][3] < 0:  # the loop makes them ready together
                _, _, number, index, _ = heapq.heappop(events)
                self._change(now, number, index)

    # What arrives, and what changes.

    def _change(self, now: float, number: int, index: int) -> None:
        """Hand over jobs, or let a setting change."""
        if index == _HAND_OVER:
            self._hand_over(now, number)
            return
        first, shift = self._shifts[number]
        self._shift_counts[number] += 1
        when = first + self._shift_counts[number] * HOUR_SECONDS
        heapq.heappush(self._events, (when, next(self._numbers), number, _SHIFT, False))
        self._workers, is_asked = shift(now)
        if is_asked:
            self._wake = -math.inf

    def _hand_over(self, now: float, number: int) -> None:
        """Hand over the jobs of a minute, or of a batch; those due in the running interval separately."""
        inflow, chunk = self._inflows[number], self._chunks[number]
        self._chunks[number] = chunk + 1
        first, stop = inflow.counts[chunk - 1] if chunk else 0, inflow.counts[chunk]
        if stop > first:
            self._enter(now)
            split = bisect_left(inflow.dues, self._queue.interval_end, first, stop)
            for begin, end in ((first, split), (split, stop)):
                if begin < end:
                    self._add(inflow.part(number, begin, end))
        if chunk + 1 < len(inflow.counts):
            heapq.heappush(self._events, ((chunk + 1) * CHUNK_SECONDS, next(self._numbers), number, _HAND_OVER, False))

    def _add(self, source: BatchSource) -> None:
        queue, due = self._queue, source.first
        queue.add_batch(source, joined=due < queue.interval_end)
        queue.is_changed = True
        if due >= queue.end:
            due = min(queue.on_time.opening_time(), queue.spread.next_start(), due)
        self._wake = min(self._wake, due)

    def _enter(self, now: float) -> None:
        """Begin the interval of an instant."""
        if now >= self._queue.end:
            self._queue.enter(now, self._queue.timeline.to_epoch(now))

    # Starts and ends.

    def _ask(self, now: float) -> float:
        """Start what the queue has to start now; return when to ask again. This is ``Engine.run``."""
        queue = self._queue
        self._enter(now)
        self._is_full = False
        queue.is_changed = True
        for _ in range(START_COUNT_MAX):
            room = UNLIMITED if self._workers == math.inf else int(self._running < self._workers)
            taken = queue.poll(now, room)
            if taken is not None:
                self._start(now, *taken)
                if queue.counts_effects:
                    queue.take_effect(now)
            elif queue.wake_at > -math.inf:
                self._is_full = not room
                return now if queue.is_changed else max(now, queue.wake_at)
        return now

    def _start(self, now: float, source: BatchSource, position: int) -> None:
        number, index, due = source.owner, source.indexes[position], source.due_of(position)
        inflow = self._inflows[number]
        self._note_running(now, 1)
        if attempt := self._failures.get((number, index), 0):
            luck, seconds = inflow.drawn_again(index, attempt)
        else:
            inflow.starts[index] = now
            luck, seconds = inflow.lucks[index], inflow.seconds[index]
        for column, value in zip(self._attempts[number], (index, due, now, seconds), strict=True):
            column.append(value)
        self._measure(inflow, now - due, seconds)
        is_failed = luck < inflow.failures or any(luck < outage.part(now) for outage in inflow.outages)
        heapq.heappush(self._events, (now + seconds, next(self._numbers), number, index, is_failed))

    def _end(self, now: float, number: int, index: int, *, is_failed: bool) -> None:
        self._note_running(now, -1)
        if not is_failed:
            self._done += 1
        elif not self._try_again(now, number, index):
            self._failed += 1
        if self._is_full:
            self._queue.is_changed = True
            self._wake = -math.inf

    def _try_again(self, now: float, number: int, index: int) -> bool:
        """Let a failed job wait for another attempt, as ``Retries.again`` does; return False if there is none."""
        job = number, index
        failures = self._failures.pop(job, 0) + 1
        pause = self._pause(failures)
        if pause is None:
            return False
        self._failures[job] = failures
        self._retried += 1
        self._enter(now)
        self._add(self._inflows[number].again(number, index, now + pause))
        return True
