"""The current durable task, for its function and the code that it calls."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from ratelimited_executor._core.durable.tasks import Claimed

__all__ = ["CURRENT", "CurrentRun", "CurrentTask", "current_task"]


class CurrentRun(Protocol):
    """The parts of a ``DurableRun`` that its task, and who writes its state, use."""

    claimed: Claimed
    saved: bytes | None

    def save(self, state: Any) -> None:
        """Save a state for the next attempt."""
        ...

    def load(self) -> Any:
        """Return the state that was saved last."""
        ...


CURRENT: Final[ContextVar[CurrentRun | None]] = ContextVar("ratelimited_executor.durable.current", default=None)


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
    _run: CurrentRun | None = field(default=None, repr=False, compare=False)

    @property
    def saved(self) -> Any:
        """The state that was saved last, in this attempt or an earlier one; None if there is none."""
        return None if self._run is None else self._run.load()

    def save(self, state: Any) -> None:
        """Save a state for the next attempt, if there is one: how far this one has come.

        It is written with the next beat, a third of the lease later at most, and with the end of the attempt: what the loss
        of the process leaves may be so much older. Each state replaces the last one; that of a task that is done is deleted.
        May be called in any thread.

        Args:
            state: what the codec can encode, at most 64 KiB.

        Raises:
            TypeError: if its type cannot be encoded.
            ValueError: if it cannot be encoded, or is too large.
        """
        if self._run is not None:
            self._run.save(state)


def current_task() -> CurrentTask | None:
    """Return the current durable task; None outside of one.

    It is a context variable: visible to code that the task calls, and to tasks and threads started with its context.
    """
    run = CURRENT.get()
    if run is None:
        return None
    claimed = run.claimed
    return CurrentTask(
        id=claimed.id,
        name=claimed.name,
        version=claimed.version,
        priority=claimed.priority,
        lane=claimed.lane,
        attempt_count=claimed.attempt_count,
        lost_count=claimed.lost_count,
        _run=run,
    )
