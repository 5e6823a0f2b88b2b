"""What a server refuses, told as what it is, with a remedy."""

from __future__ import annotations

from typing import Final

from ratelimited_executor.peers.transport import RefusedError

__all__ = ["refusal_of"]

_REFUSALS: Final = {"ResponseError", "AuthenticationError", "BusyLoadingError"}  # clients of other makes have their own
# By words of the error's class and text; the first that occurs.
_REMEDIES: Final = (
    (("NoPermissionError", "NOPERM", "ACL failure", "can't run this command", "can't access"),
     "grant its user the rights that the how-to 'Share a rate between processes' lists: ACL SETUSER"),
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


def refusal_of(error: BaseException) -> RefusedError | None:
    """Return the server's error with a remedy; None if it is none of the server's, but a connection that was lost."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds.isdisjoint(_REFUSALS):
        return None
    reason = f"{type(error).__name__}: {error}"
    remedy = next((remedy for words, remedy in _REMEDIES if any(word in reason for word in words)), "")
    return RefusedError(reason, remedy)
