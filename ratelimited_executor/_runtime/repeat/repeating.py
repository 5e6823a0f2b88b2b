"""Tasks that run again and again: at a fixed rate, with a fixed delay, or by a cron expression.

Each occurrence is a separate task, scheduled when the previous one has ended (or started, if overlap is allowed), so
that runs do not pile up while the executor is paused or behind.
"""

from __future__ import annotations

import asyncio
import contextvars
from functools import partial
from typing import TYPE_CHECKING, Any

from ratelimited_executor._core.queue.records import StandIn
from ratelimited_executor._core.repeat.repeating import LastRun, OnError
from ratelimited_executor._kernel.records import TaskClass
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.life.closing import check_loop
from ratelimited_executor._runtime.task.coroutines import cancel_guarded
from ratelimited_executor._runtime.task.handles import TaskHandle
from ratelimited_executor._runtime.task.intake import add_wall
from ratelimited_executor._runtime.task.launch import ThreadCall

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ratelimited_executor._core.queue.records import Options
    from ratelimited_executor._runtime.repeat.schedules import NextDue
    from ratelimited_executor._runtime.task.intake import Intake
    from ratelimited_executor._runtime.task.launch import Threads

__all__ = ["RepeatingHandle"]


class RepeatingHandle:
    """A repeating task: count its runs, await its end, cancel it.

    ``await handle`` ends when ``max_runs`` runs have ended; it raises the exception of a run with ``OnError.STOP``, and
    ``CancelledError`` when the repetition was cancelled or its executor closed.
    """

    def __init__(
        self,
        engine: Intake,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        next_due: NextDue,
        make_options: Callable[[], Options],
        context: contextvars.Context | None,
        name: str,
        on_error: OnError,
        max_runs: int | None,
        may_overlap: bool,
        threads: Threads,
        on_end: Callable[[RepeatingHandle], None],
    ) -> None:
        self._name = name
        self._engine = engine
        # None after the end
        self._call: Any = call
        self._args: Any = args
        self._run: Any = StandIn(self._start, call, args)
        self._next_due: Any = next_due
        self._make_options: Any = make_options
        self._context = context
        self._on_error = on_error
        self._max_runs = max_runs
        self._may_overlap = may_overlap
        self._threads = threads
        self._callbacks_context = contextvars.Context()  # the context of our own callbacks: without variables
        self._on_end = on_end
        self._run_count = 0  # runs that have started
        self._open: set[TaskHandle[Any]] = set()  # occurrences that wait or run
        self._waiting: TaskHandle[Any] | None = None
        self._in_thread = False  # True if the function runs in a worker thread
        self._is_over = False  # no more occurrences will be placed
        self._is_paused = False
        self._owed: Callable[[], None] | None = None  # places the occurrence that the pause has kept from being placed
        self._end: asyncio.Future[None] = engine.loop.create_future()
        self._place(None)

    # Inspection.

    @property
    def name(self) -> str:
        """The name given when the repeating task was scheduled, or that of its function."""
        return self._name

    @property
    def run_count(self) -> int:
        """The number of runs that have started."""
        return self._run_count

    @property
    def next_due(self) -> float | None:
        """The due time of the next run in epoch seconds; None during a run, while paused, and after the end."""
        waiting = self._waiting
        return None if waiting is None else waiting.due

    @property
    def is_paused(self) -> bool:
        """True if :meth:`pause` is in force; False once the repetition has ended."""
        return self._is_paused and not self.done()

    def done(self) -> bool:
        """True if the repetition has ended, and so has its last run."""
        return self._end.done()

    def cancelled(self) -> bool:
        """True if the repetition was cancelled."""
        return self._end.cancelled()

    def cancel(self, *, running: bool = False) -> bool:
        """End the repetition: no new run starts.

        Args:
            running: True if a run in progress is cancelled as well; otherwise it continues to its end.

        Returns:
            False if it had already ended.
        """
        if not self._end.cancel():  # an exception counts as retrieved then
            return False
        self._is_over = True
        self._forget()
        for handle in list(self._open):
            if running or handle.state is TaskState.WAITING:
                cancel_guarded(self._engine.loop, handle)
        self._finish()
        return True

    def pause(self) -> bool:
        """Start no run until :meth:`resume`; a run in progress continues. Does nothing if it is paused already.

        A run that waits is taken back: no task waits for this repetition meanwhile.

        Returns:
            False if the repetition had already ended.

        Raises:
            WrongLoopError: from another thread or event loop.
        """
        check_loop(self._engine.accounts.name, self._engine.loop)
        if self._end.done():
            return False
        self._is_paused = True
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._open.discard(waiting)
            waiting.remove_done_callback(self._ended)
            waiting.cancel()
            self._owed = partial(self._place, None, is_again=True)
        return True

    def resume(self) -> bool:
        """Continue after :meth:`pause`; due times that have passed meanwhile count as missed, see :class:`MissedTick`.

        With a fixed delay nothing is missed: a run whose due time has passed is due now.

        Returns:
            False if the repetition had already ended.

        Raises:
            WrongLoopError: from another thread or event loop.
        """
        check_loop(self._engine.accounts.name, self._engine.loop)
        if self._end.done():
            return False
        self._is_paused = False
        owed, self._owed = self._owed, None
        if owed is not None and not self._is_over:
            owed()
        return True

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.shield(self._end).__await__()

    def __repr__(self) -> str:
        state = (
            "cancelled" if self.cancelled() else "ended" if self.done() else "paused" if self._is_paused else "active"
        )
        return f"<RepeatingHandle {self.name} {state} runs={self._run_count}>"

    # Scheduling.

    def _place(self, run: LastRun | None, *, is_again: bool = False) -> None:
        """Schedule the occurrence after ``run``, if there is one; the latest one if it was taken back."""
        if self._is_paused and self._run_count != self._max_runs:
            self._owed = partial(self._place, run)
            return
        engine = self._engine
        now = engine.now()
        following = None if self._run_count == self._max_runs else self._next_due(run, now, is_again=is_again)
        if following is None:
            self._is_over = True
            self._finish()
            return
        due, wall_due = following
        options = self._make_options()
        self._in_thread, options.in_thread = (
            options.in_thread,
            False,
        )  # the function runs in a thread, our wrapper on the loop
        options.wall = wall_due
        if options.expires is not None:
            options.deadline = due + options.expires
        handle: TaskHandle[Any] = TaskHandle(engine, self._run, (), due, TaskClass.REPEATING, self._context, options)
        handle.add_done_callback(self._ended, context=self._callbacks_context)
        self._open.add(handle)
        self._waiting = handle
        if wall_due is not None and due >= engine.queue.interval_end:
            add_wall(engine, handle, wall_due)
        else:
            engine.add(handle)

    def _start(self) -> Any:
        """Begin a run, on the loop's thread, and schedule the next one if it may overlap."""
        self._run_count += 1
        self._waiting = None
        if self._may_overlap and not self._is_over:
            now = self._engine.monotonic()
            self._place(LastRun(now, now))
        if self._in_thread:
            return ThreadCall(self._call, self._args, contextvars.copy_context(), self._threads)
        return self._call(*self._args)

    def _ended(self, handle: TaskHandle[Any]) -> None:
        self._open.discard(handle)
        was_waiting = self._waiting is handle
        if was_waiting:
            self._waiting = None
        if handle.state is TaskState.FAILED:
            self._failed(handle)
        elif was_waiting and handle.state is TaskState.CANCELLED:
            self.cancel()  # its executor is closing
        if self._is_over:
            self._finish()
        elif not self._may_overlap or was_waiting:
            now = self._engine.monotonic()
            self._place(LastRun(now if handle._started is None else handle._started, now))

    def _failed(self, handle: TaskHandle[Any]) -> None:
        error = handle.exception()
        assert error is not None
        if self._on_error is OnError.STOP:
            self._is_over = True
            if self._waiting is not None:
                self._waiting.cancel()
            if not self._end.done():
                self._end.set_exception(error)
                self._forget()
        else:
            handle._callbacks.report(f"exception in a run of the repeating task {self.name}")  # noqa: SLF001  # a task of ours

    def _finish(self) -> None:
        """End the repetition with its last run, and drop what the user passed: the handle may be kept."""
        if self._open:
            return
        self._call = self._args = self._run = self._context = self._next_due = self._make_options = None
        if not self._end.done():
            self._end.set_result(None)
            self._forget()

    def _forget(self) -> None:
        self._on_end(self)
