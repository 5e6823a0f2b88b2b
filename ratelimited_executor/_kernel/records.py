"""The part of a task's own object that the kernel reads and writes; ``TaskHandle`` is the rest of it.

Only tasks that somebody may ask about afterwards have a record: the others are a position in a bucket's columns.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ratelimited_executor._kernel.states import TaskState

__all__ = ["PERMITS", "Record", "TaskClass"]

PERMITS: Final = "permits"  # names the executor's own permits among the resources


class TaskClass(IntEnum):
    """The rank of a task among those of equal priority."""

    REPEATING = 0
    IMMEDIATE = 1
    OTHER = 2


class Record:
    """What the queue must know of a task.

    Attributes:
        _due: loop time before which it must not start.
        _place: where it waits (a bucket or a ready queue), None once it does not wait any more.
        _state: where it is in its life.
        _options: what few tasks have: priority, deadline and so on, or only a key; None if it has nothing of that.
        _class: its rank among tasks of equal priority.
    """

    __slots__ = ("_class", "_due", "_options", "_place", "_state")

    _due: float
    _place: Any
    _state: TaskState
    _options: Any
    _class: TaskClass

    @property
    def priority(self) -> float:
        """How important the task is; larger is more important; 0 unless said otherwise."""
        return 0 if self._options is None else self._options.priority

    @property
    def name(self) -> str:
        """What the task is called in logs, errors and orders."""
        raise NotImplementedError
