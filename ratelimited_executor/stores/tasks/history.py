"""Saved states of durable tasks and the history of those that have ended, as moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durable.history import FORGOTTEN_MAX, ending_of
from ratelimited_executor._core.durable.tasks import DurableState, EndedRow
from ratelimited_executor.stores.tasks.statements import Together

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ratelimited_executor._core.durable.tasks import Ref, TaskOutcome
    from ratelimited_executor.stores.tasks.statements import Moves

__all__ = ["ended", "forget_history", "history", "keep", "save"]

_EVER: Final = 2**62  # above all numbers


def save(states: Sequence[tuple[Ref, bytes]]) -> Moves[None]:
    """Keep the states that claimed tasks have saved."""
    if states:
        yield "save", Together([(*ref, state) for ref, state in states], ())


def keep(now_us: int, outcomes: Iterable[TaskOutcome], gone: Iterable[Sequence[Any]]) -> Moves[None]:
    """Add those tasks to the history that are gone after the end of their claims, given as number, token, and more."""
    kept = [(ref, end, one) for ref, end, _, _, one in outcomes if one is not None]
    if not kept:
        return
    yield from forget_history(now_us)
    refs = {(number, token) for number, token, *_ in gone}
    rows = [
        (
            one.id, one.queue, one.name, one.version, ending_of(end), one.attempt_count, one.run_us, now_us,
            now_us + one.keep_us, one.result, one.error,
        )
        for ref, end, one in kept
        if ref in refs
    ]  # fmt: skip
    if rows:
        yield "keep", Together(rows, ())


def forget_history(now_us: int) -> Moves[None]:
    """Delete tasks from the history whose time is over."""
    yield "forget_history", [(now_us, FORGOTTEN_MAX)]


def ended(ids: Sequence[str]) -> Moves[list[EndedRow | DurableState | None]]:
    """Look tasks up that may have ended."""
    found = yield "ended", [(task_id,) for task_id in ids]
    known: dict[str, EndedRow | DurableState] = {row[1]: _answer(row) for row in found}
    return [known.get(task_id) for task_id in ids]


def history(before: int | None, limit: int) -> Moves[list[EndedRow]]:
    """List ended tasks."""
    found = yield "history", [(_EVER if before is None else before, limit)]
    return [_ended_row(row) for row in found]


def _answer(row: tuple[Any, ...]) -> EndedRow | DurableState:
    return DurableState(int(row[5])) if row[8] is None else _ended_row(row)


def _ended_row(row: tuple[Any, ...]) -> EndedRow:
    number, task_id, queue, name, version, end, attempts, run_us, ended_us, result, error = row
    return EndedRow(
        number=number, id=task_id, queue=queue, name=name, version=version, end=end, attempt_count=attempts, run_us=run_us,
        ended_us=ended_us, result=None if result is None else bytes(result), error=error,
    )  # fmt: skip
