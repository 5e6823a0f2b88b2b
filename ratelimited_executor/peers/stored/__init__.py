"""Peers that decide for themselves, by a memory in a place that all can reach: a file, or PostgreSQL."""

from ratelimited_executor.peers.stored.file import FilePeers
from ratelimited_executor.peers.stored.postgres import PostgresPeers

__all__ = ["FilePeers", "PostgresPeers"]
