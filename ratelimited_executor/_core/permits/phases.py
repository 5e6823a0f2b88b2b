"""Phases, which keep executors of equal rates from starting in step.

The phase of a grid is the part of the gap between two permits by which its permits come up later than those of the grid
that begins at the epoch: 0 <= phase < 1. Every law of a rate is invariant under a shift of time, so a phase costs nothing.

Within a process, executors take multiples of the golden ratio modulo 1: any number of successive ones are nearly even, and
a gap between two is at most 2.7 times as wide as if they were (three-distance theorem). Processes that share a grid need
the same phase without asking each other, whatever the order in which they create their executors: a hash of the name.
Source: V. T. Sós, On the distribution mod 1 of the sequence n alpha, 1958.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["phase_of", "phases"]

_GOLDEN: Final = (5**0.5 - 1) / 2


def phase_of(name: str) -> float:
    """Return the phase of a name, the same in every process."""
    return crc32(name.encode(errors="surrogatepass")) / 2**32


def phases() -> Iterator[float]:
    """Yield phases without end, the first 0."""
    return (number * _GOLDEN % 1 for number in itertools.count())
