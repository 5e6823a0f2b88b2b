"""How a call runs when it is more than a function on the loop: in a worker thread, or for a limited time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ratelimited_executor._core.buckets import name_of
from ratelimited_executor.exceptions import RunTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context


__all__ = ["await_it", "run_in_thread", "run_timeout_error", "with_timeout"]


async def run_in_thread(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    context: Context,
    limiter: anyio.CapacityLimiter,
    note_begin: Callable[[], None],
) -> Any:
    """Call a function in a worker thread, in its own context.

    A thread cannot be stopped: if the task is cancelled or times out, it is left to finish, and its result is dropped.
    ``note_begin`` is called when the thread begins with it, or when none ever will.
    """
    if not getattr(asyncio.get_running_loop(), "has_threads", True):
        raise RuntimeError(
            f"{name_of(call)} is to run in a thread, which a simulation has none of: simulate it as a job"
        )
    run = partial(context.run, _call_plain, call, args, note_begin)
    try:
        return await anyio.to_thread.run_sync(run, limiter=limiter, abandon_on_cancel=True)
    finally:
        note_begin()  # again: the first counts


def _call_plain(call: Callable[..., Any], args: tuple[Any, ...], note_begin: Callable[[], None]) -> Any:
    """Call a function that must not be async: in a worker thread nobody would run its coroutine."""
    note_begin()
    result = call(*args)
    if asyncio.iscoroutine(result):
        result.close()
        raise TypeError(f"{name_of(call)} is async and cannot run in a worker thread: leave in_thread= out")
    return result


async def with_timeout(coroutine: Coroutine[Any, Any, Any], seconds: float, name: str) -> Any:
    """Run a coroutine for so many seconds at most.

    Raises:
        RunTimeoutError: if it has not finished by then; it is cancelled first.
    """
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            return await coroutine
    except TimeoutError as error:
        if scope.expired():
            raise RunTimeoutError(name, run_timeout=seconds) from error
        raise


async def await_it(awaitable: Any) -> Any:
    """Await something that is no coroutine."""
    return await awaitable


def run_timeout_error(call: Any) -> TypeError:
    """Return the error of a time limit on a plain function."""
    return TypeError(
        f"run_timeout cannot stop {name_of(call)}, a plain function that runs on the event loop: "
        "pass in_thread=True, or an async function"
    )
