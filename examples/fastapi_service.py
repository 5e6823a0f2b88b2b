"""Deliver webhooks from a FastAPI service, under a rate, and shut down without losing deliveries that can still be sent.

The executor lives as long as the application: the application's lifespan enters the manager before the first request and
leaves it after the last. Leaving drains the executor: waiting deliveries are sent at their due times for at most
``drain_timeout``; the rest are cancelled, and one warning reports their number.

Run it with ``python examples/fastapi_service.py``, then::

    curl -X POST localhost:8000/deliveries -H 'content-type: application/json' \
        -d '{"url": "http://localhost:9000/hook", "payload": {"paid": true}, "delay": 2, "priority": 5}'
    curl localhost:8000/statistics
"""

import argparse
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from ratelimited_executor import BacklogFullError, ExecutorManager, RateLimitedExecutor

_EXPIRES_SECONDS = 600.0  # a delivery that could not start for ten minutes is no longer useful


class Delivery(BaseModel):
    """A delivery, as a client requests it."""

    url: str
    payload: dict[str, Any]
    delay: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 0.0
    priority: int = 0


def create_app(*, rate: str = "20/s", drain_timeout: float = 5.0) -> FastAPI:
    """Create the application.

    Args:
        rate: the rate of deliveries, in a form that ``Rate.parse`` accepts.
        drain_timeout: seconds for which the shutdown waits for deliveries.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # The client is entered first, so it is left last: deliveries during the drain still need it.
        async with httpx.AsyncClient(timeout=10.0) as client, ExecutorManager() as manager:
            app.state.client = client
            app.state.webhooks = manager.executor(
                "webhooks", rate=rate, max_concurrency=100, max_pending=100_000, drain_timeout=drain_timeout
            )
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/deliveries", status_code=202)
    async def schedule_delivery(delivery: Delivery, request: Request) -> dict[str, float]:
        webhooks: RateLimitedExecutor = request.app.state.webhooks
        try:
            handle = webhooks.schedule(
                deliver,
                request.app.state.client,
                delivery,
                delay=delivery.delay,
                priority=delivery.priority,
                expires=_EXPIRES_SECONDS,
                name=f"delivery to {delivery.url}",
            )
        except BacklogFullError as error:
            retry_after = str(math.ceil(min(webhooks.backlog_seconds(), 3600)) or 1)
            raise HTTPException(503, str(error), headers={"Retry-After": retry_after}) from error
        return {"due": handle.due}

    @app.get("/statistics")
    async def show_statistics(request: Request) -> dict[str, Any]:
        webhooks: RateLimitedExecutor = request.app.state.webhooks
        return {
            **asdict(webhooks.statistics()),
            "rate": str(webhooks.rate),
            "backlog_seconds": webhooks.backlog_seconds(),
        }

    return app


async def deliver(client: httpx.AsyncClient, delivery: Delivery) -> None:
    """Send one webhook; if the receiver refuses it, the task fails and is counted as failed."""
    response = await client.post(delivery.url, json=delivery.payload)
    response.raise_for_status()


def main() -> None:
    """Run the service on the loopback address."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--rate", default="20/s")
    parser.add_argument("--drain-timeout", type=float, default=5.0)
    options = parser.parse_args()
    uvicorn.run(create_app(rate=options.rate, drain_timeout=options.drain_timeout), port=options.port)


if __name__ == "__main__":
    main()
