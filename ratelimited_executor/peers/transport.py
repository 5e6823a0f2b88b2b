"""The connection to an authority: the carrier of a process's calls, and refusals."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratelimited_executor._core.fleet.ticket_calls import TicketCall, TicketReply

__all__ = ["LOGGER", "REPEAT_SECONDS", "RefusedError", "SeldomLog", "Transport", "is_refusal", "reason_of"]

LOGGER: Final = logging.getLogger("ratelimited_executor")

REPEAT_SECONDS: Final = 60.0  # before the same is logged once more


class RefusedError(Exception):
    """The authority has answered, and refuses the call.

    Args:
        reason: the authority's words.
        remedy: what to do about it; empty if not known.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason


class Transport(Protocol):
    """Carries calls to the authority."""

    async def connect(self) -> None:
        """Make sure that the next call needs no more than one message.

        Raises:
            RefusedError: if the authority answers, but refuses the connection.
        """
        ...

    async def call(self, calls: Sequence[tuple[str, TicketCall]]) -> Sequence[TicketReply | Exception]:
        """Send requests by executor name in one message; return the replies in order.

        A refused request has an exception in its place. Raises if there was no answer at all, or a
        :class:`RefusedError` if all requests were refused.
        """
        ...

    async def aclose(self) -> None:
        """Release the opened resources."""
        ...


def is_refusal(error: Exception) -> bool:
    """True if the authority answered and refused."""
    return isinstance(error, RefusedError)


def reason_of(error: Exception) -> str:
    """Return the reason of a failed call in words, on one line: some drivers use several."""
    text = " ".join(str(error).split())
    return text if is_refusal(error) else f"{type(error).__name__}: {text}"


class SeldomLog:
    """Logs the same text at most once a minute, and then says how often it was left out.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}  # when a text was logged last, and how often not since

    def warn(self, text: str) -> None:
        """Log a warning."""
        self._log(logging.WARNING, text)

    def exception(self, text: str) -> None:
        """Log an error with the traceback of the exception being handled."""
        self._log(logging.ERROR, text, is_error=True)

    def _log(self, level: int, text: str, *, is_error: bool = False) -> None:
        now = self._clock()
        when, count = self._logged.get(text, (-math.inf, 0))
        if now - when < REPEAT_SECONDS:
            self._logged[text] = when, count + 1
            return
        self._logged[text] = now, 0
        more = f" ({count} times more since {now - when:.0f} s ago)" if count else ""
        LOGGER.log(level, "%s%s", text, more, exc_info=is_error)
