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
shortest whole number of gaps that takes a second or more. A ticket of cost c takes c numbers, and is admitted if the
window has room for 1, so that any cost is: of the tickets in a window, all but the one that was admitted last cost less
than the amount. The grid only makes the starts even, so it needs no proof: a number may be used up to a *slack*, less
than a gap, after its time. It belongs to one ticket, is free again if all of that
is given back, and a new grid begins at the present if nothing of the old one is left. If no number is taken beyond the
first free one, the grid moves to a ticket that comes between two numbers. A nominal pace has
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.fleet.limit_settings import (
    AMOUNT_MAX,
    FAR_US,
    LIFE_US,
    NUMBER,
    PS,
    BurstSettings,
    LimitSettings,
    PaceSettings,
    QuotaSettings,
    WindowSettings,
    is_gap,
    level_of,
    numbers_of,
    read_settings,
    span_of,
)
from ratelimited_executor._core.fleet.window_log import (
    LOG_COUNT,
    STATE_AHEAD_US,
    WindowLog,
    pack_numbers,
    unpack_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Decision", "SharedLimit", "Use", "agreed_time", "at_rest", "decide", "read_earlier", "read_limit"]

_EARLIER_US: Final = 1 << 52  # the present, for a state of an earlier era: all its times are before it
_GRID_COUNT: Final = 7  # numbers of a grid before its runs


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


class _Window(SharedLimit):
    """A log: ``w2`` and its numbers."""

    __slots__ = ("_log", "_settings")

    def __init__(self, settings: WindowSettings, now_us: int) -> None:
        super().__init__()
        self._settings = settings
        self._log = WindowLog(settings.amount, settings.width, settings.lives_us[1], now_us)

    def load(self, text: str) -> bool:
        numbers = unpack_numbers("w2", text)
        return len(numbers) >= LOG_COUNT and self._log.load(numbers)

    def write(self) -> str:
        return pack_numbers("w2", self._log.numbers())

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
        self._gap = settings.whole_us * PS + settings.rest_ps
        self._slack = max(PS, min(self._gap - PS, max(self._gap // 2, LIFE_US * PS)))
        self._now = self._at = self._born = now_us
        self._first = now_us * PS  # the time of the first free number
        self._owed = 0  # how far what is taken is ahead of the latest ticket: a deficit
        self._runs: list[tuple[int, int]] = []  # taken numbers beyond it: (first, count)
        self._log = WindowLog(settings.amount, settings.width, settings.lives_us[1], now_us)

    def load(self, text: str) -> bool:
        numbers = unpack_numbers("p2", text)
        if len(numbers) < _GRID_COUNT + LOG_COUNT:
            return False
        first_us, first_ps, gap_us, gap_ps, self._at, self._born, count = numbers[:_GRID_COUNT]
        end = _GRID_COUNT + 2 * count
        if (
            len(numbers) < end + LOG_COUNT
            or first_us > self._now + STATE_AHEAD_US + 2 * FAR_US
            or self._at > self._now + STATE_AHEAD_US
            or not is_gap(gap_us, gap_ps)
        ):
            return False
        self._first = first_us * PS + first_ps
        self._runs = [*zip(numbers[_GRID_COUNT:end:2], numbers[_GRID_COUNT + 1 : end : 2], strict=True)]
        gap = gap_us * PS + gap_ps
        latest = self._first + self._beyond(gap)
        self._owed = max(0, latest - self._at * PS)
        if gap != self._gap:
            self._change_gap(latest, gap)
        self._drop()
        return self._log.load(numbers[end:])

    def write(self) -> str:
        runs = (number for run in self._runs for number in run)
        grid = [*divmod(self._first, PS), *divmod(self._gap, PS), self._at, self._born, len(self._runs), *runs]
        return pack_numbers("p2", grid + self._log.numbers())

    def earliest(self, t_us: int, cost: int) -> int | None:
        if cost * self._settings.whole_us >= FAR_US:
            return None
        when = t_us
        while True:
            if not self._phase(when):
                when = max(when, ceil_us(self._first + span_of(self._free(when, cost), self._gap)))
            if not self._settings.amount:
                return when
            later = self._log.earliest(when, min(cost, 1))
            if later is None or later == when:
                return later
            when = later

    def take(self, t_us: int, cost: int, life_us: int) -> int:
        if cost:
            if later := self._phase(t_us):
                self._born, self._first = max(self._born, ceil_us(self._first)), self._first + later
            self._take_numbers(self._free(t_us, cost), cost)
            self._at, self.is_changed = max(self._at, t_us), True
        return self._log.take(t_us, cost, life_us) if self._settings.amount else t_us

    def give_back(self, t_us: int, cost: int, receipt: int, *, is_whole: bool = False) -> None:
        if self._settings.amount:
            self.is_changed |= self._log.give_back(t_us, cost, receipt)
        is_over = self._now - t_us > self._slack // PS or self._first >= (t_us + FAR_US) * PS  # nobody could use it
        if is_whole and not is_over and t_us >= self._born and self._gap >= 2 * PS:
            self._free_numbers((t_us * PS - self._first) // self._gap, cost)
            self.is_changed = True

    def add(self, t_us: int, cost: int, receipt: int) -> None:  # noqa: ARG002  # the next numbers are taken
        if self._settings.amount:
            self._log.add(cost, receipt)
        left, latest = cost, (self._now + FAR_US) * PS
        while left and self._runs:
            free = min(left, self._runs[0][0])
            self._take_numbers(0, free)
            left -= free
        if self._first < latest:
            self._first += span_of(left, self._gap)
        self._at, self.is_changed = max(self._at, self._now), True

    def report(self, start_us: int, cost: int, receipt: int) -> None:
        if self._settings.amount:
            self.is_changed |= self._log.report(start_us, cost, receipt)

    def redate(self, t_us: int) -> None:
        self._now = self._at = self._born = t_us
        self._first = t_us * PS + min(self._owed, FAR_US * PS)
        self._runs.clear()
        self._log.redate(t_us)
        self.is_changed = True

    def is_at_rest(self, now_us: int) -> bool:
        return self._log.until_us(0) <= now_us and ceil_us(self._end()) <= now_us

    def use(self, now_us: int) -> Use:
        until = max(now_us, ceil_us(self._end()))
        if not self._settings.amount:
            return Use(level_of(self._first - now_us * PS, self._gap) if self._first > now_us * PS else 0, 1, until)
        return Use(self._log.used(now_us), self._settings.amount, max(until, self._log.until_us(now_us)))

    def _end(self) -> int:
        """Return the time of the first number after all that are taken."""
        return self._first + self._beyond(self._gap)

    def _beyond(self, gap: int) -> int:
        return span_of(sum(self._runs[-1]), gap) if self._runs else 0

    def _change_gap(self, end: int, gap: int) -> None:
        """Begin a grid of the gap that is set, after one of another: each number that is ahead takes the new gap."""
        begun = min(end - gap, max(self._now, self._at) * PS)
        self._first = begun + span_of(level_of(end - gap - begun, gap) + 1, self._gap)
        self._born = max(self._now + 1, ceil_us(end))
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
            self._first += span_of(step, self._gap)
            self._runs = [(first - step, many) for first, many in self._runs]
        if over > 0:
            self._first, self._at = self._now * PS, self._now

    def _phase(self, t_us: int) -> int:
        """Return how much later the grid has to be for a number at a time; 0 if one may be used then, or some are taken."""
        late = t_us * PS - self._first
        over = late % self._gap
        return 0 if self._runs or late < 0 or over <= self._slack else over

    def _until(self, t_us: int) -> int:
        """Count the numbers that may not be used at a time any more."""
        return level_of(max(0, t_us * PS - self._slack - self._first), self._gap)

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
            self._first += span_of(count, self._gap)
            self._runs = [(first - count, many) for first, many in self._runs]

    def _free_numbers(self, number: int, count: int) -> None:
        """Free consecutive numbers that a ticket has taken."""
        if number < 0:  # count from the first of them
            self._first -= span_of(-number, self._gap)
            self._runs = [(0, -number), *((first - number, many) for first, many in self._runs)]
            number = 0
        runs: list[tuple[int, int]] = []
        for first, many in self._runs:
            parts = (first, min(first + many, number)), (max(first, number + count), first + many)
            runs += [(begin, end - begin) for begin, end in parts if begin < end]
        self._runs = runs
        if runs and runs[0][0] == 0:
            _, taken = runs.pop(0)
            self._first += span_of(taken, self._gap)
            self._runs = [(first - taken, many) for first, many in runs]


class _Bucket(SharedLimit):
    """A burst: ``g1,at,born,T,ps of T,returned,gap,ps of gap``.

    ``at`` is the latest last moment of a ticket, and ``born`` the first t whose ticket can be given back.
    T counts by the state's own gap, which was in force at the last admission.
    """

    __slots__ = ("_at", "_born", "_capacity", "_full", "_gap", "_life", "_now", "_returned", "_set_gap")

    _FORM: Final = re.compile(r"g1" + f",{NUMBER}" * 7, re.ASCII)

    def __init__(self, settings: BurstSettings, now_us: int) -> None:
        super().__init__()
        self._set_gap = self._gap = settings.whole_us * PS + settings.rest_ps
        self._capacity, self._life, self._now = settings.capacity, settings.lives_us[1], now_us
        self._at = self._born = now_us
        self._full = now_us * PS  # T
        self._returned = 0

    def load(self, text: str) -> bool:
        numbers = numbers_of(self._FORM, text)
        if numbers is None:
            return False
        self._at, self._born, full_us, full_ps, self._returned, gap_us, gap_ps = numbers
        self._full, self._gap = full_us * PS + full_ps, gap_us * PS + gap_ps
        latest = self._now + STATE_AHEAD_US
        return (
            max(self._at, self._born) <= latest
            and full_ps < PS
            and full_us < latest + FAR_US
            and self._returned <= FAR_US
            and is_gap(gap_us, gap_ps)
        )

    def write(self) -> str:
        numbers = (self._at, self._born, *divmod(self._full, PS), self._returned, *divmod(self._gap, PS))
        return ",".join(["g1", *map(str, numbers)])

    def earliest(self, t_us: int, cost: int) -> int | None:
        if cost > self._capacity or cost * (self._set_gap // PS) >= FAR_US:
            return None
        return max(t_us, ceil_us(self._due() - span_of(self._capacity - cost, self._set_gap)))

    def take(self, t_us: int, cost: int, life_us: int) -> int:
        if not cost:
            return self._full // PS + self._returned
        if self._gap != self._set_gap:
            self._full, self._gap = self._due(), self._set_gap
            self._born = max(self._at, t_us) + 1  # earlier receipts have another unit
        last = t_us + life_us
        self._full = max(self._full, last * PS) + span_of(cost, self._gap)
        self._at = max(self._at, last)
        self.is_changed = True
        return self._full // PS + self._returned

    def give_back(self, t_us: int, cost: int, receipt: int, *, is_whole: bool = False) -> None:  # noqa: ARG002  # a part is as good
        left = min(receipt, self._full // PS + self._returned) - self._returned - self._at
        back = min(span_of(cost, self._gap), left * PS)
        if t_us < self._born or back <= 0 or self._returned + ceil_us(back) > FAR_US:
            return
        self._full -= back
        self._returned += ceil_us(back)
        self.is_changed = True

    def add(self, t_us: int, cost: int, receipt: int) -> None:  # noqa: ARG002  # the signature of a limit
        last = t_us + self._life
        if last > self._at:  # of a ticket of cost 0, which has changed nothing, or of a shorter life
            owed = max(0, self._full - self._at * PS) if self._at >= t_us else 0
            self._at, self._full = last, max(self._full, last * PS + owed)
        self._full = max(self._full, min(self._full + span_of(cost, self._gap), (self._now + FAR_US) * PS))
        self.is_changed = True

    def redate(self, t_us: int) -> None:
        owed = max(0, self._full - self._at * PS)
        self._now, self._at, self._born = t_us, t_us + self._life, t_us + self._life + 1
        self._full = self._at * PS + min(owed, FAR_US * PS)
        self._returned = 0
        self.is_changed = True

    def is_at_rest(self, now_us: int) -> bool:
        return self._due() <= now_us * PS

    def use(self, now_us: int) -> Use:
        due = self._due()
        used = max(0, level_of(due - now_us * PS, self._set_gap)) if due > now_us * PS else 0
        return Use(used, self._capacity, max(now_us, ceil_us(due)))

    def _due(self) -> int:
        """Return T by the gap that is set: each whole cost open at the last admission takes that gap."""
        if self._gap == self._set_gap or self._full <= self._at * PS:
            return self._full
        level = level_of(self._full - self._at * PS, self._gap)
        return self._at * PS + span_of(level, self._set_gap)


class _Quota(SharedLimit):
    """The used amounts of four periods: ``q1,calendar,number,born,`` and those of ``number`` - 2 to + 1.

    ``born`` is the first t whose ticket can be given back.
    """

    __slots__ = ("_born", "_now", "_number", "_settings", "_used")

    _FORM: Final = re.compile(r"q1" + f",{NUMBER}" * 7, re.ASCII)

    def __init__(self, settings: QuotaSettings, now_us: int) -> None:
        super().__init__(settings.next_end_us - settings.valid_us - settings.late_us - 1)
        self._settings, self._now = settings, now_us
        self._number, self._born = settings.number, now_us
        self._used = [0, 0, 0, 0]

    def load(self, text: str) -> bool:
        numbers = numbers_of(self._FORM, text)
        if numbers is None or numbers[2] > self._now + STATE_AHEAD_US or max(numbers[3:]) > AMOUNT_MAX:
            return False
        calendar, number, born, *used = numbers
        settings = self._settings
        if calendar != settings.calendar:
            total = min(sum(used), AMOUNT_MAX)
            is_ending = self._now + STATE_AHEAD_US >= settings.end_us - settings.valid_us - settings.late_us
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
            self._used[place] = min(self._used[place] + cost, AMOUNT_MAX)
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
            return AMOUNT_MAX
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


_LAWS: Final[dict[type[LimitSettings], Callable[..., SharedLimit]]] = {
    PaceSettings: _Pace,
    BurstSettings: _Bucket,
    WindowSettings: _Window,
    QuotaSettings: _Quota,
}


def at_rest(settings: LimitSettings, now_us: int) -> SharedLimit:
    """Return a limit without a state."""
    return _LAWS[type(settings)](settings, now_us)


def read_limit(settings: str, state: str | None, now_us: int) -> SharedLimit | None:
    """Return the limit of settings and a state; None if one of them is not sound."""
    read = read_settings(settings)
    if read is None:
        return None
    limit = at_rest(read, now_us)
    return limit if not state or limit.load(state) else None


def read_earlier(settings: str, state: str, t_us: int) -> SharedLimit | None:
    """Return the limit of settings and a state of an earlier era, redated to ``t_us``; None if one of them is not sound."""
    limit = read_limit(settings, state, _EARLIER_US)
    if limit is not None:
        limit.redate(t_us)
        limit.is_changed = False
    return limit


def ceil_us(time: int) -> int:
    """Return picoseconds as microseconds, rounded up."""
    return -(time // -PS)


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
