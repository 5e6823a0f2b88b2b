"""Entry points for other threads: ``concurrent.futures`` futures for calls on the event loop.

``FuturesFace`` is a ``concurrent.futures.Executor`` whose calls run in worker threads, each started on a permit. It can be
used from any thread, and ``loop.run_in_executor(face, fn)`` works with it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ratelimited_executor._core.queue.records import StandIn
from ratelimited_executor._kernel.buckets import name_of
from ratelimited_executor._runtime.arguments import callable_of, count_of
from ratelimited_executor._runtime.task.coroutines import cancel_guarded
from ratelimited_executor._runtime.task.handles import TaskHandle
from ratelimited_executor._runtime.task.launch import ThreadCall, Threads
from ratelimited_executor.exceptions import ExecutorStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["ExitOfCallError", "FuturesFace", "LoopFuture", "call_on_loop", "complete", "end_of"]

T = TypeVar("T")
_IS_AT_ONCE: Final = sys.version_info >= (3, 14)  # run_coroutine_threadsafe cancels in the same turn from then on
_LOOK_SECONDS: Final = 0.5  # between two looks whether the loop is still open
_CANCELLED: Final = "CANCELLED"  # the state that concurrent.futures gives a cancelled future before it notifies waiters


class LoopFuture(concurrent.futures.Future[T]):
    """A future that refuses to block the event loop that must complete it."""

    def __init__(self, loop_thread: int) -> None:
        super().__init__()
        self._loop_thread = loop_thread
        self.on_cancel: Callable[[], object] | None = None

    def result(self, timeout: float | None = None) -> T:
        """See ``concurrent.futures.Future.result``."""
        self._check("result")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See ``concurrent.futures.Future.exception``."""
        self._check("exception")
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Cancel the future, and then the call."""
        cancelled = super().cancel()
        if cancelled and self.on_cancel is not None:
            self.on_cancel()
        return cancelled

    def notify_cancel(self) -> None:
        """Notify ``concurrent.futures.wait`` of a cancellation that no worker thread has reported."""
        if self._state == _CANCELLED:
            self.set_running_or_notify_cancel()

    def _check(self, method: str) -> None:
        if not self.done() and threading.get_ident() == self._loop_thread:
            raise RuntimeError(
                f"{method}() on the thread of the event loop would wait for itself: await asyncio.wrap_future(future)"
            )


class ExitOfCallError(BaseException):
    """Carries the ``SystemExit`` of a call to its future, as in a thread pool, instead of ending the event loop.

    It is not an ``Exception``, so a call that exits is not retried.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.exit = error


class Submitter(Protocol):
    """The parts of its executor that the face uses."""

    @property
    def name(self) -> str:
        """The name of the executor."""
        ...

    @property
    def is_terminated(self) -> bool:
        """True if the executor is closed."""
        ...

    @property
    def submit(self) -> Callable[..., TaskHandle[Any]]:
        """Start a call as soon as a permit is available."""
        ...


