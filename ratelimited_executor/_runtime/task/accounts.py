"""The accounts of an executor: tasks accepted, started and ended. Every task ends here, and only here.

Every accepted task ends in exactly one state, and the counts add up at every instant::

    accepted = waiting + running + done + failed + cancelled + expired + dropped

A task returns (:meth:`Accounts.done`), raises (:meth:`Accounts.raised`, which may retry it), or never starts
(:meth:`Accounts.end`). The end goes to the task's *owner*: its handle, its place in a batch (``batches.BatchItem``), or
a :class:`CallOwner` if it has neither. A failure affects no other task: the owner passes it to whoever awaits the
result, or to the loop's exception handler.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._kernel.admission import UNLIMITED
from ratelimited_executor._kernel.buckets import name_of
from ratelimited_executor._kernel.choice import used_there
from ratelimited_executor._kernel.fields import AccountFields
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.task.call_site import SitedCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.queue.queue import TaskQueue

__all__ = ["Accounts", "CallOwner", "TaskOwner"]

_DONE: Final = TaskState.DONE  # enum members are slow to look up, and every task end passes here
_FAILED: Final = TaskState.FAILED


class TaskOwner(Protocol):
    """The receiver of a task's end."""

    def _end_done(self, result: Any) -> None:
        """Record that the task returned."""
        ...

    def _end(self, state: TaskState, outcome: Any) -> None:
        """Record any other end, with the exception or the message of the cancellation."""
        ...


