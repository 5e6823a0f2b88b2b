"""Durations: seconds, a ``timedelta``, or text as people type it: ``90``, ``10m``, ``1h30m``, ``1.5h``, ``250ms``.

All arguments that are spans of time, the command line and scenarios in TOML read durations alike. A bare number is
seconds. Units go from larger to smaller, each at most once: ``1h30m`` is valid and ``30m1h`` is not. Units of the
calendar, weeks and months, are not durations.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ratelimited_executor._core.escapes import shown

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = [
    "UNIT_SECONDS",
    "DurationLike",
    "delay_of",
    "duration_of",
    "format_duration",
    "number_of",
    "parse_duration",
    "seconds_of",
]

DurationLike: TypeAlias = "float | timedelta | str"

UNIT_SECONDS: Final = {
    name: Fraction(seconds)
    for names, seconds in (
        ("ms", Fraction(1, 1000)),
        ("s sec secs second seconds", 1),
        ("m min mins minute minutes", 60),
        ("h hour hours", 3600),
        ("d day days", 86400),
    )
    for name in names.split()
}
_DAY: Final = 86_400  # seconds
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")
_BARE: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_LIKE: Final = "a duration looks like 90, 10m or 1h30m"


def parse_duration(text: str, *, may_be_zero: bool = False) -> float:
    """Parse a duration into seconds; a bare number is seconds.

    Raises:
        ValueError: if the text is not a duration, or is infinite, or is zero and may not be.

    >>> [parse_duration(text) for text in ("90", "10m", "1h30m", "250ms")]
    [90.0, 600.0, 5400.0, 0.25]
    """
    seconds = _read(text)
    if seconds is None or seconds == math.inf or (seconds == 0 and not may_be_zero):
        raise ValueError(f"{_LIKE}{'' if may_be_zero else ' and is longer than 0'}, got {shown(text)}")
    return seconds


def number_of(name: str, value: Any) -> float:
    """Return a finite number.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is NaN or infinite.
    """
    if not _is_number(value):
        raise TypeError(f"{name} must be a number, got {shown(value)}")
    return _finite(name, value)


def duration_of(name: str, value: Any) -> float:
    """Return a span of time in finite seconds, which may be negative unless it is text.

    Raises:
        TypeError: if it is not a number, timedelta or text.
        ValueError: if it is text that is not a duration, or is NaN or infinite.
    """
    if type(value) is int or type(value) is float:  # the common case
        return _finite(name, value)
    if isinstance(value, str):
        seconds = _read(value)
        if seconds is None or seconds == math.inf:
            raise ValueError(f"{name}: {_LIKE}, got {shown(value)}")
        return seconds
    if hasattr(type(value), "total_seconds"):  # a timedelta: the core imports no module that reads the time
        return _finite(name, value.total_seconds())
    if not _is_number(value):
        raise TypeError(f"{name} must be a number of seconds, a timedelta or a str such as '8h', got {shown(value)}")
    return _finite(name, value)


def delay_of(name: str, value: Any) -> float:
    """Return a span of time >= 0 in seconds, given as a number, a timedelta or text."""
    seconds = duration_of(name, value)
    if seconds < 0:
        raise ValueError(f"{name} must be >= 0 seconds, got {shown(value)}")
    return seconds


def seconds_of(name: str, value: Any) -> float:
    """Return a span of time > 0 in seconds, given as a number, a timedelta or text."""
    seconds = duration_of(name, value)
    if seconds <= 0:
        raise ValueError(f"{name} must be > 0 seconds, got {shown(value)}")
    return seconds


def format_duration(seconds: float) -> str:
    """Format a duration >= 0 for display, as text that `parse_duration` reads.

    Below a minute there are three digits, from a minute on whole seconds, and from a day on whole minutes, so that
    there are at most three units. Units that are zero are left out. Below 0.1 us the text is ``0 ms``.

    >>> [format_duration(value) for value in (0.00052, 0.25, 42.0, 61.4, 5400, 183_845)]
    ['0.52 ms', '250 ms', '42 s', '1m1s', '1h30m', '2d3h4m']
    """
    if seconds < 1e-7:  # it would be written as 5e-05 ms, which is not a duration
        return "0 ms"
    if seconds < 0.9995:  # from here on it would be written as 1e+03 ms
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole >= _DAY:
        whole = 60 * round(seconds / 60)
    parts = ((whole // _DAY, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count)


def _is_number(value: Any) -> bool:
    return not isinstance(value, (bool, str, bytes)) and hasattr(type(value), "__float__")


def _finite(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (OverflowError, ValueError):  # ValueError: a decimal that signals
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {shown(value)}")
    return number


@lru_cache(maxsize=256)  # programs read the same few texts again and again
def _read(text: str) -> float | None:
    """Parse a duration into seconds, infinity if too large for a float; return None if it is not a duration."""
    stripped = text.strip().lower()
    try:
        if _BARE.fullmatch(stripped):
            return float(stripped)
        exact = _sum_of_parts(stripped)
        return None if exact is None else float(exact)
    except (OverflowError, ValueError):  # ValueError: a fraction with too many digits
        return math.inf


def _sum_of_parts(text: str) -> Fraction | None:
    """Add up the parts of a text such as ``1h30m`` exactly; return None if it contains anything else."""
    total, position = Fraction(0), 0
    larger: Fraction | None = None  # the previous unit
    while position < len(text):
        match = _PART.match(text, position)
        unit = None if match is None else UNIT_SECONDS.get(match[2])
        if match is None or unit is None or (larger is not None and unit >= larger):
            return None
        total += Fraction(match[1]) * unit
        position, larger = match.end(), unit
    return total if text else None
