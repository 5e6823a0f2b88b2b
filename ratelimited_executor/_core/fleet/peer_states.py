"""The states of a peer in one rate, and which may follow which.

::

    start
      │
      ▼
    ┌────────┐   an answer    ┌────────┐  nothing could start   ┌────────┐
    │  SYNC  │ ─────────────▶ │ ACTIVE │ ─────────────────────▶ │  IDLE  │
    └────────┘                └────────┘ ◀───────────────────── └────────┘
      │  ▲                      │    ▲         an answer            │
      │  │ clock broke          │    │                              │
      │  │ (from ACTIVE, IDLE   │    │ an answer                    │
      │  │  and OUTAGE)         ▼    │                              │
      │                       ┌────────┐                            │
      └─────────────────────▶ │ OUTAGE │ ◀──────────────────────────┘
        two calls unanswered  └────────┘   two calls unanswered

    all of them ── the executor closes ──▶ CLOSED

*Clock broke*: the machine was suspended, or our clock stood still, so that no permit that is held can be placed any more.
*Nothing could start* ends in IDLE from ACTIVE alone: in SYNC and OUTAGE a peer without tasks stays where it is, as it
still does not know the authority. A quarantine is no state of a peer, but of its era: an ACTIVE peer is told that it
gets nothing yet. Nor is a pause of the process: each start looks at the clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ratelimited_executor.exceptions import IllegalTransitionError

__all__ = ["PEER_TRANSITIONS", "PeerState", "check_move"]


class PeerState(StrEnum):
    """Where a peer is."""

    SYNC = "sync"
    """It has not been answered yet, or not since its clock broke."""

    ACTIVE = "active"
    """It calls once in a grant interval."""

    IDLE = "idle"
    """It has nothing that could start, and makes no calls."""

    OUTAGE = "outage"
    """It gets no answers, and goes by its outage policy."""

    CLOSED = "closed"
    """It has left."""


PEER_TRANSITIONS: Final[dict[PeerState, frozenset[PeerState]]] = {
    PeerState.SYNC: frozenset({PeerState.ACTIVE, PeerState.OUTAGE, PeerState.CLOSED}),
    PeerState.ACTIVE: frozenset({PeerState.IDLE, PeerState.OUTAGE, PeerState.SYNC, PeerState.CLOSED}),
    PeerState.IDLE: frozenset({PeerState.ACTIVE, PeerState.OUTAGE, PeerState.SYNC, PeerState.CLOSED}),
    PeerState.OUTAGE: frozenset({PeerState.ACTIVE, PeerState.SYNC, PeerState.CLOSED}),
    PeerState.CLOSED: frozenset(),
}


def check_move(peer: str, before: PeerState, after: PeerState) -> None:
    """Check that a peer may move to a state, or stay in it.

    Raises:
        IllegalTransitionError: if the table does not allow it.
    """
    if after is not before and after not in PEER_TRANSITIONS[before]:
        raise IllegalTransitionError(f"peer {peer}: {before.value} to {after.value}")
