"""The same from outside: what the processes of a group have told Redis, whoever runs them. Nothing can be changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from starlette.routing import Route

from ratelimited_executor.dashboard.app import Pages
from ratelimited_executor.dashboard.errors import PageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["make_group_app"]


def make_group_app(
    *,
    groups: Callable[[], Awaitable[Sequence[str]]],
    read: Callable[[str], Awaitable[Any]],
    title: str,
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """Make an application that shows groups.

    Args:
        groups: returns their names.
        read: returns the rates, limits and slots of one, as ``peers`` and ``slots`` of the command line show them.
        title: at the head of each page.
        clock: returns epoch seconds.

    ``groups`` and ``read`` raise :class:`PageError` if they cannot.
    """
    pages = Pages(title=title, clock=clock)

    async def overview(request: Request) -> Response:  # noqa: ARG001  # the shape of a handler
        return await pages.render("groups.html", groups=await groups())

    async def group(request: Request) -> Response:
        name = request.query_params.get("name", "")
        if name not in await groups():
            raise PageError(404, f"There is no group {name!r}, or none of its processes is left.")
        return await pages.render("group.html", group=await read(name))

    return pages.app(Route("/", pages.page(overview)), Route("/group", pages.page(group)))
