"""The call site of a callback, kept while the event loop is in debug mode, for the report of its failure."""

from __future__ import annotations

import sys
from asyncio.format_helpers import extract_stack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from traceback import StackSummary

__all__ = ["SitedCall", "with_call_site"]


class SitedCall:
    """A callback that knows where it was scheduled.

    Args:
        func: the callback.
        source_traceback: where it was scheduled.
    """

    __slots__ = ("func", "source_traceback")

    def __init__(self, func: Callable[..., object], source_traceback: StackSummary) -> None:
        self.func = func
        self.source_traceback = source_traceback

    def __call__(self, *args: Any) -> object:
        return self.func(*args)


def with_call_site(loop: asyncio.AbstractEventLoop, callback: Any) -> Any:
    """Return a callback that knows the caller's caller, which scheduled it; unchanged outside debug mode."""
    if not loop.get_debug() or not callable(callback) or isinstance(callback, SitedCall):
        return callback
    return SitedCall(callback, extract_stack(sys._getframe(2)))  # noqa: SLF001  # as asyncio does
