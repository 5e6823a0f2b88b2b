"""The states of a peer of shared limits, and their transitions.

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

*Clock broke*: the machine was suspended, or our clock stood still, so the times of held permits are no longer known.
*Nothing could start* leads to IDLE from ACTIVE only: in SYNC and OUTAGE a peer without tasks keeps its state, because
it still lacks an answer. A quarantine is a state of the era, not of a peer: an ACTIVE peer learns that nothing is
admitted yet. A pause of the process is no state either: each start checks the clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ratelimited_executor.exceptions import IllegalTransitionError

__all__ = ["PEER_TRANSITIONS", "PeerState", "check_move"]


class PeerState(StrEnum):
    """The state of a peer."""

    SYNC = "sync"
    """The peer has had no answer yet, or none since its clock broke."""

    ACTIVE = "active"
    """The peer calls whenever a due task has no permit."""

    IDLE = "idle"
    """The peer has no task that could start, and asks for nothing."""

    OUTAGE = "outage"
    """The peer gets no answers, and follows its outage policy."""

    CLOSED = "closed"
    """The peer has left."""


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
