"""The front as an application of Starlette: JSON in and out, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import json
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from ratelimited_executor._core.durable.tasks import DurableState, OnDuplicate
from ratelimited_executor._core.urls import masked_text
from ratelimited_executor._runtime.durable.codec import JSONCodec
from ratelimited_executor._runtime.durable.functions import ArgumentsTooLargeError
from ratelimited_executor._runtime.durable.putting import is_refusing
from ratelimited_executor._runtime.durable.repeating import is_of_repetition
from ratelimited_executor._runtime.durable.unique import Unique
from ratelimited_executor._runtime.log import LOGGER, Masked
from ratelimited_executor.dashboard.guards import HEADERS, StrictHeaders, is_granted, is_same_origin, with_body
from ratelimited_executor.exceptions import DuplicateTaskError, StoreUnavailableError
from ratelimited_executor.front.openapi import OPTIONS, TASKS_MAX, document

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request

    from ratelimited_executor._core.durable.tasks import Duplicate, EndedRow, NewTask, TaskRow
    from ratelimited_executor._runtime.durable.functions import DurableFunction
    from ratelimited_executor._runtime.durable.tasks import DurableTasks

__all__ = ["make_app"]

_BYTES_MAX: Final = 8 * 1024 * 1024  # of a request: a list of tasks is one transaction
_STORE_SECONDS: Final = 10.0  # for an answer of the store
_AWAY_SECONDS: Final = 5  # of Retry-After
_US: Final = 1e6
_TITLES: Final = {status.value: status.phrase for status in HTTPStatus} | {
    413: "Content Too Large",
    422: "Unprocessable Content",  # as Python 3.13 has them
}


class ProblemError(Exception):
    """A request cannot be carried out, and why.

    Args:
        status: the HTTP status.
        detail: what is wrong, and the remedy.
        members: further members of the problem; ``pointer`` says where in the body it is.
    """

    def __init__(self, status: int, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.members = {"title": _TITLES.get(status, "Error"), "status": status, "detail": detail, **members}


def make_app(
    tasks: DurableTasks,
    functions: Sequence[DurableFunction[..., Any]],
    *,
    authorize: Any,
    title: str,
) -> Starlette:
    """Make the application; see :func:`~ratelimited_executor.front.tasks_app`."""
    front = _Front(tasks, functions, authorize, title)
    return Starlette(
        routes=[
            front.route("/tasks", GET=("read", front.rows), POST=("put", front.put)),
            front.route("/tasks/{id:path}/requeue", POST=("requeue", front.requeue)),
            front.route("/tasks/{id:path}/end", GET=("result", front.end)),
            front.route("/tasks/{id:path}", GET=("read", front.row), DELETE=("cancel", front.cancel)),
            front.route("/counts", GET=("read", front.counts)),
            front.route("/openapi.json", GET=("read", front.description)),
        ],
        middleware=[Middleware(StrictHeaders)],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )


class _Front:
    """The answers about the tasks of some functions."""

    def __init__(
        self,
        tasks: DurableTasks,
        functions: Sequence[DurableFunction[..., Any]],
        authorize: Any,
        title: str,
    ) -> None:
        self._tasks = tasks
        self._functions = {(each.name, each.version): each for each in functions}
        self._authorize = authorize
        self._title = title

    def route(self, path: str, **methods: tuple[str, Callable[[Request], Awaitable[Response]]]) -> Route:
        """Return a route whose methods have an action each, which is asked for first, and whose errors are problems."""

        async def answer(request: Request) -> Response:
            action, handle = methods["GET" if request.method == "HEAD" else request.method]
            try:
                request = await with_body(request, _BYTES_MAX, _too_large)
                await self._check(request, action)
                with anyio.fail_after(_STORE_SECONDS):
                    return await handle(request)
            except ProblemError as error:
                return _problem(error)
            except DuplicateTaskError as error:
                return _problem(
                    ProblemError(409, f"A task with the same unique arguments exists: {error.id}.", id=error.id)
                )
            except (StoreUnavailableError, TimeoutError) as error:
                LOGGER.warning("front: %s: %r", action, Masked(error))  # the client learns nothing of servers and paths
                text = "The store of tasks cannot be used now. Try again: a put with an id can be repeated safely."
                return _problem(ProblemError(503, text), {"Retry-After": str(_AWAY_SECONDS)})

        return Route(path, answer, methods=[*methods])

    async def _check(self, request: Request, action: str) -> None:
        if action not in ("read", "result"):
            is_of_a_browser = "origin" in request.headers or "sec-fetch-site" in request.headers
            if is_of_a_browser and not is_same_origin(request.headers):
                raise ProblemError(403, "The request comes from a page of another site.")
        is_allowed = action == "read" if self._authorize is None else await is_granted(self._authorize, request, action)
        if not is_allowed:
            what = "see the results of" if action == "result" else action
            raise ProblemError(403, f"You are not allowed to {what} tasks here.")

    # Reading.

    async def rows(self, request: Request) -> Response:
        """List tasks in one state, or in any."""
        query = request.query_params
        state = query.get("state")
        states = {each.name.lower(): each for each in DurableState}
        if state is not None and state not in states:
            raise ProblemError(422, f"state must be one of {', '.join(states)}, got {state!r}")
        limit = _count_of("limit", query.get("limit", "100"), least=1, most=TASKS_MAX)
        after = _count_of("after", query.get("after", "0"), most=2**63 - 1)
        found = await self._tasks.rows(None if state is None else states[state], after=after, limit=limit)
        shown = [_shown(row) for row in found if self._is_shown(row)]
        return _answer({"tasks": shown, "next": found[-1].number if len(found) == limit else None})

    async def row(self, request: Request) -> Response:
        """Show one task."""
        return _answer(_shown(await self._row_of(request)))

    async def end(self, request: Request) -> Response:
        """Tell how a task has ended, if that is kept, and what it has returned."""
        try:
            [end] = await self._tasks.store.ended([self._tasks.ref(request.path_params["id"]).id])
        except ValueError:  # no id of a task
            end = None
        if isinstance(end, DurableState):
            state = (await self._row_of(request)).state  # not of others' tasks
            hint = "It stays so until it is requeued." if state is DurableState.DEAD else "Ask again later."
            raise ProblemError(409, f"The task has not ended: it is {state.name.lower()}. {hint}")
        if end is None or not self._is_shown(end):
            raise ProblemError(
                404, "There is no end of a task with this id: it was never put here, or its end is not kept."
            )
        return _answer({
            "id": end.id,
            "function": end.name,
            "version": end.version,
            "end": end.end,
            "failed_attempts": end.attempt_count,
            "started_at": end.started_us / _US,
            "ended_at": end.ended_us / _US,
            "result": self._result_of(end),
            "error": masked_text(end.error),
        })  # fmt: skip

    def _result_of(self, end: EndedRow) -> Any:
        """Return what a task has returned, as JSON; None for what another codec has encoded."""
        is_json = isinstance(self._tasks.codec, JSONCodec)
        return json.loads(end.result)[0] if is_json and end.result is not None else None

    async def counts(self, _request: Request) -> Response:
        """Count the tasks of the whole store."""
        counts = await self._tasks.counts()
        return _answer({state.name.lower(): counts.get(state, 0) for state in DurableState})

    async def description(self, request: Request) -> Response:
        """Describe the front."""
        return _answer(document(self._title, list(self._functions), request.scope.get("root_path", "")))

    def _is_shown(self, row: TaskRow | EndedRow) -> bool:
        return (row.name, row.version) in self._functions and row.queue == self._tasks.queue

    async def _row_of(self, request: Request) -> TaskRow:
        try:
            row = await self._tasks.ref(request.path_params["id"]).row()
        except ValueError:  # no id of a task
            row = None
        if row is None or not self._is_shown(row):
            raise ProblemError(404, "There is no task with this id: it has ended, or was never put here.")
        return row

    # Changing.

    async def put(self, request: Request) -> Response:
        """Put one task, or all of a list in one transaction."""
        given = await _json_of(request)
        key = _key_of(request)
        if not isinstance(given, list):
            ref = await self._tasks.put(self._new(given, "", key))
            status = 201 if ref.created else 200
            answer = {"id": ref.id, "created": bool(ref.created), "changed": ref.changed}
            return _answer(answer, status, {"Location": f"tasks/{quote(ref.id, safe='')}"})
        if key is not None:
            raise ProblemError(422, "Idempotency-Key is for one task: give each task of a list its own id.")
        if not 1 <= len(given) <= TASKS_MAX:
            raise ProblemError(422, f"A list must have 1 to {TASKS_MAX} tasks, got {len(given)}.", pointer="")
        new = [self._new(each, f"/{index}", None) for index, each in enumerate(given)]
        for index, task in enumerate(new):
            if is_refusing(task):
                text = "on_duplicate must not be refuse in a list: use keep, or put the task alone."
                raise ProblemError(422, text, pointer=f"/{index}/unique/on_duplicate")
        answers = await self._tasks.store.put(new)
        puts = [_put(task, answer) for task, answer in zip(new, answers, strict=True)]
        return _answer(puts, 201 if any(put["created"] for put in puts) else 200)

    async def cancel(self, request: Request) -> Response:
        """Cancel a task, or remove a dead letter."""
        await self._tasks.cancel((await self._row_of(request)).id)
        return Response(status_code=204)

    async def requeue(self, request: Request) -> Response:
        """Put a dead letter back."""
        row = await self._row_of(request)
        if not await self._tasks.requeue(row.id):
            raise ProblemError(409, f"Only dead letters can be requeued, and the task is {row.state.name.lower()}.")
        return Response(status_code=204)

    def _new(self, given: Any, at: str, key: str | None) -> NewTask:
        """Return a task as a client describes it; ``at`` is where in the body that is."""
        if not isinstance(given, dict):
            raise ProblemError(422, "A task must be an object with function, arguments and options.", pointer=at)
        options = dict(given)
        function = self._function_of(options, at)
        args, kwargs = _arguments_of(function, options.pop("arguments", {}), f"{at}/arguments")
        for name in options:
            if name not in OPTIONS:
                text = f"A task has no {name!r}; it has function, version, arguments, {', '.join(OPTIONS)}."
                raise ProblemError(422, text, pointer=_at(at, name))
        try:
            new = function.new(*args, **kwargs, **_options_of(options, key))
        except ArgumentsTooLargeError as error:
            raise ProblemError(413, str(error), pointer=f"{at}/arguments") from None
        except (TypeError, ValueError) as error:
            raise ProblemError(422, str(error), pointer=at) from None
        except RecursionError:
            raise ProblemError(422, "The arguments are nested too deeply.", pointer=f"{at}/arguments") from None
        if is_of_repetition(new):  # it would stop a repetition, perhaps of a function that cannot be put here
            raise ProblemError(422, "id and lane must not be of the form that those of repetitions have.", pointer=at)
        return new

    def _function_of(self, options: dict[str, Any], at: str) -> DurableFunction[..., Any]:
        name = options.pop("function", None)
        versions = {version: each for (known, version), each in self._functions.items() if known == name}
        if not versions:
            names = ", ".join(sorted({known for known, _ in self._functions}))
            raise ProblemError(422, f"function must be one of {names}, got {name!r}.", pointer=f"{at}/function")
        version = options.pop("version", max(versions))
        version = _whole(version) if isinstance(version, float) else version
        if isinstance(version, bool) or not isinstance(version, int) or version not in versions:
            known = ", ".join(map(str, sorted(versions)))
            raise ProblemError(422, f"version must be one of {known}, got {version!r}.", pointer=f"{at}/version")
        return versions[version]


def _arguments_of(function: DurableFunction[..., Any], given: Any, at: str) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments, of which one kind is given in JSON: a list, or an object."""
    if not isinstance(given, (list, dict)):
        raise ProblemError(422, "arguments must be an object of named arguments, or a list.", pointer=at)
    pairs = given.items() if isinstance(given, dict) else enumerate(given)
    read: dict[Any, Any] = {}
    for name, value in pairs:
        if name in OPTIONS or name == "connection":
            raise ProblemError(422, f"{name} is not an argument of {function.name}.", pointer=_at(at, name))
        try:
            read[name] = function.from_json(name, value)
        except Exception as error:  # noqa: BLE001  # of any class that an annotation names
            text = f"The argument {name!r} cannot be read: {type(error).__name__}: {error}"
            raise ProblemError(422, text, pointer=_at(at, name)) from None
    return ([], read) if isinstance(given, dict) else (list(read.values()), {})


