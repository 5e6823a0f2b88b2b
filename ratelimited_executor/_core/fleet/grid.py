"""The permits of a fleet on its authority's clock, in integers that Lua's doubles hold exactly.

Time is divided into *grant intervals*, numbered from the authority's epoch. The rate is a ratio ``step / unit`` of
permits to grant intervals. With the phase ``base / unit`` at the start of interval ``since``, permit n comes up where

    (base + step * x) / unit = n,    x in grant intervals since then.

Interval k owns the permits first(k) ... first(k + 1) - 1, so that fractional rates are exact over any stretch. A permit
is identified by its interval and its place there, so no number exceeds the permits of one interval.

With ``step = whole * unit + rest``, first(k) = whole * x + ceil((base + rest * x) / unit). Doubles are exact below 2**53:
``rest`` is kept below 2**22, and x stays below 2**31 (17 years of 250 ms) before the grid gets a new origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from ratelimited_executor._core.rates import Rate

__all__ = ["FleetGrid", "grid_rate"]

_MICROSECONDS: Final = 1_000_000
_REST_MAX: Final = 1 << 22
_UNIT_MAX: Final = 1 << 50
_STEP_MAX: Final = 10**300
_INTERVAL_US: Final = (50_000, 5_000_000)  # least and most
_AGE_MAX: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class FleetGrid:
    """The times of the permits of one rate.

    Attributes:
        interval_us: the length of a grant interval in microseconds.
        step: permits in ``unit`` grant intervals.
        unit: see ``step``.
        base: the phase at the beginning of ``since``, in parts of ``unit``.
        since: the number of the first interval in which the grid is in force.
    """

    interval_us: int
    step: int
    unit: int
    base: int
    since: int

    @property
    def per_second(self) -> Fraction:
        """Permits a second."""
        return Fraction(self.step * _MICROSECONDS, self.unit * self.interval_us)

    def is_sound(self, now_us: int) -> bool:
        """True if all numbers are within the bounds that an authority keeps."""
        return (
            _INTERVAL_US[0] <= self.interval_us <= _INTERVAL_US[1]
            and 1 <= self.unit <= _UNIT_MAX
            and 0 <= self.step <= _STEP_MAX
            and 0 <= self.base <= self.unit
            and abs(now_us // self.interval_us - self.since) < _AGE_MAX
        )

    def first(self, number: int) -> int:
        """Return how many permits come up from the grid's start to the start of an interval."""
        return -((-self.base - self.step * (number - self.since)) // self.unit)

    def count(self, number: int) -> int:
        """Return how many permits an interval owns."""
        return self.first(number + 1) - self.first(number)

    def time_us(self, number: int, place: int) -> int:
        """Return when an interval's permit comes up, in microseconds of the authority's clock, rounded up."""
        return self.permit_us(self.first(number) + place)

    def permit_us(self, index: int) -> int:
        """Return when the grid's permit ``index`` comes up, counted from 0, as :meth:`time_us` does."""
        phase = index * self.unit - self.base
        return self.since * self.interval_us - (-phase * self.interval_us // self.step)

    def index_at(self, time_us: int) -> int:
        """Return how many permits come up before a time."""
        passed = self.step * (time_us - self.since * self.interval_us)
        return -((-self.base * self.interval_us - passed) // (self.unit * self.interval_us))

    def with_rate(self, step: int, unit: int, since: int) -> Self:
        """Return the grid of another rate from an interval on, with the same phase."""
        rest = (self.base + self.step * (since - self.since)) % self.unit
        base = min(unit - 1, int(rest / self.unit * unit))  # in doubles, as in the script
        return type(self)(self.interval_us, step, unit, max(base, 1) if rest else 0, since)


def grid_rate(rate: Rate, interval_us: int, stretch: Fraction = Fraction(0)) -> tuple[int, int]:
    """Return a rate as (step, unit), rounded down unless it is a ratio of small numbers.

    Args:
        rate: finite.
        interval_us: the length of a grant interval in microseconds.
        stretch: the part by which gaps between permits are longer than the rate requires.
    """
    ratio = rate.per_second
    assert ratio is not None, rate
    exact = ratio * Fraction(interval_us, _MICROSECONDS) / (1 + stretch)
    step, unit = exact.numerator, exact.denominator
    if step % unit >= _REST_MAX or unit > _UNIT_MAX:
        unit = min(_UNIT_MAX, int((_REST_MAX - 1) / (exact % 1)))
        step = int(exact * unit)
    # A fine unit, so that a change of the rate can keep the phase.
    scale = max(1, min((_REST_MAX - 1) // max(step % unit, 1), _UNIT_MAX // unit))
    return step * scale, unit * scale
