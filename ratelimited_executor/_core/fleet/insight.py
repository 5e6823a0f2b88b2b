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
        used: the amount in use; what is reserved for the next moments counts too, so it may exceed ``amount`` for a while.
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
        peers: how many peers, this one included, have called in the last ten seconds or so; 0 before the first answer.
        era: changes when earlier permits become void: a restart, a failover, a step of the authority's clock.
        rate: starts a second that the limits in force allow the whole group; None before the first answer, and if no limit
            counts starts.
        demand: permits requested in the latest call; 0 while idle.
        held: permits held now.
        granted: permits granted so far.
        taken: granted permits that started a task.
        lapsed: granted permits that were not used in time.
        refused: permits requested and not granted; a repeated request counts again.
        offset: seconds by which the authority's clock is ahead of the timeline; None if not known.
        offset_error: the largest error of ``offset`` in seconds; None if not known.
        since_grant: seconds since permits were granted last; None before the first.
        failures: calls in a row without an answer.
        limits: of the group, those of keys excepted; empty before the first answer.
    """

    state: PeerState
    peers: int
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
