"""What a peer asks of the authority of its group, and what it is told: once in a grant interval, for one rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor._core.fleet.grid import FleetGrid

__all__ = ["NO_GRANT", "Grant", "Reply", "Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call, made in interval k, for permits of the next one and, if so wanted, of the running one.

    The three demands count tasks for which the peer holds no permit; each includes the one before.

    Attributes:
        peer: the id of this incarnation of the process.
        weight: its part where demand exceeds the rate, > 0.
        urgent: tasks that are due by the begin of interval k + 1.
        soon: tasks that are due by its end.
        later: tasks that are due by the end of interval k + 2: what the next plan goes by.
        now: permits of interval k wanted at once.
        sequence: number of this wish for permits at once; a call that is repeated repeats it, and gets the same ones.
        step: the peer's own rate, or the one in force if that is lower, in permits in ``unit`` grant intervals ...
        unit: ... which counts only where none is in force, or if it is new.
        base: the phase of the first grid at its begin, in parts of ``unit``.
        is_fetching: True if permits of interval k + 1 are asked for.
        is_new_rate: True if that rate is to be put in force.
        has_jumped: True if the authority's clock has stepped, as far as this peer can tell.
        is_leaving: True if the peer goes.
        interval_us: the length of a grant interval in microseconds, where none is in force.
        quarantine: grant intervals for which a new authority grants nothing beyond the next.
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
        """Return the request of a peer that has got so many permits at once."""
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
        grid: where they lie.
        ranks: of the peer's own, as ranges.
    """

    number: int
    count: int
    stride: int
    grid: FleetGrid | None
    ranks: Sequence[range]

    def times_us(self) -> list[int]:
        """Return when the permits come up, by the authority's clock, in rising order."""
        if self.grid is None:
            return []
        places = [rank * self.stride % self.count for ranks in self.ranks for rank in ranks]
        return [self.grid.time_us(self.number, place) for place in sorted(places)]


NO_GRANT: Final = Grant(0, 0, 1, None, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the authority answers.

    Attributes:
        now_us: its clock, in microseconds since the epoch.
        era: another one means that the earlier permits are void: a restart, a failover, a step of the clock.
        safe: the number of the first interval of which permits are granted in this era.
        rank: a number >= 0 that no other peer of the group has.
        peers: how many peers made the latest plan.
        grid: the permits in force in the next interval.
        flaw: what this call has found: ``state`` if nobody can have written it, so that a new era has begun; ``plan`` if that
            of an interval was lost or set back, so that no more of its permits are granted; else empty.
        upcoming: permits of the next interval.
        running: permits of the running interval that were asked for at once, all of this peer's so far.
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
