"""The slots of one process: the runtime of ``_core/slots/slots.py`` where no holder disappears unnoticed.

Leases end only when slots are given back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.slots.keeping import SlotHolder, SlotStatistics, manager_of
from ratelimited_executor._core.slots.slots import SlotPools
from ratelimited_executor._runtime.life.closing import check_loop
from ratelimited_executor.exceptions import ExecutorNotStartedError, ExecutorStoppedError, TaskExpiredError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.slots.keeping import SlotRequest
    from ratelimited_executor.abc import Clock

__all__ = ["LocalSlots"]

_US: Final = 1_000_000


class _LocalRequest:
    """A request for slots that does not wait."""

    is_coming: Final = False  # slots are handed over at once

    __slots__ = ("_keeper", "_pools", "_token", "_told", "fence", "lost")

    def __init__(
        self, keeper: LocalSlots, pools: tuple[str, ...], token: Any, told: Callable[[SlotRequest], None]
    ) -> None:
        self._keeper = keeper
        self._pools = pools
        self._token = token
        self._told = told
        self.fence = 0
        self.lost: Callable[[], None] = _nothing

    def is_fresh(self) -> bool:
        """Return True: no lease ends here."""
        return True

    def start(self) -> None:
        """Count the slots as handed over."""
        self._keeper._handed.update(self._pools)  # noqa: SLF001  # of this package

    def release(self) -> None:
        """Give the slots back."""
        self._keeper._requests.pop(self._token, None)  # noqa: SLF001  # of this package
        self._keeper.release(self._token)

    def _hand(self, fence: int) -> None:
        self.fence = fence
        self._told(self)


class LocalSlots:
    """Keeps the slots of a manager that shares them with no other process."""

    __slots__ = ("_handed", "_is_closed", "_loop", "_numbers", "_pools", "_requests", "_wakers")

    parts: Final = None  # no other process is asked for slots
    is_away: Final = False
    quarantine: Final = 0.0

    def __init__(self) -> None:
        self._pools = SlotPools()
        self._handed: Counter[str] = Counter()
        self._numbers = count()
        self._wakers: dict[Any, asyncio.Future[int]] = {}  # of waiters, by token
        self._requests: dict[Any, _LocalRequest] = {}  # requests that wait, by token
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def open(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:  # noqa: ARG002  # leases do not end here
        """Begin to hand slots over; called once, when the manager has started."""
        self._loop = loop

    def close(self) -> None:
        """Refuse waiting and new callers; holders keep their slots."""
        self._is_closed = True
        for token, waker in self._wakers.items():
            if not waker.done():
                waker.set_exception(ExecutorStoppedError(manager_of(token[1])))

    async def aclose(self) -> None:
        """Do nothing: there is no one to notify."""

    def watch(self, told: Callable[[], None]) -> None:
        """Do nothing: ``parts`` does not change."""

    def limit_of(self, pool: str) -> int:
        """Return how many slots may be held."""
        return self._pools.pool(pool).limit

    def set_limit(self, pool: str, limit: int) -> None:
        """Put another limit in force."""
        if self._loop is not None:
            check_loop(f"slots {pool!r}", self._loop)
        self._pools.set_limit(pool, limit, self._now_us())
        self._wake()

    def statistics(self, pool: str) -> SlotStatistics:
        """Return the counts of this moment."""
        found, now_us = self._pools.pool(pool), self._now_us()
        return SlotStatistics(
            name=pool,
            limit=found.limit,
            held=len(found.holding),
            waiting=found.waiting_count,
            handed=self._handed[pool],
            holders=tuple(
                SlotHolder(name=lease.note, fence=lease.fence, age=(now_us - lease.since_us) / _US)
                for lease in found.holding.values()
            ),
        )

    async def acquire(
        self,
        pools: tuple[str, ...],
        *,
        name: str,
        priority: float,
        expires: float | None,
        lost: Callable[[], None],  # noqa: ARG002  # here no slot is ever lost
    ) -> tuple[Any, int]:
        """Wait for a slot of each pool; return the token and the fence."""
        loop = self._loop
        if self._is_closed:
            raise ExecutorStoppedError(manager_of(pools[0]))
        if loop is None:
            raise ExecutorNotStartedError(manager_of(pools[0]))
        check_loop(f"slots {pools[0]!r}", loop)
        token = next(self._numbers), pools[0]
        fence = self._pools.ask(token, pools, self._now_us(), priority=priority, note=name)
        if not fence:
            fence = await self._wait(token, loop, name, expires)
        self._handed.update(pools)
        return token, fence

    async def _wait(self, token: Any, loop: asyncio.AbstractEventLoop, name: str, expires: float | None) -> int:
        """Wait for the requested slots."""
        waker: asyncio.Future[int] = loop.create_future()
        self._wakers[token] = waker
        try:
            async with asyncio.timeout(expires):
                return await waker
        except TimeoutError:
            self.release(token)
            raise TaskExpiredError(name, expires=expires or 0.0) from None
        except BaseException:  # cancelled, perhaps just after it was handed over; or the manager has closed
            self.release(token)
            raise
        finally:
            del self._wakers[token]

    def request(
        self,
        pools: tuple[str, ...],
        *,
        name: str,
        priority: float,
        told: Callable[[SlotRequest], None],
        limit: int = -1,
        answered: Callable[[SlotRequest], None] | None = None,  # noqa: ARG002  # the answer is known in this call
    ) -> SlotRequest:
        """Ask for a slot of each pool, without waiting."""
        token = next(self._numbers), pools[0]
        request = _LocalRequest(self, pools, token, told)
        own = None if limit < 0 else limit
        request.fence = self._pools.ask(token, pools, self._now_us(), priority=priority, limit=own, note=name)
        if not request.fence:
            self._requests[token] = request
        return request

    def release(self, grant: Any) -> None:
        """Give slots back."""
        self._pools.release(grant, self._now_us())
        self._wake()

    def _wake(self) -> None:
        """Notify the new holders of slots."""
        for lease in self._pools.handed():
            if (request := self._requests.pop(lease.token, None)) is not None:
                request._hand(lease.fence)  # noqa: SLF001  # of this module
                continue
            waker = self._wakers[lease.token]
            if not waker.done():
                waker.set_result(lease.fence)

    def _now_us(self) -> int:
        return 0 if self._loop is None else int(self._loop.time() * _US)


def _nothing() -> None:
    """Do nothing."""
