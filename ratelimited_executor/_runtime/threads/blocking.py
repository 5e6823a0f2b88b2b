"""The blocking face: permits and slots for threads without an event loop.

Every call is checked and decided on the manager's own thread, by the executor and the pools there: these classes offer
``with`` where those offer ``async with``. ``loop_thread.py`` transfers calls to that thread.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ratelimited_executor._runtime.arguments import INHERITED
from ratelimited_executor._runtime.life.executor import ExecutorManager
from ratelimited_executor._runtime.limits.slots import OnLost
from ratelimited_executor._runtime.threads.loop_thread import Crossing, LoopThread
from ratelimited_executor.exceptions import ExecutorStoppedError, SlotLostError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Hashable, Iterable, Mapping
    from types import TracebackType

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.permits.rates import Rate
    from ratelimited_executor._core.slots.keeping import SlotStatistics
    from ratelimited_executor._runtime.insight.insight import Statistics
    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor
    from ratelimited_executor._runtime.limits.slots import OnLostLike, Slot, SlotHold, Slots
    from ratelimited_executor._runtime.task.handles import TaskHandle
    from ratelimited_executor._runtime.task.permit import Permit
    from ratelimited_executor.abc import Clock, Fleet, Peers
    from ratelimited_executor.typing import CostLike, RatesLike

__all__ = ["BlockingHold", "BlockingLimiter", "BlockingManager", "BlockingPermit", "BlockingSlots", "slots_within"]


class BlockingPermit:
    """One permit, for one ``with``. Created by :meth:`BlockingLimiter.permit`."""

    __slots__ = ("_crossing", "_handle", "_thread")

    def __init__(self, thread: LoopThread, permit: Permit) -> None:
        self._thread = thread
        self._crossing = Crossing(thread, permit)
        self._handle: TaskHandle[Any] | None = None

    def settle(self, actual: int | Mapping[str, int]) -> None:
        """Correct the cost of the permit, once it is known; also after its ``with`` block.

        Args:
            actual: permits, >= 0; or a mapping from resource to amount; resources that it omits stay as reserved.

        Raises:
            RuntimeError: if the permit has not been entered.
            TypeError: if ``actual`` is neither.
            ValueError: if an amount is negative, or the permit has no ``cost=`` that names the resource.
        """
        if self._handle is None:
            raise RuntimeError(
                "a permit costs nothing before it is entered: settle it in its with block, or afterwards"
            )
        with contextlib.suppress(ExecutorStoppedError):  # the counts have ended
            self._thread.call(partial(self._handle.settle, actual))

    def __enter__(self) -> Self:
        self._handle = self._crossing.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._crossing.leave(error)


class BlockingHold:
    """One slot, for one ``with``. Created by :meth:`BlockingSlots.hold`."""

    __slots__ = ("_crossing", "_is_raising", "_slot")

    def __init__(self, thread: LoopThread, hold: SlotHold, *, is_raising: bool) -> None:
        self._crossing = Crossing(thread, hold)
        self._is_raising = is_raising  # a lost slot raises at the end of the body: a thread cannot be cancelled
        self._slot: Slot | None = None

    def __enter__(self) -> Slot:
        self._slot = self._crossing.enter()
        return self._slot

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        slot = self._slot
        is_lost = slot is not None and slot.is_lost  # a later loss does not concern the body
        self._crossing.leave(error)
        if slot is not None and is_lost and self._is_raising and error is None:
            raise SlotLostError(slot.pool, slot.fence)


class BlockingLimiter:
    """Permits of one rate, for threads. Created by :meth:`BlockingManager.limiter`."""

    __slots__ = ("_executor", "_thread")

    def __init__(self, thread: LoopThread, executor: RateLimitedExecutor) -> None:
        self._thread = thread
        self._executor = executor

    @property
    def name(self) -> str:
        """The name of the limiter."""
        return self._executor.name

    @property
    def rate(self) -> Rate:
        """Permits over time; settable at any time."""
        return self._executor.rate

    @rate.setter
    def rate(self, rate: RatesLike) -> None:
        self._thread.configure(partial(setattr, self._executor, "rate", rate))

    def permit(
        self,
        *,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        name: str | None = None,
        key: Hashable = None,
        cost: CostLike = 1,
    ) -> BlockingPermit:
        """Return a permit; ``with`` waits for it. The arguments are those of ``RateLimitedExecutor.permit``.

        Raises:
            BacklogFullError: if it is refused.
            RuntimeError: in a thread that runs an event loop, and in a fork of the process that started the manager.
            TypeError: if an argument has a wrong type.
            ValueError: if it is out of range.
        """
        make = partial(self._executor.permit, priority=priority, expires=expires, name=name, key=key, cost=cost)
        return BlockingPermit(self._thread, self._thread.call(make))

    def acquire(
        self,
        *,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        name: str | None = None,
        key: Hashable = None,
        cost: CostLike = 1,
    ) -> None:
        """Wait for a permit and use it; it does not count towards ``max_concurrency`` afterwards."""
        with self.permit(priority=priority, expires=expires, name=name or "acquire", key=key, cost=cost):
            pass

    def acquire_nowait(
        self, *, priority: float = 0, name: str | None = None, key: Hashable = None, cost: CostLike = 1
    ) -> None:
        """Use a permit that is available now, without waiting.

        Raises:
            anyio.WouldBlock: if :meth:`acquire` would have to wait.
            BacklogFullError: if it would be refused.
        """
        self._thread.call(partial(self._executor.acquire_nowait, priority=priority, name=name, key=key, cost=cost))

    def penalize(self, retry_after: DurationLike | None, *, key: Hashable = None) -> None:
        """Start nothing for a time, because the remote service asked for it; like an executor's ``penalize``."""
        self._thread.call(partial(self._executor.penalize, retry_after, key=key))

    def statistics(self) -> Statistics:
        """Return the counts of waiting, held and used permits at this instant."""
        statistics: Statistics = self._thread.call(self._executor.statistics)
        return statistics

    def __repr__(self) -> str:
        return f"<BlockingLimiter {self.name!r} rate={self.rate}>"


