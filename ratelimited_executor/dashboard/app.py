"""The pages as an application of Starlette, to be mounted in another or to be served alone.

Every page is a whole one, which works without a script. The script fetches the page that it stands on again every two seconds,
and takes over what has changed. It polls instead of being notified, because a stream of events that stays open keeps a server from
shutting down for as long as somebody has the page open.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ratelimited_executor._core.escapes import visible
from ratelimited_executor._core.urls import masked_text
from ratelimited_executor.dashboard.changes import ACTIONS, OF_EXECUTORS, OF_STORES, Changes
from ratelimited_executor.dashboard.errors import PageError
from ratelimited_executor.dashboard.guards import (
    HEADERS,
    StrictHeaders,
    is_granted,
    is_same_origin,
    stranger_text,
    with_body,
)
from ratelimited_executor.dashboard.permissions import Permissions
from ratelimited_executor.dashboard.process import process_text
from ratelimited_executor.dashboard.recording import HistoryRecorder
from ratelimited_executor.dashboard.stores import Stores
from ratelimited_executor.dashboard.texts import (
    STATES,
    count_text,
    hold_text,
    name_text,
    plan_text,
    seconds_text,
    time_text,
)
from ratelimited_executor.dashboard.trouble import failure_rows, longest_running, running_rows
from ratelimited_executor.dashboard.views import (
    COLUMNS,
    PAGE_SIZE,
    SORTS,
    batches_of,
    epoch_of,
    explanation_of,
    figures_of,
    overview_of,
    plots_of,
    state_of,
    task_of,
    tasks_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from starlette.requests import Request

    from ratelimited_executor._runtime.life.executor import ExecutorManager, RateLimitedExecutor
    from ratelimited_executor.abc import TaskStore
    from ratelimited_executor.dashboard.recording import RecordedHistory

__all__ = ["Pages", "make_app", "page_number"]

_BODY_BYTES_MAX: Final = 10_000  # of a form
_FIRST_COUNT: Final = 10  # rows of a list on a page with several, until a reader asks for all of them
_FEW_COUNT: Final = 5  # the same where a row takes several lines, or says little
_SECTIONS: Final = ("failures", "running", "batches", "keys", "tasks", "dead", "lanes", "ended")


def _templates() -> Environment:
    """Return what renders the pages: whatever is written into them is escaped, and what is not there is an error.

    Invisible characters are escaped as well, except where the text comes back as a form's value: see ``raw``.
    """
    environment = Environment(
        loader=PackageLoader("ratelimited_executor.dashboard"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=count_text,
        masked=masked_text,
        name=name_text,
        plan=plan_text,
        seconds=seconds_text,
        query=_query,
        raw=escape,
    )
    return environment


def _visible(value: Any) -> Any:
    """Return a value to write, with escapes in place of invisible characters unless it is markup; lines stay lines."""
    return visible(value, keep="\n\t") if isinstance(value, str) and not isinstance(value, Markup) else value


def _query(values: Mapping[str, Any]) -> str:
    """Write a query; lone surrogates, which no address can have, as question marks."""
    return urlencode(values, errors="replace")


class Pages:
    """Renders pages, and turns errors into pages.

    Args:
        title: at the head of each page.
        clock: returns epoch seconds.
        authorize_view: decides who may look.
        process: names the process that the pages show; None if they show several.
    """

    def __init__(
        self,
        *,
        title: str,
        clock: Callable[[], float],
        authorize_view: Any = None,
        process: Callable[[], str] | None = None,
    ) -> None:
        self.clock = clock
        self._process = process or str
        self._title = title
        self._authorize_view = authorize_view
        self._environment = _templates()

    async def render(self, template: str, *, status: int = 200, is_live: bool = True, **values: Any) -> HTMLResponse:
        """Render a page; a live one fetches its address again and again, which the answer to a form does not have."""
        page = self._environment.get_template(template).render(
            title=self._title,
            now=time_text(self.clock()),
            status=status,
            is_live=is_live,
            **{"process": self._process(), **values},
        )
        return HTMLResponse(page.encode(errors="replace"), status_code=status)  # a name may have lone surrogates

    def page(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that asks first who looks, and shows errors as pages."""

        async def answer(request: Request) -> Response:
            is_seen = False
            try:
                if request.method == "POST":
                    request = await with_body(request, _BODY_BYTES_MAX, _too_large)
                if self._authorize_view is not None and not await is_granted(self._authorize_view, request):
                    raise PageError(403, "You are not allowed to see this page.")
                is_seen = True
                return await handle(request)
            except PageError as error:
                more = {} if is_seen else {"process": ""}
                return await self._error(request, error.status, error.message, back=error.back, **more)

        return answer

    def app(self, *routes: Route, middleware: Sequence[Middleware] = (), lifespan: Any = None) -> Starlette:
        """Return the application of some pages, and of the script and the style that they use."""
        static = Mount("/static", StaticFiles(packages=[("ratelimited_executor.dashboard", "static")]))
        return Starlette(
            routes=[*routes, static],
            middleware=[Middleware(StrictHeaders), *middleware],
            exception_handlers={Exception: self._failed},
            lifespan=lifespan,
        )

    async def _error(self, request: Request, status: int, message: str, **values: Any) -> Response:
        is_live = request.method != "POST"
        return await self.render(
            "error.html", **{"back": None, **values}, status=status, is_live=is_live, message=message
        )

    async def _failed(self, request: Request, _error: Exception) -> Response:
        """Answer for a page that raises; the server logs the error."""
        page = await self._error(request, 500, "The page could not be rendered: see the server's log.", process="")
        page.headers.update(HEADERS)  # Starlette answers outside of what sets them otherwise
        return page


