"""A rate that adapts: up in small steps while there is no overload, down by a factor after an overload.

Additive increase, multiplicative decrease: of the simple rules, the one under which several users of a bottleneck
converge to equal shares. Theory: D. Chiu, R. Jain, "Analysis of the increase and decrease algorithms for congestion
avoidance", 1989. Two rules are those of TCP (RFC 5681, RFC 7661): one overload counts once, and an unused rate is not
raised.

At most one step is taken in ``period``. So outcomes are counted, not examined one by one.

A group with fixed parts
========================

A process does not know the outcomes of the others. So each of n processes adjusts a rate r of its own, and uses the
part r / n of it. The rate of the group is the sum of these parts, which is the mean of all r. Laws:

- The group never exceeds ``ceiling``, and rises by at most ``increase`` in a period: each part by ``increase / n``.
- If all see an overload, the group falls as a single process would; if one sees it, only its part falls.
- A part rises by its own use. The tolerance of one permit, which a single process has once in a period, is as large as
  a small part itself. So a part is judged only once it has had as many permits as the whole rate has in a period, or
  ``_JUDGED_COUNT``.

A group with one rate in force
==============================

Each process may put a rate in force for all, and learns the rate in force from each reply; the latest wins. Rates are
values, not differences, so nothing accumulates. Laws:

- **A step of one process is a step of all.** A process that sees another rate in force adopts it, and begins a period;
  after a decrease, a period without an increase. So a rate r + ``increase`` is put in force only by a process that has
  known r for a period, and n processes rise no faster than one. Two processes that step from r at once put the same
  value in force, for decreases and increases. So an overload that all of them see counts once.
- **A decrease wins over a simultaneous increase.** The increasing process may not know of the decrease yet, and its
  step may arrive later. For a period after a decrease, each process that knows of it restores the lower rate when it
  sees a higher rate that such a process would set: at most ``increase`` above the previous rate. Any higher rate was
  set by a person, and stays.
- **A period is not shorter than the time in which news reaches all** (:attr:`AdaptiveControl.period_least`). Both laws
  depend on that.
- A process that does not know the rate in force, because it was idle or cut off, asks first: a decrease from an outdated
  rate might be an increase. A decrease that it learns of then is no response to its present observations.
- A process that joins uses the rate in force, and puts its own in force only if no other process takes part.

The group counts as using its rate if one process does, by the permits that it has used and the permits that it
requested but others got. If many processes each use a little of a rate, and it holds none of them back, the rate does
not rise.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durations import seconds_of

if TYPE_CHECKING:
    from ratelimited_executor._core.durations import DurationLike

__all__ = ["Adaptive", "AdaptiveControl"]

_USED_PART: Final = 0.7  # the part of its permits that must be used for a rate to be raised
# Permits of a part of a rate that must have come up before its use is judged. More would be more reliable, but slower:
# at 0.1 a second for each of ten processes, these take 40 s.
_JUDGED_COUNT: Final = 4
# Two rates that differ by less than this part are the same: an authority holds ratios of small numbers, exact to
# 2.4e-7.
_SAME_PART: Final = Fraction(1, 1_000_000)
# Each step is rounded to this many digits, else the exact ratio would gain digits with every step. Fewer digits would
# lose the steps of an ``increase`` that is tiny beside the rate.
_DIGIT_COUNT: Final = 12


class Adaptive:
    """How a rate adapts to what the remote service accepts.

    An overload (a ``RetryLater``, or a call of ``penalize()``) multiplies the rate by ``decrease``, once in ``period``; a
    period without one adds ``increase``, if most of the rate was used. The rate stays between ``floor`` and ``ceiling``.

    Args:
        floor: permits a second, > 0.
        ceiling: permits a second, >= floor.
        increase: permits a second that are added per step; a hundredth of the ceiling by default.
        decrease: the factor after an overload, > 0 and < 1.
        period: seconds from one step to the next, > 0: at least the time until an effect is visible.

    Raises:
        TypeError: if an argument is not a number.
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
        adaptive: the rules.
        now: loop time.

    Attributes:
        period_least: the least number of seconds between two steps, however short the period of the rules is.
    """

    __slots__ = (
        "_adaptive", "_before", "_begin", "_done_count", "_is_held", "_used_count", "period_least",
    )  # fmt: skip

    def __init__(self, adaptive: Adaptive, now: float) -> None:
        self._adaptive = adaptive
        self._begin = now
        self._used_count = 0
        self._done_count = 0
        self._is_held = False  # True if the period has had an overload
        self._before = Fraction(0)  # the rate before that overload
        self.period_least = 0.0

    @property
    def period(self) -> float:
        """Seconds from one step to the next."""
        return max(self._adaptive.period, self.period_least)

    def is_held(self, now: float) -> bool:
        """True for a period after an overload."""
        return self._is_held and now - self._begin < self.period

    def bounded(self, rate: Fraction) -> Fraction:
        """Return the rate within floor and ceiling, as a decimal number of at most twelve digits."""
        rules = self._adaptive
        rounded = Fraction(f"{float(rate):.{_DIGIT_COUNT}g}")
        return min(max(rounded, _exact(rules.floor)), _exact(rules.ceiling))

    def overloaded(self, rate: Fraction, now: float) -> Fraction:
        """Record an overload; return the new rate: lower, unless it was already lowered in this period."""
        if self.is_held(now):
            return rate
        self._is_held = True
        self._before = rate
        self._begin = now
        return self.bounded(rate * _exact(self._adaptive.decrease))

    def step(self, rate: Fraction, now: float, *, used_count: int, done_count: int, peers: int = 1) -> Fraction:
        """Return the new rate: higher, after a period without overload in which most of it was used.

        Args:
            rate: the rate in force, permits a second.
            now: loop time.
            used_count: permits known to be used so far.
            done_count: tasks that have returned so far.
            peers: the number of peers that share the rate; the use of the others is unknown.
        """
        elapsed = now - self._begin
        if elapsed < self.period:
            return rate
        came = float(rate) / peers * elapsed
        if not self._is_held and came < min(float(rate) * self.period, _JUDGED_COUNT):
            return rate
        used, done = used_count - self._used_count, done_count - self._done_count
        is_held = self._is_held
        self._begin_period(now, used_count, done_count)
        if is_held or not done or used < _USED_PART * came - 1:
            return rate
        return self._raised(rate)

    # A rate that other processes change as well.

    def is_overruled(self, rate: Fraction, told: Fraction, now: float) -> bool:
        """Return True if others raised the rate without knowing of the latest decrease.

        Args:
            rate: the rate of this process.
            told: the rate in force.
            now: loop time.
        """
        return (
            self.is_held(now)
            and not _is_same(rate, told)
            and rate < told <= self._raised(max(rate, self._before)) * (1 + _SAME_PART)
        )

    def follow(
        self, rate: Fraction, told: Fraction, now: float, *, is_news: bool, used_count: int, done_count: int
    ) -> None:
        """Adopt a step of others: it counts as one of this process.

        Args:
            rate: the rate of this process until now.
            told: the rate in force.
            now: loop time.
            is_news: True if the step was taken recently; an old decrease is no response to present observations.
            used_count: permits known to be used so far.
            done_count: tasks that have returned so far.
        """
        if _is_same(rate, told):
            return
        before = self._before if self.is_held(now) else rate
        self._begin_period(now, used_count, done_count)
        if told < rate and is_news:
            self._is_held, self._before = True, before

    def _begin_period(self, now: float, used_count: int, done_count: int) -> None:
        self._begin, self._is_held = now, False
        self._used_count, self._done_count = used_count, done_count

    def _raised(self, rate: Fraction) -> Fraction:
        return self.bounded(rate + _exact(self._adaptive.increase))


def _is_same(rate: Fraction, other: Fraction) -> bool:
    return abs(rate - other) <= _SAME_PART * rate


def _exact(value: float) -> Fraction:
    return Fraction(repr(value))
