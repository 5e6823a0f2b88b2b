"""The laws of limits that a fleet shares by joint admission: pure state machines over text.

``laws.lua`` of ``peers/redis`` has the same rules for the script: one test suite covers both, and a rule is changed in
both. All times are whole microseconds of the server's clock below 2**53, so that Lua's doubles hold them exactly.

A *ticket* is admitted at t and used at some time in [t, t + life]: its *start*. The laws limit starts. So a ticket counts
at its *last moment* u = t + life, until its start is *reported*: from then on it counts at the latest time at which that
start may have been. Tickets i and j whose starts both lie in [a, b] have a <= u(i), u(j) and t(i), t(j) <= b.

**Window**: starts in [a, a + width] cost ``amount`` at most. Starts of a set of tickets may share a window if and only
if every t - width is at most every u: intervals that overlap in pairs have a common point. So the law is that the
intervals [t - width, u] of all tickets never overlap by more than ``amount``. It holds whatever the order of admission:
a ticket may be admitted for a time before that of an earlier one. The log holds the cost at each u, rounded up to parts
of a 256th of the width if there may be more starts than parts. The times t are of interest only while they are ahead of
the present: what has begun may share a window with anything that comes.

**Pace**: starts at the numbers of a grid, one gap apart. The law is a window: as many starts as there are gaps in the
shortest whole number of gaps that takes a second or more. The grid only makes the starts even, so it needs no proof: a
number may be used up to a *slack* after its time, is free again if it is given back, and a new grid begins at the
present if nothing of the old one is left. A nominal pace has the grid alone: at most one start more in any time.

**Burst**: starts in [a, b] cost ``capacity`` + (b - a) / gap at most. The state is the time T at which the bucket is
full: max over i of u(i) + gap * (costs from i on). A ticket needs T + gap * cost <= t + gap * capacity, which means for
each i: costs from i to j <= capacity + (t(j) - u(i)) / gap, and that is <= capacity + (b - a) / gap. Alone it needs
cost <= capacity. Under constant demand the whole rate is used if capacity >= cost + life / gap.

**Quota**: starts that any process's calendar may put into a period cost ``amount`` at most. Calendars differ by
``late`` at most, so a ticket may be used in a period if [t - late, t + valid + late] touches it, and counts in each
such period.

**Cost 0**: such a ticket is admitted as soon as the limit is not in *deficit*: costs added to earlier tickets have used
more than there was, or a pace is not paid for. It changes nothing. A cost that is added later counts at its last moment.

**Corrected costs**: :meth:`SharedLimit.add` is never refused, and later tickets wait. :meth:`SharedLimit.give_back`
returns an amount that surely was not used, by the ticket's *receipt*. In the window and the quota the ticket's part of
the log gets smaller; the grid of a pace gets its latest numbers back. A bucket might have overflowed meanwhile: for a
ticket k that left T(k) it gets back gap * cost at most, and no more than T(k) - u(last) less the returns since. For a
ticket i after k counted gap * (costs from k + 1 on) above T(k), its own chain from u(i) <= u(last) is at most that much
below T, so T stays above it.

**Changed settings** apply from the next admission on, together with everything that the state remembers. A lowered
amount or capacity, or a longer gap, is kept by the first ticket after the change, together with those before. A raised
one never lets more start than the raised limit. For a burst, time until the last admission counts by the old gap, and
after it by the new one. A longer window does not know what a shorter one has forgotten. A quota of another calendar
counts everything that the old one remembers as used in its running period. A state that was removed at rest is not
remembered. A ticket keeps its last moment.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from hashlib import sha1
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "DRIFT",
    "LIFE_MAX_US",
    "BurstSettings",
    "Decision",
    "LimitSettings",
    "PaceSettings",
    "QuotaSettings",
    "SharedLimit",
    "Use",
    "WindowSettings",
    "agreed_time",
    "decide",
    "life_of",
    "read_limit",
    "read_settings",
]

DRIFT: Final = Fraction(500, 1_000_000)  # the largest drift between two clocks

_PS: Final = 1_000_000  # picoseconds in a microsecond
_WHOLE_MAX: Final = 1 << 53  # integers below it are exact in Lua, too
_AMOUNT_MAX: Final = 1 << 52
_FAR_US: Final = 1 << 50  # 35 years: a gap of this length is a pause
LIFE_MAX_US: Final = 500_000
"""The longest life of a ticket, in microseconds."""

_LATE_MAX_US: Final = 60_000_000
_AHEAD_MAX_US: Final = 600_000_000  # how far the times of a sound state may be ahead of the clock
_PARTS: Final = 256  # of a window's log
_TEXT_MAX: Final = 160  # characters of sound settings, and of the state of a burst or a quota
_NUMBER: Final = r"([0-9]+)"
_LIFE_US: Final = 20_000  # of a ticket under a pace alone, which is to be even; and the slack of a grid
_LIFE_MIN_US: Final = 2_000  # of a ticket under any limit: less could not be used
_LIVES: Final = 20  # a ticket lives for this part of a window, unless its peer is slower
_LIVES_MIN: Final = 4  # and for this part at most
_SECOND_US: Final = 1_000_000


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

    @property
    @abstractmethod
    def lives_us(self) -> tuple[int, int]:
        """How long a ticket should live at least, and may live at most."""

    @property
    @abstractmethod
    def gap_us(self) -> int:
        """The mean time between two starts of cost 1 at the limit, at least 1 microsecond."""

    @property
    @abstractmethod
    def memory_us(self) -> int:
        """How long a start counts."""

    @property
    @abstractmethod
    def per_second(self) -> Fraction:
        """The starts a second that it was made for, by a clock without drift."""

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
        whole_us: the gap in microseconds; 2**50 pauses.
        rest_ps: the rest of the gap in picoseconds.
        amount: the most that starts in any ``width`` may cost; 0 for a nominal pace.
        width: in microseconds.
    """

    letter: ClassVar[str] = "p"
    whole_us: int
    rest_ps: int
    amount: int = 0
    width: int = 0

    @classmethod
    def of(cls, count: int, per_us: int, *, is_exact: bool = True) -> PaceSettings:
        """Return a pace of ``count`` in ``per_us``; an exact one holds in any second, by any clock."""
        gap = _gap_of(count, per_us)
        if not is_exact or gap[0] >= _FAR_US:
            return cls(*gap)
        amount = -(_SECOND_US * count // -per_us)  # gaps in a second or more
        return cls(*gap, amount, -(amount * per_us * (1 + DRIFT) // -count))

    @property
    def is_sound(self) -> bool:
        """True if all numbers are within their bounds."""
        return _is_gap(self.whole_us, self.rest_ps) and self.amount <= _AMOUNT_MAX and self.width < _FAR_US

    @property
    def lives_us(self) -> tuple[int, int]:
        """How long a ticket should live at least, and may live at most."""
        return _LIFE_US, max(_LIFE_US, min(self.width or _SECOND_US, _SECOND_US) // 4)

    @property
    def gap_us(self) -> int:
        """The mean time between two starts."""
        return max(1, self.whole_us)

    @property
    def memory_us(self) -> int:
        """How long a start counts."""
        return self.width

    @property
    def per_second(self) -> Fraction:
        """The starts a second that it was made for, by a clock without drift."""
        return _per_second(self.whole_us, self.rest_ps)

    def at_rest(self, now_us: int) -> SharedLimit:
        """Return the limit without a state."""
        return _Pace(self, now_us)


@dataclass(frozen=True, slots=True)
class BurstSettings(LimitSettings):
    """A token bucket.

    Attributes:
        capacity: the most that it holds.
        whole_us: the time in which it gains one, in microseconds; 2**50 pauses.
        rest_ps: the rest of that time in picoseconds.
    """

    letter: ClassVar[str] = "b"
    capacity: int
    whole_us: int
    rest_ps: int

    @classmethod
    def of(cls, capacity: int, count: int, per_us: int) -> BurstSettings:
        """Return a bucket that gains ``count`` in ``per_us`` at most, by any clock.

        Raises:
            ValueError: if it takes more than 35 years to fill.
        """
        made = cls(capacity, *_gap_of(count, per_us))
        if not made.is_sound:
            raise ValueError(f"a bucket of {capacity} at {count} in {per_us} us takes longer than 35 years to fill")
        return made

    @property
    def is_sound(self) -> bool:
        """True if all numbers are within their bounds."""
        if not _is_gap(self.whole_us, self.rest_ps) or self.capacity > _AMOUNT_MAX:
            return False
        gap = self.whole_us * _PS + self.rest_ps
        return self.whole_us >= _FAR_US or _span(self.capacity, gap) < _FAR_US * _PS

    @property
    def lives_us(self) -> tuple[int, int]:
        """How long a ticket should live at least, and may live at most: a quarter of the time to fill the bucket."""
        quarter = min(_span(self.capacity, self.whole_us * _PS + self.rest_ps) // _PS // 4, LIFE_MAX_US)
        return max(_LIFE_MIN_US, min(quarter, _SECOND_US // _LIVES)), max(_LIFE_MIN_US, quarter)

    @property
    def gap_us(self) -> int:
        """The mean time between two starts."""
        return max(1, self.whole_us)

    @property
    def memory_us(self) -> int:
        """How long a start counts: until the bucket is full again."""
        return _span(self.capacity, self.whole_us * _PS + self.rest_ps) // _PS

    @property
    def per_second(self) -> Fraction:
        """The starts a second that it was made for, by a clock without drift."""
        return _per_second(self.whole_us, self.rest_ps)

    def at_rest(self, now_us: int) -> SharedLimit:
        """Return the limit without a state."""
        return _Bucket(self, now_us)


@dataclass(frozen=True, slots=True)
class WindowSettings(LimitSettings):
    """At most an amount in any window.

    Attributes:
        amount: the most that starts in a window may cost.
        width: of the window in microseconds, by the server's clock.
    """

    letter: ClassVar[str] = "w"
    amount: int
    width: int

    @classmethod
    def of(cls, amount: int, per_us: int) -> WindowSettings:
        """Return a window of at least ``per_us`` by any clock."""
        return cls(amount, -(per_us * (1 + DRIFT) // -1))

    @property
    def is_sound(self) -> bool:
        """True if all numbers are within their bounds."""
        return self.amount <= _AMOUNT_MAX and 0 < self.width < _FAR_US

    @property
    def lives_us(self) -> tuple[int, int]:
        """How long a ticket should live at least, and may live at most."""
        bounds = _LIFE_MIN_US, LIFE_MAX_US
        return _between(self.width // _LIVES, *bounds), _between(self.width // _LIVES_MIN, *bounds)

    @property
    def gap_us(self) -> int:
        """The mean time between two starts."""
        return max(1, self.width // self.amount) if self.amount else _FAR_US

    @property
    def memory_us(self) -> int:
        """How long a start counts."""
        return self.width

    @property
    def per_second(self) -> Fraction:
        """The starts a second that it was made for, by a clock without drift."""
        return Fraction(self.amount * _SECOND_US, self.width) * (1 + DRIFT)

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
        valid_us: the longest life of a ticket.
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
            and max(self.valid_us, self.late_us) <= _LATE_MAX_US
            and min(self.end_us - self.begin_us, self.next_end_us - self.end_us) > lead + self.late_us
        )

    @property
    def lives_us(self) -> tuple[int, int]:
        """How long a ticket should live at least, and may live at most."""
        return self.valid_us, self.valid_us

    @property
    def gap_us(self) -> int:
        """The mean time between two starts."""
        return max(1, (self.end_us - self.begin_us) // self.amount) if self.amount else _FAR_US

    @property
    def memory_us(self) -> int:
        """How long a start counts."""
        return self.next_end_us - self.begin_us

    @property
    def per_second(self) -> Fraction:
        """The starts a second that it was made for, by a clock without drift."""
        return Fraction(self.amount * _SECOND_US, self.end_us - self.begin_us)

    def at_rest(self, now_us: int) -> SharedLimit:
        """Return the limit without a state."""
        return _Quota(self, now_us)


def life_of(settings: Sequence[LimitSettings], wanted_us: int) -> int:
    """Return how long a ticket under these limits lives, if its peer wants it to live for a time."""
    if not settings:
        return wanted_us
    lives = [each.lives_us for each in settings]
    return min(max(wanted_us, min(least for least, _ in lives)), min(most for _, most in lives))


def _between(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))


def _gap_of(count: int, per_us: int) -> tuple[int, int]:
    """Return a gap in microseconds and picoseconds by any clock, rounded up."""
    if count == 0:
        return _FAR_US, 0
    gap = -(per_us * _PS * (1 + DRIFT) // -count)
    return (gap // _PS, gap % _PS) if gap < _FAR_US * _PS else (_FAR_US, 0)


def _per_second(whole_us: int, rest_ps: int) -> Fraction:
    """Return the rate of a gap that was made longer by the drift of clocks; 0 for a pause."""
    return Fraction(0) if whole_us >= _FAR_US else Fraction(_SECOND_US * _PS, whole_us * _PS + rest_ps) * (1 + DRIFT)


def _is_gap(whole_us: int, rest_ps: int) -> bool:
    return whole_us <= _FAR_US and rest_ps < _PS and whole_us + rest_ps > 0


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
    def take(self, t_us: int, cost: int, life_us: int) -> int:
        """Admit a cost at a time that :meth:`earliest` returned; return the receipt."""

    @abstractmethod
    def give_back(self, t_us: int, cost: int, receipt: int) -> None:
        """Return a part of a ticket's cost, admitted at ``t_us``, that surely was not used and will not be."""

    @abstractmethod
    def add(self, t_us: int, cost: int, receipt: int) -> None:
        """Charge a ticket of ``t_us`` an additional cost."""

    def report(self, start_us: int, cost: int, receipt: int) -> None:  # noqa: B027  # most limits count by t alone
        """Count a part of a ticket's cost at a time by which it surely has started."""

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


class _Log:
    """The tickets of a window: their costs by last moment, and by time while that is ahead.

    Its text is ``u:cost,`` of each last moment, ``/``, and ``t:cost,`` of each time ahead; a number is the difference
    from the one before it, the first from ``base``.
    """

    __slots__ = ("_ahead", "_costs", "_part", "_times", "amount", "now_us", "total", "width")

    FORM: Final = r"((?:[0-9]+:[0-9]+,)*)/((?:[0-9]+:[0-9]+,)*)"

    def __init__(self, amount: int, width: int, now_us: int) -> None:
        self.amount, self.width, self.now_us = amount, width, now_us
        self._part = 1 if amount <= _PARTS else -(width // -_PARTS)
        self._times: list[int] = []  # last moments, in order
        self._costs: list[int] = []
        self._ahead: list[tuple[int, int]] = []  # (t, cost), in order
        self.total = 0

    @property
    def latest_us(self) -> int:
        """The latest last moment; 0 if there is none."""
        return self._times[-1] if self._times else 0

    def load(self, base: int, texts: Sequence[str]) -> bool:
        """Load the two parts of a text; return False if a number is too large."""
        lasts, ahead = (_pairs(base, text) for text in texts)
        if max([0, *(time for time, _ in lasts + ahead)]) > self.now_us + _AHEAD_MAX_US:
            return False
        self._times, self._costs = [time for time, _ in lasts], [cost for _, cost in lasts]
        self._ahead, self.total = ahead, sum(self._costs)
        return self.total < _WHOLE_MAX

    def write(self, base: int) -> str:
        """Return the text."""
        return f"{_text(base, zip(self._times, self._costs, strict=True))}/{_text(base, self._ahead)}"

    def base(self) -> int:
        """Return a time before all others."""
        return min([self.now_us, *self._times[:1], *(time for time, _ in self._ahead[:1])])

    def forget(self) -> None:
        """Forget what no window holds any more, and which tickets were ahead."""
        gone = bisect_left(self._times, self.now_us - self.width)
        self.total -= sum(self._costs[:gone])
        del self._times[:gone], self._costs[:gone]
        del self._ahead[: bisect_left(self._ahead, (self.now_us + 1, 0))]

    def earliest(self, t_us: int, cost: int) -> int | None:
        """Return the first time from ``t_us`` on at which there is room; None if never."""
        if cost > self.amount:
            return None
        if self.total + cost <= self.amount:
            return t_us
        when, width = t_us, self.width
        behind = sum(cost for time, cost in self._ahead if time > when)  # cannot share a window that ends at `when`
        index = bisect_left(self._times, when - width)
        room = self.amount - cost - self.total + sum(self._costs[:index])
        place = len(self._ahead) - sum(time > when for time, _ in self._ahead)  # of the first of these
        while True:
            if room + behind < 0:
                when = self._times[index] + width + 1
                room += self._costs[index]
                index += 1
                while place < len(self._ahead) and self._ahead[place][0] <= when:
                    behind -= self._ahead[place][1]
                    place += 1
                continue
            later = self._conflict(index, place, room, behind)
            if later is None:
                return when
            when = later
            while place < len(self._ahead) and self._ahead[place][0] <= when:
                behind -= self._ahead[place][1]
                place += 1
            while index < len(self._times) and self._times[index] < when - width:
                room += self._costs[index]
                index += 1

    def _conflict(self, index: int, place: int, room: int, behind: int) -> int | None:
        """Return the time of the first ticket ahead in whose window there is no room; None if there is room in each."""
        while place < len(self._ahead):
            time, cost = self._ahead[place]
            behind -= cost
            place += 1
            while place < len(self._ahead) and self._ahead[place][0] == time:
                behind -= self._ahead[place][1]
                place += 1
            while index < len(self._times) and self._times[index] < time - self.width:
                room += self._costs[index]
                index += 1
            if room + behind < 0:
                return time
        return None

    def take(self, t_us: int, cost: int, life_us: int) -> int:
        """Count a cost; return its receipt: where it counts."""
        last = self._round(t_us + life_us)
        if cost:
            self.forget()
            self._change(last, cost)
            if t_us > self.now_us:
                place = bisect_left(self._ahead, (t_us, 0))
                if place < len(self._ahead) and self._ahead[place][0] == t_us:
                    self._ahead[place] = t_us, self._ahead[place][1] + cost
                else:
                    self._ahead.insert(place, (t_us, cost))
        return last

    def give_back(self, t_us: int, cost: int, receipt: int) -> bool:
        """Return a cost; True if it was counted."""
        back = -self._change(receipt, -cost)
        place = bisect_left(self._ahead, (t_us, 0))
        if back and place < len(self._ahead) and self._ahead[place][0] == t_us:
            left = max(0, self._ahead[place][1] - back)
            self._ahead[place : place + 1] = [(t_us, left)] if left else []
        return back > 0

    def add(self, t_us: int, cost: int, receipt: int) -> bool:
        """Count an additional cost; True if it counts."""
        more = max(0, min(cost, _AMOUNT_MAX - self.total))
        if not more or receipt + self.width < self.now_us:
            return False
        self._change(receipt, more)
        return True

    def report(self, start_us: int, cost: int, receipt: int) -> bool:
        """Count a cost at an earlier time; True if that changes anything."""
        start = self._round(start_us)
        if start >= receipt:
            return False
        moved = -self._change(receipt, -cost)
        if moved:
            self._change(start, moved)
        return moved > 0

    def redate(self, t_us: int) -> None:
        """Count everything at a time."""
        self.now_us = t_us
        self._ahead.clear()
        if self._times:
            self._times, self._costs = [t_us], [self.total]

    def used(self, now_us: int) -> int:
        """Return how much the windows that hold the present hold."""
        return sum(self._costs[bisect_left(self._times, now_us - self.width) :])

    def until_us(self, now_us: int) -> int:
        """Return when everything is forgotten."""
        return max(now_us, self._times[-1] + self.width + 1) if self._times else now_us

    def _round(self, time_us: int) -> int:
        return -(time_us // -self._part) * self._part

    def _change(self, time: int, change: int) -> int:
        """Change what counts at a time; return by how much."""
        index = bisect_left(self._times, time)
        if index < len(self._times) and self._times[index] == time:
            change = max(change, -self._costs[index])
            self._costs[index] += change
            if not self._costs[index]:
                del self._times[index], self._costs[index]
        elif change > 0:
            self._times.insert(index, time)
            self._costs.insert(index, change)
        else:
            return 0
        self.total += change
        return change


class _Window(SharedLimit):
    """A log: ``w2,check,base;`` and its text. The check covers the text behind it."""

    __slots__ = ("_log", "_settings")

    _FORM: Final = re.compile(r"w2,([0-9a-f]{8}),(" + _NUMBER + ";" + _Log.FORM + ")", re.ASCII)

    def __init__(self, settings: WindowSettings, now_us: int) -> None:
        super().__init__()
        self._settings = settings
        self._log = _Log(settings.amount, settings.width, now_us)

    def load(self, text: str) -> bool:
        match = self._FORM.fullmatch(text)
        return match is not None and match[1] == _check(match[2]) and self._log.load(int(match[3]), match.groups()[3:])

    def write(self) -> str:
        base = self._log.base()
        body = f"{base};{self._log.write(base)}"
        return f"w2,{_check(body)},{body}"

    def earliest(self, t_us: int, cost: int) -> int | None:
        return self._log.earliest(t_us, cost)

    def take(self, t_us: int, cost: int, life_us: int) -> int:
        self.is_changed = self.is_changed or cost > 0
        return self._log.take(t_us, cost, life_us)

    def give_back(self, t_us: int, cost: int, receipt: int) -> None:
        self.is_changed |= self._log.give_back(t_us, cost, receipt)

    def add(self, t_us: int, cost: int, receipt: int) -> None:
        self.is_changed |= self._log.add(t_us, cost, receipt)

    def report(self, start_us: int, cost: int, receipt: int) -> None:
        self.is_changed |= self._log.report(start_us, cost, receipt)

    def redate(self, t_us: int) -> None:
        self._log.redate(t_us)
        self.is_changed = True

    def is_at_rest(self, now_us: int) -> bool:
        return self._log.latest_us + self._log.width < now_us or not self._log.latest_us

    def use(self, now_us: int) -> Use:
        return Use(self._log.used(now_us), self._settings.amount, self._log.until_us(now_us))


class _Pace(SharedLimit):
    """A grid and, for an exact pace, a log: ``p2,check,us,ps;from:count,...;base;`` and the log's text.

    ``us`` and ``ps`` are the time of the first free number; the numbers taken beyond it follow as runs, each as its
    distance from the end of the one before, and its length.
    """

    __slots__ = ("_first", "_gap", "_log", "_now", "_runs", "_settings", "_slack")

    _FORM: Final = re.compile(
        r"p2,([0-9a-f]{8}),(" + _NUMBER + "," + _NUMBER + r";((?:[0-9]+:[0-9]+,)*);" + _NUMBER + ";" + _Log.FORM + ")",
        re.ASCII,
    )

    def __init__(self, settings: PaceSettings, now_us: int) -> None:
        super().__init__()
        self._settings = settings
        self._gap = settings.whole_us * _PS + settings.rest_ps
        self._slack = min(self._gap, max(self._gap // 2, _LIFE_US * _PS))
        self._now = now_us
        self._first = now_us * _PS  # the time of the first free number
        self._runs: list[tuple[int, int]] = []  # taken numbers beyond it: (first, count)
        self._log = _Log(settings.amount, settings.width, now_us)

    def load(self, text: str) -> bool:
        match = self._FORM.fullmatch(text)
        if match is None or match[1] != _check(match[2]):
            return False
        us, ps = int(match[3]), int(match[4])
        self._first = us * _PS + ps
        number, self._runs = 0, []
        for distance, count in _pairs(0, match[5], is_sum=False):
            number += distance
            self._runs.append((number, count))
            number += count
        return (
            us <= self._now + _AHEAD_MAX_US + _FAR_US and ps < _PS and self._log.load(int(match[6]), match.groups()[6:])
        )

    def write(self) -> str:
        base, runs, number = self._log.base(), [], 0
        for first, count in self._runs:
            runs.append(f"{first - number}:{count},")
            number = first + count
        us, ps = divmod(self._first, _PS)
        body = f"{us},{ps};{''.join(runs)};{base};{self._log.write(base)}"
        return f"p2,{_check(body)},{body}"

    def earliest(self, t_us: int, cost: int) -> int | None:
        if cost * self._settings.whole_us >= _FAR_US:
            return None
        when = t_us
        while True:
            first, _ = self._free(when, cost)
            when = max(when, _ceil(first))
            if not self._settings.amount:
                return when
            later = self._log.earliest(when, cost)
            if later is None or later == when:
                return later
            when = later

    def take(self, t_us: int, cost: int, life_us: int) -> int:
        if cost:
            self._keep_grid()
            self._take_numbers(self._free(t_us, cost)[1], cost)
            self.is_changed = True
        return self._log.take(t_us, cost, life_us) if self._settings.amount else t_us

    def give_back(self, t_us: int, cost: int, receipt: int) -> None:
        if self._settings.amount:
            self.is_changed |= self._log.give_back(t_us, cost, receipt)
        least = max(self._now, t_us) * _PS
        number = (t_us * _PS - self._first) // self._gap  # of the ticket, or below 0
        place = next((i for i, (first, count) in enumerate(self._runs) if first <= number < first + count), None)
        if place is not None:  # the latest numbers of that run
            first, count = self._runs[place]
            back = min(cost, first + count - number)
            self._runs[place : place + 1] = [(first, count - back)] if count > back else []
        elif number < 0:  # the latest numbers before the first free one
            back = min(cost, max(0, (self._first - least) // self._gap))
            self._first -= back * self._gap
            self._runs = [(first + back, count) for first, count in self._runs]
        else:
            back = 0
        self.is_changed = self.is_changed or back > 0

    def add(self, t_us: int, cost: int, receipt: int) -> None:
        if self._settings.amount:
            self._log.add(t_us, cost, receipt)
        self._keep_grid()
        left = cost
        while left and self._first < (self._now + _FAR_US) * _PS:
            free = min(left, self._runs[0][0] if self._runs else left)
            self._take_numbers(0, free)
            left -= free
        self.is_changed = True

    def report(self, start_us: int, cost: int, receipt: int) -> None:
        if self._settings.amount:
            self.is_changed |= self._log.report(start_us, cost, receipt)

    def redate(self, t_us: int) -> None:
        self._now, self._first = t_us, t_us * _PS
        self._runs.clear()
        self._log.redate(t_us)
        self.is_changed = True

    def is_at_rest(self, now_us: int) -> bool:
        is_over = self._log.latest_us + self._log.width < now_us or not self._log.latest_us
        return is_over and not self._runs and _ceil(self._first) <= now_us

    def use(self, now_us: int) -> Use:
        until = max(now_us, _ceil(self._first + (sum(self._runs[-1]) * self._gap if self._runs else 0)))
        if not self._settings.amount:
            return Use(_level(self._first - now_us * _PS, self._gap) if self._first > now_us * _PS else 0, 1, until)
        return Use(self._log.used(now_us), self._settings.amount, max(until, self._log.until_us(now_us)))

    def _grid(self) -> int:
        """Return the time of the first free number; a new grid begins now if nothing is left of the old one."""
        if not self._runs and self._first + self._slack < self._now * _PS:
            return self._now * _PS
        return self._first

    def _free(self, t_us: int, cost: int) -> tuple[int, int]:
        """Return the first numbers that may be used at a time or after it: the time of the first of them, and itself."""
        first = self._grid()
        number = max(0, -((first + self._slack - t_us * _PS) // self._gap))
        for begin, count in self._runs:
            if number + max(1, cost) <= begin:
                break
            number = max(number, begin + count)
        return first + number * self._gap, number

    def _keep_grid(self) -> None:
        """Begin a new grid if nothing is left of the old one; else drop the numbers whose time is over."""
        self._first = self._grid()
        over = -((self._first + self._slack - self._now * _PS) // self._gap)
        while over > 0 and self._runs:
            begin, count = self._runs[0]
            step = min(over, begin)
            self._first += step * self._gap
            self._runs = [(one - step, many) for one, many in self._runs]
            over -= step
            if self._runs[0][0] > 0:
                break
            self._first += count * self._gap
            self._runs = [(one - count, many) for one, many in self._runs[1:]]
            over -= count

    def _take_numbers(self, number: int, count: int) -> None:
        """Take consecutive free numbers."""
        place = sum(first < number for first, _ in self._runs)
        self._runs.insert(place, (number, count))
        if place + 1 < len(self._runs) and self._runs[place + 1][0] == number + count:
            self._runs[place : place + 2] = [(number, count + self._runs[place + 1][1])]
        if place and sum(self._runs[place - 1]) == number:
            first, before = self._runs[place - 1]
            self._runs[place - 1 : place + 1] = [(first, before + self._runs[place][1])]
        if self._runs[0][0] == 0:
            _, passed = self._runs.pop(0)
            self._first += passed * self._gap
            self._runs = [(first - passed, many) for first, many in self._runs]


class _Bucket(SharedLimit):
    """A burst: ``g1,at,born,T,ps of T,returned,gap,ps of gap``.

    ``at`` is the latest last moment of a ticket, and ``born`` the first t whose ticket can be given back.
    T counts by the state's own gap, which was in force at the last admission.
    """

    __slots__ = ("_at", "_born", "_capacity", "_full", "_gap", "_life", "_now", "_returned", "_set_gap")

    _FORM: Final = re.compile(r"g1" + f",{_NUMBER}" * 7, re.ASCII)

    def __init__(self, settings: BurstSettings, now_us: int) -> None:
        super().__init__()
        self._set_gap = self._gap = settings.whole_us * _PS + settings.rest_ps
        self._capacity, self._life, self._now = settings.capacity, settings.lives_us[1], now_us
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
        if cost > self._capacity:
            return None
        return max(t_us, _ceil(self._due() - _span(self._capacity - cost, self._set_gap)))

    def take(self, t_us: int, cost: int, life_us: int) -> int:
        if not cost:
            return self._full // _PS + self._returned
        if self._gap != self._set_gap:
            self._full, self._gap = self._due(), self._set_gap
            self._born = max(self._at, t_us) + 1  # earlier receipts have another unit
        last = t_us + life_us
        self._full = max(self._full, last * _PS) + _span(cost, self._gap)
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
        last = t_us + self._life
        if last > self._at:  # of a ticket of cost 0, which has changed nothing, or of a shorter life
            owed = max(0, self._full - self._at * _PS) if self._at >= t_us else 0
            self._at, self._full = last, max(self._full, last * _PS + owed)
        self._full = max(self._full, min(self._full + _span(cost, self._gap), (self._now + _FAR_US) * _PS))
        self.is_changed = True

    def redate(self, t_us: int) -> None:
        owed = max(0, self._full - self._at * _PS)
        self._now, self._at, self._born = t_us, t_us + self._life, t_us + self._life + 1
        self._full = self._at * _PS + min(owed, _FAR_US * _PS)
        self._returned = 0
        self.is_changed = True

    def is_at_rest(self, now_us: int) -> bool:
        return self._due() <= now_us * _PS

    def use(self, now_us: int) -> Use:
        due = self._due()
        used = max(0, _level(due - now_us * _PS, self._set_gap)) if due > now_us * _PS else 0
        return Use(used, self._capacity, max(now_us, _ceil(due)))

    def _due(self) -> int:
        """Return T by the gap that is set: each whole cost open at the last admission takes that gap."""
        if self._gap == self._set_gap or self._full <= self._at * _PS:
            return self._full
        level = _level(self._full - self._at * _PS, self._gap)
        return self._at * _PS + _span(level, self._set_gap)


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

    def take(self, t_us: int, cost: int, life_us: int) -> int:  # noqa: ARG002  # the settings have the longest life
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


def _pairs(base: int, text: str, *, is_sum: bool = True) -> list[tuple[int, int]]:
    """Read pairs of a difference and an amount; with ``is_sum``, of the sum of differences."""
    pairs: list[tuple[int, int]] = []
    for each in text.split(",")[:-1]:
        number, amount = map(int, each.split(":"))
        base = base + number if is_sum else number
        pairs.append((base, amount))
    return pairs


def _text(base: int, pairs: Iterable[tuple[int, int]]) -> str:
    """Write pairs of a number and an amount, with the differences of the numbers."""
    texts = []
    for number, amount in pairs:
        texts.append(f"{number - base}:{amount},")
        base = number
    return "".join(texts)


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


def agreed_time(limits: Sequence[SharedLimit], costs: Sequence[int], t_us: int) -> tuple[int | None, int | None]:
    """Return the first time from ``t_us`` on that all limits admit, and the index of the last limit to raise it.

    Each limit's answer never falls as the requested time rises, so raising the time to each answer in turn never skips a
    common one. The time is None if a limit never admits its cost.
    """
    when, agreed, place = t_us, 0, 0
    holder: int | None = None
    while agreed < len(limits):  # in a row
        earliest = limits[place].earliest(when, costs[place])
        if earliest is None:
            return None, place
        if earliest > when:
            when, holder, agreed = earliest, place, 0
        agreed += 1
        place = (place + 1) % len(limits)
    return when, holder


def decide(
    limits: Sequence[SharedLimit], costs: Sequence[int], t_us: int, horizon_us: int, life_us: int = 0
) -> Decision:
    """Charge the costs of a ticket to all limits, or to none.

    Args:
        limits: each of them once.
        costs: of each limit, >= 0.
        t_us: the present.
        horizon_us: the last time at which the ticket may be admitted.
        life_us: how long after its time it may be used.
    """
    when, holder = agreed_time(limits, costs, t_us)
    if when is None or when > min([horizon_us, *(limit.foreseen_us for limit in limits)]):
        return Decision(when, holder)
    return Decision(when, holder, [limit.take(when, cost, life_us) for limit, cost in zip(limits, costs, strict=True)])
