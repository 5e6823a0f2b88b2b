"""Targets with set-up and tear-down around all calls: context managers and their factories."""

from __future__ import annotations

import inspect
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from ratelimited_executor.cli.exits import CommandError
from ratelimited_executor.cli.run.results import describe_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["TearDownError", "entered", "is_context"]


class TearDownError(CommandError):
    """The tear-down of the target failed; all calls had already ended."""


def is_context(target: object) -> bool:
    """Return True for a context manager, a class of them, or a function made by ``(async)contextmanager``."""
    return _is_manager(target) or _is_factory(target)


@asynccontextmanager
async def entered(target: Any, *, what: str = "TARGET") -> AsyncIterator[Callable[..., Any]]:
    """Yield the callable: the value of a context manager, which is left at the end; any other target itself.

    A synchronous context manager is entered and left on the event loop, while no call runs.

    Args:
        target: the target.
        what: the name of its argument on the command line, for errors.

    Raises:
        CommandError: if the set-up fails, or its value is not callable.
        TearDownError: if the tear-down fails.
    """
    if not is_context(target):
        yield target
        return
    stack = AsyncExitStack()
    try:
        manager = target() if _is_factory(target) else target
        is_async = hasattr(manager, "__aenter__")
        function = await stack.enter_async_context(manager) if is_async else stack.enter_context(manager)
    except (Exception, SystemExit) as error:
        raise CommandError(f"the set-up of {what} failed: {describe_error(error)}") from error
    try:
        if not callable(function):
            raise CommandError(f"{what} must yield a function, got {type(function).__name__}")
        yield function
    finally:
        kind, failure, traceback = sys.exc_info()
        try:
            await stack.__aexit__(kind, failure, traceback)
        except (Exception, SystemExit) as error:
            if error is not failure:
                raise TearDownError(f"the tear-down of {what} failed: {describe_error(error)}") from error


def _is_manager(target: object) -> bool:
    return not isinstance(target, type) and _has_enter(type(target))


def _is_factory(target: object) -> bool:
    if isinstance(target, type):
        return _has_enter(target)
    if not callable(target):
        return False
    made_of = inspect.unwrap(target)
    return made_of is not target and (inspect.isasyncgenfunction(made_of) or inspect.isgeneratorfunction(made_of))


def _has_enter(kind: type) -> bool:
    return hasattr(kind, "__aenter__") or hasattr(kind, "__enter__")
