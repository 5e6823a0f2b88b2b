"""Users' keys as stored in queues and limits: their hash and equality are called when a task is scheduled, never later.

A key is an index into many dictionaries while one of its tasks waits or runs. The hash or equality of a user's class
may raise, or change, at any time, and a task whose key is no longer found would be lost. So a key of such a class is
replaced at the call by a *token*, the same for all equal keys, and tokens compare by identity. Keys with the hash and
equality of built-in types are stored as they are.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["KeyTable", "KeyToken", "given_key", "text_of_key"]

_TEXT_MAX: Final = 200
_PLAIN: Final = frozenset({str, int, float, bytes, bool, type(None)})
_HASHES: Final = frozenset(kind.__hash__ for kind in (str, int, float, bytes, object))
_EQUALITIES: Final = frozenset(kind.__eq__ for kind in (str, int, float, bytes, object))


class KeyToken:
    """Stands for equal keys of a user's class.

    Args:
        key: the first of them.
    """

    __slots__ = ("__weakref__", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key

    def __repr__(self) -> str:
        return repr(self.key)


class KeyTable:
    """The tokens in use; a token is forgotten when no longer referenced."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens: dict[int, list[ref[KeyToken]]] = {}  # by the hash of their keys

    def held(self, key: Hashable) -> Hashable:
        """Return a key in its stored form: itself, or its token.

        Raises:
            Exception: any error of the key's hash or equality; then nothing has changed.
        """
        if type(key) in _PLAIN or _is_lasting(key):
            return key
        number = hash(key)
        for each in tuple(self._tokens.get(number, ())):  # a copy: the equality of a key is user code
            token = each()
            if token is not None and (token.key is key or token.key == key):
                return token
        token = KeyToken(key)
        self._tokens.setdefault(number, []).append(ref(token, partial(self._forget, number)))
        return token

    def _forget(self, number: int, gone: ref[KeyToken]) -> None:
        left = [each for each in self._tokens[number] if each is not gone]
        if left:
            self._tokens[number] = left
        else:
            del self._tokens[number]


def given_key(key: Hashable) -> Hashable:
    """Return a key as the user gave it."""
    return key.key if isinstance(key, KeyToken) else key


def text_of_key(key: Hashable) -> str:
    """Return a text that is the same for equal keys in all processes: the key's ``repr``, or a digest of it.

    A digest replaces a long ``repr``, and one with characters that a server may reject or treat as the end of the text.
    """
    text = repr(given_key(key))
    if len(text) <= _TEXT_MAX and text.isprintable():
        return text
    return f"sha256:{sha256(text.encode(errors='surrogatepass')).hexdigest()}"


def _is_lasting(key: Any) -> bool:
    """Return True if a key calls only hashes and equalities of built-in types."""
    kind: Any = type(key)
    if kind in _PLAIN:
        return True
    group: Any = tuple if isinstance(key, tuple) else frozenset if isinstance(key, frozenset) else None
    if group is None:
        return kind.__hash__ in _HASHES and kind.__eq__ in _EQUALITIES
    is_own = kind.__hash__ is not group.__hash__ or kind.__eq__ is not group.__eq__
    return not is_own and all(map(_is_lasting, group.__iter__(key)))
