"""The service that a page builds from nothing keeps its promises: two workers, one limit, order, nothing lost, one page."""

import ast
import asyncio
import re
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from ratelimited_executor.durable import DurableState

from ..helpers import extras, until, until_async
from ..peers.processes import take_port
from ..serving import serving

with extras():
    import fastapi  # the example needs it

ROOT = Path(__file__).parents[2]
RATE = 25
PORT_COUNT = 8  # of the example, for metrics
TENANTS = ("ann", "bob", "eve")
AUTH = ("ann", "seven of nine")

pytestmark = pytest.mark.real_time("a real receiver, and real server processes that are killed")


@contextmanager
def service(folder, first_port):
    """Run two workers of the example, and kill both at the end; yield the address and the log."""
    variables = {
        "SERVICE_FOLDER": str(folder), "SERVICE_RATE": f"{RATE}/s", "PAGE_PASSWORD": AUTH[1],
        "METRICS_PORT": str(first_port), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = ["-m", "uvicorn", "service_from_nothing:app", "--port", "0", "--workers", "2"]
    command += ["--app-dir", str(ROOT / "examples")]
    log = folder / f"log-{time.monotonic_ns()}"
    with serving(command, log, folder=folder, variables=variables) as running:
        until(lambda: log.read_text().count("Application startup complete") >= 2)
        yield running.url, log


def metric(first_port, name):
    """Return a metric of each worker that serves its metrics."""
    found = []
    for port in range(first_port, first_port + PORT_COUNT):
        try:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
        except httpx.TransportError:
            continue
        found += [float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)]
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)  # a busy machine takes a minute
def test_service_keeps_its_promises(tmp_path, site):
    """Killed in the middle, it delivers all that it has accepted, in order for each tenant, at the rate of both together."""
    first_port = take_port(PORT_COUNT)
    accepted = []

    def accept(web, count):
        for _ in range(count):
            tenant = TENANTS[len(accepted) % 3]
            event = {"tenant": tenant, "number": len(accepted)}
            body = {"id": f"event-{len(accepted)}", "url": site.url, "event": event}
            answer = web.post(f"/tenants/{tenant}/events", json=body)
            assert (answer.status_code, answer.json()["created"]) == (202, True)
            assert not web.post(f"/tenants/{tenant}/events", json=body).json()["created"]
            accepted.append(event)

    with service(tmp_path, first_port) as (url, _), httpx.Client(base_url=url, timeout=60) as web:
        accept(web, 60)
    with service(tmp_path, first_port) as (url, log), httpx.Client(base_url=url, timeout=60) as web:
        accept(web, 60)
        until(lambda: len({body["number"] for body in site.bodies}) >= len(accepted), 120)
        started = metric(first_port, "ratelimited_executor_started_tasks_total{")
        assert len(started) == 2, "one worker, or none, serves metrics"
        assert 60 <= sum(started) <= len(accepted) + 6
        until(lambda: not any(metric(first_port, "ratelimited_executor_durable_tasks{")))  # each counts now and then
        refused = web.get("/executors/")
        assert (refused.status_code, "events" in refused.text) == (401, False)
        page = web.get("/executors/", auth=AUTH)
        assert (page.status_code, "Durable tasks" in page.text) == (200, True)
        changed = web.post(
            "/executors/change",
            data={"name": "events", "action": "set-rate", "rate": "40/s"},
            headers={"Sec-Fetch-Site": "same-origin"},
            auth=AUTH,
        )
        assert changed.status_code == 303
        assert re.search(r"INFO .*: live page: events: .* -> 40/s, by ann", log.read_text())
    times = Counter(body["number"] for body in site.bodies)
    assert set(times) == set(range(len(accepted)))
    assert sum(times.values()) <= len(accepted) + 3  # at the kill, one event of each tenant may be sent twice
    for tenant in TENANTS:
        numbers = [body["number"] for body in site.bodies if body["tenant"] == tenant]
        assert sorted(dict.fromkeys(numbers)) == list(dict.fromkeys(numbers))
    arrivals = sorted(site.arrivals)
    worst = max(sum(begin <= each < begin + 1 for each in arrivals) for begin in arrivals)
    assert worst <= RATE * 1.3 + 3  # as they arrive, on a busy machine; two rates would be twice as many


@pytest.fixture
def program(tmp_path, monkeypatch, example):
    """Return the example, to run in this process."""
    monkeypatch.setenv("SERVICE_FOLDER", str(tmp_path))
    monkeypatch.setenv("PAGE_PASSWORD", AUTH[1])
    monkeypatch.setenv("METRICS_PORT", str(take_port(PORT_COUNT)))
    return example("service_from_nothing")


@asynccontextmanager
async def clients_of(program):
    """Run the service, and yield a client of it."""
    transport = httpx.ASGITransport(program.app)
    async with (
        program.app.router.lifespan_context(program.app),
        httpx.AsyncClient(transport=transport, base_url="http://service") as web,
    ):
        yield web