class FuturesFace(concurrent.futures.Executor):
    """Created by ``RateLimitedExecutor.as_futures_executor``; its shutdown ends the face, not the executor.

    Args:
        executor: schedules the calls.
        loop: the open event loop of that executor.
        threads: the worker threads of that executor.
        max_workers: the maximum number of threads; None for the executor's limit.
    """

    def __init__(
        self, executor: Submitter, loop: asyncio.AbstractEventLoop, threads: Threads, *, max_workers: int | None
    ) -> None:
        self._executor = executor
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._threads = (
            threads
            if max_workers is None
            else Threads(count_of("max_workers", max_workers, least=1), are_there=threads.are_there)
        )
        self._lock = threading.Lock()
        self._open: set[LoopFuture[Any]] = set()
        self._is_shut_down = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Run ``fn(*args, **kwargs)`` in a worker thread when a permit is available.

        Raises:
            TypeError: if ``fn`` is not callable.
            ExecutorStoppedError: after ``shutdown``, or when the executor is closed.
        """
        callable_of("fn", fn)
        future: LoopFuture[T] = LoopFuture(self._loop_thread)
        with self._lock:
            # A loop that ends after its executor may take a call over, and never run it.
            if self._is_shut_down or self._executor.is_terminated or self._loop.is_closed():
                raise ExecutorStoppedError(f"the futures face of {self._executor.name}")
            self._open.add(future)
        future.add_done_callback(self._forget)
        place = partial(self._place, future, partial(fn, *args, **kwargs))
        if threading.get_ident() == self._loop_thread:
            place()
        else:
            try:
                self._loop.call_soon_threadsafe(place)
            except RuntimeError as error:  # the loop has been closed meanwhile
                future.cancel()
                future.notify_cancel()
                raise ExecutorStoppedError(f"the futures face of {self._executor.name}") from error
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept nothing more; see ``concurrent.futures.Executor.shutdown``.

        Raises:
            RuntimeError: with ``wait`` on the loop's thread while calls are unfinished: it would wait for itself.
        """
        with self._lock:
            unfinished = list(self._open)
            if wait and unfinished and not cancel_futures and threading.get_ident() == self._loop_thread:
                raise RuntimeError(
                    "shutdown(wait=True) on the thread of the event loop would wait for itself: pass wait=False"
                )
            self._is_shut_down = True
        if cancel_futures:
            for future in unfinished:
                future.cancel()
        if wait and threading.get_ident() != self._loop_thread:
            while concurrent.futures.wait(unfinished, timeout=_LOOK_SECONDS).not_done:
                if self._loop.is_closed():  # what it has not run it never will
                    for future in unfinished:
                        future.on_cancel = None  # nor a cancellation
                        future.cancel()
                        future.notify_cancel()
                    return

    def _forget(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._open.discard(future)

    def _place(self, future: LoopFuture[Any], call: partial[Any]) -> None:
        """Schedule a call, on the loop's thread."""
        if future.cancelled():
            future.set_running_or_notify_cancel()  # notifies waiters of the cancellation
            return

        def run() -> Any:
            # A further attempt finds the future running.
            if not future.running() and not future.set_running_or_notify_cancel():
                raise concurrent.futures.CancelledError
            try:
                return call()
            except (SystemExit, KeyboardInterrupt) as error:
                raise ExitOfCallError(error) from None

        def start() -> Any:
            return ThreadCall(run, (), contextvars.copy_context(), self._threads)

        try:
            handle = self._executor.submit(StandIn(start, *_shown(call)), name=name_of(call))
        except Exception as error:  # noqa: BLE001  # closed, full: the owner of the future gets it
            future.set_exception(error)
            return
        future.on_cancel = partial(self._loop.call_soon_threadsafe, handle.cancel)
        handle.add_done_callback(partial(complete, future))


def _shown(call: partial[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return a function and its arguments as they were passed; keyword arguments are bound to the function."""
    return (partial(call.func, **call.keywords) if call.keywords else call.func), call.args


def complete(future: LoopFuture[Any], handle: TaskHandle[Any] | asyncio.Future[Any]) -> None:
    """Copy the outcome of a task to a future."""
    if future.done():
        future.notify_cancel()
        if not handle.cancelled():
            handle.exception()  # marks it as retrieved: the future was cancelled
        return
    if handle.cancelled():
        if not future.running():
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(concurrent.futures.CancelledError())
        return
    if not future.running() and not future.set_running_or_notify_cancel():
        return
    error = handle.exception()
    if isinstance(error, ExitOfCallError):
        error = error.exit
    if error is None:
        future.set_result(handle.result())
    else:
        future.set_exception(error)


def call_on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> concurrent.futures.Future[Any]:
    """Make a call on a loop, from any thread; return a future of its result, awaited there if it is awaitable.

    Raises:
        RuntimeError: if the event loop is closed.
    """
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def place() -> None:
        if future.cancelled():
            future.set_running_or_notify_cancel()
            return
        try:
            outcome = call()
            if hasattr(outcome, "__aiter__") and not hasattr(outcome, "__await__"):
                raise TypeError(
                    f"{name_of(call)} is iterated on the event loop: from a thread use as_futures_executor().map()"
                )
        except Exception as error:  # noqa: BLE001  # it goes to the future, whose owner is in another thread
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            return
        if not hasattr(outcome, "__await__"):
            if future.set_running_or_notify_cancel():
                future.set_result(outcome)
            return
        ended = end_of(loop, outcome)
        ended.add_done_callback(partial(_copy_outcome, future))
        cancelled = outcome if hasattr(outcome, "cancel") else ended
        future.add_done_callback(partial(_pass_cancel, loop, ended, cancelled))

    loop.call_soon_threadsafe(place)
    return future


def end_of(loop: asyncio.AbstractEventLoop, outcome: Any) -> TaskHandle[Any] | asyncio.Future[Any]:
    """Return what has the outcome of an awaitable, and done callbacks: itself, or a task that awaits it."""
    if isinstance(outcome, (TaskHandle, asyncio.Future)):
        return outcome
    ended = loop.create_task(_wait_for(outcome))
    _WAITING.add(ended)
    ended.add_done_callback(_WAITING.discard)
    return ended


_WAITING: Final[set[asyncio.Task[Any]]] = set()  # keeps these tasks alive, as a loop does not


async def _wait_for(outcome: Any) -> Any:
    return await outcome


def _copy_outcome(future: concurrent.futures.Future[Any], ended: Any) -> None:
    """Copy the outcome of a task to a future; if that was cancelled, ignore the outcome."""
    error = asyncio.CancelledError() if ended.cancelled() else ended.exception()
    if ended.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(ended.result())
    else:
        future.set_exception(error)


def _pass_cancel(
    loop: asyncio.AbstractEventLoop, ended: Any, outcome: Any, future: concurrent.futures.Future[Any]
) -> None:
    """Cancel the task of a future that was cancelled, in any thread: when asyncio does it on this Python."""
    if not future.cancelled() or ended.done() or loop.is_closed():
        return
    if _IS_AT_ONCE and asyncio._get_running_loop() is loop:
        cancel_guarded(loop, outcome)
    else:
        loop.call_soon_threadsafe(outcome.cancel)
