"""Permit grids under ``Strictness.EXACT``: never more starts than the permits of the rate in any window of its ``per``.

The window. A rate of N permits per W seconds admits at most N starts in any half-open window [a, a + W). If the number
of permits is not an integer, N is the next integer and W the time in which N permits come up: 2.5 a second are at most
3 in any 1.2 seconds.

A single process follows two rules. The grid of numbered permits keeps the pace even. A log of the starts keeps the
window: a permit is usable only while fewer than N starts lie in the last W. A start is in the log from its decision on,
without a time until it takes effect: a coroutine waits for its first step, a waiter has not resumed yet, a call waits
for a thread. It counts from the moment of its effect, or from a later one.

Law: no window [a, a + W) holds more than N effects. Proof: suppose one holds N + 1. Of these starts, let the one
decided last be decided at t, which is not after its own effect, so t < a + W. Each of the other N was decided by then.
If it had not taken effect, it was counted. If it had, its effect was at a > t - W or later, and it was counted as well.
So N starts were counted, and the last one was not admitted. The only assumption on clocks is that they do not run
backwards; stalls, blocked loops and changes of the rate enter only as later times. A start of cost c counts as c
starts, and is admitted where a start of cost 1 is: costs in a window sum to at most N + c - 1, c the cost of the last.

The slip. A start that is late by d (a timer, a busy loop) makes the start N permits later wait for d as well. On a
fixed grid, the permits of each number modulo N would accumulate their own lateness until they lapse. So when the log
holds a permit back from p to t, the whole grid moves by t - p: the pace stays even, and the lateness of a start is lost
once, not each time. A start that takes the newest permit late, after a pause, and the first start of a backlog move the
grid in the same way: the next permit comes up 1 / rate after it. Price: the growth of the worst lateness in each window, relative to W.

A share of the grid cannot know the starts of the other peers, so it keeps the window by distance. Permits are
W (1 + g) / N apart, and each is used within g W of its time or not at all; then N + 1 starts take more than W. g is at
most 1 %.

Rejected: a single process with a grid stretched by g and no log (the newest permit would have to lapse, so an idle
executor would wait for the next one); a log without a grid (``Window``: bursts); a minimum gap between starts (every
late timer costs its lateness, not only the worst of a window).

Cost: a log entry for each start of a coroutine, and for each time of other starts, at most 4096 of the latter; a few
integer operations per start more than the grid.
Source: derived here; tests/core/permits/test_exact.py checks the law on random histories.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Self

from ratelimited_executor._core.limits.window import WindowLimit
from ratelimited_executor._core.permits.permits import PermitGrid, Piece
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._kernel.choice import used_there
from ratelimited_executor._kernel.sizes import CALL_NS as CALL_NS
from ratelimited_executor._kernel.timeline import NS

if TYPE_CHECKING:
    from ratelimited_executor._core.limits.effects import Effects

__all__ = ["CALL_NS", "ExactGrid", "ExactShare", "window_of"]

_GUARD: Final = Fraction(1, 100)  # the largest g, by which peers that cannot see each other's starts stretch the grid


def window_of(rate: Rate) -> Rate:
    """Return the window of a rate: a whole number of permits, and the time in which they come up."""
    ratio = rate.per_second
    if not ratio:
        return rate
    permits = -(-Fraction(rate.permits) // 1)
    return Rate(permits, per=permits / ratio)


@used_there
class ExactGrid(PermitGrid):
    """The numbered permits of one rate, and the starts of the last window.

    Args:
        rate: the rate in force from ``now_ns`` on.
        slack_ns: how long after its time a permit may be taken.
        now_ns: the time on the timeline; permits before it are void, except the newest.
        phase: as of :class:`PermitGrid`, until the grid slips.
    """

    __slots__ = ()

    _log: WindowLimit

    counts_effects: Final = True  # type: ignore[misc]  # a constant of the class

    def __init__(self, rate: Rate, *, slack_ns: int, now_ns: int, phase: float = 0.0) -> None:
        super().__init__(rate, slack_ns=slack_ns, now_ns=now_ns, phase=phase)
        self._log = WindowLimit(window_of(rate), reading_ns=0)

    def set_rate(self, rate: Rate, now_ns: int) -> None:
        """Put ``rate`` in force: starts in the last window of the new rate count against it at once."""
        super().set_rate(rate, now_ns)
        self._log.change_to(WindowLimit(window_of(rate), reading_ns=0), now_ns)

    def usable(self, now_ns: int) -> int:
        """Count the permits that may be taken at ``now_ns``; they stay usable until :attr:`usable_until_ns`."""
        count = self._usable_on_grid(now_ns)
        self._looked_ns = now_ns
        if not count or not self._pieces:
            return count
        log = self._log
        if log.permits - log.used < count:  # else there is room enough without removing old starts
            room = log.count(now_ns)
            if room < count:
                count = max(room, 0)
                self._last = self._first + count
        return count

    def next_fresh_time(self, now_ns: int) -> int | None:
        """Return when the next permit may be taken by a waiting task; call only where :meth:`usable` returned 0.

        If the window holds back a permit that has come up, the grid slips to the time at which the window admits it.
        """
        if not self._pieces or not self._usable_on_grid(now_ns):
            return super().next_fresh_time(now_ns)
        when = self._log.when(1, now_ns)
        assert when is not None, self.rate
        self._slip(self._first, when)
        return when

    def take(self, count: int = 1, now_ns: int = 0) -> None:
        """Take some of the permits that :meth:`usable` counted, for starts decided at ``now_ns``."""
        if not self._pieces or not count:
            return
        if self._void_to is not None:  # the newest permit, late: the pace continues from here
            self._slip(self._first, self._looked_ns)
        self._next = self._first = self._first + count
        self.open_receipt = self._log.take(count, now_ns or self._looked_ns)

    def begin_at(self, time_ns: int) -> None:
        """Move the grid so that its newest permit comes up at a time; do nothing if that permit was taken."""
        if self._pieces and time_ns >= self._pieces[-1].start:
            number = self._pieces[-1].floor(time_ns)
            if number >= self._next:
                self._slip(number, time_ns)

    def take_effect(self, now_ns: int) -> None:
        """Record that the starts decided last have taken effect by ``now_ns``."""
        receipt = self.open_receipt
        if receipt is not None:
            self.open_receipt = None
            entry = receipt[0]
            now_ns = min(now_ns, entry[0] + CALL_NS)
            if entry[1] == receipt[1] and entry[0] >= 0:
                entry[0] = now_ns
            else:  # starts at one time share an entry
                self._log.take_effect(receipt, now_ns)

    def defer(self, effects: Effects) -> None:
        """Defer the effect of the last start until ``effects`` begin."""
        receipt = self.open_receipt
        if receipt is not None:
            self.open_receipt = None
            self._log.defer(receipt, effects)

    def charge(self, cost: int) -> list[Any]:
        """Set the total cost of the last start, which counts in its window."""
        receipt: list[Any] = super().charge(cost)
        entry = self.open_receipt
        if entry is not None:
            self._log.settle(entry, cost, self._looked_ns)
        return [*receipt, entry]

    def settle(self, receipt: list[Any], cost: int, now_ns: int) -> None:
        """Correct the cost of a start: in the grid as far as permits have not come up, and in the window."""
        entry = receipt.pop()
        super().settle(receipt, cost, now_ns)
        receipt.append(entry)
        if entry is not None:
            self._log.settle(entry, cost, now_ns)

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Count the permits that can be taken in [``now_ns``, ``end_ns``), if none lapses."""
        if not self._pieces or not self._is_late(now_ns):
            return super().count_until(now_ns, end_ns)
        _, _, step, unit = self._pieces[-1]  # the grid continues from here once the newest permit is taken
        return 1 + max(0, end_ns - 1 - now_ns) * step // unit

    def time_after(self, now_ns: int, count: int) -> int | None:
        """Return when the ``count``-th permit from now can be taken; None if never at this rate."""
        when = super().time_after(now_ns, count)
        if when is None or not self._pieces:
            return when
        if self._is_late(now_ns):
            _, _, step, unit = self._pieces[-1]
            when = now_ns - (-(count - 1) * unit // step)
        return max(when, self._log.when_count(count, now_ns) or 0)

    def trial(self) -> Self:
        """Return a copy for questions about the future."""
        other = super().trial()
        other._log = self._log.trial()  # noqa: SLF001  # a copy of itself
        other.open_receipt = None  # only the original reports effects
        return other

    def _slip(self, number: int, when_ns: int) -> None:
        """Move the grid so that a permit comes up at a time, and later permits follow at their distance."""
        self._void_to = None
        self._next = max(self._next, number)
        _, _, step, unit = self._pieces[-1]
        self._pieces = [Piece(when_ns, number * unit, step, unit)]


class ExactShare(PermitGrid):
    """The permits of one of several peers that keep a common window without knowing each other's starts.

    Args:
        rate: the rate of all peers together.
        slack_ns: the maximum time after a permit's time within which it may be taken.
        reserve_ns: the part of that reserved for the time from a decision to its effect, at most a quarter.
        now_ns: the time on the timeline.
        peers: how many peers share the grid.
        rank: the rank of this peer.
        phase: as of :class:`PermitGrid`, the same for all peers.
    """

    __slots__ = ("_reserve_ns", "_slack_ns_max")

    def __init__(
        self, rate: Rate, *, slack_ns: int, reserve_ns: int, now_ns: int, peers: int, rank: int, phase: float = 0.0
    ) -> None:
        self._slack_ns_max = slack_ns
        self._reserve_ns = reserve_ns
        super().__init__(rate, slack_ns=slack_ns, now_ns=now_ns, peers=peers, rank=rank, phase=phase)

    def _step_and_unit(self, rate: Rate) -> tuple[int, int]:
        """Return the rate of a grid whose permits are further apart, by the part g that one may be late."""
        ratio = rate.per_second
        assert ratio is not None
        if ratio:
            width_ns = window_of(rate).per * NS
            late_ns: Fraction = min(Fraction(self._slack_ns_max), width_ns * _GUARD)
            self.slack_ns = max(1, int(late_ns - min(late_ns / 4, Fraction(self._reserve_ns))))
            ratio /= 1 + late_ns / width_ns
        return ratio.numerator, ratio.denominator * NS
