"""The refusals of a server, classified, with a remedy."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ratelimited_executor._redis.refusals import remedy_of
from ratelimited_executor.peers.transport import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["refusal_of", "refusing"]


@contextmanager
def refusing(*scripts: str) -> Iterator[None]:
    """Raise the server's errors as refusals, and those of a lost connection as they are; see :func:`refusal_of`."""
    try:
        yield
    except Exception as error:
        refusal = refusal_of(error, *scripts)
        if refusal is None:
            raise
        raise refusal from error


def refusal_of(error: BaseException, *scripts: str) -> RefusedError | None:
    """Return the server's error with a remedy; None for a lost connection. ``scripts`` are texts that may have run."""
    found = remedy_of(error, scripts)
    return None if found is None else RefusedError(*found)
