"""The front does what its description says, for requests that schemathesis makes from it, on a store in a file."""

import asyncio
from collections import Counter

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ratelimited_executor.durable import DurableTasks, SQLiteStore
from ratelimited_executor.front import tasks_app

from ..helpers import skip_without_apsw

schemathesis = pytest.importorskip(
    "schemathesis", reason="the extra test is not installed, or has none for this Python"
)
from schemathesis.generation import GenerationMode  # noqa: E402
from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

skip_without_apsw()
pytestmark = pytest.mark.real_time("a file's store has a thread")
SETTINGS = settings(
    max_examples=8,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """Return the description of a front, and a function that sends it a request, on a loop of its own."""
    tasks = DurableTasks(SQLiteStore(tmp_path_factory.mktemp("front") / "tasks.db"))

    @tasks.task
    async def note(*_values, **_more): ...

    app = tasks_app(tasks, functions=[note], authorize=lambda _request, _action: True)
    with asyncio.Runner() as runner:
        runner.run(tasks.__aenter__())
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
        for id in ("0", "a"):  # which generated requests may hit
            runner.run(note.put(id, id=id, delay=1e6))
        yield (
            schemathesis.openapi.from_dict(runner.run(web.get("/openapi.json")).json()),
            lambda *args, **options: runner.run(web.request(*args, **options)),
        )
        runner.run(web.aclose())
        runner.run(tasks.__aexit__(None, None, None))


OPERATIONS = [
    ("/tasks", "POST"), ("/tasks", "GET"), ("/tasks/{id}", "GET"), ("/tasks/{id}", "DELETE"), ("/tasks/{id}/requeue", "POST"),
    ("/tasks/{id}/end", "GET"),
    ("/counts", "GET"), ("/openapi.json", "GET"),
]  # fmt: skip


def test_description_is_valid_and_has_no_other_operations(front):
    """The description is one of OpenAPI 3.1, and its operations are those of the list."""
    front[0].validate()
    paths = front[0].raw_schema["paths"]
    assert set(OPERATIONS) == {(path, m.upper()) for path, item in paths.items() for m in item if m != "parameters"}


@pytest.mark.parametrize(
    ("path", "method", "mode"),
    [(*operation, GenerationMode.POSITIVE) for operation in OPERATIONS]
    + [(*operation, GenerationMode.NEGATIVE) for operation in OPERATIONS[:2]],  # others have nothing that can be wrong
)
def test_operation_answers_as_described(front, path, method, mode):
    """Requests that fit the description, and that do not, get answers with described statuses, headers and bodies."""
    schema, send = front
    operation = schema[path][method]
    seen = Counter()

    @SETTINGS
    @given(operation.as_strategy(generation_mode=mode))
    def check(case):
        sent = case.as_transport_kwargs(base_url="http://service")
        sent.pop("cookies", None)
        sent["content"] = sent.pop("data", None)
        response = send(**sent)
        seen[response.status_code] += 1
        # What else a key and a unique task must fit, no schema can say: there, what fits the schema may be refused.
        is_open = "Idempotency-Key" in (case.headers or {}) or b'"unique"' in (response.request.content or b"")
        case.validate_response(response, excluded_checks=[positive_data_acceptance] if is_open else [])

    check()
    if path in ("/tasks", "/counts", "/openapi.json"):  # others need the id of a task, which few requests have
        assert any(status < 300 for status in seen) or mode is GenerationMode.NEGATIVE
