"""Peers that share rates, and cycles, through Redis, Valkey, a Redis Cluster or a Sentinel group."""

from ratelimited_executor.peers.redis.peers import RedisPeers
from ratelimited_executor.stores.redis import RedisProgress

__all__ = ["RedisPeers", "RedisProgress"]
