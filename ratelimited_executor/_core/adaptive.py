"""A rate that finds its own height: up by a little while all goes well, down by a part when the other side is overloaded.

Additive increase, multiplicative decrease: of the simple rules the one under which several that share a bottleneck come
to equal parts. Theory: D. Chiu, R. Jain, "Analysis of the increase and decrease algorithms for congestion avoidance",
1989; the rule that one overload counts once, and that a rate that is not used is not raised, are those of TCP (RFC 5681,
RFC 7661).

A step is taken at most once in ``period``. So outcomes are counted, not looked at one by one.

Of a group, by fixed parts
==========================

Nothing tells one process how the others fare. So each of n processes steps a rate of its own, r, and has the part r / n of
it; the rate of the group is the sum of these parts, the mean of the r. Laws:

- The group never exceeds ``ceiling``, and rises by ``increase`` in a period at most: each part by ``increase / n``.
- If all see an overload, the group falls as one process alone would; if one sees it, its part alone falls.
- A part rises by its own use. The slack of one permit, which a process alone has once in a period, is as large beside a
  small part as the part itself. So a part is looked at only once as many of its permits have come up as the whole rate has
  in a period, or ``_JUDGED_COUNT``.

Of a group with one rate in force
=================================

Each process may put a rate in force for all, and sees in each reply what is in force; the latest wins. Nothing is added up:
what is put in force is a value. Laws:

- **A step of one is a step of each.** Who sees another rate in force takes it for its own, and a period begins: after a
  fall one that does not rise. So a rate r + ``increase`` is put in force only by who has known r for a period, and n
  processes rise no faster than one. Two that step from r at once put the same value in force, for falls as for rises: so
  an overload that all of them see counts once.
- **A fall wins over a rise of the same time.** The riser may not know of the fall yet, and come later. For a period after
  a fall, whoever knows of it puts the fallen rate in force again where it sees one above it that such a riser would set:
  ``increase`` above the rate before at most. Any higher one has been set by a person, and holds.
- **A period is not shorter than the news takes to all** (:attr:`AdaptiveControl.period_least`), so that both hold.
- Who does not know what is in force, since it was idle or cut off, asks first: a fall from a rate of long ago might be a
  rise. What it learns then is no answer to what it sees now.
- Who joins goes by the rate in force, and puts its own in force only where nobody else takes part.

The group is taken to use its rate where one process does: by what it has used, and what it has asked for and others have
got. A rate of which many processes use a little each, and which holds none of them back, does not rise.
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
# Permits of a part of a rate that must have come up to tell whether it is used. More would be surer, and slower: at 0.1 a
# second for each of ten processes, these take 40 s.
_JUDGED_COUNT: Final = 4
# Of a rate: two that differ by less are the same. What an authority holds is a ratio of small numbers, exact to 2.4e-7.
_SAME_PART: Final = Fraction(1, 1_000_000)
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
        period_least: seconds from one step to the next at least, however short the period of the rules is.
    """

    __slots__ = (
        "_adaptive", "_before", "_begin", "_done_count", "_is_held", "_used_count", "overload_count", "period_least",
    )  # fmt: skip

    def __init__(self, adaptive: Adaptive, now: float) -> None:
        self._adaptive = adaptive
        self._begin = now
        self._used_count = 0
        self._done_count = 0
        self._is_held = False  # whether the period has seen an overload
        self._before = Fraction(0)  # the rate before that
        self.overload_count = 0
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
        """Note an overload; return the rate to go by: lower, unless this period has lowered it already."""
        self.overload_count += 1
        if self.is_held(now):
            return rate
        self._is_held = True
        self._before = rate
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

    # A rate that others step as well.

    def is_overruled(self, rate: Fraction, told: Fraction, now: float) -> bool:
        """Tell whether a rate that others have put in force comes of a rise that did not know of the latest fall.

        Args:
            rate: ours.
            told: in force.
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
        """Note that others have taken a step: it counts as one of ours.

        Args:
            rate: ours until now.
            told: in force.
            now: loop time.
            is_news: whether the step has been taken of late; a fall of long ago is no answer to what we see now.
            used_count: permits that are known to be used so far.
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
