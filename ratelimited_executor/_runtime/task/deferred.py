"""A start whose effect comes later than its decision: in a thread, after a turn of the loop, in a waiter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.limits.effects import begin, void

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextvars import Context

    from ratelimited_executor._core.limits.effects import Effects

__all__ = ["DeferredStart", "LapsedStartError"]


class DeferredStart:
    """A decided start that has not taken effect.

    Args:
        effects: the parts of the limits that wait for its effect.
        receipts: all its receipts, as (resource, limit, receipt).
        now_ns: returns the time; from any thread.
        resumed: the awaitable that runs it, and the context of that; None if its call has not been made.
    """

    __slots__ = ("_effects", "_now_ns", "_receipts", "resumed")

    def __init__(
        self,
        effects: Effects,
        receipts: Sequence[tuple[str, Any, Any]],
        now_ns: Callable[[], int],
        resumed: tuple[Any, Context] | None = None,
    ) -> None:
        self._effects = effects
        self._receipts = receipts
        self._now_ns = now_ns
        self.resumed = resumed

    def begin(self) -> bool:
        """Let it take effect, just before the user's code runs, in any thread; False if its permits have lapsed.

        After False the start must be voided.
        """
        return begin(self._effects, self._now_ns())

    def void(self) -> None:
        """Give back what it has taken: it never takes effect."""
        void(self._effects, self._receipts, self._now_ns())

    def drop(self) -> None:
        """Give up a start that will not begin; it counts all the same, unless its permits have lapsed."""
        if not self.begin():
            self.void()


class LapsedStartError(Exception):
    """The permits of a start have lapsed before it took effect: its task waits anew. Never seen by users.

    Args:
        start: the start.
    """

    def __init__(self, start: DeferredStart) -> None:
        super().__init__("a start has lapsed")
        self.start = start
