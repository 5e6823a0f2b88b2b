"""The accounts of an executor: what it accepted, what started, and how each task ended. Nothing ends but here.

Every accepted task ends in exactly one state, and the counts close at every instant::

    accepted = waiting + running + done + failed + cancelled + expired + dropped

A task returns (:meth:`Accounts.done`), raises (:meth:`Accounts.raised`, which may try it again), or never starts
(:meth:`Accounts.end`). Whom that concerns is its *owner*: its handle, its place in a batch (``batches.BatchItem``), or
:class:`CallOwner` for what has neither. A failure stays its task's own: it goes to the owner, and from there to whoever asks, or
to the loop's exception handler.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, Final, Protocol

from ratelimited_executor._kernel.buckets import name_of
from ratelimited_executor._kernel.choice import used_there
from ratelimited_executor._kernel.fields import AccountFields
from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.traced import TracedCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.queue import TaskQueue

__all__ = ["Accounts", "CallOwner", "TaskOwner"]

_DONE: Final = TaskState.DONE  # members of an enum are slow to look up, and this is the path of every end


class TaskOwner(Protocol):
    """The receiver of a task's end."""

    def _end_done(self, result: Any) -> None:
        """Record that it has returned."""
        ...

    def _end(self, state: TaskState, outcome: Any) -> None:
        """Record that it has ended in another way: with what it raised, or with the message of its cancellation."""
        ...


