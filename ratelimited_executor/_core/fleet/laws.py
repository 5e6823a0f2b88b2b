"""The laws of limits that a fleet shares by joint admission: pure state machines over text.

``laws.lua`` of ``peers/redis`` has the same rules for the script: one test suite covers both, and a rule is changed in
both. All times are whole microseconds of the server's clock below 2**53, so that Lua's doubles hold them exactly.

A *ticket* is admitted at t and used at some time in [t, t + valid]: its *start*. The laws limit starts. So a ticket is
admitted as if it started at t, and counts afterwards as if it had started at its *last moment* u = t + valid. Then for
tickets i and j, admitted in this order, whose starts both lie in [a, b]: a <= u(i) and t(j) <= b.

**Pace**: two starts are a gap times the cost of the first apart, less ``valid`` and a microsecond. The state is the
time T at which the next start is due (GCRA, ITU-T I.371). A ticket at t >= T moves T to t + gap * cost; it keeps T's
fraction of a microsecond if t is T rounded up. So admissions are more than gap * costs - 1 us apart, starts ``valid``
less. With the stretch of :func:`exact_stretch`, any second holds no more starts than the rate allows, and longer times
in proportion.

**Burst**: starts in [a, b] cost ``capacity`` + (b - a) / gap at most. The state is the time T at which the bucket is
full: max over i of u(i) + gap * (costs from i on). A ticket needs T + gap * cost <= t + gap * capacity, which means for
each i: costs from i to j <= capacity + (t(j) - u(i)) / gap, and that is <= capacity + (b - a) / gap. Alone it needs
cost <= capacity. Under constant demand the whole rate is used if capacity >= cost + valid / gap.

**Window**: starts in [a, a + width] cost ``amount`` at most. The log holds u and cost of each ticket, in 64 parts of
width + valid: all tickets of a part count at the latest u among them. A ticket at t needs room for all with u >= t -
width; if it starts at b <= a + width, then t <= b, and all i with starts in [a, b] have u(i) >= a >= t - width.

**Quota**: starts that any process's calendar may put into a period cost ``amount`` at most. Calendars differ by
``late`` at most, so a ticket may be used in a period if [t - late, t + valid + late] touches it, and counts in each
such period.

**Cost 0**: such a ticket is admitted as soon as the limit is not in *deficit*: costs added to earlier tickets have used
more than there was, or a pace is not paid for. It changes nothing. A cost that is added later counts at its last moment.

**Corrected costs**: :meth:`SharedLimit.add` is never refused, and later tickets wait. :meth:`SharedLimit.give_back`
returns an amount that surely was not used, by the ticket's *receipt*. In the window and the quota the ticket's part of
the log gets smaller. The pace gets back only the last ticket. A bucket might have overflowed meanwhile: for a ticket k
that left T(k) it gets back gap * cost at most, and no more than T(k) - u(last) less the returns since. For a ticket i
after k counted gap * (costs from k + 1 on) above T(k), its own chain from u(i) <= u(last) is at most that much below T,
so T stays above it.

**Changed settings** apply from the next admission on, together with everything that the state remembers. A lowered
amount or capacity, or a longer gap, is kept by the first ticket after the change, together with those before. A raised
one never lets more start than the raised limit. For a burst, time until the last admission counts by the old gap, and
after it by the new one. A longer window does not know what a shorter one has forgotten. A quota of another calendar
counts everything that the old one remembers as used in its running period. A state that was removed at rest is not
remembered. A ticket keeps its original last moment.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from hashlib import sha1
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DRIFT",
    "BurstSettings",
    "Decision",
    "LimitSettings",
    "PaceSettings",
    "QuotaSettings",
    "SharedLimit",
    "Use",
    "WindowSettings",
    "decide",
    "exact_stretch",
    "read_limit",
    "read_settings",
]

DRIFT: Final = Fraction(500, 1_000_000)  # the largest drift between two clocks

_PS: Final = 1_000_000  # picoseconds in a microsecond
_WHOLE_MAX: Final = 1 << 53  # integers below it are exact in Lua, too
_AMOUNT_MAX: Final = 1 << 52
_FAR_US: Final = 1 << 50  # 35 years: a gap of this length is a pause
_VALID_MAX_US: Final = 60_000_000  # of a ticket; and of ``late``
_AHEAD_MAX_US: Final = 600_000_000  # how far the times of a sound state may be ahead of the clock
_PARTS: Final = 64
_TEXT_MAX: Final = 136  # characters of sound settings, and of any state except a window's
_NUMBER: Final = r"([0-9]+)"


def exact_stretch(valid_us: int) -> Fraction:
    """Return the stretch of a pace with which no second holds more starts than its rate allows."""
    return Fraction(valid_us + 1, 1_000_000) + DRIFT


# Settings.


@dataclass(frozen=True, slots=True)
class LimitSettings(ABC):
    """The settings of a limit, as peers send them: integers that fit into Lua's doubles."""

    letter: ClassVar[str]

    def write(self) -> str:
        """Return the text of the settings, as scripts read it."""
        return ",".join([self.letter, *(str(getattr(self, each.name)) for each in fields(self))])

    @property
    @abstractmethod
    def is_sound(self) -> bool:
        """True if all numbers are within their bounds."""

    def read(self, text: str | None, now_us: int) -> SharedLimit | None:
        """Return the limit in the state of a text; None if the text is not sound."""
        limit = self.at_rest(now_us)
        return limit if not text or limit.load(text) else None

    @abstractmethod
    def at_rest(self, now_us: int) -> SharedLimit:
        """Return the limit without a state."""


