"""Counts from which on the kernel goes another way, the same for both of its bodies."""

from __future__ import annotations

from typing import Final

__all__ = ["LARGE_COUNT", "OPEN_COUNT_MAX", "RUN_COUNT", "SLOT_COUNT", "SPARE_COUNT"]

LARGE_COUNT: Final = 16384  # a bucket with more tasks is put in order before its time comes
OPEN_COUNT_MAX: Final = (
    512  # positions kept as one sorted list: an insertion into so many is cheaper than the loop around it
)
RUN_COUNT: Final = 4096  # positions taken at a stretch: about a millisecond
SLOT_COUNT: Final = 1024  # into which an open bucket is cut
SPARE_COUNT: Final = 64  # empty places of a bucket that never matter
