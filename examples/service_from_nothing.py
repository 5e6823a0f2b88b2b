"""A service that delivers events of tenants: durable, in order, under one limit, watched; without any server beside it.

    pip install 'ratelimited-executor[dashboard,metrics,sqlite]' fastapi httpx uvicorn opentelemetry-exporter-prometheus
    PAGE_PASSWORD=... uvicorn service_from_nothing:app --workers 2

    curl -X POST localhost:8000/tenants/ann/events -H 'content-type: application/json' \
        -d '{"id": "order-7-paid", "url": "https://shop.example/hooks", "event": {"order": 7}}'

The two workers share a file with the events and a file with the limit, so both must run on one machine. The page is at
``/executors/``, for whoever knows the password; each worker serves its metrics on a port of its own, from 9464 on.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import AsyncIterator, Iterator  # noqa: TC003  # FastAPI reads annotations at run time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException, Request
from fastapi.security import HTTPBasic
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from pydantic import BaseModel

from ratelimited_executor import ExecutorManager, Retry, RetryLater
from ratelimited_executor.dashboard import dashboard
from ratelimited_executor.durable import DurableTasks, SQLiteStore
from ratelimited_executor.metrics import instrument, instrument_tasks
from ratelimited_executor.peers import FilePeers
from ratelimited_executor.retries import parse_retry_after

FOLDER = Path(os.environ.get("SERVICE_FOLDER", "."))
RATE = os.environ.get("SERVICE_RATE", "50/s")  # of all workers together
FIRST_PORT = int(os.environ.get("METRICS_PORT", "9464"))
PORTS = range(FIRST_PORT, FIRST_PORT + 8)  # for metrics: one for each worker, and a few spare ones

tasks = DurableTasks(SQLiteStore(FOLDER / "events.db"))
client = httpx.AsyncClient(timeout=10)
ask = HTTPBasic(realm="executors")


@tasks.task(retry=Retry(12, base=2, cap=3600, on=(httpx.HTTPError,)), run_timeout=30)
async def deliver(url: str, event: dict[str, Any]) -> None:
    """Send an event to its receiver."""
    response = await client.post(url, json=event)
    if response.status_code in (429, 503):
        raise RetryLater(after=parse_retry_after(response.headers.get("retry-after")))
    response.raise_for_status()


async def is_operator(request: Request) -> bool:
    """Ask for the password; the name goes into the log of changes."""
    given = await ask(request)
    assert given is not None, "it raises instead"
    if not secrets.compare_digest(given.password.encode(), os.environ["PAGE_PASSWORD"].encode()):
        raise HTTPException(401, "Wrong password.", {"WWW-Authenticate": 'Basic realm="executors"'})
    request.state.user = given.username
    return True


@contextmanager
def metrics(manager: ExecutorManager) -> Iterator[None]:
    """Serve the metrics of this worker on the first port that no other worker uses."""
    provider = MeterProvider([PrometheusMetricReader()])
    for port in PORTS:
        try:
            server, _ = start_http_server(port, addr="127.0.0.1")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            break
    else:
        raise RuntimeError(f"no port is free in {PORTS}")
    try:
        with instrument(manager, meter_provider=provider), instrument_tasks(tasks, meter_provider=provider):
            yield
    finally:
        server.shutdown()
        server.server_close()
        provider.shutdown()


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[None]:
    """Deliver while the service runs; all of this is made in the worker, on its event loop."""
    async with (
        tasks,
        ExecutorManager(peers=FilePeers(FOLDER / "events.limits")) as manager,
        tasks.running(manager.executor("events", rate=RATE), drain_timeout=10),
    ):
        page = dashboard(manager, authorize_view=is_operator, authorize=is_operator, stores={"events": tasks.store})
        app.mount("/executors", page)
        with metrics(manager):
            yield


app = FastAPI(lifespan=running)


class Event(BaseModel):
    """An event to deliver."""

    id: str
    url: str
    event: dict[str, Any]


@app.post("/tenants/{tenant}/events", status_code=202)
async def accept(tenant: str, event: Event) -> dict[str, Any]:
    """Reply once the event is in the store; a second request with the same id is a duplicate."""
    ref = await tasks.put(deliver.new(event.url, event.event, id=event.id, lane=tenant))
    return {"id": ref.id, "created": ref.created}
