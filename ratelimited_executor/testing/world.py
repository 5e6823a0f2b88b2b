"""What surrounds the code under test in a search: other sides that fail, choices, tasks that may be cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from ratelimited_executor.testing.choices import ChoiceKind
from ratelimited_executor.testing.search_loop import PROCESS, Process, clean

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from ratelimited_executor.testing.search_loop import SearchLoop

__all__ = ["Fault", "NotAsyncError", "World"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

# Eight steps from the shortest to the longest delay: few enough for calls to coincide, which is where races are.
_DELAY_STEPS: Final = 8
_SLOW_FACTOR: Final = 100
_TEXT_LENGTH_MAX: Final = 100
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")  # in the repr of a function, say; another one in each run


class NotAsyncError(TypeError):
    """A scenario is not an async function."""


class Fault(Enum):
    """What may happen to a call of another side; see :meth:`World.call`."""

    REFUSED = "refused"  # the call raises, and has had no effect
    REPLY_LOST = "reply lost"  # the call raises, but has had its effect
    SLOW = "slow"  # effect and reply come late: the call takes a hundred times its longest delay
    NO_REPLY = "no reply"  # the call has its effect, and never returns


class World:
    """The surroundings of one run; :func:`search_faults` makes one for each, and passes it to the scenario.

    Attributes:
        random: a generator that is seeded for the run, for what needs no shortening; the loop's ``random``.
    """

    def __init__(self, loop: SearchLoop) -> None:
        self._loop = loop
        self._context = contextvars.copy_context()  # of the surroundings, which do not crash
        self._context.run(PROCESS.set, None)
        self._serving: set[asyncio.Task[Any]] = set()
        self._checks_at_end: list[Callable[[], object]] = []
        self.random: Final[random.Random] = loop.random

    async def call(
        self,
        name: str,
        effect: Callable[[*_Ts], Awaitable[_T] | _T],
        *args: *_Ts,
        delay: tuple[float, float] = (0.01, 1.0),
        faults: Sequence[Fault] = (Fault.REFUSED, Fault.REPLY_LOST, Fault.SLOW),
        error: Callable[[str], BaseException] = ConnectionError,
    ) -> _T:
        """Call a fake of another side, as over a network.

        The effect happens on the other side after half of the delay, also if the caller has been cancelled meanwhile: what
        was sent cannot be taken back. The reply takes the other half. An error that the effect raises is a reply, too.

        Args:
            name: the point at which faults and delays are chosen, such as ``"bank.charge"``.
            effect: what the other side does, sync or async.
            *args: the arguments of the effect.
            delay: the shortest and the longest time of a call without a fault, in seconds, both >= 0. The ordinary run
                takes the shortest.
            faults: the faults that may happen to the call, the simplest first.
            error: makes the exception of a refused call or a lost reply from a text.

        Returns:
            what the effect returns.
        """
        shortest, longest = _span(delay)
        point, shown = clean(name), _shown(name, args)
        options = ["none", *(fault.value for fault in faults)]
        index = self._loop.choices.choose(ChoiceKind.FAULT, point, options)
        fault = faults[index - 1] if index else None
        if fault is Fault.SLOW:
            seconds, is_longer = _SLOW_FACTOR * longest, True
        else:
            seconds, is_longer = self._seconds(f"{point} delay", shortest, longest)
        self._loop.tell(f"calls {shown}" + f", takes {seconds:.6g} s" * is_longer, is_injected=is_longer)
        if fault is Fault.REFUSED:
            await asyncio.sleep(seconds)
            raise self._injected(error, f"{name}: refused")
        serving = self._loop.create_task(
            self._serve(shown, effect, args, seconds / 2), name=f"[{name}]", context=self._context.copy()
        )
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard, context=self._context)  # also if the caller crashes
        failure: Exception | None = None
        try:
            await asyncio.shield(serving)
        except Exception as raised:  # noqa: BLE001  # it travels back, as a result does
            failure = raised
        await asyncio.sleep(seconds / 2)
        if fault is Fault.REPLY_LOST:
            raise self._injected(error, f"{name}: reply lost")
        if fault is Fault.NO_REPLY:
            self._loop.tell(f"{shown}: no reply, waits for ever", is_injected=True)
            await self._loop.create_future()
        if failure is not None:
            raise failure
        result: _T = serving.result()
        self._loop.tell(f"{shown} returns {_short(_repr(result))}")
        return result

    async def _serve(self, shown: str, effect: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> Any:
        """Do on the other side what a call asks for, once it has arrived there."""
        await asyncio.sleep(seconds)
        try:
            result = effect(*args)
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:
            self._loop.tell(f"{shown} raises {_error_text(error)}")
            raise
        self._loop.tell(f"{shown} takes effect")
        return result

    def _injected(self, error: Callable[[str], BaseException], text: str) -> BaseException:
        made = error(text)
        self._loop.tell(f"{text}, raises {type(made).__name__}", is_injected=True)
        return made

    async def pause(self, name: str, delay: tuple[float, float]) -> None:
        """Sleep for a chosen time between two numbers of seconds; the ordinary run takes the shortest."""
        seconds, is_longer = self._seconds(clean(name), *_span(delay))
        self._loop.tell(f"{name} takes {seconds:.6g} s", is_injected=is_longer)
        await asyncio.sleep(seconds)

    def _seconds(self, point: str, shortest: float, longest: float) -> tuple[float, bool]:
        """Choose a delay in seconds; with it goes True if it is longer than the shortest."""
        if shortest == longest:
            return shortest, False
        levels = [shortest + (longest - shortest) * step / _DELAY_STEPS for step in range(_DELAY_STEPS + 1)]
        index = self._loop.choices.choose(ChoiceKind.DELAY, point, [f"{level:.9g} s" for level in levels])
        return levels[index], index > 0

    def fault(self, name: str) -> bool:
        """Return True if the fault with this name happens now; a fake decides what that means."""
        happens = bool(self._loop.choices.choose(ChoiceKind.FAULT, clean(name), ("no", "happens")))
        if happens:
            self._loop.tell(f"{name} happens", is_injected=True)
        return happens

    def choose(self, name: str, options: Sequence[_T]) -> _T:
        """Return one of the options, all as likely; the first is the simplest, and that of the ordinary run.

        A replay names an option by its ``repr``, without an address in it; by its index if others have the same.
        """
        if not options:
            raise ValueError(f"options of {name!r} must not be empty")
        texts = [clean(_repr(option)) for option in options]
        if len(set(texts)) < len(texts):
            texts = [f"option {index}" for index in range(len(texts))]
        option = options[self._loop.choices.choose(ChoiceKind.INPUT, clean(name), texts)]
        self._loop.tell(f"{name} is {_short(_repr(option))}")
        return option

    def start(self, name: str, coroutine: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start a task that the search may cancel, once, at any of its awaits: a request whose client disconnects.

        It may be cancelled before its first step, too: then none of it runs, as with any task of asyncio.

        An ``AssertionError`` in it ends the run, also if nobody awaits the task.

        Args:
            name: names the task in histories; a number is added if there is a task of that name.
            coroutine: what it runs.
        """
        task = self._loop.create_task(coroutine, name=self._loop.unique_name(name))
        self._loop.allow_cancelling(task)
        task.add_done_callback(self._tell_end)
        return task

    def _tell_end(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        text = "ends cancelled" if task.cancelled() else "ends" if error is None else f"ends with {_error_text(error)}"
        self._loop.tell(text, task=task.get_name())
        if isinstance(error, AssertionError):
            self._loop.fail(error)

    async def process(
        self, name: str, main: Callable[[], Coroutine[Any, Any, _T]], *, restart: float = 1.0, crashes_max: int = 2
    ) -> _T:
        """Run a part of the program that may crash as a whole, and start it again after each crash.

        In a crash, all of its tasks stop where they are, without a ``finally``, and its timers and callbacks are gone. What
        it has sent to other sides stays, and so does each object that was made outside: a ``MemoryStore``, say, stands for
        a store outside of the process. ``main`` makes everything else, afresh each time.

        Args:
            name: names the process in histories.
            main: an async function without arguments, as of a program.
            restart: seconds from a crash to the next start, >= 0.
            crashes_max: how often it may crash in a run.

        Returns:
            what ``main`` returns when it ends without a crash.
        """
        for crash_count in range(crashes_max + 1):
            crashed = self._loop.create_future()
            context = self._context.copy()
            may_crash = crash_count < crashes_max
            context.run(PROCESS.set, Process(name, crashed) if may_crash else None)
            task: asyncio.Task[_T] = self._loop.create_task(main(), name=self._loop.unique_name(name), context=context)
            try:
                await asyncio.wait([task, crashed], return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait([task, crashed], return_when=asyncio.FIRST_COMPLETED)
                raise
            if not crashed.done():
                return task.result()
            await asyncio.sleep(restart)
            self._loop.tell("starts again", task=name)
        raise AssertionError("the last start does not crash")

    def note(self, text: str) -> None:
        """Add a line to the history."""
        self._loop.tell(text)

    def always(self, check: Callable[[], object], name: str) -> None:
        """Check an invariant after each step of a task from now on.

        Args:
            check: raises, or returns False, if the invariant does not hold. It must not change anything.
            name: the invariant as a sentence, for the error.
        """
        self._loop.checks.append(lambda: _check(check, name))

    def at_end(self, check: Callable[[], object], name: str) -> None:
        """Check an invariant once all is over: the scenario has returned, other sides are done, tasks have ended.

        Args:
            check: as of :meth:`always`.
            name: as of :meth:`always`.
        """
        self._checks_at_end.append(lambda: _check(check, name))

    def _main(self, scenario: Callable[[World], Awaitable[object]]) -> asyncio.Task[None]:
        """Start the scenario, which ends when all that it has sent to other sides is done."""

        async def run() -> None:
            made = scenario(self)
            if not inspect.isawaitable(made):
                raise NotAsyncError(f"scenario must be an async function, {scenario!r} returned {made!r}")
            await made
            while self._serving:
                await asyncio.wait(self._serving)

        return self._loop.create_task(run(), name="scenario", context=self._context)

    def _check_end(self) -> None:
        for check in self._checks_at_end:
            check()


def _check(check: Callable[[], object], name: str) -> None:
    if check() is False:
        raise AssertionError(f"does not hold: {name}")


def _span(delay: tuple[float, float]) -> tuple[float, float]:
    shortest, longest = delay
    if not 0 <= shortest <= longest < math.inf:
        raise ValueError(f"delay must be (shortest, longest) in seconds, both >= 0, got {delay!r}")
    return shortest, longest


def _shown(name: str, args: tuple[Any, ...]) -> str:
    return f"{name}({_short(', '.join(map(_repr, args)))})"


def _repr(value: object) -> str:
    """Return the repr of a value as it is in every run."""
    return _ADDRESS.sub("", repr(value))


def _error_text(error: BaseException) -> str:
    return ": ".join([type(error).__name__, *map(_short, str(error).splitlines()[:1])])


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH_MAX else f"{text[: _TEXT_LENGTH_MAX - 3]}..."
