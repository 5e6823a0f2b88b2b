"""The limiter face: what users of a rate limiter do daily."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ratelimited_executor._runtime.faces.base import ExecutorBase
from ratelimited_executor._runtime.faces.tasks import make_options
from ratelimited_executor._runtime.permit import Permit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

__all__ = ["LimiterFace"]

P = ParamSpec("P")
T = TypeVar("T")


class LimiterFace(ExecutorBase):
    """``permit``, ``acquire`` and ``limited``."""

    __slots__ = ()

    def permit(
        self, *, priority: float = 0, expires: float | timedelta | None = None, name: str | None = None
    ) -> Permit:
        """Return a permit to enter with ``async with``, in the same order and under the same law as tasks.

        The body counts as a running task, and takes a place of ``max_concurrency`` until it is left.

        Args:
            priority: a larger one is more important.
            expires: seconds to wait at most; then entering raises ``TaskExpiredError``.
            name: what the waiter is called; ``permit`` if None.
        """
        engine = self._admit()
        options = make_options(priority=priority, expires=expires, name=name or "permit")
        return Permit(engine, options, self._admit)

    async def acquire(
        self, *, priority: float = 0, expires: float | timedelta | None = None, name: str | None = None
    ) -> None:
        """Wait for a permit, and use it up; takes no place of ``max_concurrency`` afterwards."""
        async with self.permit(priority=priority, expires=expires, name=name or "acquire"):
            pass

    def limited(self, fn: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Decorate an async function so that each call waits for a permit first.

        Raises:
            TypeError: if ``fn`` is no async function: a plain one cannot wait.
        """
        if not inspect.iscoroutinefunction(fn):
            raise TypeError(
                f"limited() decorates async functions, got {fn!r}: schedule() runs plain ones under the rate"
            )
        name = getattr(fn, "__qualname__", "limited")

        @functools.wraps(fn)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self.permit(name=name):
                return await fn(*args, **kwargs)

        return wrapper
