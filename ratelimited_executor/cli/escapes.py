"""Text of others, as it may be shown on a terminal."""

from __future__ import annotations

__all__ = ["visible"]


def visible(text: str) -> str:
    r"""Return a text with an escape instead of each character that a terminal would obey, or not show.

    >>> print(visible("mail\x1b[2J\nsms, größer"))
    mail\x1b[2J\nsms, größer
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
