"""Claims for an executor whose order is ``Fair``: how many claimed tasks each key may have.

The order decides among the tasks that a process has claimed, and claims bring forward tasks of every key. A first round
claims one task of each key that has no unstarted one here. Further rounds raise the *share*, up to which all keys get
tasks, by their weights, until as many wait here as will start soon: a key without competitors gets all places.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from ratelimited_executor._core.durable.tasks import NO_KEY, Turns

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from ratelimited_executor._core.durable.tasks import Claimed

    Held: TypeAlias = Counter[tuple[float, str]]  # unstarted tasks that are due, by priority and key

__all__ = ["place_of", "share_for", "turns_ahead", "turns_of"]


def place_of(claimed: Claimed) -> tuple[float, str]:
    """Return the priority and the key of a claimed task."""
    return claimed.priority, NO_KEY if claimed.key is None else claimed.key


def turns_of(held: Held, weights: Mapping[str, float], last_keys: Mapping[float, str], *, share: float) -> Turns:
    """Return the turns of a round: each key may have as many tasks as its weight times the share, and at least one."""
    others = {place: max(0, max(1, math.ceil(share * weights[place[1]])) - count) for place, count in held.items()}
    return Turns(each=max(1, math.ceil(share)), others=others, after=dict(last_keys))


def turns_ahead(held: Held, last_keys: Mapping[float, str], *, least: float, count: int) -> Turns:
    """Return the turns of ``count`` tasks that precede held ones: of priorities above the least, and of other keys at it."""
    others = {place: 0 if place[0] == least else count for place in held}
    return Turns(each=max(1, count - held.total()), others=others, after=dict(last_keys))


def share_for(held: Held, weights: Mapping[str, float], room: int) -> float:
    """Return the share at which the keys with unstarted tasks would get as many more as there is room for."""
    reached = sorted((count / weights[key], weights[key]) for (_, key), count in held.items())
    weight = tasks = share = 0.0
    for (own, each), (following, _) in pairwise([*reached, (math.inf, 0.0)]):
        weight += each
        tasks += own * each
        share = (room + tasks) / weight
        if share <= following:
            break
    return max(1.0, share)
