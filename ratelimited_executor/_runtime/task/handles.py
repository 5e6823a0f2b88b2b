"""The handles that schedule calls return, to inspect, await and cancel a task.

:class:`TaskHandle` is the task's record itself: there is no second object, and the result or exception is freed with
the last reference to the handle. It has the read side of ``asyncio.Future``, so that ``await``, ``asyncio.wait``,
``gather``, ``wait_for``, ``as_completed`` and ``shield`` work on it as on a future.

:class:`CallHandle` is the handle of the asyncio face: it refers to a place in a bucket's columns.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ratelimited_executor._core.queue.records import PERMITS, StandIn, TaskRecord
from ratelimited_executor._kernel.buckets import name_of
from ratelimited_executor._kernel.choice import two_bodies, used_there
from ratelimited_executor._kernel.states import FINAL_STATES, TRANSITIONS, TaskState
from ratelimited_executor._runtime.arguments import count_of, duration_of
from ratelimited_executor._runtime.task.failures import Failure
from ratelimited_executor._runtime.time.clock import next_tick
from ratelimited_executor.exceptions import IllegalTransitionError, WrongLoopError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._core.queue.records import Options
    from ratelimited_executor._kernel.buckets import Bucket
    from ratelimited_executor._kernel.records import TaskClass
    from ratelimited_executor._runtime.limits.limits import Limits
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.callbacks import DoneCallbacks
    from ratelimited_executor._runtime.task.pending import Pending

__all__ = ["CallHandle", "TaskHandle"]

T_co = TypeVar("T_co", covariant=True)
_RUNNING: Final = TaskState.RUNNING  # enum members are slow to look up, and every start passes here
_DONE: Final = TaskState.DONE


class TaskHost(Protocol):
    """The parts of its executor that a task uses."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        ...

    @property
    def queue(self) -> TaskQueue:
        """The queue in which it waits; its timeline converts loop times to times of day."""
        ...

    @property
    def accounts(self) -> Accounts:
        """The accounts, which know the holders of permits."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits, for corrections of the cost of its start."""
        ...

    @property
    def pending(self) -> Pending:
        """The part that removes it before its start."""
        ...

    @property
    def callbacks(self) -> DoneCallbacks:
        """The part that calls its done callbacks."""
        ...


