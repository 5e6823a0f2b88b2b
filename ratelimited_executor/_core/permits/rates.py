"""A rate as an exact ratio of permits to seconds.

A float stands for its shortest decimal representation: ``0.1`` means one tenth, as written, and not the nearest binary
number. So ten years of 0.1 permits a second are exact.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Final, TypeAlias

from ratelimited_executor._core.durations import UNIT_SECONDS, duration_of
from ratelimited_executor._core.escapes import shown
from ratelimited_executor._kernel.timeline import NS

if TYPE_CHECKING:
    from ratelimited_executor._core.durations import DurationLike

__all__ = ["Rate", "RateLike", "step_and_unit"]

RateLike: TypeAlias = "Rate | int | float | Fraction | Decimal | str"

_RATE_PATTERN: Final = re.compile(
    r"""\s* (?P<permits> -?[0-9][0-9_]*(\.[0-9]+)? | inf ) \s*/\s* (?P<count> [0-9]+(\.[0-9]+)? )? \s* (?P<unit> [a-z]+ ) \s*""",
    re.VERBOSE,
)
_WORDS_PATTERN: Final = re.compile(r"\s*(?P<permits>[0-9][0-9_.]*)\s+per\s+(?P<count>[0-9.]*)\s*(?P<unit>[a-z]+)\s*")
_SHORT_UNITS: Final = {"second": "s", "seconds": "s", "minute": "min", "minutes": "min", "hour": "h", "hours": "h"}
_PLAIN_PATTERN: Final = re.compile(r"\s*(-?[0-9][0-9_]*(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?|inf)\s*")
_UNITS: Final = {UNIT_SECONDS[unit]: unit for unit in ("s", "min", "h", "day")}  # as a rate is written
_KNOWN_UNITS: Final = ("ms", *_UNITS.values())  # as an error lists them
_TEXT_MAX: Final = 1000  # characters
# What is beyond could be neither shown nor used in a computation with floats.
_MOST: Final = int(math.nextafter(math.inf, 0))
_DIGITS_MAX: Final = 330  # of a denominator: that of the least float has 324
_DENOMINATOR_MAX: Final = 10**_DIGITS_MAX
_CALENDAR_UNITS: Final = ("week", "month")  # for quotas, not for rates: months differ in length


class Rate:
    """A number of permits in a number of seconds; immutable, hashable, compared by value.

    Args:
        permits: the number of starts, >= 0; 0 pauses; ``math.inf`` lifts the limit.
        per: the seconds in which they come up, > 0 and finite; or a timedelta or a str such as ``"15min"``.

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if an argument is NaN or negative, or out of the range of a float, or ``per`` is zero or infinite.

    >>> Rate(5, per=60)
    Rate(5, per=60)
    >>> Rate(5, per=60).per_second
    Fraction(1, 12)
    >>> Rate.parse("100/s") == Rate(100)
    True
    """

    __slots__ = ("_is_zero", "_per", "_permits", "_ratio")

    def __init__(self, permits: float | Fraction | Decimal, per: DurationLike | Fraction | Decimal = 1) -> None:
        self._permits = _exact("permits", permits)
        is_number = isinstance(per, (int, float, Fraction, Decimal))
        window = _exact("per", per if is_number else duration_of("per", per))
        if window is None or window <= 0:
            raise ValueError(f"per must be a finite number of seconds > 0, got {shown(per)}")
        self._per = window
        self._ratio = None if self._permits is None else self._permits / window
        if self._ratio is not None and not _is_in_range(self._ratio):
            raise _out_of_range("permits / per", self._ratio)
        self._is_zero = self._permits == 0  # stored: read at every wake-up, and fractions compare slowly

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Parse ``"100/s"``, ``"5/min"``, ``"1000/15min"``, ``"0.5/s"``, ``"inf/s"`` or a number of permits a second.

        Raises:
            ValueError: if the text is anything else.
        """
        if len(text) > _TEXT_MAX:
            raise ValueError(f"rate must look like '100/s', '5/min' or '1000/15min', got {shown(text)}")
        permits, per = cls._parts_of(text)
        if per == 0:
            raise ValueError(f"rate must be a number of permits in a time longer than 0, got {text!r}")
        if permits < 0:
            raise ValueError(f"rate must be >= 0 (0 pauses, inf means no limit), got {text!r}")
        try:
            return cls(permits, per=per)
        except ValueError:  # too large
            raise ValueError(f"rate must be in the range of a float, got {shown(text)}") from None

    @staticmethod
    def _parts_of(text: str) -> tuple[float | Fraction, Fraction]:
        """Return the permits of a text and their seconds."""
        plain = _PLAIN_PATTERN.fullmatch(text.lower())
        if plain is not None:
            return math.inf if plain[1] == "inf" else Fraction(plain[1].replace("_", "")), Fraction(1)
        match = _RATE_PATTERN.fullmatch(text.lower())
        unit = None if match is None else UNIT_SECONDS.get(match["unit"])
        if match is None or unit is None:
            words = _WORDS_PATTERN.fullmatch(text.lower())
            hint = "" if match is None and words is None else f": the units are {', '.join(_KNOWN_UNITS)}"
            period = "" if match is None else match["unit"].removesuffix("s")
            if match is not None and period in _CALENDAR_UNITS:
                hint = f": write '{match['permits']} per {period}' for a quota of each {period} of the calendar"
            if words is not None and words["unit"] in UNIT_SECONDS:
                hint = f": write '{words['permits']}/{words['count']}{_SHORT_UNITS.get(words['unit'], words['unit'])}'"
            raise ValueError(f"rate must look like '100/s', '5/min' or '1000/15min', got {text!r}{hint}")
        permits = math.inf if match["permits"] == "inf" else Fraction(match["permits"].replace("_", ""))
        return permits, Fraction(match["count"] or 1) * unit

    @classmethod
    def of(cls, value: RateLike) -> Rate:
        """Return the rate for a rate, a number of permits a second, or a text accepted by :meth:`parse`."""
        if isinstance(value, Rate):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, bool) or not isinstance(value, (int, float, Fraction, Decimal)):
            raise TypeError(
                f"rate must be a Rate, a number of permits a second or a str such as '5/min', got {shown(value)}"
            )
        try:
            return cls(value)
        except ValueError as error:
            raise ValueError(
                f"rate must be a number of permits a second >= 0 (0 pauses, inf means no limit), got {shown(value)}"
            ) from error

    @property
    def permits(self) -> float | Fraction:
        """The number of permits in :attr:`per` seconds."""
        return math.inf if self._permits is None else self._permits

    @property
    def per(self) -> Fraction:
        """The length of the window in seconds."""
        return self._per

    @property
    def per_second(self) -> Fraction | None:
        """Permits a second as an exact ratio; None if there is no limit."""
        return self._ratio

    @property
    def is_unlimited(self) -> bool:
        """True if the rate is infinite."""
        return self._ratio is None

    @property
    def is_zero(self) -> bool:
        """True if the rate is 0."""
        return self._is_zero

    def __float__(self) -> float:
        return math.inf if self._ratio is None else float(self._ratio)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rate):
            return NotImplemented
        return (self._permits, self._per) == (other._permits, other._per)

    def __hash__(self) -> int:
        return hash((self._permits, self._per))

    def __repr__(self) -> str:
        permits = "inf" if self._permits is None else _plain(self._permits)
        return f"Rate({permits})" if self._per == 1 else f"Rate({permits}, per={_plain(self._per)})"

    def __str__(self) -> str:
        permits = "inf" if self._permits is None else _plain(self._permits)
        unit = _UNITS.get(self._per)
        return f"{permits}/{_plain(self._per)}s" if unit is None else f"{permits}/{unit}"


