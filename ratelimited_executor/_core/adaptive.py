"""A rate that finds its own height: up by a little while all goes well, down by a part when the other side is overloaded.

Additive increase, multiplicative decrease: of the simple rules the one under which several that share a bottleneck come
to equal parts. Theory: D. Chiu, R. Jain, "Analysis of the increase and decrease algorithms for congestion avoidance",
1989; the rule that one overload counts once, and that a rate that is not used is not raised, are those of TCP (RFC 5681,
RFC 7661).

A step is taken at most once in ``period``. So outcomes are counted, not looked at one by one.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durations import seconds_of

if TYPE_CHECKING:
    from ratelimited_executor._core.durations import DurationLike

__all__ = ["Adaptive", "AdaptiveControl"]

_USED_PART: Final = 0.7  # of its permits must have been used for a rate to be raised
# Of a rate: each step is rounded to so many, else the exact ratio would take more digits with every step. Fewer would lose
# the steps of an ``increase`` that is tiny beside the rate.
_DIGIT_COUNT: Final = 12


class Adaptive:
    """How a rate adapts to what the other side can take.

    An outcome that means overload (a ``RetryLater``, or a call of ``penalize()``) multiplies the rate by ``decrease``, once in ``period``; a period without any adds ``increase``, if most
    of the rate was used. The rate stays between ``floor`` and ``ceiling``.

    Args:
        floor: permits a second, > 0.
        ceiling: permits a second, >= floor.
        increase: permits a second that are added at a time; a hundredth of the ceiling by default.
        decrease: what the rate is multiplied by, > 0 and < 1.
        period: seconds from one step to the next, > 0: not less than it takes until an effect is seen.

    Raises:
        TypeError: if an argument is no number.
        ValueError: if it is out of range.
    """

    __slots__ = ("ceiling", "decrease", "floor", "increase", "period")

    def __init__(
        self,
        *,
        floor: float,
        ceiling: float,
        increase: float | None = None,
        decrease: float = 0.5,
        period: DurationLike = 1.0,
    ) -> None:
        if increase is None and isinstance(ceiling, (int, float)):
            increase = ceiling / 100
        values = {"floor": floor, "ceiling": ceiling, "increase": increase, "decrease": decrease}
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} must be a number, got {value!r}")
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be finite and > 0, got {value!r}")
        period_seconds = seconds_of("period", period)
        assert increase is not None
        if ceiling < floor:
            raise ValueError(f"ceiling must be >= floor, {floor!r}, got {ceiling!r}")
        if decrease >= 1:
            raise ValueError(f"decrease must be < 1, got {decrease!r}")
        self.floor = float(floor)
        self.ceiling = float(ceiling)
        self.increase = float(increase)
        self.decrease = float(decrease)
        self.period = period_seconds

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{name}={getattr(self, name):g}" for name in ("floor", "ceiling", "increase", "decrease", "period")
        )
        return f"Adaptive({parts})"


class AdaptiveControl:
    """The state of one adaptive rate.

    Args:
        adaptive: its rules.
        now: loop time.

    Attributes:
        overload_count: outcomes so far that meant overload.
    """

    __slots__ = ("_adaptive", "_begin", "_done_count", "_is_held", "_used_count", "overload_count")

    def __init__(self, adaptive: Adaptive, now: float) -> None:
        self._adaptive = adaptive
        self._begin = now
        self._used_count = 0
        self._done_count = 0
        self._is_held = False  # whether the period has seen an overload
        self.overload_count = 0

    def bounded(self, rate: Fraction) -> Fraction:
        """Return the rate within floor and ceiling, as a decimal number of at most twelve digits."""
        rules = self._adaptive
        rounded = Fraction(f"{float(rate):.{_DIGIT_COUNT}g}")
        return min(max(rounded, _exact(rules.floor)), _exact(rules.ceiling))

    def overloaded(self, rate: Fraction, now: float) -> Fraction:
        """Note an overload; return the rate to go by: lower, unless this period has lowered it already."""
        self.overload_count += 1
        if self._is_held and now - self._begin < self._adaptive.period:
            return rate
        self._is_held = True
        self._begin = now
        return self.bounded(rate * _exact(self._adaptive.decrease))

    def step(self, rate: Fraction, now: float, *, used_count: int, done_count: int, peers: int = 1) -> Fraction:
        """Return the rate to go by: higher, if a period has passed, without overload, in which most of it was used.

        Args:
            rate: in force, permits a second.
            now: loop time.
            used_count: permits that are known to be used so far.
            done_count: tasks that have returned so far.
            peers: among how many that rate is divided, whose use is not known.
        """
        elapsed = now - self._begin
        if elapsed < self._adaptive.period:
            return rate
        used, self._used_count = used_count - self._used_count, used_count
        done, self._done_count = done_count - self._done_count, done_count
        is_held, self._is_held, self._begin = self._is_held, False, now
        if is_held or not done or used < _USED_PART * float(rate) / peers * elapsed - 1:
            return rate
        return self.bounded(rate + _exact(self._adaptive.increase))


def _exact(value: float) -> Fraction:
    return Fraction(repr(value))
