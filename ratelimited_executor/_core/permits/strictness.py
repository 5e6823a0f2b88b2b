"""The guarantee of a rate: never more than its permits in any window, or an even pace with slightly more at times."""

from __future__ import annotations

from enum import Enum

__all__ = ["Strictness"]


class Strictness(Enum):
    """The guarantee for the starts of an executor, or of a group of executors."""

    EXACT = "exact"
    """Never more starts than the permits of the rate in any window of its ``per``; the pace is even."""

    NOMINAL = "nominal"
    """At most ``rate * (window + slack) + 1`` starts in any window; the pace is even, and the rate is used in full."""
