"""A client of Redis, made from a URL or passed by the user."""

from __future__ import annotations

import inspect
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ratelimited_executor._core.urls import ENCODE

__all__ = ["check_part_of_keys", "client_of", "option_refusal_of", "refusal_of"]

_SCHEMES: Final = ("redis://", "rediss://", "unix://")
_CREDENTIALS: Final = frozenset({"username", "password"})  # may also be given as options


def client_of(redis: Any, *, user: str, **options: Any) -> tuple[Any, bool]:
    """Return an asyncio client of redis-py, and True if it is ours to close.

    Args:
        redis: a URL, or a client.
        user: the class that needs it, for messages.
        options: the options of a client made from a URL.

    Raises:
        ModuleNotFoundError: without the extra ``redis``.
        TypeError: if ``redis`` is neither a URL nor a client.
        ValueError: if the URL is not valid.
    """
    try:
        import redis.asyncio as library  # noqa: PLC0415  # the extra `redis`
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{user} needs the package redis: pip install 'ratelimited-executor[redis]'", name=error.name
        ) from error
    if isinstance(redis, str):
        reason = refusal_of(redis)
        if reason is None:
            try:
                client = library.Redis.from_url(redis, **options)
                pool = client.connection_pool
                pool.connection_class(**pool.connection_kwargs)  # checks the options without connecting
            except (TypeError, ValueError) as error:
                reason = option_refusal_of(error)
            else:
                return client, True
        raise ValueError(f"redis must be a URL such as 'redis://localhost:6379': {reason}")
    if not callable(getattr(redis, "evalsha", None)) or not inspect.iscoroutinefunction(
        getattr(type(redis), "execute_command", None)
    ):
        raise TypeError(
            f"redis must be a URL or an asyncio client of redis-py (redis.asyncio.Redis), got a {type(redis).__module__}.{type(redis).__name__}"
        )
    return redis, False


def check_part_of_keys(name: str, value: Any) -> None:
    """Refuse what cannot stand in all keys of a user: braces would choose another slot of a cluster.

    Raises:
        TypeError: if it is not a str.
        ValueError: if it is empty, or has a brace or what cannot be printed.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r}")
    if not value or set(value) & set("{}") or not value.isprintable():
        raise ValueError(f"{name} must be printable, not empty, and without braces, got {value!r}")


def refusal_of(url: str) -> str | None:
    """Return why a URL cannot be used, or None; quotes no part of it, because that may be a password.

    >>> refusal_of("redis://user:a%2Fb@localhost:6379/0?socket_timeout=1") is None
    True
    """
    if not url.startswith(_SCHEMES):
        return f"it must begin with {', '.join(_SCHEMES[:-1])} or {_SCHEMES[-1]}"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return f"its host or port is none; {ENCODE}"
    is_cut = parts.scheme != "unix" and ("@" in parts.path or bool(parts.fragment))
    options = parse_qsl(parts.query, keep_blank_values=True)
    is_cut = is_cut or any("@" in name or ("@" in value and name not in _CREDENTIALS) for name, value in options)
    if is_cut:
        return f"its user name or password ends too early; {ENCODE}"
    database = unquote(parts.path).replace("/", "")  # like redis-py, which reads any other text as database 0
    if parts.scheme != "unix" and database and not database.isdecimal():
        return "its database is no number: redis://host:port/0"
    return None


def option_refusal_of(error: Exception) -> str:
    """Return why redis-py refuses an option of a URL that :func:`refusal_of` accepted; names only the option."""
    name = str(error).split("'")[1::2][:1]
    return f"redis-py refuses its option {name[0]!r}" if name else "redis-py refuses one of its options"
