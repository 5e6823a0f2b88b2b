"""The plain queue alone: the path of a task that needs nothing but a permit.

Its decisions are tested through an executor's queue (``core/queue/test_queue.py``), which adds to it and changes nothing.
"""

import math

import pytest

from ratelimited_executor._core.queue.expiry import ExpiryIndex
from ratelimited_executor._core.permits.permits import PermitGrid
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._core.queue.wall import WallWheel
from ratelimited_executor._kernel.chores import Chores
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._kernel.queue import PlainQueue
from ratelimited_executor._kernel.timeline import NS, Timeline

from ..core.world import CoreRecord


def plain_queue(rate, pacing):
    timeline, chores = Timeline(monotonic=0.0, wall=36000.0, interval_ns=NS), Chores()
    return PlainQueue(
        timeline,
        now=0.0,
        permits=PermitGrid(Rate.of(rate), slack_ns=20_000_000, now_ns=timeline.to_ns(0.0)),
        slack=0.02,
        pacing=pacing,
        early=False,
        bucket_ns_max=NS,
        chores=chores,
        expiry=ExpiryIndex(timeline),
        wall=WallWheel(1.0, chores),
    )


def drive(queue, until: float) -> list[tuple[float, str]]:
    """Start due tasks, waking when the queue asks for it; return the starts."""
    now, starts = 0.0, []
    while now <= until:
        if now >= queue.end:
            queue.enter(now, 36000.0 + now)
        while (taken := queue.poll(now, 1)) is not None or queue.wake_at == -math.inf:
            if taken is not None:
                starts.append((round(now, 6), taken[1].name))
        queue.is_changed = True
        wake = queue.wake_at
        assert wake > now
        now = min(wake, queue.end) if wake < math.inf else math.inf
    return starts


@pytest.mark.parametrize("pacing", Pacing)
def test_a_queue_without_anything_special_starts_alone(pacing):
    """Records start by importance under overload, never before their due time, at the rate, and all of them."""
    queue = plain_queue(4, pacing)
    for number in range(6):
        queue.add_record(CoreRecord(str(number), due=1.0, priority=number % 2))

    starts = drive(queue, 10.0)

    assert ["1", "3", "5", "0", "2", "4"] == [name for _, name in starts]
    last = (
        2.5 if pacing is Pacing.SPREAD else 2.25
    )  # two are left for the second interval, evenly, or as soon as they may
    assert [1.0, 1.25, 1.5, 1.75, 2.0, last] == [when for when, _ in starts]
    assert 0 == queue.ready_count()
    assert not queue.is_special


def test_unlimited_calls_are_one_stretch():
    """Calls without a limit or a record form one stretch, and are counted when it catches up."""
    queue = plain_queue(math.inf, Pacing.ON_TIME)
    for _ in range(10):
        queue.on_time.add_call(0.0, int, (), None)

    stretch = queue.poll(0.5, UNLIMITED)

    assert stretch is queue.stretch
    assert 10 == len([*stretch.positions()])
    assert 10 == stretch.catch_up(0.5)
    stretch.end()
    assert queue.poll(0.5, UNLIMITED) is None
    assert 0 == queue.ready_count()
