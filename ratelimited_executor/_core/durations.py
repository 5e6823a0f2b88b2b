"""Durations as people type them: ``90``, ``10m``, ``1h30m``, ``1.5h``, ``250ms``."""

from __future__ import annotations

import math
import re
from typing import Final

__all__ = ["format_duration", "parse_duration"]

_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h|d)\s*")
_BARE: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def parse_duration(text: str) -> float:
    """Return the seconds that a text means; a bare number is seconds.

    Raises:
        ValueError: if the text is no duration, or is zero or infinite.

    >>> [parse_duration(text) for text in ("90", "10m", "1h30m", "250ms")]
    [90.0, 600.0, 5400.0, 0.25]
    """
    stripped = text.strip().lower()
    seconds = float(stripped) if _BARE.fullmatch(stripped) else _sum_of_parts(stripped)
    if seconds is None or not 0 < seconds < math.inf:
        raise ValueError(f"a duration looks like 90, 10m or 1h30m and is longer than 0, got {text!r}")
    return seconds


def format_duration(seconds: float) -> str:
    """Write a duration for people: three digits below a minute, whole seconds above.

    >>> [format_duration(value) for value in (0.00052, 0.25, 42.0, 61.4, 5400)]
    ['0.52 ms', '250 ms', '42 s', '1:01', '1:30:00']
    """
    if seconds < 0.9995:  # from here on it would be written as 1e+03 ms
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _sum_of_parts(text: str) -> float | None:
    """Add up ``1h30m`` and its like; None if anything else is in the text."""
    total, position = 0.0, 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            return None
        total += float(match[1]) * _UNIT_SECONDS[match[2]]
        position = match.end()
    return total
