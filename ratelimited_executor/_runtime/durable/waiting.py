"""Waiting for the ends of durable tasks: one look at the store for all who wait, after each of its changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ratelimited_executor._core.durable.tasks import DurableState, EndedRow
from ratelimited_executor.exceptions import NoResultError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimited_executor._runtime.durable.codec import Codec
    from ratelimited_executor.abc import TaskStore

__all__ = ["Waiting"]

_End: TypeAlias = "EndedRow | DurableState | None"

_SWEEP_SECONDS: Final = 5.0  # between two looks at a store that reports no change
_LOOK_SECONDS: Final = 0.02  # between two looks at one that changes all the time ...
_LOOK_SECONDS_EACH: Final = 1e-4  # ... and in addition for each task


class Waiting:
    """Those who wait for tasks of one store.

    Args:
        store: the store, which is open.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._waiters: dict[str, list[asyncio.Future[_End]]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def result(self, task_id: str, codec: Codec) -> Any:
        """Return the result of a task once it has ended.

        Raises:
            NoResultError: if it has none.
            StoreUnavailableError: if the store cannot be read, or is closed meanwhile.
        """
        while True:
            end = await self._end_of(task_id)
            if end is None:
                raise NoResultError(task_id, "unknown")
            if isinstance(end, EndedRow):
                if end.end != "done" or end.error:
                    raise NoResultError(task_id, end.end, end.error)
                return None if end.result is None else codec.loads(end.result)[0]
            [row] = await self._store.find([task_id])
            if row is not None and row.state is DurableState.DEAD:  # otherwise it was requeued
                raise NoResultError(task_id, "dead", row.error)

    async def aclose(self) -> None:
        """Let all waits fail: the store is about to be closed."""
        looking = self._looking
        try:
            if looking is not None:
                looking.cancel()
                await asyncio.wait([looking])
        finally:  # also if this is cancelled
            self._fail(StoreUnavailableError(repr(self._store), "it was closed during a wait for a task"))

    async def _end_of(self, task_id: str) -> _End:
        """Return how a task has ended, DEAD for a dead letter, None if it is unknown."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[_End] = loop.create_future()
        self._waiters.setdefault(task_id, []).append(told)
        try:
            if self._looking is None or self._looking.done():  # done where tasks are eager and the store has failed
                self._looking = loop.create_task(self._look(), name="durable tasks: wait for ends")
                await asyncio.sleep(0)  # for its first step: it hears of every change from now on
            await self._tell([task_id])
            return await told
        finally:
            if told.done() and not told.cancelled():
                told.exception()  # it may come with an error of this look, and is told once
            waiters = self._waiters[task_id]
            waiters.remove(told)
            if not waiters:
                del self._waiters[task_id]

    async def _look(self) -> None:
        """Look after each change, as long as somebody waits; it hears of those that come during a look."""
        loop = asyncio.get_running_loop()
        hearing = loop.create_task(self._store.wait(_SWEEP_SECONDS))
        try:
            while self._waiters:
                await hearing
                await asyncio.sleep(_LOOK_SECONDS + _LOOK_SECONDS_EACH * len(self._waiters))
                hearing = loop.create_task(self._store.wait(_SWEEP_SECONDS))
                await asyncio.sleep(0)  # for its first step
                await self._tell(list(self._waiters))
        except Exception as error:  # noqa: BLE001  # of the store: who waits gets it
            self._fail(error)
        finally:
            self._looking = None
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def _tell(self, task_ids: Sequence[str]) -> None:
        for task_id, end in zip(task_ids, await self._store.ended(task_ids), strict=True):
            if end is None or isinstance(end, EndedRow) or end is DurableState.DEAD:
                for told in self._waiters.get(task_id, ()):
                    if not told.done():
                        told.set_result(end)

    def _fail(self, error: Exception) -> None:
        for waiters in self._waiters.values():
            for told in waiters:
                if not told.done():
                    told.set_exception(error)