@used_there
class TaskHandle(TaskRecord, Generic[T_co]):
    """A scheduled call: its state, its result, and the means to await and cancel it.

    Created by ``schedule``, ``submit`` and similar methods, not directly. As with ``asyncio.Task``, cancelling the
    awaiter cancels the call, waiting or running.
    """

    _engine: TaskHost

    __slots__ = ()  # the fields are those of Record; while the task runs, _place is its asyncio task

    def __init__(
        self,
        engine: TaskHost,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        due: float,
        rank: TaskClass,
        context: contextvars.Context | None,
        options: Options | None,
    ) -> None:
        self._engine = engine
        self._call = call
        self._outcome = args
        self._due = due
        self._class = rank
        self._context = context
        self._options = options
        self._state = TaskState.WAITING
        self._place = None
        self._callbacks = None

    # Looking.

    @property
    def name(self) -> str:
        """The name given when the task was scheduled, or that of its callable."""
        if self._options is not None and self._options.name is not None:
            return self._options.name
        return self._call if self._state in FINAL_STATES else name_of(self._call)

    @property
    def state(self) -> TaskState:
        """The state of the task."""
        return self._state

    @property
    def due(self) -> float:
        """The earliest start of the task, in epoch seconds."""
        if self._options is not None and self._options.wall is not None:
            return self._options.wall
        return self._engine.queue.timeline.to_epoch(self._due)

    @property
    def started_at(self) -> float | None:
        """Epoch seconds at which the task started, on the manager's timeline; None if it has not."""
        return None if self._started is None else self._engine.queue.timeline.to_epoch(self._started)

    @property
    def lateness(self) -> float | None:
        """Seconds from the due time to the start, >= 0; None if the task has not started."""
        return None if self._started is None else self._started - self._due

    def done(self) -> bool:
        """True if the task has ended, in any way."""
        return self._state in FINAL_STATES

    def cancelled(self) -> bool:
        """True if the task was cancelled, before its start or while it ran."""
        return self._state is TaskState.CANCELLED

    @two_bodies
    def result(self) -> T_co:
        """Return the result of the call.

        Raises:
            Exception: the exception of the call; ``TaskExpiredError`` if it expired before its start.
            asyncio.CancelledError: if it was cancelled.
            asyncio.InvalidStateError: if it has not ended.
        """
        if self.exception() is not None:
            kept = self._callbacks  # the failure; None if the task has expired or was dropped
            raise self._outcome.with_traceback(None) if kept is None else kept.again()
        result: T_co = self._outcome
        return result

    @two_bodies
    def exception(self) -> BaseException | None:
        """Return the exception of the call, None if it returned; raises like :meth:`result` otherwise."""
        state = self._state
        if state is TaskState.DONE:
            return None
        if state is TaskState.CANCELLED:
            raise self._make_cancelled_error()
        if state not in FINAL_STATES:
            raise asyncio.InvalidStateError(f"{self.name} is {state.value}")
        if self._callbacks is not None:
            self._callbacks.seen = True
        error: BaseException = self._outcome
        return error

    @property
    def _cancel_message(self) -> Any:
        """The message of the cancellation that ended the task; ``asyncio.gather`` reads it."""
        if self._state is not TaskState.CANCELLED:
            return None
        return _message_of(self._outcome) if isinstance(self._outcome, asyncio.CancelledError) else self._outcome

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        """Return the exception of a cancelled task; ``asyncio.gather`` calls it.

        The error of the call itself goes to the first caller, as in ``asyncio.Task``: its traceback holds the frames of the
        call. Others get the message.
        """
        error, message = self._outcome, self._cancel_message
        if isinstance(error, asyncio.CancelledError):
            self._outcome = message
            return error
        return _cancelled_error(message)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of the executor."""
        return self._engine.loop

    def __repr__(self) -> str:
        late = "" if self._started is None else f" lateness={self._started - self._due:.6f}"
        outcome = f" {self._outcome!r}" if self._state in (TaskState.DONE, TaskState.FAILED) else ""
        return f"<TaskHandle {self.name} {self._state.value} due={self.due:.6f}{late}{outcome}>"

    @property
    def _started(self) -> float | None:
        """Loop time of the start; None if it has not started."""
        return self._context if type(self._context) is float else None

    # Awaiting.

    @property
    def _asyncio_future_blocking(self) -> bool:
        """The attribute by which asyncio recognises a future; only ``await`` yields the object."""
        return True

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, is_blocking: bool) -> None:
        pass

    @two_bodies
    def add_done_callback(
        self, callback: Callable[[TaskHandle[T_co]], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Call ``callback(handle)`` soon after the task has ended, as ``asyncio.Future`` does."""
        is_own = context is not None
        if context is None:
            context = contextvars.copy_context()
        if self._state in FINAL_STATES:
            self._engine.callbacks.add(callback, self, context)
            return
        # A single callback without context variables, the usual case, is stored without further objects.
        if self._callbacks is None:
            self._callbacks = (
                (callback, context) if is_own or context or isinstance(callback, (tuple, list)) else callback
            )
        else:
            self._callbacks = [*self._entries(), (callback, context)]

    def remove_done_callback(self, callback: Callable[[TaskHandle[T_co]], object]) -> int:
        """Remove every instance of a callback, and return their number."""
        if self._state in FINAL_STATES or self._callbacks is None:
            return 0
        entries = self._entries()
        kept = [entry for entry in entries if entry[0] != callback]
        self._callbacks = kept or None
        return len(entries) - len(kept)

    def _entries(self) -> list[tuple[Any, contextvars.Context | None]]:
        """Return the callbacks with their contexts; None as the context of internal ones, called within the end."""
        callbacks = self._callbacks
        if callbacks is None:
            return []
        if type(callbacks) is list:
            return callbacks
        return [callbacks if type(callbacks) is tuple else (callbacks, contextvars.Context())]

    def _on_end(self, callback: Callable[[TaskHandle[Any]], object]) -> None:
        """Register an internal callback that is called within the end; it must neither raise nor run user code."""
        entry = callback, None
        self._callbacks = entry if self._callbacks is None else [*self._entries(), entry]

    def __await__(self) -> Generator[Any, None, T_co]:
        if self._state not in FINAL_STATES:
            if self._state is TaskState.RUNNING and self._is_own_task():
                raise RuntimeError(f"Task cannot await on itself: {self!r}")
            awaiter = _Awaiter(loop=self._engine.loop)
            awaiter.handle = self
            awaiter.messages = ()
            self._on_end(awaiter.end)
            yield from awaiter
        return self.result()

    def _is_own_task(self) -> bool:
        """True in the asyncio task that runs the call, or that holds the permit."""
        task = asyncio.current_task(self._engine.loop)
        return task is not None and (task is self._place or task is self._engine.accounts.holding.get(self))

    # Cancelling.

    @two_bodies
    def cancel(self, msg: object = None) -> bool:
        """Cancel the call: at once if it waits, otherwise by cancelling its running coroutine.

        If it has failed, its exception counts as retrieved, as with ``asyncio.Future``.

        Returns:
            False if it has ended, is a plain function that is running, or is a held permit; or if an observer is being
            notified of its start or its end.
        """
        if self._state is TaskState.WAITING:
            if self._place is None:
                return False
            self._engine.pending.cancel(self, msg)
            return True
        if self._state is TaskState.RUNNING and self._place is not None:
            cancelled: bool = self._place.cancel(msg)
            return cancelled
        if self._state is TaskState.FAILED:
            self._callbacks.seen = True
        return False

    # Costs.

    @property
    def attempts(self) -> int:
        """The number of starts so far: 1 once it has started, more if it failed and was retried."""
        attempts = None if self._options is None else self._options.attempts
        failed = 0 if attempts is None else attempts.count
        return failed + (self._started is not None and (not failed or self._state is not TaskState.WAITING))

    def settle(self, actual: int | Mapping[str, int]) -> None:
        """Correct the cost of the task's start, once it is known; may be called repeatedly.

        A surplus is available to others from now on, unless its time has passed; a deficit is paid before any other task
        starts.

        Args:
            actual: permits, >= 0; or a mapping from resource to amount; resources that it omits stay as reserved.

        Raises:
            TypeError: if ``actual`` is neither.
            ValueError: if an amount is negative, or the task was scheduled without a ``cost=`` that names the resource.
        """
        charge = None if self._options is None else self._options.charge
        amounts = dict(actual) if isinstance(actual, Mapping) else {PERMITS: actual}
        for resource, amount in amounts.items():
            count_of(f"actual[{resource!r}]" if isinstance(actual, Mapping) else "actual", amount)
            if charge is None or resource not in charge.needs:
                raise ValueError(
                    f"{self.name} was scheduled without a cost in {resource!r}: reserve one with cost=, a single permit as {{'permits': 1}}"
                )
        assert charge is not None or not amounts
        if charge is not None:
            self._engine.limits.settle(self, charge, {**charge.needs, **amounts})

    # For the engine.

    def _fn_of(self, position: int) -> Any:  # noqa: ARG002  # the signature of a source
        """Return the user's callable; None once the task has ended."""
        if self._state in FINAL_STATES:
            return None
        return self._call.func if type(self._call) is StandIn else self._call

    def _args_of(self, position: int) -> Any:  # noqa: ARG002  # the signature of a source
        """Return the arguments of the call; none once the task has ended."""
        if self._state in FINAL_STATES:
            return ()
        return self._call.args if type(self._call) is StandIn else self._outcome

    def _start(self, now: float) -> tuple[Any, Any]:
        """Enter the running state, at loop time ``now``; return the arguments and the context of the call."""
        if _RUNNING not in TRANSITIONS[self._state]:  # _move_to() inlined, here and in _end_done()
            self._move_to(_RUNNING)
        self._state = _RUNNING
        context, self._context = self._context, now
        return self._outcome, context

    def _wait_again(self, due: float, context: contextvars.Context | None) -> None:
        """Return to the waiting state, due at another loop time."""
        self._move_to(TaskState.WAITING)
        self._due = due
        self._context = context
        self._place = None
        options = self._options
        if options is not None and options.expires is not None:
            options.deadline = due + options.expires

    def _wait_anew(self, context: contextvars.Context | None) -> None:
        """Return to the waiting state, due as before: its start has lapsed."""
        self._move_to(TaskState.WAITING)
        self._context = context
        self._place = None

    def _move_to(self, state: TaskState) -> None:
        """Enter another state, if ``TRANSITIONS`` allows it."""
        if state not in TRANSITIONS[self._state]:
            raise IllegalTransitionError(f"{self.name}: {self._state.value} to {state.value}")
        self._state = state

    def _end(self, state: TaskState, outcome: Any) -> None:
        """Enter a final state, free what the call held, and call the callbacks."""
        name = name_of(self._call)
        self._move_to(state)
        self._call = name
        self._outcome = outcome
        self._place = None
        callbacks = self._callbacks
        self._callbacks = _Unseen(self._engine.loop, self.name, outcome) if state is TaskState.FAILED else None
        if type(self._context) is not float:
            self._context = None
        self._call_back(callbacks)

    @two_bodies
    def _end_done(self, result: Any) -> None:
        """End a task that returned: a fast path of :meth:`_end`."""
        if _DONE not in TRANSITIONS[self._state]:
            self._move_to(_DONE)
        self._state = _DONE
        call = self._call
        self._call = call.__qualname__ if type(call) is FunctionType else name_of(call)
        self._outcome = result
        self._place = None
        if self._callbacks is not None:
            self._ended()

    def _ended(self) -> None:
        """Call all callbacks."""
        callbacks, self._callbacks = self._callbacks, None
        self._call_back(callbacks)

    def _call_back(self, callbacks: Any) -> None:
        """Call the internal callbacks at once, and schedule the others; ``callbacks`` as in ``_callbacks``."""
        if callbacks is None:
            return
        if type(callbacks) is not tuple and type(callbacks) is not list:
            self._engine.callbacks.add(callbacks, self, None)
            return
        for callback, context in callbacks if type(callbacks) is list else (callbacks,):
            if context is None:
                callback(self)
            else:
                self._engine.callbacks.add(callback, self, context)


