"""Runs coroutines as asyncio tasks, and notes how each ends in the turn in which it does.

Theory. A done callback would cost half of what the task costs (0.8 of 1.6 microseconds), and a turn of the loop. So each
coroutine is awaited by one of ours, which sees its end (0.4). In the compiled body an object without a frame does so.

The first step is taken in the turn of the start, on every interpreter: a start takes effect at once, and a coroutine that does
not suspend costs no turn of the loop. From 3.12 on asyncio does so when asked. Before that a stand-in for the loop is given to
the new task, which has its first step called by it; then the task is made a future of the loop itself. Where the step must
come later (a task factory, or a start within a step of another task), ours has taken a step of its own before the task is
made, so that it also sees a cancellation that comes before the task's first step.
"""

from __future__ import annotations

import asyncio
import sys
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._kernel.choice import two_bodies
from ratelimited_executor._kernel.fields import CoroutineFields
from ratelimited_executor._kernel.records import Record
from ratelimited_executor._runtime.accounts import CallOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

    from ratelimited_executor._core.queue import TaskQueue
    from ratelimited_executor._runtime.accounts import Accounts
    from ratelimited_executor._runtime.clock import Moments
    from ratelimited_executor._runtime.contexts import SharedContexts

__all__ = ["Coroutines", "cancel_guarded"]

_IS_EAGER: Final = sys.version_info >= (3, 12)


class Coroutines(CoroutineFields):
    """The coroutines of one executor that run.

    Args:
        loop: what they run on.
        accounts: what is told of their ends.
        queue: which wants to know when starts take effect.
        contexts: whose scratch a coroutine may continue in.
        moments: the time.
        on_free: called when one has ended, and its place is free; an attribute as well.

    Attributes:
        running: the task of each, by a number of its own.
        kinds: types of coroutines that are known without a question.
        is_starting: True if one is in its first step at this moment.
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

    @two_bodies
    def start(
        self, owner: Any, coroutine: Coroutine[Any, Any, Any], context: Context, origin: Context | None = None
    ) -> None:
        """Run a coroutine as a task, to its first suspension at once.

        Args:
            owner: whom its end concerns.
            coroutine: what to run.
            context: what to run it in, itself and not a copy.
            origin: the variables that the task was scheduled with, should it be retried.
        """
        self._contexts.give_away(context)
        number = self._number = self._number + 1
        loop = self.loop
        factory = loop.get_task_factory()
        # A step of one task cannot lie within a step of another, which before 3.12 asyncio leaves to us.
        is_late = factory is not None or (not _IS_EAGER and asyncio.current_task(loop) is not None)
        effects: list[list[int]] | None = None
        if (
            is_late and self._queue.counts_effects
        ):  # else it has taken effect when this returns, as a plain function has
            self._queue.defer(effects := [])
        watch: Any = self._watch(number, owner, coroutine, origin, effects, is_late)
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
                raise  # it exits the program, in its first step
            watch.close()  # a task factory refuses, or the context is entered already
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
            del owner  # as in _watch(), whose frame may lead to this one

    def _make_task(
        self, watch: Coroutine[Any, Any, None], context: Context, name: str, factory: Any
    ) -> asyncio.Task[None]:
        """Make a task by the factory of the user, or one that takes its first step at once if the interpreter can."""
        if factory is not None:
            return self.loop.create_task(watch, context=context, name=name)
        if _IS_EAGER:
            task: asyncio.Task[None] = _EagerTask(watch, loop=self.loop, context=context, name=name, eager_start=True)
            return task
        return asyncio.Task(watch, loop=self.loop, context=context, name=name)

    async def _watch(  # noqa: PLR0912  # each branch is an end of its own; a helper that awaits would cost a frame a step
        self,
        number: int,
        owner: Any,
        coroutine: Coroutine[Any, Any, Any],
        origin: Context | None,
        effects: list[list[int]] | None,
        is_late: bool,
    ) -> Any:
        """Await a coroutine, and tell when it began and how it ended; return its result, None if it failed."""
        is_begun = not is_late
        try:
            try:
                if is_late:
                    await _BEGUN
            finally:
                if effects is not None:  # now, or never: then the place in the window is given back with time
                    now_ns = self._moments.ns()
                    for entry in effects:  # note_effect() without a call
                        entry[0] = now_ns
            is_begun = True
            if self.running[number] is _UNBORN:
                self.running[number] = starting = asyncio.current_task()  # type: ignore[assignment]  # it is in one
                if isinstance(owner, Record):
                    owner._place = starting
            result = await coroutine
        except BaseException as error:
            if isinstance(error, GeneratorExit) and (self.loop.is_closed() or not is_begun):
                raise  # nobody is left to tell, or start() does
            del self.running[number]
            self.is_starting = False
            if not is_begun:
                coroutine.close()  # else Python warns that nobody awaited it
            if isinstance(owner, CallOwner):
                owner = owner.of(coroutine)
            self.accounts.raised(owner, error, origin)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            task = self.running.pop(number)
            self.is_starting = False
            if getattr(task, "_must_cancel", False):  # asked for in its last step: asyncio ends it as cancelled
                self.accounts.raised(owner, task._make_cancelled_error(), origin)  # type: ignore[attr-defined]  # asyncio's own
            else:
                self.accounts.done(owner, result)
            return result
        finally:
            del owner  # else a traceback keeps this frame, which keeps the handle, which keeps the error, unreported
            self.on_free()


class _Unborn:
    """Stands for a task that is being made: nothing of it has run, and nothing can cancel it."""

    def cancel(self, message: object = None) -> bool:  # noqa: ARG002  # the shape of a task's
        """Return False."""
        return False


class _Birth:
    """Stands for the loop while a task is created, before 3.12: keeps its first step instead of delaying it."""

    __slots__ = ("step",)

    get_debug: Any = bool  # False; the loop itself is asked afterwards

    def call_soon(self, step: Callable[[], None], *, context: Context) -> None:  # noqa: ARG002  # the shape of a loop's
        """Keep what is to be called."""
        self.step = step


class _Once(list[None]):
    """An awaitable that suspends once, for as many as await it; without a frame of Python."""

    __await__: Any = list.__iter__  # an iterator will do, where nothing is sent


_UNBORN: Final[Any] = _Unborn()
_BEGUN: Final = _Once([None])
_EagerTask: Final[Any] = asyncio.Task  # untyped: its eager_start is not known to type checkers for 3.11


def cancel_guarded(loop: asyncio.AbstractEventLoop, task: Any) -> None:
    """Cancel a task or handle; what ``cancel()`` raises goes to the loop's exception handler.

    It may be an error of user code that the task waits for, or a RecursionError where tasks wait for each other.
    """
    try:
        task.cancel()
    except Exception as error:  # noqa: BLE001  # whatever it is, the others are to be cancelled, too
        loop.call_exception_handler({"message": f"cannot cancel {task!r}", "exception": error})
