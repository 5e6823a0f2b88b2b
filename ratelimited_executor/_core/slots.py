"""The slots of one pool: who holds one, and who waits for one; the rules, over plain values.

A pool has ``limit`` slots, each for one holder at a time. A holder has a *lease*, by a token that is its own, up to a time
of the pool's clock. Who finds no slot waits, and is alive up to a time as well::

            ask                    hand-off                   release, or the lease ends
    new ----------> waiting ---------------------> holding ------------------------------> gone
                       |                              |  ^
                       | release, or not alive        +--+ renew
                       +----------> gone

1. The leases are the only truth: there is no counter beside them, which could drift.
2. A token owns its lease. Only it renews and releases that, and once that is over it does neither: who was away for too
   long frees nobody else's slot, and does not get its own back.
3. A slot that comes free is handed over in the same step: no slot is free while somebody who is alive waits. A hand-off
   that the waiter has not heard of lasts for a short lease, until it is renewed.
4. Among those who wait the larger priority goes first, then who came first; newcomers overtake nobody of their priority.
5. Slots have no numbers. A lower limit takes none away: holders finish, and none is handed over until fewer are left. A
   limit of 0 halts the pool.
6. Each hand-over has a *fence*, larger than all before it. Who passes it on to what it changes lets that refuse whoever
   has lost his lease and does not know it yet. Source: M. Kleppmann, "How to do distributed locking", 2016, fencing tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.lazy_heap import LazyHeap

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["FOREVER_US", "LOST", "WAITING", "SlotLease", "SlotPool"]

FOREVER_US: Final = 1 << 62  # a time that never comes
WAITING: Final = 0  # in place of a fence: it has no slot yet
LOST: Final = -1  # it has none any more, or never had


@dataclass(slots=True, eq=False)
class SlotLease:
    """One slot that is held, or asked for.

    Attributes:
        token: whose it is.
        fence: larger than that of each lease before it; :data:`WAITING` until it is handed over.
        since_us: when it was asked for; when it was handed over, from then on.
        until_us: when it ends, unless it is renewed.
        note: what the holder has said of itself.
        end: its entry among all ends; any other one of it is stale.
    """

    token: Hashable
    fence: int
    since_us: int
    until_us: int
    note: Any = None
    end: Any = field(default=None, repr=False)


class SlotPool:
    """The leases of a pool, and who waits.

    Times are microseconds of one clock; one that goes back stands still here.

    Args:
        limit: how many may hold a slot at a time, >= 0.
        confirm_us: how long the lease of a hand-off lasts until it is renewed.

    Attributes:
        limit: the same; set by :meth:`set_limit`.
        fence: of the last lease; 0 if there was none.
    """

    __slots__ = (
        "_confirm_us",
        "_ends",
        "_handed",
        "_holding",
        "_line",
        "_now_us",
        "_numbers",
        "_waiting",
        "fence",
        "limit",
    )

    def __init__(self, limit: int, *, confirm_us: int = FOREVER_US) -> None:
        self.limit = limit
        self.fence = 0
        self._confirm_us = confirm_us
        self._now_us = 0
        self._holding: dict[Hashable, SlotLease] = {}  # by token, as those who wait
        self._waiting: dict[Hashable, SlotLease] = {}
        self._numbers = count()
        self._ends: LazyHeap[tuple[int, int, SlotLease]] = LazyHeap(lambda end: end[2].end is not end)
        self._line: LazyHeap[tuple[float, int, SlotLease]] = LazyHeap(lambda place: bool(place[2].fence))
        self._handed: list[SlotLease] = []  # to who waited, since handed() was asked

    @property
    def leases(self) -> tuple[SlotLease, ...]:
        """The slots that are held, the longest held first."""
        return tuple(self._holding.values())

    @property
    def held_count(self) -> int:
        """How many slots are held."""
        return len(self._holding)

    @property
    def waiting_count(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def ask(
        self, token: Hashable, now_us: int, *, until_us: int = FOREVER_US, priority: float = 0, note: Any = None
    ) -> int:
        """Ask for a slot, or wait for one. To ask again with the same token is to renew.

        Args:
            token: of who asks; nobody else's, ever.
            now_us: the time.
            until_us: how long the lease lasts, and how long one who waits is alive, unless renewed.
            priority: larger goes first.
            note: kept with the lease.

        Returns:
            The fence of the slot, or :data:`WAITING`; :data:`LOST` if its time has passed already.
        """
        self.look(now_us)
        lease = self._holding.get(token) or self._waiting.get(token)
        if lease is None:
            lease = self._waiting[token] = SlotLease(token, WAITING, self._now_us, until_us, note)
            self._line.push((-priority, next(self._numbers), lease))
            self._end_at(lease, until_us)
            self.look(now_us)
        if lease in self._handed:  # it hears of it here
            self._handed.remove(lease)
        self._prolong(lease, until_us)
        return self._answer(token)

    def renew(self, token: Hashable, now_us: int, *, until_us: int) -> int:
        """Prolong a lease, or the life of one who waits.

        Returns:
            The fence of the slot, :data:`WAITING`, or :data:`LOST` if it has neither.
        """
        self.look(now_us)
        lease = self._holding.get(token) or self._waiting.get(token)
        if lease is not None:
            self._prolong(lease, until_us)
        return self._answer(token)

    def release(self, token: Hashable, now_us: int) -> bool:
        """Give a slot back, or wait for none any more; False if the token has neither, which changes nothing."""
        lease = self._holding.get(token) or self._waiting.get(token)
        if lease is not None:
            self._drop(lease)
            self._ends.note_stale()
        self.look(now_us)
        return lease is not None

    def set_limit(self, limit: int, now_us: int) -> None:
        """Put another limit in force: slots that it adds are handed over at once, and none is taken away."""
        self.limit = limit
        self.look(now_us)

    def look(self, now_us: int) -> None:
        """End the leases whose time has come, and hand over what is free; every other method does it as well."""
        now_us = self._now_us = max(now_us, self._now_us)
        while (end := self._ends.first()) is not None and end[0] <= now_us:
            self._drop(self._ends.pop()[2])
        while len(self._holding) < self.limit and (place := self._line.first()) is not None:
            self._line.pop()
            self._hand_over(place[2], now_us)

    def next_end(self) -> int | None:
        """Return when the first lease ends, or the first of those who wait is not alive any more; None if never."""
        end = self._ends.first()
        return None if end is None or end[0] >= FOREVER_US else end[0]

    def handed(self) -> list[SlotLease]:
        """Return the leases that those who waited have got since this was asked last: they are to be told."""
        handed, self._handed = self._handed, []
        return handed

    def _answer(self, token: Hashable) -> int:
        lease = self._holding.get(token)
        return lease.fence if lease is not None else WAITING if token in self._waiting else LOST

    def _hand_over(self, lease: SlotLease, now_us: int) -> None:
        del self._waiting[lease.token]
        self._holding[lease.token] = lease
        self.fence = lease.fence = self.fence + 1
        lease.since_us = now_us
        self._end_at(lease, now_us + self._confirm_us)
        self._handed.append(lease)

    def _drop(self, lease: SlotLease) -> None:
        """Forget a lease, or one who waits."""
        lease.end = None
        if lease.fence:
            del self._holding[lease.token]
        else:
            del self._waiting[lease.token]
            lease.fence = LOST
            self._line.note_stale()

    def _prolong(self, lease: SlotLease, until_us: int) -> None:
        if lease.end is not None and lease.until_us != until_us:
            self._end_at(lease, until_us)

    def _end_at(self, lease: SlotLease, until_us: int) -> None:
        if lease.end is not None:
            self._ends.note_stale()
        lease.until_us = until_us
        lease.end = (until_us, next(self._numbers), lease)
        self._ends.push(lease.end)
