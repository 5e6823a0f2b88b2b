"""Requeueing of all dead letters with one class of error, while people look on.

It goes on in steps of up to a thousand tasks, each a transaction, whether a page is open or not, until all have had their turn, or
somebody stops it. If its process ends before that, the others are still dead letters: nothing is lost, or requeued twice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ratelimited_executor._core.durable.tasks import NOT_OPEN, DurableState
from ratelimited_executor._runtime.durable.repairs import Selection, repair
from ratelimited_executor.dashboard.errors import unusable
from ratelimited_executor.dashboard.texts import count_text, name_text
from ratelimited_executor.exceptions import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor.abc import TaskStore

__all__ = ["Requeueing"]


class Requeueing:
    """Requeues the dead letters whose last error is of a class, from now on.

    Args:
        store: their store.
        kind: the class.

    Attributes:
        kind: the class.
        count: how many have been requeued so far.
        total: how many were to be; None while they are looked for.
        is_stopping: True once somebody has stopped it.
        problem: why it has ended too early; empty if it has not.
        is_closed: True if it has, since the process has closed the store, as at its end.
    """

    def __init__(self, store: TaskStore, kind: str) -> None:
        self.kind = kind
        self.count = 0
        self.total: int | None = None
        self.is_stopping = False
        self.problem = ""
        self.is_closed = False
        self._store = store
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"live page: requeue {kind!r}")

    @property
    def is_running(self) -> bool:
        """True until it has ended."""
        return not self._task.done()

    @property
    def what(self) -> str:
        """The tasks that it has requeued, as a change tells it."""
        total = self.count if self.total is None else self.total
        count = count_text(self.count) + (f" of {count_text(total)}" if self.count < total else "")
        return f"{count} {'task' if total == 1 else 'tasks'} with {name_text(self.kind)}"

    @property
    def outcome(self) -> str:
        """What they are now, and why not all, if so."""
        if self.is_closed:
            left = "" if self.total is None else f": {count_text(self.total - self.count)} are left dead letters"
            return f"ready, then the process closed the store{left}"
        is_stopped = self.is_stopping and self.count != self.total  # else there was nothing left to stop
        return "ready" + (f", then: {self.problem}" if self.problem else ", then stopped" if is_stopped else "")

    def stop(self) -> None:
        """End it after the running step."""
        self.is_stopping = True

    async def ended(self, seconds: float | None = None) -> Requeueing:
        """Wait for its end, but not longer than some seconds."""
        await asyncio.wait({self._task}, timeout=seconds)
        return self

    async def _run(self) -> None:
        try:
            await repair(
                self._store,
                DurableState.DEAD,
                Selection(error_class=self.kind),
                self._requeue,
                progress=self._note,
                is_stopped=lambda: self.is_stopping,
            )
        except Exception as error:  # noqa: BLE001  # of a store of the user's, perhaps
            self.problem = unusable(error)
            self.is_closed = isinstance(error, StoreUnavailableError) and error.reason == NOT_OPEN

    async def _requeue(self, ids: Sequence[str]) -> int:
        return (await self._store.requeue(ids)).count(DurableState.DEAD)

    def _note(self, count: int, total: int) -> None:
        self.count, self.total = count, total
