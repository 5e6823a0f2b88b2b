"""The removal of an executor's waiting tasks before their start: cancelled, dropped, expired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimited_executor._kernel.states import TaskState
from ratelimited_executor._runtime.task.batch_items import BatchItem
from ratelimited_executor.exceptions import TaskDroppedError, TaskExpiredError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor._core.queue.queue import TaskQueue
    from ratelimited_executor._kernel.batches import BatchSource
    from ratelimited_executor._runtime.task.accounts import Accounts

__all__ = ["Pending"]


class Pending:
    """The waiting tasks of one executor.

    Args:
        queue: the queue of the tasks; it reports those that it removes itself.
        accounts: count the ends.
        wake: makes the executor look for a task to start, because a removed one may have held up another.
    """

    __slots__ = ("_accounts", "_queue", "_wake")

    def __init__(self, queue: TaskQueue, accounts: Accounts, *, wake: Callable[[], None]) -> None:
        self._queue = queue
        self._accounts = accounts
        self._wake = wake
        queue.on_gone = self._gone

    def cancel(self, record: Any, message: object) -> None:
        """End a waiting record as cancelled."""
        if self._queue.cancel(record):  # remove(), inlined
            self._wake()
        self._accounts.end(record, TaskState.CANCELLED, message)

    def revoke(self, source: BatchSource) -> int:
        """Cancel the waiting tasks of a batch; return their number."""
        self._accounts.detach()
        count, is_freed = self._queue.revoke(source)
        if is_freed:
            self._wake()
        self._accounts.note_cancelled(count)
        return count

    def drop(self, record: Any, reason: str) -> None:
        """End a waiting record as dropped."""
        if record._state is not TaskState.WAITING:  # a finalizer, run by the end of the previous one, has ended it
            return
        self.remove(record)
        self._accounts.end(record, TaskState.DROPPED, TaskDroppedError(record.name, reason=reason))

    def remove(self, record: Any) -> None:
        """Remove a waiting record from the queue, without ending it."""
        if self._queue.cancel(record):
            self._wake()

    def _gone(self, source: Any, item: Any, state: TaskState) -> None:
        """End a task that the queue has removed without a start."""
        if source is None:
            owner, name, needs, expires = item, item.name, item.needs, item._options.expires
        else:
            owner = BatchItem(source, source.indexes[item])
            owner.batch._forget(source)
            name, needs, expires = source.name_of(item), source.needs, source.deadline_after
        error: Exception
        if state is TaskState.EXPIRED:
            error = TaskExpiredError(name, expires=expires)
        else:
            costs = ", ".join(f"{amount} {resource}" for resource, amount in (needs or {}).items())
            error = TaskDroppedError(name, reason=f"its cost, {costs}, is more than the limits in force ever admit")
        self._accounts.end(owner, state, error)
