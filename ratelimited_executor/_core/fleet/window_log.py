"""The log of a window that a fleet shares: the costs of tickets by their last moments.

The law that it keeps, and why, are in ``laws.py``.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain
from struct import pack, unpack
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.fleet.limit_settings import AMOUNT_MAX, WHOLE_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LOG_COUNT", "STATE_AHEAD_US", "WindowLog", "pack_numbers", "unpack_numbers"]

LOG_COUNT: Final = 4
"""How many numbers of a log come before its pairs."""

STATE_AHEAD_US: Final = 600_000_000
"""How far the times of a sound state may be ahead of the clock."""

_PARTS: Final = 256  # of a log


class WindowLog:
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

    def load(self, numbers: Sequence[int]) -> bool:
        """Load its numbers; return False if they are not sound."""
        self._gone, self.total, part, count, *pairs = numbers
        if len(pairs) % 2 or 2 * count > len(pairs):
            return False
        times, costs = pairs[::2], pairs[1::2]
        if part == self._part:  # else they were rounded in another way
            self._ahead = [*zip(times[:count], costs[:count], strict=True)]
        self._times, self._costs = times[count:], costs[count:]
        return max([0, *times[-1:], *times[:count]]) <= self.now_us + STATE_AHEAD_US and self.total <= AMOUNT_MAX

    def numbers(self) -> list[int]:
        """Return its numbers."""
        lasts = [0] * (2 * len(self._times))
        lasts[::2], lasts[1::2] = self._times, self._costs
        return [self._gone, self.total, self._part, len(self._ahead), *chain.from_iterable(self._ahead), *lasts]

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
        more = max(0, min(cost, AMOUNT_MAX - self.total))
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


def pack_numbers(kind: str, numbers: list[int]) -> str:
    """Write a kind and whole numbers as Lua's ``struct.pack`` does, a character for each byte."""
    return kind + pack(f"<{len(numbers)}d", *numbers).decode("latin-1")


def unpack_numbers(kind: str, text: str) -> list[int]:
    """Read the numbers of :func:`pack_numbers`; return none if they are not sound."""
    if text[: len(kind)] != kind or len(text) % 8 != len(kind):
        return []
    try:
        numbers = unpack(f"<{len(text) // 8}d", text[len(kind) :].encode("latin-1"))
    except UnicodeEncodeError:
        return []
    try:
        whole = [*map(int, numbers)]
    except (ValueError, OverflowError):  # nan, infinity
        return []
    is_sound = tuple(whole) == numbers and (not whole or (min(whole) >= 0 and max(whole) < WHOLE_MAX))
    return whole if is_sound else []
