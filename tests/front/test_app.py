"""What the front answers: tasks put, seen, cancelled and requeued by JSON, for whom, and what it refuses; in virtual time."""

import asyncio
import json
import sys
from dataclasses import dataclass
from datetime import date

import pytest
from fastapi import FastAPI, HTTPException

from ratelimited_executor import RateLimitedExecutor
from ratelimited_executor._runtime.durable.functions import PutOptions
from ratelimited_executor.durable import DurableState, DurableTasks, MemoryStore
from ratelimited_executor.front import tasks_app
from ratelimited_executor.front.openapi import OPTIONS

DELAYED = {"function": "note", "arguments": {"what": "x"}, "delay": 60}


@dataclass
class Item:
    name: str
    price: float


@pytest.fixture(autouse=True)
def _virtual(virtual_clock):
    """Run the tasks and the requests on one virtual loop."""


@pytest.fixture
def tasks():
    """Durable tasks with three functions; a front shows the first two."""
    made = DurableTasks(MemoryStore())

    @made.task
    async def note(what, **more): ...

    @made.task(name="bill", version=2)
    async def bill(items: list[Item], due: date | None = None): ...

    @made.task
    async def secret(): ...

    made.ran = []

    @made.task
    async def fail(what="x"):
        made.ran.append(what)
        raise ValueError("no http://ann:letmein@host/\nway")

    return made


@pytest.fixture
def app(tasks):
    """A front that allows everything."""
    shown = [function for function in tasks.functions.values() if function.name != "secret"]
    return tasks_app(tasks, functions=shown, authorize=lambda _request, _action: True)


async def stored(tasks):
    """Return the arguments and options of the tasks in the store that matter here."""
    return [(row.name, json.loads(row.body), row.id) for row in await tasks.rows()]


async def test_task_is_put_once(tasks, app, client):
    """The first put with an id creates the task, with 201, and a second one does nothing, with 200."""
    async with tasks, client(app) as web:
        first = await web.post(
            "/tasks", json={**DELAYED, "id": "a/b ü", "lane": "l", "key": 7, "cost": {"x": 2}, "priority": 3}
        )
        again = await web.post("/tasks", json={**DELAYED, "id": "a/b ü"})
        assert (first.status_code, first.json()) == (201, {"id": "a/b ü", "created": True, "changed": False})
        assert (again.status_code, again.json()) == (200, {"id": "a/b ü", "created": False, "changed": False})
        shown = (await web.get("/" + first.headers["location"])).json()
        expected = {"id": "a/b ü", "function": "note", "state": "scheduled", "lane": "l", "key": 7, "priority": 3.0}
        assert expected.items() <= shown.items()
        assert shown["due_at"] - shown["put_at"] == 60
        assert await stored(tasks) == [("note", [[], {"what": "x"}], "a/b ü")]


@pytest.mark.parametrize("sent", ["k-7", '"k-7"'])
async def test_idempotency_key_is_the_id(tasks, app, client, sent):
    """The header with the key, with or without quotes, is the id of the task; another id in the body is an error."""
    async with tasks, client(app) as web:
        for status in (201, 200):
            put = await web.post("/tasks", json=DELAYED, headers={"Idempotency-Key": sent})
            assert (put.status_code, put.json()["id"]) == (status, "k-7")
        same = await web.post("/tasks", json={**DELAYED, "id": "k-7"}, headers={"Idempotency-Key": sent})
        other = await web.post("/tasks", json={**DELAYED, "id": "k-8"}, headers={"Idempotency-Key": sent})
        many = await web.post("/tasks", json=[DELAYED], headers={"Idempotency-Key": sent})
        assert [each.status_code for each in (same, other, many)] == [200, 422, 422]


async def test_arguments_arrive_as_they_are_annotated(tasks, app, client):
    """Arguments are given by name or in order, and typed ones as the JSON in which they are stored."""
    items = [{"name": "pen", "price": 1.5}]
    async with tasks, client(app) as web:
        named = await web.post("/tasks", json={"function": "bill", "arguments": {"items": items, "due": "2026-03-04"}})
        listed = await web.post("/tasks", json={"function": "bill", "version": 2, "arguments": [items, None]})
        assert [named.status_code, listed.status_code] == [201, 201]
        loaded = [tasks.functions["bill", 2].load(row.body)[:2] for row in await tasks.rows()]
        assert loaded[0] == ([], {"items": [Item("pen", 1.5)], "due": date(2026, 3, 4)})
        assert loaded[1] == ([[Item("pen", 1.5)], None], {})


