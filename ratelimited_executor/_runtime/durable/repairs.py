"""Repairs and lists of many durable tasks: which tasks, and in which steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from ratelimited_executor._core.durable.tasks import DurableState, EndedRow, TaskRow
    from ratelimited_executor.abc import TaskStore

__all__ = ["RepairSummary", "Selection", "ended_rows", "repair", "selected"]

_STEP: Final = 1000  # tasks that are read at once, and changed in one transaction
_EXAMPLES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairSummary:
    """The result of a repair, or of its dry run.

    Attributes:
        count: the tasks that were changed; in a dry run, those that would be.
        examples: the first of them, as they were found.
    """

    count: int
    examples: tuple[TaskRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What tasks have in common; None stands for anything.

    Attributes:
        function: the registered name of their function.
        queue: their queue.
        lane: their lane.
        key: their key.
        since_us: the least of their due times; that of a dead letter is the due time of its last attempt.
        error: a text within the error of their last failed attempt.
        error_class: the class of that error, as :attr:`TaskRow.error_class` has it.
    """

    function: str | None = None
    queue: str | None = None
    lane: str | None = None
    key: str | int | None = None
    since_us: int | None = None
    error: str | None = None
    error_class: str | None = None

    def fits(self, row: TaskRow) -> bool:
        """True if a task is one of them."""
        return (
            self.function in (None, row.name)
            and self.queue in (None, row.queue)
            and self.lane in (None, row.lane)
            and self.key in (None, row.key)
            and (self.since_us is None or row.due_us >= self.since_us)
            and (self.error is None or self.error in row.error)
            and self.error_class in (None, row.error_class)
        )


async def selected(store: TaskStore, state: DurableState | None, selection: Selection) -> AsyncIterator[list[TaskRow]]:
    """Yield the selected tasks in a state, or in any, of some that are read at once: perhaps none."""
    after = 0
    while rows := await store.rows(state, after=after, limit=_STEP):
        yield [row for row in rows if selection.fits(row)]
        after = rows[-1].number


async def ended_rows(store: TaskStore, function: str | None, before: int | None, limit: int) -> list[EndedRow]:
    """Return ended tasks, the last one first, of a function or of any."""
    if function is None:
        return await store.history(before=before, limit=limit)
    found: list[EndedRow] = []
    while len(found) < limit and (rows := await store.history(before=before, limit=_STEP)):
        found += [row for row in rows if row.name == function]
        before = rows[-1].number
    return found[:limit]


async def repair(
    store: TaskStore,
    state: DurableState | None,
    selection: Selection,
    change: Callable[[Sequence[str]], Awaitable[int]] | None,
    *,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> RepairSummary:
    """Change the tasks that are selected at the beginning, as far as they still are when their turn comes.

    Others that come into the state meanwhile are left there, such as a requeued task that fails again, or the next of a lane.

    Args:
        store: their store.
        state: their state; None for any.
        selection: what they have in common.
        change: changes tasks by their ids, and returns the number of those that were changed; None for a dry run.
        progress: called after each step with the number of changed tasks until then, and that of the selected ones.
    """
    ids: list[str] = []
    examples: list[TaskRow] = []
    async for rows in selected(store, state, selection):
        examples += rows[: _EXAMPLES - len(examples)]
        ids += [row.id for row in rows]
    if change is None:
        return RepairSummary(count=len(ids), examples=tuple(examples))
    count = 0
    for first in range(0, len(ids), _STEP):
        found = await store.find(ids[first : first + _STEP])
        count += await change([row.id for row in found if row is not None and _is_selected(row, state, selection)])
        progress(count, len(ids))
    return RepairSummary(count=count, examples=tuple(examples))


def _is_selected(row: TaskRow, state: DurableState | None, selection: Selection) -> bool:
    return state in (None, row.state) and selection.fits(row)
