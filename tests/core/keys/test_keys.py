"""Keys of users are held as one token for equal keys, which asks them nothing later and keeps nothing."""

import enum
import gc
from collections import namedtuple

import pytest

from ratelimited_executor._core.keys.keys import KeyTable, given_key, text_of_key


class Bad(Exception):
    pass


class Key:
    """A key whose hash and equality may raise."""

    is_bad = False

    def __init__(self, number) -> None:
        self.number = number

    def __hash__(self):
        if self.is_bad:
            raise Bad
        return self.number % 2

    def __eq__(self, other):
        if self.is_bad:
            raise Bad
        return isinstance(other, Key) and self.number == other.number


class Name(enum.StrEnum):
    ANN = "ann"


class Level(enum.IntEnum):
    HIGH = 3


Pair = namedtuple("Pair", "left right")


def token_count(keys: KeyTable) -> int:
    return sum(map(len, keys._tokens.values()))


@pytest.mark.parametrize(
    "key",
    [None, "a", 1, 2.5, b"b", True, ("a", ("b", 1)), frozenset({"a"}), Pair("a", 1), Name.ANN, Level.HIGH, object()],
    ids=lambda key: type(key).__name__,
)
def test_key_of_a_builtin_hash_is_held_as_it_is(key):
    """A key with a built-in hash is held as it is, so that a member of a StrEnum equals its text."""
    keys = KeyTable()
    assert keys.held(key) is key is given_key(key)
    assert token_count(keys) == 0


@pytest.mark.parametrize("wrap", [lambda key: key, lambda key: ("a", key)], ids=["itself", "in a tuple"])
def test_equal_keys_share_one_token(wrap):
    """Equal keys share one token, which asks them nothing any more, and shows the first of them."""
    keys = KeyTable()
    first = wrap(Key(1))
    token = keys.held(first)
    assert keys.held(wrap(Key(1))) is token
    assert keys.held(token) is token
    others = [keys.held(wrap(Key(number))) for number in (2, 3, 5)]
    assert len({token, *others}) == 4
    assert given_key(token) is first
    assert repr(token) == repr(first)


def test_token_that_nothing_holds_is_forgotten(monkeypatch):
    """A token without references is forgotten, without asking its key, which may be broken by then."""
    keys = KeyTable()
    tokens = [keys.held(Key(number)) for number in range(6)]
    monkeypatch.setattr(Key, "is_bad", True)
    del tokens[:2]
    gc.collect()
    assert token_count(keys) == 4
    tokens.clear()
    gc.collect()
    assert token_count(keys) == 0


def test_key_that_cannot_be_told_changes_nothing(monkeypatch):
    """A key whose hash or equality raises changes nothing, and the error goes to the caller."""
    keys = KeyTable()
    token = keys.held(Key(1))
    monkeypatch.setattr(Key, "is_bad", True)
    with pytest.raises(Bad):
        keys.held(Key(1))
    with pytest.raises(TypeError, match="unhashable"):
        keys.held((1, []))
    monkeypatch.setattr(Key, "is_bad", False)
    assert token_count(keys) == 1
    assert keys.held(Key(1)) is token


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 1000, "\ud800" * 1000, "line\nline"])
def test_text_of_a_key_is_one_that_a_server_takes(text: str) -> None:
    """The text of a key is valid for a server, whatever its ``repr`` returns."""

    class Odd:
        def __repr__(self) -> str:
            return text

    found = text_of_key(Odd())
    assert found.isprintable()
    assert len(found) <= 200
    assert found == text_of_key(Odd())
