"""The permits that a peer holds, by the authority's clock.

The queue uses them like a :class:`~..permits.PermitGrid`. A permit may be used from its time until ``late`` after it,
both judged by every time that the authority's clock may show now. So it is never used early, and never so late that
another window of the rate would hold one start too many. After that it lapses.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort_right
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.fleet.claims import Claim
from ratelimited_executor._kernel.admission import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from fractions import Fraction

    from ratelimited_executor._core.fleet.clock import ServerClock
    from ratelimited_executor._core.fleet.grid import FleetGrid
    from ratelimited_executor._core.limits.effects import Effects
    from ratelimited_executor._core.rates import Rate

__all__ = ["GrantedPermits", "Outlook"]

_NS: Final = 1_000_000_000
_NEVER_NS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Outlook:
    """The permits that a peer may expect beyond those it holds.

    Attributes:
        grid: the times of the permits.
        owners: one permit in this many is the peer's own.
        rank: the number of its permits, modulo ``owners``; None if not known: the others then count as earlier.
    """

    grid: FleetGrid
    owners: int = 1
    rank: int | None = None

    def time_us(self, after_us: int, count: int) -> int:
        """Return when the ``count``-th expected permit from a time on comes up, by the authority's clock."""
        first = self.grid.index_at(after_us)
        ahead = self.owners - 1 if self.rank is None else (self.rank - first) % self.owners
        return self.grid.permit_us(first + ahead + (count - 1) * self.owners)


