"""A Celery task that makes many requests under a rate, several at once.

The executor is created when the module is loaded, and starts in each worker process with its first task; so it works with
``prefork``, which forks the processes in between. All tasks of a process share its rate; with ``peers=``, all processes do.

    pip install celery httpx 'ratelimited-executor'
    cd examples; celery -A celery_fan_out worker --concurrency 2
    python -c "import celery_fan_out; celery_fan_out.fetch.delay(['http://localhost:8000/'] * 100)"
"""

from __future__ import annotations

import os

import httpx
from celery import Celery
from celery.signals import worker_process_shutdown

from ratelimited_executor.blocking import ScheduledExecutor

app = Celery("celery_fan_out", broker=os.environ.get("BROKER", "redis://localhost:6379/0"))
executor = ScheduledExecutor("requests", rate=os.environ.get("RATE", "20/s"), max_threads=8)


@worker_process_shutdown.connect
def close(**_: object) -> None:
    """Cancel what has not started; ``prefork`` processes do not run the interpreter's exit."""
    executor.shutdown(cancel_futures=True)


def status_of(url: str) -> int:
    """Make one request, in a worker thread."""
    return httpx.get(url).status_code


@app.task
def fetch(urls: list[str]) -> list[int]:
    """Fetch all URLs; the first failure is that of the task, and cancels the requests that have not started."""
    return list(executor.map(status_of, urls))
