"""The former home of ``RedisProgress``; the name can still be imported from here."""

from ratelimited_executor.stores.redis import RedisProgress

__all__ = ["RedisProgress"]