async def test_list_is_put_as_a_whole(tasks, app, client, monkeypatch):
    """All tasks of a list are put in one call of the store; if one is wrong, or there are too many, none is."""
    puts, put_all = [], tasks.store.put
    monkeypatch.setattr(tasks.store, "put", lambda given: puts.append(len(given)) or put_all(given))
    async with tasks, client(app) as web:
        put = await web.post("/tasks", json=[{**DELAYED, "id": "a"}, {**DELAYED, "id": "b"}])
        more = await web.post("/tasks", json=[{**DELAYED, "id": "b"}, {**DELAYED, "id": "c"}])
        none = await web.post("/tasks", json=[{**DELAYED, "id": "b"}])
        assert [each.status_code for each in (put, more, none)] == [201, 201, 200]
        assert [each["created"] for each in more.json()] == [False, True]
        wrong = await web.post("/tasks", json=[{**DELAYED, "id": "d"}, {**DELAYED, "dealy": 1}])
        assert (wrong.status_code, wrong.json()["pointer"]) == (422, "/1/dealy")
        for count in (0, 1001):
            assert (await web.post("/tasks", json=[DELAYED] * count)).status_code == 422
        assert [each[2] for each in await stored(tasks)] == ["a", "b", "c"]
        assert (await web.post("/tasks", json=[DELAYED] * 1000)).status_code == 201
        assert puts == [2, 2, 1, 1000]


async def test_unique_task_is_kept_changed_or_refused(tasks, app, client):
    """``unique`` has the options of ``Unique``; a refused duplicate is a conflict that names the existing task."""
    async with tasks, client(app) as web:

        async def put(unique, **more):
            return await web.post("/tasks", json={**DELAYED, "unique": unique, **more})

        first = (await put(True)).json()
        assert (await put(True)).json() == {**first, "created": False}
        changed = await put({"by": ["what"], "on_duplicate": "replace"})
        assert changed.status_code == 201  # compared by other arguments
        assert (await put({"by": ["what"], "on_duplicate": "debounce"}, priority=5)).json()["changed"]
        refused = await put({"on_duplicate": "refuse"})
        assert (refused.status_code, refused.json()["id"]) == (409, first["id"])
        listed = await web.post("/tasks", json=[{**DELAYED, "unique": {"on_duplicate": "refuse"}}])
        assert (listed.status_code, listed.json()["pointer"]) == (422, "/0/unique/on_duplicate")


@pytest.mark.parametrize(
    ("body", "pointer", "text"),
    [
        (None, "", "must be an object"),
        ({}, "/function", "function must be one of bill, fail, note, got None"),
        ({"function": "secret"}, "/function", "got 'secret'"),
        ({"function": "note", "version": 2}, "/version", "version must be one of 1"),
        ({"function": "note", "version": True}, "/version", "got True"),
        ({"function": "note"}, "", "note: missing a required argument: 'what'"),
        ({"function": "note", "arguments": 7}, "/arguments", "an object of named arguments, or a list"),
        ({"function": "note", "arguments": {"what": 1, "lane": "x"}}, "/arguments/lane", "not an argument"),
        ({"function": "note", "arguments": {"what": 1, "connection": 2}}, "/arguments/connection", "not an argument"),
        ({"function": "bill", "arguments": [[], "soon"]}, "/arguments/1", "Invalid isoformat"),
        ({"function": "bill", "arguments": {"items": [{"name": 1}]}}, "/arguments/items", "price"),
        ({"function": "bill", "arguments": {"items": [], "a/b": 1}}, "", "unexpected keyword argument 'a/b'"),
        ({**DELAYED, "connection": 1}, "/connection", "A task has no 'connection'"),
        ({**DELAYED, "delay": "1h"}, "", "delay must be a number of seconds"),
        ({**DELAYED, "delay": -1}, "", "delay must be >= 0"),
        ({**DELAYED, "lane": None}, "", "lane must not be null: leave it out"),
        ({**DELAYED, "at": 5}, "", "delay= or at="),
        ({"function": "fail", "at": "soon"}, "", "at must be epoch seconds, or as in"),
        ({"function": "fail", "at": "2026-03-04T09:00:00"}, "", "at must be an aware datetime"),
        ({"function": "fail", "unique": False}, "", "unique must be true, or an object"),
        ({"function": "fail", "unique": {"on_duplicate": []}}, "", "on_duplicate must be one of keep"),
        ({"function": "fail", "unique": {"period": "1h"}}, "", "period must be a number of seconds"),
        ({"function": "fail", "unique": {"by": ["who"]}}, "", "by must name parameters"),
        ({"function": "fail", "id": "a", "unique": True}, "", "id= or unique="),
        ({"function": "fail", "arguments": ["\ud800"]}, "", "cannot be encoded"),
        ({"function": "note", "arguments": [1, 2]}, "", "too many positional"),
    ],
)
async def test_error_names_the_argument(tasks, app, client, body, pointer, text):
    """A wrong argument is a problem that says which one, where it is in the body, and what to do; nothing is put."""
    async with tasks, client(app) as web:
        answer = await web.post("/tasks", content=json.dumps(body), headers={"Content-Type": "application/json"})
        problem = answer.json()
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
        assert (problem["title"], problem["status"], problem["pointer"]) == ("Unprocessable Content", 422, pointer)
        assert text in problem["detail"]
        assert await stored(tasks) == []


