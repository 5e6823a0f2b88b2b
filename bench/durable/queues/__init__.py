"""The task queues, one adapter each: how a queue is used, with which settings, and what it promises."""

from __future__ import annotations

from bench.durable.queues import apscheduler, arq, docket, huey, ours, pgqueuer, procrastinate, taskiq
from bench.durable.queues.queue import Queue

__all__ = ["ALL", "Queue", "named"]

ALL: list[Queue] = [
    queue
    for module in (ours, huey, procrastinate, pgqueuer, apscheduler, arq, taskiq, docket)
    for queue in module.QUEUES
]


def named(name: str) -> Queue:
    """Return the queue with a name."""
    return next(queue for queue in ALL if queue.name == name)
