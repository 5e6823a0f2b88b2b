"""Untrusted text, safe to show on a terminal, on a page and in a log."""

from __future__ import annotations

__all__ = ["visible"]


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
