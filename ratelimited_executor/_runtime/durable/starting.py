"""Records of starts, one at a time, of tasks that have lost a process before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ratelimited_executor._runtime.durable.outcomes import LeaseOverError
from ratelimited_executor.exceptions import StoreUnavailableError

if TYPE_CHECKING:
    from ratelimited_executor._core.durable.tasks import Ref
    from ratelimited_executor.abc import TaskStore

__all__ = ["Starting"]


class Starting:
    """Records starts, each in a call of its own, whose task starts before the next call begins.

    Starts that shared a call would share the blame if the first of their tasks kills the process.

    Args:
        store: the store of the tasks.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._turn = asyncio.Lock()

    async def add(self, ref: Ref) -> None:
        """Return once the start of a claim is recorded.

        Raises:
            LeaseOverError: if the claim is no longer in force, or the store cannot record its start: it must not start.
        """
        async with self._turn:
            try:
                [is_in_force] = await self._store.start([ref])
            except StoreUnavailableError:
                is_in_force = False  # the task is released, and claimed again
            if not is_in_force:
                raise LeaseOverError
