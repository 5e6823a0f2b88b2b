"""Tasks that have ended and are kept for a while, as a table in memory; the last one of each id."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from ratelimited_executor._core.durable.tasks import End, EndedRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratelimited_executor._core.durable.tasks import KeptTask

__all__ = ["FORGOTTEN_MAX", "EndedTasks", "ending_of"]

FORGOTTEN_MAX: Final = 1000
"""Tasks that a beat, or the end of claims of which some are kept, deletes from the history at most."""


def ending_of(end: End) -> str:
    """Return how a task has ended that is gone after the end of a claim; if it was cancelled, whatever that end is."""
    return end.value if end in (End.DONE, End.EXPIRED) else End.CANCELLED.value


class EndedTasks:
    """The history of one store."""

    def __init__(self) -> None:
        self._rows: dict[str, EndedRow] = {}  # by id, in the order of their ends
        self._until: list[tuple[int, int, str]] = []  # a heap of (until when, number, id), also of some that are gone
        self._last_number = 0

    def add(self, now_us: int, end: str, kept: KeptTask) -> None:
        """Add a task that has just ended."""
        self._last_number += 1
        self._rows.pop(kept.id, None)
        self._rows[kept.id] = EndedRow(
            number=self._last_number, id=kept.id, queue=kept.queue, name=kept.name, version=kept.version, end=end,
            attempt_count=kept.attempt_count, run_us=kept.run_us, ended_us=now_us, result=kept.result, error=kept.error,
        )  # fmt: skip
        heappush(self._until, (now_us + kept.keep_us, self._last_number, kept.id))

    def forget(self, now_us: int) -> None:
        """Delete tasks whose time is over, at most ``FORGOTTEN_MAX``."""
        for _ in range(FORGOTTEN_MAX):
            if not self._until or self._until[0][0] > now_us:
                return
            _, number, task_id = heappop(self._until)
            row = self._rows.get(task_id)
            if row is not None and row.number == number:
                del self._rows[task_id]

    def find(self, task_id: str) -> EndedRow | None:
        """Return the task with an id; None if it is not kept."""
        return self._rows.get(task_id)

    def rows(self, before: int | None, limit: int) -> list[EndedRow]:
        """Return tasks with numbers less than ``before``, or any, the one that ended last first."""
        found: Iterable[EndedRow] = (
            row for row in reversed(self._rows.values()) if before is None or row.number < before
        )
        return [row for _, row in zip(range(limit), found, strict=False)]
