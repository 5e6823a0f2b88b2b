"""A thread that runs a manager on an event loop, for blocking calls from other threads.

It is a thread of its own, or one that runs a loop already, where the manager becomes a task.

All other threads send their requests to this thread, and wait. The manager decides which is next, as always: this
module only crosses between threads.

::

    a thread                            the loop's thread
    with limiter.permit(...):  ------>  executor.permit(...)    checks the arguments
                               ------>  __aenter__() as a task  waits in the executor's order
        ...                    <------  its result, or its exception
                               ------>  __aexit__()

A signal handler may raise in the main thread while it waits: KeyboardInterrupt, or the soft time limit of a task queue.
Then only the loop's thread knows whether the permit was granted already, so it is asked to undo the entry: to cancel
it, or to leave again. This request arrives after the entry, since calls to a loop keep their order.

Rejected: anyio's ``BlockingPortal``. Its ``wrap_async_context_manager`` leaves a context entered if the thread is
interrupted while entering; its calls wait twice for the loop, and on futures, see :class:`Reply`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ratelimited_executor._forks import check_process
from ratelimited_executor._runtime.life.closing import GRACE_SECONDS
from ratelimited_executor._runtime.task.failures import Failure
from ratelimited_executor.exceptions import ExecutorStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from ratelimited_executor._runtime.life.executor import ExecutorManager

__all__ = ["Crossing", "Crossings", "LoopThread", "runs_event_loop"]

T = TypeVar("T")
_REMEDY: Final = "; a sub-interpreter may have no threads, so use it in the main interpreter"
_LOOK_SECONDS: Final = 0.5  # between two looks whether a loop of somebody else still runs


class Crossings:
    """The calls of other threads on the loop, and the tasks that they have started; none is left when the loop ends."""

    def __init__(self) -> None:
        self.replies: set[Reply] = set()  # awaited by threads
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def answer(self, reply: Reply, call: Callable[[], Any]) -> None:
        """Make a call, and hand over its result or exception."""
        try:
            outcome = call()
        except BaseException as error:  # noqa: BLE001  # exits as well: it is raised in the waiting thread
            self._give(reply, None, error)
            return
        if isinstance(outcome, asyncio.Task):
            outcome.add_done_callback(partial(self._give_end, reply))
        else:
            self._give(reply, outcome)

    def start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T] | None:
        """Run a coroutine as a task; return None, and create nothing, once the loop is about to end."""
        if self._is_over:
            return None
        task = asyncio.ensure_future(make())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self) -> None:
        """Start no more tasks, and wait for the running ones."""
        self._is_over = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE_SECONDS)

    def give_up(self) -> None:
        """Cancel unanswered requests, because an error has ended the loop, which is closed."""
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
        self.failure: Failure | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def succeed(self, loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
        """Report that the loop runs, and pass the event that ends it."""
        self.loop, self.stopped = loop, stopped
        self._gate.release()

    def fail(self, error: BaseException) -> None:
        """Report that the loop will never run."""
        self.failure = Failure(error)
        self._gate.release()

    def wait(self, look: Callable[[], None] | None = None) -> None:
        """Wait for success or failure; ``look`` as of :meth:`Reply.wait`."""
        if self.loop is not None or self.failure is not None:
            return
        if look is None:
            with self._gate:  # in one step, so that an interrupt leaves it open for the others
                return
        _pass(self._gate, look)
        self._gate.release()


class Reply:
    """The result of one call on the loop, for the thread that waits for it.

    It is handed over by a bare lock, since a signal handler may raise in that thread at any instant. Within a
    ``threading.Condition``, on which futures and events are built, that can leave its lock held forever, and the loop
    would wait for it like all other threads.
    """

    __slots__ = ("_error", "_gate", "_value")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._value: Any = None
        self._error: BaseException | None = None

    def wait(self, look: Callable[[], None] | None = None) -> Any:
        """Wait for the result, and return or raise it.

        Args:
            look: raises if there will be no result, because somebody else's loop has been stopped; None if it cannot be.
        """
        _pass(self._gate, look)
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            del self  # the error's traceback keeps this frame, which would keep the reply and the error

    def give(self, value: Any, error: BaseException | None) -> None:
        """Hand over the result or the error, once."""
        self._value, self._error = value, error
        self._gate.release()


def _pass(gate: threading.Lock, look: Callable[[], None] | None) -> None:
    """Acquire a lock; look now and then if it will still be released."""
    if look is None:
        gate.acquire()
        return
    while not gate.acquire(timeout=_LOOK_SECONDS):
        look()


class Drained(Protocol):
    """An executor whose accepted calls run before its thread ends."""

    def _shut_down(self, *, cancel: int | None, is_exit: bool = False) -> None:
        """Accept nothing more, and wait for the calls that were accepted, or only for those that have started.

        Args:
            cancel: None to wait for all; else the level of the log line about those that are cancelled.
            is_exit: True at the interpreter's exit.
        """
        ...


class LoopThread:
    """The thread that runs a manager on an event loop; started when it is first needed.

    Args:
        manager: the manager that it runs.
        name: the name used in errors.
        loop: a loop that runs in another thread already; None for a thread and a loop of its own.
        ending: the call that ends it, for the warning about an unclosed one.
    """

    def __init__(
        self,
        manager: ExecutorManager,
        name: str,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        ending: str = "close()",
    ) -> None:
        if loop is not None and not isinstance(loop, asyncio.AbstractEventLoop):
            raise TypeError(f"loop must be an asyncio event loop that runs in another thread, or None, got {loop!r}")
        self.manager = manager
        self.crossings = Crossings()
        self._name = name
        self._loop = loop
        self._ending = ending
        self._lock = threading.Lock()
        self._drained: weakref.WeakSet[Drained] = weakref.WeakSet()  # to be shut down before it is closed
        self._interrupted: weakref.WeakSet[Drained] = weakref.WeakSet()  # not to be waited for at the exit
        self._is_closed = False
        self._process = 0  # the process that has started it; a fork has none of its threads
        self._thread: threading.Thread | _Visit | None = None
        self._start = Start()

    @property
    def name(self) -> str:
        """The name used in errors."""
        return self._name

    @property
    def is_inherited(self) -> bool:
        """True in a fork of the process that has started it, where its locks may be held for ever."""
        return self._process not in (0, os.getpid())

    def check_process(self) -> None:
        """Refuse a call in a fork of the process that has started it, by a RuntimeError."""
        check_process(self._name, self._process)

    @property
    def state(self) -> str:
        """``new``, ``open`` or ``closed``."""
        return "closed" if self._is_closed else "new" if self._thread is None else "open"

    def start(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started if it is not yet.

        Raises:
            ExecutorStoppedError: if it is closed.
            RuntimeError: in a fork of the process that has started it; if no thread can be started; or on the thread of a loop
                that was given, before the start.
        """
        self.check_process()
        with self._lock:
            if self._is_closed or (self._thread is None and _exit_begun.is_set()):
                raise ExecutorStoppedError(self._name)
            if self._thread is None:
                self._begin()
        self._start.wait(self._look)
        if self._start.failure is not None:
            raise self._start.failure.again()
        assert self._start.loop is not None
        if self._loop is not None:
            self._check_loop()
        return self._start.loop

    def _begin(self) -> None:
        """Start the thread, or the task on the given loop."""
        serve = partial(_serve, self.manager, self.crossings, self._start)
        if self._loop is not None and asyncio._get_running_loop() is self._loop:
            raise RuntimeError(
                f"{self._name} would wait for its own start on the thread of its loop: use an ExecutorManager there"
            )
        try:
            self._thread = (
                threading.Thread(
                    target=_run, args=(serve, self.crossings, self._start), name="ratelimited_executor", daemon=True
                )
                if self._loop is None
                else _Visit(self._loop, serve, self.crossings, self._start)
            )
            self._process = os.getpid()
            self._thread.start()
        except RuntimeError as error:
            self._thread, self._process = None, 0
            raise RuntimeError(
                f"{self._name} could not start: {error}{_REMEDY if self._loop is None else ''}"
            ) from error
        _OPEN.add(self)

    @property
    def _look(self) -> Callable[[], None] | None:
        """A function that raises if the given loop has been stopped; None if the loop is its own."""
        return None if self._loop is None else self._check_loop

    def _check_loop(self) -> None:
        assert self._loop is not None
        if self._loop.is_closed():
            raise ExecutorStoppedError(self._name)
        if not self._loop.is_running():
            raise RuntimeError(
                f"{self._name} has lost its event loop, which has been stopped: no call can end any more"
            )

    def configure(self, call: Callable[[], T]) -> T:
        """Make a call that needs no loop: directly as long as there is none, else on the loop."""
        self.check_process()
        with self._lock:
            if self._is_closed:
                raise ExecutorStoppedError(self._name)
            if self._thread is None:
                return call()
        value: T = self.call(call)
        return value

    def call(self, call: Callable[[], Any]) -> Any:
        """Make a call on the loop; return its result, or the result of the task that it returns.

        Raises:
            ExecutorStoppedError: if it is closed, or closes meanwhile.
            RuntimeError: in a thread that runs an event loop, which it would block; or in a fork.
        """
        if runs_event_loop():
            raise RuntimeError(
                f"{self._name} would block the event loop of this thread: call it in a worker thread, as by "
                "asyncio.to_thread(), or use an ExecutorManager on the loop"
            )
        return self.wait_for(call)

    def wait_for(self, call: Callable[[], Any]) -> Any:
        """Like :meth:`call`, also in a thread that runs another loop."""
        loop = self.start()
        reply = Reply()
        try:
            with self._lock:  # a request made before the closing is answered by it
                if self._is_closed:
                    raise ExecutorStoppedError(self._name)
                self.crossings.replies.add(reply)
                loop.call_soon_threadsafe(self.crossings.answer, reply, call)
        except RuntimeError:  # or an error has ended the loop, or it was not ours
            self.crossings.replies.discard(reply)
            raise ExecutorStoppedError(self._name) from None
        try:
            return reply.wait(self._look)
        except concurrent.futures.CancelledError:
            if self._is_closed:
                raise ExecutorStoppedError(self._name) from None
            raise

    def call_soon(self, call: Callable[[], object]) -> None:
        """Make a call on the loop without waiting, if it still runs, and in this process."""
        if self._process == os.getpid() and self._start.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and no permit is held there any more
                self._start.loop.call_soon_threadsafe(call)

    @property
    def is_open(self) -> bool:
        """True while it runs, in this process."""
        return not self._is_closed and self._process == os.getpid()

    @property
    def is_own_thread(self) -> bool:
        """True on the thread that runs the loop."""
        return self._start.loop is not None and asyncio._get_running_loop() is self._start.loop

    def close(self, *, cancel: bool = False) -> None:
        """Let accepted calls of executors run, refuse waiting and new callers, and wait for the end.

        A second call waits as well.

        Args:
            cancel: True to cancel the calls that have not started.

        Raises:
            RuntimeError: on the thread itself.
        """
        if self.is_inherited:
            return  # only the parent can close it
        if self.is_own_thread:
            raise RuntimeError(f"{self._name} cannot be closed on its own thread, which would wait for itself")
        self.drain(cancel=cancel)
        self.end()
        if self._thread is not None:
            self._thread.join()
        _OPEN.discard(self)

    def add(self, executor: Drained) -> None:
        """Have an executor shut down before it is closed, as long as somebody uses that."""
        with self._lock:
            self._drained.add(executor)

    def remove(self, executor: Drained) -> None:
        """Record that an executor has been shut down."""
        with self._lock:
            self._drained.discard(executor)

    def note_interrupt(self, executor: Drained) -> None:
        """Record that somebody waited for the calls of an executor, and was interrupted."""
        self._interrupted.add(executor)

    def drain(self, *, cancel: bool = False, is_exit: bool = False) -> None:
        """Shut down its executors, and wait for the calls that they have accepted.

        Args:
            cancel: as of :meth:`close`.
            is_exit: True to cancel as well what somebody has waited for in vain: Ctrl-C asked for the end of the program.
        """
        if self.is_inherited or (self._loop is not None and not self._loop.is_running()):
            return  # nothing can run there
        with self._lock:
            executors = list(self._drained)
        for executor in executors:
            is_cut = cancel or (is_exit and executor in self._interrupted)
            executor._shut_down(cancel=logging.WARNING if is_cut else None, is_exit=is_exit)  # noqa: SLF001  # they are one face

    def end(self) -> None:
        """Close it without waiting; waiting and new callers are refused."""
        with self._lock:
            self._is_closed = True
        if self._thread is not None:
            if not self.is_own_thread:
                self._start.wait(self._look)
            self.stop()

    def stop(self) -> None:
        """End the thread without waiting."""
        if self._start.stopped is not None:
            self.call_soon(self._start.stopped.set)

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_thread", None) is None or not self.is_open:
            return
        _warn(f"unclosed {self._name}: use with, or {self._ending}", ResourceWarning, source=self)
        self.stop()  # the collector may run in any thread, even in the loop's, so this must not wait


