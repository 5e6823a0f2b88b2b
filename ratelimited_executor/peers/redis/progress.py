"""Where ``RedisProgress`` was before there were stores; the name stays importable from here."""

from ratelimited_executor.stores.redis import RedisProgress

__all__ = ["RedisProgress"]
