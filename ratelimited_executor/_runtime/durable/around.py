"""The user's context manager around each attempt of a durable task."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from ratelimited_executor._runtime.durable.current import current_task

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from ratelimited_executor._runtime.durable.current import CurrentTask

    Around: TypeAlias = "Callable[[CurrentTask], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]"

__all__ = ["call_within", "result_of"]


def call_within(around: Around, call: Callable[[], Any], *, in_thread: bool) -> Any:
    """Call a function within the context manager of the current task: in this thread, or as a coroutine on the loop.

    Raises:
        TypeError: if ``around`` returns no context manager, or one for coroutines to a thread.
    """
    task = current_task()
    assert task is not None
    manager: Any = around(task)
    is_plain = hasattr(type(manager), "__enter__")
    if not is_plain and not hasattr(type(manager), "__aenter__"):
        raise TypeError(f"around= must return a context manager for {task.name!r}, got {manager!r}")
    if not in_thread:
        return _awaited_within(manager, call)
    if not is_plain:
        raise TypeError(
            f"around= must return a plain context manager for {task.name!r}, which runs in a thread, got {manager!r}"
        )
    with manager:
        return call()


async def _awaited_within(manager: Any, call: Callable[[], Any]) -> Any:
    if hasattr(type(manager), "__aenter__"):
        async with manager:
            return await result_of(call)
    with manager:
        return await result_of(call)


async def result_of(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or what that returns if it is to be awaited."""
    result = call()
    return await result if inspect.isawaitable(result) else result