async def test_bodies_that_are_no_json_are_refused(tasks, app, client):
    """A body must be declared as JSON and be JSON, without infinite numbers and without depth beyond measure."""
    async with tasks, client(app) as web:

        async def status(content, kind="application/json"):
            return (await web.post("/tasks", content=content, headers={"Content-Type": kind})).status_code

        assert [await status(content) for content in ("", "{", b"\xff", "NaN", "[" * 100_000)] == [400] * 5
        assert [await status("{}", kind) for kind in ("text/plain", "application/x-www-form-urlencoded")] == [415, 415]
        assert await status("{}", "application/vnd.task+json; charset=utf-8") == 422
        deep = '{"function": "fail", "arguments": [' + "[" * 900 + "]" * 900 + "]}"
        assert await status(deep) in (201, 422)
        assert await status('{"function": "fail", "arguments": [1e999]}') == 422


async def test_what_is_too_large_is_refused(tasks, app, client):
    """Arguments of more than 256 KiB are refused, and so is a request of more than 8 MiB."""
    async with tasks, client(app) as web:
        task = await web.post("/tasks", json={"function": "note", "arguments": ["x" * 300_000]})
        assert (task.status_code, task.json()["pointer"]) == (413, "/arguments")
        request = await web.post("/tasks", content=b" " * (8 * 1024 * 1024 + 1))
        assert request.status_code == 413
        assert "8,388,608 bytes" in request.json()["detail"]


async def test_store_that_is_away_is_unavailable(tasks, app, client, monkeypatch, caplog):
    """If the store is not open, or does not answer, the status is 503, with a time to try again; the log says why."""
    async with client(app) as web:
        for request in (web.post("/tasks", json=DELAYED), web.post("/tasks", json=[DELAYED])):
            answer = await request
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert "repeated safely" in answer.json()["detail"]
        async with tasks:
            monkeypatch.setattr(tasks.store, "counts", lambda: asyncio.sleep(3600))
            assert (await web.get("/counts")).status_code == 503
    assert "StoreUnavailableError" in caplog.text


async def test_tasks_of_other_functions_are_not_there(tasks, app, client):
    """What is not of a named function, or is in another queue, can be neither seen nor changed."""
    other = DurableTasks(tasks.store, queue="other")
    async with tasks, client(app) as web:
        await tasks.functions["secret", 1].put(id="s")
        await other.task(name="note")(lambda what: None).put(1, id="o")
        await tasks.functions["note", 1].put(1, id="n")
        for id in ("s", "o", "none", "x" * 300, "%00"):
            for call in (web.get, web.delete):
                assert (await call(f"/tasks/{id}")).status_code == 404
            assert (await web.post(f"/tasks/{id}/requeue")).status_code == 404
        assert [each["id"] for each in (await web.get("/tasks")).json()["tasks"]] == ["n"]
        assert (await web.get("/counts")).json()["ready"] == 3
        assert (await web.delete("/tasks/n")).status_code == 204
        assert (await web.delete("/tasks/n")).status_code == 404


