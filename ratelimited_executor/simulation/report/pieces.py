"""Fewer points for long runs: a span is cut into pieces of whole steps, and each piece becomes one point.

Of a level, such as the depth of a queue, a piece keeps the maximum; of a counter the sum. So no spike is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["POINTS_MAX", "Grid", "Maxima", "Sums"]

POINTS_MAX: Final = 2000

_ROUNDING: Final = 1e-6  # of a step: what a sum of steps may be off by


@dataclass(frozen=True, slots=True)
class Grid:
    """A span of time in steps, and the steps in pieces.

    Attributes:
        span: seconds.
        step: seconds, > 0.
        steps: how many there are, the last one perhaps shorter.
        steps_in_piece: the last piece may have fewer.
        pieces: how many there are: 2000 at most.
    """

    span: float
    step: float
    steps: int
    steps_in_piece: int
    pieces: int

    @classmethod
    def of(cls, span: float, step: float) -> Grid:
        """Cut a span."""
        steps = max(1, math.ceil(span / step - _ROUNDING))
        steps_in_piece = math.ceil(steps / POINTS_MAX)
        return cls(span, step, steps, steps_in_piece, math.ceil(steps / steps_in_piece))

    @property
    def piece_seconds(self) -> float:
        """The length of a piece."""
        return self.step * self.steps_in_piece

    @property
    def ends(self) -> list[float]:
        """The end of each piece, in seconds since the start."""
        length = self.piece_seconds
        return [*(length * piece for piece in range(1, self.pieces)), self.span]

    def step_at(self, time: float) -> int:
        """Return the number of the step that ends at, or soonest after, a time."""
        return min(max(math.ceil(time / self.step - _ROUNDING) - 1, 0), self.steps - 1)

    def piece_at(self, time: float) -> int:
        """Return the number of the piece that a step belongs to."""
        return self.step_at(time) // self.steps_in_piece


class Maxima:
    """The maximum of a level in each piece. In steps that have no row nothing happened, and the level is 0.

    Args:
        grid: the pieces.
    """

    __slots__ = ("_grid", "_sum", "values")

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._sum = 0
        self.values = [0] * grid.pieces

    @property
    def most(self) -> int:
        """The maximum of all."""
        return max(self.values)

    @property
    def mean(self) -> float:
        """The mean over all steps."""
        return self._sum / self._grid.steps

    def add(self, step: int, level: int) -> None:
        """Add the level at the end of a step."""
        piece = step // self._grid.steps_in_piece
        self.values[piece] = max(self.values[piece], level)
        self._sum += level


class Sums:
    """The sum of a counter in each piece.

    Args:
        grid: the pieces.
    """

    __slots__ = ("_grid", "values")

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.values = [0] * grid.pieces

    def add(self, step: int, count: int) -> None:
        """Count what a step has."""
        self.values[step // self._grid.steps_in_piece] += count

    def per_minute(self) -> list[float]:
        """Return the rate of each piece; that of the last one is of its own length."""
        rates, begin = [], 0.0
        for end, value in zip(self._grid.ends, self.values, strict=True):
            rates.append(60 * value / (end - begin) if end > begin else 0.0)
            begin = end
        return rates
