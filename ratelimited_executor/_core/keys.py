"""Keys of users, as the queues and limits hold them: their hash and equality are asked at the call, and never later.

A key is an index of many dictionaries for as long as one of its tasks waits or runs. The hash or equality of a class of
the user may raise, or change, at any time, and a task whose key is not found any more would be lost. So a key of such a
class is exchanged at the call for a *token*, one for all keys that are equal to it, and tokens compare by identity. Keys
whose hash and equality are those of built-in types are held as they are.
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
    """Stands for equal keys of a class of the user.

    Args:
        key: the first of them.
    """

    __slots__ = ("__weakref__", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key

    def __repr__(self) -> str:
        return repr(self.key)


class KeyTable:
    """The tokens in use; one that nothing holds any more is forgotten."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens: dict[int, list[ref[KeyToken]]] = {}  # by the hash of their keys

    @property
    def token_count(self) -> int:
        """How many tokens are in use."""
        return sum(len(tokens) for tokens in self._tokens.values())

    def held(self, key: Hashable) -> Hashable:
        """Return a key as it is to be held: itself, or its token.

        Raises:
            Exception: what the hash or equality of the key raises; nothing has changed then.
        """
        if type(key) in _PLAIN or _is_lasting(key):
            return key
        number = hash(key)
        for each in tuple(self._tokens.get(number, ())):  # a copy: the equality of a key is code of the user
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
    """Return a text that is the same for equal keys in all processes: the key's ``repr``, or a digest.

    There is a digest of a long one, and of one with what a server may not take as a text, or takes as the end of it.
    """
    text = repr(given_key(key))
    if len(text) <= _TEXT_MAX and text.isprintable():
        return text
    return f"sha256:{sha256(text.encode(errors='surrogatepass')).hexdigest()}"


def _is_lasting(key: Any) -> bool:
    """Return True if only hashes and equalities of built-in types are asked for a key."""
    kind: Any = type(key)
    if kind in _PLAIN:
        return True
    group: Any = tuple if isinstance(key, tuple) else frozenset if isinstance(key, frozenset) else None
    if group is None:
        return kind.__hash__ in _HASHES and kind.__eq__ in _EQUALITIES
    is_own = kind.__hash__ is not group.__hash__ or kind.__eq__ is not group.__eq__
    return not is_own and all(map(_is_lasting, group.__iter__(key)))