class _Awaiter(asyncio.Future[None]):
    """The future on which one awaiter of a handle waits: it is done when the handle is.

    Cancelling it cancels the call. The awaiter then receives the error with which the call ended or, if that has
    another source, an error with the message of this awaiter's own cancellation: anyio recognises the cancellation of
    its scope by the message. If the handle itself were awaited, all awaiters would share one message.
    """

    __slots__ = ("handle", "messages")

    # Set by TaskHandle.__await__: a constructor in Python would be half of its cost.
    handle: TaskHandle[Any]
    messages: tuple[Any, ...]  # of the cancellations of this awaiter, in order

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the call; if it cannot be cancelled, only this awaiter."""
        if self.done():
            return False
        self.messages += (msg,)
        return self.handle.cancel(msg) or super().cancel(msg)

    def end(self, handle: TaskHandle[Any]) -> None:
        """End because the handle has ended; after the pending callbacks of other handles, if they are many."""
        callbacks = handle._engine.callbacks  # noqa: SLF001  # same module
        if callbacks.is_crowded:
            callbacks.add(self.wake, handle, None)
        else:
            self.wake(handle)

    def wake(self, handle: TaskHandle[Any]) -> None:  # noqa: ARG002  # the signature of a callback
        """End, so that the awaiting task continues in the next loop iteration."""
        if not self.done():
            self.set_result(None)

    def result(self) -> None:
        """Raise if the task or this awaiter was cancelled; the awaiting task calls this once."""
        super().result()
        if self.handle._state is TaskState.CANCELLED:
            error = self.handle._make_cancelled_error()
            raise error if not self.messages or self._has_caused(error) else _cancelled_error(self.messages[-1])

    def _has_caused(self, error: BaseException | None) -> bool:
        """True if an error is a cancellation of this awaiter, or was raised instead of one."""
        while isinstance(error, asyncio.CancelledError):
            message = _message_of(error)
            if any(one is message for one in self.messages):
                return True
            error = error.__context__
        return False


def _message_of(error: asyncio.CancelledError) -> Any:
    return error.args[0] if error.args else None


def _cancelled_error(message: Any) -> asyncio.CancelledError:
    return asyncio.CancelledError(*(() if message is None else (message,)))


class _Unseen(Failure):
    """The failure of a task: reported to the loop's handler, once, if the handle of the task is dropped unread.

    It is created in the context in which the task has failed, and reported there: a handler may log context variables.
    """

    __slots__ = ("_context", "_loop", "_name", "seen")

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, error: BaseException) -> None:
        super().__init__(error)
        self._loop = loop
        self._name = name
        self._context = contextvars.copy_context()
        self.seen = False

    def report(self, message: str) -> None:
        """Report the failure to the loop's exception handler."""
        self._context.run(self._loop.call_exception_handler, {"message": message, "exception": self.error})

    def __del__(self) -> None:
        if not self.seen and not self._loop.is_closed():
            self.report(f"exception of the task {self._name} was never retrieved")


