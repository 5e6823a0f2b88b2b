"""The next ready tasks, so that their needs can be requested before their turn."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ratelimited_executor._core.ready_fair import ReadyFair
from ratelimited_executor._core.ready_keyed import ReadyKeyed

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from ratelimited_executor._core.queue import TaskQueue
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


def upcoming(queue: TaskQueue, most: int) -> list[Upcoming]:
    """Return at most ``most`` ready tasks: the first exactly, the others roughly in order."""
    if queue.costs is None and queue.gate is None:
        return [Upcoming(None, None, 1, most)]
    unmet = _unmet(queue)
    found = [] if unmet is None else [unmet]
    for each in _waiting(queue, most - len(found)):
        tasks = each.tasks
        if unmet is not None and each[:3] == unmet[:3]:
            tasks, unmet = tasks - 1, None  # it is one of these tasks
        if found and found[-1][:3] == each[:3]:
            found[-1] = found[-1]._replace(tasks=found[-1].tasks + tasks)
        elif tasks:
            found.append(each._replace(tasks=tasks))
    return found


def _waiting(queue: TaskQueue, most: int) -> Iterator[Upcoming]:
    """Walk at most ``most`` ready tasks, roughly in order."""
    heads: list[tuple[Any, Any]] = [(each.ready.head(), each.ready) for each in (queue.on_time, queue.spread)]
    if None not in (heads[0][0], heads[1][0]) and heads[1][0] < heads[0][0]:
        heads.reverse()  # the spread task is more important, and starts first
    for head, ready in heads:
        if most <= 0:
            break
        if isinstance(ready, (ReadyKeyed, ReadyFair)):
            entries = ready.upcoming(most)
        elif head is None:
            continue
        else:
            first = ready.peek()
            others = (entry for entry in ready.walk() if entry[1] is not first[1] or entry[0] is not first[0])
            entries = [(_key_of(*entry), *entry, 1) for entry in chain((first,), islice(others, most - 1))]
        for key, source, item, count in entries:
            yield Upcoming(key, *_price(source, item), count)
            most -= count


def _unmet(queue: TaskQueue) -> Upcoming | None:
    """Return the first task for which no ticket was enough, if it still waits: all others wait for it."""
    if queue.unmet is None:
        return None
    source, item = queue.unmet
    if not (source.is_waiting(item) if source is not None else item._place is not None):
        queue.unmet = None
        return None
    return Upcoming(_key_of(source, item), *_price(source, item), 1)


def _price(source: Source | None, item: Any) -> tuple[Mapping[str, int] | None, int]:
    return (item.needs, item.cost) if source is None else (source.needs, source.cost_of(item))


def _key_of(source: Source | None, item: Any) -> Hashable:
    return item._key if source is None else source.key
