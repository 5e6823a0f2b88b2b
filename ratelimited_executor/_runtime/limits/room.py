"""Waiters for room in the backlog: first come, first served, except for keys that are full themselves."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Protocol

from ratelimited_executor._core.lazy_heap import LazyHeap

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["Room"]


class HasRoom(Protocol):
    """Returns True if a number of further tasks may wait."""

    def __call__(self, count: int, key: Hashable, key_count: int = 0) -> bool:
        """True if ``count`` tasks in all, and ``key_count`` and one of a key, fit beside those that wait."""
        ...


class Room:
    """A queue of waiters, each for one place.

    Each key has a line of its own, so that a full key costs one check and not one for each of its waiters.

    Args:
        has_room: returns True if there is a place.
    """

    def __init__(self, has_room: HasRoom) -> None:
        self._has_room = has_room
        self._lines: dict[Hashable, deque[tuple[int, asyncio.Future[None]]]] = {}  # (number, waiter), by key
        self._numbers = count()
        self._waiting_count = 0
        self._promised: Counter[Hashable] = (
            Counter()
        )  # places reserved for waiters that have not taken them yet, by key
        self._promised_count = 0
        self._closed_by: Exception | None = None
        self.is_passing = False  # True while a waiter takes its reserved place

    @property
    def waiter_count(self) -> int:
        """The number of waiters, including those with a reserved place that they have not taken yet."""
        return self._waiting_count + self._promised_count

    def is_free(self, key: Hashable) -> bool:
        """True if a newcomer may take a place: there is one, and no waiter could take it.

        As long as there are places, only waiters whose own key is full wait.
        """
        self.wake()
        if key is not None and key in self._lines:
            return False
        return self._has_room(self._promised_count + 1, key, self._promised[key])

    async def wait(self, key: Hashable) -> None:
        """Wait for a place, which is then reserved: continue with :meth:`passing`, without awaiting anything else.

        Raises:
            Exception: what :meth:`close` was given, if there is no room any more.
        """
        if self._closed_by is not None:
            raise self._closed_by.with_traceback(None)  # else it would keep the frames of all callers
        if self.is_free(key):
            self._promise(key)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (next(self._numbers), future)
        self._lines.setdefault(key, deque()).append(waiter)
        self._waiting_count += 1
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(key)  # it was reserved, and no one will take it
            elif waiter in self._lines.get(key, ()):
                self._lines[key].remove(waiter)
                self._waiting_count -= 1
                if not self._lines[key]:
                    del self._lines[key]
            raise

    @contextmanager
    def passing(self, key: Hashable) -> Iterator[None]:
        """Take the reserved place, in the body."""
        self._release(key)
        self.is_passing = True
        try:
            yield
        except BaseException:
            self.is_passing = False
            self.wake()  # in case it was not taken
            raise
        self.is_passing = False

    def _release(self, key: Hashable) -> None:
        self._promised[key] -= 1
        if not self._promised[key]:
            del self._promised[key]
        self._promised_count -= 1

    def give_back(self, key: Hashable) -> None:
        """Release a reserved place to another waiter."""
        self._release(key)
        self.wake()

    def wake(self) -> None:
        """Reserve the free places for waiters, in order: O(lines), and O(log lines) a place."""
        if not self._lines or not self._has_room(self._promised_count + 1, None):
            return
        firsts = LazyHeap(self._is_full, ((line[0][0], key) for key, line in self._lines.items()))
        while self._has_room(self._promised_count + 1, None) and firsts.first() is not None:
            _, key = firsts.pop()
            line = self._lines[key]
            _, future = line.popleft()
            self._waiting_count -= 1
            if line:
                firsts.push((line[0][0], key))
            else:
                del self._lines[key]
            if not future.done():
                self._promise(key)
                future.set_result(None)

    def close(self, error: Exception) -> None:
        """Fail every waiter: there will be no more room."""
        self._closed_by = error
        lines, self._lines = self._lines, {}
        self._waiting_count = 0
        for line in lines.values():
            for _, future in line:
                if not future.done():
                    future.set_exception(error)

    def _is_full(self, first: tuple[int, Hashable]) -> bool:
        """True if there is no room for the key of a waiter, given as (number, key)."""
        return not self._has_room(self._promised_count + 1, first[1], self._promised[first[1]])

    def _promise(self, key: Hashable) -> None:
        self._promised[key] += 1
        self._promised_count += 1