class Accounts(AccountFields):
    """The accounts of one executor.

    Args:
        name: the name of the executor, for reports of failures.
        loop: the event loop, whose exception handler gets the reports.
        queue: the queue of waiting tasks.
        max_concurrency: how many tasks may run at once; None for no limit. Also an attribute.

    Attributes:
        name: as above.
        running: the asyncio tasks of running coroutines, by their number.
        holding: the handles of held permits, with the asyncio task of each holder.
        feeders: internal asyncio tasks that will add more tasks, from the items of an iterator or the keys of a cycle.
        accepted_count: accepted tasks.
        started_count: tasks that have started.
        counts: tasks that have ended, by state.
        is_inside: True while a plain function, or the first step of a coroutine, runs.
        calls: the owner of calls that have neither a handle nor a batch.
        catch_up: updates the counts, which may lag while a stretch of tasks starts.
        detach: ends such a stretch after the running call, so that other code may take its tasks.
        try_again: called with owner, error and original context of a failed task; returns True if it will be retried.
        on_task_end: called with the owner and the state of each ended task; None without limits of keys and observers.
        on_free: called when a held permit is released, which frees its place.
        on_end: called at each end of a task; None unless somebody waits for the end of all.
        on_room: called at each end of a task; None unless somebody waits for room.
        on_accepted: called with the number of newly accepted tasks; None without observers.
        on_cancelled: called with the number of tasks without their own handle that were cancelled before their start;
            None without observers.
        on_retried: called with the owner of a failed attempt that is followed by another; None without observers.
        on_failed: called with the owner and the exception of each failed attempt, and the state of its task: waiting if
            another attempt follows, else failed; None without observers.
        started_at: loop time of the latest start; None without observers.
    """

    __slots__ = (
        "_loop", "_on_call_cancelled", "_on_key_end", "_on_observed_end", "_queue", "catch_up", "detach", "feeders", "name",
        "on_accepted", "on_cancelled", "on_failed", "on_free", "on_retried", "started_at", "try_again",
    )  # fmt: skip

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, queue: TaskQueue, *, max_concurrency: int | None = None
    ) -> None:
        self.name = name
        self.max_concurrency = max_concurrency
        self._loop = loop
        self._queue = queue
        self.running: dict[int, asyncio.Task[Any]] = {}
        self.holding: dict[Any, asyncio.Task[Any] | None] = {}
        self.feeders: set[asyncio.Task[Any]] = set()
        self.accepted_count = 0
        self.started_count = 0
        self.counts = dict.fromkeys(
            (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED, TaskState.DROPPED), 0
        )
        self.is_inside = False
        self.calls = CallOwner(name, loop)
        self.catch_up: Callable[[], None] = _nothing
        self.detach: Callable[[], None] = _nothing
        self.on_free: Callable[[], None] = _nothing
        self.try_again: Callable[[Any, BaseException, contextvars.Context | None], bool] = _never
        self.on_task_end = None
        self.on_end = None
        self.on_room = None
        self.on_accepted: Callable[[int], None] | None = None
        self.on_cancelled: Callable[[int], None] | None = None
        self._on_call_cancelled: Callable[[], None] | None = None
        self.on_retried: Callable[[Any], None] | None = None
        self.on_failed: Callable[[Any, BaseException, TaskState], None] | None = None
        self.started_at: float | None = None
        self._on_key_end: Callable[[Any, TaskState], None] | None = None
        self._on_observed_end: Callable[[Any, TaskState], None] | None = None

    def accept(self, count: int = 1) -> None:
        """Count accepted tasks, and notify observers."""
        self.accepted_count += count
        if self.on_accepted is not None:
            self.on_accepted(count)

    # Ends.

    def done(self, owner: TaskOwner, result: Any) -> None:
        """End a task that returned: a fast path of :meth:`end`."""
        self.counts[_DONE] += 1
        if self.on_task_end is not None:
            self.on_task_end(owner, _DONE)
        owner._end_done(result)
        if self.on_end is not None:
            self.on_end()

    def raised(self, owner: TaskOwner, error: BaseException, origin: contextvars.Context | None) -> None:
        """End a task that raised, unless it is retried; re-raise an error that ends the program.

        To be called in the context of the task, or a copy: reports of failures go to a handler that may read it.

        Args:
            owner: the owner of the task.
            error: the exception.
            origin: the context in which the task was scheduled, for a retry.
        """
        if isinstance(error, asyncio.CancelledError):
            self.end(owner, TaskState.CANCELLED, error)
            return
        if self.try_again(owner, error, origin):
            return
        self.end(owner, TaskState.FAILED, error)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error

    def end(self, owner: TaskOwner, state: TaskState, outcome: Any) -> None:
        """End a task in any state but done, even if it never started.

        Args:
            owner: the owner of the task.
            state: a final state.
            outcome: the exception, or the message of the cancellation.
        """
        self.counts[state] += 1
        try:
            if self.on_task_end is not None:
                self.on_task_end(owner, state)
            if self.on_failed is not None and state is _FAILED:
                self.on_failed(owner, outcome, state)
        finally:  # a listener may run code of the user, such as that of an exception
            owner._end(state, outcome)
            self.notify_waiters()

    def release(self, record: Any, state: TaskState, outcome: Any) -> None:
        """End a held permit."""
        self.holding.pop(record, None)
        self.end(record, state, outcome)
        self.on_free()

    def note_cancelled(self, count: int) -> None:
        """Count tasks without their own handle that were cancelled before their start."""
        self.counts[TaskState.CANCELLED] += count
        if self.on_cancelled is not None and count:
            self.on_cancelled(count)
        self.notify_waiters()

    def feeder_done(self, feeder: asyncio.Task[Any]) -> None:
        """Record that a feeder will add no more tasks."""
        self.feeders.discard(feeder)
        self.notify_waiters()

    def notify_waiters(self) -> None:
        """Notify waiters for the end of all tasks, or for room."""
        if self.on_end is not None:
            self.on_end()
        if self.on_room is not None:
            self.on_room()

    # Notification.

    def tell_keys(self, ended: Callable[[Any, TaskState], None]) -> None:
        """Notify the limits of keys of each end from now on."""
        self._on_key_end = ended
        self._join_ends()

    def tell_ends(self, ended: Callable[[Any, TaskState], None] | None) -> None:
        """Notify observers of each end except those of :meth:`tell_cancellations`; None without observers."""
        self._on_observed_end = ended
        self._join_ends()

    def tell_cancellations(self, cancelled: Callable[[int], None] | None) -> None:
        """Notify observers of cancelled tasks without their own handle; None without observers."""
        self.on_cancelled = cancelled
        self._join_cancellations()

    def tell_call_cancelled(self, cancelled: Callable[[], None]) -> None:
        """Set the function that is called at each cancelled callback, replacing the previous one."""
        self._on_call_cancelled = cancelled
        self._join_cancellations()

    def _join_cancellations(self) -> None:
        told, observers = self._on_call_cancelled, self.on_cancelled
        joined = told
        if observers is not None:

            def joined() -> None:
                observers(1)
                if told is not None:
                    told()

        self._queue.on_time.on_cancelled = self._queue.spread.on_cancelled = joined

    def _join_ends(self) -> None:
        keys, observers = self._on_key_end, self._on_observed_end
        if keys is None or observers is None:
            self.on_task_end = keys or observers
            return

        def ended(owner: Any, state: TaskState) -> None:
            keys(owner, state)
            observers(owner, state)

        self.on_task_end = ended

    # Counting.

    def recorded_start(self, now: float) -> float | None:
        """Return the start that a task records which starts now; with observers, what they have marked for its end."""
        return now if self._on_observed_end is None else self.started_at

    def count(self, state: TaskState, *, catches_up: bool = True) -> int:
        """Count the tasks that ended in a state; another thread must not catch up with the stretch that is being started."""
        if catches_up:
            self.catch_up()
        count = self.counts[state]
        return count + self._queue.cancelled_count if state is TaskState.CANCELLED else count

    def has_place(self) -> bool:
        """Return True while fewer than ``max_concurrency`` tasks run."""
        return self.max_concurrency is None or len(self.running) + len(self.holding) < self.max_concurrency

    def room(self) -> int:
        """Return how many tasks may start in succession: all, one or, while ``max_concurrency`` tasks run, none."""
        return UNLIMITED if self.max_concurrency is None else int(self.has_place())

    def running_count(self) -> int:
        """Count the running tasks."""
        return len(self.running) + len(self.holding) + self.is_inside

    def waiting_count(self, *, catches_up: bool = True) -> int:
        """Count the waiting tasks, in O(1); another thread must not catch up with the stretch that is being started."""
        if catches_up:
            self.catch_up()
        ended = sum(self.counts.values()) + self._queue.cancelled_count
        return self.accepted_count - ended - self.running_count()


