"""The description of the front in OpenAPI 3.1."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from sys import float_info
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durable.tasks import SPAN_MAX, DurableState, OnDuplicate

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OPTIONS", "TASKS_MAX", "document"]

TASKS_MAX: Final = 1000
"""Tasks in a list, put or read."""

_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[^\u0000]*$"}
_SECONDS: Final = {"type": "number", "minimum": 0, "maximum": SPAN_MAX, "description": "seconds"}
_SPAN: Final = {"type": "number", "exclusiveMinimum": 0, "maximum": SPAN_MAX, "description": "seconds"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_UNIQUE: Final = {
    "type": "object",
    "properties": {
        "by": {
            "type": "array",
            "items": {"type": "string"},
            "description": "names of the arguments that are compared; all if left out",
        },
        "period": {**_SPAN, "maximum": 86_400},
        "while_running": {"type": "boolean"},
        "on_duplicate": {"enum": [each.value for each in OnDuplicate], "default": OnDuplicate.KEEP.value},
        "delay_max": _SPAN,
    },
    "additionalProperties": False,
}
OPTIONS: Final[dict[str, Any]] = {
    "delay": {**_SECONDS, "description": "seconds from now until the task is due"},
    "at": {
        "oneOf": [
            {"type": "number", "minimum": -SPAN_MAX, "maximum": SPAN_MAX},
            {"type": "string", "format": "date-time"},
        ],
        "description": "the due time: epoch seconds, or a date and time with its offset from UTC",
    },
    "priority": {
        "type": "number",
        "minimum": -float_info.max,
        "maximum": float_info.max,
        "description": "a larger one is more important",
    },
    "expires": {
        **_SPAN,
        "type": ["number", "null"],
        "description": "seconds after the due time within which an attempt must start",
    },
    "lane": {**_TEXT, "description": "the tasks of a lane run one at a time, in the order of their due times"},
    "id": {**_TEXT, "description": "a second put with the same id does nothing"},
    "key": {"oneOf": [_TEXT, {"type": "integer"}], "description": "the tenant or account that the task is for"},
    "cost": {
        "oneOf": [
            {"type": "integer", "minimum": 1},
            {"type": "object", "propertyNames": _TEXT, "additionalProperties": _COUNT},
        ],
        "description": "the number of permits, or the amount of each resource",
    },
    "unique": {
        "oneOf": [{"const": True}, _UNIQUE],
        "description": "nothing is put while a task of the function with equal arguments exists",
    },
}
"""The schemas of the options of a put."""


def document(title: str, functions: Sequence[tuple[str, int]], prefix: str) -> dict[str, Any]:
    """Return the description.

    Args:
        title: its title.
        functions: the names and versions of the functions that can be put.
        prefix: the path at which the front is mounted.
    """
    try:
        release = version("ratelimited-executor")
    except PackageNotFoundError:  # a checkout that is not installed
        release = "0"
    id_in_path = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    put = {"oneOf": [_ref("Put"), {"type": "array", "items": _ref("Put")}]}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": release},
        "servers": [{"url": prefix or "/"}],
        "paths": {
            "/tasks": {
                "get": _operation(
                    "list_tasks", "List tasks in the order of their numbers; follow `next`, as a page may have fewer tasks than `limit`",
                    {200: ("A page of tasks", _ref("Page"))},
                    (422,),
                    parameters=[
                        _query("state", {"enum": _states()}),
                        _query("after", {**_COUNT, "maximum": 2**63 - 1, "default": 0}),
                        _query("limit", {"type": "integer", "minimum": 1, "maximum": TASKS_MAX, "default": 100}),
                    ],
                ),
                "post": _operation(
                    "put_tasks", "Put a task, or a list of tasks as a whole",
                    {201: ("Something was created", put), 200: ("All existed", put)},
                    (400, 409, 413, 415, 422),
                    parameters=[{"name": "Idempotency-Key", "in": "header", "schema": _TEXT, "description": "the id"}],
                    requestBody={"required": True, "content": {"application/json": {"schema": {"oneOf": [
                        _ref("Task"),
                        {"type": "array", "minItems": 1, "maxItems": TASKS_MAX, "items": _ref("Task")},
                    ]}}}},
                ),
            },
            "/tasks/{id}": {
                "parameters": [id_in_path],
                "get": _operation("get_task", "Look at a task", {200: ("The task", _ref("Row"))}, (404,)),
                "delete": _operation("cancel_task", "Cancel a task, or remove a dead letter", {204: ("Cancelled", None)}, (404,)),
            },
            "/tasks/{id}/end": {
                "parameters": [id_in_path],
                "get": _operation(
                    "get_end", "How a task has ended, for functions whose ends are kept", {200: ("The end", _ref("End"))}, (404, 409)
                ),
            },
            "/tasks/{id}/requeue": {
                "parameters": [id_in_path],
                "post": _operation("requeue_task", "Put a dead letter back", {204: ("Requeued", None)}, (404, 409)),
            },
            "/counts": {
                "get": _operation("count_tasks", "Count the tasks of the store by state", {200: ("The counts", _ref("Counts"))}, ()),
            },
            "/openapi.json": {
                "get": _operation("describe", "This description", {200: ("The description", {"type": "object"})}, ()),
            },
        },
        "components": {"schemas": _schemas(functions)},
    }  # fmt: skip


def _operation(
    name: str, summary: str, good: dict[int, tuple[str, dict[str, Any] | None]], problems: Sequence[int], **more: Any
) -> dict[str, Any]:
    responses = {
        str(status): {"description": text} | ({} if schema is None else _content("application/json", schema))
        for status, (text, schema) in good.items()
    }
    for status in (*problems, 403, 503):
        responses[str(status)] = {
            "description": _PROBLEMS[status],
            **_content("application/problem+json", _ref("Problem")),
        }
    responses["503"]["headers"] = {"Retry-After": {"schema": _COUNT, "description": "seconds"}}
    return {"operationId": name, "summary": summary, "responses": responses, **more}


_PROBLEMS: Final = {
    400: "The body is not JSON",
    403: "The request is not allowed",
    404: "There is no such task",
    409: "The task exists and is refused, or is not a dead letter, or has not ended",
    413: "The request, or the arguments of a task, are too large",
    415: "The body is not declared to be JSON",
    422: "The request is JSON, and an argument is wrong",
    503: "The store cannot be used now",
}


def _content(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {kind: {"schema": schema}}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


def _states() -> list[str]:
    return [state.name.lower() for state in DurableState]


def _object(properties: dict[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the schema of an object with these members; all are required unless some are named."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
    }


def _schemas(functions: Sequence[tuple[str, int]]) -> dict[str, Any]:
    text, number, flag = {"type": "string"}, {"type": "number"}, {"type": "boolean"}
    arguments = {
        "oneOf": [
            {"type": "object", "propertyNames": {"not": {"enum": [*OPTIONS, "connection"]}}},
            {"type": "array"},
        ],
        "description": "by name, or in order",
    }
    task = _object(
        {
            "function": {"enum": sorted({name for name, _ in functions})},
            "version": {"enum": sorted({number for _, number in functions}), "description": "the last if left out"},
            "arguments": arguments,
            **OPTIONS,
        },
        ["function"],
    )
    row = _object({
        "id": text, "number": _COUNT, "function": text, "version": _COUNT, "state": {"enum": _states()}, "put_at": number,
        "due_at": number, "priority": number, "lane": {"type": ["string", "null"]}, "key": {"type": ["string", "integer", "null"]},
        "failed_attempts": _COUNT, "lost_count": _COUNT, "is_cancelled": flag, "error": text,
    })  # fmt: skip
    end = _object({
        "id": text, "function": text, "version": _COUNT, "end": {"enum": ["done", "cancelled", "expired"]}, "failed_attempts": _COUNT,
        "started_at": number, "ended_at": number, "result": {"description": "what the function has returned, if that is kept"},
        "error": text,
    })  # fmt: skip
    return {
        "Task": {
            **task,
            "additionalProperties": False,
            "not": {"anyOf": [{"required": ["delay", "at"]}, {"required": ["id", "unique"]}]},
        },
        "Put": _object({"id": text, "created": flag, "changed": flag}),
        "Row": row,
        "End": end,
        "Page": _object({
            "tasks": {"type": "array", "items": _ref("Row")},
            "next": {"type": ["integer", "null"], "description": "`after` of the next page"},
        }),
        "Counts": _object(dict.fromkeys(_states(), _COUNT)),
        "Problem": _object(
            {"title": text, "status": {"type": "integer"}, "detail": text, "pointer": text, "id": text},
            ["title", "status", "detail"],
        ),
    }  # fmt: skip
