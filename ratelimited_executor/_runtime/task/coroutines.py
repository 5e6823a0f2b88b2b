"""Runs coroutines as asyncio tasks, and records the end of each in the loop iteration in which it ends.

Theory. A done callback would cost half as much as the task itself (0.8 of 1.6 microseconds), and a loop iteration. So
each coroutine is awaited by an internal one, the watch, which sees its end (0.4). The compiled body uses an object
without a frame.

The first step is taken in the loop iteration of the start, on every interpreter: a start takes effect at once, and a
coroutine that does not suspend costs no iteration. From 3.12 on, asyncio offers this (``eager_start``). Before that,
the task is created with a stand-in for the loop, which captures the first step; then the task becomes a future of the
real loop, and the step is called. If the step must come later (a task factory, or a start within a step of another
task), the watch takes a step of its own before the task is created, so that it also sees a cancellation before the
task's first step.
"""

from __future__ import annotations

import asyncio
import sys
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import CoroutineFields
from ratelimited_executor._kernel.records import Record
from ratelimited_executor._runtime.task.accounts import CallOwner
from ratelimited_executor._runtime.task.deferred import DeferredStart, LapsedStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.contexts import SharedContexts
    from ratelimited_executor._runtime.time.clock import Moments

__all__ = ["Coroutines", "cancel_guarded", "watched"]

_IS_EAGER: Final = sys.version_info >= (3, 12)


class Coroutines(CoroutineFields):
    """The running coroutines of one executor.

    Args:
        loop: the event loop.
        accounts: records their ends.
        queue: records when starts take effect.
        contexts: the contexts, whose scratch must be replaced if a coroutine continues in it.
        moments: the clock and the timeline.
        on_free: called when a coroutine has ended, which frees its place; also an attribute.

    Attributes:
        running: the asyncio task of each coroutine, by its number.
        kinds: types known to be coroutines, without a further check.
        is_starting: True while a coroutine is in its first step.
    """

    loop: asyncio.AbstractEventLoop
    running: dict[int, asyncio.Task[Any]]
    kinds: frozenset[type] = frozenset({CoroutineType})

    __slots__ = ()

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        accounts: Accounts,
        queue: TaskQueue,
        contexts: SharedContexts,
        moments: Moments,
        on_free: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.accounts = accounts
        self._queue = queue
        self._contexts = contexts
        self._moments = moments
        self.on_free = on_free
        self._number = 0
        self.is_starting = False
        self.running = accounts.running

    @property
    def last_number(self) -> int:
        """The number of the coroutine that has started last: numbers rise from start to start."""
        return self._number

    @two_bodies
    def start(
        self, owner: Any, coroutine: Coroutine[Any, Any, Any], context: Context, origin: Context | None = None
    ) -> None:
        """Run a coroutine as a task; its first step runs at once.

        Args:
            owner: the owner of the task.
            coroutine: the coroutine to run.
            context: the context to run it in, itself and not a copy.
            origin: the context in which the task was scheduled, for a retry.
        """
        self._contexts.give_away(context)
        number = self._number = self._number + 1
        loop = self.loop
        factory = loop.get_task_factory()
        # A step of one task cannot run within a step of another; asyncio before 3.12 leaves this to the caller.
        is_late = factory is not None or (not _IS_EAGER and asyncio.current_task(loop) is not None)
        deferred: DeferredStart | None = None
        if (
            is_late and self._queue.counts_effects
        ):  # else the start has taken effect when this returns, as for a plain function
            deferred = self._defer(owner, coroutine, context)
        watch: Any = self._watch(number, owner, coroutine, origin, deferred, is_late)
        if is_late:
            watch.send(None)
        name = watch.__qualname__ = getattr(coroutine, "__qualname__", "coroutine")
        begin: Callable[..., Any]
        arguments: tuple[Any, ...]
        if is_late or _IS_EAGER:
            task: Any = _UNBORN
            begin, arguments = self._make_task, (watch, context, name, factory)
        else:
            birth: Any = _Birth()
            task = asyncio.Task(watch, loop=birth, context=context, name=name)
            asyncio.Future.__init__(task, loop=loop)
            begin, arguments = context.run, (birth.step,)
        self.running[number] = task
        if isinstance(owner, Record):
            owner._place = task
        self.is_starting = True
        try:
            made = begin(*arguments)
        except BaseException as error:
            if number not in self.running:
                raise  # the first step exits the program
            watch.close()  # a task factory raised, or the context is already entered
            coroutine.close()
            del self.running[number]
            self.accounts.raised(owner, error, origin)
        else:
            if task is _UNBORN and number in self.running:
                self.running[number] = made
                if isinstance(owner, Record):
                    owner._place = made
        finally:
            self.is_starting = False
            del owner  # as in _watch(), whose frame may refer to this one

    def _defer(self, owner: Any, coroutine: Coroutine[Any, Any, Any], context: Context) -> DeferredStart:
        """Defer the effect of the start of a coroutine to its first step."""
        effects: list[Any] = []
        self._queue.defer(effects)
        options = owner._options if isinstance(owner, Record) else None
        return DeferredStart(effects, self._queue.receipts(options), self._moments.ns, (coroutine, context))

    def _make_task(
        self, watch: Coroutine[Any, Any, None], context: Context, name: str, factory: Any
    ) -> asyncio.Task[None]:
        """Create a task by the user's factory, else an eager one if the interpreter supports it."""
        if factory is not None:
            return self.loop.create_task(watch, context=context, name=name)
        if _IS_EAGER:
            task: asyncio.Task[None] = _EagerTask(watch, loop=self.loop, context=context, name=name, eager_start=True)
            return task
        return asyncio.Task(watch, loop=self.loop, context=context, name=name)

    async def _watch(  # noqa: PLR0912  # each branch is a different end; an awaiting helper would cost a frame a step
        self,
        number: int,
        owner: Any,
        coroutine: Coroutine[Any, Any, Any],
        origin: Context | None,
        deferred: DeferredStart | None,
        is_late: bool,
    ) -> Any:
        """Await a coroutine, and record when it starts and how it ends; return its result, None if it failed."""
        is_begun = not is_late
        try:
            try:
                if is_late:
                    await _BEGUN
            except BaseException:
                if deferred is not None:
                    deferred.drop()
                raise
            is_begun = True
            if deferred is not None and not deferred.begin():
                if _may_wait_anew(owner):
                    raise LapsedStartError(deferred)
                deferred.void()
            if self.running[number] is _UNBORN:
                self.running[number] = starting = asyncio.current_task()  # type: ignore[assignment]  # never None
                if isinstance(owner, Record):
                    owner._place = starting
            result = await coroutine
        except BaseException as error:
            if isinstance(error, GeneratorExit) and (self.loop.is_closed() or not is_begun):
                raise  # the loop is closed, or start() records the end
            del self.running[number]
            self.is_starting = False
            if not is_begun:
                coroutine.close()  # else Python warns that it was never awaited
            if isinstance(owner, CallOwner):
                owner = owner.of(coroutine)
            self.accounts.raised(owner, error, origin)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            task = self.running.pop(number)
            self.is_starting = False
            if getattr(task, "_must_cancel", False):  # cancelled in its last step: asyncio ends it as cancelled
                self.accounts.raised(owner, task._make_cancelled_error(), origin)  # type: ignore[attr-defined]  # asyncio's own
            else:
                self.accounts.done(owner, result)
            return result
        finally:
            del owner  # else a traceback keeps this frame, which keeps the handle, so the error goes unreported
            self.on_free()


