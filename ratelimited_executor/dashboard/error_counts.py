"""The classes of errors of all dead letters of a store, counted when a reader asks for them.

That reads every dead letter, without arguments, in steps of a thousand: a page that polls must not repeat it. So each count has a
number, and the address of a page names the one that it asks for, which begins only once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from ratelimited_executor._core.durable.tasks import DurableState
from ratelimited_executor._runtime.durable.repairs import Selection, selected
from ratelimited_executor.dashboard.errors import unusable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimited_executor.abc import TaskStore

__all__ = ["ErrorCounts"]


class ErrorCounts:
    """Counts the dead letters of a store by the class of their last error, from now on.

    Args:
        store: the store.
        number: 1 for the first count of the store, and so on.
        epoch: returns epoch seconds.

    Attributes:
        number: the number.
        kinds: how many dead letters have an error of each class, of those that have been read so far.
        count: how many have been read.
        ended_at: epoch seconds of the end; None until then.
        problem: why it has ended too early; empty if it has not.
    """

    def __init__(self, store: TaskStore, number: int, epoch: Callable[[], float]) -> None:
        self.number = number
        self.kinds: Counter[str] = Counter()
        self.count = 0
        self.ended_at: float | None = None
        self.problem = ""
        self._store = store
        self._epoch = epoch
        self._task = asyncio.get_running_loop().create_task(self._run(), name="live page: count errors")

    async def _run(self) -> None:
        try:
            async for rows in selected(self._store, DurableState.DEAD, Selection(), body_max=0):
                self.kinds.update(row.error_class for row in rows if row.error_class)
                self.count += len(rows)
        except Exception as error:  # noqa: BLE001  # of a store of the user's, perhaps
            self.problem = unusable(error)
        self.ended_at = self._epoch()
