"""Accept webhooks and deliver them reliably: each accepted event stays in a store until it is delivered.

    uvicorn durable_webhooks:app                       # SQLite, in webhooks.db
    DURABLE_STORE=postgresql://host/db uvicorn ...     # PostgreSQL, for several machines

    curl -X POST localhost:8000/webhooks -H 'content-type: application/json' \
        -d '{"id": "order-7-paid", "url": "https://shop.example/hooks", "event": {"order": 7}}'

You can kill it at any time: the next process delivers every event that was accepted with status 202. Each customer's
events arrive in order, the service sends at most 50 requests a second, and a delivery that fails is retried for up to
about an hour. A receiver may get an event twice, for example if the process is killed just as the receiver replies; it
can recognise the event by the header ``Idempotency-Key``.

This example needs: pip install 'ratelimited-executor[sqlite]' fastapi httpx uvicorn
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator  # noqa: TC003  # FastAPI reads annotations at run time
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

from ratelimited_executor import RateLimitedExecutor, Retry, RetryLater, parse_retry_after
from ratelimited_executor.durable import DurableTasks, PostgresStore, SQLiteStore

STORE = os.environ.get("DURABLE_STORE", "webhooks.db")
LEASE = float(os.environ.get("DURABLE_LEASE", "15"))  # seconds until others take over a killed process's tasks

tasks = DurableTasks(PostgresStore(STORE) if STORE.startswith("postgres") else SQLiteStore(STORE), lease=LEASE)
client = httpx.AsyncClient(timeout=10)


@tasks.task(retry=Retry(12, base=2, cap=3600, on=httpx.HTTPError), run_timeout=30)
async def deliver(event_id: str, url: str, event: dict[str, Any]) -> None:
    """Send an event to its receiver."""
    response = await client.post(url, json=event, headers={"Idempotency-Key": event_id})
    if response.status_code in (429, 503):
        raise RetryLater(after=parse_retry_after(response.headers.get("retry-after")))
    response.raise_for_status()


@asynccontextmanager
async def running(_: FastAPI) -> AsyncIterator[None]:
    """Deliver events while the service runs."""
    async with RateLimitedExecutor("webhooks", rate="50/s") as executor, tasks.running(executor, drain_timeout=10):
        yield


app = FastAPI(lifespan=running)


class Webhook(BaseModel):
    """An event to deliver, as a client submits it."""

    id: str
    url: str
    event: dict[str, Any]
    customer: str | None = None


@app.post("/webhooks", status_code=202)
async def accept(webhook: Webhook) -> dict[str, Any]:
    """Reply once the event is in the store; a second request with the same id is a duplicate."""
    ref = await deliver.put(webhook.id, webhook.url, webhook.event, id=webhook.id, lane=webhook.customer)
    return {"id": ref.id, "created": ref.created}


@app.get("/webhooks/{event_id}")
async def state(event_id: str) -> dict[str, str]:
    """Return an event's state: "delivered" if it has left the store, or was never there."""
    found = await tasks.ref(event_id).state()
    return {"state": "delivered" if found is None else found.name.lower()}
