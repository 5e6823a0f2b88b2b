"""Timers are called by time, those of one time as they were added, and stale ones are dropped without time passing."""

import asyncio
import math
from collections import deque

import pytest

from ratelimited_executor.simulation.timers import Timers, VirtualWaker
from ratelimited_executor.testing import VirtualClock


class Loop:
    """What handles need of a loop."""

    def __init__(self, timers):
        self._timer_handle_cancelled = lambda handle: timers.note_stale()

    def get_debug(self):
        return False


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def timers(clock):
    return Timers(clock)


def handle_of(timers, when, seen):
    handle = asyncio.TimerHandle(when, seen.append, (when,), Loop(timers))
    handle._scheduled = True
    timers.push_handle(when, handle)
    return handle


def test_timers_run_by_time_and_then_as_they_were_added(timers):
    """The order is that of the times, and of additions at one time."""
    seen = []
    for number, when in enumerate([5.0, 1.0, 5.0, 0.0, 1.0]):
        timers.push(when, seen.append, number)
    times = []
    while len(timers):
        times.append(timers.next_at())
        timers.run_next(deque())
    assert ([3, 1, 4, 0, 2], [0.0, 1.0, 1.0, 5.0, 5.0]) == (seen, times)
    assert math.inf == timers.next_at()


def test_handles_due_together_become_ready_together(timers, clock):
    """A handle becomes ready with those due by now, up to the next call; each is marked as no longer scheduled."""
    seen, ready = [], deque()
    handles = [handle_of(timers, when, seen) for when in (1.0, 1.0, 2.0)]
    timers.push(1.0, seen.append, "call")
    handles.append(handle_of(timers, 1.0, seen))
    clock.block(1.0)
    timers.run_next(ready)
    assert handles[:2] == list(ready)
    assert [False, False, True, True] == [handle._scheduled for handle in handles]


def test_stale_timers_are_dropped(timers):
    """A cancelled handle moves no time, and most stale ones are freed long before their time."""
    handles = [handle_of(timers, 1.0 + number, []) for number in range(1000)]
    for handle in handles[:-1]:
        handle.cancel()
    assert len(timers) < 500
    assert 1000.0 == timers.next_at()
    assert (1, 0) == (len(timers), timers.stale_count)
    timers.clear()
    assert (0, math.inf) == (len(timers), timers.next_at())


def test_a_waker_that_is_closed_is_forgotten():
    """A closed waker never runs again, and closing it twice does no harm."""
    wakers = []
    waker = VirtualWaker(wakers, lambda now: now)
    wakers.append(waker)
    waker.set(3.0, 0.0)
    assert 3.0 == waker.at
    waker.close()
    waker.close()
    assert ([], math.inf) == (wakers, waker.at)
