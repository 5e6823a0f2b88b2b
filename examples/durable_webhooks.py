"""Accept webhooks and deliver them reliably: each accepted event stays in a store until it is delivered.

    uvicorn durable_webhooks:app                       # SQLite, in webhooks.db
    DURABLE_STORE=postgresql://host/db RATE_REDIS=redis://host uvicorn ...     # for several processes or machines

    curl -X POST localhost:8000/webhooks -H 'content-type: application/json' \
        -d '{"id": "order-7-paid", "url": "https://shop.example/hooks", "event": {"order": 7}}'

You can kill it at any time: the next process delivers every event that was accepted with status 202. Each customer's
events arrive in order. The service sends at most 50 requests a second: with RATE_REDIS all its processes together,
otherwise each process. A delivery is retried for up to about an hour if the receiver cannot be reached, is overloaded, or
fails with 5xx; an event that it refuses with another 4xx becomes a dead letter at once. A receiver may get an event
twice, for example if the process is killed just as the receiver replies; it can recognise the event by the header
``Idempotency-Key``.

This example needs: pip install 'ratelimited-executor[sqlite]' fastapi httpx uvicorn
(for PostgreSQL and Redis: 'ratelimited-executor[postgres,redis]')
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator  # noqa: TC003  # FastAPI reads annotations at run time
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, HTTPException
from pydantic import AnyHttpUrl, BaseModel, StringConstraints

from ratelimited_executor import RateLimitedExecutor, Retry, RetryLater
from ratelimited_executor.durable import DurableTasks, PostgresStore, SQLiteStore
from ratelimited_executor.peers import RedisPeers
from ratelimited_executor.retries import parse_retry_after

STORE = os.environ.get("DURABLE_STORE", "webhooks.db")
LEASE = float(os.environ.get("DURABLE_LEASE", "15"))  # seconds until others take over a killed process's tasks

tasks = DurableTasks(PostgresStore(STORE) if STORE.startswith("postgres") else SQLiteStore(STORE), lease=LEASE)
client = httpx.AsyncClient(timeout=10)


def is_temporary(error: BaseException) -> bool:
    """Return True if another attempt may succeed: a 4xx says that the receiver does not want the event."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == 408 or error.response.is_server_error
    return isinstance(error, (httpx.TransportError, TimeoutError))


@tasks.task(retry=Retry(12, base=2, cap=3600, on=is_temporary), run_timeout=30)
async def deliver(event_id: str, url: str, event: dict[str, Any]) -> None:
    """Send an event to its receiver."""
    response = await client.post(url, json=event, headers={"Idempotency-Key": event_id})
    if response.status_code in (429, 503):
        raise RetryLater(after=parse_retry_after(response.headers.get("retry-after")))
    response.raise_for_status()


@asynccontextmanager
async def running(_: FastAPI) -> AsyncIterator[None]:
    """Deliver events while the service runs."""
    redis = os.environ.get("RATE_REDIS")
    peers = RedisPeers(redis, "webhooks") if redis else None  # made here: in the process, and on its event loop
    async with (
        RateLimitedExecutor("webhooks", rate="50/s", peers=peers) as executor,
        tasks.running(executor, drain_timeout=10),
    ):
        yield


app = FastAPI(lifespan=running)


Name = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00]+$")]  # what a store takes


class Webhook(BaseModel):
    """An event to deliver, as a client submits it; FastAPI refuses others with 422."""

    id: Name
    url: AnyHttpUrl
    event: dict[str, Any]
    customer: Name | None = None


@app.post("/webhooks", status_code=202)
async def accept(webhook: Webhook) -> dict[str, Any]:
    """Reply once the event is in the store; a second request with the same id is a duplicate."""
    try:
        task = deliver.new(webhook.id, str(webhook.url), webhook.event, id=webhook.id, lane=webhook.customer)
    except (TypeError, ValueError) as error:  # too large, or JSON that cannot be written, such as NaN
        raise HTTPException(413 if "bytes" in str(error) else 422, str(error)) from None
    ref = await tasks.put(task)
    return {"id": ref.id, "created": ref.created}


@app.get("/webhooks/{event_id}")
async def state(event_id: str) -> dict[str, str]:
    """Return an event's state: "gone" if it was delivered, or was never accepted."""
    found = await tasks.ref(event_id).state()
    return {"state": "gone" if found is None else found.name.lower()}
