"""The refusals of a server, classified, with a remedy."""

from __future__ import annotations

from ratelimited_executor._redis.refusals import remedy_of
from ratelimited_executor.peers.transport import RefusedError

__all__ = ["refusal_of"]


def refusal_of(error: BaseException, *scripts: str) -> RefusedError | None:
    """Return the server's error with a remedy; None for a lost connection. ``scripts`` are texts that may have run."""
    found = remedy_of(error, scripts)
    return None if found is None else RefusedError(*found)
