"""What all faces of an executor share: its life, its settings, and the gate that every call passes."""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

from ratelimited_executor._core.ordering import default_order
from ratelimited_executor._core.queue import Pacing
from ratelimited_executor._core.rates import Rate
from ratelimited_executor._runtime import insight
from ratelimited_executor._runtime.arguments import callable_of, count_of, delay_of, member_of
from ratelimited_executor._runtime.closing import Closing, check_loop
from ratelimited_executor._runtime.engine import Engine
from ratelimited_executor._runtime.manager import ExecutorManager
from ratelimited_executor._runtime.policy import Paced, WhenFull
from ratelimited_executor.exceptions import (
    BacklogFullError,
    ExecutorNotStartedError,
    ExecutorStoppedError,
    WrongLoopError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from types import TracebackType

    from ratelimited_executor._core.ordering import Order
    from ratelimited_executor._core.rates import RateLike
    from ratelimited_executor._runtime.handles import TaskHandle
    from ratelimited_executor._runtime.insight import Explanation, Statistics
    from ratelimited_executor._runtime.repeating import RepeatingHandle
    from ratelimited_executor._runtime.runner import Runner

__all__ = ["ExecutorBase"]

_THREAD_COUNT: Final = 40  # worker threads of one executor at most, as anyio's own default


class ExecutorBase:
    """Life, settings and insight of an executor."""

    # Slots, so that setting what cannot be set, or a misspelt name, is an error and not silence.
    __slots__ = (
        "__weakref__",
        "_closing",
        "_engine",
        "_home",
        "_is_early",
        "_is_paused",
        "_manager",
        "_max_concurrency",
        "_max_pending",
        "_max_threads",
        "_name",
        "_order",
        "_owns_manager",
        "_pacing",
        "_policy",
        "_rate",
        "_repeating",
    )

    def __init__(
        self,
        name: str,
        *,
        rate: RateLike = float("inf"),
        pacing: Pacing = Pacing.SPREAD,
        policy: Paced = Paced(),  # noqa: B008  # it is immutable
        order: Order = default_order,
        max_concurrency: int | None = None,
        max_pending: int | None = None,
        when_full: WhenFull = WhenFull.RAISE,
        drain_timeout: float | None = None,
        early: bool = False,
        max_threads: int = _THREAD_COUNT,
        manager: ExecutorManager | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"name must be a str that is not empty, got {name!r}")
        if not isinstance(policy, Paced):
            raise TypeError(f"policy must be a Paced, got {policy!r}")
        member_of("when_full", when_full, WhenFull)
        if manager is not None and not isinstance(manager, ExecutorManager):
            raise TypeError(f"manager must be an ExecutorManager, got {manager!r}")
        self._name = name
        self._rate = Rate.of(rate)
        self._pacing = member_of("pacing", pacing, Pacing)
        self._policy = policy
        self._order: Order = callable_of("order", order)
        self._max_concurrency = None if max_concurrency is None else count_of("max_concurrency", max_concurrency)
        self._max_pending = None if max_pending is None else count_of("max_pending", max_pending, least=1)
        self._is_early = bool(early)
        self._max_threads = count_of("max_threads", max_threads, least=1)
        timeout = None if drain_timeout is None else delay_of("drain_timeout", drain_timeout)
        self._is_paused = False
        self._engine: Engine | None = None
        self._home: Any = _NOWHERE  # its _thread_id is the thread from which a call needs no closer look
        self._repeating: set[RepeatingHandle] = set()
        self._closing = Closing(name, drain_timeout=timeout, on_begin=self._begin_closing, on_closed=self._closed)
        self._owns_manager = manager is None
        self._manager = ExecutorManager() if manager is None else manager
        runner = self._manager._register(self)  # type: ignore[arg-type]  # every executor has all faces
        if runner is not None:
            self._open(runner)

    # Life.

    async def start(self) -> None:
        """Start on the running event loop; ``async with`` does it.

        Raises:
            ExecutorStoppedError: if it was started before.
        """
        if self._engine is not None or self._closing.is_begun:
            raise ExecutorStoppedError(repr(self))
        if self._owns_manager:
            await self._manager.start()
        else:
            self._open(self._manager._started_runner())

    async def aclose(self) -> None:
        """Close as leaving ``async with`` normally does.

        Repeating tasks stop, and what was accepted runs at its due times, up to ``drain_timeout``; when that has passed,
        or nothing can progress, the rest is cancelled, with one warning. To be cancelled here cuts the drain short.
        """
        self._closing.begin()
        await self._closing.wait()

    def shutdown(
        self, wait: bool = True, *, cancel_pending: bool = False, timeout: float | None = None
    ) -> Awaitable[None]:
        """Begin to close at once, and return what to await for the end.

        Args:
            wait: whether awaiting the answer waits for the end; it need not be awaited otherwise.
            cancel_pending: cancel what waits and what runs, in place of draining.
            timeout: seconds after which the rest is cancelled; ``drain_timeout`` if None.
        """
        if timeout is not None:
            timeout = delay_of("timeout", timeout)
        self._closing.begin(timeout=timeout)
        if cancel_pending:
            self._closing.cut()
        return _Ended(self._closing if wait else None)

    async def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the executor is closed by somebody; False if that takes longer than ``timeout`` seconds."""
        if timeout is not None:
            timeout = delay_of("timeout", timeout)
        try:
            async with asyncio.timeout(timeout):
                await self._closing.closed.wait()
        except TimeoutError:
            return False
        return True

    @property
    def is_shutdown(self) -> bool:
        """Whether closing has begun, so that nothing more is accepted."""
        return self._closing.is_begun

    @property
    def is_terminated(self) -> bool:
        """Whether the executor is closed: nothing waits, and nothing runs."""
        return self._closing.is_closed

    async def __aenter__(self) -> Self:
        if self._engine is None or self._closing.is_begun:
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._closing.abort()
        await self.aclose()

    # Settings.

    @property
    def name(self) -> str:
        """What the executor is called."""
        return self._name

    @property
    def manager(self) -> ExecutorManager:
        """The manager that runs it; of its own if it was made without one."""
        return self._manager

    @property
    def policy(self) -> Paced:
        """How starts are limited in time."""
        return self._policy

    @property
    def rate(self) -> Rate:
        """Permits over time; may be set at any time to what ``Rate.of`` takes; 0 pauses, infinity lifts the limit."""
        return self._rate

    @rate.setter
    def rate(self, rate: RateLike) -> None:
        self._check_place()
        self._rate = Rate.of(rate)
        if self._engine is not None:
            self._engine.set_rate(self._rate)

    @property
    def pacing(self) -> Pacing:
        """Whether tasks are spread over their interval; may be set at any time."""
        return self._pacing

    @pacing.setter
    def pacing(self, pacing: Pacing) -> None:
        self._check_place()
        self._pacing = member_of("pacing", pacing, Pacing)
        if self._engine is not None:
            self._engine.queue.pacing = self._pacing
            self._engine.wake()

    @property
    def order(self) -> Order:
        """The key function of importance; may be set at any time, which re-keys what is due once."""
        return self._order

    @order.setter
    def order(self, order: Order) -> None:
        self._check_place()
        self._order = callable_of("order", order)
        if self._engine is not None:
            self._engine.set_order(self._order)

    @property
    def max_concurrency(self) -> int | None:
        """How many tasks may run at once, None for no limit; may be set at any time; 0 halts."""
        return self._max_concurrency

    @max_concurrency.setter
    def max_concurrency(self, count: int | None) -> None:
        self._check_place()
        self._max_concurrency = None if count is None else count_of("max_concurrency", count)
        if self._engine is not None:
            self._engine.set_max_concurrency(self._max_concurrency)

    @property
    def is_paused(self) -> bool:
        """Whether :meth:`pause` is in force."""
        return self._is_paused

    def pause(self) -> None:
        """Start nothing until :meth:`resume`; the phase of the permits stands still meanwhile."""
        self._set_paused(is_paused=True)

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._set_paused(is_paused=False)

    def _set_paused(self, *, is_paused: bool) -> None:
        self._check_place()
        self._is_paused = is_paused
        if self._engine is not None:
            self._engine.set_paused(is_paused=is_paused)

    # Insight.

    def statistics(self) -> Statistics:
        """Count the tasks at this instant."""
        return insight.statistics(self._started())

    def backlog_seconds(self) -> float:
        """Return the seconds of work in tasks that are due; 0 while they fit, infinity if the rate is 0."""
        return insight.backlog_seconds(self._started())

    def explain(self, handle: TaskHandle[Any]) -> Explanation:
        """Tell what holds a task, how many go before it, and when it is expected to start; O(tasks that are due).

        Raises:
            ValueError: if the task is not of this executor.
        """
        engine = self._started()
        self._check_place()
        if getattr(handle, "_engine", None) is not engine:
            raise ValueError(f"handle must be a task of {self._name}, got {handle!r}")
        return insight.explain(engine, handle)

    def __repr__(self) -> str:
        kind = type(self).__name__
        if self._engine is None:
            return f"<{kind} {self._name!r} {'closed' if self._closing.is_begun else 'new'} rate={self._rate}>"
        state = "closed" if self.is_terminated else "closing" if self.is_shutdown else "open"
        engine = self._engine
        return (
            f"<{kind} {self._name!r} {state} rate={self._rate} "
            f"waiting={engine.waiting_count()} running={engine.running_count()}>"
        )

    # For the faces.

    def _admit(self, count: int = 1) -> Engine:
        """Return the engine if it may take in ``count`` tasks from here.

        Raises:
            ExecutorNotStartedError: before the start.
            ExecutorStoppedError: after closing has begun.
            WrongLoopError: from another thread or event loop.
            BacklogFullError: if so many would not fit.
        """
        engine = self._started()
        if self._closing.is_begun:
            raise ExecutorStoppedError(repr(self))
        if asyncio._get_running_loop() is not engine.loop:
            raise WrongLoopError(self._name)
        if self._max_pending is not None:
            waiting = engine.waiting_count()
            if waiting + count > self._max_pending:
                raise BacklogFullError(self._name, waiting=waiting, asked=count, max_pending=self._max_pending)
        return engine

    def _check_place(self) -> None:
        """Refuse to change an open executor from another thread or event loop."""
        if self._engine is not None and not self._closing.is_closed:
            check_loop(self._name, self._engine.loop)

    def _started(self) -> Engine:
        if self._engine is None:
            raise (ExecutorStoppedError if self._closing.is_begun else ExecutorNotStartedError)(repr(self))
        return self._engine

    def _open(self, runner: Runner) -> None:
        """Begin to work; called once, on the loop."""
        self._engine = Engine(
            self._name,
            runner=runner,
            rate=self._rate,
            pacing=self._pacing,
            slack=self._policy.slack,
            order=self._order,
            early=self._is_early,
            peers=self._manager.peers,
            max_concurrency=self._max_concurrency,
            thread_limiter=anyio.CapacityLimiter(self._max_threads),
        )
        if self._is_paused:
            self._engine.set_paused(is_paused=True)
        self._closing.engine = self._engine
        if self._max_pending is None:
            self._home = runner.loop if isinstance(runner.loop, asyncio.BaseEventLoop) else _Home(runner.loop)

    def _begin_closing(self) -> None:
        self._home = _NOWHERE
        for repeating in list(self._repeating):
            repeating.cancel()

    def _closed(self) -> None:
        self._home = _NOWHERE
        if self._engine is not None and self._engine.member is not None:
            self._engine.member.close()
        self._manager._forget(self)  # type: ignore[arg-type]  # every executor has all faces
        if self._owns_manager:
            self._manager._close_alone()


class _Home:
    """Tells which thread runs a loop at this moment, as an attribute that asyncio's own loops have, too."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop

    @property
    def _thread_id(self) -> int | None:
        return None if self._loop is None or asyncio._get_running_loop() is not self._loop else get_ident()


_NOWHERE: Final = _Home(None)


class _Ended:
    """What ``shutdown`` returns: awaiting it waits for the end, if that was asked for."""

    def __init__(self, closing: Closing | None) -> None:
        self._closing = closing

    def __await__(self) -> Any:
        if self._closing is not None:
            yield from self._closing.wait().__await__()
