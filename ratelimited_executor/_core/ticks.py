"""Round numbers for the labels of an axis: multiples of 1, 2 or 5 times a power of ten.

These are the "nice numbers" of Heckbert, Graphics Gems, 1990.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["ticks"]

_LEAST: Final = 1e-100  # what is less is taken for 0: no tick could be written for it


def ticks(highest: float, count: int = 4, *, is_whole: bool = False) -> list[float]:
    """Return round numbers from 0 up to at least ``highest``, about ``count`` of them; with ``is_whole``, no fractions.

    >>> ticks(7), ticks(1234), ticks(0.0008)
    ([0.0, 2.0, 4.0, 6.0, 8.0], [0.0, 500.0, 1000.0, 1500.0], [0.0, 0.0002, 0.0004, 0.0006, 0.0008])
    """
    if not _LEAST < highest < math.inf:
        return [0.0, 1.0]
    rough = highest / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    if is_whole:
        step = max(1.0, step)
    return [float(f"{number * step:.12g}") for number in range(math.ceil(highest / step - 1e-9) + 1)]
