"""The way to an authority: what carries the calls of a process, and what a refusal is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor._core.fleet.protocol import Reply, Request
    from ratelimited_executor._core.fleet.tickets import TicketCall, TicketReply

__all__ = ["RefusedError", "Transport", "is_refusal", "reason_of"]


class RefusedError(Exception):
    """The authority has answered, and refuses the call.

    Args:
        reason: what it says.
        remedy: what to do about it; empty if that is not known.
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
            RefusedError: if the authority answers, and lets nobody in as things are.
        """
        ...

    async def call(
        self, calls: Sequence[tuple[str, Request | TicketCall]]
    ) -> Sequence[Reply | TicketReply | Exception]:
        """Send requests by the names of their executors in one message; return the replies in order.

        Where the authority refuses one, an exception is in its place; it raises if there was no answer at all, or a
        :class:`RefusedError` for all of them.
        """
        ...

    async def aclose(self) -> None:
        """Release the opened resources."""
        ...


def is_refusal(error: Exception) -> bool:
    """True if the authority is there and refuses."""
    return isinstance(error, RefusedError)


def reason_of(error: Exception) -> str:
    """Return in words why a call has failed."""
    return str(error) if is_refusal(error) else f"{type(error).__name__}: {error}"
