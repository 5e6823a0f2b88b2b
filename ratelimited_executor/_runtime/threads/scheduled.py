"""An executor for programs without asyncio: a ``concurrent.futures.Executor`` that starts calls at their due times.

Every rule is that of the ``RateLimitedExecutor`` inside, which runs on the loop of a :class:`LoopThread`::

    a thread                        the loop's thread                       a worker thread
    schedule(fn, ...)    ------->   executor.schedule(...) checks the
                                    arguments, and accepts the task
        future           <-------
                                    starts it at its due time, under
                                    the limits                   ------->   fn(...)
    future.result()      <-------   the end of the task          <-------   its result, or its exception

So this module decides three things only: where a function runs, when its future counts as running, and how the
executor ends. A call is accepted on the loop in the order in which threads asked, so that no call comes after the
closing. Callbacks of futures may block, and frameworks refuse to run on the thread of an event loop: they are called in
threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import logging
import os
import threading
from collections.abc import AsyncIterable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from ratelimited_executor._core.queue.records import StandIn
from ratelimited_executor._forks import check_process
from ratelimited_executor._kernel.buckets import name_of
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.arguments import callable_of, flag_of
from ratelimited_executor._runtime.faces.checks import threads_of
from ratelimited_executor._runtime.life.closing import GRACE_SECONDS
from ratelimited_executor._runtime.life.executor import ExecutorManager
from ratelimited_executor._runtime.log import LOGGER
from ratelimited_executor._runtime.task.batches import BatchHandle
from ratelimited_executor._runtime.task.handles import TaskHandle
from ratelimited_executor._runtime.task.launch import ThreadCall, plain_result, prepare_threads
from ratelimited_executor._runtime.threads.blocking import BlockingLimiter, BlockingManager, slots_within
from ratelimited_executor._runtime.threads.futures import ExitOfCallError, LoopFuture, complete, end_of
from ratelimited_executor._runtime.threads.loop_thread import LoopThread
from ratelimited_executor.exceptions import ExecutorNotStartedError, ExecutorStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Mapping
    from datetime import datetime, tzinfo
    from types import TracebackType

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.permits.rates import Rate
    from ratelimited_executor._core.repeat.repeating import MissedTick, OnError
    from ratelimited_executor._core.repeat.retries import Retry
    from ratelimited_executor._runtime.insight.insight import Explanation, Statistics
    from ratelimited_executor._runtime.life.executor import RateLimitedExecutor
    from ratelimited_executor._runtime.repeat.repeating import RepeatingHandle
    from ratelimited_executor._runtime.task.batches import BatchSummary
    from ratelimited_executor._runtime.threads.blocking import BlockingSlots
    from ratelimited_executor.abc import Fleet, Peers
    from ratelimited_executor.typing import BatchOptions, CostLike, RatesLike

__all__ = ["ScheduledExecutor", "ScheduledFuture"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_LONG_EXIT_SECONDS: Final = 1.0  # an exit that waits longer says so
_OVER: Final = ("CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED")  # states of concurrent.futures


class SharedOptions(TypedDict, total=False):
    """The keyword arguments of every call: those of the asyncio executor without ``in_thread=``."""

    priority: float
    expires: DurationLike | None
    run_timeout: DurationLike | None
    name: str | None
    key: Hashable
    cost: CostLike


class CallOptions(SharedOptions, total=False):
    """The keyword arguments of ``schedule``."""

    delay: DurationLike | None
    at: datetime | float | None
    context: contextvars.Context | None
    retry: Retry | Any
    deadline: DurationLike | None
    slots: BlockingSlots | Sequence[BlockingSlots] | None


class RepeatOptions(SharedOptions, total=False):
    """The keyword arguments of repeating calls."""

    initial_delay: DurationLike
    missed: MissedTick
    on_error: OnError
    max_runs: int | None
    allow_overlap: bool


class ScheduledFuture(LoopFuture[T]):
    """The future of a call, a batch or a repetition of a :class:`ScheduledExecutor`.

    It is a ``concurrent.futures.Future``, for ``wait``, ``as_completed`` and ``asyncio.wrap_future`` as well.

    Attributes:
        handle: the handle of the asyncio executor, to look at from any thread: its ``state``, ``due``, ``started_at``,
            ``next_due``, ``summary`` and so on. Its methods are called by ``executor.call(future.handle.pause)``. None before
            the call is accepted, which ``submit`` does not wait for.
    """

    handle: TaskHandle[Any] | BatchHandle[Any] | RepeatingHandle | None = None

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, call_back: Callable[[Any], None]) -> None:
        super().__init__(0)
        self._name = name
        self._process = os.getpid()
        self._loop = loop
        self._call_back: Callable[[Any], None] | None = call_back  # None after the end: it keeps the executor alive
        self._gates: list[threading.Lock] = []  # each opened once, at the end

    def result(self, timeout: float | None = None) -> T:
        """Return the result, once there is one; see ``concurrent.futures.Future.result``.

        Raises:
            TimeoutError: if it has not ended within ``timeout`` seconds; the text has its name, and whether it runs.
            RuntimeError: on the thread of the event loop, which would wait for itself; or in a fork.
        """
        self._wait("result", timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception, once the call has ended; see ``concurrent.futures.Future.exception``."""
        self._wait("exception", timeout)
        return super().exception(0)

    def cancel(self) -> bool:
        """Cancel a call that waits, a running coroutine, what waits of a batch, or a repetition.

        Returns:
            False if it has ended, or is a function that has started.

        Raises:
            RuntimeError: in a fork, unless it has ended: the call is that of the parent.
        """
        if self._state not in _OVER:
            check_process(self._name, self._process)
        cancelled = super().cancel()
        self._open_gates()
        return cancelled

    def set_result(self, result: T) -> None:
        """See ``concurrent.futures.Future.set_result``."""
        super().set_result(result)
        self._open_gates()

    def set_exception(self, exception: BaseException | None) -> None:
        """See ``concurrent.futures.Future.set_exception``."""
        super().set_exception(exception)
        self._open_gates()

    def _wait(self, method: str, timeout: float | None) -> None:
        """Wait for the end at a bare lock, where an interrupt leaves nothing locked that the loop needs: see ``Reply``."""
        if self._state in _OVER:
            return
        check_process(self._name, self._process)
        if asyncio._get_running_loop() is self._loop:
            raise RuntimeError(
                f"{method}() on the thread of the event loop would wait for itself: await asyncio.wrap_future(future)"
            )
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        if self._state not in _OVER:  # else nobody opens it any more
            gate.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        with contextlib.suppress(ValueError):
            self._gates.remove(gate)
        if self._state not in _OVER:
            raise TimeoutError(self._unended_text(timeout or 0.0))

    def _unended_text(self, seconds: float) -> str:
        """Say that the call has not ended in time, which one it is, and whether it runs."""
        handle = self.handle
        if handle is None:
            return f"a call of {self._name} has not ended within {seconds:g} s: it has not been accepted yet"
        text = f"{handle.name!r} of {self._name} has not ended within {seconds:g} s"
        if isinstance(handle, TaskHandle) and handle.state is TaskState.WAITING:
            return f"{text}: it has not started, explain(future) tells why"
        return f"{text}: it is running" if isinstance(handle, TaskHandle) else text

    def _open_gates(self) -> None:
        if self._state in _OVER:
            while self._gates:
                with contextlib.suppress(IndexError):  # one that has waited long enough has removed it
                    self._gates.pop().release()

    def _invoke_callbacks(self) -> None:
        """Call the callbacks, not on the loop's thread. Private there, but the same since Python 3.2."""
        call_back, invoke = self._call_back, super()._invoke_callbacks  # type: ignore[misc]  # typeshed has no private names
        self._call_back = None
        if call_back is not None and self._done_callbacks and asyncio._get_running_loop() is self._loop:  # type: ignore[attr-defined]  # as above
            call_back(invoke)
        else:
            invoke()


