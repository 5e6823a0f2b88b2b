"""Fewer points for long runs: a span is cut into pieces of whole steps, and each piece becomes one point.

A piece keeps the maximum of a level, such as the depth of a queue, and the sum of a counter. So no spike is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["POINTS_MAX", "Grid", "Maxima", "Sums"]

POINTS_MAX: Final = 2000

_ROUNDING: Final = 1e-6  # of a step: the possible rounding error of a sum of steps


@dataclass(frozen=True, slots=True)
class Grid:
    """A span of time divided into steps, and the steps into pieces.

    Attributes:
        span: the length of the span in seconds.
        step: the length of a step in seconds, > 0.
        steps: the number of steps; the last one may be shorter.
        steps_in_piece: the number of steps in a piece; the last piece may have fewer.
        pieces: the number of pieces, at most 2000.
    """

    span: float
    step: float
    steps: int
    steps_in_piece: int
    pieces: int

    @classmethod
    def of(cls, span: float, step: float) -> Grid:
        """Divide a span."""
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
        """Return the number of the step that ends at a time, or first after it."""
        return min(max(math.ceil(time / self.step - _ROUNDING) - 1, 0), self.steps - 1)

    def piece_at(self, time: float) -> int:
        """Return the number of the piece that a step belongs to."""
        return self.step_at(time) // self.steps_in_piece


class Maxima:
    """The maximum of a level in each piece. In a step without a row nothing happened, and the level is 0.

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
        """The maximum over all pieces."""
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
        """Add the count of a step."""
        self.values[step // self._grid.steps_in_piece] += count

    def per_minute(self) -> list[float]:
        """Return the rate of each piece; the last piece may be shorter, and its rate is over its own length."""
        rates, begin = [], 0.0
        for end, value in zip(self._grid.ends, self.values, strict=True):
            rates.append(60 * value / (end - begin) if end > begin else 0.0)
            begin = end
        return rates
