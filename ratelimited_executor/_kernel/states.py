"""The states of a task, which may follow which, its class among tasks of equal priority, and how starts are paced."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any, Final

__all__ = ["FINAL_STATES", "RECORD", "TRANSITIONS", "Pacing", "TaskClass", "TaskState"]

RECORD: Final[Any] = object()  # in a bucket's column of arguments: the callable beside it is a record


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


class Pacing(Enum):
    """When the tasks of an interval start, if they fit its permits."""

    SPREAD = "spread"
    """Evenly over the interval, up to one interval late."""

    ON_TIME = "on time"
    """Each at its own due time."""


class TaskClass(IntEnum):
    """The rank of a task among those of equal priority."""

    REPEATING = 0
    IMMEDIATE = 1
    OTHER = 2
