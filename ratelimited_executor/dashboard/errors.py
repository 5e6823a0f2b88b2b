"""Errors of a page, as it shows them."""

from __future__ import annotations

from ratelimited_executor._core.urls import masked_text

__all__ = ["PageError", "unusable"]


def unusable(error: Exception) -> str:
    """Return why a store could not do something, by an error of it."""
    return f"The store cannot be used: {masked_text(str(error)) or type(error).__name__}"


class PageError(Exception):
    """A page cannot be shown, or nothing be changed, and why.

    Args:
        status: the HTTP status.
        message: the text that the page shows.
        back: the address of the page to return to; None for the list.
        field: the name of the field of a form that the message is about; empty if it is about none.
        question: what the button says that makes the change all the same; empty if nothing can.
    """

    def __init__(
        self, status: int, message: str, *, back: str | None = None, field: str = "", question: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.back = back
        self.field = field
        self.question = question
