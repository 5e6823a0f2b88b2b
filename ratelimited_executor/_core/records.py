"""The part of a task's own object that the core reads and writes; ``TaskHandle`` is the rest of it.

Only tasks that somebody may ask about afterwards have a record: the others are a position in a bucket's columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratelimited_executor._core.ordering import TaskClass
    from ratelimited_executor._core.states import TaskState

__all__ = ["Record"]


class Record:
    """What the queue must know of a task.

    Attributes:
        _due: loop time before which it must not start.
        _place: where it waits (a bucket or a ready queue), None once it does not wait any more.
        _state: where it is in its life.
        _options: what few tasks have: priority, deadline and so on; None if it has nothing of that.
        _class: its rank among tasks of equal priority.
    """

    __slots__ = ("_class", "_due", "_options", "_place", "_state")

    _due: float
    _place: Any
    _state: TaskState
    _options: Options | None
    _class: TaskClass

    @property
    def priority(self) -> float:
        """How important the task is; larger is more important; 0 unless said otherwise."""
        return 0 if self._options is None else self._options.priority

    @property
    def name(self) -> str:
        """What the task is called in logs, errors and orders."""
        raise NotImplementedError


class Options:
    """What few tasks have.

    Attributes:
        priority: larger is more important.
        deadline: loop time after which the task must not start; None if it never expires.
        expires: the same as seconds after the due time, as the caller gave it.
        expiry_index: its place in the index of deadlines; None if it is not there.
        run_timeout: seconds that it may run; None if unlimited.
        in_thread: whether it runs in a worker thread.
        own_context: whether its context was given by the caller, to be used itself and not a copy.
        name: what the caller calls it.
        on_time: whether it is never spread.
        wall: epoch seconds at which it is due by the wall clock; None if its due time is on the timeline.
    """

    __slots__ = (
        "deadline", "expires", "expiry_index", "in_thread", "name", "on_time", "own_context", "priority", "run_timeout", "wall",
    )  # fmt: skip

    def __init__(
        self,
        *,
        priority: float = 0,
        expires: float | None = None,
        run_timeout: float | None = None,
        in_thread: bool = False,
        own_context: bool = False,
        name: str | None = None,
        on_time: bool = False,
        wall: float | None = None,
    ) -> None:
        self.priority = priority
        self.expires = expires
        self.deadline: float | None = None
        self.expiry_index: int | None = None
        self.run_timeout = run_timeout
        self.in_thread = in_thread
        self.own_context = own_context
        self.name = name
        self.on_time = on_time
        self.wall = wall
