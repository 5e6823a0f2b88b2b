"""A steady pace combined with an exact window: the limit of a key or a resource under ``Strictness.EXACT``.

The pace is that of :class:`~.paced.PacedLimit`, which tolerates some lateness of a start; the window is that of
:class:`~.window.WindowLimit`, which tolerates none. The window is created at the first start, for an unused key needs
none. It has no margin: the effect of each start must be reported.

Law: never more than N starts in any window of W, for a rate of N permits per W seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ratelimited_executor._core.limits.paced import PACKED_COUNT, PacedLimit
from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits.exact import CALL_NS, window_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from ratelimited_executor._core.limits.effects import Effects
    from ratelimited_executor._core.permits.rates import Rate

__all__ = ["ExactPacedLimit"]


class ExactPacedLimit(PacedLimit):
    """The theoretical time of the next start, and the starts of the last window.

    Args:
        rate: starts over time.
        slack_ns: how late a start may be without delaying the next.
    """

    counts_effects: ClassVar[bool] = True  # as for its window
    __slots__ = ("_blank", "_window")

    def __init__(self, rate: Rate, *, slack_ns: int) -> None:
        self._window: WindowLimit | None = None
        super().__init__(rate, slack_ns=slack_ns)

    def unused(self) -> Self:
        """Return another limit of the same rate, with nothing taken."""
        other = super().unused()
        other._blank, other._window = self._blank, None  # noqa: SLF001  # a copy of itself
        return other

    def _set_rate(self, rate: Rate, now_ns: int) -> None:
        """Put another rate in force: starts in the last window count against it at once."""
        super()._set_rate(rate, now_ns)
        self._blank = WindowLimit(window_of(rate), reading_ns=0)
        if self._window is not None:
            self._window.change_to(self._blank, now_ns)

    def count(self, now_ns: int) -> int:
        """Count the starts of cost 1 that are admitted now."""
        count = super().count(now_ns)
        return count if self._window is None else max(0, min(count, self._window.count(now_ns)))

    def admits(self, cost: int, now_ns: int) -> bool:
        """True if a start is admitted now, whatever its cost."""
        if not super().admits(cost, now_ns):
            return False
        window, least = self._window, min(cost, 1)
        return window is None or window.permits - window.used >= least or window.admits(least, now_ns)

    def take(self, cost: int, now_ns: int) -> list[Any]:
        """Record a start."""
        receipt: list[Any] = super().take(cost, now_ns)
        if not self._step and self.rate.is_unlimited:
            return receipt
        if self._window is None:
            self._window = self._blank.unused()
        return [receipt, self._window.take(cost, now_ns)]

    def settle(self, receipt: list[Any], cost: int, now_ns: int) -> None:
        """Correct the cost of a start in the window, and in the pace as far as it is ahead of time."""
        if receipt and isinstance(receipt[0], list):
            pace, entry = receipt
            super().settle(pace, cost, now_ns)
            if self._window is not None:
                self._window.settle(entry, cost, now_ns)

    def take_effect(self, receipt: list[Any], now_ns: int) -> None:
        """Record that a start has taken effect by ``now_ns``."""
        if self._window is not None and receipt and isinstance(receipt[0], list):
            entry = receipt[1]
            self._window.take_effect(entry, min(now_ns, entry[0][0] + CALL_NS))

    def defer(self, receipt: list[Any], effects: Effects) -> None:
        """Defer the effect of a start until ``effects`` begin."""
        if self._window is not None and receipt and isinstance(receipt[0], list):
            self._window.defer(receipt[1], effects)

    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when a start is admitted, whatever its cost."""
        when = super().when(cost, now_ns)
        if when is None or self._window is None or cost:
            return when
        free_ns = self._window.when(0, now_ns)
        return None if free_ns is None else max(when, free_ns)

    def when_count(self, count: int, now_ns: int) -> int | None:
        """Return when the ``count``-th start of cost 1 from now is admitted."""
        when = super().when_count(count, now_ns)
        if when is None or self._window is None:
            return when
        free_ns = self._window.when_count(count, now_ns)
        return None if free_ns is None else max(when, free_ns)

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Estimate how many starts of cost 1 are admitted in [``now_ns``, ``end_ns``)."""
        count = super().count_until(now_ns, end_ns)
        return count if self._window is None else min(count, self._window.count_until(now_ns, end_ns))

    def idle_at(self, now_ns: int) -> int | None:
        """Return when pace and window admit whatever the pace alone will admit.

        That is long before the window is empty. Let the pace be overdue by more than its slack at t, and the starts at
        e or later, for each e, cost no more than (t - e) / gap. From t on, the pace admits the next ones at least a gap
        times their costs apart. So at e + W, when N gaps have passed since e, those before the last cost N - 1 at most,
        together with those at e or later: the window holds none of them back.
        """
        when = super().idle_at(now_ns)
        if when is None or self._window is None:
            return when
        owed_at = self._window.owed_at(self._step, self._unit, now_ns) if self._step else None
        return None if owed_at is None else max(when, owed_at)

    def pack(self) -> tuple[int, ...] | None:
        """Return the numbers of the pace, then those of the window."""
        window = () if self._window is None else self._window.pack()
        pace = super().pack()
        return None if pace is None or window is None else pace + window

    def unpack(self, numbers: Sequence[int], now_ns: int) -> None:
        """Adopt the state of another limit of this class."""
        super().unpack(numbers, now_ns)
        if len(numbers) > PACKED_COUNT:
            self._window = self._blank.unused()
            self._window.unpack(numbers[PACKED_COUNT:], now_ns)

    def trial(self, time_ns: Callable[[], int]) -> Self:
        """Return a copy for questions about the future."""
        other = super().trial(time_ns)
        other._window = None if self._window is None else self._window.trial(time_ns)  # noqa: SLF001  # a copy of itself
        return other
