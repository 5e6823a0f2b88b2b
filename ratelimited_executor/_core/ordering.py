"""Which of the tasks that are due starts first.

The default order is that of the predecessor with priorities on top: the larger priority first; among equals repeating
tasks, then immediate ones, then others; among those the earliest due, then the first to arrive. A queue for each pair of
priority and class keeps it: what is due is appended in due order, so that a start costs the same however long the queue.

Any other order is a key function of a :class:`TaskView`, evaluated once, when the task becomes due: smaller keys start
first, and a heap keeps them at O(log n).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Order", "TaskClass", "TaskView", "default_order", "earliest_due_first", "latest_due_first"]


class TaskClass(IntEnum):
    """The rank of a task among those of equal priority."""

    REPEATING = 0
    IMMEDIATE = 1
    OTHER = 2


class TaskView(NamedTuple):
    """What an order may look at: a task that has just become due.

    Attributes:
        name: the name given when it was scheduled, else that of its callable.
        priority: larger is more important, by convention.
        due: epoch seconds.
        is_repeating: whether it is an occurrence of a repeating task.
        is_immediate: whether it was asked for without any delay.
        arrival: a number that rises with each task that becomes due.
    """

    name: str
    priority: float
    due: float
    is_repeating: bool
    is_immediate: bool
    arrival: int


Order: TypeAlias = "Callable[[TaskView], Any]"


def default_order(task: TaskView) -> tuple[float, int, float, int]:
    """Order by priority, then repeating, immediate, others, then the earliest due, then arrival."""
    rank = TaskClass.REPEATING if task.is_repeating else TaskClass.IMMEDIATE if task.is_immediate else TaskClass.OTHER
    return -task.priority, rank, task.due, task.arrival


def earliest_due_first(task: TaskView) -> tuple[float, int]:
    """Order by due time alone, whatever the priority."""
    return task.due, task.arrival


def latest_due_first(task: TaskView) -> tuple[float, int]:
    """Order by due time, the latest first: for work whose newest item is worth most."""
    return -task.due, task.arrival
