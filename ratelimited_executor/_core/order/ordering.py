"""Decides which due task starts first.

The default order: the larger priority first; among equals, repeating tasks, then immediate tasks, then others; among
those, the earliest due, then the first to arrive. It is kept by a queue for each pair of priority and class: due tasks
are appended in due order, so a start costs the same however long the queue is.

Any other order is a key function of a :class:`TaskView`, evaluated once, when the task becomes due: smaller keys start
first, and a heap keeps them at O(log n).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ratelimited_executor._core.durations import seconds_of
from ratelimited_executor._core.keys.keys import given_key
from ratelimited_executor._kernel.records import TaskClass

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ratelimited_executor._core.durations import DurationLike
    from ratelimited_executor._kernel.contracts import Rank

__all__ = [
    "Ageing",
    "Order",
    "TaskClass",
    "TaskView",
    "default_order",
    "earliest_due_first",
    "latest_due_first",
    "view_of",
]


class _TaskFields(NamedTuple):
    """The fields of a :class:`TaskView`, and the place of its callable."""

    name: str
    priority: float
    due: float
    is_repeating: bool
    is_immediate: bool
    arrival: int
    key: Hashable = None
    cost: int = 1
    place: Any = None  # (owner of the task, position in it); read on demand, because reading items may run user code


_PLACE: Final = _TaskFields._fields.index("place")
delattr(_TaskFields, "place")  # a del statement would hide the name from type checkers


class TaskView(_TaskFields):
    """A task that has just become due, as seen by an order.

    Attributes:
        name: the name given when it was scheduled, else that of its callable.
        priority: larger is more important, by convention.
        due: epoch seconds.
        is_repeating: True if it is an occurrence of a repeating task.
        is_immediate: True if it was scheduled without any delay.
        arrival: a number that rises with each task that becomes due; 0 in lists of tasks.
        key: the key of the task; None if it was scheduled without one.
        cost: the number of permits that its start takes.
    """

    __slots__ = ()

    @property
    def fn(self) -> Callable[..., Any] | None:
        """The callable; None for a caller waiting for a permit, and once the task has ended."""
        place: Any = self[_PLACE]
        return None if place is None else place[0]._fn_of(place[1])

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments of the task; for a task of a batch, its item."""
        place: Any = self[_PLACE]
        return () if place is None else place[0]._args_of(place[1])

    def __repr__(self) -> str:
        return f"TaskView({', '.join(f'{name}={value!r}' for name, value in zip(self._fields[:_PLACE], self, strict=False))})"


def view_of(name: str, rank: Rank, due: float, *, arrival: int, key: Hashable, cost: int, place: Any) -> TaskView:
    """Return the view of a task that has just become due, at ``due`` in epoch seconds; its key is in stored form."""
    minus_priority, kind = rank
    is_repeating, is_immediate = kind is TaskClass.REPEATING, kind is TaskClass.IMMEDIATE
    return TaskView(name, -minus_priority, due, is_repeating, is_immediate, arrival, given_key(key), cost, place)


Order: TypeAlias = "Callable[[TaskView], Any]"


def default_order(task: TaskView) -> tuple[float, int, float, int]:
    """Order by priority, then class (repeating, immediate, others), then due time, then arrival."""
    rank = TaskClass.REPEATING if task.is_repeating else TaskClass.IMMEDIATE if task.is_immediate else TaskClass.OTHER
    return -task.priority, rank, task.due, task.arrival


class Ageing:
    """An order in which a task gains importance while it waits, so that none starves.

    A task's importance is its priority, plus 1 for every ``seconds`` that it has waited since its due time. The
    difference between two tasks never changes, because both gain alike. So the sort key is evaluated once: the due time
    minus ``seconds`` for each step of priority.

    Bound: a task of priority p due at d starts before every task of priority q due after d + ``seconds`` x (q - p). So
    it waits only for the tasks due before d + ``seconds`` x (q_max - p), whose number no longer grows.

    Args:
        seconds: the additional wait that makes up for a priority lower by 1, > 0 and finite.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is out of range.
    """

    __slots__ = ("_seconds",)

    def __init__(self, seconds: DurationLike) -> None:
        self._seconds = seconds_of("seconds", seconds)

    @property
    def seconds(self) -> float:
        """The seconds of waiting that are worth one step of priority."""
        return self._seconds

    def __call__(self, task: TaskView) -> tuple[float, int]:
        """Return the sort key of a task."""
        return task.due - self._seconds * task.priority, task.arrival

    def __repr__(self) -> str:
        return f"Ageing({self._seconds:g})"


def earliest_due_first(task: TaskView) -> tuple[float, int]:
    """Order by due time alone, whatever the priority."""
    return task.due, task.arrival


def latest_due_first(task: TaskView) -> tuple[float, int]:
    """Order by due time, the latest first: for work whose newest item has the most value."""
    return -task.due, task.arrival