def step_and_unit(rate: Rate) -> tuple[int, int]:
    """Return a finite rate as permits to nanoseconds, in lowest terms of the rate: ``step / unit``."""
    ratio = rate.per_second
    assert ratio is not None
    return ratio.numerator, ratio.denominator * NS


def _exact(name: str, value: object) -> Fraction | None:
    """Return the exact value of a number >= 0; None stands for infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction, Decimal)):
        raise TypeError(f"{name} must be a number, got {shown(value)}")
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) > _DIGITS_MAX:
        raise _out_of_range(name, value)  # as a ratio, it may have a billion digits
    if isinstance(value, (float, Decimal)):
        number = math.nan if isinstance(value, Decimal) and value.is_nan() else float(value)
        if number == math.inf:
            return None
        if not math.isfinite(number):
            raise ValueError(f"{name} must be a number >= 0 or inf, got {value!r}")
    exact = Fraction(repr(value)) if type(value) is float else Fraction(value)
    if exact < 0:
        raise ValueError(f"{name} must be >= 0, got {shown(value)}")
    if not _is_in_range(exact):
        raise _out_of_range(name, value)
    return exact


def _is_in_range(exact: Fraction) -> bool:
    return exact.numerator <= _MOST * exact.denominator and exact.denominator <= _DENOMINATOR_MAX


def _out_of_range(name: str, value: object) -> ValueError:
    return ValueError(f"{name} must be in the range of a float, got {shown(value)}")


def _plain(value: Fraction) -> str:
    """Format a number so that parsing the text gives the same number."""
    if value.denominator == 1:
        return str(value.numerator)
    return repr(float(value)) if Fraction(repr(float(value))) == value else repr(value)
