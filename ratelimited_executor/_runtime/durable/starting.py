"""Records of starts that the store asks for, in batches of concurrent ones."""

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
    """Records starts of tasks that have lost a process before; other tasks start without.

    Args:
        store: the store of the tasks.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._waiting: dict[Ref, asyncio.Future[bool]] = {}
        self._flushing: asyncio.Task[None] | None = None

    async def add(self, ref: Ref) -> None:
        """Return once the start of a claim is recorded.

        Raises:
            LeaseOverError: if the claim is no longer in force, or the store cannot record its start: it must not start.
        """
        loop = asyncio.get_running_loop()
        recorded = self._waiting[ref] = loop.create_future()
        if self._flushing is None:
            self._flushing = loop.create_task(self._flush(), name="durable starts")
        if not await recorded:
            raise LeaseOverError

    async def _flush(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, {}
                answers = [False] * len(batch)
                try:
                    answers = await self._store.start(list(batch))
                except StoreUnavailableError:
                    pass  # the tasks are released, and claimed again
                finally:
                    for recorded, answer in zip(batch.values(), answers, strict=True):
                        if not recorded.done():
                            recorded.set_result(answer)
        finally:
            self._flushing = None