class Accounts(AccountFields):
    """The accounts of one executor.

    Args:
        name: of the executor, for reports of failures.
        loop: whose exception handler gets them.
        queue: where its tasks wait.
        max_concurrency: how many may run at once; None for no limit. An attribute as well.

    Attributes:
        name: as above.
        running: the asyncio tasks of coroutines that run, by a number of their own.
        holding: handles of permits that somebody holds, and which asyncio task that is.
        feeders: asyncio tasks of ours that will bring more tasks: they draw items of an iterator, or keys of a cycle.
        accepted_count: tasks taken in so far.
        started_count: tasks that have started.
        counts: tasks that have ended, by state.
        is_inside: True if a plain function, or the first step of a coroutine, runs at this moment.
        calls: the owner of calls that have neither a handle nor a batch.
        is_changed: True if something has changed since the last decision on what starts, which no longer holds then.
        settle: brings the counts up to date, which may be behind while many tasks start at a stretch.
        detach: ends such a stretch after the call that runs: others may take its tasks from then on.
        try_again: is asked whether what has failed waits again, by owner, error and original context.
        on_task_end: told of each owner whose task has ended, and how, where keys have limits or somebody observes.
        on_free: told when a permit that was held is released, and its place is free.
        on_end: told whenever a task has ended, while somebody waits for the end of all.
        on_room: told of the same, while somebody waits for room.
        on_accepted: told how many tasks have been taken in, while somebody observes.
        on_cancelled: told how many tasks without a handle of their own were cancelled before their start, likewise.
        on_retried: told of the owner of an attempt that has failed and is followed by another, while somebody observes.
        started_at: loop time of the latest start, while somebody observes; None else.
    """

    __slots__ = (
        "_loop", "_on_call_cancelled", "_on_key_end", "_on_observed_end", "_queue", "detach", "feeders", "name",
        "on_accepted", "on_cancelled", "on_free", "on_retried", "settle", "started_at", "try_again",
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
        self.is_changed = False
        self.calls = CallOwner(name, loop)
        self.settle: Callable[[], None] = _nothing
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
        self.started_at: float | None = None
        self._on_key_end: Callable[[Any, TaskState], None] | None = None
        self._on_observed_end: Callable[[Any, TaskState], None] | None = None

    def accept(self, count: int = 1) -> None:
        """Count tasks that are taken in, and tell who observes."""
        self.accepted_count += count
        if self.on_accepted is not None:
            self.on_accepted(count)

    # Ends.

    def done(self, owner: TaskOwner, result: Any) -> None:
        """End a task that has returned: :meth:`end` for nearly every task."""
        self.counts[_DONE] += 1
        if self.on_task_end is not None:
            self.on_task_end(owner, _DONE)
        owner._end_done(result)
        if self.on_end is not None:
            self.on_end()

    def raised(self, owner: TaskOwner, error: BaseException, origin: contextvars.Context | None) -> None:
        """End a task that has raised, unless it is retried; an error that ends the program is recorded and raised on.

        Args:
            owner: whom it concerns.
            error: what it raised.
            origin: the variables that the task was scheduled with, should it be retried.
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
        """End a task in another state than done; one that never started, too.

        Args:
            owner: whom it concerns.
            state: a final state.
            outcome: what it raised, or the message of its cancellation.
        """
        self.counts[state] += 1
        if self.on_task_end is not None:
            self.on_task_end(owner, state)
        owner._end(state, outcome)
        self.progress()

    def release(self, record: Any, state: TaskState, outcome: Any) -> None:
        """End a permit that somebody held."""
        self.holding.pop(record, None)
        self.end(record, state, outcome)
        self.on_free()

    def note_cancelled(self, count: int) -> None:
        """Count tasks that were cancelled before their start, and that nobody asks after."""
        self.counts[TaskState.CANCELLED] += count
        if self.on_cancelled is not None and count:
            self.on_cancelled(count)
        self.progress()

    def feeder_done(self, feeder: asyncio.Task[Any]) -> None:
        """Record that a task of ours brings no more tasks."""
        self.feeders.discard(feeder)
        self.progress()

    def progress(self) -> None:
        """Notify those who wait for the end, or for room, of a change."""
        if self.on_end is not None:
            self.on_end()
        if self.on_room is not None:
            self.on_room()

    # Who is told.

    def tell_keys(self, ended: Callable[[Any, TaskState], None]) -> None:
        """Notify the limits of keys of each end."""
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
        """Set the function that is notified of each cancelled callback, replacing the previous one."""
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

    def count(self, state: TaskState) -> int:
        """Count the tasks that ended in a state."""
        self.settle()
        count = self.counts[state]
        return count + self._queue.cancelled_count if state is TaskState.CANCELLED else count

    def has_place(self) -> bool:
        """Return True if a place to run in is free."""
        return self.max_concurrency is None or len(self.running) + len(self.holding) < self.max_concurrency

    def running_count(self) -> int:
        """Count the tasks that run."""
        return len(self.running) + len(self.holding) + self.is_inside

    def waiting_count(self) -> int:
        """Count the tasks that wait: O(1)."""
        self.settle()
        ended = sum(self.counts.values()) + self._queue.cancelled_count
        return self.accepted_count - ended - self.running_count()


@used_there
class CallOwner:
    """The owner of calls without a handle that could tell: their failures are reported.

    Args:
        name: of the executor.
        loop: whose exception handler is told.
        started_at: loop time at which the one call has started that this is for; None if it is for all.
    """

    key = None  # of calls that were started under the limits of keys: none was

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, started_at: float | None = None) -> None:
        self._name = name
        self._loop = loop
        self.started_at = started_at

    def marked(self, started_at: float) -> CallOwner:
        """Return an owner for the one call that starts now."""
        return CallOwner(self._name, self._loop, started_at)

    def of(self, call: Any, args: tuple[Any, ...] | None = None) -> CallOwner:
        """Return the owner of one call that has failed, whose report names it.

        Args:
            call: the callback, or the coroutine that it has returned.
            args: its arguments; None of a coroutine.
        """
        return _FailedCall(self._name, self._loop, self.started_at, call, args)

    def _end_done(self, result: Any) -> None:
        """Forget what was returned."""

    def _end(self, state: TaskState, outcome: Any) -> None:
        """Report a failure."""
        if state is TaskState.FAILED:
            self._report({"message": f"exception in a call of the executor {self._name}", "exception": outcome})

    def _report(self, context: dict[str, Any]) -> None:
        self._loop.call_exception_handler(context)


class _FailedCall(CallOwner):
    """The owner of one call: its failure is reported as asyncio reports one, with callback and handle."""

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

    def _report(self, context: dict[str, Any]) -> None:
        call: Any = self._call
        traceback = None
        if isinstance(call, TracedCall):
            call, traceback = call.func, call.source_traceback
        if self._args is None:
            context["message"] = f"exception in the coroutine {name_of(call)} of the executor {self._name}"
        else:
            handle: Any = asyncio.Handle(call, self._args, self._loop, contextvars.Context())
            handle._source_traceback = traceback  # noqa: SLF001  # else it would say that an executor has started it
            context["message"] = f"exception in the callback {name_of(call)} of the executor {self._name}"
            context["handle"] = handle
            if traceback is not None:
                context["source_traceback"] = traceback
        super()._report(context)


def _nothing() -> None:
    """Do nothing."""


def _never(owner: Any, error: BaseException, origin: Any) -> bool:  # noqa: ARG001  # the shape of Accounts.try_again
    """Try nothing again."""
    return False
