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
the present: what has begun may share a window with anything that comes. They are rounded down. As costs at u count for
all windows that begin until then, a cost is given back where it counts or at any earlier u, whosever that was.

**Pace**: starts at the numbers of a grid, one gap apart. The law is a window: as many starts as there are gaps in the
shortest whole number of gaps that takes a second or more. The grid only makes the starts even, so it needs no proof: a
number may be used up to a *slack*, less than a gap, after its time. It belongs to one ticket, is free again if all of that
is given back, and a new grid begins at the present if nothing of the old one is left. A nominal pace has
the grid alone: at most one start more in any time.

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
returns an amount that surely was not used, by the ticket's *receipt*; of a ticket whose start may have been reported, by
a time no later than that start. In the window and the quota the ticket's part of the log gets smaller. A bucket might have overflowed meanwhile: for a
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
from struct import pack, unpack
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

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
_GRID_COUNT: Final = 7  # numbers of a grid before its runs
_LOG_COUNT: Final = 4  # numbers of a log before its pairs


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
    return min(max(wanted_us, min(least for least, _ in lives)), *(most for _, most in lives))


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
    def give_back(self, t_us: int, cost: int, receipt: int, *, is_whole: bool = False) -> None:
        """Return a part of a ticket's cost, admitted at ``t_us``, that surely was not used and will not be; or the whole."""

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

    Its numbers are ``gone`` (all last moments up to it are forgotten), the sum of the costs, the part to which times are
    rounded, the number of times ahead, (t, cost) of each, and (u, cost) of each last moment.
    """

    __slots__ = ("_ahead", "_costs", "_gone", "_life", "_part", "_times", "amount", "now_us", "total", "width")

    def __init__(self, amount: int, width: int, life: int, now_us: int) -> None:
        self.amount, self.width, self.now_us, self._life = amount, width, now_us, life
        self._part = 1 if amount <= _PARTS else -(width // -_PARTS)
        self._gone = max(0, now_us - 1)
        self._times: list[int] = []  # last moments, in order
        self._costs: list[int] = []
        self._ahead: list[tuple[int, int]] = []  # (t, cost), in order
        self.total = 0

    @property
    def is_empty(self) -> bool:
        """True if it holds nothing."""
        return not self._times

    def load(self, numbers: Sequence[int]) -> bool:
        """Load its numbers; return False if they are not sound."""
        self._gone, self.total, part, count, *pairs = numbers
        if len(pairs) % 2 or 2 * count > len(pairs):
            return False
        times, costs = pairs[::2], pairs[1::2]
        if part == self._part:  # else they were rounded in another way
            self._ahead = [*zip(times[:count], costs[:count], strict=True)]
        self._times, self._costs = times[count:], costs[count:]
        return max([0, *times[-1:], *times[:count]]) <= self.now_us + _AHEAD_MAX_US and self.total <= _AMOUNT_MAX

    def numbers(self) -> list[int]:
        """Return its numbers."""
        ahead = (number for pair in self._ahead for number in pair)
        lasts = (number for pair in zip(self._times, self._costs, strict=True) for number in pair)
        return [self._gone, self.total, self._part, len(self._ahead), *ahead, *lasts]

    def earliest(self, t_us: int, cost: int) -> int | None:
        """Return the first time from ``t_us`` on at which there is room; None if never."""
        if cost > self.amount:
            return None
        if self.total + cost <= self.amount:
            return t_us
        when, width = t_us, self.width
        index = bisect_left(self._times, when - width)
        room = self.amount - cost - self.total + sum(self._costs[:index])
        place = bisect_left(self._ahead, (when + 1, 0))
        behind = sum(cost for _, cost in self._ahead[place:])  # cannot share a window that ends at `when`
        while True:
            if room + behind < 0:
                when = self._times[index] + width + 1
            else:
                later = self._conflict(when, index, place, room, behind)
                if later is None:
                    return when
                when = later
            while index < len(self._times) and self._times[index] < when - width:
                room += self._costs[index]
                index += 1
            while place < len(self._ahead) and self._ahead[place][0] <= when:
                behind -= self._ahead[place][1]
                place += 1

    def _conflict(self, when: int, index: int, place: int, room: int, behind: int) -> int | None:
        """Return the time of the first ticket ahead in whose window there is no room; None if there is room in each."""
        last = self._round(when + self._life)
        while place < len(self._ahead) and self._ahead[place][0] - self.width <= last:
            time, cost = self._ahead[place]
            behind -= cost
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
            self._forget()
            self._change(last, cost)
            begin = self._begin(t_us)
            if begin > self.now_us:
                place = bisect_left(self._ahead, (begin, 0))
                if place < len(self._ahead) and self._ahead[place][0] == begin:
                    cost += self._ahead.pop(place)[1]
                self._ahead.insert(place, (begin, cost))
        return last

    def give_back(self, t_us: int, cost: int, receipt: int) -> bool:
        """Return a cost that counts at a receipt or later: the first that does so; True if there was some."""
        if receipt <= self._gone or receipt < self.now_us - self.width:
            return False  # it may be forgotten
        index, left = bisect_left(self._times, receipt), cost
        while left and index < len(self._times):
            left += self._change(self._times[index], -left)
        begin = self._begin(t_us)
        place = bisect_left(self._ahead, (begin, 0))
        if left < cost and place < len(self._ahead) and self._ahead[place][0] == begin:
            ahead = max(0, self._ahead[place][1] - (cost - left))
            self._ahead[place : place + 1] = [(begin, ahead)] if ahead else []
        return left < cost

    def add(self, cost: int, receipt: int) -> bool:
        """Count an additional cost; True if it counts."""
        more = max(0, min(cost, _AMOUNT_MAX - self.total))
        if not more or receipt + self.width < self.now_us:
            return False
        self._change(max(receipt, self._gone + 1), more)
        return True

    def report(self, start_us: int, cost: int, receipt: int) -> bool:
        """Count a cost at an earlier time; True if that changes anything."""
        start = self._round(start_us)
        if start >= receipt:
            return False
        moved = -self._change(receipt, -cost)
        if start > self._gone:
            self._change(start, moved)
        return moved > 0

    def redate(self, t_us: int) -> None:
        """Count everything at a time."""
        self.now_us = t_us
        self._gone = max(0, t_us - 1)
        self._ahead.clear()
        if self._times:
            self._times, self._costs = [t_us], [self.total]

    def used(self, now_us: int) -> int:
        """Return how much the windows that hold the present hold."""
        return self.total - sum(self._costs[: bisect_left(self._times, now_us - self.width)])

    def until_us(self, now_us: int) -> int:
        """Return when everything is forgotten."""
        return max(now_us, self._times[-1] + self.width + 1) if self._times else now_us

    def _forget(self) -> None:
        """Forget what no window holds any more, and which tickets were ahead."""
        count = bisect_left(self._times, self.now_us - self.width)
        if count:
            self._gone = self._times[count - 1]
            self.total -= sum(self._costs[:count])
            del self._times[:count], self._costs[:count]
        del self._ahead[: bisect_left(self._ahead, (self.now_us + 1, 0))]

    def _round(self, time_us: int) -> int:
        return -(time_us // -self._part) * self._part

    def _begin(self, t_us: int) -> int:
        return t_us // self._part * self._part

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
    """A log: ``w2`` and its numbers."""

    __slots__ = ("_log", "_settings")

    def __init__(self, settings: WindowSettings, now_us: int) -> None:
        super().__init__()
        self._settings = settings
        self._log = _Log(settings.amount, settings.width, settings.lives_us[1], now_us)

    def load(self, text: str) -> bool:
        numbers = _unpack("w2", text)
        return len(numbers) >= _LOG_COUNT and self._log.load(numbers)

    def write(self) -> str:
        return _pack("w2", self._log.numbers())

    def earliest(self, t_us: int, cost: int) -> int | None:
        return self._log.earliest(t_us, cost)

    def take(self, t_us: int, cost: int, life_us: int) -> int:
        self.is_changed = self.is_changed or cost > 0
        return self._log.take(t_us, cost, life_us)

    def give_back(self, t_us: int, cost: int, receipt: int, *, is_whole: bool = False) -> None:  # noqa: ARG002  # the receipt says where it counts
        self.is_changed |= self._log.give_back(t_us, cost, receipt)

    def add(self, t_us: int, cost: int, receipt: int) -> None:  # noqa: ARG002  # the receipt says where it counts
        self.is_changed |= self._log.add(cost, receipt)

    def report(self, start_us: int, cost: int, receipt: int) -> None:
        self.is_changed |= self._log.report(start_us, cost, receipt)

    def redate(self, t_us: int) -> None:
        self._log.redate(t_us)
        self.is_changed = True

    def is_at_rest(self, now_us: int) -> bool:
        return self._log.until_us(0) <= now_us

    def use(self, now_us: int) -> Use:
        return Use(self._log.used(now_us), self._settings.amount, self._log.until_us(now_us))


class _Pace(SharedLimit):
    """A grid and, for an exact pace, a log: ``p2``, the numbers of the grid and those of the log.

    The grid has the time of the first free number and its gap, each in microseconds and picoseconds, ``at`` (the present
    at the latest change), ``born`` (numbers of tickets until then are not given back), how many runs of taken numbers
    follow, and (number, count) of each, where the first free number is 0.
    """

    __slots__ = ("_at", "_born", "_first", "_gap", "_log", "_now", "_owed", "_runs", "_settings", "_slack")

    def __init__(self, settings: PaceSettings, now_us: int) -> None:
        super().__init__()
        self._settings = settings
        self._gap = settings.whole_us * _PS + settings.rest_ps
        self._slack = max(_PS, min(self._gap - _PS, max(self._gap // 2, _LIFE_US * _PS)))
        self._now = self._at = self._born = now_us
        self._first = now_us * _PS  # the time of the first free number
        self._owed = 0  # how far what is taken is ahead of the latest ticket: a deficit
        self._runs: list[tuple[int, int]] = []  # taken numbers beyond it: (first, count)
        self._log = _Log(settings.amount, settings.width, settings.lives_us[1], now_us)

    def load(self, text: str) -> bool:
        numbers = _unpack("p2", text)
        if len(numbers) < _GRID_COUNT + _LOG_COUNT:
            return False
        first_us, first_ps, gap_us, gap_ps, self._at, self._born, count = numbers[:_GRID_COUNT]
        end = _GRID_COUNT + 2 * count
        if (
            len(numbers) < end + _LOG_COUNT
            or first_us > self._now + _AHEAD_MAX_US + 2 * _FAR_US
            or self._at > self._now + _AHEAD_MAX_US
            or not _is_gap(gap_us, gap_ps)
        ):
            return False
        self._first = first_us * _PS + first_ps
        self._runs = [*zip(numbers[_GRID_COUNT:end:2], numbers[_GRID_COUNT + 1 : end : 2], strict=True)]
        gap = gap_us * _PS + gap_ps
        latest = self._first + self._beyond(gap)
        self._owed = max(0, latest - self._at * _PS)
        if gap != self._gap:
            self._change_gap(latest, gap)
        self._drop()
        return self._log.load(numbers[end:])

    def write(self) -> str:
        runs = (number for run in self._runs for number in run)
        grid = [*divmod(self._first, _PS), *divmod(self._gap, _PS), self._at, self._born, len(self._runs), *runs]
        return _pack("p2", grid + self._log.numbers())

    def earliest(self, t_us: int, cost: int) -> int | None:
        if cost * self._settings.whole_us >= _FAR_US:
            return None
        when = t_us
        while True:
            when = max(when, _ceil(self._first + _span(self._free(when, cost), self._gap)))
            if not self._settings.amount:
                return when
            later = self._log.earliest(when, cost)
            if later is None or later == when:
                return later
            when = later

    def take(self, t_us: int, cost: int, life_us: int) -> int:
        if cost:
            self._take_numbers(self._free(t_us, cost), cost)
            self._at, self.is_changed = max(self._at, t_us), True
        return self._log.take(t_us, cost, life_us) if self._settings.amount else t_us

    def give_back(self, t_us: int, cost: int, receipt: int, *, is_whole: bool = False) -> None:
        if self._settings.amount:
            self.is_changed |= self._log.give_back(t_us, cost, receipt)
        if is_whole and t_us >= self._born and self._gap >= 2 * _PS:
            self._free_numbers((t_us * _PS - self._first) // self._gap, cost)
            self.is_changed = True

    def add(self, t_us: int, cost: int, receipt: int) -> None:  # noqa: ARG002  # the next numbers are taken
        if self._settings.amount:
            self._log.add(cost, receipt)
        left, latest = cost, (self._now + _FAR_US) * _PS
        while left and self._runs:
            free = min(left, self._runs[0][0])
            self._take_numbers(0, free)
            left -= free
        if self._first < latest:
            self._first += _span(left, self._gap)
        self._at, self.is_changed = max(self._at, self._now), True

    def report(self, start_us: int, cost: int, receipt: int) -> None:
        if self._settings.amount:
            self.is_changed |= self._log.report(start_us, cost, receipt)

    def redate(self, t_us: int) -> None:
        self._now = self._at = self._born = t_us
        self._first = t_us * _PS + min(self._owed, _FAR_US * _PS)
        self._runs.clear()
        self._log.redate(t_us)
        self.is_changed = True

    def is_at_rest(self, now_us: int) -> bool:
        return self._log.until_us(0) <= now_us and _ceil(self._end()) <= now_us

    def use(self, now_us: int) -> Use:
        until = max(now_us, _ceil(self._end()))
        if not self._settings.amount:
            return Use(_level(self._first - now_us * _PS, self._gap) if self._first > now_us * _PS else 0, 1, until)
        return Use(self._log.used(now_us), self._settings.amount, max(until, self._log.until_us(now_us)))

    def _end(self) -> int:
        """Return the time of the first number after all that are taken."""
        return self._first + self._beyond(self._gap)

    def _beyond(self, gap: int) -> int:
        return _span(sum(self._runs[-1]), gap) if self._runs else 0

    def _change_gap(self, end: int, gap: int) -> None:
        """Begin a grid of the gap that is set, after one of another: each number that is ahead takes the new gap."""
        begun = min(end - gap, max(self._now, self._at) * _PS)
        self._first = begun + _span(_level(end - gap - begun, gap) + 1, self._gap)
        self._born = max(self._now + 1, _ceil(end))
        self._runs.clear()

    def _drop(self) -> None:
        """Drop the numbers whose time is over; begin a new grid at the present if none is taken beyond it."""
        over = self._until(self._now)
        while over > 0 and self._runs:
            begin, count = self._runs[0]
            step = min(over, begin)
            over -= step
            if step == begin:
                step += count
                over -= count
                del self._runs[0]
            self._first += _span(step, self._gap)
            self._runs = [(first - step, many) for first, many in self._runs]
        if over > 0:
            self._first = self._now * _PS

    def _until(self, t_us: int) -> int:
        """Count the numbers that may not be used at a time any more."""
        return _level(max(0, t_us * _PS - self._slack - self._first), self._gap)

    def _free(self, t_us: int, cost: int) -> int:
        """Return the first of the free numbers that may be used at a time or after it."""
        number = self._until(t_us)
        for begin, count in self._runs:
            if number + max(1, cost) <= begin:
                break
            number = max(number, begin + count)
        return number

    def _take_numbers(self, number: int, count: int) -> None:
        """Take consecutive free numbers."""
        place = bisect_left(self._runs, (number, 0))
        if place < len(self._runs) and self._runs[place][0] == number + count:
            count += self._runs.pop(place)[1]
        if place and sum(self._runs[place - 1]) == number:
            place -= 1
            number, before = self._runs.pop(place)
            count += before
        if number > 0:
            self._runs.insert(place, (number, count))
        else:
            self._first += _span(count, self._gap)
            self._runs = [(first - count, many) for first, many in self._runs]

    def _free_numbers(self, number: int, count: int) -> None:
        """Free consecutive numbers that a ticket has taken."""
        if number < 0:  # count from the first of them
            self._first -= _span(-number, self._gap)
            self._runs = [(0, -number), *((first - number, many) for first, many in self._runs)]
            number = 0
        runs: list[tuple[int, int]] = []
        for first, many in self._runs:
            parts = (first, min(first + many, number)), (max(first, number + count), first + many)
            runs += [(begin, end - begin) for begin, end in parts if begin < end]
        self._runs = runs
        if runs and runs[0][0] == 0:
            _, taken = runs.pop(0)
            self._first += _span(taken, self._gap)
            self._runs = [(first - taken, many) for first, many in runs]


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

    def give_back(self, t_us: int, cost: int, receipt: int, *, is_whole: bool = False) -> None:  # noqa: ARG002  # a part is as good
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

    def give_back(self, t_us: int, cost: int, receipt: int, *, is_whole: bool = False) -> None:  # noqa: ARG002  # the time decides
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


def _pack(kind: str, numbers: list[int]) -> str:
    """Write a kind and whole numbers as Lua's ``struct.pack`` does, a character for each byte."""
    return kind + pack(f"<{len(numbers)}d", *numbers).decode("latin-1")


def _unpack(kind: str, text: str) -> list[int]:
    """Read the numbers of :func:`_pack`; return none if they are not sound."""
    if text[: len(kind)] != kind or len(text) % 8 != len(kind):
        return []
    try:
        numbers = unpack(f"<{len(text) // 8}d", text[len(kind) :].encode("latin-1"))
    except UnicodeEncodeError:
        return []
    is_whole = all(0 <= number < _WHOLE_MAX and number.is_integer() for number in numbers)
    return [int(number) for number in numbers] if is_whole else []


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
