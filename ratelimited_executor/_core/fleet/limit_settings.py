"""The settings of limits that a fleet shares: values that peers send as text.

The laws of these limits are in ``laws.py``. All numbers are integers below 2**53, so that Lua's doubles hold them exactly.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AMOUNT_MAX",
    "DRIFT",
    "FAR_US",
    "LIFE_MAX_US",
    "LIFE_US",
    "NUMBER",
    "PS",
    "WHOLE_MAX",
    "BurstSettings",
    "LimitSettings",
    "PaceSettings",
    "QuotaSettings",
    "WindowSettings",
    "is_gap",
    "level_of",
    "life_of",
    "numbers_of",
    "read_settings",
    "span_of",
]

DRIFT: Final = Fraction(500, 1_000_000)
"""The largest drift between two clocks."""

LIFE_MAX_US: Final = 500_000
"""The longest life of a ticket, in microseconds."""

LIFE_US: Final = 20_000
"""The life of a ticket under a pace alone, which is to be even; and the slack of a grid."""

PS: Final = 1_000_000
"""Picoseconds in a microsecond."""

WHOLE_MAX: Final = 1 << 53
"""Integers below it are exact in Lua, too."""

AMOUNT_MAX: Final = 1 << 52
"""The largest amount."""

FAR_US: Final = 1 << 50
"""35 years: a gap of this length is a pause."""

NUMBER: Final = r"([0-9]+)"
"""The pattern of a number in a text."""

_LATE_MAX_US: Final = 60_000_000
_TEXT_MAX: Final = 160  # characters of sound settings, and of the state of a burst or a quota
_LIFE_MIN_US: Final = 2_000  # of a ticket under any limit: less could not be used
_LIVES: Final = 20  # a ticket lives for this part of a window, unless its peer is slower
_LIVES_MIN: Final = 2  # and for this part at most
_SECOND_US: Final = 1_000_000


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


@dataclass(frozen=True, slots=True)
class PaceSettings(LimitSettings):
    """One start of cost 1 in each gap.

    Attributes:
        whole_us: the gap in microseconds; 2**50 pauses.
        rest_ps: the rest of the gap in picoseconds.
        amount: the most that starts in any ``width`` may cost, apart from one of them; 0 for a nominal pace.
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
        if not is_exact or gap[0] >= FAR_US:
            return cls(*gap)
        amount = -(_SECOND_US * count // -per_us)  # gaps in a second or more
        return cls(*gap, amount, -(amount * per_us * (1 + DRIFT) // -count))

    @property
    def is_sound(self) -> bool:
        """True if all numbers are within their bounds."""
        return is_gap(self.whole_us, self.rest_ps) and self.amount <= AMOUNT_MAX and self.width < FAR_US

    @property
    def lives_us(self) -> tuple[int, int]:
        """How long a ticket should live at least, and may live at most."""
        return LIFE_US, max(LIFE_US, min(self.width or _SECOND_US, _SECOND_US) // _LIVES_MIN)

    @property
    def gap_us(self) -> int:
        """The mean time between two starts."""
        return max(1, self.whole_us)

    @property
    def per_second(self) -> Fraction:
        """The starts a second that it was made for, by a clock without drift."""
        return _per_second(self.whole_us, self.rest_ps)


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
        if not is_gap(self.whole_us, self.rest_ps) or self.capacity > AMOUNT_MAX:
            return False
        gap = self.whole_us * PS + self.rest_ps
        return self.whole_us >= FAR_US or span_of(self.capacity, gap) < FAR_US * PS

    @property
    def lives_us(self) -> tuple[int, int]:
        """How long a ticket should live at least, and may live at most: half of the time to fill the bucket."""
        half = min(span_of(self.capacity, self.whole_us * PS + self.rest_ps) // PS // _LIVES_MIN, LIFE_MAX_US)
        return max(_LIFE_MIN_US, min(half, _SECOND_US // _LIVES)), max(_LIFE_MIN_US, half)

    @property
    def gap_us(self) -> int:
        """The mean time between two starts."""
        return max(1, self.whole_us)

    @property
    def per_second(self) -> Fraction:
        """The starts a second that it was made for, by a clock without drift."""
        return _per_second(self.whole_us, self.rest_ps)


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
        return self.amount <= AMOUNT_MAX and 0 < self.width < FAR_US

    @property
    def lives_us(self) -> tuple[int, int]:
        """How long a ticket should live at least, and may live at most."""
        bounds = _LIFE_MIN_US, LIFE_MAX_US
        return _between(self.width // _LIVES, *bounds), _between(self.width // _LIVES_MIN, *bounds)

    @property
    def gap_us(self) -> int:
        """The mean time between two starts."""
        return max(1, self.width // self.amount) if self.amount else FAR_US

    @property
    def per_second(self) -> Fraction:
        """The starts a second that it was made for, by a clock without drift."""
        return Fraction(self.amount * _SECOND_US, self.width) * (1 + DRIFT)


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
            self.amount <= AMOUNT_MAX
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
        return max(1, (self.end_us - self.begin_us) // self.amount) if self.amount else FAR_US

    @property
    def per_second(self) -> Fraction:
        """The starts a second that it was made for, by a clock without drift."""
        return Fraction(self.amount * _SECOND_US, self.end_us - self.begin_us)


def life_of(settings: Sequence[LimitSettings], wanted_us: int) -> int:
    """Return how long a ticket under these limits lives, if its peer wants it to live for a time."""
    if not settings:
        return LIFE_MAX_US
    lives = [each.lives_us for each in settings]
    return min(max(wanted_us, min(least for least, _ in lives)), *(most for _, most in lives))


def _between(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))


def _gap_of(count: int, per_us: int) -> tuple[int, int]:
    """Return a gap in microseconds and picoseconds by any clock, rounded up."""
    if count == 0:
        return FAR_US, 0
    gap = -(per_us * PS * (1 + DRIFT) // -count)
    return (gap // PS, gap % PS) if gap < FAR_US * PS else (FAR_US, 0)


def _per_second(whole_us: int, rest_ps: int) -> Fraction:
    """Return the rate of a gap that was made longer by the drift of clocks; 0 for a pause."""
    return Fraction(0) if whole_us >= FAR_US else Fraction(_SECOND_US * PS, whole_us * PS + rest_ps) * (1 + DRIFT)


def is_gap(whole_us: int, rest_ps: int) -> bool:
    """True if a gap is sound."""
    return whole_us <= FAR_US and rest_ps < PS and whole_us + rest_ps > 0


def span_of(cost: int, gap: int) -> int:
    """Return cost times gap in picoseconds, at most 35 years."""
    return min(cost * gap, FAR_US * PS)


def level_of(time: int, gap: int) -> int:
    """Return picoseconds divided by a gap, rounded up."""
    return min(-(min(time, FAR_US * PS) // -gap), AMOUNT_MAX)


_SETTINGS: Final[dict[str, type[LimitSettings]]] = {
    each.letter: each for each in (PaceSettings, BurstSettings, WindowSettings, QuotaSettings)
}


@lru_cache(maxsize=256)  # keys share a handful of settings
def read_settings(text: str) -> LimitSettings | None:
    """Return the settings in a text; None if they are not sound."""
    made = _SETTINGS.get(text[:1])
    if made is None:
        return None
    numbers = numbers_of(re.compile(r"[a-z]" + f",{NUMBER}" * len(fields(made)), re.ASCII), text)
    settings = None if numbers is None else made(*numbers)
    return settings if settings is not None and settings.is_sound else None


def numbers_of(form: re.Pattern[str], text: str) -> list[int] | None:
    """Return the numbers of a short text; None if it has another form, or a number is too large."""
    match = form.fullmatch(text) if len(text) <= _TEXT_MAX else None
    numbers = [int(each) for each in match.groups()] if match else [WHOLE_MAX]
    return numbers if max(numbers) < WHOLE_MAX else None
