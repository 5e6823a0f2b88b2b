"""The slots of pools, their holders and waiters: the rules, on plain values.

A pool has ``limit`` slots, each for one holder at a time. A holder has a *lease*, identified by its own token, up to a
time of the pools' clock. A caller that finds no slot waits, and is alive up to a time as well::

            ask                    hand-off                   release, or the lease ends
    new ----------> waiting ---------------------> holding ------------------------------> gone
                       |                              |  ^
                       | release, or not alive        +--+ renew
                       +----------> gone

1. The leases are the only truth: no separate counter can drift.
2. A token owns its lease: only the token renews and releases it, and neither works after the lease has ended. A holder
   that was away for too long frees no other holder's slot, and does not get its own back.
3. A slot that comes free is handed over in the same step: no slot is free while a live waiter waits only for it.
   A hand-off has a short lease until the waiter has learned of it and renews it.
4. Among the waiters of a pool, the larger priority goes first, then the first to come; a newcomer overtakes no waiter
   of its priority.
5. Slots have no numbers. A lower limit takes no slot away: holders finish, and no slot is handed over until fewer are
   held. A limit of 0 halts the pool. A request may name a limit of its own, which replaces the pool's while it waits.
   So a pool need not have a limit set, and such a pool is forgotten when it has no holders or waiters.
6. Each hand-over has a *fence*, larger than all before it. A holder that passes the fence on to the resource lets the
   resource refuse a holder that has lost its lease without knowing it. Source: M. Kleppmann, "How to do distributed
   locking", 2016, fencing tokens.
7. Slots of several pools are handed over in one step or not at all, to the waiter that is first in each line. So no
   waiter holds one slot while waiting for another, and none waits forever. Meanwhile the others in these lines wait,
   too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.lazy_heap import LazyHeap

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

__all__ = ["FOREVER_US", "LOST", "WAITING", "SlotLease", "SlotPool", "SlotPools"]

FOREVER_US: Final = 1 << 62  # a time that never comes
WAITING: Final = 0  # instead of a fence: no slot yet
LOST: Final = -1  # instead of a fence: no slot any more, or never


@dataclass(slots=True, eq=False)
class SlotLease:
    """A slot in each of some pools, held or requested.

    Attributes:
        token: identifies the holder or waiter.
        pools: the pools.
        fence: larger than that of each lease before it; :data:`WAITING` until hand-over.
        since_us: the time of the request; after hand-over, the time of that.
        until_us: when it ends unless renewed.
        limit: the limit that applies to each of its pools at hand-over; None for the limits of the pools.
        note: the holder's description of itself.
        priority: larger goes first.
        number: the number of the request.
        end: its valid entry in the heap of ends; its other entries there are stale.
    """

    token: Hashable
    pools: tuple[SlotPool, ...]
    fence: int
    since_us: int
    until_us: int
    limit: int | None = None
    note: Any = None
    priority: float = 0
    number: int = 0
    end: Any = field(default=None, repr=False)


class SlotPool:
    """One pool: its limit, its holders, and its line of waiters.

    Attributes:
        name: the name of the pool.
        limit: the maximum number of holders, >= 0.
        is_set: True if the limit was set; else the pool is forgotten once it has no holders or waiters.
        holding: the leases, by token, the longest held first.
        waiting_count: the number of waiters.
    """

    __slots__ = ("holding", "is_set", "limit", "line", "name", "waiting_count")

    def __init__(self, name: str) -> None:
        self.name = name
        self.limit = 0
        self.is_set = False
        self.holding: dict[Hashable, SlotLease] = {}
        self.waiting_count = 0
        self.line: LazyHeap[tuple[float, int, SlotLease]] = LazyHeap(lambda place: bool(place[2].fence))

    def is_free_for(self, lease: SlotLease) -> bool:
        """True if a slot is free, and this lease is first in line."""
        place, limit = self.line.first(), self.limit if lease.limit is None else lease.limit
        return len(self.holding) < limit and place is not None and place[2] is lease

    @property
    def is_nothing(self) -> bool:
        """True if the pool can be forgotten: no limit was set, and there are no holders or waiters."""
        return not (self.is_set or self.holding or self.waiting_count)


class SlotPools:
    """The leases and waiters of some pools.

    Times are microseconds of one clock; if it runs backwards, time stands still here.

    Args:
        confirm_us: how long the lease of a hand-off lasts until renewed.

    Attributes:
        confirm_us: as passed.
        fence: the fence of the last lease; 0 if there was none.
        is_halted: True if nothing is handed over for now.
        changed: tokens whose leases have changed; the caller empties it.
    """

    __slots__ = (
        "_ends",
        "_handed",
        "_leases",
        "_now_us",
        "_number",
        "_pools",
        "changed",
        "confirm_us",
        "fence",
        "is_halted",
    )

    def __init__(self, *, confirm_us: int = FOREVER_US) -> None:
        self.confirm_us = confirm_us
        self.fence = 0
        self.is_halted = False
        self._now_us = 0
        self._pools: dict[str, SlotPool] = {}
        self._leases: dict[Hashable, SlotLease] = {}
        self._number = 0  # numbers requests and ends, to keep equal entries in order
        self._ends: LazyHeap[tuple[int, int, SlotLease]] = LazyHeap(lambda end: end[2].end is not end)
        self._handed: list[SlotLease] = []  # to waiters, since the last handed()
        self.changed: set[Hashable] = set()

    def pool(self, name: str) -> SlotPool:
        """Return a pool, to be read; a pool without a set limit is halted."""
        found = self._pools.get(name)
        if found is None:
            found = self._pools[name] = SlotPool(name)
        return found

    def ask(
        self,
        token: Hashable,
        pools: Iterable[str],
        now_us: int,
        *,
        until_us: int = FOREVER_US,
        priority: float = 0,
        limit: int | None = None,
        note: Any = None,
    ) -> int:
        """Request a slot of each pool, or wait for them. A repeated call with the same token renews.

        Args:
            token: identifies the caller; never used by another.
            pools: the names of the pools, each once.
            now_us: the time.
            until_us: the time up to which the lease lasts, or the waiter is alive, unless renewed.
            priority: larger goes first.
            limit: how many may hold slots of these pools at a time; None for the limits of the pools.
            note: kept with the lease.

        Returns:
            The fence, or :data:`WAITING`; :data:`LOST` if ``until_us`` has passed already.
        """
        self.look(now_us)
        lease = self._leases.get(token)
        if lease is None:
            asked = tuple(map(self.pool, pools))
            self._number += 1
            lease = SlotLease(token, asked, WAITING, self._now_us, until_us, limit, note, priority, self._number)
            self._add(lease)
            self.look(now_us)
            self._hand_over(asked)
        if lease in self._handed:  # the result reports the hand-over
            self._handed.remove(lease)
        self._prolong(lease, until_us)
        return self.fence_of(token)

    def renew(self, token: Hashable, now_us: int, *, until_us: int) -> int:
        """Renew a lease or a wait.

        Returns:
            The fence, :data:`WAITING`, or :data:`LOST` if the token has neither.
        """
        self.look(now_us)
        lease = self._leases.get(token)
        if lease is not None:
            self._prolong(lease, until_us)
        return self.fence_of(token)

    def adopt(
        self, token: Hashable, pools: Iterable[str], now_us: int, *, fence: int, until_us: int, note: Any = None
    ) -> None:
        """Add a lease that was handed over before these pools existed; it counts, whatever the limits are."""
        self.look(now_us)
        self._add(SlotLease(token, tuple(map(self.pool, pools)), fence, self._now_us, until_us, note=note))
        self.fence = max(self.fence, fence)

    def release(self, token: Hashable, now_us: int) -> bool:
        """Give slots back, or stop waiting for them; return False, with no change, if the token has neither."""
        lease = self._leases.get(token)
        if lease is None:
            self.look(now_us)
            return False
        self._ends.note_stale()
        self._drop(lease)
        self._end(now_us, lease.pools)
        return True

    def set_limit(self, name: str, limit: int, now_us: int) -> None:
        """Put another limit in force: slots that it adds are handed over at once, and none is taken away."""
        pool = self.pool(name)
        pool.limit, pool.is_set = limit, True
        self.look(now_us)
        self._hand_over([pool])

    def look(self, now_us: int) -> None:
        """End the leases whose time has come, and hand over their slots; every other method does this as well."""
        self._end(now_us, ())

    def _end(self, now_us: int, left: Iterable[SlotPool]) -> None:
        """End leases and waits whose time has come; hand over slots of their pools and of ``left``."""
        now_us = self._now_us = max(now_us, self._now_us)
        left = list(left)
        while (end := self._ends.first()) is not None and end[0] <= now_us:
            lease = self._ends.pop()[2]
            self._drop(lease)
            left += lease.pools
        if left:
            self._hand_over(sorted(set(left), key=_name_of))

    def halt(self, is_halted: bool) -> None:
        """Stop handing over slots for now, or continue: then free slots are handed over at once."""
        if self.is_halted != is_halted:
            self.is_halted = is_halted
            self._hand_over(sorted(self._pools.values(), key=_name_of))

    def fence_of(self, token: Hashable) -> int:
        """Return the fence of a lease, :data:`WAITING`, or :data:`LOST`."""
        lease = self._leases.get(token)
        return LOST if lease is None else lease.fence

    def next_end(self) -> int | None:
        """Return when the first lease ends, or the first waiter ceases to be alive; None if never."""
        end = self._ends.first()
        return None if end is None or end[0] >= FOREVER_US else end[0]

    def handed(self) -> list[SlotLease]:
        """Return the leases handed over to waiters since the last call: the caller has to notify them."""
        handed, self._handed = self._handed, []
        return handed

    # For a copy of these pools elsewhere.

    @property
    def limits(self) -> dict[str, int]:
        """The limits that were set, by pool."""
        return {name: pool.limit for name, pool in self._pools.items() if pool.is_set}

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of these pools as a whole, for :meth:`copy_numbers`."""
        return self._now_us, self._number, self.fence, int(self.is_halted)

    def copy_numbers(self, now_us: int, number: int, fence: int, is_halted: int) -> None:
        """Continue with the numbers of other pools."""
        self._now_us, self._number, self.fence, self.is_halted = now_us, number, fence, bool(is_halted)

    def copy_limit(self, name: str, limit: int) -> None:
        """Note a limit that is in force in other pools; nothing is handed over."""
        pool = self.pool(name)
        pool.limit, pool.is_set = limit, True

    def fields_of(self, token: Hashable) -> tuple[Any, ...] | None:
        """Return the fields of a lease, for :meth:`copy`; None if the token has none."""
        lease = self._leases.get(token)
        if lease is None:
            return None
        pools = tuple(pool.name for pool in lease.pools)
        return (
            pools,
            lease.fence,
            lease.since_us,
            lease.until_us,
            lease.limit,
            lease.note,
            lease.priority,
            lease.number,
        )

    def copy(self, token: Hashable, fields: Sequence[Any] | None) -> None:
        """Put a lease of other pools in the place of the token's own; with None, there is none."""
        old = self._leases.get(token)
        if old is not None and fields is not None:
            _, fence, _, until_us, *_, number = fields
            if (old.fence, old.number) == (fence, number):
                self._end_at(old, until_us)  # it keeps its place in line
                return
        if old is not None:
            self._ends.note_stale()
            self._drop(old)
        if fields is not None:
            pools, *rest = fields
            self._add(SlotLease(token, tuple(map(self.pool, pools)), *rest))

    def _add(self, lease: SlotLease) -> None:
        """Enter a holder or a waiter in its pools."""
        self._leases[lease.token] = lease
        for pool in lease.pools:
            if lease.fence:
                pool.holding[lease.token] = lease
            else:
                pool.line.push((-lease.priority, lease.number, lease))
                pool.waiting_count += 1
        self._end_at(lease, lease.until_us)

    def _hand_over(self, pools: Iterable[SlotPool]) -> None:
        """Hand over the free slots of some pools, and of pools whose lines advance as a result."""
        if self.is_halted:
            return
        to_look_at = list(pools)
        while to_look_at:
            pool = to_look_at.pop(0)
            while (place := pool.line.first()) is not None and all(
                each.is_free_for(place[2]) for each in place[2].pools
            ):
                self._hold(place[2])
                to_look_at += [each for each in place[2].pools if each is not pool]

    def _hold(self, lease: SlotLease) -> None:
        """Give slots to the first waiter in the lines of all its pools."""
        self.fence = lease.fence = self.fence + 1
        for pool in lease.pools:
            pool.line.pop()
            pool.waiting_count -= 1
            pool.holding[lease.token] = lease
        lease.since_us = self._now_us
        self._end_at(lease, self._now_us + self.confirm_us)
        self._handed.append(lease)

    def _drop(self, lease: SlotLease) -> None:
        """Forget a lease or a waiter."""
        self.changed.add(lease.token)
        lease.end = None
        del self._leases[lease.token]
        if lease.fence:
            for pool in lease.pools:
                del pool.holding[lease.token]
            if lease in self._handed:
                self._handed.remove(lease)
        else:
            lease.fence = LOST
            for pool in lease.pools:
                pool.waiting_count -= 1
                pool.line.note_stale()
        for pool in lease.pools:
            if pool.is_nothing:
                del self._pools[pool.name]

    def _prolong(self, lease: SlotLease, until_us: int) -> None:
        if lease.end is not None and lease.until_us != until_us:
            self._end_at(lease, until_us)

    def _end_at(self, lease: SlotLease, until_us: int) -> None:
        self.changed.add(lease.token)
        if lease.end is not None:
            self._ends.note_stale()
        lease.until_us = until_us
        self._number += 1
        lease.end = (until_us, self._number, lease)
        self._ends.push(lease.end)


def _name_of(pool: SlotPool) -> str:
    """Return the sort key of a pool, for a fixed order of hand-overs."""
    return pool.name
