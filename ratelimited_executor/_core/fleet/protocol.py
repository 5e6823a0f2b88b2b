"""Requests of a peer to its group's authority, and replies: once in a grant interval, for one rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor._core.fleet.grid import FleetGrid

__all__ = ["NO_GRANT", "Grant", "Reply", "Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call in interval k, for permits of the next interval and optionally of the running one.

    The three demands count tasks for which the peer holds no permit; each includes the previous one.

    Attributes:
        peer: the id of this incarnation of the process.
        weight: its share, relative to others, while demand exceeds the rate, > 0.
        urgent: tasks that are due by the beginning of interval k + 1.
        soon: tasks that are due by the end of interval k + 1.
        later: tasks that are due by the end of interval k + 2: the demand for the next plan.
        now: permits of interval k wanted at once.
        sequence: the number of this request for permits at once; a repeated call repeats it, and gets the same permits.
        step: the peer's own rate, or the rate in force if that is lower, in permits in ``unit`` grant intervals ...
        unit: ... which counts only if no rate is in force, or if it is new.
        base: the phase of the first grid at its beginning, in parts of ``unit``.
        is_fetching: True if the call asks for permits of interval k + 1.
        is_new_rate: True if the rate is to be put in force.
        has_jumped: True if the authority's clock has stepped, as far as this peer can tell.
        is_leaving: True if the peer leaves.
        interval_us: the length of a grant interval in microseconds; used if none is in force.
        quarantine: grant intervals beyond the next for which a new authority grants nothing.
    """

    peer: str
    weight: float = 1.0
    urgent: int = 0
    soon: int = 0
    later: int = 0
    now: int = 0
    sequence: int = 0
    step: int
    unit: int
    base: int = 0
    is_fetching: bool = True
    is_new_rate: bool = False
    has_jumped: bool = False
    is_leaving: bool = False
    interval_us: int
    quarantine: int

    def less(self, count: int) -> Request:
        """Return the request with its demands reduced by permits granted at once."""
        return replace(
            self,
            urgent=max(0, self.urgent - count),
            soon=max(0, self.soon - count),
            later=max(0, self.later - count),
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """Permits of one interval that belong to one peer.

    Attributes:
        number: of the interval.
        count: permits that the interval owns.
        stride: from one rank's place to the next.
        grid: the times of the permits.
        ranks: of the peer's permits, as ranges.
    """

    number: int
    count: int
    stride: int
    grid: FleetGrid | None
    ranks: Sequence[range]

    def times_us(self) -> list[int]:
        """Return the times of the permits on the authority's clock, in rising order."""
        if self.grid is None:
            return []
        places = [rank * self.stride % self.count for ranks in self.ranks for rank in ranks]
        return [self.grid.time_us(self.number, place) for place in sorted(places)]


NO_GRANT: Final = Grant(0, 0, 1, None, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The authority's answer to a request.

    Attributes:
        now_us: the authority's clock, in microseconds since the epoch.
        era: a change means that earlier permits are void: a restart, a failover, a step of the clock.
        safe: the number of the first interval whose permits are granted in this era.
        rank: a number >= 0 that no other peer of the group has.
        peers: how many peers made the latest plan.
        grid: the permits in force in the next interval.
        flaw: damage found by this call: ``state`` if no authority can have written the state, so a new era has begun;
            ``plan`` if an interval's plan was lost or set back, so no more of its permits are granted; else empty.
        upcoming: permits of the next interval.
        running: all permits of the running interval granted to this peer at once so far.
    """

    now_us: int
    era: str
    safe: int
    rank: int
    peers: int
    grid: FleetGrid
    flaw: str = ""
    upcoming: Grant = NO_GRANT
    running: Grant = NO_GRANT
