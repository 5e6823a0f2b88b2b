"""What a queue tells about the tasks that wait in it: for estimates and explanations, not for starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimited_executor._kernel.calendar import Calendar
from ratelimited_executor._kernel.pacing import Pacing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from ratelimited_executor._core.queue import TaskQueue
    from ratelimited_executor._kernel.records import Record

__all__ = ["demand_until", "is_spread", "ready_tasks"]


def is_spread(queue: TaskQueue, record: Record) -> bool:
    """Whether a record that is due waits for a planned instant."""
    return record._place.calendar is queue.spread and not queue.is_dense


def ready_tasks(queue: TaskQueue) -> list[tuple[Any, Hashable, Mapping[str, int] | None, Any]]:
    """Return the tasks that are ready as (rank, key, needs, record or position); smaller ranks start first."""
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


def demand_until(queue: TaskQueue, when: float, count: Callable[..., float] = Calendar.count_until) -> float:
    """Estimate how many tasks want to have started by a loop time, if there were permits for all.

    Args:
        queue: where they wait.
        when: loop time.
        count: counts those of one calendar.
    """
    on_time = count(queue.on_time, when, is_spread=False)
    if queue.pacing is not Pacing.SPREAD or queue.is_dense or when >= queue.interval_end:
        return on_time + count(queue.spread, when, is_spread=queue.pacing is Pacing.SPREAD)
    left = queue.spread.opened_count + queue.later_count
    planned = queue.plan.count_until(when, left=left) if left and when >= queue.plan.next_at else 0
    return on_time + min(planned, count(queue.spread, when, is_spread=False))