class GrantedPermits:
    """Granted permits in the order of their times.

    Args:
        clock: the authority's.
        rate: of the whole group, as this peer knows it; 0 holds everything back.
        late_ns: how long after its time a permit may be used.
        is_clock_whole: returns True while our own clock has run without a break; otherwise no permit is usable.

    Attributes:
        per_second: permits a second in force for the whole group, as far as is known.
        peers: how many peers share the rate.
        lapsed_count: permits that were not used in time.
        taken_count: permits that were used.
        debt_count: permits that started tasks owe: part of their cost, not granted yet.
        outlooks: permits expected beyond those held; of several, the latest time counts. Empty before a grid is known.
        usable_until_ns: until when the permits that :meth:`usable` has counted may be used.
        generation: grows whenever earlier permits become void.
        is_usable: ``is_clock_whole``.
        open_ticket: the times of the permits that the latest starts took, until their effect is reported.
    """

    __slots__ = (
        "_clock", "_debtor", "_late_ns", "_times", "debt_count", "generation", "is_usable", "lapsed_count", "open_ticket",
        "outlooks", "peers", "per_second", "rate", "taken_count", "usable_until_ns",
    )  # fmt: skip

    def __init__(
        self, clock: ServerClock, rate: Rate, *, late_ns: int, is_clock_whole: Callable[[], bool] = lambda: True
    ) -> None:
        self._clock = clock
        self.is_usable = is_clock_whole
        self.generation = 0
        self.open_ticket: list[int] | None = None
        self._late_ns = late_ns
        self._times: list[int] = []  # by the authority's clock, rising
        self.debt_count = 0
        self._debtor: list[int] | None = None  # the ticket of the last start
        self.rate = rate
        self.per_second: Fraction | None = rate.per_second
        self.peers = 1
        self.outlooks: tuple[Outlook, ...] = ()
        self.lapsed_count = 0
        self.taken_count = 0
        self.usable_until_ns = 0

    # For the peer.

    def hold(self, times_ns: Iterable[int]) -> None:
        """Add permits by their times on the authority's clock."""
        for time_ns in times_ns:
            insort_right(self._times, time_ns)
        if self.debt_count:
            self._pay()

    def drop(self) -> None:
        """Drop all held permits: they are void, and those of starts that have not taken effect."""
        self._times.clear()
        self.generation += 1

    def drop_beyond(self, interval_ns: int, most: Callable[[int, int], int]) -> None:
        """Drop the latest permits of each grant interval.

        Args:
            interval_ns: the length of a grant interval.
            most: returns how many to keep, given an interval's number and how many of its permits are held.
        """
        kept: list[int] = []
        for number, times in groupby(self._times, key=lambda time_ns: time_ns // interval_ns):
            held = list(times)
            kept += held[: max(0, most(number, len(held)))]
        self._times = kept

    def held_count(self, until_ns: int | None = None) -> int:
        """Count the permits held, or those before a time on the authority's clock."""
        return len(self._times) if until_ns is None else bisect_left(self._times, until_ns)

    # For the queue.

    def trial(self) -> GrantedPermits:
        """Return the permits that forecasts read: these."""
        return self

    @property
    def is_unlimited(self) -> bool:
        """True if everything may start at once."""
        return self.rate.is_unlimited

    counts_effects: Final = True  # a permit is checked again when the user's code begins
    is_bursty: Final = False  # a permit that is not taken in time is lost, so starts do not pile up
    is_by_wall_clock: Final = False  # a step of the wall clock lets nothing start
    decides_each: Final = False  # starts are not decided one by one
    is_by_tickets: Final = False
    is_foreseeable: Final = False  # future grants are not known
    tickets: Final = ()  # there are no limits to settle starts with

    @property
    def is_stopped(self) -> bool:
        """True if no permit comes up: a pause here, or a rate of 0 for the whole group."""
        return self.rate.is_zero or self.per_second == 0

    def set_rate(self, rate: Rate, now_ns: int) -> None:  # noqa: ARG002  # the signature of PermitGrid
        """Set the rate: 0 holds everything back, infinity lifts the limit, the authority handles others."""
        self.rate = rate

    def usable(self, now_ns: int) -> int:
        """Count the permits that may be taken at ``now_ns``; they stay usable until :attr:`usable_until_ns`."""
        if self.rate.is_unlimited:
            self.usable_until_ns = now_ns
            return UNLIMITED
        times, clock = self._times, self._clock
        if not times or self.rate.is_zero or not clock.is_known or not self.is_usable():
            return 0
        server_ns, error_ns = clock.at(now_ns), clock.error_ns(now_ns)
        stale = bisect_left(times, server_ns + error_ns - self._late_ns)
        if stale:
            self.lapsed_count += stale
            del times[:stale]
        count = bisect_right(times, server_ns - error_ns)
        if count:
            self.usable_until_ns = clock.surely_before(times[0] + self._late_ns, now_ns)
        return count

    def take(self, count: int = 1, now_ns: int = 0) -> None:  # noqa: ARG002  # the signature of PermitGrid
        """Take some of the permits that :meth:`usable` counted."""
        if not self.rate.is_unlimited:
            self.open_ticket = self._times[:count]
            del self._times[:count]
            self.taken_count += count
            self._debtor = None

    def take_effect(self, now_ns: int) -> None:
        """Report that the latest starts have taken effect by ``now_ns``."""
        receipt, self.open_ticket = self.open_ticket, None
        if receipt is not None:
            self.started(receipt, now_ns)

    def defer(self, effects: Effects) -> None:
        """Defer the effect of the latest start: its permit is checked again when ``effects`` begin."""
        receipt, self.open_ticket = self.open_ticket, None
        if receipt is not None:
            effects.append(Claim(self, receipt, self.usable_until_ns))

    def started(self, receipt: list[int], at_ns: int) -> None:
        """Do nothing: this authority counts a permit at its own time."""

    def lapsed(self, receipt: list[int]) -> None:
        """Count permits that were taken and not used in time."""
        self.taken_count -= len(receipt)
        self.lapsed_count += len(receipt)

    def charge(self, cost: int) -> list[int]:
        """Set the total cost of the last start, which uses up the following permits; return its ticket."""
        ticket = [cost]
        if not self.rate.is_unlimited:
            self._debtor = ticket
            self.debt_count += cost - 1
            self._pay()
        return ticket

    def settle(self, ticket: list[int], cost: int, now_ns: int) -> None:  # noqa: ARG002  # the signature of PermitGrid
        """Correct the cost of a start; a lower cost only cancels permits that the last start still owes."""
        change = cost - ticket[0]
        if change < 0:
            change = -min(-change, self.debt_count if ticket is self._debtor else 0)
        self.debt_count += change
        ticket[0] += change
        self._pay()

    def _pay(self) -> None:
        """Pay the debt from the held permits."""
        paid = min(self.debt_count, len(self._times))
        del self._times[:paid]
        self.debt_count -= paid
        self.taken_count += paid

    def next_time(self, now_ns: int) -> int | None:
        """Return when the next permit may be taken, >= ``now_ns``; None if none is held."""
        return now_ns if self.usable(now_ns) else self.next_fresh_time(now_ns)

    def next_fresh_time(self, now_ns: int) -> int | None:
        """Return the next permit's time; call only if :meth:`usable` returned 0."""
        if not self._times or self.rate.is_zero or not self._clock.is_known or not self.is_usable():
            return None
        return max(now_ns, self._clock.surely_after(self._times[0], now_ns))

    def begin_at(self, time_ns: int) -> None:
        """Do nothing: each permit was granted for its time."""

    def next_number_time(self) -> int:
        """Return a lower bound on the next permit's time; another may be granted meanwhile."""
        return self._clock.here(self._times[0]) if self._times and self._clock.is_known else _NEVER_NS

    def pace(self) -> tuple[float, float]:
        """Return (0, infinity): future grants are not known."""
        return 0.0, math.inf

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Estimate this peer's permits in [``now_ns``, ``end_ns``): those held, or an even share if more."""
        if self.rate.is_unlimited:
            return UNLIMITED
        if self.rate.is_zero:
            return 0
        held = self.held_count(self._clock.at(end_ns))
        share = (self.per_second or 0) * (end_ns - now_ns) / (_NS * self.peers)
        return max(held, int(share))

    def startable_until(self, now_ns: int, end_ns: int) -> int:  # noqa: ARG002  # there is no other limit
        """Return a count without limit: only permits limit starts."""
        return UNLIMITED

    def time_after(self, now_ns: int, count: int) -> int | None:
        """Return when the ``count``-th permit from now is expected; None if never at this rate."""
        times, clock = self._times, self._clock
        if self.rate.is_unlimited:
            return now_ns
        if self.rate.is_zero or not self.per_second:
            return None
        if count <= len(times) and clock.is_known:
            return max(now_ns, clock.surely_after(times[count - 1], now_ns))
        left = count - len(times)
        if self.outlooks and clock.is_known:
            after_us = clock.at(now_ns) // 1000
            if times:
                after_us = max(after_us, times[-1] // 1000 + 1)
            time_us = max(outlook.time_us(after_us, left) for outlook in self.outlooks)
            return max(now_ns, clock.here(time_us * 1000))  # by then the clock will have been read again
        return now_ns + int(left * self.peers * _NS / self.per_second)
