"""A token bucket: up to n starts at once after a pause, and the rate in the long run.

Law: the costs of the starts in any window of length w sum to at most ``n + rate x w``. The bucket holds n permits and
gains permits at the rate. Its content is an integer multiple of the smallest amount that a nanosecond adds. So only a
change of the rate rounds, downwards.

Source: J. Turner, "New directions in communications", 1986 (the leaky bucket as a meter).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimited_executor._core.limits.limit import Limit
from ratelimited_executor._core.permits.rates import step_and_unit
from ratelimited_executor._kernel.admission import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from ratelimited_executor._core.permits.rates import Rate

__all__ = ["TokenBucketLimit"]


class TokenBucketLimit(Limit):
    """A bucket of ``depth`` permits, full at first.

    Args:
        rate: the refill rate.
        depth: the maximum number of permits in it, >= 1.
        now_ns: the time on the timeline.
    """

    __slots__ = ("_at_ns", "_content", "_gained", "_step", "_unit", "depth", "rate")

    def __init__(self, rate: Rate, *, depth: int, now_ns: int) -> None:
        self.depth = depth
        self._at_ns = now_ns
        self._step, self._unit = 0, 1
        self._content = depth
        self._gained = 0  # all permits gained so far, including overflow and permits given back
        self._set_rate(rate, now_ns)

    def set_depth(self, depth: int, now_ns: int) -> None:
        """Change the maximum number of permits."""
        self._fill(now_ns)
        self._gained += max(0, depth - self.depth) * self._unit  # permits lost by overflow do not come back
        self.depth = depth
        self._content = min(self._content, depth * self._unit)

    def _set_rate(self, rate: Rate, now_ns: int) -> None:
        """Refill at another rate from now on."""
        self._fill(now_ns)
        self.rate = rate
        old = self._unit
        self._step, self._unit = (0, 1) if rate.is_unlimited else step_and_unit(rate)
        self._content = self._content * self._unit // old
        self._gained = -(-self._gained * self._unit // old)

    def change_to(self, other: Self, now_ns: int) -> None:
        """Adopt the rate and the depth of another bucket."""
        self._set_rate(other.rate, now_ns)
        self.set_depth(other.depth, now_ns)

    @property
    def cost_max(self) -> int | None:
        """The depth."""
        return None if self.rate.is_unlimited else self.depth

    def count(self, now_ns: int) -> int:
        """Count the starts of cost 1 that are admitted now; negative if costs were settled to more than the content."""
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

    def settle(self, receipt: list[int], cost: int, now_ns: int) -> None:
        """Correct the cost of a start.

        Permits given back would have been in the bucket since the start, and some would have overflowed. The maximum
        overflow is lost: the one that would have occurred if no other start had taken permits meanwhile.
        """
        if self.rate.is_unlimited or not receipt:
            return
        charged, content, gained, unit = receipt
        self._fill(now_ns)
        content, gained = -(content * self._unit // -unit), gained * self._unit // unit
        change = (charged - cost) * self._unit
        back = max(0, min(change, self.depth * self._unit - content - (self._gained - gained)))
        self._content += back if change > 0 else change
        self._gained += back  # for other receipts: these permits would have overflowed before theirs
        receipt[:] = cost, content + change, gained + back, self._unit

    def when(self, cost: int, now_ns: int) -> int | None:
        """Return when a start of a cost is admitted."""
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

    def idle_at(self, now_ns: int) -> int | None:
        """Return when the bucket is full; None if never."""
        self._fill(now_ns)
        missing = self.depth * self._unit - self._content
        return now_ns if missing <= 0 else -(-missing // self._step) + now_ns if self._step else None

    def pack(self) -> tuple[int, ...]:
        """Return the time of its content, the content, the gains, and the rate that they are counted in."""
        return self._at_ns, self._content, self._gained, self._step, self._unit, self.depth

    def unpack(self, numbers: Sequence[int], now_ns: int) -> None:
        """Adopt the content of another bucket."""
        rate, depth = self.rate, self.depth
        self._at_ns, self._content, self._gained, self._step, self._unit, self.depth = numbers
        self._set_rate(rate, now_ns)
        self.set_depth(depth, now_ns)

    def _fill(self, now_ns: int) -> None:
        if now_ns > self._at_ns:
            gained = (now_ns - self._at_ns) * self._step
            self._content = min(self._content + gained, self.depth * self._unit)
            self._gained += gained
            self._at_ns = now_ns