@dataclass(frozen=True, slots=True)
class PaceSettings(LimitSettings):
    """One start of cost 1 in each gap.

    Attributes:
        gap_us: the gap in microseconds; 2**50 pauses.
        gap_ps: the rest of the gap in picoseconds.
    """

    letter: ClassVar[str] = "p"
    gap_us: int
    gap_ps: int

    @classmethod
    def of(cls, count: int, per_us: int, *, stretch: Fraction = DRIFT) -> PaceSettings:
        """Return a pace of ``count`` in ``per_us``, with each gap longer by a part of it."""
        return cls(*_gap_of(count, per_us, stretch))

    @property
    def is_sound(self) -> bool:
        """True if all numbers are within their bounds."""
        return _is_gap(self.gap_us, self.gap_ps)

    def at_rest(self, now_us: int) -> SharedLimit:
        """Return the limit without a state."""
        return _Bucket(self.gap_us * _PS + self.gap_ps, None, 0, now_us)


@dataclass(frozen=True, slots=True)
class BurstSettings(LimitSettings):
    """A token bucket.

    Attributes:
        capacity: the most that it holds.
        gap_us: the time in which it gains one, in microseconds; 2**50 pauses.
        gap_ps: the rest of the gap in picoseconds.
        valid_us: how long a ticket may be used.
    """

    letter: ClassVar[str] = "b"
    capacity: int
    gap_us: int
    gap_ps: int
    valid_us: int

    @classmethod
    def of(cls, capacity: int, count: int, per_us: int, *, valid_us: int) -> BurstSettings:
        """Return a bucket that gains ``count`` in ``per_us`` at most, by any clock.

        Raises:
            ValueError: if it takes more than 35 years to fill.
        """
        made = cls(capacity, *_gap_of(count, per_us, DRIFT), valid_us)
        if not made.is_sound:
            raise ValueError(f"a bucket of {capacity} at {count} in {per_us} us takes longer than 35 years to fill")
        return made

    @property
    def is_sound(self) -> bool:
        """True if all numbers are within their bounds."""
        if not _is_gap(self.gap_us, self.gap_ps) or self.valid_us > _VALID_MAX_US or self.capacity > _AMOUNT_MAX:
            return False
        gap = self.gap_us * _PS + self.gap_ps
        return self.gap_us >= _FAR_US or _span(self.capacity, gap) < _FAR_US * _PS

    def at_rest(self, now_us: int) -> SharedLimit:
        """Return the limit without a state."""
        return _Bucket(self.gap_us * _PS + self.gap_ps, self.capacity, self.valid_us, now_us)


