"""Where tasks lie, as the runs and queues of what is due know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from ratelimited_executor._core.ordering import TaskClass

__all__ = ["Place", "Rank", "Source"]

Rank: TypeAlias = "tuple[float, TaskClass]"  # smaller is more important


class Source(Protocol):
    """Where the tasks of a run lie."""

    @property
    def live(self) -> int:
        """How many of its tasks wait."""
        ...

    def is_waiting(self, position: int) -> bool:
        """Whether the task has neither started nor gone."""
        ...

    def due_of(self, position: int) -> float:
        """Return the loop time at which the task is due."""
        ...

    def name_of(self, position: int) -> str:
        """Return what the task is called."""
        ...

    def note_started(self, count: int) -> None:
        """Note that so many tasks have started whose places are empty already."""
        ...

    @property
    def key(self) -> Hashable:
        """Whose tasks they are; None if they are nobody's."""
        ...

    @property
    def needs(self) -> Mapping[str, int] | None:
        """How much of each resource the start of a task takes; None for one permit."""
        ...

    def cost_of(self, position: int) -> int:
        """Return how many permits the start of the task takes."""
        ...


class Place(Protocol):
    """Where a record waits: a bucket, or once it is due a run or a heap."""

    opened: bool
    calendar: Any

    def cancel_record(self) -> None:
        """Note that a record does not wait here any more."""
        ...