def watched(task: Any) -> tuple[Any, Any]:
    """Return the owner of a running task, and its coroutine, by its value in ``running``; None for what is not known."""
    watch = task.get_coro() if isinstance(task, asyncio.Task) else None
    if type(watch) is not CoroutineType:  # the compiled body's, which has the attributes of the coroutine
        return getattr(watch, "owner", None), watch
    frame = watch.cr_frame
    variables: Any = {} if frame is None else frame.f_locals
    owner = variables.get("owner")
    if type(variables) is dict:
        variables.clear()  # before Python 3.13, the frame keeps this copy of its variables, and so the owner
    return owner, watch.cr_await


def _may_wait_anew(owner: Any) -> bool:
    """True if a task whose start has lapsed can return to the queue with its coroutine: without slots, with a handle."""
    return isinstance(owner, Record) and (owner._options is None or owner._options.line is None)


class _Unborn:
    """A placeholder for a task that is being created: it has not run, and cannot be cancelled."""

    def cancel(self, message: object = None) -> bool:  # noqa: ARG002  # as of a task
        """Return False."""
        return False


class _Birth:
    """A stand-in for the loop while a task is created, before 3.12: keeps its first step instead of delaying it."""

    __slots__ = ("step",)

    get_debug: Any = bool  # False; the loop itself is asked afterwards

    def call_soon(self, step: Callable[[], None], *, context: Context) -> None:  # noqa: ARG002  # as of a loop
        """Keep the first step."""
        self.step = step


class _Once(list[None]):
    """A reusable awaitable that suspends once, without a Python frame."""

    __await__: Any = list.__iter__  # an iterator suffices, as nothing is sent


_UNBORN: Final[Any] = _Unborn()
_BEGUN: Final = _Once([None])
_EagerTask: Final[Any] = asyncio.Task  # untyped: type checkers for 3.11 do not know eager_start


def cancel_guarded(loop: asyncio.AbstractEventLoop, task: Any) -> None:
    """Cancel a task or handle; an exception of ``cancel()`` goes to the loop's exception handler.

    It may come from a user's awaitable that the task waits for, or be a RecursionError if tasks wait for each other.
    """
    try:
        task.cancel()
    except Exception as error:  # noqa: BLE001  # whatever it is, the other tasks must still be cancelled
        loop.call_exception_handler({"message": f"cannot cancel {task!r}", "exception": error})
