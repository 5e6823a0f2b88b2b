"""A Flask service that delivers webhooks later, under a rate, without asyncio.

A request only schedules the delivery, which a worker thread makes when it is due and a permit is available. If too many
wait, the service says so. The executor's thread starts with the first request, and so once in each worker process of a
server that forks; with ``peers=`` the processes would share the rate.

    pip install flask httpx 'ratelimited-executor'
    cd examples; flask --app flask_service run
    curl localhost:5000/webhooks --json '{"url": "http://localhost:8000/", "payload": {"number": 1}, "delay": 2}'
"""

from __future__ import annotations

import os
from typing import Any

import httpx
from flask import Flask, request

from ratelimited_executor import BacklogFullError
from ratelimited_executor.blocking import ScheduledExecutor

app = Flask(__name__)
executor = ScheduledExecutor(
    "webhooks", rate=os.environ.get("RATE", "20/s"), max_threads=8, max_pending=100, drain_timeout="10 s"
)


def deliver(url: str, payload: dict[str, Any]) -> None:
    """Make one delivery, in a worker thread."""
    httpx.post(url, json=payload).raise_for_status()


@app.post("/webhooks")
def accept() -> tuple[dict[str, Any], int]:
    """Accept a webhook for later."""
    body = request.get_json()
    try:
        future = executor.schedule(deliver, body["url"], body["payload"], delay=body.get("delay", 0))
    except BacklogFullError as error:
        return {"error": str(error)}, 503
    except (TypeError, ValueError) as error:  # such as a negative delay
        return {"error": str(error)}, 400
    return {"why": str(executor.explain(future))}, 202


@app.get("/webhooks")
def count() -> dict[str, int]:
    """Count the webhooks."""
    statistics = executor.statistics()
    return {"waiting": statistics.waiting, "delivered": statistics.done, "failed": statistics.failed}
