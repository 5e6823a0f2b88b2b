"""URLs as they are shown to people: in errors, logs, reports and pages, without what is secret in them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["ENCODE", "is_secret", "masked", "masked_text"]

ENCODE: Final = "write '/', '#', '?', ':' and '@' in a user name or password percent-encoded, as urllib.parse.quote(password, safe='') does"
"""The remedy for a URL in which a user name or password ends too early."""
_HIDDEN: Final = "***"
_SECRET: Final = re.compile(
    r"auth|cookie|token|key|secret|signature|\bsig\b|passw|\bpass\b|pwd|\bjwt\b|session|credential", re.IGNORECASE
)
_BEGIN: Final = re.compile(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]+:)?(?://)?")  # a single letter is a drive
_VALUE: Final = re.compile(r"(?<=[?&;#])([^?=&;#]+)=([^&;#]*)")
_PAIR: Final = re.compile(r"(?i)\b(password|passfile|sslpassword)(\s*=\s*)(?:'(?:[^'\\]|\\.)*'?|\S+)")  # of a conninfo
_WITHIN: Final = (
    re.compile(  # a URL within a text, bounded for its speed; without the escape of a quote behind it, as JSON has it
        r"[A-Za-z][A-Za-z0-9+.-]{0,40}://(?:[^\s'\"<>\\]|\\+(?!['\"\\]))+"
    )
)
_TARGET: Final = re.compile(
    r"(?<![^\s'\"])/[^\s'\"<>?\\]*\?(?:[^\s'\"<>\\]|\\+(?!['\"\\]))+"
)  # a URL without its host, within a text
_ENCODED: Final = re.compile(r"%([0-9A-Fa-f]{2})")


def is_secret(name: str) -> bool:
    """True for the name of a header, or of a value in a URL, that is likely to hold a secret."""
    return _SECRET.search(_ENCODED.sub(lambda match: chr(int(match[1], 16)), name)) is not None


def masked(url: str) -> str:
    """Return a URL without user name and password, and without the values of names that are likely to hold secrets.

    A value that is a URL with such a name is hidden as a whole.

    Everything before the last ``@`` counts as user name and password: a password that should have been encoded and is
    not may contain any character. If that ``@`` is behind a ``?`` or ``#``, it may be in either, and nothing is shown.

    >>> masked("http://user:pa/ss@host:8000/items?page=2&api_key=abc")
    'http://***@host:8000/items?page=2&api_key=***'
    """
    begin = _BEGIN.match(url)
    assert begin is not None, "it matches an empty text"
    head, rest = url[: begin.end()], url[begin.end() :]
    if head.strip() and "@" in rest:
        before, _, rest = rest.rpartition("@")
        if "?" in before or "#" in before:
            return head + _HIDDEN
        rest = f"{_HIDDEN}@{rest}"
    rest = _VALUE.sub(_value_masked, rest)
    return head + rest if head.strip() else _PAIR.sub(rf"\1\2{_HIDDEN}", head + rest)


def masked_text(text: str) -> str:
    """Return a text, such as the message of an exception, whose URLs are masked, also those that begin with their path.

    >>> masked_text("no answer from 'redis://:secret@host/0' within 2 s")
    "no answer from 'redis://***@host/0' within 2 s"
    """
    for pattern, mark in ((_WITHIN, "://"), (_TARGET, "?")):
        text = pattern.sub(lambda match: masked(match[0]), text) if mark in text else text
    return text


def _value_masked(match: re.Match[str]) -> str:
    """Return ``name=value`` as it is shown."""
    name, value = match.groups()
    is_nested = "=" in value or "%3d" in value.lower()
    return f"{name}={_HIDDEN}" if is_secret(name) or (is_nested and is_secret(value)) else match[0]
