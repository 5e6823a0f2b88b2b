"""A service that delivers events of tenants: durable, in order, under one limit, watched; without any server beside it.

    pip install 'ratelimited-executor[dashboard,http,metrics,sqlite]' fastapi uvicorn opentelemetry-exporter-prometheus
    PAGE_PASSWORD=... uvicorn service_from_nothing:app --workers 2

    curl -X POST localhost:8000/tenants/ann/events -H 'content-type: application/json' \
        -d '{"id": "order-7-paid", "url": "https://shop.example/hooks", "event": {"order": 7}}'

The two workers share a file with the events and a file with the limit, so both must run on one machine. The page is at
``/executors/``, for whoever knows the password; each worker serves its metrics on a port of its own, from 9464 on.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
from collections.abc import AsyncIterator, Iterator  # noqa: TC003  # FastAPI reads annotations at run time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi import Path as InPath
from fastapi.security import HTTPBasic
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from pydantic import BaseModel, Field

from ratelimited_executor import ExecutorManager
from ratelimited_executor.dashboard import dashboard
from ratelimited_executor.durable import DurableTasks, SQLiteStore, http_function
from ratelimited_executor.exceptions import StoreUnavailableError
from ratelimited_executor.metrics import instrument, instrument_tasks
from ratelimited_executor.peers import FilePeers

FOLDER = Path(os.environ.get("SERVICE_FOLDER", "."))
RATE = os.environ.get("SERVICE_RATE", "50/s")  # of all workers together
STORE_SECONDS = 5  # to put an event, before its request is refused
PASSWORD = os.environ.get("PAGE_PASSWORD", "")
FIRST_PORT = int(os.environ.get("METRICS_PORT", "9464"))
PORTS = range(FIRST_PORT, FIRST_PORT + 8)  # for metrics: one for each worker, and a few spare ones

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

tasks = DurableTasks(SQLiteStore(FOLDER / "events.db"))
deliver = http_function(tasks, hosts=None, name="deliver")  # hosts=[...] if you know the receivers
ask = HTTPBasic(realm="executors")


async def is_operator(request: Request) -> bool:
    """Ask for the password; the name goes into the log of changes."""
    given = await ask(request)
    assert given is not None, "it raises instead"
    if not secrets.compare_digest(given.password.encode(), PASSWORD.encode()):
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
    if not PASSWORD:
        raise RuntimeError("set PAGE_PASSWORD to the password of the page, which may not be empty")
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

    id: str = Field(min_length=1, max_length=150)
    url: str = Field(max_length=2000)
    event: dict[str, Any]


@app.post("/tenants/{tenant}/events", status_code=202)
async def accept(tenant: Annotated[str, InPath(max_length=100)], event: Event) -> dict[str, Any]:
    """Reply once the event is in the store; a second request of the tenant with the same id is a duplicate."""
    try:
        task = deliver.new("POST", event.url, json=event.event, id=f"{tenant}/{event.id}", lane=tenant)
    except ValueError as error:  # such as a URL that is none
        raise HTTPException(422, str(error)) from None
    try:
        async with asyncio.timeout(STORE_SECONDS):
            ref = await tasks.put(task)
    except (StoreUnavailableError, TimeoutError) as error:
        reason = str(error) or f"the store did not answer within {STORE_SECONDS} s"
        logging.getLogger(__name__).warning("an event was refused: %s", reason)
        raise HTTPException(503, "The event was not accepted: try again.", {"Retry-After": "5"}) from None
    return {"id": event.id, "created": ref.created}
