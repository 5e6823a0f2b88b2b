"""An HTTP front for durable tasks: programs in any language put them, look at them, cancel and requeue them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from ratelimited_executor._runtime.durable.functions import DurableFunction
from ratelimited_executor._runtime.durable.tasks import DurableTasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Any

    from starlette.applications import Starlette
    from starlette.requests import Request

__all__ = ["Action", "AuthorizeAction", "tasks_app"]

Action: TypeAlias = Literal["read", "result", "put", "cancel", "requeue"]
"""What a request asks for."""

AuthorizeAction: TypeAlias = "Callable[[Request, Action], bool | Awaitable[bool]]"


def tasks_app(
    tasks: DurableTasks,
    *,
    functions: Iterable[DurableFunction[..., Any]],
    authorize: AuthorizeAction | None = None,
    title: str = "Durable tasks",
) -> Starlette:
    """Return an HTTP front for durable tasks, as an application of Starlette to mount in another.

    FastAPI mounts it too: ``app.mount("/queue", tasks_app(tasks, functions=[deliver], authorize=ask))``. The tasks must be open,
    on the same event loop: ``async with tasks:``, or ``tasks.running(executor)``. It describes itself at ``/openapi.json``.

    Anybody who reaches it may read, unless ``authorize`` is given. Nobody may see results, put, cancel or requeue unless it is.

    Args:
        tasks: the durable tasks.
        functions: whose tasks can be put, seen, cancelled and requeued; those of all others cannot.
        authorize: called with each request and its action, returns True if it is allowed. May return an awaitable.
        title: of the description.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if a function is not one of these tasks.
        ImportError: if the extra ``front`` is not installed.
    """
    if not isinstance(tasks, DurableTasks):
        raise TypeError(f"tasks must be DurableTasks, got {tasks!r}")
    known = list(functions)
    for function in known:
        if not isinstance(function, DurableFunction):
            raise TypeError(f"functions must be durable functions, made by @tasks.task, got {function!r}")
        if tasks.functions.get((function.name, function.version)) is not function:
            raise ValueError(f"functions must be those of {tasks!r}, got {function!r}")
    if authorize is not None and not callable(authorize):
        raise TypeError(f"authorize must be a function of a request and an action, or None, got {authorize!r}")
    if not isinstance(title, str):
        raise TypeError(f"title must be a str, got {title!r}")
    try:
        from ratelimited_executor.front.app import make_app  # noqa: PLC0415  # an extra, imported on use
    except ImportError as error:
        raise ImportError("tasks_app needs the extra: pip install 'ratelimited-executor[front]'") from error
    return make_app(tasks, known, authorize=authorize, title=title)
