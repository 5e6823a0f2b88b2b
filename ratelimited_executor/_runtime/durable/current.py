"""The current durable task, for its function and the code that it calls."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ratelimited_executor._core.durable.tasks import Claimed

__all__ = ["CURRENT", "CurrentTask", "current_task"]

CURRENT: Final[ContextVar[Claimed | None]] = ContextVar("ratelimited_executor.durable.current", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTask:
    """The running durable task, as claimed for this attempt.

    Attributes:
        id: the id of the task, given or generated; the same in every attempt.
        name: the registered name of its function.
        version: the registered version of its function.
        priority: the priority with which it was put.
        lane: its lane; None for none.
        attempt_count: the number of failed attempts before this one.
        lost_count: the number of processes lost while they had claimed it: it may have run before, in part or fully.
    """

    id: str
    name: str
    version: int
    priority: float
    lane: str | None
    attempt_count: int
    lost_count: int


def current_task() -> CurrentTask | None:
    """Return the current durable task; None outside of one.

    It is a context variable: visible to code that the task calls, and to tasks and threads started with its context.
    """
    claimed = CURRENT.get()
    if claimed is None:
        return None
    return CurrentTask(
        id=claimed.id,
        name=claimed.name,
        version=claimed.version,
        priority=claimed.priority,
        lane=claimed.lane,
        attempt_count=claimed.attempt_count,
        lost_count=claimed.lost_count,
    )
