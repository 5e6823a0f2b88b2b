"""Puts from code without an event loop: on a loop in a thread of its own, with a store of its own.

::

    a thread                          the puts' thread
    tasks.put_sync(task)   ------->   started and opened by the first put, and again after each fork
                           ------->   shares a transaction with the puts of other threads
        ...                <-------   True if it is new, or the error

Before a fork the thread ends, and its store is closed: neither would work in the child, and two processes must not share
a connection. A fork does not wait for a store that is not available: its opening is given up. The next put of either
process, or one that has waited for the opening, starts the thread again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ratelimited_executor._runtime.durable.opening import open_store
from ratelimited_executor._runtime.durable.putting import Putting
from ratelimited_executor._runtime.threads.loop_thread import Crossings, LoopThread, runs_event_loop
from ratelimited_executor._runtime.time.clock import SystemClock
from ratelimited_executor.exceptions import ExecutorStoppedError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from ratelimited_executor._core.durable.tasks import Duplicate, NewTask
    from ratelimited_executor.abc import TaskStore

T = TypeVar("T")

__all__ = ["SyncPuts", "put_on", "refuse_loop"]

_LOOK_SECONDS: Final = 1.0  # between two looks whether a loop of the user still runs


class SyncPuts:
    """The blocking puts into one store.

    Args:
        store: the user's store, of which the thread opens a twin.
        open_timeout: seconds for which opening that is tried again.
    """

    def __init__(self, store: TaskStore, open_timeout: float = 0.0) -> None:
        self._store = store
        self._open_timeout = open_timeout
        self._lock = threading.Lock()
        self._thread: _PuttingThread | None = None
        _ALL.add(self)

    @cached_property
    def is_possible(self) -> bool:
        """True if the store has a twin; if not, it can be used only on the event loop on which it is open."""
        return _twin_of(self._store) is not None

    def put(self, tasks: Sequence[NewTask]) -> list[bool | Duplicate]:
        """Return once tasks are durable: for each True if it is new, False for a duplicate.

        Args:
            tasks: the tasks of one transaction.
        """
        until = SystemClock.monotonic() + self._open_timeout
        while True:
            thread = self._current(until)
            begun: list[bool] = []
            try:
                return thread.put(tasks, begun)
            except ExecutorStoppedError:  # before a fork; or at the interpreter's exit, and then no other thread starts
                self._drop(thread)
                if begun or thread.state == "new":
                    raise
            except BaseException:
                if thread.has_failed:  # all puts that have waited for it get its error; the next one tries again
                    self._drop(thread)
                raise

    def _current(self, until: float) -> _PuttingThread:
        """Return the thread, which the first put starts; one that is new tries to open the store until some time."""
        with self._lock:
            if self._thread is None:
                left = max(0.0, until - SystemClock.monotonic())
                self._thread = _PuttingThread(_twin_of(self._store), f"put_sync() of {self._store!r}", left)
            return self._thread

    def _drop(self, thread: _PuttingThread) -> None:
        with self._lock:
            if self._thread is thread:
                self._thread = None

    def hold(self) -> None:
        """Close the store and end the thread, until a fork is over."""
        self._lock.acquire()
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def release(self) -> None:
        """Let the next put start a thread: the fork is over."""
        self._lock.release()


class _PuttingThread(LoopThread):
    """The thread, and the loop on which its store is open."""

    def __init__(self, store: Any, name: str, open_timeout: float) -> None:
        crossings = Crossings()
        self._keeper = _Keeper(store, crossings, open_timeout)
        super().__init__(cast("Any", self._keeper), name)  # in the place of a manager
        self.crossings = crossings

    @property
    def has_failed(self) -> bool:
        """True if its store could not be opened."""
        return self._start.failure is not None

    def close(self, *, cancel: bool = False) -> None:
        """End the thread; an opening that is under way is given up."""
        if self._process in (0, os.getpid()):
            self._keeper.give_up()
        super().close(cancel=cancel)

    def put(self, tasks: Sequence[NewTask], begun: list[bool]) -> list[bool | Duplicate]:
        """Put tasks; ``begun`` gets an element if that may have had an effect."""

        def begin() -> asyncio.Task[list[bool | Duplicate]]:
            task = self.crossings.start(lambda: self._keeper.put(tasks))
            if task is None:
                raise ExecutorStoppedError(self._name)
            begun.append(True)
            return task

        return self.call(begin)  # type: ignore[no-any-return]  # it is the result of the task

    def __del__(self, _warn: Any = None) -> None:
        if self.is_open:
            self.stop()  # without a warning: a user has nothing to close


class _Keeper:
    """Keeps a store open on the loop of a thread, as a manager without executors.

    Args:
        store: the store.
        crossings: the calls that must have ended before the store is closed.
        open_timeout: seconds for which opening the store is tried again.
    """

    def __init__(self, store: Any, crossings: Crossings, open_timeout: float) -> None:
        self.executors: dict[str, Any] = {}
        self._store = store
        self._crossings = crossings
        self._open_timeout = open_timeout
        self._putting = Putting(store)
        self._opening: asyncio.Task[None] | None = None
        self._is_given_up = False

    async def start(self) -> None:
        self._opening = asyncio.ensure_future(open_store(self._store, SystemClock(), self._open_timeout))
        if self._is_given_up:
            self._opening.cancel()
        await asyncio.wait([self._opening])
        if self._opening.cancelled():
            raise ExecutorStoppedError(repr(self._store))
        self._opening.result()

    def give_up(self) -> None:
        """Stop opening the store, if it is not open yet; from any thread, before the start as well."""
        self._is_given_up = True
        if self._opening is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._opening.get_loop().call_soon_threadsafe(self._opening.cancel)

    async def put(self, tasks: Sequence[NewTask]) -> list[bool | Duplicate]:
        return [await self._putting.put(tasks[0])] if len(tasks) == 1 else await self._store.put(tasks)

    async def aclose(self) -> None:
        try:
            await self._crossings.finish()
            await self._putting.aclose()
        finally:
            await self._store.aclose()


def put_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of the user, from another thread."""
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # the loop is closed
        work.close()
        raise
    while True:
        try:
            return future.result(_LOOK_SECONDS)
        except concurrent.futures.CancelledError:
            raise RuntimeError("the event loop ended during the put: the task may have been put, or not") from None
        except TimeoutError:
            if future.done():
                raise
            if not loop.is_running():
                future.cancel()


def refuse_loop(call: str, remedy: str) -> None:
    """Refuse a blocking call in a thread that runs an event loop."""
    if runs_event_loop():
        raise RuntimeError(f"{call} would block the event loop of this thread: use {remedy}")


def _twin_of(store: Any) -> Any:
    twin = getattr(store, "twin", None)
    return None if twin is None else twin()


_ALL: Final[weakref.WeakSet[SyncPuts]] = weakref.WeakSet()
_held: Final[list[SyncPuts]] = []  # during a fork


def _before_fork() -> None:
    for each in list(_ALL):
        _held.append(each)
        each.hold()


def _after_fork() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
