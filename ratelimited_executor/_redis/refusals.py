"""The refusals of a Redis server, with remedies."""

from __future__ import annotations

from typing import Final

__all__ = ["remedy_of"]

_REFUSALS: Final = {
    "ResponseError",
    "AuthenticationError",
    "BusyLoadingError",
}  # by name: other clients have their own classes
# By words in the error's class and text; the first match counts.
_REMEDIES: Final = (
    (("NoPermissionError", "NOPERM", "ACL failure", "can't run this command", "can't access"),
     "grant its user the rights that the how-to lists: ACL SETUSER"),
    (("AuthenticationError", "NOAUTH", "WRONGPASS", "AuthenticationWrongNumberOfArgsError"),
     "set the server's user name and password in the URL: redis://user:password@host:port"),
    (("ReadOnlyError", "READONLY"), "this server is a replica: connect to its master, as a Sentinel client of redis-py does"),
    (("BusyLoadingError", "LOADING"), "the server is still reading its data; it answers when that is done"),
    (("WRONGTYPE",), "a key of this name is of another type: delete it, or choose another group or prefix"),
    (("DB index", "SELECT is not allowed"), "choose a database that the server has: redis://host:port/0"),
    (("MovedError", "MOVED"), "this server is part of a cluster: hand in a client of redis.asyncio.RedisCluster"),
    (("OutOfMemoryError", "OOM"), "the server is full: raise its maxmemory"),
    (("NOREPLICAS",), "the server has fewer replicas than its min-replicas-to-write"),
)  # fmt: skip


def remedy_of(error: BaseException) -> tuple[str, str] | None:
    """Return the server's message and a remedy, which may be empty; None for a lost connection."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds.isdisjoint(_REFUSALS):
        return None
    reason = f"{type(error).__name__}: {error}"
    return reason, next((remedy for words, remedy in _REMEDIES if any(word in reason for word in words)), "")
