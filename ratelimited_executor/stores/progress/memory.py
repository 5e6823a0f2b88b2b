"""Stores in memory, lost when the process ends."""

from __future__ import annotations

from collections import defaultdict

from ratelimited_executor._core.repeat.cycles import check_shape
from ratelimited_executor.abc import Progress

__all__ = ["MemoryProgress"]


class MemoryProgress(Progress):
    """Progress in memory, lost when the process ends: for tests, simulations and repeatable work."""

    def __init__(self) -> None:
        self._cycles: dict[str, tuple[str, int]] = {}
        self._turns: dict[tuple[str, int], tuple[str, float]] = {}
        self._complete: dict[str, set[int]] = defaultdict(set)
        self._keys: dict[tuple[str, int], set[bytes]] = defaultdict(set)

    async def begin(self, name: str, shape: str, turn: int) -> int:
        known, since = self._cycles.setdefault(name, (shape, turn))
        check_shape(name, known, shape)
        return since

    async def open_turns(self, name: str, first: int, last: int) -> list[int]:
        complete = self._complete[name]
        return [turn for turn in range(first, last + 1) if turn not in complete]

    async def claim(self, name: str, turn: int, *, owner: str, now: float, until: float) -> bool:
        holder, held_until = self._turns.get((name, turn), (owner, now))
        if turn in self._complete[name] or (holder != owner and held_until > now):
            return False
        self._turns[name, turn] = owner, until
        return True

    async def done_keys(self, name: str, turn: int) -> set[bytes]:
        return set(self._keys.get((name, turn), ()))

    async def note(self, name: str, turn: int, keys: list[bytes]) -> None:
        self._keys[name, turn].update(keys)

    async def complete(self, name: str, turn: int, *, keep_from: int) -> None:
        self._complete[name].add(turn)
        self._keys.pop((name, turn), None)
        for each in [each for each in self._turns if each[0] == name and each[1] < keep_from]:
            del self._turns[each]
            self._keys.pop(each, None)
        self._complete[name] = {each for each in self._complete[name] if each >= keep_from}

    async def aclose(self) -> None:
        """Do nothing: the data stays until the object is deleted."""
