"""The states that running tasks have saved, on their way into the store: many in one call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratelimited_executor._core.durable.tasks import TaskOutcome
    from ratelimited_executor._runtime.durable.current import CurrentRun
    from ratelimited_executor.abc import TaskStore

__all__ = ["Saving"]

_BATCH: Final = 100  # states of at most 64 KiB in one call


class Saving:
    """The saved states of one runner that are not written yet.

    A state is added in any thread: a run is added after it has got its state, and taken out before that is read.

    Args:
        store: the store of the tasks.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._runs: set[CurrentRun] = set()
        self._turn = asyncio.Lock()

    def add(self, run: CurrentRun) -> None:
        """Write the state of a run soon."""
        self._runs.add(run)

    def discard(self, run: CurrentRun) -> None:
        """Do not write the state of a run: its task has ended."""
        self._runs.discard(run)

    async def write(self, outcomes: Iterable[TaskOutcome] | None = None) -> None:
        """Write the states of all claims, or of those that end."""
        if not self._runs and not self._turn.locked():
            return
        refs = None if outcomes is None else {outcome.ref for outcome in outcomes}
        async with self._turn:  # a claim must not end while its state is under way
            runs = [run for run in tuple(self._runs) if refs is None or run.claimed.ref in refs]
            for first in range(0, len(runs), _BATCH):
                some = runs[first : first + _BATCH]
                self._runs.difference_update(some)
                try:
                    await self._store.save([(run.claimed.ref, run.saved) for run in some if run.saved is not None])
                except BaseException:
                    self._runs.update(some)
                    raise
