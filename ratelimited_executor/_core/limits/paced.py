"""A steady pace in a single number: the law of ``Paced`` where a grid for each key would be too much.

The generic cell rate algorithm, with its tolerance put behind and not before: the limit remembers the *theoretical time*
at which the next start is due. A start is admitted from then on, and moves it on by its cost over the rate: from the
theoretical time, so that a late timer is caught up with, unless that has passed by more than ``slack``.

Law: the costs of the starts in any [a, b] sum to ``rate x (b - a + slack) + c`` at most, c the cost of the last one: a
start of cost c is admitted like any other, and what follows waits until it is paid for. So a heavy start is never starved
by light ones, and needs no store of permits.

Source: ITU-T I.371, annex A (virtual scheduling).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimited_executor._core.limits.limit import Limit, step_and_unit
from ratelimited_executor._kernel.admission import UNLIMITED

if TYPE_CHECKING:
    from typing import Self

    from ratelimited_executor._core.rates import Rate

__all__ = ["PacedLimit"]


class PacedLimit(Limit):
    """A theoretical time of the next start.

    Args:
        rate: starts over time.
        slack_ns: how late a start may be without the next being later for it.
    """

    __slots__ = ("_last", "_next", "_step", "_unit", "rate", "slack_ns")

    def __init__(self, rate: Rate, *, slack_ns: int) -> None:
        self.slack_ns = slack_ns
        self._next = 0  # the theoretical time, in nanoseconds times _step, so that it is a whole number
        self._step, self._unit = 0, 1
        self._last: list[int] | None = None  # the ticket of the last start
        self.set_rate(rate, 0)

    def unused(self) -> Self:
        """Return another limit of the same rate, of which nothing has been taken: a tenth of the cost of a new one."""
        other = object.__new__(type(self))
        other.slack_ns, other.rate, other._step, other._unit = self.slack_ns, self.rate, self._step, self._unit
        other._next, other._last = 0, None
        return other

    def set_rate(self, rate: Rate, now_ns: int) -> None:
        """Put another rate in force: what is not paid for yet is paid for at the new one.

        At a rate of 0, and while there is no limit, none of it is.
        """
        self.rate = rate
        ahead, old = max(0, self._next - now_ns * self._step), self._unit
        self._step, self._unit = (0, old) if rate.is_unlimited else step_and_unit(rate)
        self._next = now_ns * self._step - (-ahead * self._unit // old)

    def change_to(self, other: Self, now_ns: int) -> None:
        """Take the rate and the slack of another pace."""
        self.set_rate(other.rate, now_ns)
        self.slack_ns = other.slack_ns

    @property
    def cost_max(self) -> None:
        """Any cost is admitted."""
        return

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
        return self._next <= now_ns * self._step > 0 or cost <= 0 or self.rate.is_unlimited

    def take(self, cost: int, now_ns: int) -> list[int]:
        """Record a start."""
        if self.rate.is_unlimited:
            return []
        unit = self._unit
        self._next = self._due(now_ns) + cost * unit
        self._last = ticket = [cost * unit, unit]
        return ticket

    def settle(self, ticket: list[int], cost: int, now_ns: int) -> None:
        """Correct the cost of a start; of the last one alone there may be time ahead that can be given back."""
        if self.rate.is_unlimited or not ticket:
            return
        charged, unit = ticket
        charged = charged * self._unit // unit
        change = cost * self._unit - charged
        if change < 0:
            ahead = max(0, self._next - now_ns * self._step) if ticket is self._last else 0
            change = -min(-change, ahead)
        self._next += change
        ticket[:] = charged + change, self._unit

    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when a start is admitted, whatever its cost."""
        return now_ns if cost <= 0 else self.when_count(1, now_ns)

    def when_count(self, count: int, now_ns: int) -> int | None:
        """Return when the ``count``-th start of cost 1 from now is admitted."""
        if self.count(now_ns) >= count:
            return now_ns
        if self.rate.is_zero:
            return None
        return max(now_ns, -(-(self._due(now_ns) + (count - 1) * self._unit) // self._step))

    def when_after(self, ahead: int, cost: int, now_ns: int) -> int | None:
        """Estimate when a start of a cost is admitted, once others have cost ``ahead`` in all."""
        return now_ns if cost <= 0 else self.when_count(ahead + 1, now_ns)

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Count the starts of cost 1 that are admitted in [``now_ns``, ``end_ns``)."""
        if self.rate.is_unlimited:
            return UNLIMITED
        if self.rate.is_zero:
            return 0
        ahead = (end_ns - 1) * self._step - self._due(now_ns)
        return 0 if ahead < 0 else 1 + ahead // self._unit

    def is_idle(self, now_ns: int) -> bool:
        """True if the next start has been due for longer than the slack."""
        return self._next < (now_ns - self.slack_ns) * self._step or self._step == self._next == 0

    def _due(self, now_ns: int) -> int:
        """Return when the next start is due, nanoseconds times ``_step``: now, if it is overdue by more than the slack."""
        return self._next if self._next >= (now_ns - self.slack_ns) * self._step else now_ns * self._step
