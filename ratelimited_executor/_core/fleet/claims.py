"""The permits of a group that one start has taken, until the user's code begins.

A permit may be used for a short time. It is taken when a start is decided, and checked again when the user's code begins,
which may be later: a call waits for a thread, or the loop was held up. By then the permit may have lapsed.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Lender", "PermitClaim"]


class Lender(Protocol):
    """The holder of a group's permits in this process.

    Attributes:
        generation: grows whenever earlier permits become void.
    """

    generation: int

    def is_usable(self) -> bool:
        """True while our own clock has run without a break; from any thread."""
        ...

    def started(self, receipt: Any, at_ns: int) -> None:
        """Note that a start has taken effect, at a time of ours or before; from any thread.

        It may be called again for the same start, with a later time, which tells nothing new.
        """
        ...

    def lapsed(self, receipt: Any) -> None:
        """Record that permits which were taken were not used in time."""
        ...


class PermitClaim:
    """The permits of one start, as a part of its effects.

    Args:
        lender: the holder that they come from.
        receipt: identifies them to it.
        until_ns: the last moment at which they may be used, in our time.
    """

    __slots__ = ("_generation", "_lender", "_receipt", "_until_ns")

    def __init__(self, lender: Lender, receipt: Any, until_ns: int) -> None:
        self._lender = lender
        self._generation = lender.generation
        self._receipt = receipt
        self._until_ns = until_ns

    def may_begin(self, now_ns: int) -> bool:
        """True if they may be used now; from any thread."""
        lender = self._lender
        return now_ns <= self._until_ns and self._generation == lender.generation and lender.is_usable()

    def begin(self, now_ns: int) -> None:
        """Report the start; from any thread."""
        self._lender.started(self._receipt, now_ns)

    def lapse(self, now_ns: int) -> None:  # noqa: ARG002  # the signature of a deferred part
        """Count them as not used in time."""
        self._lender.lapsed(self._receipt)
