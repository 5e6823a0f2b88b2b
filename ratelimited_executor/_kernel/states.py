"""The states of a task, and which may follow which."""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["FINAL_STATES", "TRANSITIONS", "TaskState"]


class TaskState(Enum):
    """Where a task is in its life; the last five are final."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DROPPED = "dropped"

    # Members are their own identity; Enum's hash is written in Python, and would be called in the hot path.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"TaskState.{self.name}"


FINAL_STATES: Final = frozenset(
    {TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED, TaskState.DROPPED}
)

TRANSITIONS: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.WAITING: frozenset({TaskState.RUNNING, TaskState.CANCELLED, TaskState.EXPIRED, TaskState.DROPPED}),
    # Back to waiting: an attempt has failed, and there will be another.
    TaskState.RUNNING: frozenset({TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED, TaskState.WAITING}),
    **dict.fromkeys(FINAL_STATES, frozenset()),
}
