"""Never more than N in any window of a given length: an exact sliding log.

Law: the costs of the starts in any window of length ``per`` sum to at most N. A start of cost c at t is admitted if the
starts after t - per - margin cost at most N - c. The log holds (time, amount) pairs, so nothing is approximated.
Counters of two fixed windows, which most limiters use, admit up to 2 N in a window across their border.

``margin`` is how much later than its decision a start may take effect: a coroutine's first line runs in the next turn of
the loop. The earlier of two starts may be late by the margin while the later one is not. A start known to be later than
the margin counts from its effect.

A deferred start (:meth:`WindowLimit.defer`) has a time later than all others until its effect is known. Entries leave
the log in the order of the decisions, so a start may count for as long as an earlier decided one, but never shorter. A
start without a known effect is set aside when its turn to leave comes, so that it does not keep the others in the log.

The log has an entry for each time of a start, up to 4096 for N up to 4096. For a larger N, all starts within 1/4096 of
the window share an entry with the latest of their times: never more than N starts, and at most 1/4096 of N unused.
Deferred starts have an entry each.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ratelimited_executor._core.limits.effects import PENDING, PendingEntry
from ratelimited_executor._core.limits.limit import Limit
from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._kernel.fields import WindowFields, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from ratelimited_executor._core.limits.effects import Effects
    from ratelimited_executor._core.permits.rates import Rate

__all__ = ["WindowLimit"]

_ENTRY_COUNT_MAX: Final = 4096
# Added to the margin: a window with both ends is a nanosecond longer than the distance that it keeps between two
# starts, and times given as float seconds since the epoch are exact to a quarter of a microsecond.
_READING_NS: Final = 1000
_LEFT: Final = -1  # the time of an entry that has left the log
_UNCHARGED: Final = -2  # less the time of a start of cost 0


class WindowLimit(WindowFields, Limit):
    """The starts of the last window.

    Args:
        rate: a whole number of permits in any window of its ``per``.
        margin_ns: how much later than its decision a start may take effect.
        reading_ns: the addition to the margin for inexact times.
    """

    counts_effects: ClassVar[bool] = True  # the remote service's view counts
    __slots__ = ("_edge_ns", "_leaving", "_reading_ns", "rate")

    def __init__(self, rate: Rate, *, margin_ns: int = 0, reading_ns: int = _READING_NS) -> None:
        self.rate = rate
        self._margin_ns = margin_ns
        self._reading_ns = reading_ns
        self._log = deque()  # [time, amount], in the order of the decisions
        self._pending = []  # entries set aside: without a time when their turn to leave the log came
        self.used = self._leaving = 0
        self._edge_ns: int | None = None  # starts before this time leave by the end asked about last, and cost _leaving
        self.permits = self._width_ns = self._grain_ns = 0
        self._set_rate(rate, 0)

    def unused(self) -> Self:
        """Return a window of the same rate without any start."""
        other = copy(self)
        other._log, other._pending, other.used, other._edge_ns = deque(), [], 0, None  # noqa: SLF001  # a copy of itself
        return other

    def _set_rate(self, rate: Rate, now_ns: int) -> None:
        """Put another rate in force; starts in the old window count in the new one.

        A rate of 0 pauses, and an infinite rate lifts the limit: neither has a window, and the old window is kept.
        """
        self.count(now_ns)
        self._edge_ns = None
        self.rate = rate
        self.permits = UNLIMITED if rate.is_unlimited else int(rate.permits)
        if self._width_ns and (rate.is_zero or rate.is_unlimited):
            return
        self._width_ns = -int(-rate.per * 1_000_000_000 // 1) + self._margin_ns + self._reading_ns
        is_coarse = _ENTRY_COUNT_MAX < self.permits < UNLIMITED
        self._grain_ns = self._width_ns // _ENTRY_COUNT_MAX if is_coarse else 0

    def change_to(self, other: Self, now_ns: int) -> None:
        """Put the rate of another window in force."""
        self._set_rate(other.rate, now_ns)

    @property
    def cost_max(self) -> int | None:
        """N."""
        return None if self.permits == UNLIMITED else self.permits

    def count(self, now_ns: int) -> int:
        """Count the starts of cost 1 that are admitted now; negative if costs were settled to more than N."""
        if self._pending:
            self._take_back()
        log, edge = self._log, now_ns - self._width_ns
        while log:
            entry = log[0]
            time = entry[0]
            if time <= edge:
                self.used -= entry[1]
                self._leaving -= entry[1]
                entry[0] = _LEFT
            elif time == PENDING:
                self._pending.append(entry)
            else:
                break
            log.popleft()
        return UNLIMITED if self.permits == UNLIMITED else self.permits - self.used

    def take(self, cost: int, now_ns: int) -> list[Any]:
        """Record a start: O(1). One of cost 0 has no entry, so that any number of them takes no memory."""
        if self.permits == UNLIMITED:
            return [[_LEFT, 0], cost]
        if not cost:
            return [[_UNCHARGED - now_ns, 0], 0]
        self.used += cost
        last = self._log[-1] if self._log else None
        if last is not None and (
            PENDING > last[0] >= now_ns or (self._grain_ns and last[0] // self._grain_ns == now_ns // self._grain_ns)
        ):
            if last[0] < now_ns:
                last[0], self._edge_ns = now_ns, None
            last[1] += cost
            return [last, cost]
        entry = [now_ns, cost]
        self._log.append(entry)
        return [entry, cost]

    def settle(self, receipt: list[Any], cost: int, now_ns: int) -> None:
        """Correct the cost of a start, unless it has left the window."""
        entry, charged = receipt
        if entry[0] >= 0:
            entry[1] += cost - charged
            self.used += cost - charged
            self._edge_ns = None
            receipt[1] = cost
        elif entry[0] <= _UNCHARGED and _UNCHARGED - entry[0] > now_ns - self._width_ns:
            receipt[:] = self.take(cost, now_ns)

    def take_effect(self, receipt: list[Any], now_ns: int) -> None:
        """Record that a start has taken effect only now; if it is later than the margin, it counts from now on."""
        entry, charged = receipt
        if charged <= 0 or now_ns - entry[0] <= self._margin_ns or self.permits == UNLIMITED:
            return
        if entry[1] == charged and entry[0] >= 0:
            entry[0], self._edge_ns = now_ns, None
            return
        self.settle(receipt, 0, now_ns)
        receipt[:] = self.take(charged, now_ns)

    def defer(self, receipt: list[Any], effects: Effects) -> None:
        """Defer the effect of a start until ``effects`` begin; it counts meanwhile."""
        entry, charged = receipt
        if charged <= 0 or self.permits == UNLIMITED:
            return
        if entry[1] == charged and entry[0] >= 0:
            entry[0], self._edge_ns = PENDING, None
        else:  # it shares its entry, or has left the window
            self.settle(receipt, 0, 0)
            entry = [PENDING, charged]
            self._log.append(entry)
            self.used += charged
            receipt[:] = entry, charged
        effects.append(PendingEntry(entry))

    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when a start of a cost is admitted: O(entries that must leave the log before)."""
        room = self.count(now_ns)
        if cost <= room:
            return now_ns
        maximum = self.cost_max
        assert maximum is not None
        if cost > maximum:
            return None
        when_ns = now_ns
        for time, amount in self._log:
            if room >= cost:
                break
            if time != PENDING:  # a deferred start is set aside when its turn comes
                room += amount
                when_ns = max(when_ns, time + self._width_ns)
        return when_ns if room >= cost else now_ns + self._width_ns  # a deferred start takes effect now or later

    def when_count(self, count: int, now_ns: int) -> int | None:
        """Estimate when the ``count``-th start of cost 1 from now is admitted: N of them in each window."""
        maximum = self.cost_max
        if maximum is None:
            return now_ns
        if maximum == 0:
            return None
        windows, rest = divmod(count - 1, maximum)
        first = self.when(rest + 1, now_ns)
        return None if first is None else first + windows * self._width_ns

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Estimate how many starts of cost 1 are admitted in [``now_ns``, ``end_ns``)."""
        room = self.count(now_ns)
        if self.permits == UNLIMITED:
            return UNLIMITED
        windows = max(0, end_ns - 1 - now_ns) // self._width_ns
        edge_ns = end_ns - self._width_ns * (windows + 1)
        if edge_ns != self._edge_ns:
            self._edge_ns, self._leaving = edge_ns, 0
            for time, amount in self._log:
                if time == PENDING:  # as above; once it takes effect, it may keep those after it in the log
                    self._edge_ns = None
                elif time < edge_ns:
                    self._leaving += amount
                else:
                    break
        return max(0, room + self._leaving) + self.permits * windows

    def idle_at(self, now_ns: int) -> int | None:
        """Return when the window is empty; None while some start has no known effect."""
        self.count(now_ns)
        latest = max((time for time, _ in self._log), default=now_ns - self._width_ns)
        return None if self._pending or latest == PENDING else latest + self._width_ns

    def owed_at(self, step: int, unit: int, now_ns: int) -> int | None:
        """Return when its starts are paid for at ``step / unit`` a nanosecond; None while some has no known effect."""
        self.count(now_ns)
        if self._pending or any(time == PENDING for time, _ in self._log):
            return None
        owed, latest = 0, now_ns * step
        for time, amount in reversed(self._log):
            owed += amount * unit
            latest = max(latest, time * step + owed)
        return -(-latest // step)

    def pack(self) -> tuple[int, ...] | None:
        """Return its width, then time and amount of each entry; None while some start has no known effect."""
        if self._pending or any(time == PENDING for time, _ in self._log):
            return None
        return (self._width_ns, *(number for entry in self._log for number in entry))

    def unpack(self, numbers: Sequence[int], now_ns: int) -> None:
        """Adopt the entries of another window."""
        self._width_ns = numbers[0]
        self._log.extend([time, amount] for time, amount in zip(numbers[1::2], numbers[2::2], strict=True))
        self.used = sum(numbers[2::2])
        self._set_rate(self.rate, now_ns)

    def trial(self, time_ns: Callable[[], int] | None = None) -> Self:  # noqa: ARG002  # it reads no clock
        """Return a copy for questions about the future, or of another thread, which must not change this one."""
        other = copy(self)
        other._log = deque([*entry] for entry in _copied(self._log))  # noqa: SLF001  # a copy of itself
        other._pending = [[*entry] for entry in self._pending]  # noqa: SLF001  # a copy of itself
        return other

    __getstate__ = state_of

    def _take_back(self) -> None:
        """Return entries that have taken effect meanwhile to the log."""
        pending, self._pending = self._pending, []
        for entry in pending:
            (self._pending if entry[0] == PENDING else self._log).append(entry)


def _copied(log: deque[list[int]]) -> deque[list[int]]:
    """Return a copy of a log, to which another thread may be adding."""
    while True:
        try:
            return log.copy()
        except (
            RuntimeError
        ):  # it was changed meanwhile: on a Python without the global interpreter lock, and seldom twice
            continue