def test_two_tenants_may_use_the_same_id(program, site):
    """An id is one of its tenant: both events are delivered, and a repetition of either is a duplicate."""

    async def main():
        async with clients_of(program) as web:
            for created in (True, False):
                for tenant in ("ann", "bob"):
                    body = {"id": "order-7-paid", "url": site.url, "event": {"tenant": tenant}}
                    answer = await web.post(f"/tenants/{tenant}/events", json=body)
                    assert (answer.status_code, answer.json()) == (202, {"id": "order-7-paid", "created": created})
            await until_async(lambda: len(site.bodies) == 2)

    asyncio.run(main())
    assert sorted(body["tenant"] for body in site.bodies) == ["ann", "bob"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://a b:port/"},
        {"url": "shop.example"},
        {"url": "ftp://shop.example/"},
        {"id": ""},
        {"id": "i" * 151},
    ],
    ids=["no URL", "no scheme", "another scheme", "no id", "a long id"],
)
def test_what_can_never_be_delivered_is_refused(program, site, wrong):
    """It is answered with 422, and does not hold up the events of its tenant."""

    async def main():
        async with clients_of(program) as web:
            body = {"id": "first", "url": site.url, "event": {}}
            assert (await web.post("/tenants/ann/events", json=body | wrong)).status_code == 422
            assert (await web.post("/tenants/ann/events", json=body)).status_code == 202
            await until_async(lambda: site.bodies)

    asyncio.run(main())


def test_an_event_that_the_receiver_refuses_is_dead_at_once(program, site):
    """A 404 is final: the event is a dead letter after one request, and the next of its tenant waits behind it."""
    site.status = 404

    async def main():
        async with clients_of(program) as web:
            for number in range(2):
                body = {"id": f"{number}", "url": site.url, "event": {"number": number}}
                assert (await web.post("/tenants/ann/events", json=body)).status_code == 202
            await until_async(lambda: site.bodies)
            while not (counts := await program.tasks.counts())[DurableState.DEAD]:
                await asyncio.sleep(0.02)
            assert (counts[DurableState.DEAD], counts[DurableState.BEHIND]) == (1, 1)

    asyncio.run(main())
    assert site.bodies == [{"number": 0}]


def test_events_are_refused_while_the_store_is_away(program, site, tmp_path):
    """The answer is 503, and says when to try again."""

    async def rename(old, new):
        """Rename a table in another process: in this one, the locks of the store would end with the connection."""
        code = f"import sqlite3; sqlite3.connect('events.db').execute('alter table {old} rename to {new}')"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=tmp_path)
        assert await process.wait() == 0

    async def main():
        async with clients_of(program) as web:
            await rename("durable_tasks", "elsewhere")
            body = {"id": "first", "url": site.url, "event": {}}
            answer = await web.post("/tenants/ann/events", json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            await rename("elsewhere", "durable_tasks")
            assert (await web.post("/tenants/ann/events", json=body)).status_code == 202

    asyncio.run(main())


def test_events_are_refused_while_the_store_hangs(program, site, tmp_path, monkeypatch, caplog):
    """While another process holds the lock, the answer is 503 after a few seconds, which the log tells; a repetition is safe."""
    monkeypatch.setattr(program, "STORE_SECONDS", 0.3)
    code = "import sqlite3; c = sqlite3.connect('events.db', isolation_level=None); c.execute('begin exclusive'); print(flush=True); input()"

    async def main():
        async with clients_of(program) as web:
            pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "cwd": tmp_path}
            holder = await asyncio.create_subprocess_exec(sys.executable, "-c", code, **pipes)
            await holder.stdout.readline()
            body = {"id": "first", "url": site.url, "event": {}}
            answer = await web.post("/tenants/ann/events", json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            await holder.communicate(b"\n")
            assert (await web.post("/tenants/ann/events", json=body)).status_code == 202
            await until_async(lambda: site.bodies)

    asyncio.run(main())
    assert "an event was refused: the store did not answer within 0.3 s" in caplog.messages
    assert len(site.bodies) == 1


def test_the_service_does_not_start_without_a_password(tmp_path, monkeypatch, example):
    """It says which variable to set; an empty password is none."""
    monkeypatch.setenv("SERVICE_FOLDER", str(tmp_path))
    monkeypatch.setenv("PAGE_PASSWORD", "")
    program = example("service_from_nothing")

    async def main():
        with pytest.raises(RuntimeError, match="set PAGE_PASSWORD"):
            async with clients_of(program):
                pass

    asyncio.run(main())


def test_page_shows_the_program():
    """The steps of the page end in the example: they define the same functions."""
    text = (ROOT / "docs" / "howto" / "service-from-nothing.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "service_from_nothing.py").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names = {
        node.name
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, (ast.AsyncFunctionDef, ast.FunctionDef))
    }
    assert names == {"deliver", "running", "accept"}
    assert all(f"async def {name}(" in example for name in ("running", "accept"))
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    assert all(line in example for line in lines if line.startswith("deliver = "))
