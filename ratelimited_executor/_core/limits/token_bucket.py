"""A token bucket: after a pause up to n starts at once, and the rate in the long run.

Law: the costs of the starts in any window of length w sum to ``n + rate x w`` at most. The bucket holds n permits and
gains them at the rate. Its content is a whole number of the smallest part that a nanosecond brings in, so that nothing is
rounded but a change of the rate, downwards.

Source: J. Turner, "New directions in communications", 1986 (the leaky bucket as a meter).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimited_executor._core.limits.limit import Limit, step_and_unit
from ratelimited_executor._kernel.admission import UNLIMITED

if TYPE_CHECKING:
    from typing import Self

    from ratelimited_executor._core.rates import Rate

__all__ = ["TokenBucketLimit"]


class TokenBucketLimit(Limit):
    """A bucket of ``depth`` permits, full at first.

    Args:
        rate: at which it is refilled.
        depth: how many it holds, >= 1.
        now_ns: the time on the timeline.
    """

    __slots__ = ("_at_ns", "_content", "_gained", "_step", "_unit", "depth", "rate")

    def __init__(self, rate: Rate, *, depth: int, now_ns: int) -> None:
        self.depth = depth
        self._at_ns = now_ns
        self._step, self._unit = 0, 1
        self._content = depth
        self._gained = 0  # what has come in so far, with what ran over and what was given back
        self.set_rate(rate, now_ns)

    def set_depth(self, depth: int, now_ns: int) -> None:
        """Hold another number of permits at most."""
        self._fill(now_ns)
        self._gained += max(0, depth - self.depth) * self._unit  # what has run over does not come back
        self.depth = depth
        self._content = min(self._content, depth * self._unit)

    def set_rate(self, rate: Rate, now_ns: int) -> None:
        """Refill at another rate from now on."""
        self._fill(now_ns)
        self.rate = rate
        old = self._unit
        self._step, self._unit = (0, 1) if rate.is_unlimited else step_and_unit(rate)
        self._content = self._content * self._unit // old
        self._gained = -(-self._gained * self._unit // old)

    def change_to(self, other: Self, now_ns: int) -> None:
        """Take the rate and the depth of another bucket."""
        self.set_rate(other.rate, now_ns)
        self.set_depth(other.depth, now_ns)

    @property
    def cost_max(self) -> int | None:
        """The depth."""
        return None if self.rate.is_unlimited else self.depth

    def count(self, now_ns: int) -> int:
        """Count the starts of cost 1 that are admitted now; negative if costs were settled to more than there was."""
        if self.rate.is_unlimited:
            return UNLIMITED
        self._fill(now_ns)
        return self._content // self._unit

    def take(self, cost: int, now_ns: int) -> list[int]:
        """Record a start."""
        if self.rate.is_unlimited:
            return []
        self._fill(now_ns)
        self._content -= cost * self._unit
        return [cost, self._content, self._gained, self._unit]

    def settle(self, ticket: list[int], cost: int, now_ns: int) -> None:
        """Correct the cost of a start.

        What is given back would have been in the bucket since then, and some of it would have run over: so much as it
        would at most, had nobody else taken anything meanwhile, is lost.
        """
        if self.rate.is_unlimited or not ticket:
            return
        charged, content, gained, unit = ticket
        self._fill(now_ns)
        content, gained = -(content * self._unit // -unit), gained * self._unit // unit
        change = (charged - cost) * self._unit
        back = max(0, min(change, self.depth * self._unit - content - (self._gained - gained)))
        self._content += back if change > 0 else change
        self._gained += back  # for the others: what this start did not take would have run over before theirs did
        ticket[:] = cost, content + change, gained + back, self._unit

    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when a start of a cost is admitted."""
        if cost <= 0:
            return now_ns
        return None if not self.rate.is_unlimited and cost > self.depth else self.when_count(cost, now_ns)

    def when_count(self, count: int, now_ns: int) -> int | None:
        """Return when the ``count``-th start of cost 1 from now is admitted."""
        if self.count(now_ns) >= count:
            return now_ns
        if not self._step:
            return None
        return now_ns - (self._content - count * self._unit) // self._step

    def count_until(self, now_ns: int, end_ns: int) -> int:
        """Count the starts of cost 1 that are admitted in [``now_ns``, ``end_ns``)."""
        if self.rate.is_unlimited:
            return UNLIMITED
        self._fill(now_ns)
        return max(0, (self._content + (end_ns - 1 - now_ns) * self._step) // self._unit)

    def is_idle(self, now_ns: int) -> bool:
        """True if the bucket is full."""
        self._fill(now_ns)
        return self._content >= self.depth * self._unit

    def _fill(self, now_ns: int) -> None:
        if now_ns > self._at_ns:
            gained = (now_ns - self._at_ns) * self._step
            self._content = min(self._content + gained, self.depth * self._unit)
            self._gained += gained
            self._at_ns = now_ns
