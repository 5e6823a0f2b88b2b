"""Who waits for room among the waiting tasks: first come, first served, but for keys that are full themselves."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["Room"]


class HasRoom(Protocol):
    """Tells whether so many more tasks may wait."""

    def __call__(self, count: int, key: Hashable, key_count: int = 0) -> bool:
        """Whether ``count`` tasks in all, and ``key_count`` and one of a key, fit beside those that wait."""
        ...


class Room:
    """A queue of waiters, each of which asks for one place.

    Args:
        has_room: tells whether there is a place.
    """

    def __init__(self, has_room: HasRoom) -> None:
        self._has_room = has_room
        self._waiters: deque[tuple[asyncio.Future[None], Hashable]] = deque()
        self._promised: Counter[Hashable] = Counter()  # places promised to waiters that have not taken them yet, by key
        self._promised_count = 0
        self.is_passing = False  # whether somebody takes his promised place at this moment

    @property
    def waiter_count(self) -> int:
        """How many wait, or have been promised a place that they have not taken."""
        return len(self._waiters) + self._promised_count

    def is_free(self, key: Hashable) -> bool:
        """Whether somebody who has not waited may take a place: there is one, and nobody who waits could take it.

        As long as there are places, those wait whose own key is full.
        """
        self.wake()
        if key is not None and any(other == key for _, other in self._waiters):
            return False
        return self._has_room(self._promised_count + 1, key, self._promised[key])

    async def wait(self, key: Hashable) -> None:
        """Wait for a place, which is then promised: go on with :meth:`passing`, without awaiting anything else."""
        if self.is_free(key):
            self._promise(key)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (future, key)
        self._waiters.append(waiter)
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(key)  # it was promised, and nobody will take it
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    @contextmanager
    def passing(self, key: Hashable) -> Iterator[None]:
        """Take the place that was promised, in the body."""
        self._release(key)
        self.is_passing = True
        try:
            yield
        except BaseException:
            self.is_passing = False
            self.wake()  # it was not taken
            raise
        self.is_passing = False

    def _release(self, key: Hashable) -> None:
        self._promised[key] -= 1
        if not self._promised[key]:
            del self._promised[key]
        self._promised_count -= 1

    def give_back(self, key: Hashable) -> None:
        """Leave the place that was promised to another."""
        self._release(key)
        self.wake()

    def wake(self) -> None:
        """Promise the places that there are, in order."""
        if not self._waiters:
            return
        kept: deque[tuple[asyncio.Future[None], Hashable]] = deque()
        while self._waiters and self._has_room(self._promised_count + 1, None):
            future, key = self._waiters.popleft()
            if future.done():
                continue
            if self._has_room(self._promised_count + 1, key, self._promised[key]):
                self._promise(key)
                future.set_result(None)
            else:
                kept.append((future, key))
        self._waiters = kept + self._waiters

    def close(self, error: Exception) -> None:
        """Let every waiter fail: there will be no room any more."""
        waiters, self._waiters = self._waiters, deque()
        for future, _ in waiters:
            if not future.done():
                future.set_exception(error)

    def _promise(self, key: Hashable) -> None:
        self._promised[key] += 1
        self._promised_count += 1
