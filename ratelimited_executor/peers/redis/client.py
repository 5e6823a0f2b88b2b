"""A client of Redis, from a URL or as it was handed in."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["client_of"]


def client_of(redis: Any, *, user: str, **options: Any) -> tuple[Any, bool]:
    """Return an asyncio client of redis-py, and whether it is ours to close.

    Args:
        redis: a URL, or a client.
        user: the class that needs it, for messages.
        options: of a client that is made from a URL.

    Raises:
        ModuleNotFoundError: without the extra ``redis``.
        TypeError: if it is neither.
        ValueError: if the URL is none.
    """
    try:
        import redis.asyncio as library  # noqa: PLC0415  # the extra `redis`
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{user} needs the package redis: pip install 'ratelimited-executor[redis]'", name=error.name
        ) from error
    if isinstance(redis, str):
        try:
            return library.Redis.from_url(redis, **options), True
        except ValueError as error:
            raise ValueError(f"redis must be a URL such as 'redis://localhost:6379': {error}") from error
    if not callable(getattr(redis, "evalsha", None)) or not inspect.iscoroutinefunction(
        getattr(type(redis), "execute_command", None)
    ):
        raise TypeError(
            f"redis must be a URL or an asyncio client of redis-py (redis.asyncio.Redis), got a {type(redis).__module__}.{type(redis).__name__}"
        )
    return redis, False
