"""The slots of pools: who holds one, and who waits for one; the rules, over plain values.

A pool has ``limit`` slots, each for one holder at a time. A holder has a *lease*, by a token that is its own, up to a time
of the pools' clock. Who finds no slot waits, and is alive up to a time as well::

            ask                    hand-off                   release, or the lease ends
    new ----------> waiting ---------------------> holding ------------------------------> gone
                       |                              |  ^
                       | release, or not alive        +--+ renew
                       +----------> gone

1. The leases are the only truth: there is no counter beside them, which could drift.
2. A token owns its lease. Only it renews and releases that, and once that is over it does neither: who was away for too
   long frees nobody else's slot, and does not get its own back.
3. A slot that comes free is handed over in the same step: no slot is free while somebody who is alive waits for that alone.
   A hand-off that the waiter has not heard of lasts for a short lease, until it is renewed.
4. Among those who wait for a pool the larger priority goes first, then who came first; newcomers overtake nobody of their
   priority.
5. Slots have no numbers. A lower limit takes none away: holders finish, and none is handed over until fewer are left. A
   limit of 0 halts the pool. Whoever asks may name a limit of its own, which then stands for the pool's as long as it waits:
   so there are pools of which nobody sets a limit, and nothing is left of one that nobody holds or waits for.
6. Each hand-over has a *fence*, larger than all before it. Who passes it on to what it changes lets that refuse whoever
   has lost his lease and does not know it yet. Source: M. Kleppmann, "How to do distributed locking", 2016, fencing tokens.
7. Slots of several pools are handed over in one step or not at all, to who is the first of each line: so nobody holds one
   while waiting for another, and nobody waits forever. Meanwhile the others in these lines wait, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.lazy_heap import LazyHeap

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

__all__ = ["FOREVER_US", "LOST", "WAITING", "SlotLease", "SlotPool", "SlotPools"]

FOREVER_US: Final = 1 << 62  # a time that never comes
WAITING: Final = 0  # instead of a fence: it has no slot yet
LOST: Final = -1  # it has none any more, or never had


@dataclass(slots=True, eq=False)
class SlotLease:
    """A slot of each of some pools, held or asked for.

    Attributes:
        token: whose it is.
        pools: of which it is.
        fence: larger than that of each lease before it; :data:`WAITING` until it is handed over.
        since_us: when it was asked for; when it was handed over, from then on.
        until_us: when it ends, unless it is renewed.
        limit: how many may hold a slot of each of its pools for it to be handed over; None for the limits of the pools.
        note: what the holder has said of itself.
        end: its entry among all ends; any other one of it is stale.
    """

    token: Hashable
    pools: tuple[SlotPool, ...]
    fence: int
    since_us: int
    until_us: int
    limit: int | None = None
    note: Any = None
    end: Any = field(default=None, repr=False)


class SlotPool:
    """One pool: its limit, who holds a slot of it, and the line of those who wait.

    Attributes:
        name: what it is called.
        limit: how many may hold a slot at a time, >= 0.
        is_set: True if anybody has set that: else nothing is left of the pool once nobody holds or waits.
        holding: the leases, by token, the longest held first.
        waiting_count: how many wait.
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
        """True if a slot is free, and it is this one's turn."""
        place, limit = self.line.first(), self.limit if lease.limit is None else lease.limit
        return len(self.holding) < limit and place is not None and place[2] is lease

    @property
    def is_nothing(self) -> bool:
        """True if there is nothing to be known of it."""
        return not (self.is_set or self.holding or self.waiting_count)


