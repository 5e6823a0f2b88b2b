"""An event loop in virtual time for simulations: only timers, callbacks and ends of jobs.

asyncio code runs on it unchanged as long as it waits for nothing outside the process: tasks, sleeps, locks, queues,
timeouts. It has no sockets, threads or signals, which makes it several times faster than
:class:`~ratelimited_executor.testing.VirtualEventLoop`; use that one for tests.

When nothing is ready, time moves exactly to the next timer or wake-up of an executor. At one instant, callbacks run in
asyncio's order, and timers that are due together run first come, first served. Executors run last, so that ended jobs
have made room.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import sys
import threading
import weakref
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor.simulation.lasting import LastingCoroutines
from ratelimited_executor.simulation.timers import Timers, VirtualWaker
from ratelimited_executor.testing.clock import DEFAULT_START_WALL, VirtualClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextvars import Context

    from ratelimited_executor._runtime.time.hooks import LoopHooks

__all__ = ["SimulationLoop"]

_log: Final = logging.getLogger("ratelimited_executor.simulation")
_STILL_COUNT_MAX: Final = 10_000_000  # steps allowed at one instant
_PATIENCE_COUNT: Final = 100_000  # steps at one instant after which due timers go before endless ready callbacks


class SimulationLoop(asyncio.AbstractEventLoop):
    """The event loop of a simulation.

    Args:
        start_wall: seconds since the epoch when loop time is 0.
        seed: the seed of :attr:`random`.

    Attributes:
        has_threads: False: a task with ``in_thread=True`` fails.
        bucket_ns_max: the maximum width of executors' buckets. Seconds pass in microseconds here, so most buckets of a
            second would be opened for one task; the cost of wide buckets, memory for cancelled tasks, does not last
            long.
        coroutines_type: runs the coroutines of executors, including each :class:`~ratelimited_executor.simulation.Lasting`.
        clock: the virtual clock.
        random: the random generator for programs on this loop.
        last_time: loop time of the last event that ran in :meth:`run_until`.
    """

    has_threads: Final = False
    bucket_ns_max: Final = 60_000_000_000
    coroutines_type: Final = LastingCoroutines

    def __init__(self, *, start_wall: float = DEFAULT_START_WALL, seed: int | str = 0) -> None:
        self.clock: Final = VirtualClock(start_wall=start_wall)
        self.random: Final = random.Random(seed)  # noqa: S311  # it must be repeatable, not secret
        self.last_time = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: Final = Timers(self.clock)
        self._wakers: list[VirtualWaker] = []  # of executor managers
        self._generators: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        self._task_factory: Any = None
        self._exception_handler: Any = None
        self._is_closed = False
        self._thread_id = 0  # of the running thread; 0 while the loop does not run

    # Running.

    def run_until(self, when: float) -> None:
        """Run everything up to and including loop time ``when``; the clock ends there."""
        if not -math.inf < when < math.inf:
            raise ValueError(f"when must be finite, since the clock ends there, got {when!r}")
        clock = self.clock
        hooks = self._enter()
        try:
            before = clock._monotonic
            self._run(when, None, _STILL_COUNT_MAX)
            if clock._monotonic > before:
                self.last_time = clock._monotonic
            clock._monotonic = max(clock._monotonic, when)
        finally:
            self._leave(hooks)

    def run_until_complete(self, future: Any) -> Any:
        """Run until a future or coroutine is done, and return its result.

        Raises:
            RuntimeError: if no event is left, and it is not done.
        """
        hooks = self._enter()
        try:
            task = asyncio.ensure_future(future, loop=self)
            self._run(math.inf, task, _STILL_COUNT_MAX)
            if not task.done():
                task.cancel()
                self._run(self.time(), task, _STILL_COUNT_MAX)
                raise RuntimeError(f"nothing is left to happen, and {future!r} waits forever")
            return task.result()
        finally:
            self._leave(hooks)

    def next_time(self) -> float:
        """Return the loop time of the next event; infinity if there is none."""
        if self._ready:
            return self.time()
        at = self._timers.next_at()
        for waker in self._wakers:
            at = min(at, waker.at)
        return at

    @two_bodies
    def _run(self, when: float, future: asyncio.Future[Any] | None, still_count_max: int) -> None:
        """Run until a time, or until a future is done; ``still_count_max`` steps are allowed at one instant."""
        clock, ready, timers, wakers = self.clock, self._ready, self._timers, self._wakers
        last = min(when, sys.float_info.max)  # nothing ever happens at infinity
        still_count = 0  # steps since time moved
        while still_count <= still_count_max:
            if ready:
                still_count = self._run_ready(still_count)
            if future is not None and future.done():
                return
            waker: Any = wakers[0] if len(wakers) == 1 else min(wakers, key=_time_of, default=None)
            at = timers.next_at()
            is_waker = waker is not None and waker.at < at
            if is_waker:
                at = waker.at
            if at > clock._monotonic:
                if ready:
                    continue
                if at > last:
                    return
                clock._monotonic = at
                still_count = 0
            else:
                at = clock._monotonic
                still_count += 1
            if is_waker:
                waker.at = at  # if it raises, it runs again
                waker.at = waker.run_due(at)
            else:
                timers.run_next(ready)
        raise self._still_error()

    def _run_ready(self, still_count: int) -> int:
        """Run ready callbacks until none is left, or they do not end; return the number of steps since time moved."""
        ready = self._ready
        while ready and still_count <= _STILL_COUNT_MAX:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
                still_count += 1
            del (
                handle
            )  # else a reference cycle: a task's error keeps this frame by its traceback, and the frame keeps the task
            if still_count > _PATIENCE_COUNT:  # a callback may be polling for something that a due timer will do
                break
        return still_count

    def _still_error(self) -> RuntimeError:
        return RuntimeError(
            f"at {self.time():.6f} s more than {_STILL_COUNT_MAX:,} things have happened without any time passing: something asks "
            "for itself again at once, such as a job that takes no time and enqueues itself"
        )

    def _enter(self) -> sys._asyncgen_hooks:
        """Make it the running loop; return what :meth:`_leave` restores. A context manager takes three times as long."""
        self._check_closed()
        if self._thread_id:
            raise RuntimeError("this simulation is already running")
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                "a simulation cannot run within a running event loop, which it would block: use a thread"
            )
        hooks = sys.get_asyncgen_hooks()
        self._thread_id = threading.get_ident()
        sys.set_asyncgen_hooks(self._generators.add, self._finalize)
        asyncio._set_running_loop(self)
        return hooks

    def _leave(self, hooks: sys._asyncgen_hooks) -> None:
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(*hooks)
        self._thread_id = 0

    def close(self) -> None:
        """Drop all future events."""
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()
        self._wakers.clear()

    def is_running(self) -> bool:
        """True if the loop is running."""
        return bool(self._thread_id)

    def is_closed(self) -> bool:
        """True if the loop was closed."""
        return self._is_closed

    async def shutdown_asyncgens(self) -> None:
        """Close the asynchronous generators that are not exhausted."""
        generators = list(self._generators)
        self._generators.clear()
        await asyncio.gather(*(generator.aclose() for generator in generators), return_exceptions=True)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there are no threads."""

    # For asyncio.

    def time(self) -> float:
        """Return virtual seconds since the start."""
        return self.clock._monotonic

    def call_soon(  # type: ignore[override]  # the stubs bind the arguments to the callback
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call back at this instant, after earlier calls."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]  # the stubs bind the arguments to the callback
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call back at this instant.

        Raises:
            RuntimeError: from another thread: a simulation does not wait for threads.
        """
        if self._thread_id and self._thread_id != threading.get_ident():
            raise RuntimeError("a simulation has one thread: simulate calls in threads as a job with a duration")
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]  # the stubs bind the arguments to the callback
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back ``delay`` seconds from now."""
        return self.call_at(self.clock._monotonic + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # the stubs bind the arguments to the callback
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back at loop time ``when``."""
        handle: Any = asyncio.TimerHandle(when, callback, args, self, context)
        handle._scheduled = True  # so that it reports its cancellation
        self._timers.push_handle(when, handle)
        made: asyncio.TimerHandle = handle
        return made

    def push(self, when: float, call: Callable[[Any], object], argument: Any) -> None:
        """Call ``call(argument)`` at loop time ``when``, without a handle or a context."""
        self._timers.push(when, call, argument)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None, **options: Any) -> Any:
        """Run a coroutine as a task."""
        self._check_closed()
        if self._task_factory is not None:
            return self._task_factory(self, coro, name=name, context=context, **options)
        return asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context, **options)

    def set_task_factory(self, factory: Any) -> None:
        """Set the task factory."""
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        """Return the task factory; None for asyncio's default."""
        return self._task_factory

    def get_debug(self) -> bool:
        """Return False: there is no debug mode."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Do nothing: there is no debug mode."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception that was not retrieved."""
        if self._exception_handler is None:
            self.default_exception_handler(context)
            return
        try:
            self._exception_handler(self, context)
        except Exception:  # noqa: BLE001  # foreign code: its error must not end the run
            _log.exception("the exception handler failed while handling: %s", context.get("message"))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an exception that was not retrieved."""
        _log.error("%s", context.get("message"), exc_info=context.get("exception"))

    def set_exception_handler(self, handler: Any) -> None:
        """Set the handler of exceptions that were not retrieved, called with the loop and a context; None logs them."""
        self._exception_handler = handler

    def get_exception_handler(self) -> Any:
        """Return the handler of exceptions that were not retrieved; None if they are logged."""
        return self._exception_handler

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Record that a timer was cancelled."""
        if handle._scheduled:  # otherwise it has been called
            self.note_stale()

    def note_stale(self) -> None:
        """Record that a timer is stale: nothing is left to do when it fires."""
        self._timers.note_stale()

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.discard(generator)
        if not self._is_closed:
            self.call_soon(self.create_task, generator.aclose())

    def _check_closed(self) -> None:
        if self._is_closed:
            raise RuntimeError("the loop of this simulation is closed")

    # For executors.

    def make_waker(self, run_due: Callable[[float], float]) -> VirtualWaker:
        """Return a waker for the executors of a manager."""
        waker = VirtualWaker(self._wakers, run_due)
        self._wakers.append(waker)
        return waker


if TYPE_CHECKING:  # the loop has all optional hooks for executors

    def _hooks(loop: SimulationLoop) -> LoopHooks:
        return loop


_time_of: Final = attrgetter("at")


def _refuse(name: str) -> Any:
    """Return a method that raises an error which says why it is not supported."""

    def method(self: SimulationLoop, *args: Any, **options: Any) -> NoReturn:  # noqa: ARG001  # the shape of a method
        raise RuntimeError(
            f"{name}() is not available in a simulation, which has only time: simulate external waits as "
            "a job with a duration, or test it on ratelimited_executor.testing.VirtualEventLoop"
        )

    method.__name__ = name
    return method


for _name in (
    "add_reader", "add_writer", "add_signal_handler", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe",
    "create_connection", "create_datagram_endpoint", "create_server", "create_unix_connection", "create_unix_server",
    "getaddrinfo", "getnameinfo", "remove_reader", "remove_writer", "remove_signal_handler", "run_forever",
    "run_in_executor", "sendfile", "set_default_executor", "sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom",
    "sock_recvfrom_into", "sock_sendall", "sock_sendfile", "sock_sendto", "start_tls", "stop", "subprocess_exec",
    "subprocess_shell",
):  # fmt: skip
    setattr(SimulationLoop, _name, _refuse(_name))