class BlockingSlots:
    """A pool of slots, for threads. Created by :meth:`BlockingManager.slots`."""

    __slots__ = ("_slots", "_thread")

    def __init__(self, thread: LoopThread, slots: Slots) -> None:
        self._thread = thread
        self._slots = slots

    @property
    def name(self) -> str:
        """The name of the pool."""
        return self._slots.name

    @property
    def limit(self) -> int | None:
        """The number of slots that may be held at the same time; settable at any time; 0 halts the pool.

        None if no limit was set here, and the group has not answered yet.
        """
        return self._slots.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._thread.configure(partial(setattr, self._slots, "limit", limit))

    def hold(
        self,
        *,
        priority: float = 0,
        expires: DurationLike | None = None,
        name: str | None = None,
        also: Iterable[BlockingSlots] = (),
        on_lost: OnLostLike = OnLost.CANCEL,
    ) -> BlockingHold:
        """Hold a slot for one ``with``, which is entered when a slot is available.

        Args:
            priority: **a larger one is more important**; equal priorities are served in order of arrival.
            expires: the longest wait in seconds, from the entry on; None for as long as it takes.
            name: the name of the holder; the thread's name by default.
            also: other pools of the same manager; a slot of each is held as well.
            on_lost: what happens to the body if its slot is lost. A thread cannot be cancelled: it can check ``slot.is_lost``, and
                with ``OnLost.CANCEL`` its ``with`` raises ``SlotLostError`` at the end. A function is called on the manager's
                own thread.

        Raises:
            RuntimeError: in a thread that runs an event loop, and in a fork of the process that started the manager.
            TypeError: if an argument has a wrong type.
            ValueError: if it is out of range.
        """
        name = threading.current_thread().name if name is None else name
        make = partial(
            self._slots.hold,
            priority=priority,
            expires=expires,
            name=name,
            also=[slots_within(pool) for pool in also],
            on_lost=on_lost,
        )
        return BlockingHold(self._thread, self._thread.call(make), is_raising=on_lost is OnLost.CANCEL)

    def statistics(self) -> SlotStatistics:
        """Return the counts at this instant, and the holders."""
        statistics: SlotStatistics = self._thread.call(self._slots.statistics)
        return statistics

    def __repr__(self) -> str:
        return f"<BlockingSlots {self.name!r}>"


def slots_within(pools: Any) -> Any:
    """Return the pool below a pool, or those below several; other objects pass through, and are refused there."""
    if isinstance(pools, BlockingSlots):
        return pools._slots  # noqa: SLF001  # of the same module
    return [slots_within(pool) for pool in pools] if isinstance(pools, (list, tuple)) else pools


class BlockingManager:
    """Permits and slots for threads without an event loop; the arguments are those of an :class:`ExecutorManager`.

    It runs an event loop in its own thread, which starts at the first use, or with ``with``. So a manager that is
    created before a process forks can be used in all forks. The thread ends with the ``with`` block, with
    :meth:`close`, or with the interpreter. With ``loop=`` it uses an event loop that runs in another thread already.

    >>> with BlockingManager() as manager:
    ...     limiter = manager.limiter("api", rate="10/s")
    ...     with limiter.permit():
    ...         print("called")
    called
    """

    __slots__ = ("__weakref__", "_thread")

    def __init__(
        self,
        *,
        interval: DurationLike = 1.0,
        clock: Clock | None = None,
        peers: Peers | Fleet | None = None,
        precision: DurationLike | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        manager = ExecutorManager(interval=interval, clock=clock, peers=peers, precision=precision)
        self._thread = LoopThread(manager, "BlockingManager", loop=loop)

    def limiter(self, name: str, **options: Any) -> BlockingLimiter:
        """Create a limiter.

        Args:
            name: its name, different from that of every other limiter of the manager.
            options: as for :class:`RateLimitedExecutor`, such as ``rate=`` and ``max_concurrency=``.

        Raises:
            TypeError: if an option is unknown, or has a wrong type.
            ValueError: if one is out of range, or the name is in use.
            ExecutorStoppedError: if the manager is closed.
        """
        thread = self._thread
        return BlockingLimiter(thread, thread.configure(partial(thread.manager.executor, name, **options)))

    def slots(self, name: str, *, limit: int | None = None) -> BlockingSlots:
        """Return the pool of slots with a name; create it if needed, like ``ExecutorManager.slots``."""
        thread = self._thread
        return BlockingSlots(thread, thread.configure(partial(thread.manager.slots, name, limit=limit)))

    def close(self) -> None:
        """Close the manager: waiting threads get ``ExecutorStoppedError``, holders of permits and slots continue.

        Before that, every :class:`ScheduledExecutor` of the manager runs what it has accepted. A second call only waits for the
        end of the first, except in a fork.
        """
        self._thread.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.close(cancel=error is not None)

    def __repr__(self) -> str:
        return f"<BlockingManager {self._thread.state} limiters={len(self._thread.manager.executors)}>"
