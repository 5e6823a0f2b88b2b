"""Balance slots by cost when some keys cost much more than others.

Each key has its own order of the slots, from its hash, which begins with the slot that it would have without costs.
Keys are placed by descending cost, each into the first of its slots with room for it. A slot has room for ``1 + slack``
times the load that some slot needs at least: the mean, or the heaviest key. Without such a slot, the key goes into the
least loaded one.

Bound: no slot's load is more than max(1 + slack, 3/2) times that of the best assignment; if no key costs more than
``slack`` times the mean, it is no more than 1 + slack times the mean. Proof: a key of cost c that fits in no slot is at
most half of the optimum (there are no more keys above half of it than slots, so otherwise one slot was empty, and an
empty slot has room for any key). It is added to a load of at most the mean, so that the sum is 3/2 of the optimum at
most. And if every load is more than ``(1 + slack) mean - c``, then c > slack * mean.

Stability: the room is rounded to a power of the root of 1 + slack, so it stays the same for most keys that join or leave.
A key that joins displaces only lighter keys, each of them into the next of its own slots: one or two on average.
Source: V. Mirrokni, M. Thorup, M. Zadimoghaddam, "Consistent hashing with bounded loads", SODA 2018, with costs; the order of
R. Graham, "Bounds on multiprocessing timing anomalies", 1969.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ratelimited_executor.spread.keys import key_hash

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from typing import TypeVar

    K = TypeVar("K", bound=Hashable)

__all__ = ["balance"]


def balance(costs: Mapping[K, float], slots: int, *, slack: float = 0.1) -> dict[K, int]:
    """Assign each key to a slot, so that all slots cost about the same: O(keys log keys).

    The assignment depends only on the arguments, and is the same on every machine. Module ``balance`` has the bound.

    Args:
        costs: the cost of each key, >= 0 and finite.
        slots: the number of slots, >= 1.
        slack: the part by which a slot may exceed the load that some slot needs at least, > 0: a smaller value is more
            even, and moves more keys when one joins or leaves.

    Raises:
        TypeError: if an argument or key has a wrong type.
        ValueError: if an argument is out of range.

    >>> balance({"jumbo": 6, "a": 1, "b": 2, "c": 3}, 2)
    {'jumbo': 0, 'c': 1, 'b': 1, 'a': 1}
    """
    if isinstance(slots, bool) or not isinstance(slots, int):
        raise TypeError(f"slots must be an integer, got {slots!r}")
    if slots < 1:
        raise ValueError(f"slots must be >= 1, got {slots!r}")
    if not slack > 0 or not math.isfinite(slack):
        raise ValueError(f"slack must be > 0 and finite, got {slack!r}")
    if not hasattr(costs, "items"):
        raise TypeError(f"costs must be a mapping from key to cost, got {costs!r}")
    for key, cost in costs.items():
        if isinstance(cost, bool) or not hasattr(type(cost), "__float__"):
            raise TypeError(f"costs must be numbers, got {cost!r} for {key!r}")
        if not 0 <= cost < math.inf:
            raise ValueError(f"costs must be >= 0 and finite, got {cost!r} for {key!r}")
    hashes = {key: key_hash(key) for key in costs}  # type: ignore[arg-type]  # it checks the type itself
    room = _room(costs, slots, slack)
    loads = [0.0] * slots
    found: dict[K, int] = {}
    for key in sorted(costs, key=lambda key: (-costs[key], hashes[key])):
        cost = float(costs[key])
        slot = _first_with_room(hashes[key], cost, loads, room)
        if slot is None:
            slot = min(range(slots), key=loads.__getitem__)
        loads[slot] += cost
        found[key] = slot
    return found


def _room(costs: Mapping[K, float], slots: int, slack: float) -> float:
    """Return the room of a slot: the least that some slot needs, times sqrt(1 + slack) to 1 + slack."""
    least = max(math.fsum(costs.values()) / slots, max(costs.values(), default=0.0))
    if least == 0:
        return math.inf
    step = math.log1p(slack) / 2
    return min(math.exp((math.ceil(math.log(least) / step) + 1) * step), (1 + slack) * least)


def _first_with_room(hashed: int, cost: float, loads: list[float], room: float) -> int | None:
    """Return the first slot in a key's order that has room for it."""
    slots = len(loads)
    slot = hashed * slots >> 64
    if loads[slot] + cost <= room:
        return slot
    stride = 1 + hashed % max(1, slots - 1)
    while math.gcd(stride, slots) != 1:  # otherwise it would not visit every slot
        stride += 1
    for _ in range(slots - 1):
        slot = (slot + stride) % slots
        if loads[slot] + cost <= room:
            return slot
    return None
