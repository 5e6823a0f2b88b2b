"""The states of a task and their transitions, its class among tasks of equal priority, and the pacing of starts."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any, Final

__all__ = ["FINAL_STATES", "RECORD", "TRANSITIONS", "Pacing", "TaskClass", "TaskState"]

RECORD: Final[Any] = object()  # in a bucket's column of arguments: the callable beside it is a record


class TaskState(Enum):
    """The state of a task; the last five are final."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DROPPED = "dropped"

    # Members hash by identity: Enum's own hash is written in Python, and would be called on the hot path.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"TaskState.{self.name}"


FINAL_STATES: Final = frozenset(
    {TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED, TaskState.DROPPED}
)

TRANSITIONS: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.WAITING: frozenset({TaskState.RUNNING, TaskState.CANCELLED, TaskState.EXPIRED, TaskState.DROPPED}),
    # Back to waiting: an attempt has failed, and another will follow.
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
