"""Counts and estimates of the tasks waiting in a calendar or queue, for insight; starts do not use them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.pacing import Pacing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping

    from ratelimited_executor._kernel.buckets import Bucket
    from ratelimited_executor._kernel.calendar import Calendar
    from ratelimited_executor._kernel.queue import PlainQueue
    from ratelimited_executor._kernel.records import Record

__all__ = [
    "coming_until",
    "count_until",
    "demand_until",
    "is_spread",
    "last_start",
    "ready_tasks",
]

_SAMPLE_COUNT: Final = 128  # due times of a bucket sampled for an estimate: a few microseconds


def last_start(calendar: Calendar) -> float:
    """Return the loop time at which the last interval with a task begins; minus infinity if there is none."""
    numbers = [number for number, bucket in calendar.future.items() if bucket.live]
    numbers += [number for number, parcels in calendar.parcels.items() if any(source.live for source in parcels)]
    return calendar.timeline.start_of(max(numbers)) if numbers else -math.inf


def count_until(calendar: Calendar, when: float, *, is_spread: bool) -> int:
    """Estimate how many of the tasks waiting in a calendar are due to start by a time.

    Args:
        calendar: the calendar.
        when: loop time.
        is_spread: True if the tasks of a later bucket start evenly over it, not at their due times.
    """
    ready = calendar.opened_count
    for group in calendar.groups:
        for stream in group:
            ready -= stream.order.left_count
    return max(0, ready) + coming_until(calendar, when, is_spread=is_spread)


def coming_until(calendar: Calendar, when: float, *, is_spread: bool) -> int:
    """Estimate how many of the tasks that are not ready yet are due to start by a time."""
    count = 0
    for group in calendar.groups:
        for stream in group:
            count += stream.order.count_until(when)
    timeline = calendar.timeline
    if not calendar.numbers or when < calendar.end or calendar.numbers[0] > timeline.number_at(when):
        return count  # nothing in later buckets, or they begin later
    numbers: Collection[int] = range(calendar.number + 1, timeline.number_at(when) + 1)
    if len(numbers) > len(calendar.future) + len(calendar.parcels):  # as after hours without permits
        numbers = {number for number in (*calendar.future, *calendar.parcels) if number in numbers}
    for number in numbers:
        start, end = timeline.start_of(number), timeline.start_of(number + 1)
        part = min(1.0, (when - start) / (end - start))
        bucket = calendar.future.get(number)
        if bucket is not None:
            count += math.ceil(bucket.live * (part if is_spread else _part_until(bucket, when)))
        for source in calendar.parcels.get(number, ()):
            if is_spread:
                count += math.ceil((source.count_before(end) - source.opened_count) * part)
            else:
                count += source.count_until(when, source.opened_count, source.count) - source.opened_count
    return count


def _part_until(bucket: Bucket, when: float) -> float:
    """Estimate from a sample the part of a bucket's tasks that is due at or before a time."""
    sample = bucket.dues[:: 1 + len(bucket.dues) // _SAMPLE_COUNT]
    return sum(due <= when for due in sample) / max(1, len(sample))


def is_spread(queue: PlainQueue, record: Record) -> bool:
    """True if a due record waits for a planned instant."""
    return record._place.calendar is queue.spread and not queue.is_dense


def ready_tasks(queue: PlainQueue) -> list[tuple[Any, Hashable, Mapping[str, int] | None, Any]]:
    """Return the ready tasks as (rank, key, needs, record or position); smaller ranks start first."""
    is_planned = queue.pacing is Pacing.SPREAD and not queue.is_dense and not queue.is_by_importance
    tasks: list[tuple[Any, Hashable, Mapping[str, int] | None, Any]] = []
    for calendar in (queue.on_time, queue.spread):
        for number, (importance, source, item) in enumerate(calendar.ready.keyed()):
            rank: tuple[Any, ...] = 0, importance
            if calendar is queue.spread and is_planned:
                rank = 1, item._due if source is None else source.due_of(item), number
            key, needs = (item._key, item.needs) if source is None else (source.key, source.needs)
            tasks.append((rank, key, needs, item))
    return tasks


def _demand_of(calendar: Calendar, when: float, *, is_spread: bool) -> int:
    """Count like :func:`count_until`, but at least one if one is ready: cancelled tasks that are unread may hide it."""
    count = count_until(calendar, when, is_spread=is_spread)
    return count or int(bool(calendar.ready.active) and calendar.ready.head() is not None)


def demand_until(queue: PlainQueue, when: float, count: Callable[..., float] = _demand_of) -> float:
    """Estimate how many tasks are due to start by a loop time, if there are permits for all.

    Args:
        queue: the queue.
        when: loop time.
        count: counts the tasks of one calendar.
    """
    on_time = count(queue.on_time, when, is_spread=False)
    if queue.pacing is not Pacing.SPREAD or queue.is_dense or when >= queue.interval_end:
        return on_time + count(queue.spread, when, is_spread=queue.pacing is Pacing.SPREAD)
    left = queue.spread.opened_count + queue.later_count
    planned = queue.plan.count_until(when, left=left) if left and when >= queue.plan.next_at else 0
    return on_time + min(planned, count(queue.spread, when, is_spread=False))