async def test_end_and_result_are_told_once_they_are_kept(tasks, app, client):
    """The end of a task with keep= can be read, with its result if that is kept; nothing of other functions can."""
    double = tasks.task(name="double", keep=60, keep_result=True)(lambda x: {"twice": 2 * x})
    quiet = tasks.task(name="quiet", keep=60)(lambda: 5)
    hidden = tasks.task(name="hidden", keep=60, keep_result=True)(lambda: "secret")
    app = tasks_app(tasks, functions=[double, quiet], authorize=lambda _request, _action: True)
    async with tasks, RateLimitedExecutor("x") as executor, client(app) as web:
        for task in (double.new(21, id="d"), quiet.new(id="q"), hidden.new(id="h"), double.new(1, id="e", expires=1)):
            await tasks.put(task)
        early = await web.get("/tasks/d/end")
        assert (early.status_code, early.json()["detail"]) == (
            409,
            "The task has not ended: it is ready. Ask again later.",
        )
        assert (await web.get("/tasks/h/end")).status_code == 404
        async with tasks.running(executor):
            await asyncio.sleep(2)
        end = (await web.get("/tasks/d/end")).json()
        assert ("done", {"twice": 42}, 0, "") == tuple(
            end[name] for name in ("end", "result", "failed_attempts", "error")
        )
        assert end["started_at"] <= end["ended_at"]
        assert (await web.get("/tasks/q/end")).json()["result"] is None
        assert [404, 404] == [(await web.get(f"/tasks/{id}/end")).status_code for id in ("h", "none")]
    async with tasks, client(tasks_app(tasks, functions=[double])) as web:
        refused = await web.get("/tasks/d/end")
        assert (refused.status_code, refused.json()["detail"]) == (
            403,
            "You are not allowed to see the results of tasks here.",
        )


async def test_dead_letters_are_listed_and_requeued(tasks, app, client):
    """Tasks are listed by state, page by page; a dead letter can be requeued, once, and shows one line of its error."""
    async with RateLimitedExecutor("x") as executor, client(app) as web:
        async with tasks.running(executor):
            for number in range(5):
                await tasks.functions["fail", 1].put(number, id=f"f{number}")
            await tasks.functions["note", 1].put(1, id="later", delay=60)
            await asyncio.sleep(1)
        async with tasks:
            first = (await web.get("/tasks?state=dead&limit=3")).json()
            rest = (await web.get(f"/tasks?state=dead&limit=3&after={first['next']}")).json()
            assert [each["id"] for each in first["tasks"] + rest["tasks"]] == ["f0", "f1", "f2", "f3", "f4"]
            assert (rest["next"], first["tasks"][0]["error"]) == (None, "ValueError: no http://***@host/")
            answers = [await web.post(f"/tasks/{id}/requeue") for id in ("f0", "f0", "later")]
            assert [each.status_code for each in answers] == [204, 409, 409]
            assert "the task is scheduled" in answers[2].json()["detail"]
            assert await tasks.ref("f0").state() is DurableState.READY
            for query in ("state=gone", "limit=0", "limit=1001", "limit=x", "after=-1", "after=" + "9" * 30):
                assert (await web.get(f"/tasks?{query}")).status_code == 422


async def test_front_only_reads_by_default(tasks, client):
    """Without ``authorize``, everybody may read, and nobody may change anything."""
    app = tasks_app(tasks, functions=[tasks.functions["note", 1]])
    async with tasks, client(app) as web:
        await tasks.functions["note", 1].put(1, id="n")
        for path in ("/tasks", "/tasks/n", "/counts", "/openapi.json"):
            assert (await web.get(path)).status_code == 200
        changes = (web.post("/tasks", json=DELAYED), web.delete("/tasks/n"), web.post("/tasks/n/requeue"))
        assert [(await each).status_code for each in changes] == [403, 403, 403]
        assert len(await tasks.rows()) == 1


async def test_authorize_decides_by_request_and_action(tasks, client):
    """``authorize`` gets each request and its action, may read the body, and its exception is the answer."""
    asked = []

    async def ask(request, action):
        if "x-user" not in request.headers:
            raise HTTPException(401, "Who are you?", {"WWW-Authenticate": "Bearer"})
        asked.append(action)
        return action != "put" or (await request.json())["lane"] == request.headers["x-user"]

    app = tasks_app(tasks, functions=[tasks.functions["note", 1]], authorize=ask)
    async with tasks, client(app) as web:
        refused = await web.get("/counts")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.json() == {"title": "Unauthorized", "status": 401, "detail": "Who are you?"}
        web.headers["x-user"] = "ann"
        puts = [await web.post("/tasks", json={**DELAYED, "lane": lane, "id": "n"}) for lane in ("bob", "ann")]
        assert [each.status_code for each in puts] == [403, 201]
        await web.get("/tasks")
        await web.post("/tasks/n/requeue")
        await web.delete("/tasks/n")
        assert asked == ["put", "put", "read", "requeue", "cancel"]


