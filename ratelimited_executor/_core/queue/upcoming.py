"""The next ready tasks, so that their needs can be requested before their turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ratelimited_executor._core.order.ready_fair import ReadyFair
from ratelimited_executor._core.order.ready_keyed import ReadyKeyed
from ratelimited_executor._core.queue.expiry import deadline_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._kernel.contracts import Source

__all__ = ["Upcoming", "upcoming"]


class Upcoming(NamedTuple):
    """Ready tasks with the same key and needs.

    Attributes:
        key: their key; None if they have none.
        needs: the amount of each resource that a start takes; None for one permit.
        cost: the cost of a start in permits.
        tasks: how many there are, at least.
    """

    key: Hashable
    needs: Mapping[str, int] | None
    cost: int
    tasks: int


def upcoming(queue: TaskQueue, most: int, now: float) -> Iterator[Upcoming]:
    """Walk about ``most`` ready tasks that have not expired: the first exactly, the others roughly in order.

    The tasks of a key whose limits the queue knows come together, in their order.
    """
    if queue.costs is None and queue.gate is None:
        yield Upcoming(None, None, 1, most)
        return
    unmet = kind = _unmet(queue)
    count = 0 if kind is None else 1
    for key, source, item in _waiting(queue, most - count):
        if queue.expiry.is_used and deadline_of(source, item) < now:
            continue
        each = key, *_price(source, item)
        if each == unmet:
            unmet = None  # it is that task
            continue
        if each != kind:
            if kind is not None:
                yield Upcoming(*kind, count)
            kind, count = each, 0
        count += 1
    if kind is not None:
        yield Upcoming(*kind, count)


def _waiting(queue: TaskQueue, most: int) -> Iterator[tuple[Hashable, Source | None, Any]]:
    """Walk about ``most`` ready tasks, roughly in order, as (key, source, position) or (key, None, record)."""
    heads: list[tuple[Any, Any]] = [(each.ready.head(), each.ready) for each in (queue.on_time, queue.spread)]
    if None not in (heads[0][0], heads[1][0]) and heads[1][0] < heads[0][0]:
        heads.reverse()  # the spread task is more important, and starts first
    for head, ready in heads:
        if most <= 0:
            break
        if isinstance(ready, (ReadyKeyed, ReadyFair)):
            for key, tasks in ready.upcoming(most):
                for source, item in tasks:
                    yield key, source, item
                most -= len(tasks)
        elif head is not None:
            for source, item in ready.leading(most):
                yield _key_of(source, item), source, item
                most -= 1


def _unmet(queue: TaskQueue) -> tuple[Hashable, Mapping[str, int] | None, int] | None:
    """Return key, needs and cost of the first task for which no ticket was enough, if it still waits: all others wait for it."""
    if queue.unmet is None:
        return None
    source, item = queue.unmet
    if not (source.is_waiting(item) if source is not None else item._place is not None):
        queue.unmet = None
        return None
    return _key_of(source, item), *_price(source, item)


def _price(source: Source | None, item: Any) -> tuple[Mapping[str, int] | None, int]:
    return (item.needs, item.cost) if source is None else (source.needs, source.cost_of(item))


def _key_of(source: Source | None, item: Any) -> Hashable:
    return item._key if source is None else source.key
