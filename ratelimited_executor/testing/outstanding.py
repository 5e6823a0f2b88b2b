"""Threads, processes and registered files outside virtual time that may still report to a loop.

Threads are known by the way in which they were started: ``run_in_executor`` (hence ``asyncio.to_thread``),
``anyio.to_thread``, the shutdown of the default executor, or ``loop.hold()``. Any other thread is unknown.

An anyio worker is outstanding until the loop has run its report, which returns it to the idle workers. So this state
changes only in the loop's own thread, and the decision to advance time does not depend on a race.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import os
import socket
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType


__all__ = ["Outstanding", "TimeHold", "describe_tasks"]

_ANYIO_BACKEND = "anyio._backends._asyncio"


class TimeHold:
    """Keep virtual time from advancing until released; made by :meth:`VirtualEventLoop.hold`.

    Releasing is thread-safe, and takes effect after all earlier ``call_soon_threadsafe`` calls of the same thread.
    A second release does nothing.
    """

    __slots__ = ("_loop", "_open", "name")

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, outstanding: Outstanding) -> None:
        self._loop = loop
        self._open = outstanding.holds
        self.name = name
        self._open[self] = None

    def release(self) -> None:
        """Stop holding virtual time."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._open.pop, self, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<TimeHold {self.name!r} {'held' if self in self._open else 'released'}>"


class Outstanding:
    """Tracks the threads, processes and files that may still report to one loop, and names them."""

    __slots__ = ("_calls", "_lent", "_loop", "_processes", "holds")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: dict[asyncio.Future[Any], object] = {}  # the waiting future -> the function in its thread
        self._processes: dict[asyncio.SubprocessTransport, str] = {}
        self._lent = 0  # outstanding threads that are themselves waiting for the loop
        self.holds: dict[TimeHold, None] = {}

    def add_call(self, future: asyncio.Future[Any], function: object) -> None:
        """Track a call in a worker thread or process until its future is done."""
        self._calls[future] = function
        future.add_done_callback(self._forget_call)

    def _forget_call(self, future: asyncio.Future[Any]) -> None:
        self._calls.pop(future, None)

    def add_process(self, transport: asyncio.SubprocessTransport, command: str) -> None:
        """Track a process until its exit has been reported."""
        self._processes[transport] = command

    def lend(self, count: int) -> None:
        """Count a thread that waits for the loop (1), or that continues (-1)."""
        self._lent += count

    def has_threads(self) -> bool:
        """True if a worker thread or a hold is outstanding. Nearly free while there is only one thread."""
        count = len(self._calls) + len(self.holds)
        if threading.active_count() > 1:
            count += sum(1 for _ in self._anyio_workers())
        return count > self._lent

    def has_holds(self) -> bool:
        """True if a hold is outstanding; holds count under every policy, because they were requested by name."""
        return len(self.holds) > self._lent

    def has_processes(self) -> bool:
        """True if a process runs whose exit has not been reported."""
        if not self._processes:
            return False
        for transport in [known for known in self._processes if known.get_returncode() is not None]:
            del self._processes[transport]
        return bool(self._processes)

    def _anyio_workers(self) -> Iterator[Any]:
        """Yield the anyio threads of this loop that have not reported; tolerates names that anyio may change."""
        worker_type = getattr(sys.modules.get(_ANYIO_BACKEND), "WorkerThread", None)
        if worker_type is None:
            return
        for thread in threading.enumerate():
            if isinstance(thread, worker_type) and getattr(thread, "loop", None) is self._loop:
                is_idle = thread in getattr(thread, "idle_workers", ())
                if not is_idle and not getattr(thread, "stopping", False):
                    yield thread

    def describe(self, keys: Iterable[selectors.SelectorKey]) -> tuple[str, ...]:
        """Name everything outstanding, one text each: threads, holds, processes, then the registered files."""
        texts = [f"worker thread running {_name_of(function)}" for function in self._calls.values()]
        texts += [f"worker thread of anyio running {_running_in(worker)}" for worker in self._anyio_workers()]
        texts += [f"hold {hold.name!r}" for hold in self.holds]
        texts += [f"subprocess {transport.get_pid()}: {text}" for transport, text in self._processes.items()]
        return tuple(texts + [_describe_file(key) for key in keys])


def _name_of(function: object) -> str:
    """Name a function, without the wrappers that asyncio puts around it."""
    while isinstance(function, functools.partial):
        inner: Any = function.func
        carries = isinstance(getattr(inner, "__self__", None), contextvars.Context) and function.args
        function = function.args[0] if carries else inner
    name = getattr(function, "__qualname__", None) or repr(function)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else name


def _running_in(worker: threading.Thread) -> str:
    """Name the function that a worker thread of anyio runs, as far as its frames show."""
    frame = sys._current_frames().get(worker.ident or 0)  # noqa: SLF001  # the standard way
    place = "unknown code"
    if frame is not None:
        place = f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
    while frame is not None:
        if frame.f_code is type(worker).run.__code__:
            function = frame.f_locals.get("func")
            return f"{_name_of(function)}, now in {place}" if function is not None else place
        frame = frame.f_back
    return place


def _describe_file(key: selectors.SelectorKey) -> str:
    """Describe a registered file: its kind, its addresses, and the tasks that wait for it."""
    handles = [("reading", key.data[0]), ("writing", key.data[1])]
    waits = [f"{verb} by {_name_of(_callback_of(handle))}" for verb, handle in handles if handle is not None]
    return f"{_kind_of(key.fd)} fd={key.fd}, {' and '.join(waits) or 'idle'}"


def _callback_of(handle: Any) -> Callable[..., object] | None:
    callback: Callable[..., object] | None = getattr(handle, "_callback", None)
    return callback


def _kind_of(fd: int) -> str:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return "closed file"
    if stat.S_ISSOCK(mode):
        return _describe_socket(fd)
    return "pipe" if stat.S_ISFIFO(mode) else "file"


def _describe_socket(fd: int) -> str:
    """Name a socket by its addresses; works on a duplicate, so that the owner's socket stays open."""
    with socket.socket(fileno=os.dup(fd)) as twin:
        if twin.family == socket.AF_UNIX:
            return f"unix socket {twin.getsockname() or '(pair)'}"
        if twin.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return f"listening socket {_address(twin.getsockname())}"
        try:
            return f"socket {_address(twin.getsockname())} -> {_address(twin.getpeername())}"
        except OSError:
            return f"socket {_address(twin.getsockname())}"


def _address(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) >= 2 else str(address)


def describe_tasks(loop: asyncio.AbstractEventLoop) -> tuple[str, ...]:
    """Return a line for each pending task of the loop, oldest first: its name, and where it waits."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: getattr(task, "serial", sys.maxsize))
    return tuple(_describe_task(task) for task in tasks)


def _describe_task(task: asyncio.Task[Any]) -> str:
    coroutine: Any = task.get_coro()
    name = getattr(coroutine, "__qualname__", repr(coroutine))
    stack = task.get_stack(limit=1)
    where = f" at {Path(stack[-1].f_code.co_filename).name}:{stack[-1].f_lineno}" if stack else ""
    return f"{task.get_name()}: {name}{where}"
