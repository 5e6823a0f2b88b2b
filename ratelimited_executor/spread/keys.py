"""From a key to a place on the circle: one hash, specified to the bit.

1. The *bytes* of a key: an integer is 8 bytes as two's complement, most significant first; a UUID is its 16 bytes in
   written order; a text is its UTF-8, unchanged; bytes are themselves.
2. The *hash* is the first 8 bytes of their SHA-256, as an unsigned integer, most significant first.
3. The *offset* in a period of p nanoseconds is ``hash * p // 2**64``: an integer of 0 to p - 1.
4. The *bucket* of 65,536 is the first 2 bytes of the SHA-256, of 256 the first byte: the same circle, more coarsely.

Every language and PostgreSQL have SHA-256. The hash is not for security: a key with another offset gains nothing. It
was chosen because no pattern of keys survives it: consecutive numbers, numbers in steps, UUIDs of any version.
Source: FIPS 180-4.
"""

from __future__ import annotations

import math
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from ratelimited_executor._core.durations import seconds_of
from ratelimited_executor._kernel.choice import two_bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.durations import DurationLike

__all__ = ["Key", "hash_of", "key_bytes", "key_hash", "offset", "offset_ns"]

Key: TypeAlias = int | str | bytes | UUID
_NS: Final = 1_000_000_000
_INT_BYTES: Final = 8


def key_bytes(key: Key) -> bytes:
    r"""Return the bytes that represent a key.

    Args:
        key: a signed 64-bit integer, a UUID, a str or bytes.

    Raises:
        TypeError: if the key has another type; bool is not accepted as an integer.
        ValueError: if an integer does not fit, or a str cannot be encoded as UTF-8.

    >>> key_bytes(-2).hex(), key_bytes("é")
    ('fffffffffffffffe', b'\xc3\xa9')
    """
    kind = type(key)
    convert = _CONVERT.get(kind)
    if convert is None:
        convert = next((_CONVERT[base] for base in _CONVERT if isinstance(key, base) and kind is not bool), None)
        if convert is None:
            raise TypeError(f"key must be an int, a str, bytes or a UUID, got {key!r}")
    return convert(key)


@two_bodies
def key_hash(key: Key) -> int:
    """Return the hash of a key: 64 bits, unsigned.

    >>> f"{key_hash(1):016x}"
    'cd2662154e6d76b2'
    """
    return _hash_of_int(key) if type(key) is int else hash_of(key_bytes(key))


@two_bodies
def hash_of(data: bytes) -> int:
    """Return the hash of a key that is given by its bytes, as of :func:`key_bytes`."""
    return int.from_bytes(sha256(data).digest()[:8], "big")


@lru_cache(maxsize=1024)  # of one key, slot and offset are usually asked for together
def _hash_of_int(key: int) -> int:
    return hash_of(_of_int(key))


def offset(key: Key, period: DurationLike) -> float:
    """Return a key's offset in a period: seconds, >= 0 and < ``period``, to the nanosecond.

    Args:
        key: as for :func:`key_bytes`.
        period: seconds as a number, a timedelta, or a str such as ``"8h"`` or ``"1h30m"``; >= 1 ns.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range.
    """
    period_ns, most = _span_of(period) if type(period) in (float, int, str) else _span(period)
    found = (key_hash(key) * period_ns >> 64) / _NS
    return min(most, found)


def _span(period: DurationLike) -> tuple[int, float]:
    """Return a period in nanoseconds, and the largest offset in it in seconds."""
    seconds = seconds_of("period", period)
    return round(seconds * _NS), math.nextafter(seconds, 0)


_span_of: Final = lru_cache(maxsize=16, typed=True)(_span)


def offset_ns(key: Key, period_ns: int) -> int:
    """Return a key's exact offset in nanoseconds: ``key_hash(key) * period_ns // 2**64``.

    Raises:
        TypeError: if ``period_ns`` is not an integer.
        ValueError: if ``period_ns`` is less than 1.
    """
    if isinstance(period_ns, bool) or not isinstance(period_ns, int):
        raise TypeError(f"period_ns must be an integer, got {period_ns!r}")
    if period_ns < 1:
        raise ValueError(f"period_ns must be >= 1, got {period_ns!r}")
    return key_hash(key) * period_ns >> 64


def _of_int(key: int) -> bytes:
    try:
        return key.to_bytes(_INT_BYTES, "big", signed=True)
    except OverflowError:
        raise ValueError(f"key must fit into 64 bits, got {key!r}: convert it to a str") from None


def _of_text(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"key must be a str that UTF-8 can hold, got {key!r}: {error.reason}") from None


def _of_uuid(key: UUID) -> bytes:
    return key.bytes


_CONVERT: Final[dict[type, Callable[[Any], bytes]]] = {int: _of_int, str: _of_text, bytes: bytes, UUID: _of_uuid}