@used_there
class CallOwner:
    """The owner of calls without a handle or a batch: reports their failures.

    Args:
        name: the name of the executor.
        loop: the event loop, whose exception handler gets the reports.
        started_at: loop time of the start of its only call; None for the owner of all calls.
    """

    key = None  # such calls never start under the limits of keys
    name: str | None = None  # the owner of all calls names none

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, started_at: float | None = None) -> None:
        self._name = name
        self._loop = loop
        self.started_at = started_at

    def marked(self, started_at: float) -> CallOwner:
        """Return an owner for a single call that starts now."""
        return CallOwner(self._name, self._loop, started_at)

    def of(self, call: Any, args: tuple[Any, ...] | None = None) -> CallOwner:
        """Return an owner for one failed call, which the report names.

        Args:
            call: the callback, or the coroutine that it returned.
            args: its arguments; None for a coroutine.
        """
        return _FailedCall(self._name, self._loop, self.started_at, call, args)

    def _end_done(self, result: Any) -> None:
        """Ignore the result."""

    def _end(self, state: TaskState, outcome: Any) -> None:
        """Report a failure."""
        if state is TaskState.FAILED:
            self._report({"message": f"exception in a call of the executor {self._name}", "exception": outcome})

    def _report(self, context: dict[str, Any]) -> None:
        self._loop.call_exception_handler(context)


class _FailedCall(CallOwner):
    """The owner of one failed call: reports as asyncio does, with callback and handle, in the context of the call."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        started_at: float | None,
        call: Any,
        args: tuple[Any, ...] | None,
    ) -> None:
        super().__init__(name, loop, started_at)
        self._call = call
        self._args = args
        self.name = name_of(call.func if isinstance(call, SitedCall) else call)

    def _report(self, context: dict[str, Any]) -> None:
        call: Any = self._call
        traceback = None
        if isinstance(call, SitedCall):
            call, traceback = call.func, call.source_traceback
        if self._args is None:
            context["message"] = f"exception in the coroutine {self.name} of the executor {self._name}"
        else:
            handle: Any = asyncio.Handle(call, self._args, self._loop, contextvars.copy_context())
            handle._source_traceback = traceback  # noqa: SLF001  # the default would name the executor as its source
            context["message"] = f"exception in the callback {self.name} of the executor {self._name}"
            context["handle"] = handle
            if traceback is not None:
                context["source_traceback"] = traceback
        super()._report(context)


def _nothing() -> None:
    """Do nothing."""


def _never(owner: Any, error: BaseException, origin: Any) -> bool:  # noqa: ARG001  # signature of Accounts.try_again
    """Return False: nothing is retried."""
    return False
