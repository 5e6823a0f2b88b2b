"""The page of groups: the state that their processes keep in Redis. Read-only."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from starlette.middleware import Middleware
from starlette.routing import Route

from ratelimited_executor.dashboard.app import Pages, page_number
from ratelimited_executor.dashboard.errors import PageError
from ratelimited_executor.dashboard.group_history import GROUP_COUNT_MAX, SERIES_COUNT_MAX, GroupRecorder
from ratelimited_executor.dashboard.group_list import group_list_of, worst_first
from ratelimited_executor.dashboard.guards import KnownHosts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["make_group_app"]

_SEARCH_SECONDS: Final = 5.0  # between two searches for groups while somebody looks


def make_group_app(
    *,
    groups: Callable[[float], Awaitable[Sequence[str]]],
    read: Callable[[str], Awaitable[Any]],
    title: str,
    hosts: Collection[str],
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """Make an application that shows groups, and records them for as long as it runs.

    Args:
        groups: returns their names, as they were at most so many seconds ago.
        read: returns the limits and slots of one, as ``peers`` and ``slots`` of the command line show them.
        title: at the head of each page.
        hosts: names and addresses under which the pages are served.
        clock: returns epoch seconds.

    ``groups`` and ``read`` raise :class:`PageError` if they cannot.
    """
    pages = Pages(title=title, clock=clock)
    recorder = GroupRecorder(groups=groups, read=read, clock=clock)

    async def overview(request: Request) -> Response:
        find, names = request.query_params.get("find", ""), await groups(_SEARCH_SECONDS)
        listed = group_list_of(names, recorder.latest, find=find, page=page_number(request))
        return await pages.render("groups.html", groups=listed, find=find, group_count_max=GROUP_COUNT_MAX)

    async def group(request: Request) -> Response:
        name = request.query_params.get("name", "")
        picture, problem = None, None
        try:
            if name not in await groups(_SEARCH_SECONDS):
                raise PageError(404, f"There is no group {name!r}; its processes may have stopped.")
            picture = await read(name)
        except PageError as error:
            if error.status == 404 or not recorder.is_recorded(name):
                raise
            problem = error  # its history is shown all the same
        plots = recorder.plots(name)
        return await pages.render(
            "group.html",
            status=200 if problem is None else problem.status,
            name=name,
            group=picture,
            limits=() if picture is None else worst_first(picture.limits),
            problem=None if problem is None else problem.message,
            plots=plots,
            names=dict.fromkeys(series[1] for series in plots if series[0] != "pool"),
            has_pools=any(series[0] == "pool" for series in plots),
            is_recorded=recorder.is_recorded(name),
            group_count_max=GROUP_COUNT_MAX,
            series_count_max=SERIES_COUNT_MAX,
        )

    @asynccontextmanager
    async def recording(_app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(recorder.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    app = pages.app(
        Route("/", pages.page(overview)),
        Route("/group", pages.page(group)),
        middleware=[Middleware(KnownHosts, hosts, "start the command with --allow-host for it, or with --host")],
        lifespan=recording,
    )
    app.state.recorder = recorder
    return app
