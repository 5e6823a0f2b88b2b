"""Untrusted values as text that is safe to show on a terminal, on a page, in a log and in an error."""

from __future__ import annotations

from typing import Final

__all__ = ["int_of_digits", "shown", "visible"]

_DIGITS_MAX: Final = 4000  # of an integer: Python refuses to convert more than 4,300
_SHOWN_MAX: Final = 100  # characters of a value in an error


def visible(text: str, keep: str = "") -> str:
    r"""Return a text with each control or invisible character replaced by an escape.

    Among these are the characters that reverse the order of others ("bidi" overrides).

    Args:
        text: the text.
        keep: characters that stay.

    >>> print(visible("mail\x1b[2J\nsms, größer"))
    mail\x1b[2J\nsms, größer
    >>> print(visible("invoice\u202efdp.exe"))
    invoice\u202efdp.exe
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text
    )


def shown(value: object) -> str:
    """Return a value as an error quotes it: its ``repr``, shortened.

    >>> shown("5/fortnight"), shown("9" * 9000) == f"'{'9' * 99}… (9,002 characters)"
    ("'5/fortnight'", True)
    """
    try:
        text = repr(value)
    except ValueError:  # a number with an integer of too many digits
        return f"a number of more than {_DIGITS_MAX:,} digits"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}… ({len(text):,} characters)"


def int_of_digits(text: str) -> int:
    """Return the integer that a text of digits writes.

    Raises:
        ValueError: if there are too many digits.
    """
    if len(text) > _DIGITS_MAX:
        raise ValueError(f"an integer has at most {_DIGITS_MAX:,} digits, got one of {len(text):,}")
    return int(text)
