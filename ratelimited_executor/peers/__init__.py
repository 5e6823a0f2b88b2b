"""Peers: ways in which processes share the rates of their executors, one module for each.

===========  ==================================  ================================================================
module       a permit of the rate belongs to     requirements
===========  ==================================  ================================================================
``static``   the peer whose rank is its number   a fixed number of peers, each with its own rank; no I/O
             modulo the number of peers
``redis``    the peer to which the authority     a Redis that all can reach; peers join and leave, and get what they need
             has granted it
===========  ==================================  ================================================================

``fleet`` is the part of ``redis`` that does not depend on Redis. Names are imported on first use, because every executor
imports this package and most have no peers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ratelimited_executor._core.fleet.insight import FleetStatistics as FleetStatistics
    from ratelimited_executor._core.fleet.insight import GroupLimit as GroupLimit
    from ratelimited_executor._core.fleet.peer_states import PeerState as PeerState
    from ratelimited_executor._core.fleet.policies import Outage as Outage
    from ratelimited_executor.peers.redis.peers import RedisPeers as RedisPeers
    from ratelimited_executor.peers.static import StaticPeers as StaticPeers

__all__ = ["FleetStatistics", "GroupLimit", "Outage", "PeerState", "RedisPeers", "StaticPeers"]

_MODULE_OF: Final = {
    "FleetStatistics": "_core.fleet.insight",
    "GroupLimit": "_core.fleet.insight",
    "Outage": "_core.fleet.policies",
    "PeerState": "_core.fleet.peer_states",
    "RedisPeers": "peers.redis.peers",
    "StaticPeers": "peers.static",
}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"ratelimited_executor.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
