"""An event loop in virtual time on which tasks may go on later than asyncio would have them, be cancelled, or crash.

Only steps of tasks are postponed, by whole turns of the loop. Callbacks keep the order in which they were registered,
which asyncio promises, and on which futures, transports and the kernel of an executor rely. For tasks it promises no
order, and each await is a place where others may run: so what a postponed step breaks, a slower answer would break.
Trio shuffles its tasks for the same reason. A postponed step instead of a drawn order is the delay of Emmi, Qadeer and
Rakamaric, "Delay-bounded scheduling" (2011): most races need one or two, however long the run.

A process is a part of the program that crashes as a whole: its tasks stop where they are, without a ``finally``, and none
of its callbacks runs any more. A context variable says to which process a task or callback belongs; asyncio hands it on.
A callback whose context does not say, as those of an executor's own work, belongs to the process that registers it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import re
import shlex
import sys
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVarTuple

from ratelimited_executor.testing.choices import ChoiceKind, Choices
from ratelimited_executor.testing.errors import RealIOError, TurnLimitError
from ratelimited_executor.testing.outstanding import describe_tasks
from ratelimited_executor.testing.virtual import VirtualEventLoop

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PROCESS", "HistoryEvent", "Process", "SearchLoop", "clean"]

_Ts = TypeVarTuple("_Ts")

_TURNS: Final = (0, 1, 2, 4, 8)
_TURN_OPTIONS: Final = ("on time", "1 turn later", "2 turns later", "4 turns later", "8 turns later")
_CANCEL_OPTIONS: Final = ("not", "as it goes on", "as it begins to wait")


_CLOSING_STEPS_MAX: Final = 100
_NUMBER: Final = re.compile(r"#(?=\d+:)")  # it would end the name of a point in a replay
_CRASH_OPTIONS: Final = ("not", "before this step")


class Process:
    """A part of the program that may crash.

    Attributes:
        name: its name in histories.
        crashed: done once it has crashed.
    """

    __slots__ = ("crashed", "name")

    def __init__(self, name: str, crashed: asyncio.Future[None]) -> None:
        self.name = name
        self.crashed = crashed


# The process of the running code: None for the surroundings; unset in a context made from nothing.
PROCESS: Final[contextvars.ContextVar[Process | None]] = contextvars.ContextVar("process")


class _RunIsOver(BaseException):  # nothing may take it for an error
    """Ends what is left of a run."""


class HistoryEvent(NamedTuple):
    """One line of a history.

    Attributes:
        time: virtual seconds since the start of the run.
        task: the name of the task in which it happened; empty outside of tasks.
        text: what happened.
        is_injected: True if the search made it happen.
    """

    time: float
    task: str
    text: str
    is_injected: bool


class SearchLoop(VirtualEventLoop):
    """The loop of one run of a search.

    Args:
        choices: makes the choices of the run.
        seed: the seed of :attr:`random`.
        limit: virtual seconds that the run may take.
        turns_max: turns of the loop that the run may take.
        is_order_varied: True to postpone steps of tasks.

    Attributes:
        history: what happened, until the run was over.
        failure: the first error that ends the run, whatever its tasks do with it.
        checks: called after each step of a task, and after each turn; raise if an invariant is broken.
    """

    def __init__(self, choices: Choices, *, seed: int, limit: float, turns_max: int, is_order_varied: bool) -> None:
        super().__init__(seed=seed, limit=limit)
        self.choices: Final = choices
        self.history: Final[list[HistoryEvent]] = []
        self.failure: BaseException | None = None
        self.checks: Final[list[Callable[[], object]]] = []
        self._names: Counter[str] = Counter()
        self._started: weakref.WeakValueDictionary[int, asyncio.Task[Any]] = weakref.WeakValueDictionary()  # by number
        self._start_count = 0
        self._cancellable: dict[asyncio.Task[Any], str] = {}
        self._is_order_varied = is_order_varied
        self._turn_count = 0
        self._turns_max = turns_max
        self._is_over = False
        self._running: Process | None = None  # the process whose callback or step runs
        self._kept: list[set[asyncio.Task[Any]]] = []  # else the garbage collector would run their ``finally``
        self._is_closing = False
        self.set_exception_handler(_note_unhandled)

    def tell(self, text: str, *, task: str | None = None, is_injected: bool = False) -> None:
        """Add a line to the history, in the name of the running task unless another is given."""
        if self._is_over or self.failure is not None:
            return
        if task is None:
            running = asyncio.current_task(self)
            task = _name_of(running) if running is not None else ""
        self.history.append(HistoryEvent(self.time(), task, text, is_injected))

    def fail(self, error: BaseException) -> None:
        """End the run with an error, at the end of this turn; only the first one counts, also one of the clean-up."""
        if self.failure is None:
            self.failure = error

    def end(self) -> None:
        """End deviations, checks and lines: what comes now is the clean-up."""
        self.choices.is_ordinary = self._is_over = True
        self._turn_count = 0

    def cancel_tasks(self) -> None:
        """Cancel what is left, as ``asyncio.run`` does, except in processes that have crashed.

        Raises:
            VirtualTimeError: if a task ignores its cancellation, so that ``asyncio.run`` would never return.
        """
        tasks = [task for task in asyncio.all_tasks(self) if not _has_crashed(_process_of(task))]
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.wait(tasks))

    def fail_unhandled(self) -> None:
        """Fail for an assertion of a task that has ended, if nobody has asked how, nor will."""
        for task in list(self._started.values()):
            # asyncio itself reports such an error only when the task is collected, which one in a cycle is much later.
            if task.done() and task._log_traceback and isinstance(error := task.exception(), AssertionError):  # noqa: SLF001  # only it knows
                self.fail(error)

    def close_tasks(self) -> None:
        """Close the coroutines of tasks that have not ended, while the loop is still open; no other may begin."""

        async def close() -> None:
            await self.shutdown_default_executor()
            self._is_closing = True
            for task in asyncio.all_tasks(self) - {asyncio.current_task(self)}:
                self._running = _process_of(task)
                _close(task.get_coro())
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # asyncio's own switch
            self._running = None

        self._turn_count = 0
        with contextlib.suppress(BaseException):  # one of a crashed process may wait for ever, or exit
            self.run_until_complete(self.shutdown_asyncgens())
        self.run_until_complete(close())
        self._kept.clear()

    def allow_cancelling(self, task: asyncio.Task[Any]) -> None:
        """Let the search cancel a task, once, at any of its awaits."""
        self._cancellable[task] = clean(_name_of(task))

    def unique_name(self, name: str) -> str:
        """Return a name for a task, with a number if there has been one of that name."""
        self._names[name] += 1
        return name if self._names[name] == 1 else self.unique_name(f"{name} {self._names[name]}")

    def create_task(self, coro: Any, *, name: object = None, **options: Any) -> asyncio.Task[Any]:
        """Schedule a coroutine, as in the base class; a task without a name gets that of its function."""
        if self._is_closing:
            coro.close()
            raise RuntimeError("the run is over")
        if name is None:
            function = getattr(coro, "__qualname__", type(coro).__name__)
            name = self.unique_name(function.rpartition(".")[2].strip("_<>"))
        task = super().create_task(coro, name=name, **options)
        self._start_count += 1
        self._started[self._start_count] = task
        return task

    async def _make_subprocess_transport(
        self,
        protocol: Any,  # noqa: ARG002  # as in the base class
        args: Any,
        *_: Any,
        **__: Any,
    ) -> Any:
        """Refuse to start a process: each run would start another."""
        text = f"subprocess: {args if isinstance(args, str) else shlex.join(map(str, args))}"
        error = RealIOError(now=self.time(), outstanding=(text,))
        self.fail(error)
        raise error

    def check(self) -> None:
        """Check the invariants of the run."""
        if self._is_over or self.failure is not None:
            return
        try:
            for check in self.checks:
                check()
        except BaseException as error:  # noqa: BLE001  # it is what the search looks for
            self.fail(error)

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback, as in the base class; a step of a task may be postponed when its turn has come."""
        task = _task_of(callback)
        if task is not None:
            assert context is not None, "a task runs its steps in its context"
            return super().call_soon(self._step, task, callback, args, context, None, context=context)
        process = self._owner(context)
        if process is not None:
            return super().call_soon(self._run_in, process, callback, args, context=context)
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a timer, as in the base class; it does not fire if its process has crashed."""
        process = self._owner(context)
        if process is not None:
            return super().call_at(when, self._run_in, process, callback, args, context=context)
        return super().call_at(when, callback, *args, context=context)

    def _owner(self, context: contextvars.Context | None) -> Process | None:
        """Return the process of a callback that is registered now."""
        return PROCESS.get(self._running) if context is None else context.get(PROCESS, self._running)

    def _run_in(self, process: Process, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Run a callback of a process, unless that has crashed."""
        if _has_crashed(process):
            return
        self._running = process
        try:
            callback(*args)
        finally:
            self._running = None

    def _step(
        self,
        task: asyncio.Task[Any],
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        turns: int | None,
    ) -> None:
        """Run a step of a task, or postpone it; ``turns`` are those it has still to wait, None before that is chosen."""
        process = context.get(PROCESS)
        if _has_crashed(process):
            return
        if turns is None:
            turns = self._turns_later(task)
        if turns:
            super().call_soon(self._step, task, callback, args, context, turns - 1, context=context)
            return
        if process is not None and self._crashes(process):
            return
        name = self._cancellable.get(task)
        moment = self.choices.choose(ChoiceKind.CANCEL, f"cancel {name}", _CANCEL_OPTIONS) if name is not None else 0
        if moment == 1:
            self._cancel(task, moment)
        if process is None:
            callback(*args)
        else:
            self._run_in(process, callback, args)
        if moment > 1 and not task.done():
            self._cancel(task, moment)
        self.check()

    def _crashes(self, process: Process) -> bool:
        """Choose whether a process crashes before the step of one of its tasks."""
        name = process.name
        if process.crashed.done() or not self.choices.choose(ChoiceKind.CRASH, f"crash {clean(name)}", _CRASH_OPTIONS):
            return False
        self.tell("crashes", task=name, is_injected=True)
        self._kept.append(asyncio.all_tasks(self))
        process.crashed.set_result(None)
        return True

    def _turns_later(self, task: asyncio.Task[Any]) -> int:
        if not (self._is_order_varied and self.has_ready()):
            return 0
        name = _name_of(task)
        index = self.choices.choose(ChoiceKind.ORDER, f"postpone {clean(name)}", _TURN_OPTIONS)
        if index:
            self.tell(f"goes on {_TURN_OPTIONS[index]}", task=name, is_injected=True)
        return _TURNS[index]

    def _cancel(self, task: asyncio.Task[Any], moment: int) -> None:
        del self._cancellable[task]
        self.tell(f"is cancelled {_CANCEL_OPTIONS[moment]}", task=_name_of(task), is_injected=True)
        task.cancel()

    def _run_once(self) -> None:
        """Run one turn, as in the base class, unless the run has failed or takes too long."""
        if self.failure is not None and not self._is_over:
            self.end()
            raise self.failure
        self._turn_count += 1
        if self._turn_count > self._turns_max:
            raise TurnLimitError(turns=self._turns_max, now=self.time(), tasks=describe_tasks(self))
        super()._run_once()  # type: ignore[misc]  # asyncio's, unknown to its type stubs
        self.check()