# Those not closed yet: they are closed at the interpreter's exit, while daemon threads still run.
_OPEN: Final[weakref.WeakSet[LoopThread]] = weakref.WeakSet()
_exit_begun = threading.Event()


def _close_open() -> None:
    """Close those that are open; accepted calls of executors run before, as in ``concurrent.futures``."""
    try:
        for thread in list(_OPEN):
            thread.drain(is_exit=True)
    finally:
        _exit_begun.set()  # if Ctrl-C has ended this, the interpreter does not wait for anything
    for thread in list(_OPEN):
        thread.close()


def _call_at_exit(call: Callable[[], None]) -> None:
    """Call a function once the main thread has ended, before the interpreter waits for the threads that are no daemons.

    These may wait for a permit or a slot that never comes, and the functions of :mod:`atexit` are called after them. The
    hook that ``concurrent.futures`` uses comes before; the function that was registered last is called first, and that
    of ``concurrent.futures`` waits for its threads, so it must be registered already. Rejected: a thread that waits for
    the end of the main thread, which is public, but comes after ``concurrent.futures``.
    """
    import concurrent.futures.thread  # noqa: F401, PLC0415  # it registers its function

    register = getattr(threading, "_register_atexit", atexit.register)
    try:
        register(call)
    except RuntimeError:  # imported after the main thread has ended
        atexit.register(call)


