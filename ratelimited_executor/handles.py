"""Handles: what the methods of an executor return."""

from __future__ import annotations

from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.repeat.repeating import RepeatingHandle
from ratelimited_executor._runtime.task.batches import BatchHandle, BatchSummary, Outcome
from ratelimited_executor._runtime.task.handles import CallHandle, TaskHandle
from ratelimited_executor._runtime.task.permit import Permit
from ratelimited_executor._runtime.threads.futures import FuturesFace

__all__ = [
    "BatchHandle",
    "BatchSummary",
    "CallHandle",
    "FuturesFace",
    "Outcome",
    "Permit",
    "RepeatingHandle",
    "TaskHandle",
    "TaskState",
]
