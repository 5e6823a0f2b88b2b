"""What is read of a store for people and monitoring, also of one that was made for an earlier release.

A store of a user's own may lack what later releases have added to ``rows``, and the method ``latencies``: then more is read than is
needed.
"""

from __future__ import annotations

import inspect
from collections import deque
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durable.tasks import DurableState, cut

if TYPE_CHECKING:
    from ratelimited_executor._core.durable.tasks import EndedRow, TaskRow
    from ratelimited_executor.abc import TaskStore

__all__ = ["ended_rows", "latencies_of", "task_rows"]

_STEP: Final = 1000  # tasks that are read at once
_US: Final = 1_000_000


async def task_rows(
    store: TaskStore,
    state: DurableState | None,
    *,
    after: int = 0,
    limit: int,
    newest_first: bool = False,
    body_max: int | None = None,
) -> list[TaskRow]:
    """Return tasks as ``rows`` of a store does, also if that lacks the last two parameters.

    Then bodies are cut here; and for the newest tasks those before them are read as well, and passed over.
    """
    parameters = inspect.signature(store.rows).parameters
    if "newest_first" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return await store.rows(state, after=after, limit=limit, newest_first=newest_first, body_max=body_max)
    if newest_first:
        newest: deque[TaskRow] = deque(maxlen=limit)
        number = 0
        while rows := await store.rows(state, after=number, limit=_STEP):
            newest.extend(row for row in rows if not after or row.number < after)
            number = rows[-1].number
        found = [*reversed(newest)]
    else:
        found = await store.rows(state, after=after, limit=limit)
    return found if body_max is None else [cut(row, body_max) for row in found]


async def ended_rows(store: TaskStore, function: str | None, before: int | None, limit: int) -> list[EndedRow]:
    """Return ended tasks, the last one first, of a function or of any."""
    if function is None:
        return await store.history(before=before, limit=limit)
    found: list[EndedRow] = []
    while len(found) < limit and (rows := await store.history(before=before, limit=_STEP)):
        found += [row for row in rows if row.name == function]
        before = rows[-1].number
    return found[:limit]


async def latencies_of(store: TaskStore, now: float) -> dict[str, float]:
    """Return for how many seconds the oldest due task has waited, by queue; without those in which none waits.

    Args:
        store: the store.
        now: epoch seconds, for a store without the method ``latencies``. Of that, only READY tasks are known.
    """
    if (latencies := getattr(store, "latencies", None)) is not None:
        return {queue: age_us / _US for queue, age_us in (await latencies()).items()}
    ages: dict[str, float] = {}
    for row in await store.backlog():
        if row.state is DurableState.READY:
            ages[row.queue] = max(0.0, now - row.due_us / _US, ages.get(row.queue, 0.0))
    return dict(sorted(ages.items()))