_call_at_exit(_close_open)


def runs_event_loop() -> bool:
    """True in a thread that runs an event loop."""
    return asyncio._get_running_loop() is not None


async def _serve(manager: ExecutorManager, crossings: Crossings, start: Start) -> None:
    """Run a manager until it is stopped, or its loop ends."""
    await manager.start()
    stopped = asyncio.Event()
    start.succeed(asyncio.get_running_loop(), stopped)
    try:
        await stopped.wait()
    finally:
        for executor in manager.executors.values():
            executor._closing.abort()  # only waiters are left to drain, and they are notified
        await manager.aclose()
        await crossings.finish()


def _run(serve: Callable[[], Coroutine[Any, Any, None]], crossings: Crossings, start: Start) -> None:
    """Run a manager in a thread of its own."""
    try:
        with asyncio.Runner() as runner:
            runner.run(serve())
    except BaseException as error:
        if start.loop is not None:
            raise
        start.fail(error)
    finally:
        crossings.give_up()


class _Visit:
    """A manager on a loop that runs in another thread: it is started and joined as a thread of its own is."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        serve: Callable[[], Coroutine[Any, Any, None]],
        crossings: Crossings,
        start: Start,
    ) -> None:
        self._loop = loop
        self._serve = serve
        self._crossings = crossings
        self._start = start
        self._task: asyncio.Task[None] | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def start(self) -> None:
        """Start the manager as a task of the loop."""
        if not self._loop.is_running():
            raise RuntimeError("loop must be running in another thread: start it first, or pass no loop")
        self._loop.call_soon_threadsafe(self._begin)

    def join(self) -> None:
        """Wait for the end; a loop that has been stopped comes to none."""
        while not self._gate.acquire(timeout=_LOOK_SECONDS):
            if not self._loop.is_running():
                return
        self._gate.release()

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._serve())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._start.loop is None:
            self._start.fail(asyncio.CancelledError() if task.cancelled() else task.exception() or RuntimeError())
        self._crossings.give_up()
        self._gate.release()


class Crossing(Generic[T]):
    """An async context manager of the loop's thread, entered and left by another thread, once.

    One that is garbage-collected while entered is left: a signal handler may also raise between the entry and the
    ``with`` block, or between the block and the exit.

    Args:
        thread: the loop's thread.
        context: the context manager, created there.
    """

    _is_entered = (
        False  # both are set by the loop's thread alone; on the class, since an interrupt may come before __init__()
    )
    _is_left = False

    def __init__(self, thread: LoopThread, context: AbstractAsyncContextManager[T]) -> None:
        self._thread = thread
        self._context = context

    def enter(self) -> T:
        """Enter the context, and return its value; the entry is undone if this thread is interrupted meanwhile."""
        entries: list[asyncio.Task[T]] = []

        def begin() -> asyncio.Task[T]:
            entry = self._thread.crossings.start(self._enter)
            assert entry is not None  # no request is accepted once it closes
            entries.append(entry)
            return entry

        try:
            return self._thread.call(begin)  # type: ignore[no-any-return]  # it is the result of the task
        except BaseException:  # the entry has failed; or a signal handler has raised here, such as KeyboardInterrupt
            self._thread.call_soon(partial(self._undo, entries))
            raise

    def leave(self, error: BaseException | None) -> None:
        """Leave the context; without waiting if the manager is closed, and not at all in a fork of the holder."""
        try:
            if self._thread.is_open and not runs_event_loop():
                self._thread.call(partial(self._leave, error))
            else:
                self._thread.call_soon(partial(self._leave, error))
        except BaseException as stop:  # interrupted, perhaps before the request was made; or closed meanwhile
            self._thread.call_soon(partial(self._leave, error))
            if not isinstance(stop, ExecutorStoppedError):
                raise

    def __del__(self) -> None:
        # At the exit of a Python without the global interpreter lock, modules may be emptied before this is collected.
        if self._is_entered and not self._is_left and partial is not None:
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