def _options_of(options: dict[str, Any], key: str | None) -> dict[str, Any]:
    """Return options of ``put`` as they are given in JSON, where each that is there has a value.

    Raises:
        TypeError: if one has a wrong type.
        ValueError: if one has a wrong value.
    """
    for name, value in options.items():
        if value is None and name != "expires":
            raise TypeError(f"{name} must not be null: leave it out")
        if name in ("delay", "expires") and isinstance(value, str):
            raise TypeError(f"{name} must be a number of seconds, got {value!r}")
        if name in ("key", "cost"):
            options[name] = _whole(value)
    if key is not None and options.setdefault("id", key) != key:
        raise ValueError(f"id must be that of the header Idempotency-Key, {key!r}, got {options['id']!r}")
    if isinstance(options.get("at"), str):
        try:
            options["at"] = datetime.fromisoformat(options["at"])
        except ValueError:
            raise ValueError(
                f"at must be epoch seconds, or as in 2026-03-04T09:00:00Z, got {options['at']!r}"
            ) from None
    if "unique" in options:
        options["unique"] = _unique_of(options["unique"])
    return options


def _whole(value: Any) -> Any:
    """Return an integer for a number such as 2.0, which is one in JSON Schema; also those in an object."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unique_of(given: Any) -> Unique | bool:
    if given is True:
        return True
    if not isinstance(given, dict) or not given.keys() <= Unique.__dataclass_fields__.keys():
        raise TypeError(
            f"unique must be true, or an object with {', '.join(Unique.__dataclass_fields__)}, got {given!r}"
        )
    for name, value in given.items():
        if value is None or (name in ("period", "delay_max") and isinstance(value, str)):
            raise TypeError(f"{name} must be {'left out' if value is None else 'a number of seconds'}, got {value!r}")
    members = {each.value: each for each in OnDuplicate}
    chosen = str(given.get("on_duplicate", OnDuplicate.KEEP.value))
    if chosen not in members:
        raise ValueError(f"on_duplicate must be one of {', '.join(members)}, got {chosen!r}")
    return Unique(**{**given, "on_duplicate": members[chosen]})


def _put(task: NewTask, answer: bool | Duplicate) -> dict[str, Any]:
    if isinstance(answer, bool):
        return {"id": task.id, "created": answer, "changed": False}
    return {"id": answer.id, "created": False, "changed": answer.is_changed}


def _shown(row: TaskRow) -> dict[str, Any]:
    """Return a task for a client: all but what may be secret, its arguments and parts of URLs in its error."""
    return {
        "id": row.id,
        "number": row.number,
        "function": row.name,
        "version": row.version,
        "state": row.state.name.lower(),
        "put_at": row.put_us / _US,
        "due_at": row.due_us / _US,
        "priority": row.priority,
        "lane": row.lane,
        "key": row.key,
        "failed_attempts": row.attempt_count,
        "lost_count": row.lost_count,
        "is_cancelled": row.is_cancelled,
        "error": masked_text(row.error_line),
    }


async def _json_of(request: Request) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ProblemError(415, f"The body must be JSON, with the header Content-Type: application/json, got {kind!r}.")
    try:
        return json.loads(await request.body(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProblemError(400, f"The body is not valid JSON: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _key_of(request: Request) -> str | None:
    """Return the header ``Idempotency-Key``, plain or, as its draft standard wants, as a string in quotes."""
    key = request.headers.get("idempotency-key")
    return key[1:-1] if key is not None and len(key) > 1 and key[0] == key[-1] == '"' else key


def _count_of(name: str, text: str, *, least: int = 0, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise ProblemError(422, f"{name} must be a number from {least} to {most}, got {text!r}")
    return int(text)


def _at(at: str, name: str | int) -> str:
    """Return a pointer to a member (RFC 6901)."""
    return f"{at}/{str(name).replace('~', '~0').replace('/', '~1')}"


def _answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")  # ASCII: a text may have lone surrogates


def _problem(error: ProblemError, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(error.members), error.status, headers, "application/problem+json")


def _too_large() -> ProblemError:
    return ProblemError(413, f"A request must have at most {_BYTES_MAX:,} bytes: put fewer tasks at once.")


async def _refused(_request: Request, error: Exception) -> Response:
    """Answer what Starlette or ``authorize`` refuses."""
    assert isinstance(error, HTTPException)
    return _problem(ProblemError(error.status_code, error.detail), dict(error.headers or {}))


async def _failed(_request: Request, _error: Exception) -> Response:
    """Answer for an error of ours or of the user's code; the server logs it."""
    return _problem(ProblemError(500, "The request could not be carried out: see the server's log."), HEADERS)
