"""The limiter face: permits for code outside the executor's tasks."""

from __future__ import annotations

import functools
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from ratelimited_executor._runtime.arguments import INHERITED, NOT_GIVEN, key_of
from ratelimited_executor._runtime.faces.tasks import TaskFace, make_options
from ratelimited_executor._runtime.task.permit import Permit, take_now

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor.typing import CostLike

__all__ = ["LimiterFace"]

P = ParamSpec("P")
T = TypeVar("T")


class LimiterFace(TaskFace):
    """``permit``, ``acquire``, ``acquire_nowait`` and ``limited``."""

    __slots__ = ()

    def permit(
        self,
        *,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        name: str | None = None,
        key: Hashable = None,
        cost: CostLike = 1,
    ) -> Permit:
        """Return a permit to enter with ``async with``, in the same order and under the same law as tasks.

        The body counts as a running task, and takes a place of ``max_concurrency`` until it is left.

        Args:
            priority: a larger one is more important.
            expires: the longest wait in seconds; then entering raises ``TaskExpiredError``. The executor's ``expires`` if it is
                omitted; None for as long as it takes.
            name: the name of the waiter; ``permit`` if None.
            key: the key of the waiter, for ``order=Fair()`` and the limits of keys.
            cost: permits to use, >= 1, or a mapping from resource to amount; call ``settle()`` on the entered handle to correct
                it.
        """
        key = key_of("key", key, self._keys)
        self._admit(0)
        parts = self._started()
        count = 0 if parts.backlog.is_dropping else 1
        if parts.backlog.room is None:
            self._admit(count, key=key)
        rare = self._rare_of(key, cost)
        options = make_options(priority=priority, expires=self._expires_of(expires), name=name or "permit", rare=rare)
        return Permit(parts, options, partial(self._admit, count, key=key))

    async def acquire(
        self,
        *,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        name: str | None = None,
        key: Hashable = None,
        cost: CostLike = 1,
    ) -> None:
        """Wait for a permit, and use it; takes no place of ``max_concurrency`` afterwards."""
        async with self.permit(priority=priority, expires=expires, name=name or "acquire", key=key, cost=cost):
            pass

    def acquire_nowait(
        self, *, priority: float = 0, name: str | None = None, key: Hashable = None, cost: CostLike = 1
    ) -> None:
        """Use a permit that is available now, without waiting; the arguments are those of :meth:`acquire`.

        It overtakes no one: a due task of larger priority takes its permit first. A call that raises is not counted.

        Raises:
            anyio.WouldBlock: if :meth:`acquire` would have to wait.
            BacklogFullError: if it would be refused.
        """
        key = key_of("key", key, self._keys)
        self._admit(0)
        parts = self._started()
        if parts.backlog.room is not None and not parts.backlog.room.is_free(key):
            raise _would_block()
        self._admit(0 if parts.backlog.is_dropping else 1, key=key)
        options = make_options(priority=priority, name=name or "acquire", rare=self._rare_of(key, cost))
        if not take_now(parts, options):
            raise _would_block()

    @overload
    def limited(self, fn: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]: ...
    @overload
    def limited(
        self,
        *,
        priority: float = ...,
        expires: DurationLike | None = ...,
        name: str | None = ...,
        key: Hashable | Callable[..., Hashable] = ...,
        cost: CostLike | Callable[..., CostLike] = ...,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]: ...
    def limited(
        self,
        fn: Any = NOT_GIVEN,
        *,
        priority: float = 0,
        expires: DurationLike | None = INHERITED,
        name: str | None = None,
        key: Hashable | Callable[..., Hashable] = None,
        cost: CostLike | Callable[..., CostLike] = 1,
    ) -> Any:
        """Decorate an async function so that each call waits for a permit first: ``@limited`` or ``@limited(key=...)``.

        Args:
            fn: the function; a decorator is returned if it is omitted.
            priority: as for :meth:`permit`, and so are the rest.
            expires: as for :meth:`permit`.
            name: the name of the waiters; the function's name if None.
            key: the key of the calls; or a function of the arguments of a call that returns it.
            cost: what a call uses; or a function of the arguments of a call that returns it.

        Raises:
            TypeError: if ``fn`` is not an async function, because a plain one cannot wait; or an argument has a wrong type.
            ValueError: if an argument is out of range.
        """
        make_options(priority=priority, expires=self._expires_of(expires), name=name)
        if not callable(key):
            key_of("key", key, self._keys)
        if fn is NOT_GIVEN:
            return partial(self.limited, priority=priority, expires=expires, name=name, key=key, cost=cost)
        if not inspect.iscoroutinefunction(fn):
            raise TypeError(
                f"limited() decorates async functions, got {fn!r}: schedule() runs plain ones under the rate"
            )
        own = name or getattr(fn, "__qualname__", "limited")

        @functools.wraps(fn)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            async with self.permit(
                priority=priority,
                expires=expires,
                name=own,
                key=key(*args, **kwargs) if callable(key) else key,
                cost=cost(*args, **kwargs) if callable(cost) else cost,
            ):
                return await fn(*args, **kwargs)

        return wrapper


def _would_block() -> Exception:
    import anyio  # noqa: PLC0415  # most programs start without it

    return anyio.WouldBlock()
