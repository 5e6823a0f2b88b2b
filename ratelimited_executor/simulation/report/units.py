"""Formats of numbers and times in reports, and the units of axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durations import format_duration

if TYPE_CHECKING:
    from ratelimited_executor.simulation.summary import ObjectiveSummary

__all__ = [
    "DAY",
    "HOUR",
    "MINUTE",
    "NONE",
    "SHOWN_SECONDS",
    "Unit",
    "delay_text",
    "duration",
    "kept_text",
    "number",
    "objective_text",
    "round_ticks",
    "tick_distance",
    "time_axis_unit",
    "unit_for",
]

MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86400.0
NONE: Final = "\N{EN DASH}"
"""The text of a value that there is not."""
SHOWN_SECONDS: Final = 1e-4
"""A shorter delay counts as none."""

_ZERO: Final = 1e-6  # seconds: a shorter duration counts as zero
_TICK_COUNT: Final = 6  # distances between ticks, at most
_ROUNDING: Final = 1e-9  # a value that is a tick but for rounding


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of time.

    Attributes:
        name: in the plural, for the label of an axis.
        sign: for ticks.
        seconds: its length.
    """

    name: str
    sign: str
    seconds: float


_MILLISECONDS: Final = Unit("milliseconds", "ms", 1e-3)
_SECONDS: Final = Unit("seconds", "s", 1.0)
_MINUTES: Final = Unit("minutes", "min", MINUTE)
_HOURS: Final = Unit("hours", "h", HOUR)
_DAYS: Final = Unit("days", "d", DAY)


def unit_for(seconds: float) -> Unit:
    """Return the unit in which values up to a number of seconds are easy to read."""
    if seconds < 1:
        return _MILLISECONDS
    if seconds < 5 * MINUTE:
        return _SECONDS
    if seconds < 5 * HOUR:
        return _MINUTES
    return _HOURS if seconds < 5 * DAY else _DAYS


def time_axis_unit(span: float) -> Unit:
    """Return the unit of a time axis of a given length: minutes up to 3 hours, hours up to 3 days, days beyond."""
    if span <= 3 * HOUR:
        return _MINUTES
    return _HOURS if span <= 3 * DAY else _DAYS


def tick_distance(length: float) -> float:
    """Return a distance that gives at most 14 ticks on an axis with a length in hours, minutes or days."""
    for distance in (1, 2, 3, 6, 7, 12, 14, 28):
        if length / distance <= 14:
            return distance
    return 28.0 * math.ceil(length / (14 * 28))


def duration(seconds: float) -> str:
    """Return a duration, which may be zero or negative, as the terminal shows it.

    >>> duration(0), duration(0.0042), duration(200), duration(-7 * 86400)
    ('0 s', '4.2 ms', '3m20s', '-7d')
    """
    if seconds < 0:
        return f"-{duration(-seconds)}"
    return "0 s" if seconds <= _ZERO else format_duration(seconds)


def delay_text(seconds: float | None) -> str:
    """Return a delay; one that is too short to matter is 0.

    >>> delay_text(90), delay_text(0.00005)
    ('1m30s', '0')
    """
    return NONE if seconds is None else format_duration(seconds) if seconds >= SHOWN_SECONDS else "0"


def objective_text(each: ObjectiveSummary) -> str:
    """Return what an objective demands."""
    return f"{each.percent:g} % within {format_duration(each.within)} in each {format_duration(each.each)}"


def kept_text(each: ObjectiveSummary) -> str:
    """Return whether an objective was kept."""
    if not each.is_decided:
        return "not decided, as the run is too short"
    return f"missed in {each.missed} of {each.periods + each.undecided}" if each.missed else "kept"


def number(value: float) -> str:
    """Return a number with commas for thousands; a number that is not whole has at least three digits.

    >>> number(1234567), number(3.14159), number(12345.6)
    ('1,234,567', '3.14', '12,346')
    """
    if not math.isfinite(value):
        return str(value)
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def round_ticks(least: float, most: float, unit: Unit | None = None) -> list[tuple[float, str]]:
    """Return ticks of an axis from a round value <= least to one >= most: five to seven as a rule, with their texts.

    Args:
        least: the least value, in seconds if there is a unit.
        most: the largest value, likewise.
        unit: the unit of the texts, of values that are durations.

    >>> [text for _, text in round_ticks(3.2, 11)], [text for _, text in round_ticks(0, 290, unit_for(290))]
    (['2', '4', '6', '8', '10', '12'], ['0 s', '50 s', '100 s', '150 s', '200 s', '250 s', '300 s'])
    """
    scale, sign = (1.0, "") if unit is None else (unit.seconds, f" {unit.sign}")
    low, high = least / scale, most / scale
    rough = (high - low or abs(high) or 1.0) / _TICK_COUNT
    power = math.floor(math.log10(rough))
    distance = next(float(f"{factor}e{power}") for factor in (1, 2, 5, 10) if factor * 10.0**power >= rough)
    places = max(0, -math.floor(math.log10(distance)))
    first, last = math.floor(low / distance + _ROUNDING), math.ceil(high / distance - _ROUNDING)
    numbers = range(first, max(first + 1, last) + 1)
    return [(number * distance * scale, f"{number * distance:,.{places}f}{sign}") for number in numbers]
