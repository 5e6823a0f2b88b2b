"""Handles: what the methods of an executor return."""

from __future__ import annotations

from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.batches import BatchHandle, BatchSummary, Outcome
from ratelimited_executor._runtime.futures import FuturesFace
from ratelimited_executor._runtime.handles import CallHandle, TaskHandle
from ratelimited_executor._runtime.permit import Permit
from ratelimited_executor._runtime.repeating import RepeatingHandle

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