class ScheduledExecutor(concurrent.futures.Executor):
    """Starts functions in worker threads at or after their due time, under limits: for programs without asyncio.

    Functions run in worker threads, coroutine functions on the executor's event loop. That runs in a thread of its own,
    which starts at the first use, or with ``with``; so an executor that is created before a process forks can be used in all
    forks.

    Args:
        name: its name, different from that of every other executor of its manager; appears in logs and errors.
        loop: an asyncio event loop that runs in another thread already, to be used instead of an own one.
        peers: share the limits with other processes, as for :class:`RateLimitedExecutor`.
        manager: a :class:`BlockingManager`, for several executors on one loop, for its slots and for its other settings.
        options: those of :class:`RateLimitedExecutor`, such as ``rate=``, ``policy=``, ``max_threads=`` (40). Where that one
            has no limit, ``max_concurrency`` is the number of threads here, so that a call starts when a thread is free, the
            most important first. Set it if you pass a ``thread_pool=``, or if many coroutine functions run at once.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is out of range, or the name is in use.

    >>> with ScheduledExecutor("mail", rate="100/s") as executor:
    ...     future = executor.schedule(str.upper, "sent", delay=0.1)
    ...     print(future.result())
    SENT
    """

    def __init__(
        self,
        name: str,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        peers: Peers | Fleet | None = None,
        manager: BlockingManager | None = None,
        **options: Any,
    ) -> None:
        count, pool = threads_of(options.get("max_threads"), options.get("thread_pool"))
        if pool is None:
            options.setdefault("max_concurrency", count)
        prepare_threads()  # here, where nobody waits for the loop, and before a fork
        self._owns_thread = manager is None
        if manager is None:
            shown = f"ScheduledExecutor {name!r}"
            self._thread = LoopThread(ExecutorManager(peers=peers), shown, loop=loop, ending="shutdown()")
        elif not isinstance(manager, BlockingManager):
            raise TypeError(f"manager must be a BlockingManager, got {manager!r}")
        elif peers is not None or loop is not None:
            raise TypeError("peers= and loop= exclude manager=: they are settings of the manager")
        else:
            self._thread = manager._thread  # noqa: SLF001  # they are one face
        self._executor: RateLimitedExecutor = self._thread.configure(
            partial(self._thread.manager.executor, name, **options)
        )
        self._lock = threading.Lock()
        self._is_shut_down = False
        self._working: set[int] = set()  # the threads that run a call or a callback
        self._futures: set[ScheduledFuture[Any]] = set()  # of accepted calls that have not ended; for the loop alone
        self._emptied: asyncio.Future[None] | None = None
        self._thread.add(self)

    # One call.

    @overload
    def submit(self, fn: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, **kwargs: Any) -> ScheduledFuture[T]: ...
    @overload
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> ScheduledFuture[T]: ...
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScheduledFuture[Any]:
        """Run ``fn(*args, **kwargs)`` as soon as a permit and a thread are available; does not wait, also on an event loop.

        Raises:
            TypeError: if ``fn`` is not callable.
            ExecutorStoppedError: after ``shutdown``; it is a RuntimeError.
        """
        callable_of("fn", fn)
        loop = self._thread.start()
        future: ScheduledFuture[Any] = ScheduledFuture(self._thread.name, loop, self._call_back)
        shown = partial(fn, **kwargs) if kwargs else fn
        add = partial(self._add_call, self._executor.submit, shown, args, {})
        try:
            with self._lock:  # what is asked for before the closing begins is accepted
                if self._is_shut_down:
                    raise ExecutorStoppedError(repr(self))
                loop.call_soon_threadsafe(self._place_or_fail, future, add)
        except RuntimeError:  # or an error has ended the loop, or it was not ours
            raise ExecutorStoppedError(repr(self)) from None
        return future

    @overload
    def schedule(
        self, fn: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts, **options: Unpack[CallOptions]
    ) -> ScheduledFuture[T]: ...
    @overload
    def schedule(self, fn: Callable[[*Ts], T], *args: *Ts, **options: Unpack[CallOptions]) -> ScheduledFuture[T]: ...
    def schedule(  # type: ignore[misc]  # mypy does not match the keys of a TypedDict with the names behind *args
        self, fn: Callable[..., Any], *args: Any, **options: Unpack[CallOptions]
    ) -> ScheduledFuture[Any]:
        """Run ``fn(*args)`` at or after its due time, when a permit and a thread are available.

        Args:
            fn: a function, which runs in a worker thread, or a coroutine function, which runs on the event loop.
            args: its positional arguments; for keyword arguments use ``functools.partial``.
            options: those of ``RateLimitedExecutor.schedule``: ``delay=`` or ``at=``, ``priority=`` (a larger one is more
                important), ``expires=``, ``run_timeout=`` and so on. ``slots=`` takes pools of the same ``BlockingManager``.

        Raises:
            TypeError: if ``fn`` is not callable, or an argument has a wrong type or an unknown name.
            ValueError: if a time is NaN, infinite, negative or naive, or a cost could never be available.
            BacklogFullError: if ``max_pending`` tasks wait, and none is dropped.
            ExecutorStoppedError: after ``shutdown``.
            RuntimeError: in a thread that runs another event loop, which it would block; or in a fork.
        """
        given: dict[str, Any] = {**options}
        if given.get("slots") is not None:
            given["slots"] = slots_within(given["slots"])
        return self._accept(partial(self._add_call, self._executor.schedule, fn, args, given))

    # Many calls.

    def schedule_many(
        self, fn: Callable[[Any], Any], items: Iterable[Any] | AsyncIterable[Any], **options: Unpack[BatchOptions]
    ) -> ScheduledFuture[BatchSummary]:
        """Run ``fn(item)`` for every item, as one batch; the future has its :class:`BatchSummary`.

        Args:
            fn: a function, which runs in worker threads, or a coroutine function, of one argument.
            items: a sequence is referenced, not copied: do not change it. An iterator is read here, to its end.
            options: those of ``RateLimitedExecutor.schedule_many``: ``over=``, ``delays=``, ``results=`` and so on.

        Raises:
            TypeError: if ``fn`` is not callable, ``items`` cannot be iterated, or an argument has a wrong type.
            ValueError: if a time is NaN, infinite, negative or naive, a cost is out of range, or counts do not agree.
            BacklogFullError: if the items would not fit ``max_pending``.
            ExecutorStoppedError: after ``shutdown``.
        """
        callable_of("fn", fn)
        if isinstance(items, Iterable) and not isinstance(items, (Sequence, AsyncIterable)):
            items = tuple(items)  # on the loop's thread, an iterator that blocks would hold up all calls
        given: dict[str, Any] = {**options, "name": _named(fn, options)}

        def add(_: ScheduledFuture[Any]) -> BatchHandle[Any]:
            start = partial(_on_loop, fn) if is_coroutine_function(fn) else partial(self._in_thread, fn)
            return self._executor.schedule_many(start, items, **given)

        return self._accept(add)

    # Again and again.

    def schedule_at_fixed_rate(
        self, fn: Callable[[*Ts], object], *args: *Ts, period: DurationLike, **options: Unpack[RepeatOptions]
    ) -> ScheduledFuture[None]:
        """Run ``fn(*args)`` every ``period`` seconds, in phase with the first run, until the future is cancelled.

        Args:
            fn: as for :meth:`schedule`.
            args: its positional arguments.
            period: seconds from one due time to the next, > 0.
            options: those of ``RateLimitedExecutor.schedule_at_fixed_rate``, without ``in_thread=``.
        """
        return self._repeat(self._executor.schedule_at_fixed_rate, fn, args, {"period": period, **options})

    def schedule_with_fixed_delay(
        self, fn: Callable[[*Ts], object], *args: *Ts, delay: DurationLike, **options: Unpack[RepeatOptions]
    ) -> ScheduledFuture[None]:
        """Run ``fn(*args)`` again and again, due ``delay`` seconds after the end of the run before.

        Args:
            fn: as for :meth:`schedule`.
            args: its positional arguments.
            delay: seconds from the end of a run to the due time of the next, >= 0.
            options: those of ``RateLimitedExecutor.schedule_with_fixed_delay``, without ``in_thread=``.
        """
        return self._repeat(self._executor.schedule_with_fixed_delay, fn, args, {"delay": delay, **options})

    def schedule_cron(
        self,
        expression: str,
        fn: Callable[[*Ts], object],
        *args: *Ts,
        tz: str | tzinfo | None = None,
        **options: Unpack[RepeatOptions],
    ) -> ScheduledFuture[None]:
        """Run ``fn(*args)`` at the times of a cron expression, by the wall clock.

        Args:
            expression: five fields, such as ``"*/5 * * * *"``, or a shorthand such as ``@daily``.
            fn: as for :meth:`schedule`.
            args: its positional arguments.
            tz: the time zone of the expression: a name such as ``Europe/London`` or a ``tzinfo``; UTC if None.
            options: those of ``RateLimitedExecutor.schedule_cron``, without ``in_thread=``.

        Raises:
            ImportError: if the extra ``cron`` is not installed.
            ValueError: if the expression is not a valid cron expression.
        """
        return self._repeat(partial(self._executor.schedule_cron, expression), fn, args, {"tz": tz, **options})

    # Settings, insight, and everything else.

    @property
    def name(self) -> str:
        """The name of the executor."""
        return self._executor.name

    @property
    def rate(self) -> Rate:
        """Permits over time; settable at any time."""
        return self._executor.rate

    @rate.setter
    def rate(self, rate: RatesLike) -> None:
        self._thread.configure(partial(setattr, self._executor, "rate", rate))

    @property
    def limiter(self) -> BlockingLimiter:
        """Permits of this executor, for threads: ``with executor.limiter.permit():``."""
        return BlockingLimiter(self._thread, self._executor)

    @property
    def on_loop(self) -> RateLimitedExecutor:
        """The asyncio executor that runs the calls, for coroutine functions, :meth:`call`, metrics and the live page."""
        return self._executor

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function on the event loop now, under no limit, and return its result; that of a coroutine is awaited.

        It is for methods of :attr:`on_loop` and of handles, which must be called there: ``executor.call(future.handle.pause)``.

        Raises:
            TypeError: if ``fn`` is not callable.
            ExecutorStoppedError: once the executor is closed.
            RuntimeError: in a thread that runs an event loop; or in a fork.
        """
        callable_of("fn", fn)

        def make() -> Any:
            outcome = fn(*args, **kwargs)
            return self._thread.crossings.start(lambda: outcome) if asyncio.iscoroutine(outcome) else outcome

        return self._thread.call(make)

    def statistics(self) -> Statistics:
        """Count the tasks at this instant; in any thread.

        Raises:
            RuntimeError: in a fork, where the counts of the parent would stand still.
        """
        self._thread.check_process()
        try:
            return self._executor.statistics()
        except ExecutorNotStartedError:
            self._thread.start()
            return self._executor.statistics()

    def backlog_seconds(self, key: Hashable = None) -> float:
        """Return the seconds of work in due tasks; like an executor's ``backlog_seconds``."""
        seconds: float = self._thread.call(partial(self._executor.backlog_seconds, key))
        return seconds

    def explain(self, future: ScheduledFuture[Any]) -> Explanation:
        """Return what holds a call, how many are ahead of it, and its expected start.

        Raises:
            ValueError: if the call is not of this executor.
        """
        handle = getattr(future, "handle", None)
        if not isinstance(future, ScheduledFuture) or not isinstance(handle, (TaskHandle, type(None))):
            raise ValueError(f"future must be that of one call of {self.name}, got {future!r}")  # noqa: TRY004  # as explain() of handles
        explanation: Explanation = self._thread.call(lambda: self._executor.explain(future.handle))  # type: ignore[arg-type]  # accepted by now
        return explanation

    def pause(self) -> None:
        """Start nothing until :meth:`resume`; no permit comes up meanwhile."""
        self._thread.configure(self._executor.pause)

    def resume(self) -> None:
        """Continue after :meth:`pause`."""
        self._thread.configure(self._executor.resume)

    def penalize(self, retry_after: DurationLike | None, *, key: Hashable = None) -> None:
        """Start nothing for a time, because the remote service asked for it; like an executor's ``penalize``."""
        self._thread.call(partial(self._executor.penalize, retry_after, key=key))

    # The end.

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept nothing more; repetitions stop, and accepted calls run at their due times, up to ``drain_timeout``.

        Args:
            wait: True to wait until all have ended. An interrupt ends the wait, not the closing; but then the interpreter's
                exit does not wait again: it cancels the calls that have not started.
            cancel_futures: True to cancel the calls that have not started.

        Raises:
            RuntimeError: with ``wait``, in a call or a callback of this executor or on its event loop: it would wait for itself.
        """
        flag_of("wait", wait)
        flag_of("cancel_futures", cancel_futures)
        self._shut_down(wait, cancel=logging.INFO if cancel_futures else None)

    def _shut_down(self, wait: bool = True, *, cancel: int | None, is_exit: bool = False) -> None:
        """Shut down.

        Args:
            wait: as of :meth:`shutdown`.
            cancel: the level of the log line about the calls that are cancelled; None to let them run.
            is_exit: True at the interpreter's exit, which says what it waits for.
        """
        thread = self._thread
        if thread.is_inherited:
            return  # only the parent can end it
        if wait and (thread.is_own_thread or threading.get_ident() in self._working):
            raise RuntimeError("shutdown(wait=True) in a call of this executor would wait for itself: pass wait=False")
        with self._lock:
            self._is_shut_down = True
        if thread.state == "new":
            thread.remove(self)
            if self._owns_thread:
                thread.close()
            else:
                thread.configure(partial(self._executor.shutdown, wait=False))
        elif thread.is_open:
            end = partial(thread.crossings.start, partial(self._end, cancel=cancel, is_exit=is_exit))
            if not wait:
                thread.call_soon(end)
                return
            try:
                thread.wait_for(end)
            except (ExecutorStoppedError, concurrent.futures.CancelledError):
                pass  # another thread was faster, or an error has ended the loop
            except BaseException:
                self._note_interrupt()
                raise
            thread.remove(self)
        if wait and self._owns_thread:
            thread.close()

    def _note_interrupt(self) -> None:
        """Record that a wait for the end was interrupted, and log what that means for the calls."""
        self._thread.note_interrupt(self)
        with contextlib.suppress(ExecutorNotStartedError):
            if count := self._executor.statistics().waiting:
                message = "%s: interrupted while closing: %d waiting call(s) will be cancelled if the program ends before they start"
                LOGGER.warning(message, self.name, count)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shut down, and wait; after an exception, cancel the calls that have not started."""
        self._shut_down(cancel=None if error is None else logging.WARNING)

    def __repr__(self) -> str:
        state = "closed" if self._is_shut_down else self._thread.state
        return f"<ScheduledExecutor {self.name!r} {state} rate={self.rate}>"

    def _note_long_exit(self) -> None:
        """Log what the interpreter's exit waits for, and how to end it."""
        counts = self._executor.statistics()
        message = "%s: the exit of the program waits for %d waiting and %d running call(s); Ctrl-C ends it at once"
        LOGGER.warning(message, self.name, counts.waiting, counts.running)

    async def _end(self, *, cancel: int | None, is_exit: bool) -> None:
        """Close the executor, and then the thread if nobody else uses it; the arguments are those of the closing."""
        loop = asyncio.get_running_loop()
        note = loop.call_later(_LONG_EXIT_SECONDS, self._note_long_exit) if is_exit else None
        try:
            ended = self._executor.shutdown()
            if cancel is not None and (count := sum(map(_cancel_waiting, list(self._futures)))):
                LOGGER.log(cancel, "%s: closed with %d waiting task(s) cancelled", self.name, count)
            await ended
            if self._futures:  # the last tasks have ended, and will soon say so
                self._emptied = self._emptied or loop.create_future()
                await asyncio.wait([self._emptied], timeout=GRACE_SECONDS)
        finally:
            if note is not None:
                note.cancel()
            self._thread.remove(self)
            if self._owns_thread:
                self._thread.end()

    # Placing, on the loop.

    def _accept(self, add: Callable[[ScheduledFuture[Any]], Any]) -> ScheduledFuture[Any]:
        """Place a call, and return once it is accepted; raise what is wrong with it."""
        future: ScheduledFuture[Any] = ScheduledFuture(self._thread.name, self._thread.start(), self._call_back)
        if self._thread.is_own_thread:
            self._place(future, add)
            return future
        try:
            self._thread.call(partial(self._place, future, add))
        except BaseException:  # refused; or a signal handler has raised here, and nobody will have the future
            future.cancel()
            raise
        return future

    def _place_or_fail(self, future: ScheduledFuture[Any], add: Callable[[ScheduledFuture[Any]], Any]) -> None:
        try:
            self._place(future, add)
        except Exception as error:  # noqa: BLE001  # full: the owner of the future gets it
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _place(self, future: ScheduledFuture[Any], add: Callable[[ScheduledFuture[Any]], Any]) -> None:
        """Add a call to the executor, unless it was cancelled meanwhile."""
        if future.cancelled():
            future.notify_cancel()
            return
        handle: Any = add(future)
        future.handle = handle
        self._futures.add(future)
        future.on_cancel = partial(self._thread.call_soon, handle.cancel)
        end_of(asyncio.get_running_loop(), handle).add_done_callback(partial(self._ended, future))
        if future.cancelled():  # just now
            handle.cancel()

    def _ended(self, future: ScheduledFuture[Any], handle: Any) -> None:
        future.on_cancel = None
        complete(future, handle)
        self._futures.discard(future)
        if not self._futures and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _repeat(
        self, method: Callable[..., Any], fn: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> ScheduledFuture[None]:
        return self._accept(lambda _: self._add_call(method, fn, args, options, None))

    def _add_call(
        self,
        method: Callable[..., Any],
        fn: Any,
        args: tuple[Any, ...],
        options: dict[str, Any],
        future: ScheduledFuture[Any] | None,
    ) -> Any:
        """Add ``fn(*args)`` by a method of the asyncio executor; return its handle.

        Args:
            method: the method.
            fn: the function.
            args: its arguments.
            options: the options of the method.
            future: the future that counts as running once a thread begins the call; None for a repetition.
        """
        if "in_thread" in options:
            raise TypeError(
                "unknown argument in_thread=: functions run in worker threads, and those declared with async def on the event loop"
            )
        callable_of("fn", fn)
        is_async = is_coroutine_function(fn)
        run = partial(_on_loop, fn, *args) if is_async else partial(self._work, future, fn, *args)
        return method(StandIn(run, fn, args), **{**options, "name": _named(fn, options)}, in_thread=not is_async)

    # Running, in a thread.

    def _in_thread(self, fn: Callable[[Any], Any], item: Any) -> ThreadCall:
        """Return the call of an item of a batch, in a worker thread."""
        threads = self._executor._started().threads  # as its futures face is given them
        return ThreadCall(partial(self._work, None, fn), (item,), contextvars.copy_context(), threads)

    def _work(self, future: ScheduledFuture[Any] | None, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a worker thread."""
        # A further attempt finds the future running.
        if future is not None and not future.running() and not future.set_running_or_notify_cancel():
            raise concurrent.futures.CancelledError
        del future  # else a traceback keeps this frame, and so the future and its error
        thread = threading.get_ident()
        self._working.add(thread)
        try:
            return plain_result(fn, args)
        except (SystemExit, KeyboardInterrupt) as error:
            raise ExitOfCallError(error) from None
        finally:
            self._working.discard(thread)

    def _call_back(self, invoke: Callable[[], None]) -> None:
        """Call the callbacks of a future in a thread, or here if there are no threads any more."""
        try:
            asyncio.get_running_loop().run_in_executor(None, self._work, None, invoke)
        except RuntimeError:
            invoke()


async def _on_loop(fn: Callable[..., Any], *args: Any) -> Any:
    """Run a coroutine function; an exit ends its task, and not the loop of all."""
    try:
        return await fn(*args)
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitOfCallError(error) from None


def is_coroutine_function(fn: Any) -> bool:
    """True if a callable is known to return a coroutine: a coroutine function, or an object called as one."""
    while isinstance(fn, partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004  # its kind is asked for, not its presence


def _named(fn: Any, options: Mapping[str, Any]) -> Any:
    name = options.get("name")
    return name_of(fn) if name is None else name


def _cancel_waiting(future: ScheduledFuture[Any]) -> int:
    """Cancel a call that has not started, what waits of a batch, or a repetition; return the number of calls."""
    handle = future.handle
    if handle is None or (isinstance(handle, TaskHandle) and handle.state is not TaskState.WAITING):
        return 0
    future.cancel()
    count = handle.cancel()  # also if it waits for another attempt, where its future counts as running
    return count if isinstance(handle, (TaskHandle, BatchHandle)) else 0
