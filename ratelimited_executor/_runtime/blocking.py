"""The blocking face: permits and slots for threads that have no event loop.

One thread runs a manager on an event loop; all other threads ask there, and wait. Who is next is decided by the manager as
ever: this module only crosses between threads.

::

    a thread                            the loop's thread
    with limiter.permit(...):  ------>  executor.permit(...)    checks the arguments
                               ------>  __aenter__() as a task  waits in the executor's order
        ...                    <------  what it gives, or raises
                               ------>  __aexit__()

A handler of a signal may raise in the main thread while that waits: KeyboardInterrupt, or the soft time limit of a task
queue. Then only the loop's thread knows whether the permit has come already, so it is asked there to undo the entry: to
cancel it, or to leave it again. It is asked after the entry, since calls to a loop keep their order.

Rejected: anyio's ``BlockingPortal``. Its ``wrap_async_context_manager`` leaves entered what an interrupted thread was about
to enter; its calls wait twice for the loop, and by futures, see :class:`Reply`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from ratelimited_executor._runtime.arguments import INHERITED
from ratelimited_executor._runtime.closing import GRACE_SECONDS
from ratelimited_executor._runtime.executor import ExecutorManager
from ratelimited_executor.exceptions import ExecutorStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.rates import Rate
    from ratelimited_executor._runtime.executor import RateLimitedExecutor
    from ratelimited_executor._runtime.handles import TaskHandle
    from ratelimited_executor._runtime.insight import Statistics
    from ratelimited_executor._runtime.permit import Permit
    from ratelimited_executor._runtime.slots import Slot, SlotHold, Slots, SlotStatistics
    from ratelimited_executor.abc import Clock, Fleet, Peers
    from ratelimited_executor.typing import CostLike, RatesLike

__all__ = ["BlockingHold", "BlockingLimiter", "BlockingManager", "BlockingPermit", "BlockingSlots"]

T = TypeVar("T")


class Crossings:
    """The calls of other threads on the loop, and the tasks that they have started; none is left when the loop ends."""

    def __init__(self) -> None:
        self.replies: set[Reply] = set()  # for which threads wait
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def answer(self, reply: Reply, call: Callable[[], Any]) -> None:
        """Make a call, and hand over what it comes to."""
        try:
            outcome = call()
        except BaseException as error:  # noqa: BLE001  # an exit as well: it is raised in the thread that waits
            self._give(reply, None, error)
            return
        if isinstance(outcome, asyncio.Task):
            outcome.add_done_callback(partial(self._give_end, reply))
        else:
            self._give(reply, outcome)

    def start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T] | None:
        """Run a coroutine as a task; None, and nothing is made, once the loop is about to end."""
        if self._is_over:
            return None
        task = asyncio.ensure_future(make())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self) -> None:
        """Start no other, and wait for those that are there."""
        self._is_over = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE_SECONDS)

    def give_up(self) -> None:
        """Cancel what was asked and never answered, because the loop has ended by an error; the loop is closed."""
        for reply in list(self.replies):
            self._give(reply, None, concurrent.futures.CancelledError())

    def _give_end(self, reply: Reply, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._give(reply, None, concurrent.futures.CancelledError())
        elif (error := task.exception()) is not None:
            self._give(reply, None, error)
        else:
            self._give(reply, task.result())

    def _give(self, reply: Reply, value: Any, error: BaseException | None = None) -> None:
        if reply in self.replies:
            self.replies.discard(reply)
            reply.give(value, error)


class Start:
    """The start of a loop's thread, for which others wait."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stopped: asyncio.Event | None = None  # set on the loop to end it
        self.error: BaseException | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def succeed(self, loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
        """Tell that it runs, and what ends it."""
        self.loop, self.stopped = loop, stopped
        self._gate.release()

    def fail(self, error: BaseException) -> None:
        """Tell that it will never run."""
        self.error = error
        self._gate.release()

    def wait(self) -> None:
        """Wait for either."""
        if self.loop is None and self.error is None:
            with self._gate:
                pass


class Reply:
    """What one call on the loop comes to, for the thread that waits for it.

    It is handed over by a bare lock, since a handler of a signal may raise in that thread at any instant. Within a
    ``threading.Condition``, of which futures and events are made, that can leave its lock taken for ever, and the loop
    would wait for it with everybody else.
    """

    __slots__ = ("_error", "_gate", "_value")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._value: Any = None
        self._error: BaseException | None = None

    def wait(self) -> Any:
        """Wait, and return it, or raise."""
        self._gate.acquire()
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            del self  # the error's traceback has this frame, and would hold it together with the error

    def give(self, value: Any, error: BaseException | None) -> None:
        """Hand it over, once."""
        self._value, self._error = value, error
        self._gate.release()


class LoopThread:
    """The thread that runs a manager on an event loop; started when it is first needed.

    Args:
        manager: what it runs.
        name: of whom errors speak.
    """

    def __init__(self, manager: ExecutorManager, name: str) -> None:
        self.manager = manager
        self.crossings = Crossings()
        self._name = name
        self._lock = threading.Lock()
        self._is_closed = False
        self._process = 0  # that has started it; a fork of that has none of its threads
        self._thread: threading.Thread | None = None
        self._start = Start()

    @property
    def state(self) -> str:
        """``new``, ``open`` or ``closed``."""
        return "closed" if self._is_closed else "new" if self._thread is None else "open"

    def start(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started if it is not yet.

        Raises:
            ExecutorStoppedError: if it is closed.
            RuntimeError: in a fork of the process that has started it.
        """
        self._check_process()
        with self._lock:
            if self._is_closed:
                raise ExecutorStoppedError(self._name)
            if self._thread is None:
                self._process = os.getpid()
                self._thread = threading.Thread(
                    target=_run,
                    args=(self.manager, self.crossings, self._start),
                    name="ratelimited_executor",
                    daemon=True,
                )
                self._thread.start()
                _OPEN.add(self)
        self._start.wait()
        if self._start.error is not None:
            raise self._start.error
        assert self._start.loop is not None
        return self._start.loop

    def configure(self, call: Callable[[], T]) -> T:
        """Make a call that needs no loop: here as long as there is none, else on the loop."""
        self._check_process()
        with self._lock:
            if self._is_closed:
                raise ExecutorStoppedError(self._name)
            if self._thread is None:
                return call()
        value: T = self.call(call)
        return value

    def call(self, call: Callable[[], Any]) -> Any:
        """Call on the loop, and return what the call returns, or what a task that it returns comes to.

        Raises:
            ExecutorStoppedError: if it is closed, or closes meanwhile.
            RuntimeError: in a thread that runs an event loop, which would stand still; or in a fork.
        """
        if runs_event_loop():
            raise RuntimeError(
                f"{self._name} would block the event loop of this thread: call it in a worker thread, as by "
                "asyncio.to_thread(), or use an ExecutorManager on the loop"
            )
        loop = self.start()
        reply = Reply()
        with self._lock:  # whatever is asked before the closing is answered by it
            if self._is_closed:
                raise ExecutorStoppedError(self._name)
            self.crossings.replies.add(reply)
            loop.call_soon_threadsafe(self.crossings.answer, reply, call)
        try:
            return reply.wait()
        except concurrent.futures.CancelledError:
            if self._is_closed:
                raise ExecutorStoppedError(self._name) from None
            raise

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call on the loop without waiting, if it still runs, and in this process."""
        if self._process == os.getpid() and self._start.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is held there any more
                self._start.loop.call_soon_threadsafe(call)

    @property
    def is_open(self) -> bool:
        """True while it runs, in this process."""
        return not self._is_closed and self._process == os.getpid()

    def close(self) -> None:
        """Refuse who waits and who comes, and wait for the end; a second call waits as well.

        Raises:
            RuntimeError: on the thread itself.
        """
        if self._process not in (0, os.getpid()):
            return  # it is the parent's to close
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"{self._name} cannot be closed on its own thread, which would wait for itself")
        with self._lock:
            self._is_closed = True
        if self._thread is not None:
            self._start.wait()
            self.stop()
            self._thread.join()
        _OPEN.discard(self)

    def stop(self) -> None:
        """Have it end, without waiting."""
        if self._start.stopped is not None:
            self.call_soon(self._start.stopped.set)

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if self._thread is None or not self.is_open:
            return
        _warn(f"unclosed {self._name}: use with, or close()", ResourceWarning, source=self)
        self.stop()  # the collector runs in any thread, even in this one's: it cannot wait

    def _check_process(self) -> None:
        if self._process not in (0, os.getpid()):
            raise RuntimeError(
                f"{self._name} was started in process {self._process}, of which this one is a fork without its threads: "
                "make it, or use it for the first time, after the fork"
            )


# Until they are closed; the interpreter's end does it, as long as daemon threads still run.
_OPEN: Final[weakref.WeakSet[LoopThread]] = weakref.WeakSet()


@atexit.register
def _close_open() -> None:
    for thread in list(_OPEN):
        thread.close()


def runs_event_loop() -> bool:
    """True in a thread that runs an event loop."""
    return asyncio._get_running_loop() is not None


def _run(manager: ExecutorManager, crossings: Crossings, start: Start) -> None:
    """Run a manager on an event loop until it is stopped."""

    async def main() -> None:
        await manager.start()
        stopped = asyncio.Event()
        start.succeed(asyncio.get_running_loop(), stopped)
        await stopped.wait()
        for executor in manager.executors.values():
            executor._closing.abort()  # there is nothing to drain but waiters, who are told
        await manager.aclose()
        await crossings.finish()

    try:
        with asyncio.Runner() as runner:
            runner.run(main())
    except BaseException as error:
        if start.loop is not None:
            raise
        start.fail(error)
    finally:
        crossings.give_up()


class Crossing(Generic[T]):
    """An async context manager of the loop's thread, entered and left by another one, once.

    One that is dropped while it is entered is left. There are instants between an entry and its ``with`` block, and between
    that and the leaving, at which the handler of a signal may raise as well.

    Args:
        thread: of the loop.
        context: that was made there.
    """

    _is_entered = False  # both are set by the loop's thread alone; here, since an interrupt may come before __init__()
    _is_left = False

    def __init__(self, thread: LoopThread, context: AbstractAsyncContextManager[T]) -> None:
        self._thread = thread
        self._context = context

    def enter(self) -> T:
        """Enter it, and return what that gives; undone if this thread is interrupted meanwhile."""
        entries: list[asyncio.Task[T]] = []

        def begin() -> asyncio.Task[T]:
            entry = self._thread.crossings.start(self._enter)
            assert entry is not None  # nobody comes in any more, once it closes
            entries.append(entry)
            return entry

        try:
            return self._thread.call(begin)  # type: ignore[no-any-return]  # it is what the task comes to
        except BaseException:  # the entry has failed; or a signal's handler has raised here, such as KeyboardInterrupt
            self._thread.call_soon(partial(self._undo, entries))
            raise

    def leave(self, error: BaseException | None) -> None:
        """Leave it; without waiting where the manager is closed, and not at all in a fork of the holder."""
        try:
            if self._thread.is_open and not runs_event_loop():
                self._thread.call(partial(self._leave, error))
            else:
                self._thread.call_soon(partial(self._leave, error))
        except BaseException as stop:  # interrupted, perhaps before it was asked for; or closed meanwhile
            self._thread.call_soon(partial(self._leave, error))
            if not isinstance(stop, ExecutorStoppedError):
                raise

    def __del__(self) -> None:
        if self._is_entered and not self._is_left:
            self._thread.call_soon(partial(self._leave, None))

    async def _enter(self) -> T:
        value = await self._context.__aenter__()
        self._is_entered = True
        return value

    def _undo(self, entries: list[asyncio.Task[T]]) -> None:
        for entry in entries:
            if not entry.cancel() and not entry.cancelled() and entry.exception() is None:
                self._leave(None)

    def _leave(self, error: BaseException | None) -> asyncio.Task[None] | None:
        if self._is_left:
            return None
        self._is_left = True
        return self._thread.crossings.start(partial(_leave, self._context, error))


async def _leave(context: AbstractAsyncContextManager[Any], error: BaseException | None) -> None:
    await context.__aexit__(
        None if error is None else type(error), error, None if error is None else error.__traceback__
    )


class BlockingPermit:
    """One permit, for one ``with``. Made by :meth:`BlockingLimiter.permit`."""

    __slots__ = ("_crossing", "_handle", "_thread")

    def __init__(self, thread: LoopThread, permit: Permit) -> None:
        self._thread = thread
        self._crossing = Crossing(thread, permit)
        self._handle: TaskHandle[Any] | None = None

    def settle(self, actual: int | Mapping[str, int]) -> None:
        """Correct what it has cost, once that is known; also after it was left.

        Args:
            actual: permits, >= 0; or a mapping from resource to amount, in which what is left out stays as reserved.

        Raises:
            RuntimeError: before it was entered.
            TypeError: if it is neither.
            ValueError: if an amount is negative, or the permit has no ``cost=`` that names the resource.
        """
        if self._handle is None:
            raise RuntimeError(
                "a permit costs nothing before it is entered: settle it in its with block, or afterwards"
            )
        with contextlib.suppress(ExecutorStoppedError):  # nothing is counted any more
            self._thread.call(partial(self._handle.settle, actual))

    def __enter__(self) -> Self:
        self._handle = self._crossing.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._crossing.leave(error)


class BlockingHold:
    """One slot, for one ``with``. Made by :meth:`BlockingSlots.hold`."""

    __slots__ = ("_crossing",)

    def __init__(self, thread: LoopThread, hold: SlotHold) -> None:
        self._crossing = Crossing(thread, hold)

    def __enter__(self) -> Slot:
        return self._crossing.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._crossing.leave(error)


class BlockingLimiter:
    """Permits of one rate, for threads. Made by :meth:`BlockingManager.limiter`."""

    __slots__ = ("_executor", "_thread")

    def __init__(self, thread: LoopThread, executor: RateLimitedExecutor) -> None:
        self._thread = thread
        self._executor = executor

    @property
    def name(self) -> str:
        """What it is called."""
        return self._executor.name

    @property
    def rate(self) -> Rate:
        """Permits over time; may be set at any time, as that of an executor."""
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
        """Return a permit to enter with ``with``, which waits for it; the arguments are those of an executor's ``permit``.

        Raises:
            BacklogFullError: if it is refused.
            RuntimeError: in a thread that runs an event loop, and in a fork of the process that has started the manager.
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
        """Wait for a permit, and use it up; takes no place of ``max_concurrency`` afterwards."""
        with self.permit(priority=priority, expires=expires, name=name or "acquire", key=key, cost=cost):
            pass

    def acquire_nowait(
        self, *, priority: float = 0, name: str | None = None, key: Hashable = None, cost: CostLike = 1
    ) -> None:
        """Use up a permit that is there at this instant, without waiting for one.

        Raises:
            anyio.WouldBlock: if :meth:`acquire` would have to wait.
            BacklogFullError: if it would be refused.
        """
        self._thread.call(partial(self._executor.acquire_nowait, priority=priority, name=name, key=key, cost=cost))

    def penalize(self, retry_after: DurationLike | None, *, key: Hashable = None) -> None:
        """Start nothing for a time, because the other side has asked for it; as an executor's ``penalize``."""
        self._thread.call(partial(self._executor.penalize, retry_after, key=key))

    def statistics(self) -> Statistics:
        """Count those who wait, hold and have held permits, at this instant."""
        statistics: Statistics = self._thread.call(self._executor.statistics)
        return statistics

    def __repr__(self) -> str:
        return f"<BlockingLimiter {self.name!r} rate={self.rate}>"


class BlockingSlots:
    """A pool of slots, for threads. Made by :meth:`BlockingManager.slots`."""

    __slots__ = ("_slots", "_thread")

    def __init__(self, thread: LoopThread, slots: Slots) -> None:
        self._thread = thread
        self._slots = slots

    @property
    def name(self) -> str:
        """What the pool is called."""
        return self._slots.name

    @property
    def limit(self) -> int:
        """How many may be held at the same time; settable at any time, 0 halts the pool."""
        return self._slots.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._thread.configure(partial(setattr, self._slots, "limit", limit))

    def hold(
        self, *, priority: float = 0, expires: DurationLike | None = None, name: str | None = None
    ) -> BlockingHold:
        """Hold a slot for one ``with``, which is entered when there is one.

        Args:
            priority: **a larger one is more important**; among equals who came first goes first.
            expires: how many seconds to wait at most, from the entry on; None for as long as it takes.
            name: what the holder is called; the thread's own name by default.

        Raises:
            RuntimeError: in a thread that runs an event loop, and in a fork of the process that has started the manager.
            TypeError: if an argument has a wrong type.
            ValueError: if it is out of range.
        """
        name = threading.current_thread().name if name is None else name
        make = partial(self._slots.hold, priority=priority, expires=expires, name=name)
        return BlockingHold(self._thread, self._thread.call(make))

    def statistics(self) -> SlotStatistics:
        """Return the counts of this moment, and who holds slots."""
        statistics: SlotStatistics = self._thread.call(self._slots.statistics)
        return statistics

    def __repr__(self) -> str:
        return repr(self._slots).replace("<Slots", "<BlockingSlots", 1)


class BlockingManager:
    """Permits and slots for threads without an event loop; the arguments are those of an :class:`ExecutorManager`.

    It runs an event loop in a thread of its own, which starts with the first use, or with ``with``. So one that is made
    before a process forks can be used in all forks. It ends with ``with``, with :meth:`close`, or with the interpreter.

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
    ) -> None:
        manager = ExecutorManager(interval=interval, clock=clock, peers=peers, precision=precision)
        self._thread = LoopThread(manager, "BlockingManager")

    def limiter(self, name: str, **options: Any) -> BlockingLimiter:
        """Make a limiter.

        Args:
            name: unlike that of every other limiter of the manager.
            options: as for :class:`RateLimitedExecutor`, such as ``rate=`` and ``max_concurrency=``.

        Raises:
            TypeError: if an option is unknown, or has a wrong type.
            ValueError: if one is out of range, or the name is in use.
            ExecutorStoppedError: if the manager is closed.
        """
        thread = self._thread
        return BlockingLimiter(thread, thread.configure(partial(thread.manager.executor, name, **options)))

    def slots(self, name: str, *, limit: int | None = None) -> BlockingSlots:
        """Return the pool of slots of a name, made if it is not there, as ``ExecutorManager.slots`` does."""
        thread = self._thread
        return BlockingSlots(thread, thread.configure(partial(thread.manager.slots, name, limit=limit)))

    def close(self) -> None:
        """End it: threads that wait get ``ExecutorStoppedError``, those that hold a permit or a slot go on.

        A second call does nothing but wait for the end of the first; nor does one in a fork.
        """
        self._thread.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BlockingManager {self._thread.state} limiters={len(self._thread.manager.executors)}>"
