"""Make untrusted text safe to show on a terminal."""

from __future__ import annotations

__all__ = ["visible"]


def visible(text: str) -> str:
    r"""Return a text with each control or invisible character replaced by an escape.

    >>> print(visible("mail\x1b[2J\nsms, größer"))
    mail\x1b[2J\nsms, größer
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
