"""Peers: ways in which processes share the rates of their executors, one module for each.

===========  ==================================  ================================================================
module       a permit of the rate belongs to     requirements
===========  ==================================  ================================================================
``static``   the peer whose rank is its number   a fixed number of peers, each with its own rank; no I/O
             modulo the number of peers
``redis``    the peer to which the authority     a Redis that all can reach; peers join and leave, and get what they need
             has granted it
``stored``   the peer that has taken it, in a    a file, for the processes of a machine, or a PostgreSQL that all can
             transaction                         reach; peers join and leave, and get what they need
===========  ==================================  ================================================================

``fleet`` is the part that ``redis`` and ``stored`` have in common. Names are imported on first use, because every executor
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
    from ratelimited_executor.peers.stored.file import FilePeers as FilePeers
    from ratelimited_executor.peers.stored.postgres import PostgresPeers as PostgresPeers

__all__ = [
    "FilePeers",
    "FleetStatistics",
    "GroupLimit",
    "Outage",
    "PeerState",
    "PostgresPeers",
    "RedisPeers",
    "StaticPeers",
]

_MODULE_OF: Final = {
    "FilePeers": "peers.stored.file",
    "FleetStatistics": "_core.fleet.insight",
    "GroupLimit": "_core.fleet.insight",
    "Outage": "_core.fleet.policies",
    "PeerState": "_core.fleet.peer_states",
    "PostgresPeers": "peers.stored.postgres",
    "RedisPeers": "peers.redis.peers",
    "StaticPeers": "peers.static",
}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise import_module("ratelimited_executor._names").unknown_name(__name__, name)
    value = getattr(import_module(f"ratelimited_executor.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
