"""What an executor tells about its part in a group of peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

    from ratelimited_executor._core.fleet.peer_states import PeerState

__all__ = ["FleetStatistics", "GroupLimit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimit:
    """One limit of a group, as the authority told of it last.

    Attributes:
        name: of the resource, and of its kind.
        resource: what it counts; ``permits`` for starts.
        used: how much of it is used.
        amount: what it admits.
    """

    name: str
    resource: str
    used: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatistics:
    """One executor's part in its group.

    Attributes:
        state: where its peer is.
        peers: how many peers made the latest plan; 0 before the first answer.
        rank: a number that no other peer of the group has; None before the first answer.
        era: changes when what was granted before is void: a restart, a failover, a step of the authority's clock.
        rate: permits a second in force for the whole group; None before the first answer.
        demand: tasks that could start by the end of the next grant interval, and for which no permit was held, as reported
            last; 0 while idle.
        held: permits held at this moment.
        granted: permits granted so far.
        taken: of those, how many started a task.
        lapsed: of those, how many were not used in time.
        refused: permits asked for and not granted.
        offset: seconds by which the authority's clock is ahead of the timeline; None if not known.
        offset_error: seconds by which that may be wrong at most; None if not known.
        since_grant: seconds since permits came last; None if none ever did.
        failures: calls in a row without an answer.
        limits: of the group, where it shares more than one pace.
    """

    state: PeerState
    peers: int
    rank: int | None
    era: str | None
    rate: Fraction | None
    demand: int
    held: int
    granted: int
    taken: int
    lapsed: int
    refused: int
    offset: float | None
    offset_error: float | None
    since_grant: float | None
    failures: int
    limits: tuple[GroupLimit, ...] = ()
