"""The part of a task's own object that the kernel reads and writes; ``TaskHandle`` is the rest of it.

Only tasks that somebody may ask about afterwards have a record: the others are a position in a bucket's columns.
"""

from __future__ import annotations

from typing import Final

from ratelimited_executor._kernel.fields import RecordFields
from ratelimited_executor._kernel.states import TaskClass as TaskClass

__all__ = ["PERMITS", "Record", "TaskClass"]

PERMITS: Final = "permits"  # names the executor's own permits among the resources


class Record(RecordFields):
    """What the queue must know of a task.

    Attributes:
        _due: loop time before which it must not start.
        _place: where it waits (a bucket or a ready queue), None once it does not wait any more.
        _state: where it is in its life.
        _options: what few tasks have: priority, deadline and so on, or only a key; None if it has nothing of that.
        _class: its rank among tasks of equal priority.
        _engine: of the executor that it was given to.
        _call: what is called; once it has ended, the name of that.
        _outcome: the arguments of the call; once it has ended, the result or what it raised.
        _context: the variables that it was scheduled with; once it has started, the loop time at which.
        _callbacks: what to call at the end; once it has failed, the guard of an exception that nobody has seen.
    """

    # Two meanings a field, because a million records wait: 8 bytes of each are 8 MB.
    __slots__ = ()

    @property
    def priority(self) -> float:
        """How important the task is; larger is more important; 0 unless said otherwise."""
        return 0 if self._options is None else self._options.priority

    @property
    def name(self) -> str:
        """What the task is called in logs, errors and orders."""
        raise NotImplementedError
