"""The last hour of something that is measured: a ring of points, one every few seconds, in columns of four bytes."""

from __future__ import annotations

import math
from array import array
from typing import Any, Final, Generic, NamedTuple, TypeVar

__all__ = ["POINT_COUNT", "STEP_SECONDS", "History", "Point"]

P = TypeVar("P", bound=tuple[Any, ...])

STEP_SECONDS: Final = 5.0
"""Between two points."""
POINT_COUNT: Final = 720
"""An hour of points."""


class Point(NamedTuple):
    """How an executor stood at one moment; NaN where there was nothing to measure.

    Attributes:
        at: epoch seconds.
        rate: starts a second that the rate in force allows.
        started: starts a second since the point before.
        failed: failures a second since the point before.
        waiting: tasks that have not started.
        overdue: those of them that are due, or will be within the running interval.
        running: tasks that run.
        lateness: seconds; the 99th percentile of the starts that were sampled since the point before.
    """

    at: float
    rate: float
    started: float
    failed: float
    waiting: float
    overdue: float
    running: float
    lateness: float


class History(Generic[P]):
    """A ring of points: once it is full, the newest replaces the oldest.

    Memory: eight bytes a point for its time, and four for each other field: 26 KB for an hour of :class:`Point`.

    Args:
        kind: the named tuple that a point is; its field ``at`` is epoch seconds, and all others are floats.
        count_max: how many points are kept, > 0.
    """

    __slots__ = ("_columns", "_count_max", "_last", "_next")

    def __init__(self, kind: type[P], count_max: int = POINT_COUNT) -> None:
        self._last: P | None = None  # as it is, beside its columns: pages of many executors ask for it most
        self._count_max = count_max
        fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]  # of each named tuple
        self._columns = {name: array("d" if name == "at" else "f") for name in fields}
        self._next = 0  # the position of the oldest point, once the ring is full

    def __len__(self) -> int:
        return len(self._columns["at"])

    def add(self, point: P) -> None:
        """Append a point."""
        self._last = point
        if len(self) < self._count_max:
            for column, value in zip(self._columns.values(), point, strict=True):
                column.append(value)
            return
        for column, value in zip(self._columns.values(), point, strict=True):
            column[self._next] = value
        self._next = (self._next + 1) % self._count_max

    def column(self, name: str) -> list[float]:
        """Return one field of all points, the oldest first."""
        column = self._columns[name]
        return [*column[self._next :], *column[: self._next]]

    def tail(self, name: str, count: int) -> list[float]:
        """Return one field of the newest points, at most so many, the oldest first."""
        column = self._columns[name]
        begin = self._next - min(count, len(column))
        return (
            [*column[begin:], *column[: self._next]]
            if begin < 0 < self._next
            else [*column[begin : self._next or None]]
        )

    def last_of(self, name: str) -> float:
        """Return one field of the newest point; NaN if there is none."""
        return math.nan if self._last is None else getattr(self._last, name)

    def last(self) -> P | None:
        """Return the newest point; None if there is none."""
        return self._last
