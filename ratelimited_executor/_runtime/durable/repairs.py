"""Repairs of many durable tasks: which tasks, and in which steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ratelimited_executor._runtime.durable.reading import task_rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from ratelimited_executor._core.durable.tasks import DurableState, TaskRow
    from ratelimited_executor.abc import TaskStore

__all__ = ["RepairSummary", "Selection", "repair", "selected"]

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


async def selected(
    store: TaskStore,
    state: DurableState | None,
    selection: Selection,
    *,
    newest_first: bool = False,
    body_max: int | None = None,
) -> AsyncIterator[list[TaskRow]]:
    """Yield the selected tasks in a state, or in any, of some that are read at once: perhaps none."""
    read = partial(task_rows, store, state, limit=_STEP, newest_first=newest_first, body_max=body_max)
    after = 0
    while rows := await read(after=after):
        yield [row for row in rows if selection.fits(row)]
        after = rows[-1].number


async def repair(
    store: TaskStore,
    state: DurableState | None,
    selection: Selection,
    change: Callable[[Sequence[str]], Awaitable[int]] | None,
    *,
    progress: Callable[[int, int], None] = lambda _, __: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> RepairSummary:
    """Change the tasks that are selected at the beginning, as far as they still are when their turn comes.

    Others that come into the state meanwhile are left there, such as a requeued task that fails again, or the next of a lane.

    Args:
        store: their store.
        state: their state; None for any.
        selection: what they have in common.
        change: changes tasks by their ids, and returns the number of those that were changed; None for a dry run.
        progress: called after each step with the number of changed tasks until then, and that of the selected ones.
        is_stopped: asked before each step: True to leave the other tasks as they are.
    """
    ids: list[str] = []
    async for rows in selected(store, state, selection, body_max=0):
        ids += [row.id for row in rows]
        if is_stopped():
            break
    examples = [row for row in await store.find(ids[:_EXAMPLES]) if row is not None]
    if change is None:
        return RepairSummary(count=len(ids), examples=tuple(examples))
    count = 0
    for first in range(0, len(ids), _STEP):
        if is_stopped():
            break
        found = await store.find(ids[first : first + _STEP])
        count += await change([row.id for row in found if row is not None and _is_selected(row, state, selection)])
        progress(count, len(ids))
    return RepairSummary(count=count, examples=tuple(examples))


def _is_selected(row: TaskRow, state: DurableState | None, selection: Selection) -> bool:
    return state in (None, row.state) and selection.fits(row)