class CallHost(Protocol):
    """The parts of its executor that a callback uses."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        ...

    @property
    def accounts(self) -> Accounts:
        """The accounts, which know the executor's name."""
        ...

    @property
    def queue(self) -> TaskQueue:
        """The queue in which it waits."""
        ...

    @property
    def armed(self) -> float:
        """Loop time of the next run of the executor."""
        ...

    @property
    def monotonic(self) -> Callable[[], float]:
        """A function that returns the loop time."""
        ...

    def wake_for(self, due: float) -> None:
        """Run the executor no later than a task that is due at a loop time requires."""
        ...


@two_bodies
class CallHandle:
    """A scheduled callback of the asyncio face: the methods of ``asyncio.TimerHandle``, and :meth:`reschedule`."""

    __slots__ = ("_bucket", "_place", "_when")

    def __init__(self, bucket: Bucket, place: int, when: float) -> None:
        self._bucket: Bucket | None = bucket
        self._place = place
        self._when = when

    def cancel(self) -> None:
        """Cancel the callback; does nothing if it was already cancelled, or has run."""
        bucket = self._bucket
        if bucket is not None:
            self._bucket = None
            bucket.calendar.cancel_call(bucket, self._place)

    def reschedule(self, delay: DurationLike) -> bool:
        """Make the callback due ``delay`` seconds from now instead of its previous time; a negative delay means now.

        The call keeps its arguments and context variables. This costs a fraction of a cancellation and another
        ``call_later``. Among calls of equal due times it may keep its place.

        Returns:
            False if it was cancelled, has run, or is running; nothing is changed then.

        Raises:
            TypeError: if ``delay`` is not a number.
            ValueError: if ``delay`` is NaN or infinite.
            WrongLoopError: from another thread or event loop.
        """
        bucket = self._bucket
        if type(delay) is not float or not -math.inf < delay < math.inf:
            delay = duration_of("delay", delay)
        if bucket is None:
            return False
        calendar = bucket.calendar
        engine: CallHost = calendar.owner
        if asyncio._get_running_loop() is not engine.loop:
            if not engine.loop.is_closed():
                raise WrongLoopError(engine.accounts.name)
            return False
        queue = engine.queue
        if queue.is_halted:
            return False
        when = engine.monotonic() + delay
        if queue.timeline.loop_time is not None:
            when = next_tick(when)
        place = calendar.move_call(bucket, self._place, when)
        if place is None:
            return False
        self._bucket, self._place = place
        self._when = when
        if when < engine.armed:
            engine.wake_for(when)
        return True

    def cancelled(self) -> bool:
        """True if :meth:`cancel` was called."""
        return self._bucket is None

    def when(self) -> float:
        """Return the loop time at which the callback is due."""
        return self._when

    def get_context(self) -> contextvars.Context | None:
        """Return the context in which the callback will run; None if it was cancelled, has run, or is running."""
        return None if self._bucket is None else self._bucket.context_at(self._place, contextvars.Context())

    def __repr__(self) -> str:
        call = None if self._bucket is None else self._bucket.call_at(self._place)
        state = "cancelled " if self._bucket is None else "" if call is None else f"{name_of(call)} "
        return f"<CallHandle {state}when={self._when:.6f}>"
