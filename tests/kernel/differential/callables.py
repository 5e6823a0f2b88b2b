"""Callables of every kind, made from their description in a program; they write down what they see and do steps."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import types
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from .programs import VARIABLES
from .texts import chain_of, text_of

if TYPE_CHECKING:
    from .play import Player

variables = {name: contextvars.ContextVar(name, default="-") for name in VARIABLES}


class Odd(Exception):
    """An exception with fields of its own."""

    def __init__(self, number: int = 3) -> None:
        super().__init__("odd", number)
        self.number = number


_ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("a value"),
    "KeyError": lambda: KeyError("a key"),
    "Odd": Odd,
    "CancelledError": lambda: asyncio.CancelledError("by itself"),
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": lambda: StopAsyncIteration(),
    "BaseException": lambda: BaseException("base"),
    "TimeoutError": lambda: TimeoutError("late"),
}


class Thing:
    """An argument that the library knows nothing about."""

    def __repr__(self) -> str:
        return "Thing()"


def value_of(data: Any) -> Any:
    """Return the value that an argument of a program stands for."""
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "odd":
        return {
            "object": Thing(),
            "function": text_of,
            "NotImplemented": NotImplemented,
            "exception": ValueError("returned"),
        }[content]
    values = [value_of(item) for item in content]
    return tuple(values) if kind == "tuple" else values


def seen_variables() -> list[str]:
    """Return the values of all context variables."""
    return [variable.get() for variable in variables.values()]


def set_variables(values: dict[str, str]) -> None:
    """Set some of the context variables."""
    for name, value in values.items():
        variables[name].set(value)


class Body:
    """What a callable does when it is called."""

    def __init__(self, player: Player, name: str, call: dict[str, Any]) -> None:
        self.player = player
        self.name = name
        self.steps: list[list[Any]] = call.get("steps", [])

    def begin(self, args: tuple[Any, ...]) -> None:
        """Write down that the call starts."""
        self.player.note("start", self.name, text_of(args), *seen_variables())

    def plain(self, *args: Any) -> Any:
        """Write down the start, and do all steps; none of them waits."""
        self.begin(args)
        for step in self.steps:
            if step[0] == "return":
                return value_of(step[1])
            self.do(step)
        return None

    async def waiting(self, *args: Any) -> Any:
        """Write down the start, and do all steps, including those that wait."""
        self.begin(args)
        task = asyncio.current_task()
        for step in self.steps:
            if step[0] == "return":
                return value_of(step[1])
            try:
                await self.wait(step)
            except BaseException as error:
                self.player.note("left", self.name, step[0], chain_of(error), *seen_variables())
                raise
            if asyncio.current_task() is not task:
                self.player.note("another task", self.name, step[0])
        return None

    def do(self, step: list[Any]) -> None:
        """Do a step that does not wait; steps that would wait are skipped."""
        what = step[0]
        if what == "look":
            self.player.note("sees", self.name, *seen_variables())
        elif what == "set":
            variables[step[1]].set(step[2])
        elif what == "op":
            self.player.do(step[1])
        elif what == "block":
            self.player.loop.block_for(step[1])
        elif what == "raise":
            _raise(step[1], step[2])

    async def wait(self, step: list[Any]) -> None:
        """Do a step, which may wait."""
        what = step[0]
        if what == "suspend":
            for _ in range(step[1]):
                await asyncio.sleep(0)
                self.player.note("goes on", self.name, *seen_variables())
        elif what == "sleep":
            await asyncio.sleep(step[1])
            self.player.note("awake", self.name, *seen_variables())
        elif what == "catch":
            await self.catch(*step[1:])
        elif what == "await":
            handle = self.player.handles.get(step[1])
            if hasattr(handle, "__await__"):
                self.player.note("awaited", self.name, text_of(await handle))
        elif what == "timeout":
            try:
                async with asyncio.timeout(step[1]):
                    await asyncio.sleep(10)
            except TimeoutError as error:
                self.player.note("timed out", self.name, chain_of(error))
        elif what == "task":
            await self.look_at_task()
        else:
            self.do(step)

    async def catch(self, seconds: float, then: str) -> None:
        """Sleep, and go on as ``then`` says if the sleep is cancelled."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError as error:
            self.player.note("caught", self.name, chain_of(error))
            if then == "again":
                raise
            if then == "other":
                raise ValueError("in place of a cancellation") from error
            if then == "uncancel":
                self.player.note("uncancelled", self.name, asyncio.current_task().uncancel())
                await asyncio.sleep(0)

    async def look_at_task(self) -> None:
        """Write down what the task that runs this call reports about itself."""
        task = asyncio.current_task()
        before = task.cancelling(), task.done(), task.cancelled(), task in asyncio.all_tasks()
        await asyncio.sleep(0)
        self.player.note("task", self.name, *before, task is asyncio.current_task(), task.get_name() != "")


def _raise(name: str, kind: str | None) -> None:
    error = _ERRORS[name]()
    if kind is None:
        raise error
    try:
        raise LookupError("before")
    except LookupError as before:
        if kind == "cause":
            raise error from before
        if kind == "suppressed":
            raise error from None
        raise error


class _Object:
    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def method(self, *args: Any) -> Any:
        return self._call(*args)


class _Awaitable:
    def __init__(self, result: Any) -> None:
        self._result = result

    def __await__(self) -> Generator[Any, None, Any]:
        yield
        yield from asyncio.sleep(0).__await__()
        return self._result


def callable_of(player: Player, name: str, call: dict[str, Any]) -> Callable[..., Any]:
    """Return the callable that a program describes."""
    body = Body(player, name, call)
    kind = call["kind"]
    plain, waiting = body.plain, body.waiting
    loop = player.loop

    async def coroutine(*args: Any) -> Any:
        return await waiting(*args)

    def function(*args: Any) -> Any:
        return plain(*args)

    def generator(*args: Any) -> Any:
        plain(*args)
        yield

    class Class:
        def __init__(self, *args: Any) -> None:
            plain(*args)

        def __repr__(self) -> str:
            return "Class()"

    def future(*args: Any) -> asyncio.Future[Any]:
        made = loop.create_future()
        made.set_result(plain(*args)) if kind == "done_future" else loop.call_later(0.25, _settle, made, plain(*args))
        return made

    return {
        "function": lambda: function,
        "lambda": lambda: lambda *args: plain(*args),
        "partial": lambda: functools.partial(function, "bound"),
        "method": lambda: _Object(plain).method,
        "object": lambda: _Object(plain),
        "class": lambda: Class,
        "builtin": lambda: len,
        "sink": lambda: player.sink.append,
        "generator": lambda: generator,
        "coroutine": lambda: coroutine,
        "lambda_coroutine": lambda: lambda *args: waiting(*args),
        "partial_coroutine": lambda: functools.partial(coroutine, "bound"),
        "method_coroutine": lambda: _Object(coroutine).method,
        "object_coroutine": lambda: _Object(coroutine),
        "types_coroutine": lambda: types.coroutine(lambda *args: (yield from waiting(*args).__await__())),
        "awaitable": lambda: lambda *args: _Awaitable(plain(*args)),
        "future": lambda: future,
        "done_future": lambda: future,
        "task": lambda: lambda *args: loop.create_task(waiting(*args)),
    }[kind]()  # fmt: skip


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)
