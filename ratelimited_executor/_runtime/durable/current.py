"""Which durable task runs here, for its function and what that calls."""

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
    """The durable task that runs, as it was claimed for this attempt.

    Attributes:
        id: the same in every attempt, whoever chose it.
        name: of its function, as it is registered.
        version: the same.
        priority: as it was put.
        lane: the same; None for none.
        attempt_count: attempts that have failed before this one.
        lost_count: processes that were lost while they had claimed it: it may have run before, and nobody knows how far.
    """

    id: str
    name: str
    version: int
    priority: float
    lane: str | None
    attempt_count: int
    lost_count: int


def current_task() -> CurrentTask | None:
    """Return the durable task in whose run this is called; None outside of one.

    It is a context variable: what the task calls sees it, tasks and threads that it starts with its context, too.
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
