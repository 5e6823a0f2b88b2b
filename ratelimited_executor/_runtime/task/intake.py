"""The interface of an executor for its faces and for the handles of their tasks.

:class:`Intake` is their whole view of the engine (``_runtime/life/engine.py``); anything else is passed to them.
Closing and insight have narrower views (``closing.Closable``, ``insight.Insights``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._kernel.buckets import Bucket
    from ratelimited_executor._runtime.limits.limits import Limits
    from ratelimited_executor._runtime.task.accounts import Accounts
    from ratelimited_executor._runtime.task.callbacks import DoneCallbacks
    from ratelimited_executor._runtime.task.contexts import SharedContexts
    from ratelimited_executor._runtime.task.handles import TaskHandle
    from ratelimited_executor._runtime.task.pending import Pending

__all__ = ["Intake", "add_wall"]


class Intake(Protocol):
    """The engine of an executor, as its faces and its handles see it.

    Attributes:
        loop: the event loop.
        monotonic: returns the loop time.
        queue: the queue of the tasks.
        accounts: the counts of accepted, running and ended tasks.
        contexts: captures the caller's context variables.
        limits: the limits on starts.
        pending: removes tasks before their start.
        callbacks: calls the done callbacks.
        armed: loop time of its next run.
    """

    loop: asyncio.AbstractEventLoop
    monotonic: Callable[[], float]
    queue: TaskQueue
    accounts: Accounts
    contexts: SharedContexts
    limits: Limits
    pending: Pending
    callbacks: DoneCallbacks
    armed: float

    def now(self) -> float:
        """Return the loop time, and begin the interval that contains it."""
        ...

    def wake(self) -> None:
        """Run the queue in this loop iteration."""
        ...

    def wake_for(self, due: float) -> None:
        """Run the queue no later than the interval of ``due`` requires."""
        ...

    def add(self, record: TaskHandle[Any]) -> None:
        """Accept a record by its due time."""
        ...

    def add_immediate(self, record: TaskHandle[Any]) -> None:
        """Accept a record due now."""
        ...

    def add_call_ready(self, now: float, call: Any, args: Any, context: Any) -> tuple[Bucket, int]:
        """Accept a task without a record that is due now; return its bucket and place."""
        ...


def add_wall(engine: Intake, record: TaskHandle[Any], wall_due: float) -> None:
    """Accept a record due by the wall clock in a later interval."""
    queue = engine.queue
    engine.accounts.accept()
    if queue.drops is not None:
        queue.drops.add(record)
    queue.wall.add_record(record, wall_due)
    engine.wake_for(queue.interval_end)
