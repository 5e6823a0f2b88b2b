"""Stretches: tasks that start in succession are counted on demand, all of them and each once."""

import math

import pytest

from ratelimited_executor._kernel.batches import BatchSource
from ratelimited_executor._kernel.calendar import PLAIN_RANK
from ratelimited_executor._kernel.pacing import Pacing
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._kernel.stretch import STRETCH_COUNT_MAX

from ..core.world import CoreRecord, World
from ..waiting import live_count


def begin(count: int, *, rate=math.inf, limit: int = 10**6, now: float = 1.0):
    """Make a queue with a due batch, and take a stretch of it."""
    world = World(CoreRecord, rate=rate, pacing=Pacing.ON_TIME)
    source = BatchSource(count, first=0.5, rank=PLAIN_RANK, name="b", owner=None)
    world.queue.add_batch(source, joined=True)
    world.now = now
    return world.queue, source, look(world, limit)


def look(world: World, limit: int):
    """Take the tasks that start now."""
    queue = world.queue
    if world.now >= queue.end:
        queue.enter(world.now, world.now + 36000.0)
    queue.is_changed = True
    while (taken := queue.poll(world.now, limit)) is None and queue.wake_at == -math.inf:
        pass
    return taken


def test_counts_are_brought_up_to_date_as_far_as_it_has_come():
    """Settling counts the starts so far; settling again counts nothing twice."""
    queue, source, stretch = begin(10)
    assert source is stretch.source
    positions = stretch.positions()
    assert [0, 1, 2, 3] == [next(positions) for _ in range(4)]
    assert 10 == live_count(queue) == source.live
    assert 4 == stretch.catch_up(1.0)
    assert 6 == live_count(queue) == source.live == queue.ready_count()
    assert 0 == stretch.catch_up(1.0)
    assert [*range(4, 10)] == [*positions]
    assert 6 == stretch.catch_up(1.0)
    stretch.end()
    assert (0, [], None) == (live_count(queue), queue.batches(), stretch.source)


def test_positions_that_were_skipped_are_not_counted_as_started():
    """Skipped positions are not counted as started: their tasks were counted when they left."""
    queue, source, stretch = begin(5)
    source.start(2)  # as an order of one's own does
    queue.on_time.opened_count -= 1
    for position in stretch.positions():
        if source.has_started(position):
            stretch.skipped_count += 1
        else:
            source.started_flags(position)[position] = True
    assert 4 == stretch.catch_up(1.0)
    assert 0 == stretch.catch_up(1.0)
    assert (0, 0) == (source.live, queue.ready_count())


def test_what_was_let_go_of_is_taken_by_the_next():
    """A detached stretch starts none of the rest, and the next stretch takes all of it."""
    queue, source, stretch = begin(6)
    positions = stretch.positions()
    next(positions), next(positions)
    assert 2 == stretch.catch_up(1.0)
    stretch.detach()
    assert 0 == stretch.catch_up(1.0)
    stretch.end()
    assert 4 == source.live == queue.ready_count()
    assert [2, 3, 4, 5] == [*queue.poll(1.0, 100).positions()]


def test_a_stretch_is_no_longer_than_its_bound_and_than_it_may():
    """A stretch is bounded by STRETCH_COUNT_MAX, so that the event loop gets its turn, and by the limit."""
    assert STRETCH_COUNT_MAX == len([*begin(STRETCH_COUNT_MAX + 1)[2].positions()])
    assert 3 == len([*begin(10, limit=3)[2].positions()])


def test_starts_are_paid_for_when_they_are_counted():
    """Settling takes one permit for each start, out of those usable at once."""
    queue, _, stretch = begin(100, rate=200)  # four of the permits of the slack, and the newest
    paid = len([*stretch.positions()])
    assert 1 < paid < 10
    assert paid == queue.admission.count
    assert paid == stretch.catch_up(1.0)
    stretch.end()
    assert 0 == queue.admission.count
    assert None is queue.poll(1.0, 100)
    assert pytest.approx(1.005) == queue.wake_at


def test_records_that_have_gone_are_passed_over():
    """Cancelled records are skipped, expired ones end as expired, and the next one starts."""
    gone = []
    world = World(CoreRecord, pacing=Pacing.ON_TIME)
    world.queue.on_gone = lambda source, item, state: gone.append((source, item, state))
    first, cancelled, late, last = (
        world.add(name, 0.5, expires=expires) for name, expires in zip("abcd", [None, None, 0.25, 9], strict=True)
    )
    world.now = 0.8
    stretch = look(world, 10)
    assert None is stretch.source
    assert first is stretch.take_record(0.8)
    world.queue.cancel(cancelled)
    assert last is stretch.take_record(0.8)
    assert [(None, late, TaskState.EXPIRED)] == gone
    assert None is stretch.take_record(0.8)
    assert (0, 0) == (live_count(world.queue), world.queue.ready_count())
