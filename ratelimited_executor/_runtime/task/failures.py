"""An exception that is kept, and raised more than once.

Raising appends the frames that it passes to the traceback of the exception, and never removes any. An exception that is
raised again and again would keep the frames of all who have received it, with their local variables. So each time it is
raised with the traceback that it had when it was kept, as ``asyncio.Future`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Failure"]


class Failure:
    """A kept exception, to be raised as ``raise failure.again()``."""

    __slots__ = ("_traceback", "error")

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self._traceback: TracebackType | None = error.__traceback__

    def again(self) -> BaseException:
        """Return the exception, with the traceback that it had at first."""
        return self.error.with_traceback(self._traceback)
