"""How the arguments of a durable task are written into a store."""

from __future__ import annotations

import json
from typing import Any, Final, Protocol

__all__ = ["Codec", "JSONCodec", "check_codec"]

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_SCAN: Final[Any] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # json.loads() looks for options and blanks first


class Codec(Protocol):
    """Writes and reads a list of two: the positional arguments, a list, and the keyword arguments, a dict.

    Modules and objects with ``dumps`` and ``loads`` over bytes fit, such as ``pickle``, or ``msgpack`` with its own names.
    """

    def dumps(self, arguments: Any, /) -> bytes:
        """Return the arguments as bytes.

        Raises:
            TypeError: if an argument cannot be written.
            ValueError: the same.
        """
        ...

    def loads(self, body: bytes, /) -> Any:
        """Return the arguments that bytes stand for."""
        ...


class JSONCodec:
    """Arguments as JSON: None, booleans, numbers, texts, and lists and dicts of these.

    A tuple arrives as a list. What else JSON would change silently, or write as no JSON, is refused: NaN and infinity, and
    keys of dicts that are no texts.
    """

    def dumps(self, arguments: Any, /) -> bytes:
        """Return the arguments as JSON in UTF-8."""
        _check_keys(arguments)
        return _ENCODER.encode(arguments).encode()

    def loads(self, body: bytes, /) -> Any:
        """Return the arguments that JSON stands for."""
        text = body.decode()
        try:
            arguments, end = _SCAN(text, 0)
        except StopIteration:
            end = -1
        return arguments if end == len(text) else json.loads(text)


def check_codec(codec: Any) -> Codec:
    """Refuse what has no ``dumps`` and ``loads``."""
    if not all(callable(getattr(codec, name, None)) for name in ("dumps", "loads")):
        raise TypeError(f"codec must have the functions dumps and loads, like the module pickle, got {codec!r}")
    return codec  # type: ignore[no-any-return]  # just checked


def _check_keys(value: Any) -> None:
    """Refuse keys of dicts that are no texts, in a list or a dict and all that is in it."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(
                    f"a dict in JSON must have strings as keys, got {key!r}: convert it to a string, or pass another codec="
                )
        value = value.values()
    for item in value:
        if isinstance(item, (dict, list, tuple)):
            _check_keys(item)
