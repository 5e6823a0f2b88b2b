"""Checks of user arguments: each error names the parameter and the remedy, and nothing is changed."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor._core.durations import delay_of, duration_of, number_of, seconds_of
from ratelimited_executor._core.escapes import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratelimited_executor._core.keys.keys import KeyTable

__all__ = [
    "INHERITED",
    "NOT_GIVEN",
    "callable_of",
    "count_of",
    "delay_of",
    "duration_of",
    "flag_of",
    "key_of",
    "member_of",
    "name_or_none",
    "name_remedy",
    "number_of",
    "seconds_of",
    "tz_of",
    "utf8_of",
    "wall_of",
]


E = TypeVar("E", bound=Enum)


class _Mark:
    """The default of a parameter for which None has a meaning of its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


INHERITED: Final[Any] = _Mark("INHERITED")  # the executor's setting applies
NOT_GIVEN: Final[Any] = _Mark("NOT_GIVEN")


_REMEDIES: Final = {
    "delay": "use schedule(delay=) or call_later()",
    "at": "use schedule(at=)",
    "over": "use schedule_many(over=)",
    "retries": "use retry=Retry(attempts=...)",
    "weight": "use key= and order=Fair(weights=...)",
}


def name_remedy(names: Iterable[str]) -> None:
    """Refuse unknown keyword arguments if one of them has a known replacement, which the error names."""
    for name in names:
        if name in _REMEDIES:
            raise TypeError(f"unknown argument {name}=: {_REMEDIES[name]}")


def wall_of(name: str, value: Any) -> float:
    """Return epoch seconds of an aware datetime or a number."""
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise ValueError(f"{name} must be an aware datetime, got the naive {value!r}: add a tzinfo, such as UTC")
        if _is_unlocalized(value):
            raise ValueError(
                f"{name} must be an aware datetime, got {value!r} with the local mean time of a pytz zone: "
                f"localize it, or take the zone {str(value.tzinfo)!r} of zoneinfo"
            )
        return value.timestamp()
    if isinstance(value, (str, bytes, timedelta)):
        raise TypeError(f"{name} must be an aware datetime or epoch seconds, got {value!r}")
    return number_of(name, value)


def _is_unlocalized(value: datetime) -> bool:
    """Return True for a datetime built with ``tzinfo=pytz.timezone(...)``, whose offset never was that of the zone."""
    zone: Any = value.tzinfo
    pytz = sys.modules.get("pytz")
    if pytz is None or getattr(zone, "zone", None) is None or not hasattr(zone, "localize"):
        return False
    return zone is pytz.timezone(zone.zone) and bool(zone.normalize(value).utcoffset() != value.utcoffset())


def tz_of(name: str, value: Any) -> tzinfo:
    """Return a time zone, given by its name or as a tzinfo; a zone of pytz becomes the one of its name."""
    if isinstance(value, tzinfo):
        # A zone of pytz is a tzinfo of one constant offset, which its own localize() would have to replace at each use.
        if hasattr(value, "localize") and isinstance(zone := getattr(value, "zone", None), str):
            return tz_of(name, zone)
        try:
            offset = datetime.fromtimestamp(0, value).utcoffset()
        except NotImplementedError:
            offset = None
        if offset is None:
            raise ValueError(
                f"{name} must be a tzinfo with offsets from UTC, such as a zone of zoneinfo, got {value!r}"
            )
        return value
    if not isinstance(value, str):
        raise TypeError(f"{name} must be the name of a time zone, such as Europe/London, or a tzinfo, got {value!r}")
    if value.upper() == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, available_timezones  # noqa: PLC0415  # many programs name no zone

    try:
        return ZoneInfo(value)
    except (KeyError, ValueError, OSError) as error:
        remedy = "" if available_timezones() else ": this system has no time zones, pip install tzdata"
        raise ValueError(
            f"{name} must be the name of a time zone, such as Europe/London, got {value!r}{remedy}"
        ) from error


def count_of(name: str, value: Any, *, least: int = 0) -> int:
    """Return an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {shown(value)}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {shown(value)}")
    return value


def key_of(name: str, value: Any, keys: KeyTable) -> Any:
    """Return the stored form of a key.

    Raises:
        TypeError: if it is not hashable.
    """
    try:
        return keys.held(value)
    except TypeError:
        raise TypeError(f"{name} must be hashable, such as a str or an int, got {value!r}") from None


def callable_of(name: str, value: Any) -> Any:
    """Return a callable; refuse a coroutine object, a frequent mistake, with an error of its own."""
    if callable(value):
        return value
    if asyncio.iscoroutine(value):
        message = (
            f"{name} must be a callable, got the coroutine {value!r}: pass the function and its arguments, uncalled"
        )
        value.close()
        raise TypeError(message)
    raise TypeError(f"{name} must be a callable, got {value!r}")


def member_of(name: str, value: Any, kind: type[E]) -> E:
    """Return a member of an enumeration."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise TypeError(f"{name} must be {article} {kind.__name__}, one of {members}, got {value!r}")
    return value


def flag_of(name: str, value: Any, *, hint: str = "") -> bool:
    """Return a bool; refuse texts and numbers."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}{hint}")
    return value


def utf8_of(name: str, value: str) -> str:
    """Refuse a text that can be neither written to a log nor sent to a server."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be a str that UTF-8 can write, without lone surrogates, got {value!r}") from None
    return value


def name_or_none(name: str, value: Any) -> str | None:
    """Return a str or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str or None, got {value!r}")
    return value
