"""How long tasks have run, of which nobody has recorded when they started: by their numbers, which rise from start to start.

Every few seconds the number of the latest start is noted. A task with a higher number than at one moment, and not a higher one
than at the next, has started in between. So a start costs nothing. Moments before the oldest running task are forgotten;
of too many, so is the one whose neighbours are nearest for their age. An age is known to seconds at first, and later to a tenth.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["StartMarks"]

_MARK_COUNT_MAX: Final = 64


class StartMarks:
    """Moments, and the number of the latest start at each of them."""

    __slots__ = ("_numbers", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._times)

    def note(self, now: float, number: int, oldest: int | None) -> None:
        """Note the number of the latest start.

        Args:
            now: the loop time.
            number: the number of the latest start.
            oldest: the number of the oldest running task; None if none runs.
        """
        known = len(self) if oldest is None else max(0, bisect_left(self._numbers, oldest) - 1)
        del self._times[:known], self._numbers[:known]
        if len(self) >= _MARK_COUNT_MAX:
            least = min(range(1, len(self) - 1), key=lambda place: self._gap(place, now))
            del self._times[least], self._numbers[least]
        self._times.append(now)
        self._numbers.append(number)

    def _gap(self, place: int, now: float) -> float:
        """Return how far the neighbours of a moment are from each other, as a part of its age."""
        return (self._times[place + 1] - self._times[place - 1]) / (now - self._times[place])

    def age(self, number: int, now: float) -> tuple[float, float | None]:
        """Return how long a task has run: at least so many seconds, and at most so many, None where no moment tells.

        Args:
            number: its number.
            now: the loop time.
        """
        place = bisect_left(self._numbers, number)  # the first moment at which it had started
        least = now - self._times[place] if place < len(self) else 0.0
        return least, now - self._times[place - 1] if place else None
