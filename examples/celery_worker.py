"""Share one rate among all processes of all Celery workers.

Celery's ``rate_limit`` applies to each worker separately. Here, all processes take permits of one rate from Redis. The
manager is created when the module is loaded, and starts in each process with the first permit; so it works with
``prefork``, which forks the processes in between, and with ``threads``. The rate is divided by what each process needs, and
processes may start and stop at any time.

A task that waits for a permit keeps its process busy, so other messages stay in the broker, where they are safe. To
prefetch only the messages that are being worked on, set ``worker_prefetch_multiplier`` to 1, as below.

This example needs ``pip install 'ratelimited-executor[redis]' celery httpx``, and a Redis. Run

    cd examples; REDIS_URL=redis://localhost:6379/0 celery -A celery_worker worker --concurrency 4

and, in another terminal, ``python -c "import celery_worker; celery_worker.deliver.delay('http://localhost:8000/', {})"``.
"""

import os

import httpx
from celery import Celery, Task
from celery.signals import worker_process_shutdown

from ratelimited_executor import TaskExpiredError
from ratelimited_executor.blocking import BlockingManager
from ratelimited_executor.peers import RedisPeers

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

app = Celery("celery_worker", broker=REDIS_URL)
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)

manager = BlockingManager(peers=RedisPeers(REDIS_URL, "deliveries"))
api = manager.limiter("api", rate=os.environ.get("RATE", "10/s"))  # for all processes together


@worker_process_shutdown.connect
def close(**_: object) -> None:
    """Leave the group, so that other processes get its share at once; ``prefork`` processes do not run ``atexit``."""
    manager.close()


@app.task(bind=True, max_retries=None)
def deliver(self: Task, url: str, payload: dict[str, object]) -> int:
    """Post a payload under the rate; if there is no permit within a minute, make room for other tasks."""
    try:
        with api.permit(expires=60, name=self.request.id):
            return httpx.post(url, json=payload).raise_for_status().status_code
    except TaskExpiredError as error:
        raise self.retry(exc=error, countdown=10) from error
