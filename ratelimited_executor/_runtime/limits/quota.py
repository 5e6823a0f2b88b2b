"""A number of starts for each day, hour or other calendar period, between two marks of the wall clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from ratelimited_executor._core.escapes import int_of_digits, shown
from ratelimited_executor._core.permits.rates import Rate
from ratelimited_executor._kernel.timeline import NS
from ratelimited_executor._runtime.arguments import count_of, tz_of

__all__ = ["Quota", "period_number", "rate_or_quota"]

_PERIODS: Final = ("minute", "hour", "day", "week", "month")
# Compiled by the first text, and kept by ``re``.
_TEXT: Final = r"(?i)\s*(?P<permits>[0-9][0-9_]*)\s+per\s+(?P<per>[a-z]+)(\s+from\s+(?P<start>[0-9]{1,2}:[0-9]{2}))?(\s+(?P<tz>\S+))?\s*"
_WORDS: Final = r"(?i)\s*(?P<permits>[0-9_.]+)\s+per\s+(?P<count>[0-9.]*)\s*(?P<unit>[a-z]+)\s*"
_DAYS: Final = r"(?i)\s*(?P<permits>[0-9_]+)\s*/\s*(d|days?)\s*"
_START: Final = r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})"


class Quota:
    """A number of permits from one mark of the wall clock to the next; immutable, hashable, compared by value.

    Args:
        permits: the number in each period, >= 0.
        per: the period: ``minute``, ``hour``, ``day``, ``week`` (from Monday) or ``month``.
        start: the time of day, ``HH:MM``, at which days, weeks and months begin.
        tz: the time zone: a name such as ``Europe/London`` or a ``tzinfo``; a day of 23 or 25 hours is one day.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range, or a name is unknown.

    >>> Quota(10_000, per="day", tz="Europe/London")
    Quota(10000, per='day', start='00:00', tz='Europe/London')
    >>> Quota.parse("10000 per day from 00:00 Europe/London") == Quota(10_000, per="day", tz="Europe/London")
    True
    """

    __slots__ = ("_per", "_permits", "_start", "_tz")

    def __init__(
        self,
        permits: int,
        *,
        per: str,
        start: str = "00:00",
        tz: str | tzinfo = UTC,
    ) -> None:
        self._permits = count_of("permits", permits)
        if per not in _PERIODS:
            raise ValueError(f"per must be one of {', '.join(_PERIODS)}, got {per!r}")
        match = re.fullmatch(_START, start) if isinstance(start, str) else None
        if match is None or int(match["hour"]) > 23 or int(match["minute"]) > 59:
            raise ValueError(f"start must be a time of day, 'HH:MM', got {start!r}")
        if per in ("minute", "hour") and (int(match["hour"]), int(match["minute"])) != (0, 0):
            raise ValueError(f"start must be omitted for a quota per {per}")
        self._per = per
        self._start = int(match["hour"]), int(match["minute"])
        self._tz = tz_of("tz", tz)

    @classmethod
    def parse(cls, text: str) -> Quota:
        """Read ``"10000 per day"``, ``"10000 per day from 00:00 Europe/London"`` and their like.

        Raises:
            ValueError: if the text is anything else.
        """
        match = re.fullmatch(_TEXT, text)
        if match is None:
            raise ValueError(f"quota must look like '10000 per day from 00:00 Europe/London', got {shown(text)}")
        return cls(
            int_of_digits(match["permits"].replace("_", "")),
            per=match["per"].lower(),
            start=match["start"] or "00:00",
            tz=match["tz"] or UTC,
        )

    @property
    def permits(self) -> int:
        """The number of permits in each period."""
        return self._permits

    @property
    def per(self) -> str:
        """The period."""
        return self._per

    @property
    def start(self) -> str:
        """The time of day at which days, weeks and months begin."""
        return f"{self._start[0]:02}:{self._start[1]:02}"

    @property
    def tz(self) -> tzinfo:
        """The time zone."""
        return self._tz

    def period(self, time: float) -> tuple[float, float]:
        """Return the beginning and the end of the period that contains a time; all in epoch seconds."""
        begin = self._begin(datetime.fromtimestamp(time, self._tz))
        if begin.timestamp() > time:  # the mark of this day is still to come
            begin = self._begin(self._moved(begin, -1))
        end = self._begin(self._moved(begin, 1))
        while end.timestamp() <= time:
            begin, end = end, self._begin(self._moved(end, 1))
        return begin.timestamp(), end.timestamp()

    def period_ns(self, time_ns: int) -> tuple[int, int]:
        """Return the beginning and the end of the period that contains a time; all in epoch nanoseconds."""
        begin, end = self.period(time_ns // NS)  # marks are whole seconds
        return round(begin) * NS, round(end) * NS

    def _begin(self, local: datetime) -> datetime:
        """Return the mark of the minute, hour, day, week or month that contains a local time."""
        if self._per in ("minute", "hour"):
            # By elapsed time and not by the clock face, which shows one hour twice a year.
            seconds = 60 if self._per == "minute" else 3600
            offset = local.utcoffset() or timedelta()
            into = (local.timestamp() + offset.total_seconds()) % seconds
            return datetime.fromtimestamp(local.timestamp() - into, self._tz)
        day = local.date()
        if self._per == "week":
            day -= timedelta(days=day.weekday())
        elif self._per == "month":
            day = day.replace(day=1)
        return datetime(day.year, day.month, day.day, *self._start, tzinfo=self._tz)

    def _moved(self, mark: datetime, count: int) -> datetime:
        """Return a time in the period after, or before, the one that begins at a mark."""
        if self._per in ("minute", "hour"):
            seconds = count * (60 if self._per == "minute" else 3600)
            return datetime.fromtimestamp(mark.timestamp() + seconds, self._tz)
        days = {"day": 1, "week": 7, "month": 31 if count > 0 else 1}[self._per]
        return mark + timedelta(days=count * days)  # by the clock face: a day is a day, however long

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quota):
            return NotImplemented
        return self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[object, ...]:
        return self._permits, self._per, self._start, str(self._tz)

    def __repr__(self) -> str:
        return f"Quota({self._permits}, per={self._per!r}, start={self.start!r}, tz={str(self._tz)!r})"

    def __str__(self) -> str:
        start = "" if self._per in ("minute", "hour") else f" from {self.start}"
        return f"{self._permits} per {self._per}{start} {self._tz}"


def period_number(quota: Quota, begin: float) -> int:
    """Return the number of a quota's period that begins at a time, in epoch seconds; periods count up by one."""
    if quota.per in ("minute", "hour"):
        return int(begin // (60 if quota.per == "minute" else 3600))
    day = datetime.fromtimestamp(begin, quota.tz).date()
    if quota.per == "month":
        return day.year * 12 + day.month
    return day.toordinal() // 7 if quota.per == "week" else day.toordinal()


def rate_or_quota(text: str) -> Rate | Quota:
    """Read a text as a rate or a quota: a slash means a rate, ``per`` with a day, week or month a quota.

    Raises:
        ValueError: if the text is neither, or could be both.

    >>> rate_or_quota("100/min"), rate_or_quota("100 per minute UTC")
    (Rate(100, per=60), Quota(100, per='minute', start='00:00', tz='UTC'))
    """
    words, days = re.fullmatch(_WORDS, text), re.fullmatch(_DAYS, text)
    for short, unit in (("min", "minute"), ("h", "hour")):
        if words is not None and (words["count"], words["unit"].lower()) == ("", unit):
            raise _unclear(text, f"{words['permits']}/{short}", f"{words['permits']} per {unit} UTC")
    if days is not None:
        raise _unclear(text, f"{days['permits']}/24h", f"{days['permits']} per day")
    if words is not None and words["unit"].lower() not in _PERIODS:
        return Rate.parse(text)  # its error says how to write it
    return Quota.parse(text) if " per " in text else Rate.parse(text)


def _unclear(text: str, rate: str, quota: str) -> ValueError:
    return ValueError(
        f"rate must be either a rate or a quota, got {text!r}: write {rate!r} for an even rate, "
        f"or {quota!r} for a quota that begins anew at each mark of the clock"
    )