class SlotPools:
    """The leases of some pools, and who waits.

    Times are microseconds of one clock; one that goes back stands still here.

    Args:
        confirm_us: how long the lease of a hand-off lasts until it is renewed.

    Attributes:
        confirm_us: the same.
        fence: of the last lease; 0 if there was none.
        is_halted: True if nothing is handed over for now.
    """

    __slots__ = ("_ends", "_handed", "_leases", "_now_us", "_number", "_pools", "confirm_us", "fence", "is_halted")

    def __init__(self, *, confirm_us: int = FOREVER_US) -> None:
        self.confirm_us = confirm_us
        self.fence = 0
        self.is_halted = False
        self._now_us = 0
        self._pools: dict[str, SlotPool] = {}
        self._leases: dict[Hashable, SlotLease] = {}
        self._number = 0  # of what has come so far: what is equal otherwise stays in order
        self._ends: LazyHeap[tuple[int, int, SlotLease]] = LazyHeap(lambda end: end[2].end is not end)
        self._handed: list[SlotLease] = []  # to who waited, since handed() was asked

    def pool(self, name: str) -> SlotPool:
        """Return a pool, to be looked at; one that nobody has set a limit of is halted."""
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
        """Ask for a slot of each pool, or wait for them. To ask again with the same token is to renew.

        Args:
            token: of who asks; nobody else's, ever.
            pools: their names, each once.
            now_us: the time.
            until_us: how long the lease lasts, and how long one who waits is alive, unless renewed.
            priority: larger goes first.
            limit: how many may hold slots of these pools at a time, instead of the limits of the pools; None for those.
            note: kept with the lease.

        Returns:
            The fence, or :data:`WAITING`; :data:`LOST` if its time has passed already.
        """
        self.look(now_us)
        lease = self._leases.get(token)
        if lease is None:
            asked = tuple(map(self.pool, pools))
            lease = self._leases[token] = SlotLease(token, asked, WAITING, self._now_us, until_us, limit, note)
            self._number += 1
            for pool in asked:
                pool.line.push((-priority, self._number, lease))
                pool.waiting_count += 1
            self._end_at(lease, until_us)
            self.look(now_us)
            self._hand_over(asked)
        if lease in self._handed:  # it hears of it here
            self._handed.remove(lease)
        self._prolong(lease, until_us)
        return self.fence_of(token)

    def renew(self, token: Hashable, now_us: int, *, until_us: int) -> int:
        """Prolong a lease, or the life of one who waits.

        Returns:
            The fence, :data:`WAITING`, or :data:`LOST` if it has neither.
        """
        self.look(now_us)
        lease = self._leases.get(token)
        if lease is not None:
            self._prolong(lease, until_us)
        return self.fence_of(token)

    def adopt(
        self, token: Hashable, pools: Iterable[str], now_us: int, *, fence: int, until_us: int, note: Any = None
    ) -> None:
        """Add a lease that was handed over before these pools were there; it counts, whatever the limits are."""
        self.look(now_us)
        asked = tuple(map(self.pool, pools))
        lease = self._leases[token] = SlotLease(token, asked, fence, self._now_us, until_us, note=note)
        for pool in asked:
            pool.holding[token] = lease
        self.fence = max(self.fence, fence)
        self._end_at(lease, until_us)

    def release(self, token: Hashable, now_us: int) -> bool:
        """Give slots back, or wait for none any more; False if the token has neither, which changes nothing."""
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
        """End the leases whose time has come, and hand over what they leave; every other method does it as well."""
        self._end(now_us, ())

    def _end(self, now_us: int, left: Iterable[SlotPool]) -> None:
        """End what has come to its end, and hand over slots of these pools and of those that had some."""
        now_us = self._now_us = max(now_us, self._now_us)
        left = list(left)
        while (end := self._ends.first()) is not None and end[0] <= now_us:
            lease = self._ends.pop()[2]
            self._drop(lease)
            left += lease.pools
        if left:
            self._hand_over(sorted(set(left), key=_name_of))

    def halt(self, is_halted: bool) -> None:
        """Hand nothing over for now, or continue: then what is free is handed over at once."""
        if self.is_halted != is_halted:
            self.is_halted = is_halted
            self._hand_over(sorted(self._pools.values(), key=_name_of))

    def fence_of(self, token: Hashable) -> int:
        """Return the fence of a lease, :data:`WAITING`, or :data:`LOST`."""
        lease = self._leases.get(token)
        return LOST if lease is None else lease.fence

    def next_end(self) -> int | None:
        """Return when the first lease ends, or the first of those who wait is not alive any more; None if never."""
        end = self._ends.first()
        return None if end is None or end[0] >= FOREVER_US else end[0]

    def handed(self) -> list[SlotLease]:
        """Return the leases that those who waited have got since this was asked last: they are to be told."""
        handed, self._handed = self._handed, []
        return handed

    def _hand_over(self, pools: Iterable[SlotPool]) -> None:
        """Hand over the free slots of some pools, and of pools whose lines have advanced because of that."""
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
        """Let the first waiter in the lines of all its pools hold slots."""
        self.fence = lease.fence = self.fence + 1
        for pool in lease.pools:
            pool.line.pop()
            pool.waiting_count -= 1
            pool.holding[lease.token] = lease
        lease.since_us = self._now_us
        self._end_at(lease, self._now_us + self.confirm_us)
        self._handed.append(lease)

    def _drop(self, lease: SlotLease) -> None:
        """Forget a lease, or one who waits."""
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
        if lease.end is not None:
            self._ends.note_stale()
        lease.until_us = until_us
        self._number += 1
        lease.end = (until_us, self._number, lease)
        self._ends.push(lease.end)


def _name_of(pool: SlotPool) -> str:
    """Return by what pools are put in the order in which they are looked at."""
    return pool.name
