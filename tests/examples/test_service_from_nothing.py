"""The service that a page builds from nothing keeps its promises: two workers, one limit, order, nothing lost, one page."""

import ast
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from random import Random

import httpx
import pytest

from ..helpers import extras

with extras():
    import fastapi  # the example needs it

ROOT = Path(__file__).parents[2]
RATE = 25
TENANTS = ("ann", "bob", "eve")
AUTH = ("ann", "seven of nine")

pytestmark = [
    pytest.mark.real_time("real server processes that are killed"),
    pytest.mark.slow,
    pytest.mark.timeout(600),  # a busy machine takes a minute
]


@contextmanager
def service(folder, first_port):
    """Run two workers of the example, and kill both at the end."""
    log = folder / f"log-{time.monotonic_ns()}"
    environment = {
        **os.environ, "SERVICE_FOLDER": str(folder), "SERVICE_RATE": f"{RATE}/s", "PAGE_PASSWORD": AUTH[1],
        "METRICS_PORT": str(first_port), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = ["-m", "uvicorn", "service_from_nothing:app", "--port", "0", "--workers", "2", "--app-dir"]
    with log.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, *command, str(ROOT / "examples")],
            stdout=sink, stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 90
        while log.read_text().count("Application startup complete") < 2:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield re.search(r"running on (http://[0-9.:]+)", log.read_text())[1]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def metric(first_port, name):
    """Return a metric of each worker that serves its metrics."""
    found = []
    for port in range(first_port, first_port + 8):
        try:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
        except httpx.TransportError:
            continue
        found += [float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)]
    return found


def test_service_keeps_its_promises(tmp_path, site):
    """Killed in the middle, it delivers all that it has accepted, in order for each tenant, at the rate of both together."""
    first_port = 20_000 + Random(os.getpid()).randrange(10_000)
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

    with service(tmp_path, first_port) as url, httpx.Client(base_url=url, timeout=60) as web:
        accept(web, 60)
    with service(tmp_path, first_port) as url, httpx.Client(base_url=url, timeout=60) as web:
        accept(web, 60)
        deadline = time.monotonic() + 120
        while len({body["number"] for body in site.bodies}) < len(accepted):
            assert time.monotonic() < deadline, (len(site.bodies), len(accepted))
            time.sleep(0.1)
        time.sleep(1)  # the last ends are recorded
        started = metric(first_port, "ratelimited_executor_started_tasks_total{")
        assert len(started) == 2, "one worker, or none, serves metrics"
        assert 60 <= sum(started) <= len(accepted) + 6
        while any(metric(first_port, "ratelimited_executor_durable_tasks{")):  # each process counts now and then
            assert time.monotonic() < deadline
            time.sleep(0.5)
        refused = web.get("/executors/")
        assert (refused.status_code, "events" in refused.text) == (401, False)
        page = web.get("/executors/", auth=AUTH)
        assert (page.status_code, "Durable tasks" in page.text) == (200, True)
        paused = web.post(
            "/executors/change",
            data={"name": "events", "action": "pause-group"},
            headers={"Sec-Fetch-Site": "same-origin"},
            auth=AUTH,
        )
        assert paused.status_code in (303, 409)  # 409 if this worker has not asked for the group's rate yet
    times = Counter(body["number"] for body in site.bodies)
    assert set(times) == set(range(len(accepted)))
    assert sum(times.values()) <= len(accepted) + 3  # at the kill, one event of each tenant may be sent twice
    for tenant in TENANTS:
        numbers = [body["number"] for body in site.bodies if body["tenant"] == tenant]
        assert sorted(dict.fromkeys(numbers)) == list(dict.fromkeys(numbers))
    arrivals = sorted(site.arrivals)
    worst = max(sum(begin <= each < begin + 1 for each in arrivals) for begin in arrivals)
    assert worst <= RATE * 1.3 + 3  # as they arrive, on a busy machine; two rates would be twice as many


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
    assert all(f"async def {name}(" in example for name in names)
