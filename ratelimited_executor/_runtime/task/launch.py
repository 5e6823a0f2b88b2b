"""Calls that are more than a function on the loop: in a worker thread, or for a limited time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from contextvars import Context
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ratelimited_executor._kernel.buckets import name_of
from ratelimited_executor._runtime.task.deferred import LapsedStartError
from ratelimited_executor.exceptions import RunTimeoutError

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Callable, Generator

    from anyio import CapacityLimiter

    from ratelimited_executor._runtime.task.deferred import DeferredStart

T = TypeVar("T")

_LAPSED: Final[Any] = object()  # the result of a call that did not begin

__all__ = [
    "ThreadCall",
    "Threads",
    "await_it",
    "context_of_thread",
    "is_awaitable",
    "limited",
    "plain_result",
    "prepare_threads",
    "run_timeout_error",
    "with_timeout",
]


class Threads:
    """The thread pool for calls in threads: our own threads, or the user's pool.

    Args:
        count: the maximum number of our own threads.
        pool: runs the calls instead, as many at once as it has workers; its own limit is then the only one.
        are_there: True if the loop has threads; otherwise a call for a thread fails.

    Attributes:
        are_there: as above.
    """

    __slots__ = ("_count", "_limiter", "_pool", "are_there")

    def __init__(self, count: int, pool: concurrent.futures.Executor | None = None, *, are_there: bool = True) -> None:
        self._count = count
        self._limiter: CapacityLimiter | None = None
        self._pool = pool
        self.are_there = are_there

    @property
    def limiter(self) -> CapacityLimiter:
        """Bounds our own threads."""
        if self._limiter is None:
            from anyio import CapacityLimiter  # noqa: PLC0415  # it loads anyio's backend; most programs have no threads

            self._limiter = CapacityLimiter(self._count)
        return self._limiter

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call in a thread; if the caller is cancelled, the call runs on."""
        if self._pool is None:
            import anyio.to_thread  # noqa: PLC0415  # as above

            return await anyio.to_thread.run_sync(call, limiter=self.limiter, abandon_on_cancel=True)
        return await asyncio.get_running_loop().run_in_executor(self._pool, _without_stop, call)


def _without_stop(call: Callable[[], T]) -> T:
    """Make a call, and convert its ``StopIteration``, which a future cannot carry."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError("the call raised StopIteration") from error


@cache
def prepare_threads() -> None:
    """Load what a call in a thread needs, when the first is scheduled: at its start, this would hold up others for 20 ms."""
    import anyio.to_thread  # noqa: PLC0415  # most programs have no threads

    with contextlib.suppress(ImportError):  # then the first start loads it; the public ways need a running task
        import anyio._backends._asyncio  # noqa: F401, PLC0415  # as above


class ThreadCall:
    """A call of a function in a worker thread, in its own context, to be awaited once.

    A thread cannot be stopped: if the task is cancelled or times out, it is left to finish, and its result is dropped.

    Args:
        call: the function; a plain one.
        args: its arguments.
        context: the context that it runs in, not a copy.
        threads: the thread pool.

    Attributes:
        context: as above.
        start: takes effect when a thread begins the call; None if no limit counts effects.
    """

    __slots__ = ("_args", "_call", "_threads", "_turn", "context", "start")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...], context: Context, threads: Threads) -> None:
        self._call = call
        self._args = args
        self.context = context
        self._threads = threads
        self._turn = Lock()  # acquired once: by the thread that begins, or by us when the call is no longer wanted
        self.start: DeferredStart | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        return self.run().__await__()

    async def run(self) -> Any:
        """Call the function, and return its result.

        Raises:
            LapsedStartError: if its permits had lapsed when a thread was free.
        """
        start = self.start
        try:
            if not self._threads.are_there:
                raise RuntimeError(
                    f"{name_of(self._call)} cannot run in a thread, because a simulation has none: simulate it as a job"
                )
            result = await self._threads.run(partial(self.context.run, self._call_plain))
            if result is _LAPSED:
                assert start is not None
                raise LapsedStartError(start)
            return result
        finally:
            if self._turn.acquire(blocking=False) and start is not None:
                start.drop()

    def again(self) -> ThreadCall:
        """Return another call of the function, for one that has not begun."""
        return ThreadCall(self._call, self._args, self.context, self._threads)

    def _call_plain(self) -> Any:
        """Call a function that must not be async: in a worker thread nothing would run its coroutine."""
        if not self._turn.acquire(blocking=False):
            return None  # it was cancelled while it waited for a thread
        if self.start is not None and not self.start.begin():
            return _LAPSED
        return plain_result(self._call, self._args, "leave in_thread= out, or pass")


def plain_result(call: Callable[..., Any], args: tuple[Any, ...], remedy: str = "pass") -> Any:
    """Call a function in a worker thread; refuse a coroutine, which nothing would run there."""
    result = call(*args)
    if isinstance(result, Coroutine):
        result.close()
        raise TypeError(
            f"{name_of(call)} is async and cannot run in a worker thread: {remedy} a function that is declared with async def"
        )
    return result


def context_of_thread(context: Context | None, *, is_own: bool) -> Context:
    """Return the context of a call in a thread: a copy, because others may use the original now, or its own."""
    if context is None:
        return Context()
    return context if is_own else context.copy()


_attributes_of: Final = type.__dict__["__dict__"].__get__
_mro_of: Final = type.__dict__["__mro__"].__get__


def is_awaitable(result: Any) -> bool:
    """True if the result of a call can be awaited, by the rules of ``await``, whatever a metaclass claims."""
    return any("__await__" in _attributes_of(kind) for kind in _mro_of(type(result)))


def limited(coroutine: Coroutine[Any, Any, Any], record: Any, options: Any, *, now: float) -> Coroutine[Any, Any, Any]:
    """Run a coroutine under the time limit of its task and the deadline of all attempts, if it has these.

    Args:
        coroutine: the coroutine of an attempt.
        record: the record of the task.
        options: its options.
        now: loop time.
    """
    seconds, attempts = options.run_timeout, options.attempts
    if attempts is not None and attempts.within is not None:
        left = max(0.0, attempts.until(record._due) - now)
        if seconds is None or seconds > left:
            return with_timeout(coroutine, left, record.name, deadline=attempts.within)
    return coroutine if seconds is None else with_timeout(coroutine, seconds, record.name)


async def with_timeout(
    coroutine: Coroutine[Any, Any, Any], seconds: float, name: str, *, deadline: float | None = None
) -> Any:
    """Run a coroutine for at most ``seconds``.

    Args:
        coroutine: the coroutine to run.
        seconds: how long it may run.
        name: the name of its task, for the error.
        deadline: the deadline that the limit comes from, as the caller gave it; None if it is a ``run_timeout``.

    Raises:
        RunTimeoutError: if it has not finished by then; it is cancelled first.
    """
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            return await coroutine
    except TimeoutError as error:
        if scope.expired():
            raise RunTimeoutError(name, run_timeout=seconds, deadline=deadline) from error
        raise


async def await_it(awaitable: Any) -> Any:
    """Await an awaitable that is not a coroutine."""
    return await awaitable


def run_timeout_error(call: Any) -> TypeError:
    """Return the error of a time limit on a plain function."""
    return TypeError(
        f"run_timeout cannot stop {name_of(call)}, a plain function that runs on the event loop: "
        "pass in_thread=True, or an async function"
    )