def clean(name: str) -> str:
    """Return a name as it may stand in the text of a replay: without what separates its parts."""
    return " ".join(_NUMBER.sub("", name.replace(";", ",")).split()) or "unnamed"


def _name_of(task: asyncio.Task[Any]) -> str:
    """Return the name of a task; an executor names its tasks by qualified names of functions."""
    return task.get_name().rpartition("<locals>.")[2]


def _process_of(task: asyncio.Task[Any]) -> Process | None:
    """Return the process that a task is part of."""
    if sys.version_info >= (3, 12):
        return task.get_context().get(PROCESS)
    # Until then a task tells nobody its context, except the garbage collector.
    contexts = (each for each in gc.get_referents(task) if isinstance(each, contextvars.Context))
    return next(contexts, contextvars.Context()).get(PROCESS)


def _close(coroutine: Any) -> None:
    """End a coroutine, also if it awaits something while it cleans up: that ends as well.

    After a GeneratorExit, Python lets no async generator wait.
    """
    with contextlib.suppress(BaseException):  # nobody is left to see it
        for _ in range(_CLOSING_STEPS_MAX):
            coroutine.throw(_RunIsOver)


def _has_crashed(process: Process | None) -> bool:
    return process is not None and process.crashed.done()


def _task_of(callback: Callable[..., object]) -> asyncio.Task[Any] | None:
    """Return the task whose next step a callback is; None if it is another callback, ``task.cancel`` included."""
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return None
    is_method = hasattr(asyncio.Task, getattr(callback, "__name__", ""))
    return None if is_method else task


def _note_unhandled(loop: asyncio.AbstractEventLoop, report: dict[str, Any]) -> None:
    """Note an error that nobody handles; a broken assertion ends the run."""
    assert isinstance(loop, SearchLoop), "the handler is set by the loop itself"
    error = report.get("exception")
    if isinstance(error, AssertionError):
        loop.fail(error)
    elif error is not None:
        loop.tell(f"unhandled: {error!r}")
