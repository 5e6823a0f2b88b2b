"""A live page of executors: their state, an hour of history, which tasks wait and why; and, where allowed, controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ratelimited_executor._runtime.life.executor import ExecutorManager, RateLimitedExecutor
from ratelimited_executor.dashboard.changes import PageChange as PageChange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.applications import Starlette
    from starlette.requests import Request

    from ratelimited_executor.abc import TaskStore

__all__ = ["Authorize", "AuthorizeChange", "PageChange", "dashboard"]

Authorize: TypeAlias = "Callable[[Request], bool | Awaitable[bool]]"
AuthorizeChange: TypeAlias = "Authorize | Callable[[Request, str, str], bool | Awaitable[bool]]"


def dashboard(
    target: RateLimitedExecutor | ExecutorManager,
    *,
    authorize: AuthorizeChange | None = None,
    authorize_view: Authorize | None = None,
    on_change: Callable[[PageChange], object] | None = None,
    stores: Mapping[str, TaskStore] | None = None,
    title: str = "Executors",
) -> Starlette:
    """Return a live page of executors, as a Starlette application to mount in another.

    FastAPI mounts it too: ``app.mount("/executors", dashboard(manager))``. It must run on the event loop of the executors, as
    a page of the same server does. A point of each executor is recorded every five seconds while the application exists, and
    kept in memory for an hour: 26 KB an executor. Of failures, texts are kept, and no objects: the last 50 of each executor.

    Anybody who reaches the page may read it, including names, keys and errors of tasks, unless ``authorize_view`` is given.
    Nobody may change anything unless ``authorize`` is given.

    Args:
        target: a manager, with its present and future executors; or one executor.
        authorize: called with a request, returns True if it may make changes: set a rate, pause, resume, cancel waiting
            tasks, requeue or discard dead letters. One that has to be called with three arguments, or takes any number, is
            called with the request, the action and the name of the executor or store, and decides about this change alone. May return an awaitable. None allows no
            changes.
        authorize_view: called in the same way, returns True if the page may be shown. None shows it to everybody.
        on_change: called with each :class:`PageChange` after it was made and logged; may return an awaitable. What it raises goes
            to the exception handler of the event loop.
        stores: open stores of durable tasks, by the names to show them under.
        title: the heading of the page.

    Raises:
        TypeError: if an argument has a wrong type.
        ImportError: if the extra ``dashboard`` is not installed.
        WrongLoopError: from another thread or event loop than that of an executor which has started.
    """
    if not isinstance(target, (RateLimitedExecutor, ExecutorManager)):
        raise TypeError(f"target must be a RateLimitedExecutor or an ExecutorManager, got {target!r}")
    asked: dict[str, object] = {"authorize": authorize, "authorize_view": authorize_view, "on_change": on_change}
    for name, ask in asked.items():
        if ask is not None and not callable(ask):
            of = "change" if name == "on_change" else "request"
            raise TypeError(f"{name} must be a function of a {of}, or None, got {ask!r}")
    if not isinstance(title, str):
        raise TypeError(f"title must be a str, got {title!r}")
    for name, store in (stores or {}).items():
        if not isinstance(name, str) or not callable(getattr(store, "counts", None)):
            raise TypeError(f"stores must map names to stores of durable tasks, got {name!r}: {store!r}")
    try:
        from ratelimited_executor.dashboard.app import make_app  # noqa: PLC0415  # an extra, imported on use
    except ImportError as error:
        raise ImportError("dashboard needs the extra: pip install 'ratelimited-executor[dashboard]'") from error
    return make_app(
        target,
        stores=stores or {},
        authorize=authorize,
        authorize_view=authorize_view,
        on_change=on_change,
        title=title,
    )
