"""Peers that share rates and slots through Redis, Valkey, a Redis Cluster or a Sentinel group."""

from ratelimited_executor.peers.redis.peers import RedisPeers

__all__ = ["RedisPeers"]
