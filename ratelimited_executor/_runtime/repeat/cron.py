"""The occurrences of a cron expression in a time zone, each strictly later than the instant asked about.

cronsim reads the expression and walks through the calendar, by the clock face alone. The time zone is applied here, as
cronsim takes the repeated hour for the first one, starts inside of skipped times, and assumes changes by whole hours.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import tzinfo

__all__ = ["cron_times"]

_SHORTHANDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = {  # in their order, by the name that cronsim has for them: what each may consist of
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, L for the last day, LW for the last working day; some month must have the day",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT, 5L for the last Friday, 5#2 for the second; 0 and 7 are Sunday",
}
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_WEEKDAY_RANGE: Final = re.compile(rf"([0-7]|{'|'.join(_WEEKDAYS)})-([0-7]|{'|'.join(_WEEKDAYS)})(?:/([1-9][0-9]*))?")
_RANGE_OF_ONE: Final = re.compile(r"(?<![^,])(\w+)-\1(?:/[1-9][0-9]*)?(?![^,])")  # of which cronsim ignores the end
_BESIDE_STEP: Final = re.compile(r"(^|,)LW?/")  # cronsim ignores the step
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  # a time of the clock face
_DAY_SECONDS: Final = 86_400


def cron_times(expression: str, tz: tzinfo, *, name: str = "cron") -> Callable[[float], float | None]:
    """Return a function from an instant to the first occurrence after it, both in epoch seconds; None if there is none.

    An expression whose minute or hour begins with a star occurs whenever the clock of the zone shows a time that
    matches. Any other expression occurs when the clock first reaches each time: a time that is skipped occurs at the
    end of the gap, and a time that is shown twice occurs once.

    Args:
        expression: five fields, or a shorthand such as ``@daily``.
        tz: the time zone of its fields.
        name: the parameter that errors name.

    Raises:
        ImportError: without the extra ``cron``.
        TypeError: if the expression is not a str.
        ValueError: if the expression is not a valid cron expression, or is never met.
    """
    try:
        from cronsim import CronSim  # noqa: PLC0415  # an extra, imported on use
    except ImportError as error:
        raise ImportError(
            "a cron expression needs the package cronsim: pip install 'ratelimited-executor[cron]'"
        ) from error

    if not isinstance(expression, str):
        raise TypeError(f"{name} must be a str such as '*/5 * * * *', got {expression!r}")
    try:
        fields = _fields_of(expression)
        _check(fields)
    except ValueError as error:
        raise ValueError(
            f"{name} must be a cron expression such as '*/5 * * * *', got {expression!r}: {error}"
        ) from None
    plain = " ".join(fields)
    follows_clock = fields[0].startswith("*") or fields[1].startswith("*")
    instants = _instants_of if follows_clock else _first_instant_of

    def next_after(instant: float) -> float | None:
        local = datetime.fromtimestamp(math.floor(instant), tz)
        shown = local.replace(tzinfo=None, fold=0)
        starts = {shown}
        if follows_clock:  # before the clock goes back, what it will show again may be next
            starts.add(shown - max(_offset(local, fold=0) - _offset(local, fold=1), timedelta()))
        found = (
            next((due for face in CronSim(plain, start) for due in instants(face, tz) if due > instant), None)
            for start in starts
        )
        return min((due for due in found if due is not None), default=None)

    return next_after


def _fields_of(expression: str) -> list[str]:
    """Return the five fields in capitals, with shorthands and ranges over Sunday written out."""
    text = expression.strip().lower()
    if text.startswith("@") and text not in _SHORTHANDS:
        raise ValueError(f"the shorthands are {', '.join(_SHORTHANDS)}")
    fields = _SHORTHANDS.get(text, text).upper().split()
    if len(fields) != len(_FIELDS):
        seconds = " (without seconds: for these, repeat with period=)" if len(fields) == len(_FIELDS) + 1 else ""
        raise ValueError(f"it has {len(fields)} fields, not the five {' '.join(_FIELDS)}{seconds}")
    fields = [_RANGE_OF_ONE.sub(r"\1", field) for field in fields]
    fields[-1] = ",".join(map(_weekdays_of, fields[-1].split(",")))
    return fields


def _weekdays_of(term: str) -> str:
    """Write out a range of weekdays that goes over Sunday, such as SAT-MON; return any other term as it is."""
    match = _WEEKDAY_RANGE.fullmatch(term)
    if match is None:
        return term
    first, last = (_WEEKDAYS.index(day) if day in _WEEKDAYS else int(day) for day in match.group(1, 2))
    if first <= last:
        return term
    return ",".join(str(day % 7) for day in range(first, last + 8, int(match[3] or 1)))


def _check(fields: list[str]) -> None:
    """Refuse fields that cronsim does not read, and an expression that is never met."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415  # an extra, imported on use

    try:
        times = CronSim(" ".join(fields), _EPOCH)
        if _BESIDE_STEP.search(fields[2]):
            raise CronSimError("Bad day-of-month")
    except CronSimError as error:
        field = str(error).removeprefix("Bad ")
        if field not in _FIELDS:
            raise ValueError(error) from None
        text = fields[list(_FIELDS).index(field)]
        upwards = "; ranges go upwards: 22-23,0-2 in place of 22-2" if "-" in text else ""
        raise ValueError(f"the {field} {text!r} is not made of {_FIELDS[field]}{upwards}") from None
    if next(times, None) is None:
        raise ValueError("no date has both its day-of-month and its day-of-week")


def _instants_of(face: datetime, tz: tzinfo) -> Iterator[float]:
    """Yield the instants at which the clock of a zone shows a time, in order: one, two if it is repeated, or none."""
    for instant in sorted({face.replace(tzinfo=tz, fold=fold).timestamp() for fold in (0, 1)}):
        if datetime.fromtimestamp(instant, tz).replace(tzinfo=None) == face:
            yield instant


def _first_instant_of(face: datetime, tz: tzinfo) -> Iterator[float]:
    """Yield the first instant at which the clock of a zone shows a time or, if it skips that time, a later one."""
    for instant in _instants_of(face, tz):
        yield instant
        return
    as_utc = int(face.replace(tzinfo=UTC).timestamp())
    before, after = as_utc - _DAY_SECONDS, as_utc + _DAY_SECONDS  # as offsets are less than a day
    while after - before > 1:  # the gap ends between the two
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, tz).replace(tzinfo=None) < face:
            before = middle
        else:
            after = middle
    yield float(after)


def _offset(local: datetime, *, fold: int) -> timedelta:
    return local.replace(fold=fold).utcoffset() or timedelta()
