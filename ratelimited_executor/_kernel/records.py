"""The part of a task's handle that the kernel reads and writes; ``TaskHandle`` is the rest of it.

Only tasks that can be queried afterwards have a record: the others are a position in a bucket's columns.
"""

from __future__ import annotations

from typing import Final

from ratelimited_executor._kernel.fields import RecordFields
from ratelimited_executor._kernel.states import TaskClass as TaskClass

__all__ = ["PERMITS", "Record", "TaskClass"]

PERMITS: Final = "permits"  # the name of the executor's own permits among the resources


class Record(RecordFields):
    """The data of a task that the queue needs.

    Attributes:
        _due: loop time before which it must not start.
        _place: where it waits (a bucket or a ready queue), None once it no longer waits.
        _state: the state of the task.
        _options: rarely used options: priority, deadline and so on, or only a key; None if it has none.
        _class: its rank among tasks of equal priority.
        _engine: the engine of its executor.
        _call: the callable; once the task has ended, the callable's name.
        _outcome: the arguments of the call; once the task has ended, its result or exception.
        _context: the context variables it was scheduled with; once it has started, the loop time of the start.
        _callbacks: the done callbacks; once it has failed, the guard of an exception that was not retrieved.
    """

    # Some fields have two meanings, because a million records may wait: 8 bytes in each are 8 MB.
    __slots__ = ()

    @property
    def priority(self) -> float:
        """The priority of the task; larger is more important; 0 by default."""
        return 0 if self._options is None else self._options.priority

    @property
    def name(self) -> str:
        """The name of the task in logs, errors and orders."""
        raise NotImplementedError
