"""Encoding the arguments, results and saved states of durable tasks for a store."""

from __future__ import annotations

import json
from typing import Any, Final, Protocol

__all__ = ["Codec", "JSONCodec", "check_codec", "check_keys", "encoded"]

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_SCAN: Final[Any] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # json.loads() checks more first


class Codec(Protocol):
    """Encodes and decodes lists: ``[args, kwargs]`` for the arguments of a task, ``[value]`` for its result or saved state.

    With ``JSONCodec`` and its subclasses, more items may follow those of arguments.

    Any module or object with ``dumps`` and ``loads`` over bytes fits, such as ``pickle`` or ``msgpack``.
    """

    def dumps(self, arguments: Any, /) -> bytes:
        """Return the arguments as bytes.

        Raises:
            TypeError: if the type of an argument cannot be encoded.
            ValueError: if the value of an argument cannot be encoded.
        """
        ...

    def loads(self, body: bytes, /) -> Any:
        """Return the arguments encoded in bytes."""
        ...


class JSONCodec:
    """Arguments as JSON: None, booleans, numbers, strings, and lists and dicts of these.

    A tuple arrives as a list. Other values that ``json`` would change silently, or write as invalid JSON, are refused:
    NaN and infinity, and dict keys that are not strings.

    With this codec, and subclasses of it, arguments whose annotations are other known types are converted before and after.
    """

    def dumps(self, arguments: Any, /) -> bytes:
        """Return the arguments as JSON in UTF-8."""
        check_keys(arguments)
        return _ENCODER.encode(arguments).encode()

    def loads(self, body: bytes, /) -> Any:
        """Return the arguments encoded in JSON."""
        text = body.decode()
        try:
            arguments, end = _SCAN(text, 0)
        except StopIteration:
            end = -1
        return arguments if end == len(text) else json.loads(text)


def check_codec(codec: Any) -> Codec:
    """Return a codec; refuse an object without ``dumps`` and ``loads``."""
    if not all(callable(getattr(codec, name, None)) for name in ("dumps", "loads")):
        raise TypeError(f"codec must have the functions dumps and loads, like the module pickle, got {codec!r}")
    return codec  # type: ignore[no-any-return]  # just checked


def encoded(what: str, value: Any, codec: Codec, size_max: int) -> bytes:
    """Return one value as bytes: a list that contains it, as codecs are given lists.

    Raises:
        TypeError: if its type cannot be encoded.
        ValueError: if it cannot be encoded, or has more bytes than are allowed.
    """
    try:
        body = codec.dumps([value])
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{what} cannot be encoded: {error}") from error
    if not isinstance(body, bytes):
        raise TypeError(f"codec must return bytes, got {type(body).__name__} for {what}")
    if len(body) > size_max:
        raise ValueError(f"{what} must have at most {size_max:,} bytes, got {len(body):,}")
    return body


def check_keys(value: Any) -> None:
    """Refuse dict keys that are not strings, in a list or a dict and everything nested in it."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(
                    f"a dict in JSON must have strings as keys, got {key!r}: convert it to a string, or pass another codec="
                )
        value = value.values()
    for item in value:
        if isinstance(item, (dict, list, tuple)):
            check_keys(item)
