"""Statistics of an executor's part in a group of peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

    from ratelimited_executor._core.fleet.peer_states import PeerState

__all__ = ["FleetStatistics", "GroupLimit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimit:
    """One limit of a group, as in the authority's last reply.

    Attributes:
        name: of the resource and the limit's kind.
        resource: that it counts; ``permits`` for starts.
        used: the amount in use.
        amount: the most that it admits.
    """

    name: str
    resource: str
    used: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatistics:
    """One executor's part in its group.

    Attributes:
        state: of its peer.
        peers: how many peers made the latest plan; 0 before the first answer.
        rank: a number that no other peer of the group has; None before the first answer.
        era: changes when earlier permits become void: a restart, a failover, a step of the authority's clock.
        rate: permits a second in force for the whole group; None before the first answer.
        demand: tasks without a permit that could start by the end of the next grant interval, as reported last; 0 while
            idle.
        held: permits held now.
        granted: permits granted so far.
        taken: granted permits that started a task.
        lapsed: granted permits that were not used in time.
        refused: permits requested and not granted.
        offset: seconds by which the authority's clock is ahead of the timeline; None if not known.
        offset_error: the largest error of ``offset`` in seconds; None if not known.
        since_grant: seconds since the last grant; None before the first.
        failures: calls in a row without an answer.
        limits: of the group, if it shares more than one pace.
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
