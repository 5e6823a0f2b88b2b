"""Slots: how many may do something at the same time, whoever they are; the shell of ``_core/slots.py``.

Here a pool counts within its process, where no holder disappears unnoticed: leases end only by being given back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durations import delay_of, number_of
from ratelimited_executor._core.slots import SlotPool
from ratelimited_executor._runtime.arguments import count_of, name_or_none
from ratelimited_executor._runtime.closing import check_loop
from ratelimited_executor.exceptions import ExecutorNotStartedError, ExecutorStoppedError, TaskExpiredError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from ratelimited_executor._core.durations import DurationLike

__all__ = ["Slot", "SlotHold", "SlotHolder", "SlotStatistics", "Slots"]

_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that is held.

    Attributes:
        pool: the name of its pool.
        fence: a number larger than that of every slot of the pool that was handed over before. Pass it to what you
            change, which then can refuse a smaller one.
    """

    pool: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolder:
    """Who holds a slot.

    Attributes:
        name: as given to :meth:`Slots.hold`, else that of the asyncio task.
        fence: of the slot.
        age: seconds for which it has been held.
    """

    name: str
    fence: int
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatistics:
    """A pool of slots at one moment.

    Attributes:
        name: of the pool.
        limit: how many may be held at a time.
        held: how many are; more than the limit for a while after that was lowered.
        waiting: how many wait.
        handed: how many have been handed over so far.
        holders: who holds them, the longest held first.
    """

    name: str
    limit: int
    held: int
    waiting: int
    handed: int
    holders: tuple[SlotHolder, ...]


class Slots:
    """A pool of slots: at most ``limit`` are held at the same time.

    Made by ``ExecutorManager.slots``, once for each name. Unlike ``max_concurrency``, which counts what one executor runs, a
    pool is for whoever asks: tasks of several executors, and code of your own.
    """

    __slots__ = ("__weakref__", "_is_closed", "_loop", "_name", "_numbers", "_pool", "_wakers")

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._pool = SlotPool(count_of("limit", limit))
        self._numbers = count()
        self._wakers: dict[Any, asyncio.Future[int]] = {}  # of those who wait, by token
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    @property
    def name(self) -> str:
        """What the pool is called."""
        return self._name

    @property
    def limit(self) -> int:
        """How many may be held at the same time; settable.

        What is added is handed over at once. A lower limit takes no slot away: holders finish, and none is handed over until
        fewer are held. 0 halts the pool.

        Raises:
            TypeError: if it is set to what is no integer.
            ValueError: if it is negative.
        """
        return self._pool.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        limit = count_of("limit", limit)
        if self._loop is not None:
            check_loop(repr(self), self._loop)
        self._pool.set_limit(limit, self._now_us())
        self._wake()

    def hold(self, *, priority: float = 0, expires: DurationLike | None = None, name: str | None = None) -> SlotHold:
        """Hold a slot for one ``async with``, which is entered when there is one.

        Args:
            priority: **a larger one is more important**; among equals who came first goes first.
            expires: how many seconds to wait at most, from the entry on; None for as long as it takes.
            name: what the holder is called; the asyncio task's own name by default.

        Returns:
            An async context manager that gives the :class:`Slot`.

        Raises:
            TypeError: if an argument has a wrong type.
            ValueError: if it is out of range.
        """
        rank = number_of("priority", priority)
        longest = None if expires is None else delay_of("expires", expires)
        return SlotHold(
            self._name,
            name_or_none("name", name),
            acquire=lambda holder: self._acquire(holder, priority=rank, expires=longest),
            release=self._release,
        )

    def statistics(self) -> SlotStatistics:
        """Return the counts of this moment, and who holds slots."""
        pool, now_us = self._pool, self._now_us()
        return SlotStatistics(
            name=self._name,
            limit=pool.limit,
            held=pool.held_count,
            waiting=pool.waiting_count,
            handed=pool.fence,
            holders=tuple(
                SlotHolder(name=lease.note, fence=lease.fence, age=(now_us - lease.since_us) / _US)
                for lease in pool.leases
            ),
        )

    def __repr__(self) -> str:
        pool = self._pool
        return f"<Slots {self._name!r} limit={pool.limit} held={pool.held_count} waiting={pool.waiting_count}>"

    # For the manager, and for those who hold and wait.

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to hand over; called once, when the manager has started."""
        self._loop = loop

    def _close(self) -> None:
        """Refuse whoever waits and comes; who holds a slot goes on with it."""
        self._is_closed = True
        for waker in self._wakers.values():
            if not waker.done():
                waker.set_exception(ExecutorStoppedError(repr(self)))

    async def _acquire(self, name: str, *, priority: float, expires: float | None) -> tuple[int, int]:
        """Wait for a slot; return the token and the fence."""
        loop = self._loop
        if self._is_closed:
            raise ExecutorStoppedError(repr(self))
        if loop is None:
            raise ExecutorNotStartedError(repr(self))
        check_loop(repr(self), loop)
        token = next(self._numbers)
        fence = self._pool.ask(token, self._now_us(), priority=priority, note=name)
        if fence:
            return token, fence
        waker = self._wakers[token] = loop.create_future()
        try:
            async with asyncio.timeout(expires):
                return token, await waker
        except TimeoutError:
            self._release(token)
            raise TaskExpiredError(name, expires=expires or 0.0) from None
        except BaseException:  # cancelled, perhaps just after it was handed over; or the pool has closed
            self._release(token)
            raise
        finally:
            del self._wakers[token]

    def _release(self, token: int) -> None:
        self._pool.release(token, self._now_us())
        self._wake()

    def _wake(self) -> None:
        """Tell those to whom slots were handed over."""
        for lease in self._pool.handed():
            waker = self._wakers[lease.token]
            if not waker.done():
                waker.set_result(lease.fence)

    def _now_us(self) -> int:
        return 0 if self._loop is None else int(self._loop.time() * _US)


class SlotHold:
    """One slot, for one ``async with``. Made by :meth:`Slots.hold`."""

    __slots__ = ("_acquire", "_is_used", "_name", "_pool", "_release", "_token")

    def __init__(
        self,
        pool: str,
        name: str | None,
        *,
        acquire: Callable[[str], Awaitable[tuple[int, int]]],
        release: Callable[[int], None],
    ) -> None:
        self._pool = pool
        self._name = name
        self._acquire = acquire
        self._release = release
        self._is_used = False
        self._token = -1

    async def __aenter__(self) -> Slot:
        if self._is_used:
            raise RuntimeError("a hold can be entered once: ask the pool for another")
        self._is_used = True
        name = self._name
        if name is None:
            task = asyncio.current_task()
            name = "hold" if task is None else task.get_name()
        try:
            self._token, fence = await self._acquire(name)
        except BaseException:
            self._is_used = False
            raise
        return Slot(self._pool, fence)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._release(self._token)