@dataclass(frozen=True, slots=True)
class WindowSettings(LimitSettings):
    """At most an amount in any window.

    Attributes:
        amount: the most that starts in a window may cost.
        width_us: of the window, by the server's clock.
        valid_us: how long a ticket may be used.
    """

    letter: ClassVar[str] = "w"
    amount: int
    width_us: int
    valid_us: int

    @classmethod
    def of(cls, amount: int, per_us: int, *, valid_us: int) -> WindowSettings:
        """Return a window of at least ``per_us`` by any clock."""
        return cls(amount, -(per_us * (1 + DRIFT) // -1), valid_us)

    @property
    def is_sound(self) -> bool:
        """True if all numbers are within their bounds."""
        return self.amount <= _AMOUNT_MAX and 0 < self.width_us < _FAR_US and self.valid_us <= _VALID_MAX_US

    def at_rest(self, now_us: int) -> SharedLimit:
        """Return the limit without a state."""
        return _Window(self, now_us)


@dataclass(frozen=True, slots=True)
class QuotaSettings(LimitSettings):
    """At most an amount in each period of a calendar.

    Attributes:
        amount: the most that starts in a period may cost.
        calendar: identifies the calendar: periods of different calendars are unrelated.
        number: of the running period; the next one is ``number + 1``.
        begin_us: when the running period begins.
        end_us: when the running period ends and the next one begins.
        next_end_us: when the next period ends.
        valid_us: how long a ticket may be used.
        late_us: the largest difference between clocks and calendars.
    """

    letter: ClassVar[str] = "q"
    amount: int
    calendar: int
    number: int
    begin_us: int
    end_us: int
    next_end_us: int
    valid_us: int
    late_us: int

    @property
    def is_sound(self) -> bool:
        """True if all numbers are within their bounds."""
        lead = self.valid_us + self.late_us
        return (
            self.amount <= _AMOUNT_MAX
            and self.number >= 1
            and lead <= self.begin_us
            and max(self.valid_us, self.late_us) <= _VALID_MAX_US
            and min(self.end_us - self.begin_us, self.next_end_us - self.end_us) > lead + self.late_us
        )

    def at_rest(self, now_us: int) -> SharedLimit:
        """Return the limit without a state."""
        return _Quota(self, now_us)


def _gap_of(count: int, per_us: int, stretch: Fraction) -> tuple[int, int]:
    """Return a gap in microseconds and picoseconds, rounded up."""
    if count == 0:
        return _FAR_US, 0
    gap = -(per_us * _PS * (1 + stretch) // -count)
    return (gap // _PS, gap % _PS) if gap < _FAR_US * _PS else (_FAR_US, 0)


def _is_gap(gap_us: int, gap_ps: int) -> bool:
    return gap_us <= _FAR_US and gap_ps < _PS and gap_us + gap_ps > 0


def _span(cost: int, gap: int) -> int:
    """Return cost times gap in picoseconds, at most 35 years."""
    return min(cost * gap, _FAR_US * _PS)


def _level(time: int, gap: int) -> int:
    """Return picoseconds divided by a gap, rounded up."""
    return min(-(min(time, _FAR_US * _PS) // -gap), _AMOUNT_MAX)


# Limits.


@dataclass(frozen=True, slots=True)
class Use:
    """How much of a limit is used.

    Attributes:
        used: the part of ``amount`` in use; may exceed it after corrected costs.
        amount: the most that the limit admits.
        until_us: when everything used is free again.
    """

    used: int
    amount: int
    until_us: int


class SharedLimit(ABC):
    """One limit: its settings, and its state.

    Attributes:
        foreseen_us: the last time for which it can decide.
        is_changed: True once its text has changed.
    """

    __slots__ = ("foreseen_us", "is_changed")

    def __init__(self, foreseen_us: float = float("inf")) -> None:
        self.foreseen_us = foreseen_us
        self.is_changed = False

    @abstractmethod
    def earliest(self, t_us: int, cost: int) -> int | None:
        """Return the first time from ``t_us`` on at which a cost >= 0 is admitted; None if never."""

    @abstractmethod
    def take(self, t_us: int, cost: int) -> int:
        """Admit a cost at a time that :meth:`earliest` returned; return the receipt."""

    @abstractmethod
    def give_back(self, t_us: int, cost: int, receipt: int) -> None:
        """Return a part of a ticket's cost at ``t_us`` that surely was not used, and will not be."""

    @abstractmethod
    def add(self, t_us: int, cost: int, receipt: int) -> None:
        """Charge a ticket of ``t_us`` an additional cost."""

    @abstractmethod
    def redate(self, t_us: int) -> None:
        """Count everything that the state remembers as used at ``t_us``, which becomes the present."""

    @abstractmethod
    def is_at_rest(self, now_us: int) -> bool:
        """True if a limit without a state would behave the same from now on."""

    @abstractmethod
    def use(self, now_us: int) -> Use:
        """Return how much is used."""

    @abstractmethod
    def load(self, text: str) -> bool:
        """Load a state; return False if it is not sound."""

    @abstractmethod
    def write(self) -> str:
        """Return the text of the state."""


class _Bucket(SharedLimit):
    """A burst, or without a capacity a pace: ``g1,at,born,T,ps of T,returned,gap,ps of gap``.

    ``at`` is the latest last moment of a ticket, and ``born`` the first t whose ticket can be given back.
    T counts by the state's own gap, which was in force at the last admission.
    """

    __slots__ = ("_at", "_born", "_capacity", "_full", "_gap", "_now", "_returned", "_set_gap", "_valid")

    _FORM: Final = re.compile(r"g1" + f",{_NUMBER}" * 7, re.ASCII)

    def __init__(self, gap: int, capacity: int | None, valid_us: int, now_us: int) -> None:
        super().__init__()
        self._set_gap = self._gap = gap
        self._capacity, self._valid, self._now = capacity, valid_us, now_us
        self._at = self._born = now_us
        self._full = now_us * _PS  # T
        self._returned = 0

    def load(self, text: str) -> bool:
        numbers = _numbers(self._FORM, text)
        if numbers is None:
            return False
        self._at, self._born, full_us, full_ps, self._returned, gap_us, gap_ps = numbers
        self._full, self._gap = full_us * _PS + full_ps, gap_us * _PS + gap_ps
        latest = self._now + _AHEAD_MAX_US
        return (
            max(self._at, self._born) <= latest
            and full_ps < _PS
            and full_us < latest + _FAR_US
            and self._returned <= _FAR_US
            and _is_gap(gap_us, gap_ps)
        )

    def write(self) -> str:
        numbers = (self._at, self._born, *divmod(self._full, _PS), self._returned, *divmod(self._gap, _PS))
        return ",".join(["g1", *map(str, numbers)])

    def earliest(self, t_us: int, cost: int) -> int | None:
        if cost * (self._set_gap // _PS) >= _FAR_US:
            return None
        if self._capacity is None:
            return max(t_us, _ceil(self._due()))
        if cost > self._capacity:
            return None
        return max(t_us, _ceil(self._due() - _span(self._capacity - cost, self._set_gap)))

    def take(self, t_us: int, cost: int) -> int:
        if not cost:
            return self._full // _PS + self._returned
        if self._gap != self._set_gap:
            self._full, self._gap = self._due(), self._set_gap
            self._born = max(self._at, t_us) + 1  # earlier receipts have another unit
        last = t_us + self._valid
        begin = self._full
        if begin < last * _PS and (self._capacity is not None or _ceil(begin) < last):
            begin = last * _PS
        self._full = begin + _span(cost, self._gap)
        self._at = max(self._at, last)
        self.is_changed = True
        return self._full // _PS + self._returned

    def give_back(self, t_us: int, cost: int, receipt: int) -> None:
        left = min(receipt, self._full // _PS + self._returned) - self._returned - self._at
        back = min(_span(cost, self._gap), left * _PS)
        if t_us < self._born or back <= 0 or self._returned + _ceil(back) > _FAR_US:
            return
        self._full -= back
        self._returned += _ceil(back)
        self.is_changed = True

    def add(self, t_us: int, cost: int, receipt: int) -> None:  # noqa: ARG002  # the signature of a limit
        last = t_us + self._valid
        if last > self._at:  # of a ticket of cost 0, which has changed nothing, or of a changed ``valid``
            owed = max(0, self._full - self._at * _PS) if self._at >= t_us else 0
            self._at, self._full = last, max(self._full, last * _PS + owed)
        self._full = max(self._full, min(self._full + _span(cost, self._gap), (self._now + _FAR_US) * _PS))
        self.is_changed = True

    def redate(self, t_us: int) -> None:
        owed = max(0, self._full - self._at * _PS)
        self._now, self._at, self._born = t_us, t_us + self._valid, t_us + self._valid + 1
        self._full = self._at * _PS + min(owed, _FAR_US * _PS)
        self._returned = 0
        self.is_changed = True

    def is_at_rest(self, now_us: int) -> bool:
        return self._due() <= now_us * _PS

    def use(self, now_us: int) -> Use:
        due = self._due()
        used = max(0, _level(due - (now_us + self._valid) * _PS, self._set_gap))
        return Use(used, 1 if self._capacity is None else self._capacity, max(now_us, _ceil(due)))

    def _due(self) -> int:
        """Return T by the gap that is set: each whole cost open at the last admission takes that gap."""
        if self._gap == self._set_gap or self._full <= self._at * _PS:
            return self._full
        level = _level(self._full - self._at * _PS, self._gap)
        return self._at * _PS + _span(level, self._set_gap)


class _Window(SharedLimit):
    """A log in parts: ``w1,check,last,gone,closed,total,u,amount;`` for the latest, ``us:amount,`` for each earlier one.

    ``last`` is the latest t. ``gone`` is the latest u that has left the log; the times of parts count from it.
    ``closed`` is the u of the part before the latest. The check covers the text behind it, so that parts need not be
    read to be trusted: a part is read when it leaves the log.
    """

    __slots__ = ("_gone", "_last", "_now", "_parts", "_settings", "_total")

    _FORM: Final = re.compile(r"w1,([0-9a-f]{8}),(" + ",".join([_NUMBER] * 6) + r";((?:[0-9]+:[0-9]+,)*))", re.ASCII)

    def __init__(self, settings: WindowSettings, now_us: int) -> None:
        super().__init__()
        self._settings, self._now = settings, now_us
        self._last = self._gone = self._total = 0
        self._parts: list[list[int]] = []  # [u, amount], in order; none without a state

    def load(self, text: str) -> bool:
        match = self._FORM.fullmatch(text)
        if match is None or match[1] != _check(match[2]):
            return False
        self._last, self._gone, _, self._total, latest, amount = map(int, match.groups()[2:8])
        time = self._gone
        for each in match[9].split(",")[:-1]:
            gap, cost = map(int, each.split(":"))
            time += gap
            self._parts.append([time, cost])
        self._parts.append([latest, amount])
        return max(self._last, latest) <= self._now + _AHEAD_MAX_US

    def write(self) -> str:
        texts, time = [], self._gone
        for last, cost in self._parts[:-1]:
            texts.append(f"{last - time}:{cost},")
            time = last
        latest, amount = self._parts[-1]
        body = f"{self._last},{self._gone},{time},{self._total},{latest},{amount};{''.join(texts)}"
        return f"w1,{_check(body)},{body}"

    def earliest(self, t_us: int, cost: int) -> int | None:
        if cost > self._settings.amount:
            return None
        when, room = max(t_us, self._last), self._settings.amount - self._total
        for last, amount in self._parts:
            if room >= cost:
                break
            room += amount
            when = max(when, last + self._settings.width_us + 1)
        return when

    def take(self, t_us: int, cost: int) -> int:
        last = t_us + self._settings.valid_us
        if not cost:
            return last
        self._gone = self._gone if self._parts else last - 1
        while self._parts and self._parts[0][0] + self._settings.width_us < t_us:
            self._gone, amount = self._parts.pop(0)
            self._total -= amount
        self._last = t_us
        return self._log(last, cost)

    def give_back(self, t_us: int, cost: int, receipt: int) -> None:  # noqa: ARG002  # the receipt decides
        part = self._part_of(receipt)
        if part is not None:
            back = min(cost, part[1])
            part[1] -= back
            self._total -= back
            self.is_changed = True

    def add(self, t_us: int, cost: int, receipt: int) -> None:  # noqa: ARG002  # as above
        more = max(0, min(cost, _AMOUNT_MAX - self._total))
        if more and receipt + self._settings.width_us >= self._last:
            receipt = max(receipt, self._gone + 1)  # a ticket of cost 0 may be older than the log
        part = self._part_of(receipt)
        if part is not None:
            part[1], self._total, self.is_changed = part[1] + more, self._total + more, True
        elif more and receipt > self._gone:  # of a ticket of cost 0
            self._gone = self._gone if self._parts else receipt - 1
            self._log(receipt, more)

    def redate(self, t_us: int) -> None:
        self._now = t_us
        if self._parts:
            last = t_us + self._settings.valid_us
            self._last, self._gone = t_us, last - 1
            self._parts = [[last, self._total]]
            self.is_changed = True

    def is_at_rest(self, now_us: int) -> bool:
        return not self._parts or max(self._parts[-1][0] + self._settings.width_us, self._last - 1) < now_us

    def use(self, now_us: int) -> Use:
        width = self._settings.width_us
        used = sum(amount for last, amount in self._parts if last + width >= now_us)
        until = max(now_us, self._parts[-1][0] + width + 1) if self._parts else now_us
        return Use(used, self._settings.amount, until)

    def _log(self, last: int, cost: int) -> int:
        """Count a cost at a time, or at the latest one if that is later; return this time."""
        self.is_changed = True
        self._total += cost
        latest = self._parts[-1] if self._parts else [0, 0]
        last = max(last, latest[0])
        part = -((self._settings.width_us + self._settings.valid_us) // -_PARTS)
        if self._parts and latest[0] // part == last // part:
            latest[:] = last, latest[1] + cost
        else:
            self._parts.append([last, cost])
        return last

    def _part_of(self, receipt: int) -> list[int] | None:
        """Return the part in which a ticket counts; None if the part has left the log."""
        if receipt <= self._gone:
            return None
        return next((part for part in self._parts if part[0] >= receipt), None)


class _Quota(SharedLimit):
    """The used amounts of four periods: ``q1,calendar,number,born,`` and those of ``number`` - 2 to + 1.

    ``born`` is the first t whose ticket can be given back.
    """

    __slots__ = ("_born", "_now", "_number", "_settings", "_used")

    _FORM: Final = re.compile(r"q1" + f",{_NUMBER}" * 7, re.ASCII)

    def __init__(self, settings: QuotaSettings, now_us: int) -> None:
        super().__init__(settings.next_end_us - settings.valid_us - settings.late_us - 1)
        self._settings, self._now = settings, now_us
        self._number, self._born = settings.number, now_us
        self._used = [0, 0, 0, 0]

    def load(self, text: str) -> bool:
        numbers = _numbers(self._FORM, text)
        if numbers is None or numbers[2] > self._now + _AHEAD_MAX_US or max(numbers[3:]) > _AMOUNT_MAX:
            return False
        calendar, number, born, *used = numbers
        settings = self._settings
        if calendar != settings.calendar:
            total = min(sum(used), _AMOUNT_MAX)
            is_ending = self._now + _AHEAD_MAX_US >= settings.end_us - settings.valid_us - settings.late_us
            self._used = [total, total, total, total if is_ending else 0]
            return True
        self._number, self._born = max(number, settings.number), born
        shift = min(self._number - number, 4)
        self._used = used[shift:] + [0] * shift
        return True

    def write(self) -> str:
        return ",".join(["q1", *map(str, (self._settings.calendar, self._number, self._born, *self._used))])

    def earliest(self, t_us: int, cost: int) -> int | None:
        settings = self._settings
        if cost > settings.amount:
            return None
        when: int | None = t_us
        while when is not None:
            first, count, following = self._periods(when)
            if count and all(self._used_in(first + each) + cost <= settings.amount for each in range(count)):
                return when
            when = following
        return max(t_us, settings.next_end_us + settings.late_us)  # or later: the end of the period after is not known

    def take(self, t_us: int, cost: int) -> int:
        if cost:
            self.add(t_us, cost, t_us)
        return t_us

    def give_back(self, t_us: int, cost: int, receipt: int) -> None:  # noqa: ARG002  # the time decides
        first, count, _ = self._periods(t_us)
        if count == 1 and t_us >= self._born:  # near a boundary, another peer may have seen it on one side only
            place = first - self._number + 2
            if 0 <= place < 4:
                self._used[place] = max(0, self._used[place] - cost)
                self.is_changed = True

    def add(self, t_us: int, cost: int, receipt: int) -> None:  # noqa: ARG002  # as above
        first, count, following = self._periods(t_us)
        begin, end = first - self._number + 2, first - self._number + 2 + count
        if not count:  # some period before the known ones, or after
            begin, end = (begin, 4) if following is None else (0, begin + 1)
        for place in range(max(begin, 0), min(end, 4)):
            self._used[place] = min(self._used[place] + cost, _AMOUNT_MAX)
            self.is_changed = True

    def redate(self, t_us: int) -> None:
        self._now, self._born = t_us, t_us + self._settings.valid_us + 1
        self.is_changed = True

    def is_at_rest(self, now_us: int) -> bool:
        if now_us >= self._settings.next_end_us + self._settings.late_us:
            return True  # by every calendar; the end of the period after is not known
        first = self._periods(now_us)[0]
        return not any(self._used[max(0, first - self._number + 2) :])

    def use(self, now_us: int) -> Use:
        settings = self._settings
        is_over = now_us >= settings.end_us
        used = self._used_in(settings.number + is_over)
        return Use(used, settings.amount, settings.next_end_us if is_over else settings.end_us)

    def _used_in(self, number: int) -> int:
        """Return how much of a period was used; the largest amount if that is forgotten."""
        place = number - self._number + 2
        if place < 0:
            return _AMOUNT_MAX
        return self._used[place] if place < 4 else 0

    def _periods(self, t_us: int) -> tuple[int, int, int | None]:
        """Return the first period in which a ticket may be used, how many, and until when that holds.

        The number of periods is 0 outside the settings' periods; the time is None if no known period follows.
        """
        settings = self._settings
        number, lead, late = settings.number, settings.valid_us + settings.late_us, settings.late_us
        if t_us < settings.begin_us - lead:
            return number - 1, 0, settings.begin_us - lead
        if t_us < settings.begin_us + late:
            return number - 1, 2, settings.begin_us + late
        if t_us < settings.end_us - lead:
            return number, 1, settings.end_us - lead
        if t_us < settings.end_us + late:
            return number, 2, settings.end_us + late
        if t_us < settings.next_end_us - lead:
            return number + 1, 1, settings.next_end_us - lead
        return number + 1, 0, None


# Texts.

_SETTINGS: Final[dict[str, type[LimitSettings]]] = {
    each.letter: each for each in (PaceSettings, BurstSettings, WindowSettings, QuotaSettings)
}


@lru_cache(maxsize=256)  # keys share a handful of settings
def read_settings(text: str) -> LimitSettings | None:
    """Return the settings in a text; None if they are not sound."""
    made = _SETTINGS.get(text[:1])
    if made is None:
        return None
    numbers = _numbers(re.compile(r"[a-z]" + f",{_NUMBER}" * len(fields(made)), re.ASCII), text)
    settings = None if numbers is None else made(*numbers)
    return settings if settings is not None and settings.is_sound else None


def read_limit(settings: str, state: str | None, now_us: int) -> SharedLimit | None:
    """Return the limit of settings and a state; None if one of them is not sound."""
    read = read_settings(settings)
    return None if read is None else read.read(state, now_us)


def _numbers(form: re.Pattern[str], text: str) -> list[int] | None:
    match = form.fullmatch(text) if len(text) <= _TEXT_MAX else None
    numbers = [int(each) for each in match.groups()] if match else [_WHOLE_MAX]
    return numbers if max(numbers) < _WHOLE_MAX else None


def _check(text: str) -> str:
    return sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]


def _ceil(time: int) -> int:
    """Return picoseconds as microseconds, rounded up."""
    return -(time // -_PS)


# Joint admission.


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on a ticket.

    Attributes:
        at_us: when it is or could be admitted; None if never.
        holder: the index of the limit that holds it longest; None if none does.
        receipts: of each limit; None if the ticket is refused.
    """

    at_us: int | None
    holder: int | None = None
    receipts: list[int] | None = None


def decide(limits: Sequence[SharedLimit], costs: Sequence[int], t_us: int, horizon_us: int) -> Decision:
    """Charge the costs of a ticket to all limits, or to none.

    The time is the first from ``t_us`` on that all limits admit. Each limit's answer never falls as the requested time
    rises, so raising the time to each answer in turn never skips a common one.

    Args:
        limits: each of them once.
        costs: of each limit, >= 0.
        t_us: the present.
        horizon_us: the last time at which the ticket may be admitted.
    """
    when, agreed, place = t_us, 0, 0
    holder: int | None = None
    while agreed < len(limits):  # in a row
        earliest = limits[place].earliest(when, costs[place])
        if earliest is None:
            return Decision(None, place)
        if earliest > when:
            when, holder, agreed = earliest, place, 0
        agreed += 1
        place = (place + 1) % len(limits)
    if when > min([horizon_us, *(limit.foreseen_us for limit in limits)]):
        return Decision(when, holder)
    return Decision(when, holder, [limit.take(when, cost) for limit, cost in zip(limits, costs, strict=True)])
