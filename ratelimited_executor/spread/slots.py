"""Divide a cycle into slots of whole seconds and whole buckets of keys.

There are ``gcd(seconds, buckets)`` slots: the largest number that divides both evenly, so that each slot takes the same
time, and each bucket of keys lies in one slot. A key's slot contains its offset, whatever the number of buckets.

Source: "On the virtues of slot scheduling", a talk, which uses the last bytes of a UUID in place of a hash of the key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durations import seconds_of
from ratelimited_executor.spread.keys import key_hash, offset_ns

if TYPE_CHECKING:
    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor.spread.keys import Key

__all__ = ["BUCKET_COUNTS", "CycleSlots", "cycle_slot_of", "cycle_slots", "reciprocal"]

BUCKET_COUNTS: Final = {256: 1, 65_536: 2}  # the number of buckets: bytes of the hash in a bucket
_NS: Final = 1_000_000_000


def cycle_slots(cycle: DurationLike, buckets: int = 65_536) -> int:
    """Return the number of slots of a cycle.

    Args:
        cycle: whole seconds, as a number, a timedelta or a str such as ``"8h"``; even, because an odd one cannot be divided.
        buckets: 256 or 65,536: how finely databases can distinguish keys.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if ``cycle`` is not a whole number of seconds that can be divided, or ``buckets`` is another number.

    >>> cycle_slots("8h", 256), cycle_slots("24h"), cycle_slots(3600)
    (128, 128, 16)
    """
    return CycleSlots(cycle, buckets).count


def cycle_slot_of(key: Key, cycle: DurationLike, buckets: int = 65_536) -> int:
    """Return the slot of a key in a cycle: 0 to ``cycle_slots(cycle, buckets)`` - 1."""
    return CycleSlots(cycle, buckets).slot_of(key)


def reciprocal(k: int, *, of: int) -> Fraction:
    """Return the phase of the ``k``-th kind of jobs over the same keys, as a part of the cycle.

    The kinds are equidistant on the circle: no two of them work on one key's slot at the same time, as long as there are
    no more kinds than slots. (Two phases differ by at least 1 / ``of`` of the cycle, and a slot lasts 1 / ``slots`` of it.)

    Args:
        k: 0 <= k < of.
        of: the number of kinds, >= 1.

    Raises:
        TypeError: if an argument is not an integer.
        ValueError: if an argument is out of range.

    >>> [str(reciprocal(k, of=3)) for k in range(3)]
    ['0', '1/3', '2/3']
    """
    for name, value in (("k", k), ("of", of)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an integer, got {value!r}")
    if of < 1:
        raise ValueError(f"of must be >= 1, got {of!r}")
    if not 0 <= k < of:
        raise ValueError(f"k must be >= 0 and < of={of}, got {k!r}")
    return Fraction(k, of)


@dataclass(frozen=True)
class CycleSlots:
    """The slots of a cycle, which begins at each multiple of its length since the epoch (UTC).

    Args:
        cycle: whole seconds, as a number, a timedelta or a str such as ``"8h"``.
        buckets: 256 or 65,536: how finely databases can distinguish keys.
        phase: the part of the cycle by which it is shifted later, >= 0 and < 1; see :func:`reciprocal`.

    Attributes:
        seconds: the length of the whole cycle.
        count: the number of slots.
        slot_seconds: the length of one slot.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range.
    """

    cycle: DurationLike = field(repr=False, compare=False)
    buckets: int = 65_536
    phase: Fraction = Fraction(0)
    seconds: int = field(init=False)
    count: int = field(init=False)
    slot_seconds: int = field(init=False)

    def __post_init__(self) -> None:
        exact = seconds_of("cycle", self.cycle)
        if not exact.is_integer():
            raise ValueError(f"cycle must be a whole number of seconds, got {self.cycle!r}")
        if isinstance(self.buckets, bool) or not isinstance(self.buckets, int):
            raise TypeError(f"buckets must be 256 or 65536, got {self.buckets!r}")
        if self.buckets not in BUCKET_COUNTS:
            raise ValueError(f"buckets must be 256 or 65536, got {self.buckets!r}")
        phase: object = self.phase
        if isinstance(phase, bool) or not isinstance(phase, (int, Fraction)):
            raise TypeError(f"phase must be a Fraction of the cycle, such as reciprocal(1, of=3), got {self.phase!r}")
        if not 0 <= self.phase < 1:
            raise ValueError(f"phase must be >= 0 and < 1, a part of the cycle, got {self.phase!r}")
        seconds = int(exact)
        count = math.gcd(seconds, self.buckets)
        if count == 1:
            raise ValueError(
                f"cycle must have a divisor in common with {self.buckets} buckets, or it is one slot, got {self.cycle!r}: "
                f"take {seconds + 1} s"
            )
        for name, value in (("seconds", seconds), ("count", count), ("slot_seconds", seconds // count)):
            object.__setattr__(self, name, value)

    def slot_of(self, key: Key) -> int:
        """Return the slot of a key."""
        return key_hash(key) * self.count >> 64

    def offset_ns(self, key: Key) -> int:
        """Return a key's exact offset in the cycle, in nanoseconds: always within its slot."""
        return offset_ns(key, self.seconds * _NS)

    def buckets_of(self, slot: int) -> range:
        """Return the buckets of a slot.

        Raises:
            TypeError: if the slot is not an integer.
            ValueError: if the cycle has no such slot.
        """
        self._check(slot)
        width = self.buckets // self.count
        return range(slot * width, (slot + 1) * width)

    def turn_at(self, time: float) -> int:
        """Return the turn at an instant, in epoch seconds: a number that grows by one with every slot.

        Turn t belongs to slot ``t % count`` in cycle ``t // count``.
        """
        return math.floor((Fraction(time) - self.phase * self.seconds) / self.slot_seconds)

    def number_at(self, time: float) -> int:
        """Return the number of the cycle at an instant, in epoch seconds; cycle 0 begins at the phase."""
        return self.turn_at(time) // self.count

    def slot_at(self, time: float) -> int:
        """Return the slot whose turn it is at an instant, in epoch seconds."""
        return self.turn_at(time) % self.count

    def begin(self, number: int, slot: int = 0) -> Fraction:
        """Return when a slot of a cycle begins, in epoch seconds, exactly."""
        self._check(slot)
        return self.begin_of(number * self.count + slot)

    def begin_of(self, turn: int) -> Fraction:
        """Return when a turn begins, in epoch seconds, exactly."""
        return turn * self.slot_seconds + self.phase * self.seconds

    def _check(self, slot: int) -> None:
        if isinstance(slot, bool) or not isinstance(slot, int):
            raise TypeError(f"slot must be an integer, got {slot!r}")
        if not 0 <= slot < self.count:
            raise ValueError(f"slot must be >= 0 and < {self.count}, got {slot!r}")