def make_app(
    target: RateLimitedExecutor | ExecutorManager,
    *,
    stores: Mapping[str, TaskStore],
    authorize: Any,
    authorize_view: Any,
    on_change: Any,
    title: str,
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """Make the application; see :func:`~ratelimited_executor.dashboard.dashboard`."""
    pages = Pages(title=title, clock=clock, authorize_view=authorize_view, process=process_text)
    site = _Site(target, pages, stores, authorize, on_change)
    app = pages.app(
        Route("/", pages.page(site.overview)),
        Route("/executor", pages.page(site.executor)),
        Route("/task", pages.page(site.task)),
        Route("/store", pages.page(site.store)),
        Route("/change", pages.page(site.change), methods=["POST"]),
    )
    app.state.recorder = site.recorder
    return app


class _Site:
    """The pages of one manager."""

    def __init__(
        self,
        target: RateLimitedExecutor | ExecutorManager,
        pages: Pages,
        stores: Mapping[str, TaskStore],
        authorize: Any,
        on_change: Any,
    ) -> None:
        self.recorder = HistoryRecorder(target, self)
        self._pages = pages
        self._stores = Stores(stores, self._epoch)
        self._permissions = Permissions(authorize)
        self._changes = Changes(
            self._recorded_of,
            self._stores,
            on_change=on_change,
            clock=pages.clock,
        )

    def _epoch(self) -> float:
        """Return epoch seconds on the timeline of the executors."""
        return self.recorder.epoch() or self._pages.clock()

    # Looking.

    async def overview(self, request: Request) -> Response:
        """Show what is wrong, all executors, pools of slots and stores."""
        sort = _one_of(request, "sort", tuple(SORTS), "trouble")
        state = _one_of(request, "state", ("", *STATES), "")
        find, recorded = request.query_params.get("find", ""), self.recorder.recorded
        failures, now = self.recorder.failures.latest(), self._epoch()
        return await self._pages.render(
            "overview.html",
            overview=overview_of(recorded, find=find, state=state, sort=sort, page=page_number(request)),
            columns=COLUMNS,
            sorts=SORTS,
            here={"find": find, "state": state, "sort": sort},
            failures=failure_rows(failures, now, _row_count(request, "failures", _FEW_COUNT)),
            failure_count=len(failures),
            running=longest_running(recorded.values(), _FEW_COUNT),
            changes=[(each, time_text(each.at)) for each in self._changes.latest],
            pools=[pool.statistics() for pool in self.recorder.pools],
            stores=await self._stores.rows(),
        )

    async def executor(self, request: Request) -> Response:
        """Show one executor."""
        return await self._executor(request, self._recorded_of(request.query_params))

    async def _executor(
        self, request: Request, recorded: RecordedHistory, *, typed: str = "", problem: str = "", question: str = ""
    ) -> Response:
        """Show one executor; after a rate that was not set, with what was typed and why, and without refreshing itself."""
        executor, statistics = recorded.executor, recorded.statistics()
        if statistics is None:
            raise PageError(404, f"The executor {executor.name} has not started.")
        recorded.ask_for_group_rate()
        find, now = request.query_params.get("find", ""), epoch_of(executor)
        tasks, keys, is_all = tasks_of(recorded, now, find)
        batches, batch_count = batches_of(executor)
        failures = recorded.failures.ring.latest()
        return await self._pages.render(
            "executor.html",
            status=409 if problem else 200,
            is_live=not problem,
            typed=typed,
            problem=problem,
            question=question,
            executor=executor,
            statistics=statistics,
            state=state_of(recorded, statistics),
            figures=figures_of(recorded, statistics),
            plots=plots_of(recorded.history, now),
            failures=failure_rows(failures, now, _row_count(request, "failures", _FEW_COUNT)),
            failure_count=len(failures),
            running=running_rows(recorded, _row_count(request, "running")),
            changes=[(each, time_text(each.at)) for each in self._changes.of(executor.name, OF_EXECUTORS)],
            batches=batches[: _row_count(request, "batches")],
            batch_count=batch_count,
            tasks=tasks[: _row_count(request, "tasks")],
            task_count=len(tasks),
            keys=keys[: _row_count(request, "keys", _FEW_COUNT)],
            key_count=len(keys),
            is_all=is_all,
            held={each.resource: each.left for each in statistics.limits if each.kind == "group"},
            find=find,
            group_rate=recorded.group_rate(),
            former_rate=recorded.former_rate,
            may=await self._permissions.of(request, OF_EXECUTORS, executor.name),
        )

    async def task(self, request: Request) -> Response:
        """Explain a task that waits."""
        recorded, task_id = self._recorded_of(request.query_params), request.query_params.get("id", "")
        task = task_of(recorded, task_id)
        if task is None:
            raise PageError(404, "The task is no longer waiting: it has started, or ended without starting.")
        now = epoch_of(recorded.executor)
        explanation, is_exact = explanation_of(recorded.executor, task)
        expected = explanation.expected_start
        return await self._pages.render(
            "task.html",
            executor=recorded.executor,
            task=task,
            task_id=task_id,
            due=time_text(task.due),
            explanation=explanation,
            meaning=hold_text(explanation.hold),
            is_exact=is_exact,
            expected=None if expected is None else (time_text(expected), max(0.0, expected - now)),
            overdue=max(0.0, now - task.due),
            may=await self._permissions.of(request, ("cancel-task",), recorded.executor.name),
        )

    async def store(self, request: Request) -> Response:
        """Show a store of durable tasks, its dead letters, and the tasks that have ended."""
        name = request.query_params.get("name", "")
        may = await self._permissions.of(request, OF_STORES, name)
        after = _number_of(request, "after", 0)
        page = await self._stores.page(name, after=after, count=_number_of(request, "errors", 0))
        return await self._pages.render(
            "store.html",
            name=name,
            page=page,
            after=after,
            dead=page.dead[: _row_count(request, "dead")],
            lanes=page.lanes[: _row_count(request, "lanes")],
            ended=page.ended[: _row_count(request, "ended")],
            changes=[(each, time_text(each.at)) for each in self._changes.of(name, OF_STORES)],
            may=may,
        )

    def _recorded_of(self, values: Mapping[str, str]) -> RecordedHistory:
        recorded = self.recorder.recorded_of(values.get("name", ""))
        if recorded is None:
            raise PageError(404, "There is no such executor, or it has closed.")
        return recorded

    # Changing.

    async def change(self, request: Request) -> Response:
        """Change something, and go back to the page of what was changed."""
        form = dict(parse_qsl((await request.body()).decode(errors="replace"), keep_blank_values=True))
        action, name = form.get("action", ""), form.get("name", "")
        if not is_same_origin(request.headers):
            raise self._refused(form, request, stranger_text(request.headers))
        if action not in ACTIONS:
            raise PageError(400, f"action must be one of {', '.join(ACTIONS)}, got {name_text(action)!r}")
        if not await self._permissions.may(request, action, name):
            raise self._refused(form, request, "You are not allowed to make this change.")
        back = f"{'store' if action in OF_STORES else 'executor'}?{_query({'name': name})}"
        try:
            await self._changes.make(form, request)
        except PageError as error:
            if error.field == "rate":
                return await self._executor(
                    request,
                    self._recorded_of(form),
                    typed=form.get("rate", ""),
                    problem=error.message,
                    question=error.question,
                )
            error.back = back
            raise
        return RedirectResponse(back, status_code=303)

    def _refused(self, form: Mapping[str, str], request: Request, reason: str) -> PageError:
        """Log that a change is not allowed, and return that as an error."""
        self._changes.refuse(form.get("action", ""), form.get("name", ""), request, reason)
        return PageError(403, reason)


def _too_large() -> PageError:
    return PageError(413, f"A form must have at most {_BODY_BYTES_MAX} bytes.")


def _one_of(request: Request, parameter: str, values: Collection[str], default: str) -> str:
    """Return a parameter that has one of some values."""
    value = request.query_params.get(parameter, default)
    if value not in values:
        raise PageError(400, f"{parameter} must be one of {', '.join(filter(None, values))}, got {name_text(value)!r}")
    return value


def _row_count(request: Request, section: str, first_count: int = _FIRST_COUNT) -> int:
    """Return how many rows a list has: a reader may ask for all of one list of a page."""
    return PAGE_SIZE if _one_of(request, "show", ("", *_SECTIONS), "") == section else first_count


def page_number(request: Request) -> int:
    """Return the number of a page of a list, which a request may name."""
    return _number_of(request, "page", 1)


def _number_of(request: Request, parameter: str, least: int) -> int:
    """Return a parameter that is a number, the least one by default."""
    text = request.query_params.get(parameter, str(least))
    if not (text.isascii() and text.isdigit() and len(text) <= 18):  # more digits than the number of any task has
        raise PageError(400, f"{parameter} must be a number from {least} on, got {text!r}")
    return int(text)
