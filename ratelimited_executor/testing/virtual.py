"""An asyncio event loop on which time passes only when there is nothing else to do.

Unmodified asyncio code runs on it; waiting for a timer takes virtual time only. When nothing is ready, the clock moves
exactly to the due time of the next timer. A timer fires when the clock has reached its due time, never before, not even
by the clock resolution that asyncio allows on a real loop.

The order of callbacks is asyncio's. The loop adds no randomness, and removes one source of it: a set of tasks, such as
those in asyncio's task groups, is iterated in the order of the tasks' creation and not of their addresses.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import random
import shlex
import threading
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, get_args

from ratelimited_executor._core.durations import seconds_of
from ratelimited_executor.testing.clock import DEFAULT_START_WALL, VirtualClock
from ratelimited_executor.testing.outstanding import Outstanding, TimeHold
from ratelimited_executor.testing.selector import VirtualSelector

if TYPE_CHECKING:
    import contextvars
    from collections import deque
    from collections.abc import Callable, Coroutine, Generator

    from ratelimited_executor._core.durations import DurationLike

__all__ = ["RealIOPolicy", "VirtualEventLoop"]

RealIOPolicy: TypeAlias = Literal["raise", "wait", "ignore"]

# Longer than any thread of a test should take, shorter than the timeout of a test run.
DEFAULT_PATIENCE: Final = 30.0

_T = TypeVar("_T")


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time; :attr:`clock` is its :class:`VirtualClock`.

    Time advances only when the loop would block and nothing outside virtual time is outstanding. Otherwise:

    - Worker threads (``run_in_executor``, ``asyncio.to_thread``, ``anyio.to_thread``, :meth:`hold`) end by themselves:
      they are awaited in real time while the clock stands still, up to ``patience``, then :class:`RealIOError`.
    - A registered socket or pipe, or a running subprocess, depends on the world outside: ``real_io`` decides.

    Args:
        seed: the seed of :attr:`random`, a generator for the program under test; the loop itself uses no random numbers.
        start_wall: seconds since the epoch at the start.
        real_io: ``"raise"`` a :class:`RealIOError` that names it; ``"wait"`` for it in real time, up to ``patience``,
            with the clock standing still; or ``"ignore"`` it and every thread without a hold, and advance: the caller
            guarantees that their reports do not come meanwhile, or do not matter. May be changed at any time.
        limit: virtual seconds after which :class:`TimeLimitError` ends the run, > 0.
        patience: real seconds to wait at a time for a report from outside virtual time, > 0.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _closed = True  # until the base class has opened it: after a refused argument there is nothing to close

    def __init__(
        self,
        *,
        seed: int = 0,
        start_wall: float = DEFAULT_START_WALL,
        real_io: RealIOPolicy = "raise",
        limit: DurationLike = math.inf,
        patience: DurationLike = DEFAULT_PATIENCE,
    ) -> None:
        checked = check_settings(start_wall=start_wall, real_io=real_io, limit=limit, patience=patience)
        self.limit: Final = checked[0]
        self.patience: Final = checked[1]
        self._real_io: RealIOPolicy = real_io
        self.clock: Final = VirtualClock(start_wall=start_wall)
        self.random: Final = random.Random(seed)  # noqa: S311  # it must be repeatable, not secret
        self._task_count = 0
        self._outstanding = Outstanding(self)
        selector = VirtualSelector()
        selector.attach(self, self._outstanding, self.limit)
        super().__init__(selector)

    def time(self) -> float:
        """Return virtual seconds since the start."""
        return self.clock.monotonic()

    @property
    def real_io(self) -> RealIOPolicy:
        """The policy for advancing time while a file or process is outstanding."""
        return self._real_io

    @real_io.setter
    def real_io(self, policy: RealIOPolicy) -> None:
        _check_policy(policy)
        self._real_io = policy

    def block_for(self, seconds: DurationLike) -> None:
        """Let time pass during a callback, as if it blocked the loop for this many seconds."""
        self.clock.block(seconds)

    def hold(self, name: str) -> TimeHold:
        """Keep time from advancing while a thread of your own will call the loop, until the hold is released.

        Use the hold as a context manager inside the thread, or release it there. This method is not thread-safe: take
        the hold on the loop, before the thread starts.
        """
        return TimeHold(self, name, self._outstanding)

    def result_in_thread(self, future: concurrent.futures.Future[_T]) -> _T:
        """Wait in a worker thread for a future that this loop resolves, and let virtual time advance meanwhile.

        For ``asyncio.run_coroutine_threadsafe(...)`` in a thread that the loop waits for: with a plain
        ``future.result()``, thread and loop would wait for each other.
        """
        if threading.get_ident() == getattr(self, "_thread_id", None):
            raise RuntimeError("result_in_thread() is for worker threads; on the loop itself it would wait for ever")
        # The callback runs where the future is resolved: on the loop, so before time can advance again.
        self.call_soon_threadsafe(self._lend_thread, future)
        return future.result()

    def _lend_thread(self, future: concurrent.futures.Future[Any]) -> None:
        if not future.done():
            self._outstanding.lend(1)
            future.add_done_callback(lambda _: self._outstanding.lend(-1))

    # For the selector, so that asyncio's private attributes are used in one place.

    def has_ready(self) -> bool:
        """True if a callback is ready to run."""
        return bool(self._ready)

    def next_timer(self) -> float | None:
        """Return the due time of the next timer; None if there is none, or it lies at infinity."""
        if not self._scheduled:
            return None
        when = self._scheduled[0].when()
        return when if when != math.inf else None

    def has_signal_handlers(self) -> bool:
        """True if ``add_signal_handler`` is in use; its signals arrive through the loop's own socket."""
        return bool(getattr(self, "_signal_handlers", None))

    def self_pipe_fd(self) -> int:
        """Return the file number of the loop's own socket."""
        fd: int = getattr(self, "_ssock").fileno()  # noqa: B009 - asyncio's, unknown to its type stubs
        return fd

    # asyncio runs timers that are due before time() + _clock_resolution. One unit in the last place makes that exact.

    @property
    def _clock_resolution(self) -> float:
        return math.ulp(self.clock.monotonic())

    @_clock_resolution.setter
    def _clock_resolution(self, seconds: float) -> None:
        """Ignore the resolution that the base class measures on the real clock."""

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[_T]:
        """Schedule a coroutine, as in the base class; tasks are numbered per loop, so that every run has the same names."""
        if self.get_task_factory() is not None:
            return super().create_task(coro, name=name, context=context, **options)
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        self._task_count += 1
        serial = self._task_count
        text = f"Task-{serial}" if name is None else str(name)
        return _NumberedTask(coro, loop=self, name=text, context=context, serial=serial, **options)

    def run_in_executor(  # type: ignore[override]  # the stubs of the base class differ between Python versions
        self, executor: concurrent.futures.Executor | None, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        """Run a call in a thread or process, as in the base class; time stands still until it is done.

        Calls of another kind of executor are not counted: it may itself need virtual time to pass.
        """
        future: asyncio.Future[_T] = super().run_in_executor(executor, func, *args)
        pools = (concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor)
        if executor is None or isinstance(executor, pools):
            self._outstanding.add_call(future, func)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait in real time until the default executor's threads have ended; the clock stands still."""
        with self.hold("shutdown of the default executor"):
            await super().shutdown_default_executor(*(() if timeout is None else (timeout,)))

    async def _make_subprocess_transport(
        self, protocol: Any, args: Any, shell: bool, *rest: Any, **options: Any
    ) -> Any:
        """Start a process, as in the base class, and count it until it has ended."""
        make = getattr(super(), "_make_subprocess_transport")  # noqa: B009 - asyncio's, unknown to its type stubs
        transport = await make(protocol, args, shell, *rest, **options)
        self._outstanding.add_process(transport, args if isinstance(args, str) else shlex.join(map(_text, args)))
        return transport

    def __repr__(self) -> str:
        state = "closed" if self.is_closed() else "running" if self.is_running() else "idle"
        return f"<VirtualEventLoop {state} time={self.time():.9g}>"


class _NumberedTask(asyncio.Task[_T]):
    """A task whose hash is its number, so that sets of tasks have the same order in every run."""

    def __init__(self, coro: Any, *, serial: int, **options: Any) -> None:
        self.serial = serial  # first: asyncio puts the task into a set at once
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.serial


def check_settings(
    *, start_wall: float, real_io: RealIOPolicy, limit: DurationLike, patience: DurationLike
) -> tuple[float, float]:
    """Return limit and patience in seconds; refuse invalid arguments of :class:`VirtualEventLoop` by name."""
    VirtualClock(start_wall=start_wall)
    _check_policy(real_io)
    return _seconds("limit", limit), _seconds("patience", patience)


def _check_policy(policy: RealIOPolicy) -> None:
    if policy not in get_args(RealIOPolicy):
        raise ValueError(f"real_io must be 'raise', 'wait' or 'ignore', got {policy!r}")


def _seconds(name: str, value: DurationLike) -> float:
    """Return a span of time > 0 in seconds; infinity means no limit."""
    return math.inf if value == math.inf else seconds_of(name, value)


def _text(argument: str | bytes) -> str:
    return argument.decode(errors="replace") if isinstance(argument, bytes) else str(argument)
