"""The memory of keys without work: a few numbers for each, until its limits need none.

A key is kept as bytes, which the garbage collector does not visit: objects for each of a million keys would make each
of its full collections hold the loop for seconds.

A key that returns is likely to rest again, with a later end. So its entry in the list of a second stays when it leaves,
and moves only when that second has come: a key has one entry, however often it comes and goes.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final
from weakref import ref

from ratelimited_executor._core.keys.states import KeyState
from ratelimited_executor._kernel.timeline import NS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from ratelimited_executor._core.limits.limit import Limit

__all__ = ["KeyMemory"]

_NEVER_NS: Final = 1 << 62  # a time that does not come


class KeyMemory:
    """Keys without work, and the seconds in which they can be forgotten."""

    __slots__ = ("_away", "_kind", "_lists", "_packed", "_seconds")

    def __init__(self) -> None:
        self._packed: dict[Hashable, bytes | tuple[int, ...]] = {}  # its list, when it can be forgotten, its numbers
        self._lists: dict[int, list[Hashable]] = {}  # by second
        self._seconds: list[int] = []  # of the lists: a heap
        self._away: dict[Hashable, int] = {}  # the lists of keys that have left
        self._kind: type | None = None  # the class of the limits whose numbers these are

    def __len__(self) -> int:
        return len(self._packed)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._packed

    def __iter__(self) -> Iterator[Hashable]:
        return iter([*self._packed])  # they may leave meanwhile

    def put_away(self, key: Hashable, state: KeyState, now_ns: int) -> bool:
        """Keep the limit and the penalty of a key as numbers, or nothing if they are as for a new key.

        Return False, and change nothing, if the limit cannot be packed, or while a start can still be settled.
        """
        numbers: tuple[int, ...] | None = ()
        until_ns: int | None = now_ns
        if state.limit is not None:
            until_ns = state.limit.idle_at(now_ns)
            kind = type(state.limit)
            if until_ns != now_ns:
                numbers = state.limit.pack()
                if numbers is None or (self._packed and self._kind not in (None, kind)):
                    return False
            known = ref(state.limit)
            state.limit = None
            state.limit = known()
            if state.limit is not None:  # somebody holds the receipt of a start
                return False
            self._kind = kind if until_ns != now_ns else self._kind
        if until_ns is not None:
            until_ns = max(until_ns, state.penalty_ns)
        if until_ns != now_ns:
            assert numbers is not None
            self.put(key, until_ns, (state.penalty_ns, *numbers))
        return True

    def recall(self, key: Hashable, limit: Limit | None, now_ns: int) -> KeyState:
        """Return the state of a key, which leaves if it is here; a new limit of its class adopts its numbers."""
        state = KeyState(limit)
        numbers = self.pop(key)
        if numbers is not None:
            state.is_used = True
            state.penalty_ns = numbers[0]
            if limit is not None and len(numbers) > 1 and type(limit) is self._kind:
                limit.unpack(numbers[1:], now_ns)
        return state

    def put(self, key: Hashable, until_ns: int | None, numbers: Sequence[int]) -> None:
        """Keep the numbers of a key until a time; None for ever."""
        until_ns = _NEVER_NS if until_ns is None else min(until_ns, _NEVER_NS)
        second = -(-until_ns // NS)
        listed = self._away.pop(key, None)
        if listed is None or listed > second:
            self._list(key, second)
            listed = second
        self._packed[key] = _pack((listed, until_ns, *numbers))

    def pop(self, key: Hashable) -> Sequence[int] | None:
        """Remove a key and return its numbers; None if it is not here."""
        packed = self._packed.pop(key, None)
        if packed is None:
            return None
        listed, _, *numbers = _unpack(packed)
        self._away[key] = listed
        return numbers

    def next_time(self) -> int | None:
        """Return when some key may be forgotten; None if there is none."""
        return self._seconds[0] * NS if self._seconds else None

    def forget(self, count: int, now_ns: int) -> int:
        """Examine at most ``count`` keys whose second has come, and forget them; return how many were examined."""
        left = count
        while left and self._seconds and self._seconds[0] * NS <= now_ns:
            second = self._seconds[0]
            keys = self._lists[second]
            if not keys:
                del self._lists[heappop(self._seconds)]
                continue
            left -= 1
            self._look_at(keys.pop(), second, now_ns)
        return count - left

    def _look_at(self, key: Hashable, second: int, now_ns: int) -> None:
        packed = self._packed.get(key)
        if packed is None:
            if self._away.get(key) == second:
                del self._away[key]
            return
        listed, until_ns, *numbers = _unpack(packed)
        if listed != second:
            return  # it is in an earlier list as well
        del self._packed[key]
        if until_ns > now_ns:
            self.put(key, until_ns, numbers)

    def _list(self, key: Hashable, second: int) -> None:
        if second not in self._lists:
            self._lists[second] = []
            heappush(self._seconds, second)
        self._lists[second].append(key)


def _pack(numbers: tuple[int, ...]) -> bytes | tuple[int, ...]:
    """Return numbers as bytes, unless one of them needs more than 64 bits."""
    try:
        return array("q", numbers).tobytes()
    except OverflowError:
        return numbers


def _unpack(packed: bytes | tuple[int, ...]) -> Sequence[int]:
    return array("q", packed) if isinstance(packed, bytes) else packed