async def test_answer_of_authorize_must_be_a_bool(tasks, client):
    """A result that is no bool is an error of the server, and not a yes; the client learns nothing of it."""
    app = tasks_app(tasks, functions=[tasks.functions["note", 1]], authorize=lambda _request, _action: "yes")
    async with tasks, client(app, raise_app_exceptions=False) as web:
        answer = await web.get("/counts")
        assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
        assert "bool" not in answer.text


async def test_page_of_another_site_changes_nothing(tasks, app, client):
    """A browser's request for a change must come from a page of this host; programs send neither header."""
    async with tasks, client(app) as web:
        for headers, status in (
            ({"Origin": "http://evil"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Sec-Fetch-Site": "same-origin"}, 201),
            ({"Origin": "http://service"}, 201),
            ({}, 201),
        ):
            assert (await web.post("/tasks", json=DELAYED, headers=headers)).status_code == status


async def test_unknown_paths_and_methods_are_problems(tasks, app, client):
    """What does not exist, and methods that a path does not have, are problems as well, with safe headers."""
    async with tasks, client(app) as web:
        for answer, status in ((await web.get("/nothing"), 404), (await web.put("/tasks"), 405)):
            assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert {*answer.headers["allow"].split(", ")} == {"GET", "HEAD", "POST"}
        assert (await web.get("/tasks/a/requeue")).status_code == 404  # a task with this id


async def test_front_is_mounted_in_another_application(tasks, app, client):
    """FastAPI mounts the front, whose description says under which path."""
    outer = FastAPI()
    outer.mount("/queue", app)
    async with tasks, client(outer) as web:
        put = await web.post("/queue/tasks", json={**DELAYED, "id": "n"})
        assert (put.status_code, put.headers["location"]) == (201, "tasks/n")
        assert (await web.get("/queue/openapi.json")).json()["servers"] == [{"url": "/queue"}]


def test_description_has_every_option_of_a_put():
    """The front offers each option of ``put`` but the connection."""
    assert {*OPTIONS} == {*PutOptions.__annotations__} - {"connection"}


def test_arguments_of_the_front_are_checked(tasks):
    """A wrong argument of ``tasks_app`` is an error that names it."""
    note = tasks.functions["note", 1]
    foreign = DurableTasks(MemoryStore()).task(name="note")(lambda: None)
    for arguments, error, text in (
        ({"functions": [print]}, TypeError, "functions must be durable functions"),
        ({"functions": [foreign]}, ValueError, "functions must be those of"),
        ({"functions": [note], "authorize": True}, TypeError, "authorize must be a function"),
        ({"functions": [note], "title": 7}, TypeError, "title must be a str"),
    ):
        with pytest.raises(error, match=text):
            tasks_app(tasks, **arguments)
    with pytest.raises(TypeError, match="tasks must be DurableTasks"):
        tasks_app(tasks.store, functions=[note])


def test_extra_is_named_where_it_is_not_installed(tasks, monkeypatch):
    """Without Starlette, the error names the extra."""
    monkeypatch.setitem(sys.modules, "ratelimited_executor.front.app", None)
    with pytest.raises(ImportError, match=r"ratelimited-executor\[front\]"):
        tasks_app(tasks, functions=[])


@pytest.mark.parametrize(
    "name", [{"id": "billing@2026-11-28T01:00:00.000000Z"}, {"lane": "repetition billing"}], ids=["id", "lane"]
)
async def test_names_of_repetitions_are_refused(tasks, app, client, name):
    """With the id or in the lane of an occurrence, a task would stop a repetition of a function that cannot be put here."""
    async with tasks, client(app) as web:
        answer = await web.post("/tasks", json={**DELAYED, **name})
        assert (422, {}) == (answer.status_code, {k: v for k, v in (await tasks.counts()).items() if v})
        assert "repetitions" in answer.json()["detail"]


async def test_version_that_is_nested_deeply_is_refused(tasks, app, client):
    """Whatever stands in the place of a version is refused as such."""
    nested = "[" * 900 + "]" * 900
    async with tasks, client(app) as web:
        answer = await web.post(
            "/tasks",
            content='{"function": "note", "version": ' + nested + "}",
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 422
