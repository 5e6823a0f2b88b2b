"""The effect of a start: the moment at which the user's code begins.

Most starts take effect at once. A call for a worker thread, a waiter for a permit, or a coroutine whose first step comes
later, takes effect some time after the decision to start it. Each limit that must know when leaves a :class:`Deferred`
in the start's *effects*, a list. Just before the user's code runs, :func:`begin` checks them all: a limit of this process
counts the start from then on; a permit that a group has granted may have lapsed meanwhile, and then nothing begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PENDING", "Deferred", "Effects", "PendingEntry", "begin", "void"]

PENDING: Final = 1 << 62  # the time of a start that has not taken effect yet: later than all others


class Deferred(Protocol):
    """The part of one limit in a start without an effect so far."""

    def may_begin(self, now_ns: int) -> bool:
        """True if the start may still take effect; from any thread."""
        ...

    def begin(self, now_ns: int) -> None:
        """Record that the start takes effect now; from any thread, once or more."""
        ...

    def lapse(self, now_ns: int) -> None:
        """Record that the start never takes effect; its receipts are settled to nothing afterwards."""
        ...


Effects: TypeAlias = "list[Deferred]"


class PendingEntry:
    """The entry of a start in the log of a window: it counts as the latest until its time is known.

    Args:
        entry: its time and its amount.
    """

    __slots__ = ("_entry",)

    def __init__(self, entry: list[int]) -> None:
        self._entry = entry

    def may_begin(self, now_ns: int) -> bool:  # noqa: ARG002  # a window waits for as long as it takes
        """Return True."""
        return True

    def begin(self, now_ns: int) -> None:
        """Set the time of the entry, unless it has one."""
        if self._entry[0] == PENDING:
            self._entry[0] = now_ns

    lapse = begin  # its amount will be 0


def begin(effects: Sequence[Deferred], now_ns: int) -> bool:
    """Let a start take effect now, from any thread; return False, changing nothing, if one of its permits has lapsed."""
    for each in effects:
        if not each.may_begin(now_ns):
            return False
    for each in effects:
        each.begin(now_ns)
    return True


def void(effects: Sequence[Deferred], receipts: Sequence[tuple[str, Any, Any]], now_ns: int) -> None:
    """Give back all that a start has taken, because it never takes effect.

    Args:
        effects: those of the start.
        receipts: all its receipts, as (resource, limit, receipt); some may appear twice.
        now_ns: the time.
    """
    for each in effects:
        each.lapse(now_ns)
    for _, taken, receipt in receipts:
        taken.settle(receipt, 0, now_ns)
