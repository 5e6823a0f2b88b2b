"""A steady pace in a single number: the law of ``Paced`` where a grid for each key would be too much.

This is the generic cell rate algorithm, with its tolerance after the theoretical time and not before it. The limit
remembers the *theoretical time* at which the next start is due. A start is admitted from then on, and advances the
theoretical time by cost / rate. It advances from the theoretical time itself, so that the pace catches up after a late
timer; if that time has passed by more than ``slack``, it advances from the present.

Law: the costs of the starts in any [a, b] sum to at most ``rate x (b - a + slack) + c``, c the cost of the last one. A
start of cost c is admitted like any other, and the next starts wait until it is paid for. So light starts never starve
a heavy one, which needs no stored permits.

Source: ITU-T I.371, annex A (virtual scheduling).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.limits.limit import Limit
from ratelimited_executor._core.permits.rates import step_and_unit
from ratelimited_executor._kernel.admission import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from ratelimited_executor._core.permits.rates import Rate

__all__ = ["PACKED_COUNT", "PacedLimit"]

PACKED_COUNT: Final = 4  # numbers of a packed pace


class PacedLimit(Limit):
    """The theoretical time of the next start.

    Args:
        rate: starts over time.
        slack_ns: how late a start may be without delaying the next.
    """

    __slots__ = ("_last", "_next", "_step", "_unit", "rate", "slack_ns")

    def __init__(self, rate: Rate, *, slack_ns: int) -> None:
        self.slack_ns = slack_ns
        self._next = 0  # the theoretical time, in nanoseconds times _step, so that it is a whole number
        self._step, self._unit = 0, 1
        self._last: list[int] | None = None  # the receipt of the last start
        self._set_rate(rate, 0)

    def unused(self) -> Self:
        """Return another limit of the same rate, with nothing taken: ten times cheaper than a new one."""
        other = object.__new__(type(self))
        other.slack_ns, other.rate, other._step, other._unit = self.slack_ns, self.rate, self._step, self._unit
        other._next, other._last = 0, None
        return other

    def _set_rate(self, rate: Rate, now_ns: int) -> None:
        """Put another rate in force: the unpaid part of earlier costs is paid at the new rate.

        At a rate of 0, and while there is no limit, nothing is paid.
        """
        self.rate = rate
        ahead, old = max(0, self._next - now_ns * self._step), self._unit
        self._step, self._unit = (0, old) if rate.is_unlimited else step_and_unit(rate)
        self._next = now_ns * self._step - (-ahead * self._unit // old)

    def change_to(self, other: Self, now_ns: int) -> None:
        """Adopt the rate and the slack of another pace."""
        self._set_rate(other.rate, now_ns)
        self.slack_ns = other.slack_ns

    @property
    def cost_max(self) -> int | None:
        """None, as any cost is admitted; 0 at a rate of 0."""
        return 0 if self.rate.is_zero else None

    @property
    def is_paid_afterwards(self) -> bool:
        """Always True."""
        return True

    def count(self, now_ns: int) -> int:
        """Count the starts of cost 1 that are admitted now."""
        if self.rate.is_unlimited:
            return UNLIMITED
        if self.rate.is_zero:
            return 0
        ahead = now_ns * self._step - self._due(now_ns)
        return 0 if ahead < 0 else 1 + ahead // self._unit

    def admits(self, cost: int, now_ns: int) -> bool:
        """True if a start is admitted now, whatever its cost."""
        return (self._next <= now_ns * self._step and (self._step > 0 or not cost)) or self.rate.is_unlimited

    def take(self, cost: int, now_ns: int) -> list[int]:
        """Record a start."""
        if not self._step and self.rate.is_unlimited:
            return []
        unit = self._unit
        if not cost:
            return [0, unit]
        self._next = self._due(now_ns) + cost * unit
        self._last = receipt = [cost * unit, unit]
        return receipt

    def settle(self, receipt: list[int], cost: int, now_ns: int) -> None:
        """Correct the cost of a start; only the last start can have time ahead to give back."""
        if self.rate.is_unlimited or not receipt:
            return
        charged, unit = receipt
        charged = charged * self._unit // unit
        change = cost * self._unit - charged
        if change < 0:
            ahead = max(0, self._next - now_ns * self._step) if receipt is self._last else 0
            change = -min(-change, ahead)
        elif not charged and change:
            self._next, self._last = self._due(now_ns), receipt
        self._next += change
        receipt[:] = charged + change, self._unit

    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when a start is admitted, whatever its cost."""
        if not cost and not self._step:
            return now_ns if self.rate.is_unlimited or self._next <= 0 else None
        return self.when_count(1, now_ns)

    def when_count(self, count: int, now_ns: int) -> int | None:
        """Return when the ``count``-th start of cost 1 from now is admitted."""
        if self.count(now_ns) >= count:
            return now_ns
        if self.rate.is_zero:
            return None
        return max(now_ns, -(-(self._due(now_ns) + (count - 1) * self._unit) // self._step))

    def when_after(self, ahead: int, cost: int, now_ns: int) -> int | None:
        """Estimate when a start of a cost is admitted, once others have cost ``ahead`` in all."""
        return self.when_count(ahead + 1, now_ns) if ahead + cost else self.when(0, now_ns)

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Count the starts of cost 1 that are admitted in [``now_ns``, ``end_ns``)."""
        if self.rate.is_unlimited:
            return UNLIMITED
        if self.rate.is_zero:
            return 0
        ahead = (end_ns - 1) * self._step - self._due(now_ns)
        return 0 if ahead < 0 else 1 + ahead // self._unit

    def idle_at(self, now_ns: int) -> int | None:
        """Return when the next start will have been due for longer than the slack; None if never."""
        if not self._step:
            return None if self._next else now_ns
        return max(now_ns, self._next // self._step + self.slack_ns + 1)

    def pack(self) -> tuple[int, ...] | None:
        """Return when the next start is due, as nanoseconds and a rest, and the rate that it is counted in."""
        return *divmod(self._next, max(1, self._step)), self._step, self._unit

    def unpack(self, numbers: Sequence[int], now_ns: int) -> None:
        """Adopt the time of another pace."""
        due_ns, rest, step, unit = numbers[:PACKED_COUNT]
        rate, is_same = self.rate, (step, unit) == (self._step, self._unit)
        self._next, self._step, self._unit = due_ns * max(1, step) + rest, step, unit
        if not is_same:  # else a start that is overdue by less than the slack stays so
            self._set_rate(rate, now_ns)

    def _due(self, now_ns: int) -> int:
        """Return when the next start is due, in nanoseconds times ``_step``: now if overdue by more than the slack."""
        return self._next if self._next >= (now_ns - self.slack_ns) * self._step else now_ns * self._step
